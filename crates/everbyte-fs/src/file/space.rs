//! Space of regular files: reservation, zeroing, holes, and the search for data and holes.

use everbyte_extent::{DeviceOffset, LEAF_BYTES, Planner, Stored, leaf_parts};
use everbyte_media::{BLOCK_U64, Medium};
use everbyte_pool::Corrupt;

use crate::attributes::protection::{check_mutable, check_unrestricted};
use crate::error::FsError;
use crate::file::data::{PartBlocks, note_changed};
use crate::format::FILE_BYTES_MAX;
use crate::format::Field;
use crate::format::number::InodeNo;
use crate::fs::FileSystem;
use crate::inode::edits::Edits;
use crate::inode::open_files::FileState;

/// A change of the space of a range of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocation {
    /// Holes get space and read as zeroes.
    Reserve,
    /// The range reads as zeroes and keeps space.
    Zero,
    /// The range reads as zeroes. Whole blocks lose their space. The size stays.
    Punch,
}

/// The target of a search in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seek {
    /// Written bytes.
    Data,
    /// Unwritten bytes; the end of the file is a hole.
    Hole,
}

impl<M: Medium> FileSystem<M> {
    /// Reserves, zeroes or unmaps `len` bytes of a regular file from `offset` on, at least one. Works in
    /// parts of 2 MiB, or smaller ones as in [`FileSystem::write`]; each part is atomic. Unmapping skips
    /// parts without space except the last one. The last part extends the file if the range ends beyond it,
    /// unless `keep_size` is set.
    ///
    /// # Errors
    /// The file is not regular; `Invalid` for an empty range; `TooLarge`; `Immutable`; `AppendOnly` unless it
    /// reserves; the pool is full; the volume cannot be written. Earlier parts are done then, and the size is
    /// unchanged.
    pub fn allocate(
        &self,
        inode: InodeNo,
        (offset, len): (u64, u64),
        what: Allocation,
        keep_size: bool,
    ) -> Result<(), FsError> {
        if len == 0 {
            return Err(FsError::Invalid { what: "the range is empty" });
        }
        let end = offset.checked_add(len).filter(|&end| end <= FILE_BYTES_MAX);
        let end = end.ok_or(FsError::TooLarge)?;
        // As on Linux, where a hole requires the flag to keep the size.
        let keep_size = keep_size || what == Allocation::Punch;
        let _op = self.volume().begin_op();
        let _locks = self.locks.write(&[inode]);
        let (file, words) = self.file(inode)?;
        match what {
            // A reservation changes no byte, so an append-only file permits it.
            Allocation::Reserve => check_mutable(&words)?,
            Allocation::Zero | Allocation::Punch => check_unrestricted(&words)?,
        }
        let size = words.get(Field::Size);
        let end = if what == Allocation::Punch { end.min(size) } else { end };
        if offset >= end {
            return Ok(());
        }
        let size = if keep_size { size } else { size.max(end) };
        // The last part is always made, because it changes the times.
        let last = (end - 1) / LEAF_BYTES * LEAF_BYTES;
        let (mut at, mut parts) = (offset, PartBlocks::all());
        while at < end {
            // A sparse file can have huge holes, and a batch for each leaf of them would take hours.
            if what == Allocation::Punch && at < last {
                let filled = self.after_hole(&file, at)?.min(last);
                if filled > at {
                    at = filled;
                    continue;
                }
            }
            let len = parts.bytes(at, usize::try_from(end - at).unwrap_or(usize::MAX));
            let part = leaf_parts(DeviceOffset(at), len as u64).next();
            let part = part.expect("some bytes are left");
            let changed = self.volume().change(|batch, circumstances| {
                let mut edits = Edits::new(&self.tables);
                let edit = edits.get(self.reader(), inode)?;
                let before = batch.savepoint();
                let mut planner = Planner::new(&file.extent, batch, circumstances);
                let blocks = part.blocks();
                match what {
                    Allocation::Reserve => planner.reserve(blocks.first, blocks.end())?,
                    Allocation::Zero => planner.zero(part.offset(), part.end(), true)?,
                    Allocation::Punch => planner.unmap(part)?,
                }
                // Only the last part extends the file: after an error the caller expects the old size.
                let is_last = part.end().0 == end;
                let size = if is_last { size } else { edit.words.get(Field::Size) };
                note_changed(edit, batch.allocated_since(before), size);
                edits.plan(batch);
                Ok::<(), FsError>(())
            });
            match changed {
                Ok(_) => at = part.end().0,
                // Smaller parts log fewer old bytes.
                Err(FsError::NoLog) if parts.halve(at, len) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The end of the hole at byte `at`, or of the part of it that one look at the map covers. `at` if the
    /// hole does not reach beyond a leaf of the map.
    fn after_hole(&self, file: &FileState<M>, at: u64) -> Result<u64, FsError> {
        let (stored, next) = file.extent.stored_run(DeviceOffset(at))?;
        let end = next.0.saturating_mul(BLOCK_U64);
        let leaf_end = (at / LEAF_BYTES + 1) * LEAF_BYTES;
        Ok(if stored == Stored::Hole && end >= leaf_end { end } else { at })
    }

    /// The first byte of data, or of a hole, from `offset` on. Reserved bytes are a hole until they are
    /// written.
    ///
    /// # Errors
    /// `NoData` if there is no such byte, or if `offset` lies at or beyond the end; a file that is not
    /// regular or is damaged.
    pub fn seek(&self, inode: InodeNo, offset: u64, what: Seek) -> Result<u64, FsError> {
        let _lock = self.locks.read(inode);
        let (file, words) = self.file(inode)?;
        let size = words.get(Field::Size);
        if offset >= size {
            return Err(FsError::NoData);
        }
        let mut at = offset;
        let mut left = self.runs_max();
        while at < size {
            let (stored, next) = file.extent.stored_run(DeviceOffset(at))?;
            // A damaged map can name one block in many words, and the search would take as long as
            // the words.
            left = left.checked_sub(1).ok_or_else(|| {
                let what = "it leads to more blocks than the pool has";
                Corrupt::new(format!("map of {inode}"), file.extent.root_at(), what)
            })?;
            let is_data = matches!(stored, Stored::Data(_));
            if is_data == (what == Seek::Data) {
                return Ok(at);
            }
            at = next.0.saturating_mul(BLOCK_U64);
        }
        if what == Seek::Hole { Ok(size) } else { Err(FsError::NoData) }
    }

    /// An upper bound of the runs of a file: each lies in a leaf of its map and has a word there.
    fn runs_max(&self) -> u64 {
        let blocks = self.volume().data_area().blocks();
        (blocks.end - blocks.start).saturating_mul(BLOCK_U64 / 8)
    }
}

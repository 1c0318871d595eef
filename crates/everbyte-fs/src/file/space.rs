//! Space of regular files: blocks that are reserved, unmapped, or found.

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
    /// Its holes get space, and read as zeroes.
    Reserve,
    /// It reads as zeroes, from space of its own.
    Zero,
    /// It reads as zeroes, and its whole blocks have no space. The size stays.
    Punch,
}

/// The sort of bytes that are looked for in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seek {
    /// Bytes that were written.
    Data,
    /// Bytes that were not; the end of the file is one.
    Hole,
}

impl<M: Medium> FileSystem<M> {
    /// Reserves, zeroes or unmaps `len` bytes of a regular file from `offset` on, at least one, in parts
    /// of 2 MiB, each of which is atomic, or smaller ones where [`FileSystem::write`] makes such; unmapping makes none
    /// but the last where there is nothing. With the last the file becomes larger if the range ends beyond it, unless
    /// `keep_size` says that it shall not.
    ///
    /// # Errors
    /// It is no regular file; `Invalid` for an empty range; `TooLarge`; `Immutable`; `AppendOnly` unless it reserves; the pool is full or the
    /// volume cannot be written: earlier parts are done then, and the size is what it was.
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
        let keep_size = keep_size || what == Allocation::Punch;
        let _op = self.volume().begin_op();
        let _locks = self.locks.write(&[inode]);
        let (file, words) = self.file(inode)?;
        match what {
            Allocation::Reserve => check_mutable(&words)?,
            Allocation::Zero | Allocation::Punch => check_unrestricted(&words)?,
        }
        let size = words.get(Field::Size);
        let end = if what == Allocation::Punch { end.min(size) } else { end };
        if offset >= end {
            return Ok(());
        }
        let size = if keep_size { size } else { size.max(end) };
        // Made always, because it changes the times.
        let last = (end - 1) / LEAF_BYTES * LEAF_BYTES;
        let (mut at, mut parts) = (offset, PartBlocks::all());
        while at < end {
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
                // The last part alone lets the file grow: whoever gets an error counts on the old size.
                let is_last = part.end().0 == end;
                let size = if is_last { size } else { edit.words.get(Field::Size) };
                note_changed(edit, batch.taken_since(before), size);
                edits.plan(batch);
                Ok::<(), FsError>(())
            });
            match changed {
                Ok(_) => at = part.end().0,
                Err(FsError::NoLog) if parts.halve(at, len) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The end of the hole of a file that has byte `at`, or of its part that the map tells at once; `at` unless that is
    /// beyond the leaf of the map.
    fn after_hole(&self, file: &FileState<M>, at: u64) -> Result<u64, FsError> {
        let (stored, next) = file.extent.stored_run(DeviceOffset(at))?;
        let end = next.0.saturating_mul(BLOCK_U64);
        let leaf_end = (at / LEAF_BYTES + 1) * LEAF_BYTES;
        Ok(if stored == Stored::Hole && end >= leaf_end { end } else { at })
    }

    /// The first byte from `offset` on that is data, or a hole. Reserved bytes are a hole until they are
    /// written.
    ///
    /// # Errors
    /// `NoData` if there is none, or `offset` lies at or beyond the end; it is no regular file, or cannot
    /// be right.
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

    /// More runs of one sort than a file can have: each lies in a leaf of its map, and has a word there.
    fn runs_max(&self) -> u64 {
        let blocks = self.volume().data_area().blocks();
        (blocks.end - blocks.start).saturating_mul(BLOCK_U64 / 8)
    }
}

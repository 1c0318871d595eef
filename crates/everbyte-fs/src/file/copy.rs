//! Copies between files of one file system.

use everbyte_extent::{DeviceOffset, Extent, LEAF_BYTES, Planner, Stored};
use everbyte_media::{BLOCK_U64, Medium};

use crate::attributes::protection::check_write;
use crate::error::FsError;
use crate::file::data::{PartBlocks, WRITE_PART, note_changed};
use crate::format::number::InodeNo;
use crate::format::{FILE_BYTES_MAX, Field};
use crate::fs::FileSystem;
use crate::inode::edits::Edits;

/// Bound of the blocks in a search for the end of a hole: 2 GiB.
const HOLE_BLOCKS_MAX: usize = 1 << 19;

/// A position in a regular file.
#[derive(Clone, Copy, Debug)]
pub struct FilePlace {
    /// The file.
    pub inode: InodeNo,
    /// Offset in bytes.
    pub offset: u64,
}

impl FilePlace {
    fn plus(self, bytes: u64) -> Self {
        Self { offset: self.offset + bytes, ..self }
    }
}

/// A range of data or of a hole.
#[derive(Clone, Copy, Debug)]
struct Run {
    is_data: bool,
    len: u64,
}

impl<M: Medium> FileSystem<M> {
    /// Copies up to `len` bytes of a regular file to a position in the same or another regular file. Extends
    /// the target if it ends before. Returns the number of copied bytes. It is lower if the source ends, the
    /// target reaches its limit, or an error stops a later part. Parts are atomic: up to 1 MiB of data or a
    /// hole, or smaller parts as in [`FileSystem::write`]. Holes and reserved bytes become holes.
    ///
    /// # Errors
    /// Nothing was copied: a file is not regular; `Immutable` or `AppendOnly` as [`FileSystem::write`];
    /// `Invalid` if the ranges overlap; `TooLarge`; the pool is full; bytes cannot be read; the volume cannot
    /// be written.
    pub fn copy(&self, from: FilePlace, to: FilePlace, len: u64) -> Result<u64, FsError> {
        // A hint for the limits below. Each part reads the size again under both locks.
        let left = self.size_of(from.inode)?.saturating_sub(from.offset);
        // An empty copy to a file that is not regular must fail as well.
        self.size_of(to.inode)?;
        let len = len.min(left);
        let room = FILE_BYTES_MAX.saturating_sub(to.offset);
        if room == 0 && len > 0 {
            return Err(FsError::TooLarge);
        }
        let len = len.min(room);
        // Parts are separate batches, so an overlap could read bytes that an earlier part wrote.
        if from.inode == to.inode && from.offset.abs_diff(to.offset) < len {
            return Err(FsError::Invalid { what: "the ranges overlap" });
        }
        let (mut done, mut parts) = (0, PartBlocks::all());
        while done < len {
            match self.copy_part((from.plus(done), to.plus(done)), len - done, &mut parts) {
                Ok(0) => break,
                Ok(copied) => done += copied,
                Err(error) if done == 0 => return Err(error),
                // A later part failed: the caller gets the number of bytes of the parts that stand.
                Err(_) => break,
            }
        }
        Ok(done)
    }

    fn size_of(&self, inode: InodeNo) -> Result<u64, FsError> {
        let _lock = self.locks.read(inode);
        Ok(self.file(inode)?.1.get(Field::Size))
    }

    /// Copies a range of data or of a hole at `from` in one batch. Returns 0 if the file has ended.
    fn copy_part(
        &self,
        (from, to): (FilePlace, FilePlace),
        len: u64,
        parts: &mut PartBlocks,
    ) -> Result<u64, FsError> {
        let _op = self.volume().begin_op();
        // Both locks at once, in stripe order: the part is a snapshot of the source.
        let _locks = self.locks.write(&[from.inode, to.inode]);
        check_write(&self.file(to.inode)?.1, to.offset)?;
        let (source, words) = self.file(from.inode)?;
        // The source may have shrunk since the last part.
        let len = len.min(words.get(Field::Size).saturating_sub(from.offset));
        if len == 0 {
            return Ok(0);
        }
        // Later parts of the target then start at a boundary, as in a write.
        let to_boundary = WRITE_PART as u64 - to.offset % WRITE_PART as u64;
        let data_max = parts.bytes(to.offset, WRITE_PART) as u64;
        let run = run_at(&source.extent, from.offset, (len, to_boundary.min(data_max)))?;
        if !run.is_data {
            return self.copy_hole(to, run.len, parts);
        }
        // A copy in DRAM: the planner compares the new bytes with the target's, which can be in the
        // same file.
        let mut data = vec![0; usize::try_from(run.len).expect("at most 1 MiB")];
        source.extent.read(DeviceOffset(from.offset), &mut data)?;
        let (target, _) = self.file(to.inode)?;
        // If the log limits the part, it is shorter. The caller continues after it.
        let written = self.write_locked((to.inode, &target), (to.offset, &data), parts)?;
        Ok(written as u64)
    }

    /// Makes up to `len` bytes at `to` a hole, and returns their number. The caller holds the inode's lock.
    fn copy_hole(&self, to: FilePlace, len: u64, parts: &mut PartBlocks) -> Result<u64, FsError> {
        let (target, words) = self.file(to.inode)?;
        let leaf_end = (to.offset / LEAF_BYTES + 1) * LEAF_BYTES;
        // Without a leaf of the target's map, or beyond its end, nothing is mapped.
        let hole_end = if to.offset >= words.get(Field::Size) {
            u64::MAX
        } else {
            match target.extent.stored_run(DeviceOffset(to.offset))? {
                (Stored::Hole, next) => next.0.saturating_mul(BLOCK_U64),
                _ => 0,
            }
        };
        let is_hole = hole_end > leaf_end;
        if is_hole {
            let end = to.offset + len.min(hole_end - to.offset);
            // Without the planner: only size and times change, so a hole of any length is one
            // batch.
            return self.make_hole((to, end), None);
        }
        // Zeroing of mapped blocks works within one leaf per batch.
        let left = usize::try_from(len.min(leaf_end - to.offset)).expect("at most 2 MiB");
        loop {
            let len = parts.bytes(to.offset, left);
            match self.make_hole((to, to.offset + len as u64), Some(&target.extent)) {
                // Smaller parts log fewer old bytes.
                Err(FsError::NoLog) if parts.halve(to.offset, len) => {}
                made => return made,
            }
        }
    }

    /// Makes the bytes from `to` to `end` of a file a hole, in one batch. `extent` may have some of them.
    /// Returns their number.
    fn make_hole(
        &self,
        (to, end): (FilePlace, u64),
        extent: Option<&Extent<M>>,
    ) -> Result<u64, FsError> {
        self.volume().change(|batch, circumstances| {
            let mut edits = Edits::new(&self.tables);
            let edit = edits.get(self.reader(), to.inode)?;
            let before = batch.savepoint();
            if let Some(extent) = extent {
                let mut planner = Planner::new(extent, batch, circumstances);
                // Blocks of the target are unmapped, as in the source.
                planner.zero(DeviceOffset(to.offset), DeviceOffset(end), false)?;
            }
            let size = edit.words.get(Field::Size).max(end);
            note_changed(edit, batch.allocated_since(before), size);
            edits.plan(batch);
            Ok::<(), FsError>(())
        })?;
        Ok(end - to.offset)
    }
}

/// The kind of the bytes at `offset` and the length of the range, at most `data_max` for data. `len` bytes
/// are left.
fn run_at<M: Medium>(
    extent: &Extent<M>,
    offset: u64,
    (len, data_max): (u64, u64),
) -> Result<Run, FsError> {
    let is_data = matches!(extent.stored_run(DeviceOffset(offset))?.0, Stored::Data(_));
    let end = offset + if is_data { len.min(data_max) } else { len };
    let mut at = offset;
    // A damaged map can have any number of runs. The caller copies a longer hole in parts.
    for _ in 0..HOLE_BLOCKS_MAX {
        let (stored, next) = extent.stored_run(DeviceOffset(at))?;
        if matches!(stored, Stored::Data(_)) != is_data {
            break;
        }
        at = next.0.saturating_mul(BLOCK_U64).min(end);
        if at == end {
            break;
        }
    }
    Ok(Run { is_data, len: at - offset })
}

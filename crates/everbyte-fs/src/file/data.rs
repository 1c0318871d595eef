//! Bytes of regular files: read, write and size.
//!
//! Invariants: no block beyond a file's end has data, so an extended file reads zeroes there. A write and its
//! new size are one batch.

use std::sync::Arc;

use everbyte_extent::{DeviceOffset, FuaOutcome, LEAF_BYTES, Planner, Stored, leaf_parts};
use everbyte_media::{BLOCK_U64, Medium};
use everbyte_plant::planted;
use everbyte_pool::{Batch, WriteError};

use crate::attributes::protection::{check_unrestricted, check_write};
use crate::attributes::stat::Attr;
use crate::error::FsError;
use crate::format::number::{FileType, InodeNo};
use crate::format::{FILE_BYTES_MAX, FIRST_ENTRIES, Field, INODE_AREA_AT, InodeWords};
use crate::fs::{FileSystem, now};
use crate::inode::blocks::{give_all, visit_map};
use crate::inode::edits::{Edit, Edits};
use crate::inode::open_files::FileState;
use crate::plant::Bug;

/// Bytes of a write in one batch, unless the write covers a whole leaf of the map.
pub(crate) const WRITE_PART: usize = 1 << 20;

/// Checks that `words` are of a regular file.
pub(crate) fn check_regular(words: &InodeWords) -> Result<(), FsError> {
    match words.file_type() {
        FileType::Regular => Ok(()),
        FileType::Directory => Err(FsError::IsDirectory),
        _ => Err(FsError::Invalid { what: "only a regular file has bytes" }),
    }
}

/// Length of the first part of a write of `left` bytes at `at`: a whole leaf of the map, which can then be
/// contiguous, or up to the next multiple of [`WRITE_PART`].
fn part_len(at: u64, left: usize) -> usize {
    // A whole leaf in one part can get a contiguous run.
    let is_leaf = at.is_multiple_of(LEAF_BYTES) && left as u64 >= LEAF_BYTES;
    let part = WRITE_PART as u64;
    let whole = if is_leaf { LEAF_BYTES } else { part - at % part };
    usize::try_from(whole).map_or(left, |whole| whole.min(left))
}

/// Limit of blocks in a part of a write or a zeroing, for one batch. It shrinks if a part exceeds the log:
/// without a free block, the log holds the old bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartBlocks(u64);

impl PartBlocks {
    /// The limit of all parts.
    pub(crate) fn all() -> Self {
        Self(LEAF_BYTES / BLOCK_U64)
    }

    /// Length of the first part of `len` bytes at `at`.
    pub(crate) fn bytes(self, at: u64, len: usize) -> usize {
        let most = (at / BLOCK_U64 + self.0) * BLOCK_U64 - at;
        usize::try_from(most).map_or(len, |most| most.min(len))
    }

    /// Halves the limit because `len` bytes at `at` exceed the log. Returns false for a single block.
    pub(crate) fn halve(&mut self, at: u64, len: usize) -> bool {
        let blocks = (at + len as u64).div_ceil(BLOCK_U64) - at / BLOCK_U64;
        // Half of this part, not of the limit: the part can be shorter than the limit.
        self.0 = (blocks / 2).max(1);
        blocks > 1
    }
}

impl<M: Medium> FileSystem<M> {
    /// The regular file `inode`. The caller holds its lock.
    pub(crate) fn file(&self, inode: InodeNo) -> Result<(Arc<FileState<M>>, InodeWords), FsError> {
        let (at, words) = self.load_inode(inode)?;
        check_regular(&words)?;
        Ok((self.files.get(inode, at, words.get(Field::Size)), words))
    }

    /// Reads bytes of a regular file from `offset` on. Returns their number.
    ///
    /// # Errors
    /// The file is not regular, or bytes cannot be read.
    pub fn read(&self, inode: InodeNo, offset: u64, out: &mut [u8]) -> Result<usize, FsError> {
        let _lock = self.locks.read(inode);
        self.file_to_read(inode)?.read(offset, out)
    }

    /// The regular file `inode`. The caller holds its lock for reading. Reads the inode only if it is
    /// unverified since the last writer, or if the medium has errors.
    pub(crate) fn file_to_read(&self, inode: InodeNo) -> Result<Arc<FileState<M>>, FsError> {
        // After a media error each read must find the bad range, so nothing counts as verified.
        let noted = self.locks.note(inode).filter(|_| !self.medium().has_poison());
        let known = noted.and_then(|noted| self.files.verified(inode, noted));
        known.map_or_else(
            || {
                let (file, _) = self.file(inode)?;
                file.note_verified(noted);
                Ok(file)
            },
            Ok,
        )
    }

    /// Writes `data` to a regular file at `offset`, and extends a shorter file. Returns the number of written
    /// bytes. It is lower only if an error stops a later part, or the file reaches its limit. A write is made
    /// in parts of up to 2 MiB; each part is atomic. If no block is free and the old bytes of a part exceed
    /// the log, the parts are smaller and made of whole blocks.
    ///
    /// # Errors
    /// Nothing was written: the file is not regular, the pool is full, the file would be too large,
    /// `Immutable`, `AppendOnly` for bytes before its end, or the volume cannot be written.
    pub fn write(&self, inode: InodeNo, offset: u64, data: &[u8]) -> Result<usize, FsError> {
        let room = FILE_BYTES_MAX.saturating_sub(offset);
        if room == 0 && !data.is_empty() {
            return Err(FsError::TooLarge);
        }
        let data = &data[..data.len().min(usize::try_from(room).unwrap_or(usize::MAX))];
        let (mut done, mut parts) = (0, PartBlocks::all());
        // An empty write runs once, because it reports errors and checks the flags.
        while done < data.len() || done == 0 {
            let at = offset + done as u64;
            // Each part takes the lock separately, so a long write does not hold up readers of the
            // file.
            let part = &data[done..done + part_len(at, data.len() - done)];
            match self.write_part(inode, (at, part), &mut parts) {
                Ok(written) => done += written,
                Err(error) if done == 0 => return Err(error),
                // A later part failed: the caller gets the number of bytes of the parts that stand.
                Err(_) => break,
            }
            if part.is_empty() {
                break;
            }
        }
        Ok(done)
    }

    /// Writes all of `data` as [`FileSystem::write`] does, or returns the error of its first missing part.
    ///
    /// # Errors
    /// As [`FileSystem::write`]. Earlier parts may be written.
    pub fn write_all(&self, inode: InodeNo, offset: u64, data: &[u8]) -> Result<(), FsError> {
        let mut done = 0;
        while done < data.len() {
            // A short write happens only if the next part fails, and its repetition returns the reason.
            done += self.write(inode, offset + done as u64, &data[done..])?;
        }
        Ok(())
    }

    /// Writes `data` as [`FileSystem::write`] does, and makes it durable, without the times. Needs no
    /// checkpoint within a block that existed at the last checkpoint, if only times of the file have changed
    /// since.
    ///
    /// # Errors
    /// As [`FileSystem::write`]. An error can also mean a write without certain durability.
    pub fn write_durably(
        &self,
        inode: InodeNo,
        offset: u64,
        data: &[u8],
    ) -> Result<usize, FsError> {
        // An error is returned: the bytes may be stored, and a second attempt would hide
        // the failure.
        if self.overwrite_durably(inode, offset, data)? {
            return Ok(data.len());
        }
        let written = self.write(inode, offset, data)?;
        self.sync_inode(inode)?;
        Ok(written)
    }

    /// Writes `data` over bytes of one block without a checkpoint. Returns false, without a write, if this is
    /// not possible.
    fn overwrite_durably(&self, inode: InodeNo, offset: u64, data: &[u8]) -> Result<bool, FsError> {
        let _op = self.volume().begin_op();
        let _locks = self.locks.write(&[inode]);
        let (file, words) = self.file(inode)?;
        check_write(&words, offset)?;
        // The size is a word of the inode, and the fast path changes none.
        let end = offset.checked_add(data.len() as u64);
        if data.is_empty() || end.is_none_or(|end| end > words.get(Field::Size)) {
            return Ok(false);
        }
        // Undo of an open epoch must not remove the file or these bytes. A new block would change the count
        // in the inode.
        let beyond_times = self.tables.changed_beyond_times_in(inode);
        let is_settled = beyond_times <= self.volume().completed_epoch();
        if !is_settled
            || file.extent.stored_run(DeviceOffset(offset))?.0 == Stored::Hole
            || file.extent.write_durably(DeviceOffset(offset), data)? == FuaOutcome::NotAllowed
        {
            return Ok(false);
        }
        // The bytes are durable. The times follow in a batch.
        self.volume().change(|batch, _| {
            let mut edits = Edits::new(&self.tables);
            edits.get(self.reader(), inode)?.words.stamp(now(), &[Field::Modified, Field::Changed]);
            edits.plan(batch);
            Ok::<(), FsError>(())
        })?;
        Ok(true)
    }

    /// Writes bytes from the first one on, and returns their number.
    fn write_part(
        &self,
        inode: InodeNo,
        (offset, data): (u64, &[u8]),
        parts: &mut PartBlocks,
    ) -> Result<usize, FsError> {
        let _op = self.volume().begin_op();
        let _locks = self.locks.write(&[inode]);
        let (file, words) = self.file(inode)?;
        check_write(&words, offset)?;
        if data.is_empty() {
            return Ok(0);
        }
        self.write_locked((inode, &file), (offset, data), parts)
    }

    /// Writes `data` to a file at `offset` in one batch, or the part from the first byte on that fits in the
    /// log. Returns the number of bytes. The caller holds the inode's lock.
    ///
    /// # Errors
    /// As [`FileSystem::write`].
    pub(crate) fn write_locked(
        &self,
        (inode, file): (InodeNo, &FileState<M>),
        (offset, data): (u64, &[u8]),
        parts: &mut PartBlocks,
    ) -> Result<usize, FsError> {
        loop {
            let part = &data[..parts.bytes(offset, data.len())];
            let written = self.volume().change(|batch, circumstances| {
                let mut edits = Edits::new(&self.tables);
                let edit = edits.get(self.reader(), inode)?;
                let before = batch.savepoint();
                let mut planner = Planner::new(&file.extent, batch, circumstances);
                planner.write(DeviceOffset(offset), part)?;
                // Read within the plan: a repeated plan must see the size after the checkpoint.
                let size = edit.words.get(Field::Size).max(offset + part.len() as u64);
                note_changed(edit, batch.allocated_since(before), size);
                edits.plan(batch);
                Ok::<(), FsError>(())
            });
            match written {
                Ok(_) => return Ok(part.len()),
                // Smaller parts log fewer old bytes.
                Err(FsError::NoLog) if parts.halve(offset, part.len()) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes all answered operations on `inode` durable: bytes, attributes and names. Free of cost for a file
    /// without changes since the last checkpoint.
    ///
    /// # Errors
    /// The volume's; the durability of pending changes is unknown then.
    pub fn sync_inode(&self, inode: InodeNo) -> Result<(), FsError> {
        if planted(Bug::FileSyncSkipped) {
            return Ok(());
        }
        self.complete_if_open(self.tables.changed_in(inode))
    }

    /// As [`FileSystem::sync_inode`], without the time of the last access. Free of cost for a file that was
    /// only read since the last checkpoint.
    ///
    /// # Errors
    /// As [`FileSystem::sync_inode`].
    pub fn sync_data(&self, inode: InodeNo) -> Result<(), FsError> {
        self.complete_if_open(self.tables.changed_beyond_access_in(inode))
    }

    /// Makes `epoch` durable if it is open.
    fn complete_if_open(&self, epoch: u64) -> Result<(), FsError> {
        if self.volume().completed_epoch() < epoch {
            // Only the epoch of the file's last change: later changes of other files need not be
            // waited for.
            return Ok(self.volume().complete(epoch)?);
        }
        // A failed write-back must not be reported as success, even if a later checkpoint completed.
        Ok(self.medium().check().map_err(WriteError::from)?)
    }

    /// Sets the size of a regular file. A longer file reads zeroes beyond its old end. A shorter file loses
    /// parts of 2 MiB first, and then its size changes. After a crash the file can have zeroes in place of
    /// these bytes.
    ///
    /// # Errors
    /// The file is not regular, `TooLarge`, `Immutable`, `AppendOnly`, or the volume's.
    pub fn truncate(&self, inode: InodeNo, size: u64) -> Result<Attr, FsError> {
        if size > FILE_BYTES_MAX {
            return Err(FsError::TooLarge);
        }
        let _op = self.volume().begin_op();
        let _locks = self.locks.write(&[inode]);
        let (file, words) = self.file(inode)?;
        check_unrestricted(&words)?;
        let old_size = words.get(Field::Size);
        // The leaf with the new end keeps its earlier bytes, so it is changed with the size in the
        // last batch.
        let last_end = (size / LEAF_BYTES + 1) * LEAF_BYTES;
        if size < old_size {
            // Includes blocks that were reserved beyond the end.
            file.extent.set_size_bytes(FILE_BYTES_MAX);
            self.unmap_leaves(inode, &file, (last_end, FILE_BYTES_MAX))?;
        }
        // A map without nodes has no block beyond the inode's entries, so zeroing stops there.
        let has_nodes = self.medium().load_word(file.extent.root_at()) != 0;
        let last_end = if has_nodes { last_end } else { FIRST_ENTRIES * BLOCK_U64 };
        let mut attr = None;
        self.volume().change(|batch, circumstances| {
            let mut edits = Edits::new(&self.tables);
            let edit = edits.get(self.reader(), inode)?;
            let before = batch.savepoint();
            // The whole map is freed at once: faster than single entries.
            if size == 0 {
                self.plan_free_map(batch, edit)?;
            } else if size < old_size.min(last_end) {
                let mut planner = Planner::new(&file.extent, batch, circumstances);
                // The rest of the last block is zeroed: an extension later must read zeroes there.
                planner.zero(DeviceOffset(size), DeviceOffset(last_end), false)?;
            }
            note_changed(edit, batch.allocated_since(before), size);
            attr = Some(Attr::of(&edit.words));
            edits.plan(batch);
            Ok::<(), FsError>(())
        })?;
        if size == 0 {
            // Their blocks are freed, so the DRAM table must not name them.
            file.extent.forget_leaves();
        }
        // After the batch: a failed truncation leaves the size of the inode.
        file.extent.set_size_bytes(size);
        Ok(attr.expect("a change that was made was planned"))
    }

    /// Unmaps bytes `from .. to` of a file, each 2 MiB in a batch. Both are multiples of 2 MiB or the end of
    /// the file. The caller holds the inode's lock.
    pub(crate) fn unmap_leaves(
        &self,
        inode: InodeNo,
        file: &FileState<M>,
        (from, to): (u64, u64),
    ) -> Result<(), FsError> {
        let mut at = from;
        while at < to {
            let (stored, next) = file.extent.stored_run(DeviceOffset(at))?;
            if stored == Stored::Hole && next.0 > at / BLOCK_U64 + 1 {
                // The map has no such leaf.
                at = next.0.saturating_mul(BLOCK_U64);
                continue;
            }
            let part = leaf_parts(DeviceOffset(at), to - at).next().expect("some bytes are left");
            self.volume().change(|batch, circumstances| {
                let mut edits = Edits::new(&self.tables);
                let edit = edits.get(self.reader(), inode)?;
                let before = batch.savepoint();
                Planner::new(&file.extent, batch, circumstances).unmap(part)?;
                // The size stays until the last batch, so a crash in between leaves zeroes within
                // the file.
                note_changed(edit, batch.allocated_since(before), edit.words.get(Field::Size));
                edits.plan(batch);
                Ok::<(), FsError>(())
            })?;
            at = (at / LEAF_BYTES + 1) * LEAF_BYTES;
        }
        Ok(())
    }

    /// Plans to free all blocks of a regular file.
    fn plan_free_map(&self, batch: &mut Batch<'_, '_, M>, edit: &Edit) -> Result<(), FsError> {
        let of = (self.reader(), edit.number);
        // The freed nodes keep their words. Undo needs only the words of the inode.
        give_all(batch, of, |give| visit_map(self.reader(), edit, give))?;
        let entries = (0..FIRST_ENTRIES).map(|entry| edit.at.plus(INODE_AREA_AT + 8 * entry));
        for at in entries.chain([Field::Root.at(edit.at)]) {
            let old = self.medium().load_word(at);
            // Unchanged words need no record.
            if old != 0 {
                batch.change_word_once(at, old, 0);
            }
        }
        Ok(())
    }
}

/// Updates the block count, size and times in an inode after a change of its bytes.
pub(crate) fn note_changed(edit: &mut Edit, taken: i64, size: u64) {
    let blocks = edit.words.get(Field::Blocks).saturating_add_signed(taken);
    edit.words.set(Field::Blocks, blocks);
    edit.words.set(Field::Size, size);
    edit.stamp(now(), &[Field::Modified, Field::Changed]);
}

//! The bytes of regular files: reading, writing, sizes.
//!
//! Invariants: no block beyond a file's end has data, so a file that grows reads zeroes there; a write
//! and the size that it leads to are one batch.

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

/// Bytes of a write that are made in one batch, unless it goes over a whole leaf of the map.
pub(crate) const WRITE_PART: usize = 1 << 20;

/// Checks that `words` are of a regular file.
pub(crate) fn check_regular(words: &InodeWords) -> Result<(), FsError> {
    match words.file_type() {
        FileType::Regular => Ok(()),
        FileType::Directory => Err(FsError::IsDirectory),
        _ => Err(FsError::Invalid { what: "only a regular file has bytes" }),
    }
}

/// Bytes of the first part of a write of `left` bytes at `at`: a leaf of the map, so that it can lie
/// together, or up to the next multiple of [`WRITE_PART`].
fn part_len(at: u64, left: usize) -> usize {
    let is_leaf = at.is_multiple_of(LEAF_BYTES) && left as u64 >= LEAF_BYTES;
    let part = WRITE_PART as u64;
    let whole = if is_leaf { LEAF_BYTES } else { part - at % part };
    usize::try_from(whole).map_or(left, |whole| whole.min(left))
}

/// Most blocks of a part that is written, or zeroed, in one batch: fewer once one needed more log than there is. So it
/// may where no block is free, so that old bytes are logged instead of being replaced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartBlocks(u64);

impl PartBlocks {
    /// As many as any part has.
    pub(crate) fn all() -> Self {
        Self(LEAF_BYTES / BLOCK_U64)
    }

    /// How many of `len` bytes at `at` are a part.
    pub(crate) fn bytes(self, at: u64, len: usize) -> usize {
        let most = (at / BLOCK_U64 + self.0) * BLOCK_U64 - at;
        usize::try_from(most).map_or(len, |most| most.min(len))
    }

    /// Halves them, because `len` bytes at `at` need more log than there is. False if that is one block.
    pub(crate) fn halve(&mut self, at: u64, len: usize) -> bool {
        let blocks = (at + len as u64).div_ceil(BLOCK_U64) - at / BLOCK_U64;
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

    /// Reads bytes of a regular file from `offset` on, and returns how many there are.
    ///
    /// # Errors
    /// It is no regular file, or bytes cannot be read.
    pub fn read(&self, inode: InodeNo, offset: u64, out: &mut [u8]) -> Result<usize, FsError> {
        let _lock = self.locks.read(inode);
        self.file_to_read(inode)?.read(offset, out)
    }

    /// The regular file `inode`, whose lock the caller holds for reading. The inode is read only if that was not done
    /// since anybody last had it for writing, or beside media errors.
    pub(crate) fn file_to_read(&self, inode: InodeNo) -> Result<Arc<FileState<M>>, FsError> {
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

    /// Writes `data` to a regular file at `offset`, and makes it larger if it ends before. Returns how
    /// many bytes were written, which is less only where an error kept a later part from being
    /// written, or the file cannot become larger: writes are made in parts of up to 2 MiB,
    /// each of which is atomic. Where no block is free and the log has no room for all old bytes of a part, it is made
    /// in smaller ones, of whole blocks.
    ///
    /// # Errors
    /// Nothing was written: it is no regular file, the pool is full, the file would be too large,
    /// `Immutable`, `AppendOnly` for bytes before its end, or the volume cannot be written.
    pub fn write(&self, inode: InodeNo, offset: u64, data: &[u8]) -> Result<usize, FsError> {
        let room = FILE_BYTES_MAX.saturating_sub(offset);
        if room == 0 && !data.is_empty() {
            return Err(FsError::TooLarge);
        }
        let data = &data[..data.len().min(usize::try_from(room).unwrap_or(usize::MAX))];
        let (mut done, mut parts) = (0, PartBlocks::all());
        while done < data.len() || done == 0 {
            let at = offset + done as u64;
            let part = &data[done..done + part_len(at, data.len() - done)];
            match self.write_part(inode, (at, part), &mut parts) {
                Ok(written) => done += written,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
            if part.is_empty() {
                break;
            }
        }
        Ok(done)
    }

    /// Writes `data` as [`FileSystem::write`] does, durably once it returns; times are not. Within a
    /// block that was there before the last checkpoint, of a file of which only times were changed
    /// since, this needs no checkpoint; beyond the first 16 blocks of a file whose map has runs, only where
    /// the write changes less than half of the block.
    ///
    /// # Errors
    /// As [`FileSystem::write`]; also if it was written, and is not certainly durable.
    pub fn write_durably(
        &self,
        inode: InodeNo,
        offset: u64,
        data: &[u8],
    ) -> Result<usize, FsError> {
        if self.overwrite_durably(inode, offset, data)? {
            return Ok(data.len());
        }
        let written = self.write(inode, offset, data)?;
        self.sync_inode(inode)?;
        Ok(written)
    }

    /// Writes `data` over bytes of one block without a checkpoint, and says whether that was possible.
    /// Nothing was written if not.
    fn overwrite_durably(&self, inode: InodeNo, offset: u64, data: &[u8]) -> Result<bool, FsError> {
        let _op = self.volume().begin_op();
        let _locks = self.locks.write(&[inode]);
        let (file, words) = self.file(inode)?;
        check_write(&words, offset)?;
        let end = offset.checked_add(data.len() as u64);
        if data.is_empty() || end.is_none_or(|end| end > words.get(Field::Size)) {
            return Ok(false);
        }
        // Undoing an open epoch must neither take the file away nor cut it off before these bytes; and
        // a block that is new would be counted in the inode.
        let beyond_times = self.tables.changed_beyond_times_in(inode);
        let is_settled = beyond_times <= self.volume().completed_epoch();
        if !is_settled && !planted(Bug::DurableBeyondSize)
            || file.extent.stored_run(DeviceOffset(offset))?.0 == Stored::Hole
            || file.extent.write_durably(DeviceOffset(offset), data)? == FuaOutcome::NotAllowed
        {
            return Ok(false);
        }
        self.volume().change(|batch, _| {
            let mut edits = Edits::new(&self.tables);
            edits.get(self.reader(), inode)?.words.stamp(now(), &[Field::Modified, Field::Changed]);
            edits.plan(batch);
            Ok::<(), FsError>(())
        })?;
        Ok(true)
    }

    /// Writes bytes from the first on, and returns how many.
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
        if planted(Bug::SizeBeforeData) {
            self.volume().change(|batch, _| {
                let mut edits = Edits::new(&self.tables);
                let edit = edits.get(self.reader(), inode)?;
                let size = edit.words.get(Field::Size).max(offset + data.len() as u64);
                note_changed(edit, 0, size);
                edits.plan(batch);
                Ok::<(), FsError>(())
            })?;
            // The checkpoint that comes between, sooner or later.
            self.sync()?;
        }
        self.write_locked((inode, &file), (offset, data), parts)
    }

    /// Writes `data` to a file at `offset` in one batch, or so much of it, from the first byte on, as the log has room for.
    /// Returns how many bytes. The caller holds the inode's lock.
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
                let size = edit.words.get(Field::Size).max(offset + part.len() as u64);
                note_changed(edit, batch.taken_since(before), size);
                edits.plan(batch);
                Ok::<(), FsError>(())
            });
            match written {
                Ok(_) => return Ok(part.len()),
                Err(FsError::NoLog) if parts.halve(offset, part.len()) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes everything durable that was answered before about `inode`: its bytes, attributes and names.
    /// Of a file that was not changed since the last checkpoint this costs nothing.
    ///
    /// # Errors
    /// The volume's; what was not durable before may be or not.
    pub fn sync_inode(&self, inode: InodeNo) -> Result<(), FsError> {
        if planted(Bug::FileSyncSkipped) {
            return Ok(());
        }
        self.complete_if_open(self.tables.changed_in(inode))
    }

    /// The same but for the time of the last access. Of a file that was only read since the last checkpoint
    /// this costs nothing.
    ///
    /// # Errors
    /// As [`FileSystem::sync_inode`].
    pub fn sync_data(&self, inode: InodeNo) -> Result<(), FsError> {
        self.complete_if_open(self.tables.changed_beyond_access_in(inode))
    }

    /// Makes `epoch` durable if it is not.
    fn complete_if_open(&self, epoch: u64) -> Result<(), FsError> {
        if self.volume().completed_epoch() < epoch {
            return Ok(self.volume().complete(epoch)?);
        }
        Ok(self.medium().check().map_err(WriteError::from)?)
    }

    /// Makes a regular file end at `size`: cuts it, or lets it read zeroes beyond its old end. What is
    /// cut off goes in parts of 2 MiB, and then the size; a crash may leave zeroes where bytes were to
    /// be cut off.
    ///
    /// # Errors
    /// It is no regular file, `TooLarge`, `Immutable`, `AppendOnly`, or the volume's.
    pub fn truncate(&self, inode: InodeNo, size: u64) -> Result<Attr, FsError> {
        if size > FILE_BYTES_MAX {
            return Err(FsError::TooLarge);
        }
        let _op = self.volume().begin_op();
        let _locks = self.locks.write(&[inode]);
        let (file, words) = self.file(inode)?;
        check_unrestricted(&words)?;
        let old_size = words.get(Field::Size);
        let last_end = (size / LEAF_BYTES + 1) * LEAF_BYTES;
        if size < old_size {
            // Blocks that were reserved beyond the end go as well.
            file.extent.set_size_bytes(FILE_BYTES_MAX);
            self.unmap_leaves(inode, &file, (last_end, FILE_BYTES_MAX))?;
        }
        let has_nodes = self.medium().load_word(file.extent.root_at()) != 0;
        let last_end = if has_nodes { last_end } else { FIRST_ENTRIES * BLOCK_U64 };
        let mut attr = None;
        self.volume().change(|batch, circumstances| {
            let mut edits = Edits::new(&self.tables);
            let edit = edits.get(self.reader(), inode)?;
            let before = batch.savepoint();
            if size == 0 {
                self.plan_free_map(batch, edit)?;
            } else if size < old_size.min(last_end) {
                let mut planner = Planner::new(&file.extent, batch, circumstances);
                let size =
                    if planted(Bug::TailKept) { size.next_multiple_of(BLOCK_U64) } else { size };
                planner.zero(DeviceOffset(size), DeviceOffset(last_end), false)?;
            }
            note_changed(edit, batch.taken_since(before), size);
            attr = Some(Attr::of(&edit.words));
            edits.plan(batch);
            Ok::<(), FsError>(())
        })?;
        if size == 0 {
            file.extent.forget_leaves();
        }
        file.extent.set_size_bytes(size);
        Ok(attr.expect("a change that was made was planned"))
    }

    /// Unmaps bytes `from .. to` of a file, where both are multiples of 2 MiB or its end, each 2 MiB in
    /// a batch. The caller holds the inode's lock.
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
                // There is no such leaf of the map.
                at = next.0.saturating_mul(BLOCK_U64);
                continue;
            }
            let part = leaf_parts(DeviceOffset(at), to - at).next().expect("some bytes are left");
            self.volume().change(|batch, circumstances| {
                let mut edits = Edits::new(&self.tables);
                let edit = edits.get(self.reader(), inode)?;
                let before = batch.savepoint();
                Planner::new(&file.extent, batch, circumstances).unmap(part)?;
                note_changed(edit, batch.taken_since(before), edit.words.get(Field::Size));
                edits.plan(batch);
                Ok::<(), FsError>(())
            })?;
            at = (at / LEAF_BYTES + 1) * LEAF_BYTES;
        }
        Ok(())
    }

    /// Plans that a regular file has no blocks.
    fn plan_free_map(&self, batch: &mut Batch<'_, '_, M>, edit: &Edit) -> Result<(), FsError> {
        let of = (self.reader(), edit.number);
        give_all(batch, of, |give| visit_map(self.reader(), edit, give))?;
        let entries = (0..FIRST_ENTRIES).map(|entry| edit.at.plus(INODE_AREA_AT + 8 * entry));
        for at in entries.chain([Field::Root.at(edit.at)]) {
            let old = self.medium().load_word(at);
            if old != 0 {
                batch.change_word_once(at, old, 0);
            }
        }
        Ok(())
    }
}

/// Notes in an inode that its bytes changed, what that did to its blocks, and its size.
pub(crate) fn note_changed(edit: &mut Edit, taken: i64, size: u64) {
    let blocks = edit.words.get(Field::Blocks).saturating_add_signed(taken);
    edit.words.set(Field::Blocks, blocks);
    edit.words.set(Field::Size, size);
    edit.stamp(now(), &[Field::Modified, Field::Changed]);
}

//! The fast path: a write of one block, or of a part of one block, without a plan.
//!
//! The path takes the common writes: the entry is known without a walk of the map, the block is a hole or has
//! data without a checksum, and log and pool have room. The path detects every other case before it changes
//! anything, and leaves it to the planner. Both decide by [`classify`], and record and store the same bytes
//! in the same order, so recovery cannot distinguish them.

use everbyte_media::{BLOCK, BlockNo, LineMask, Medium, PoolOffset};
use everbyte_pool::format::{Entry, WordItem};
use everbyte_pool::{WriteError, Writer};

use crate::address::{BlockPiece, BlockRange, DeviceOffset, LogicalBlock};
use crate::extent::Extent;
use crate::plan::{Change, classify};

/// Outcome of an attempt at the fast path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FastPath {
    /// The bytes are written in the current epoch.
    Done,
    /// Nothing was written: the write needs a plan.
    Ineligible,
}

/// The entry of a written block.
#[derive(Clone, Copy)]
struct Target {
    entry_at: PoolOffset,
    /// The word of the entry.
    word: u64,
    /// The block named by the entry; `None` for a hole.
    block: Option<BlockNo>,
}

impl<M: Medium> Extent<M> {
    /// Prefetches the entry of `block` for a write. Needs no lock: call it before the locks are taken, so
    /// that the memory access overlaps with them.
    pub fn prefetch_entry(&self, block: LogicalBlock) {
        if let Some(entry_at) = self.known_entry(block) {
            self.volume().prefetch_store(entry_at, 8);
        }
    }

    /// Writes `data`, a part of one block, at `offset` in the current epoch if the fast path is eligible. The
    /// caller is in the volume's quiesce lock and holds the lock of the block.
    ///
    /// # Errors
    /// The medium's: nothing was written, or the written bytes never become durable.
    pub fn try_fast_path(&self, offset: DeviceOffset, data: &[u8]) -> Result<FastPath, WriteError> {
        debug_assert!(BlockRange::of_bytes(offset, data.len() as u64).count <= 1);
        if data.is_empty() || !self.has_fast_path() {
            return Ok(FastPath::Ineligible);
        }
        let piece = BlockPiece { block: offset.block(), start: offset.in_block(), data };
        // The entry is unknown if the medium has a poisoned range.
        let Some(entry_at) = self.known_entry(piece.block) else {
            return Ok(FastPath::Ineligible);
        };
        let compares = self.compares();
        let is_done = if data.len() == BLOCK && !compares && self.threshold().replaces_whole() {
            self.replace_whole(entry_at, piece)?
        } else {
            self.change_part(entry_at, piece, compares)?
        };
        if !is_done {
            return Ok(FastPath::Ineligible);
        }
        // A store to memory that has just failed is lost. Only the medium knows it.
        self.medium().check()?;
        Ok(FastPath::Done)
    }

    /// Returns true if the fast path may take writes of one block.
    #[inline]
    #[must_use]
    pub fn has_fast_path(&self) -> bool {
        !self.has_checksums()
    }

    /// The target at `entry_at`, if the fast path takes it: a hole or a block with data.
    fn fast_target(&self, entry_at: PoolOffset) -> Option<Target> {
        let word = self.medium().load_word(entry_at);
        // The planner meets an invalid entry again, and reports it.
        let entry = self.entries().decode(word, entry_at).ok()?;
        // A block that reads as zeroes may be filled without a record only in some cases. The
        // planner knows them.
        let is_data = entry.is_none_or(|entry| !entry.flags.zero);
        is_data.then(|| Target { entry_at, word, block: entry.map(|entry| entry.block) })
    }

    /// Writes a whole block to another block.
    fn replace_whole(
        &self,
        entry_at: PoolOffset,
        piece: BlockPiece<'_>,
    ) -> Result<bool, WriteError> {
        let mut writer = self.volume().join()?;
        // Nothing was streamed yet, so nothing needs a fence.
        let Some(to) = alloc_for_remap(&mut writer) else { return Ok(false) };
        // The stream starts first: it is under way while the entry is loaded and recorded.
        writer.fill(to.offset(), piece.data);
        match self.fast_target(entry_at) {
            Some(target) => {
                if let Some(old) = target.block {
                    self.volume().prefetch_free(old);
                }
                commit_remap(&mut writer, target, to)
            }
            None => abandon(&mut writer, to),
        }
    }

    /// Writes a part of a block, or all of a compared block: the changed lines in place, or the whole content
    /// to another block.
    fn change_part(
        &self,
        entry_at: PoolOffset,
        piece: BlockPiece<'_>,
        compares: bool,
    ) -> Result<bool, WriteError> {
        let Some(target) = self.fast_target(entry_at) else { return Ok(false) };
        let Some(block) = target.block else {
            return commit_copy(&mut self.volume().join()?, target, piece);
        };
        let at = block.offset().plus(piece.start as u64);
        self.volume().prefetch_store(at, piece.data.len());
        // The comparison comes before the join: the block's lock keeps the bytes, and a checkpoint in between
        // changes none. The state that depends on the epoch is inspected after the join.
        let changed = if compares {
            let changed = self.delta().changed(self.medium(), block, piece.start, piece.data);
            if self.medium().has_poison() {
                // The comparison may have read zeroes in place of unreadable bytes.
                return Ok(false);
            }
            changed
        } else {
            piece.lines()
        };
        if changed.is_empty() {
            // The stored bytes belong to this epoch or an earlier one. So a later flush makes them
            // durable, as it would this write.
            return Ok(true);
        }
        let mut writer = self.volume().join()?;
        match classify(&self.inspect(&writer, (block, piece), changed, false)) {
            Change::None => {}
            Change::Replace { .. } => return commit_copy(&mut writer, target, piece),
            Change::Refill => {
                writer.fill(at, piece.data);
                // Other threads see the stream only after this fence, so it comes before the lock
                // is released.
                writer.commit()?;
            }
            Change::Store(lines) => commit_lines(&mut writer, block, piece, lines)?,
            Change::Log(to_log, lines) => {
                // The room is checked first, so a refusal leaves no record to fence.
                if !to_log.is_empty()
                    && (Writer::<M>::lines_bytes(to_log) > writer.room_bytes()
                        || writer.log_lines(block, to_log).is_err())
                {
                    return Ok(false);
                }
                commit_lines(&mut writer, block, piece, lines)?;
            }
        }
        Ok(true)
    }
}

/// Fences, then stores the bytes of `piece` in `lines` of `block`. The lines are logged or fresh.
fn commit_lines<M: Medium>(
    writer: &mut Writer<'_, M>,
    block: BlockNo,
    piece: BlockPiece<'_>,
    lines: LineMask,
) -> Result<(), WriteError> {
    // The old bytes must be durable before the first store over them.
    let mut committed = writer.commit()?;
    if lines == piece.lines() {
        committed.store(block.offset().plus(piece.start as u64), piece.data);
        return Ok(());
    }
    for (at, data) in piece.parts_in(block, lines) {
        committed.store(at, data);
    }
    Ok(())
}

/// Fills a new block with `piece` over the content of the old block, or over zeroes, and remaps the
/// entry to it.
fn commit_copy<M: Medium>(
    writer: &mut Writer<'_, M>,
    target: Target,
    piece: BlockPiece<'_>,
) -> Result<bool, WriteError> {
    let Some(to) = alloc_for_remap(writer) else { return Ok(false) };
    writer.fill_block(to, target.block, piece.start, piece.data);
    if writer.volume().medium().has_poison() {
        // The bytes around the piece may be unreadable.
        return abandon(writer, to);
    }
    commit_remap(writer, target, to)
}

/// Allocates a block, if one is free and the log has room for the record of its entry.
fn alloc_for_remap<M: Medium>(writer: &mut Writer<'_, M>) -> Option<BlockNo> {
    if Writer::<M>::words_bytes(1) > writer.room_bytes() { None } else { writer.alloc() }
}

/// Records the entry, fences, and stores `to` in the entry. Returns false and frees `to` if the entry
/// became unreadable.
fn commit_remap<M: Medium>(
    writer: &mut Writer<'_, M>,
    target: Target,
    to: BlockNo,
) -> Result<bool, WriteError> {
    let item = WordItem { target: target.entry_at.0, old: target.word };
    if !writer.has_undo_record(target.entry_at) && writer.log_words(&[item]).is_err() {
        return abandon(writer, to);
    }
    // The fence also covers the new block, so its entry never names a torn one.
    let mut committed = writer.commit()?;
    committed.store_word(target.entry_at, Entry::data(to).encode());
    // Undo may restore the old entry, so the old block waits for the checkpoint.
    if let Some(old) = target.block {
        committed.defer_free(old);
    }
    Ok(true)
}

/// Frees `to`. The fence comes first: another thread can allocate the block, and cannot fence the
/// stream of this one.
fn abandon<M: Medium>(writer: &mut Writer<'_, M>, to: BlockNo) -> Result<bool, WriteError> {
    writer.commit_abandoned()?;
    writer.cancel_alloc(to);
    Ok(false)
}

//! Writes over mapped blocks: in place, or to another block.
//!
//! Invariant: a block's kept old bytes are read from readable ranges only.

use everbyte_media::{BLOCK, BlockNo, LineMask, Medium};
use everbyte_pool::format::Entry;

use super::classify::{BlockState, Change, classify, in_place};
use super::{EntryWord, Planner, SlotUse, Target};
use crate::address::BlockPiece;
use crate::error::ExtentError;

/// Deferred frees from which on a checkpoint with its two fences costs less than to log blocks instead of
/// replacing them.
const RETIRED_WORTH: usize = 64;

static ZEROES: [u8; BLOCK] = [0; BLOCK];

impl<'d, M: Medium> Planner<'_, '_, 'd, M> {
    /// Plans a write of a whole block to `to` without a comparison. The stream starts first, so the lookup and
    /// the record of the entry overlap with it.
    pub(super) fn replace_without_compare(
        &mut self,
        piece: BlockPiece<'d>,
        to: BlockNo,
    ) -> Result<(), ExtentError> {
        let extent = self.extent;
        // Before the entry is loaded, so that the stream and the load overlap.
        self.send_whole(to, piece)?;
        let (word, old) = self.entry_word(piece.block)?;
        if let Some(old) = old {
            extent.volume().prefetch_free(old.block);
            self.batch.free(old.block);
        }
        self.name(&word, Some(Entry::data(to)));
        Ok(())
    }

    /// Plans a write of a whole mapped block without a comparison, if it can: over a fresh and unpinned block
    /// without need of a record, or to a new block. Returns false if it cannot.
    pub(super) fn send_over(
        &mut self,
        piece: BlockPiece<'d>,
        target: Target<'_>,
    ) -> Result<bool, ExtentError> {
        let extent = self.extent;
        let block = target.block;
        if extent.is_poisoned(block) {
            return Ok(false);
        }
        let is_fresh = self.batch.writer().is_fresh(block);
        if is_fresh && !extent.volume().is_pinned(block) {
            // A fill over its own block waits until no step of the batch can fail.
            self.fill(block, Some(block), piece)?;
            return Ok(true);
        }
        let Some(to) = self.take_other(piece.block)? else { return Ok(false) };
        self.send_whole(to, piece)?;
        self.remap(target, to);
        Ok(true)
    }

    /// Plans a write over a reserved block. The block reads as zeroes. Its contents have no meaning and can
    /// be overwritten unlogged, unless undo of an open epoch gives them a meaning again.
    pub(super) fn write_over_zeroes(
        &mut self,
        piece: BlockPiece<'d>,
        target: Target<'_>,
    ) -> Result<(), ExtentError> {
        let extent = self.extent;
        let block = target.block;
        // Undo could restore an entry that gives the old bytes their meaning again.
        let meaningless = self.batch.writer().is_fresh(block) || !self.may_come_back(target.entry);
        // It may have held data a moment ago, and a reader may still use it.
        let is_pinned = extent.volume().is_pinned(block);
        // Even if blocks are short: neither block may be stored to.
        let to = if is_pinned || extent.is_poisoned(block) {
            self.take_data(piece.block)?
        } else if meaningless {
            Some(block)
        } else {
            self.take_other(piece.block)?
        };
        if let Some(to) = to {
            self.fill(to, None, piece)?;
            self.remap(target, to);
            return Ok(());
        }
        if is_pinned {
            return Err(ExtentError::NoSpace);
        }
        // No other block is free. The old bytes are logged like data, because undo may need them.
        let unlogged = LineMask::FULL.without(self.batch.writer().logged(block));
        self.batch.log_lines(block, unlogged);
        let end = piece.start + piece.data.len();
        let at = block.offset();
        self.batch.store(at, &ZEROES[..piece.start]);
        self.batch.store(at.plus(piece.start as u64), piece.data);
        self.batch.store(at.plus(end as u64), &ZEROES[end..]);
        self.remap(target, block);
        self.sum(block, None, piece, SlotUse::Undone)
    }

    /// Returns true if undoing an open epoch may make the entry in `word` another one.
    fn may_come_back(&self, word: &EntryWord) -> bool {
        self.extent.volume().word_logged_in_open(word.at)
    }

    /// Plans a write over a block with data. With `compares`, it detects the changed lines.
    pub(super) fn write_over_data(
        &mut self,
        piece: BlockPiece<'d>,
        target: Target<'_>,
        compares: bool,
    ) -> Result<(), ExtentError> {
        let state = self.inspect(piece, target, compares);
        match classify(&state) {
            Change::Replace { must } => {
                let to =
                    if must { self.take_data(piece.block) } else { self.take_other(piece.block) };
                match to? {
                    Some(to) => self.replace(piece, target, to, state.is_poisoned),
                    // The caller makes a checkpoint, which frees blocks, and plans again.
                    None if must || self.is_worth_a_checkpoint() => Err(ExtentError::NoSpace),
                    // An overwrite of a mapped block never fails for lack of space.
                    None => self.change_in_place(piece, target, in_place(&state)),
                }
            }
            change => self.change_in_place(piece, target, change),
        }
    }

    /// Returns the state of a block with data, as far as the decision about it needs it.
    fn inspect(&mut self, piece: BlockPiece<'d>, target: Target<'_>, compares: bool) -> BlockState {
        let (extent, block) = (self.extent, target.block);
        if !self.is_prefetched {
            let at = block.offset().plus(piece.start as u64);
            extent.volume().prefetch_store(at, piece.data.len());
        }
        let changed = if compares {
            extent.delta().changed(extent.medium(), block, piece.start, piece.data)
        } else {
            piece.lines()
        };
        // After the comparison, whose read may be the first to hit the poisoned range.
        if extent.is_poisoned(block) {
            return BlockState::poisoned(piece);
        }
        let changed = extent.changed_or_unreadable(changed, block, piece);
        if changed.is_empty() {
            return BlockState::unchanged(piece);
        }
        let log_is_short = self.constraints.log_is_short;
        extent.inspect(self.batch.writer(), (block, piece), changed, log_is_short)
    }

    /// Returns true if a checkpoint pays, so that a block can be replaced: frees are deferred, or the log has
    /// no room for the lines.
    fn is_worth_a_checkpoint(&self) -> bool {
        let given_up = self.batch.writer().deferred_blocks();
        !self.constraints.pool_was_full
            && (given_up >= RETIRED_WORTH || self.constraints.log_is_short)
    }

    /// Plans to fill `to` and to remap the entry to it. A write of a whole unreadable block replaces it: the
    /// allocator withholds the old block after its free, and undo restores only an entry with its address.
    fn replace(
        &mut self,
        piece: BlockPiece<'d>,
        target: Target<'_>,
        to: BlockNo,
        is_poisoned: bool,
    ) -> Result<(), ExtentError> {
        self.extent.check_replaceable(target.block, piece)?;
        // Only a whole block passes the check above if its block is poisoned.
        let around = if is_poisoned { None } else { Some(target.block) };
        self.fill_new(to, around, piece)?;
        self.remap(target, to);
        Ok(())
    }

    fn change_in_place(
        &mut self,
        piece: BlockPiece<'d>,
        target: Target<'_>,
        change: Change,
    ) -> Result<(), ExtentError> {
        let block = target.block;
        match change {
            Change::None | Change::Replace { .. } => Ok(()),
            Change::Refill => self.fill(block, Some(block), piece),
            Change::Store(lines) => {
                self.store_lines(piece, block, lines);
                self.sum(block, Some(block), piece, SlotUse::Meaningless)
            }
            Change::Log(to_log, lines) => {
                // Undo would restore the substitute zeroes of bad memory.
                if !to_log.is_empty() && self.extent.became_poisoned(block, piece) {
                    let to = self.take_data(piece.block)?.ok_or(ExtentError::NoSpace)?;
                    return self.replace(piece, target, to, true);
                }
                self.batch.log_lines(block, to_log);
                self.store_lines(piece, block, lines);
                self.sum(block, Some(block), piece, SlotUse::Undone)
            }
        }
    }
}

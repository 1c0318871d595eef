//! Writes over blocks that are mapped: in place, or by another block.
//!
//! Invariant: what a block keeps of its old bytes is read only where it can be, and is what was
//! stored there.

use everbyte_media::{BLOCK, BlockNo, LineMask, Medium};
use everbyte_plant::planted;
use everbyte_pool::format::Entry;
use everbyte_pool::plant::Bug;

use super::classify::{BlockState, Change, classify, in_place};
use super::{EntryWord, Planner, SlotUse, Target};
use crate::address::BlockPiece;
use crate::error::ExtentError;

/// Blocks that wait for a checkpoint to be free, from which on it is worth its two fences to
/// replace blocks instead of logging them.
const RETIRED_WORTH: usize = 64;

static ZEROES: [u8; BLOCK] = [0; BLOCK];

impl<'d, M: Medium> Planner<'_, '_, 'd, M> {
    /// A write of a whole block, to `to`, whatever lies there now. The bytes are sent on their
    /// way first, so that finding the entry and logging it costs no time of its own.
    pub(super) fn replace_unseen(
        &mut self,
        piece: BlockPiece<'d>,
        to: BlockNo,
    ) -> Result<(), ExtentError> {
        let extent = self.extent;
        self.send_whole(to, piece)?;
        let (word, old) = self.entry_word(piece.block)?;
        if let Some(old) = old {
            extent.volume().prefetch_free(old.block);
            self.batch.give(old.block);
        }
        self.name(&word, Some(Entry::data(to)));
        Ok(())
    }

    /// A write of all of a block, if it is done without looking at what the block holds: over a
    /// fresh one that nobody has pinned, which needs no record and no other block, or to a new one. Says
    /// whether it is.
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
        let is_older = || planted(Bug::OlderBlocksRefilled) && !extent.volume().is_settled(block);
        let is_fresh = self.batch.writer().is_fresh(block) || is_older();
        if is_fresh && !extent.volume().is_pinned(block) {
            self.fill(block, Some(block), piece)?;
            return Ok(true);
        }
        let Some(to) = self.take_other(piece.block)? else { return Ok(false) };
        self.send_whole(to, piece)?;
        self.name_instead(target, to);
        Ok(true)
    }

    /// A write over a block that is reserved and reads as zeroes. Its contents mean nothing, and
    /// can be overwritten unlogged, unless undoing an open epoch would make them mean something
    /// again.
    pub(super) fn write_over_zeroes(
        &mut self,
        piece: BlockPiece<'d>,
        target: Target<'_>,
    ) -> Result<(), ExtentError> {
        let extent = self.extent;
        let block = target.block;
        let meaningless = self.batch.writer().is_fresh(block) || !self.may_come_back(target.entry);
        // It held data a moment ago, perhaps, which a reader still uses.
        let is_pinned = extent.volume().is_pinned(block);
        let to = if is_pinned || extent.is_poisoned(block) {
            self.take_data(piece.block)?
        } else if meaningless {
            Some(block)
        } else {
            self.take_other(piece.block)?
        };
        if let Some(to) = to {
            self.fill(to, None, piece)?;
            self.name_instead(target, to);
            return Ok(());
        }
        if is_pinned {
            return Err(ExtentError::NoSpace);
        }
        let unlogged = LineMask::FULL.without(self.batch.writer().logged(block));
        self.batch.log_lines(block, unlogged);
        let end = piece.start + piece.data.len();
        let at = block.offset();
        self.batch.store(at, &ZEROES[..piece.start]);
        self.batch.store(at.plus(piece.start as u64), piece.data);
        self.batch.store(at.plus(end as u64), &ZEROES[end..]);
        self.name_instead(target, block);
        self.sum(block, None, piece, SlotUse::Undone)
    }

    /// Returns true if undoing an open epoch may make the entry in `word` another one.
    fn may_come_back(&self, word: &EntryWord) -> bool {
        self.extent.volume().word_logged_in_open(word.at)
    }

    /// A write over a block that holds data. `compares` says whether to look which lines change.
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
                    None if must || self.is_worth_a_checkpoint() => Err(ExtentError::NoSpace),
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
        let log_is_short = self.circumstances.log_is_short;
        extent.inspect(self.batch.writer(), (block, piece), changed, log_is_short)
    }

    /// Returns true if a checkpoint is worth it, so that a block can be replaced: because frees are
    /// deferred, or the log has no room for the lines.
    fn is_worth_a_checkpoint(&self) -> bool {
        let given_up = self.batch.writer().deferred_blocks();
        !self.circumstances.pool_was_full
            && (given_up >= RETIRED_WORTH || self.circumstances.log_is_short)
    }

    /// Plans to fill `to` and to name it instead. A block that cannot be read is replaced if all of
    /// it is written: it goes to nobody else once it is freed, and undo brings back no more than
    /// an entry that leads to it.
    fn replace(
        &mut self,
        piece: BlockPiece<'d>,
        target: Target<'_>,
        to: BlockNo,
        is_poisoned: bool,
    ) -> Result<(), ExtentError> {
        self.extent.check_replaceable(target.block, piece)?;
        let around = if is_poisoned { None } else { Some(target.block) };
        self.fill_new(to, around, piece)?;
        self.name_instead(target, to);
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
                if !to_log.is_empty() && self.extent.turns_out_bad(block, piece) {
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

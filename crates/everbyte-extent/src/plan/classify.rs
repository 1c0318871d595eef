//! The decision about the data of a mapped block: the change by a write.
//!
//! Owns the decision for the planner, the fast path and the direct path. It is pure: it knows no medium, no map and no
//! batch. [`Extent::inspect`] collects its input.

use everbyte_media::{BLOCK, BlockNo, LineMask, Medium};
use everbyte_pool::Writer;

use crate::address::BlockPiece;
use crate::extent::Extent;

/// The state of a mapped block at the time of a write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockState {
    /// True if the block lies in a poisoned range.
    pub(super) is_poisoned: bool,
    /// True if a reader uses the bytes of the block in place.
    is_pinned: bool,
    /// True if this epoch allocated the block: undo frees it.
    is_fresh: bool,
    /// Lines of the block changed by the write.
    changed: LineMask,
    /// Lines of the block with an undo record in this epoch.
    logged: LineMask,
    /// True if the write covers the whole block.
    is_whole: bool,
    /// True if the threshold or a shortage of log space asks for another block.
    is_better_replaced: bool,
}

impl BlockState {
    /// A block with `changed` lines to change by a write, and no further known state.
    fn plain(piece: BlockPiece<'_>, changed: LineMask) -> Self {
        Self {
            is_poisoned: false,
            is_pinned: false,
            is_fresh: false,
            changed,
            logged: LineMask::EMPTY,
            is_whole: piece.data.len() == BLOCK,
            is_better_replaced: false,
        }
    }

    /// A block in a poisoned range.
    pub(super) fn poisoned(piece: BlockPiece<'_>) -> Self {
        Self { is_poisoned: true, ..Self::plain(piece, piece.lines()) }
    }

    /// A block with the bytes of the write already.
    pub(super) fn unchanged(piece: BlockPiece<'_>) -> Self {
        Self::plain(piece, LineMask::EMPTY)
    }
}

/// The change of a mapped block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// No byte of the block changes.
    None,
    /// The block is filled over its old bytes, unlogged.
    Refill,
    /// These lines are stored in place, unlogged.
    Store(LineMask),
    /// Another block takes its place.
    Replace {
        /// True if the write fails without another block.
        must: bool,
    },
    /// The first lines are logged, the second lines are stored in place.
    Log(LineMask, LineMask),
}

/// Returns the change of a mapped block with data by a write.
#[inline]
pub(crate) fn classify(state: &BlockState) -> Change {
    // Its bytes can neither be compared nor recorded, and stores to it are lost.
    if state.is_poisoned {
        return Change::Replace { must: true };
    }
    // Before the pins: an unchanged block need not move.
    if state.changed.is_empty() {
        return Change::None;
    }
    // A reader uses the bytes in place, without a lock.
    if state.is_pinned {
        return Change::Replace { must: true };
    }
    // Undo frees a fresh block, so its lines need no record.
    if state.is_fresh {
        let fills = state.is_whole && state.changed == LineMask::FULL;
        return if fills { Change::Refill } else { Change::Store(state.changed) };
    }
    if state.is_better_replaced {
        return Change::Replace { must: false };
    }
    in_place(state)
}

/// Returns the change of the block if no other block is free.
#[inline]
pub(super) fn in_place(state: &BlockState) -> Change {
    Change::Log(state.changed.without(state.logged), state.changed)
}

impl<M: Medium> Extent<M> {
    /// Returns the state of `block`, a readable block with lines `changed` by `piece`: at least one.
    /// `log_is_short` says that a word of log is cheaper than a record of lines.
    #[inline]
    pub(crate) fn inspect(
        &self,
        writer: &Writer<'_, M>,
        (block, piece): (BlockNo, BlockPiece<'_>),
        changed: LineMask,
        log_is_short: bool,
    ) -> BlockState {
        let mut state = BlockState::plain(piece, changed);
        state.is_pinned = self.volume().is_pinned(block);
        if state.is_pinned {
            return state;
        }
        state.is_fresh = writer.is_fresh(block);
        if !state.is_fresh {
            state.logged = writer.logged(block);
            state.is_better_replaced = if log_is_short {
                // One word of log replaces the records of all lines that have none yet.
                !changed.without(state.logged).is_empty()
            } else {
                self.threshold().replaces_in(writer.epoch(), changed, state.logged)
            };
        }
        state
    }

    /// Returns the state of `block`, a readable block, for a write of all of it without a comparison. Leaves
    /// the logged lines out: the decision does not need them.
    #[inline]
    pub(crate) fn inspect_whole(&self, writer: &Writer<'_, M>, block: BlockNo) -> BlockState {
        BlockState {
            is_poisoned: false,
            is_pinned: self.volume().is_pinned(block),
            is_fresh: writer.is_fresh(block),
            changed: LineMask::FULL,
            logged: LineMask::EMPTY,
            is_whole: true,
            is_better_replaced: self.threshold().replaces_whole(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: LineMask = LineMask(0b110);
    const OLD: BlockState = BlockState {
        is_poisoned: false,
        is_pinned: false,
        is_fresh: false,
        changed: FEW,
        logged: LineMask::EMPTY,
        is_whole: false,
        is_better_replaced: false,
    };

    #[test]
    fn old_block_logs_each_line_once() {
        assert_eq!(classify(&OLD), Change::Log(FEW, FEW));
        let again = BlockState { logged: LineMask(0b10), ..OLD };
        assert_eq!(classify(&again), Change::Log(LineMask(0b100), FEW));
        let all = BlockState { logged: FEW, ..OLD };
        assert_eq!(classify(&all), Change::Log(LineMask::EMPTY, FEW));
    }

    #[test]
    fn fresh_block_is_stored_unlogged() {
        let fresh = BlockState { is_fresh: true, is_better_replaced: true, ..OLD };
        assert_eq!(classify(&fresh), Change::Store(FEW));
        let whole = BlockState { is_whole: true, changed: LineMask::FULL, ..fresh };
        assert_eq!(classify(&whole), Change::Refill);
        assert_eq!(classify(&BlockState { is_whole: true, ..fresh }), Change::Store(FEW));
    }

    #[test]
    fn unchanged_readable_block_is_skipped() {
        let same = BlockState { changed: LineMask::EMPTY, is_better_replaced: true, ..OLD };
        assert_eq!(classify(&same), Change::None);
        assert_eq!(classify(&BlockState { is_fresh: true, ..same }), Change::None);
        assert_eq!(
            classify(&BlockState { is_poisoned: true, ..same }),
            Change::Replace { must: true }
        );
    }

    #[test]
    fn changed_pinned_block_is_replaced() {
        let pinned = BlockState { is_pinned: true, ..OLD };
        for state in
            [pinned, BlockState { is_fresh: true, ..pinned }, BlockState { logged: FEW, ..pinned }]
        {
            assert_eq!(classify(&state), Change::Replace { must: true });
        }
        assert_eq!(classify(&BlockState { changed: LineMask::EMPTY, ..pinned }), Change::None);
    }

    #[test]
    fn replacement_falls_back_to_logging() {
        let many = BlockState { is_better_replaced: true, ..OLD };
        assert_eq!(classify(&many), Change::Replace { must: false });
        assert_eq!(in_place(&many), Change::Log(FEW, FEW));
    }
}

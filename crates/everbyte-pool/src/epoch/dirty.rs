//! The dirty lines of an epoch: the blocks with dirty lines, and the number of lines.
//!
//! Invariants: each lane has its own list, changed only by the lane's holder. Lanes report to the volume's
//! count in portions, so that not every request writes the count's line. The count lacks less than a portion
//! for each lane. Both are emptied when the epoch is sealed, with all lanes held.

use std::sync::atomic::{AtomicU64, Ordering};

use everbyte_media::{BlockNo, LineMask};

use super::block_state::BlockState;

/// Portions reported by all lanes together until a checkpoint is due.
const PORTIONS: u64 = 16;

/// Lines made dirty by a lane's writers in the current epoch.
#[derive(Default)]
pub(crate) struct DirtyList {
    blocks: Vec<BlockNo>,
    lines: u64,
    /// The part of `lines` already reported to the volume.
    told: u64,
}

impl DirtyList {
    /// Marks `lines` of `block` as dirty in `state`, the block's state.
    pub(crate) fn note(
        &mut self,
        state: BlockState<'_>,
        epoch: u64,
        block: BlockNo,
        lines: LineMask,
    ) {
        if let Some(before) = state.add_dirty(epoch, lines) {
            // `add_dirty` is atomic, so only one lane finds the mask empty and lists the block.
            if before.is_empty() {
                self.blocks.push(block);
            }
            self.lines += u64::from(lines.without(before).count());
        }
    }

    /// Notes a block with marks for the checkpoint to clear, though no line may be dirty.
    pub(crate) fn note_marked(&mut self, block: BlockNo) {
        // A block listed twice is flushed and cleared twice, without harm.
        if self.blocks.last() != Some(&block) {
            self.blocks.push(block);
        }
    }

    /// Empties the list into `blocks`.
    pub(crate) fn seal_into(&mut self, blocks: &mut Vec<BlockNo>) {
        blocks.append(&mut self.blocks);
        (self.lines, self.told) = (0, 0);
    }
}

/// The dirty lines of a volume's current epoch, and how many there may be.
pub(crate) struct DirtyLines {
    count: AtomicU64,
    checkpoint_lines: u64,
    portion: u64,
}

impl DirtyLines {
    /// An empty count, for a volume with `lanes` lanes and a checkpoint due at `checkpoint_lines`.
    pub(crate) fn new(checkpoint_lines: u64, lanes: u64) -> Self {
        let portion = (checkpoint_lines / PORTIONS / lanes.max(1)).max(1);
        Self { count: AtomicU64::new(0), checkpoint_lines, portion }
    }

    /// At how many of them a checkpoint is due.
    pub(crate) fn checkpoint_lines(&self) -> u64 {
        self.checkpoint_lines
    }

    /// Adds a lane's unreported lines if they make a portion. Returns true if a checkpoint is due.
    pub(crate) fn add(&self, list: &mut DirtyList) -> bool {
        let new = list.lines - list.told;
        if new < self.portion {
            return false;
        }
        list.told = list.lines;
        // Relaxed: the count decides only the time of a checkpoint.
        self.count.fetch_add(new, Ordering::Relaxed) + new >= self.checkpoint_lines
    }

    /// Starts at nothing again.
    pub(crate) fn clear(&self) {
        self.count.store(0, Ordering::Relaxed);
    }

    /// Returns the number of dirty lines.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns true if the count is so high that writers wait for a checkpoint.
    pub(crate) fn are_too_many(&self) -> bool {
        self.count() >= 2 * self.checkpoint_lines
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::epoch::BlockStates;

    const BLOCKS: u64 = 4;
    const LANES: usize = 3;
    const CHECKPOINT_LINES: u64 = 192;

    proptest! {
        /// A line counts once, for the first lane to make it dirty; each dirty block is on exactly one list.
        #[test]
        fn dirty_lists_are_unique_count_is_close(
            stores in prop::collection::vec((0..LANES, 0..BLOCKS, 1u64..), 0..60),
        ) {
            let states = BlockStates::new(BLOCKS);
            let mut lists: [DirtyList; LANES] = Default::default();
            let lines = DirtyLines::new(CHECKPOINT_LINES, LANES as u64);
            let mut model = BTreeSet::new();
            let mut is_due = false;
            for (lane, block, mask) in stores {
                let (block, mask) = (BlockNo(block), LineMask(mask));
                lists[lane].note(states.get(block), 3, block, mask);
                is_due |= lines.add(&mut lists[lane]);
                model.extend((0..64).filter(|bit| mask.0 >> bit & 1 == 1).map(|bit| (block, bit)));
            }
            let exact = model.len() as u64;
            let portion = CHECKPOINT_LINES / PORTIONS / LANES as u64;
            prop_assert!(lines.count() <= exact && exact < lines.count() + portion * LANES as u64);
            prop_assert_eq!(is_due, lines.count() >= CHECKPOINT_LINES);
            let mut listed = Vec::new();
            lists.iter_mut().for_each(|list| list.seal_into(&mut listed));
            listed.sort_unstable();
            let blocks: BTreeSet<_> = model.iter().map(|&(block, _)| block).collect();
            prop_assert_eq!(listed, blocks.into_iter().collect::<Vec<_>>());
            lines.clear();
            lists.iter_mut().for_each(|list| assert!(!lines.add(list)));
            prop_assert_eq!(lines.count(), 0, "a sealed list has nothing to tell");
        }
    }

    #[test]
    fn writers_wait_at_twice_checkpoint_lines() {
        let states = BlockStates::new(4);
        let lines = DirtyLines::new(64, 1);
        let mut list = DirtyList::default();
        let mut make_dirty = |block, mask| {
            list.note(states.get(BlockNo(block)), 1, BlockNo(block), LineMask(mask));
            (lines.add(&mut list), lines.are_too_many())
        };
        assert_eq!(make_dirty(0, u64::MAX >> 4), (false, false), "60");
        assert_eq!(make_dirty(0, u64::MAX), (true, false), "64");
        assert_eq!(make_dirty(1, u64::MAX >> 4), (true, false), "124");
        assert_eq!(make_dirty(1, u64::MAX), (true, true), "128");
        assert_eq!(make_dirty(1, u64::MAX), (false, true), "nothing new to tell of");
    }

    #[test]
    fn marked_clean_block_is_listed() {
        let mut list = DirtyList::default();
        for block in [5, 5, 6, 5] {
            list.note_marked(BlockNo(block));
        }
        let mut listed = vec![BlockNo(1)];
        list.seal_into(&mut listed);
        assert_eq!(listed, [1, 5, 6, 5].map(BlockNo), "what was there stays");
        let mut again = Vec::new();
        list.seal_into(&mut again);
        assert!(again.is_empty());
    }
}

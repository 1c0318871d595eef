//! Giving back what a volume took: blocks, runs and cells that nothing durable names any more, and
//! those that its lanes preallocated.

use std::sync::atomic::Ordering;
use std::time::Duration;

use everbyte_media::{BlockNo, Medium, PoolOffset};
use everbyte_slots::SlotError;

use super::{DeferredFree, Volume};
use crate::alloc::{BlockRun, CellSize};
use crate::format::Corrupt;
use crate::shared::Preallocator;

/// Looks at a volume whose checkpoint is under way, or which a group has just begun in, and the time between two.
const CHECKPOINT_ATTEMPTS: u32 = 100;
const CHECKPOINT_PAUSE: Duration = Duration::from_millis(1);

impl<M: Medium> Preallocator for Volume<M> {
    fn return_preallocated_blocks(&self) {
        self.return_preallocated();
    }

    fn free_deferred_blocks(&self) {
        for _ in 0..CHECKPOINT_ATTEMPTS {
            if self.reclaimable_deferred() == 0 {
                return;
            }
            match self.flush_if_idle() {
                Ok(false) => std::thread::sleep(CHECKPOINT_PAUSE),
                Ok(true) => return,
                Err(error) => {
                    let volume = self.name();
                    tracing::warn!(volume, %error, "freed blocks stay deferred");
                    return;
                }
            }
        }
    }
}

impl<M: Medium> Volume<M> {
    /// Frees the deferred blocks, runs and cells of an epoch that is durable now, but for blocks that are
    /// pinned: those follow with their last pin.
    pub(crate) fn give_back_all(&self, deferred: &DeferredFree) {
        for run in adjacent(&deferred.blocks).chain(deferred.runs.iter().copied()) {
            // First: the block is counted as used in between, not as free twice.
            self.usage.unseal(run.len);
            self.give_back_run(run);
        }
        for &(at, size) in &deferred.cells {
            self.give_back_cell(at, size);
        }
    }

    /// Gives a block that nothing durable names to the allocator, at once or with its last pin.
    fn give_back_unpinned(&self, block: BlockNo) {
        if !self.pins.hold_back(block) {
            self.give_back(block);
        }
    }

    /// Gives a cell that nothing durable names back, and its block with the last one.
    pub(crate) fn give_back_cell(&self, at: PoolOffset, size: CellSize) {
        match self.cells.give(at, size) {
            Ok(None) => {}
            Ok(Some(block)) => self.give_back(block),
            // A map that lies can bring this about, so it is no assertion.
            Err(error) => tracing::error!(%error, "a cell was freed twice; `pool check` says more"),
        }
    }

    /// Gives a run that nothing durable names to the allocator, but for blocks in a poisoned range.
    pub(crate) fn give_back_run(&self, run: BlockRun) {
        if self.medium().has_poison() || self.pins.any() {
            return run.blocks().for_each(|block| self.give_back_unpinned(block));
        }
        self.usage.subtract(run.len);
        if let Err(error) = self.shared.alloc.free_run(run) {
            self.fail_of_two_owners(run, &error);
        }
    }

    /// Gives a block that nothing durable names to the allocator, unless its memory is bad.
    pub(crate) fn give_back(&self, block: BlockNo) {
        self.usage.subtract(1);
        if self.shared.withhold_if_bad(block) {
            tracing::warn!(%block, "a block was freed, but it is in a poisoned range: it is used no more");
            return;
        }
        if let Err(error) = self.shared.alloc.free(block) {
            self.fail_of_two_owners(BlockRun { start: block, len: 1 }, &error);
        }
    }

    /// Refuses writes from now on: a map that lies, or a saved allocator state, led to blocks that are free
    /// already, and could next lead to some that others have got meanwhile. So it is no assertion either.
    #[cold]
    fn fail_of_two_owners(&self, run: BlockRun, error: &SlotError) {
        let what = format!(
            "of {} blocks from {} on some were given up twice ({error}); a check of the pool says more",
            run.len, run.start
        );
        let structure = format!("blocks of volume {}", self.name());
        self.fail(&Corrupt::new(structure, run.start.offset(), what));
    }

    /// Returns true if a block of `run` belongs to nobody: nothing that is right leads to it.
    #[must_use]
    pub fn has_free_block(&self, run: BlockRun) -> bool {
        run.blocks().any(|block| self.shared.alloc.is_free(block))
    }

    /// Gives the preallocated blocks of lanes back to the allocator. Those that a write took
    /// and then panicked may be named by a map, so such a volume keeps all of them.
    pub(crate) fn return_preallocated(&self) {
        for lane in &self.lanes {
            let mut lane = lane.lock();
            if !self.unfinished.load(Ordering::Acquire) {
                lane.take_preallocated().for_each(|block| self.give_back(block));
                let cells = lane.take_preallocated_cells();
                cells.into_iter().for_each(|(at, size)| self.give_back_cell(at, size));
            }
        }
    }
}

/// Blocks that follow each other both in the list and in the pool, as runs: of requests that replaced several blocks, a locked
/// instruction or two for each block is more than the rest of freeing it.
fn adjacent(blocks: &[BlockNo]) -> impl Iterator<Item = BlockRun> + '_ {
    let mut rest = blocks.iter().copied().peekable();
    std::iter::from_fn(move || {
        let start = rest.next()?;
        let mut len = 1;
        while rest.next_if_eq(&BlockNo(start.0 + len)).is_some() {
            len += 1;
        }
        Some(BlockRun { start, len })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_blocks_form_runs_in_order() {
        let blocks = [7, 8, 9, 9, 3, 4, 12, 11].map(BlockNo);
        let runs: Vec<_> = adjacent(&blocks).map(|run| (run.start.0, run.len)).collect();
        assert_eq!(runs, [(7, 3), (9, 1), (3, 2), (12, 1), (11, 1)]);
        assert_eq!(adjacent(&[]).count(), 0);
    }
}

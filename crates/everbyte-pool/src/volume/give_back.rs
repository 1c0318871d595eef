//! Release of a volume's blocks and runs that no durable word names, and of blocks preallocated by its
//! lanes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use everbyte_media::{BlockNo, Medium};
use everbyte_slots::SlotError;

use super::{DeferredFree, Volume};
use crate::alloc::BlockRun;
use crate::format::Corrupt;
use crate::shared::Preallocator;

/// Number of checks of a volume with a checkpoint in progress or a just begun group, and the time between
/// two.
const CHECKPOINT_ATTEMPTS: u32 = 100;
const CHECKPOINT_PAUSE: Duration = Duration::from_millis(1);

impl<M: Medium> Preallocator for Volume<M> {
    fn return_preallocated_blocks(&self) {
        self.return_preallocated();
    }

    fn free_deferred_blocks(&self) {
        // Bounded: a group of this volume may last longer than the caller can wait.
        for _ in 0..CHECKPOINT_ATTEMPTS {
            if self.reclaimable_deferred() == 0 {
                return;
            }
            match self.flush_if_idle() {
                Ok(false) => std::thread::sleep(CHECKPOINT_PAUSE),
                Ok(true) => return,
                // The caller continues with less space. The volume's own flush reports the failure.
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
    /// Frees the deferred blocks and runs of an epoch durable now, except pinned blocks: the allocator
    /// gets those with their last pin.
    pub(crate) fn give_back_all(&self, deferred: &DeferredFree) {
        for run in adjacent(&deferred.blocks).chain(deferred.runs.iter().copied()) {
            // First: the block is counted as used in between, not as free twice.
            self.usage.unseal(run.len);
            self.give_back_run(run);
        }
    }

    /// Returns a block without a durable name to the allocator, immediately or with its last pin.
    fn give_back_unpinned(&self, block: BlockNo) {
        if !self.pins.hold_back(block) {
            self.give_back(block);
        }
    }

    /// Returns a run without a durable name to the allocator, except blocks in a poisoned range.
    pub(crate) fn give_back_run(&self, run: BlockRun) {
        // Each block may be bad or pinned, so they are freed one by one.
        if self.medium().has_poison() || self.pins.any() {
            return run.blocks().for_each(|block| self.give_back_unpinned(block));
        }
        self.usage.subtract(run.len);
        if let Err(error) = self.shared.alloc.free_run(run) {
            self.fail_of_two_owners(run, &error);
        }
    }

    /// Returns a block without a durable name to the allocator, unless its memory is bad.
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

    /// Rejects writes from now on: an invalid map or saved allocator state led to already free blocks, and
    /// could next lead to blocks since allocated by others. So it is not an assertion either.
    #[cold]
    fn fail_of_two_owners(&self, run: BlockRun, error: &SlotError) {
        let what = format!(
            "of {} blocks from {} on some were given up twice ({error}); a check of the pool says more",
            run.len, run.start
        );
        let structure = format!("blocks of volume {}", self.name());
        self.fail(&Corrupt::new(structure, run.start.offset(), what));
    }

    /// Returns true if a block of `run` has no owner: no valid structure leads to it.
    #[must_use]
    pub fn has_free_block(&self, run: BlockRun) -> bool {
        run.blocks().any(|block| self.shared.alloc.is_free(block))
    }

    /// Returns the preallocated blocks of lanes to the allocator. If a write took blocks and then panicked, a
    /// map may name them: such a volume keeps all of them.
    pub(crate) fn return_preallocated(&self) {
        for lane in &self.lanes {
            let mut lane = lane.lock();
            if !self.unfinished.load(Ordering::Acquire) {
                lane.take_preallocated().for_each(|block| self.give_back(block));
            }
        }
    }
}

/// Adjacent blocks, in both the list and the pool, as runs: for requests with several replaced blocks, a
/// locked instruction or two for each block costs more than the rest of the free.
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

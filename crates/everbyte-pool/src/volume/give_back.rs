//! Giving back what a volume took: blocks, runs and cells that nothing durable names any more, and
//! those that its lanes took in advance.

use std::sync::atomic::Ordering;

use everbyte_media::{BLOCK_U64, BlockNo, Medium, PoolOffset};

use super::{Retired, Volume};
use crate::alloc::{BlockRun, CellSize};
use crate::shared::Spares;

impl<M: Medium> Spares for Volume<M> {
    fn give_back_spare_blocks(&self) {
        self.return_spare_blocks();
    }
}

impl<M: Medium> Volume<M> {
    /// Gives up for good what an epoch gave up that is durable now.
    pub(crate) fn give_back_all(&self, retired: &Retired) {
        for &block in &retired.blocks {
            self.give_back(block);
        }
        for &run in &retired.runs {
            self.give_back_run(run);
        }
        for &(at, size) in &retired.cells {
            self.give_back_cell(at, size);
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

    /// Gives a run that nothing durable names to the allocator, but for blocks in bad memory.
    pub(crate) fn give_back_run(&self, run: BlockRun) {
        if self.medium().has_poison() {
            return run.blocks().for_each(|block| self.give_back(block));
        }
        self.usage.subtract(run.len);
        if let Err(error) = self.shared.alloc.free_run(run) {
            tracing::error!(%error, "blocks were freed twice; `pool check` says more");
        }
    }

    /// Gives a block that nothing durable names to the allocator, unless its memory is bad.
    pub(crate) fn give_back(&self, block: BlockNo) {
        self.usage.subtract(1);
        if self.medium().check_range(block.offset(), BLOCK_U64).is_err() {
            tracing::warn!(%block, "a block was given up, but its memory is bad: it is used no more");
            return;
        }
        if let Err(error) = self.shared.alloc.free(block) {
            // A saved allocator state that lies can bring this about, so it is no assertion.
            tracing::error!(%error, "a block was freed twice; `pool check` says more");
        }
    }

    /// Gives the blocks that lanes took in advance back to the allocator. Those that a write took and
    /// then panicked may be named by a map, so such a volume keeps all of them.
    pub(crate) fn return_spare_blocks(&self) {
        for lane in &self.lanes {
            let mut lane = lane.lock();
            if !self.unfinished.load(Ordering::Acquire) {
                lane.take_spare().for_each(|block| self.give_back(block));
                let cells = lane.take_spare_cells();
                cells.into_iter().for_each(|(at, size)| self.give_back_cell(at, size));
            }
        }
    }
}

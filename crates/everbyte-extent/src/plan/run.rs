//! Runs of 2 MiB for data: an empty leaf of the map that gets space as a whole gets contiguous blocks, if the
//! pool has such.
//!
//! Invariant: a plan that takes a run names every block of it. No other module knows of runs: each block of
//! one is replaced and freed like any other.

use everbyte_media::{BLOCK_U64, BlockNo, Medium};
use everbyte_pool::BlockRun;

use super::Planner;
use crate::address::LogicalBlock;
use crate::error::ExtentError;
use crate::leaf::LEAF_BYTES;
use crate::map::MapSlot;

const LEAF_BLOCKS: u64 = LEAF_BYTES / BLOCK_U64;

/// A run for the blocks of a leaf.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeafRun {
    first: LogicalBlock,
    run: BlockRun,
}

impl LeafRun {
    /// The block of the run for `block`.
    pub(super) fn block_of(self, block: LogicalBlock) -> Option<BlockNo> {
        let place = block.0.checked_sub(self.first.0).filter(|&place| place < self.run.len)?;
        Some(BlockNo(self.run.start.0 + place))
    }
}

impl<M: Medium> Planner<'_, '_, '_, M> {
    /// Takes a run for the leaf from `block` on, if a leaf begins there, all of it is holes, and this plan
    /// gives space to the blocks up to `end`. Blocks with checksums lie anywhere: each of them needs a slot,
    /// and the slot may be missing. Blocks also lie anywhere in a pool that was full. The same holds in a
    /// group, which makes no checkpoint: a run released by a plan is free only after a checkpoint. A second
    /// plan without the run would find no block.
    ///
    /// # Errors
    /// The map cannot be right.
    pub(super) fn take_leaf_run(
        &mut self,
        block: LogicalBlock,
        end: u64,
    ) -> Result<(), ExtentError> {
        // In a full pool a run would take the blocks that other holes need.
        let is_full = self.in_place_only || self.constraints.pool_was_full;
        let is_leaf =
            !is_full && block.0.is_multiple_of(LEAF_BLOCKS) && block.0 + LEAF_BLOCKS <= end;
        if !is_leaf || self.extent.checksum_root_at().is_some() || !self.is_hole(block)? {
            return Ok(());
        }
        // Without a free run the blocks are taken one by one.
        self.run = self.batch.alloc_run(LEAF_BLOCKS).map(|run| LeafRun { first: block, run });
        Ok(())
    }

    /// Returns true if the leaf from `first` on has no space.
    fn is_hole(&mut self, first: LogicalBlock) -> Result<bool, ExtentError> {
        let extent = self.extent;
        let beside = extent.first_entries().filter(|_| first.0 == 0).map_or(0, |first| first.count);
        let is_free = |at| Ok::<bool, ExtentError>(extent.entries().load(at)?.is_none());
        for block in 0..beside {
            if let MapSlot::At(at) = extent.look_up_in(self.batch, LogicalBlock(block))?
                && !is_free(at)?
            {
                return Ok(false);
            }
        }
        // All entries except those next to the root word stand in one node or table, one after the other.
        let at = match extent.look_up_in(self.batch, LogicalBlock(first.0 + beside))? {
            MapSlot::At(at) => at,
            MapSlot::Missing(_) => return Ok(true),
        };
        for place in 0..LEAF_BLOCKS - beside {
            if !is_free(at.plus(8 * place))? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

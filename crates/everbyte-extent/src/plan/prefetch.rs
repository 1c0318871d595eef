//! Fetching what a plan of several blocks will look at, before it is looked at.

use everbyte_media::{BLOCK, LINE, LineMask, Medium, PoolOffset};
use everbyte_pool::WordGroup;

use super::Planner;
use crate::address::{BlockRange, DeviceOffset, LogicalBlock, pieces};
use crate::error::ExtentError;
use crate::map::MapSlot;

/// Blocks of a plan up to which their entries are fetched ahead.
const BLOCKS_MAX: u64 = 64;

/// Steps that replace a block: one is taken, its entry changes, the old one is given up.
const STEPS_EACH: usize = 3;

/// An entry that was looked up ahead.
pub(super) struct Found {
    block: LogicalBlock,
    entry_at: PoolOffset,
    /// First byte that is written, in the block.
    start: usize,
    /// Bytes that are written.
    len: usize,
}

impl<M: Medium> Planner<'_, '_, '_, M> {
    /// Fetches what planning `writes` will look at: the entries of the map, what is logged of them,
    /// whether the blocks that they name are fresh, and the bytes that are logged. One after the other,
    /// these misses of cache and TLB would take longer than the rest of a plan; here each step asks for what
    /// the next one needs, for all blocks. Of many blocks at once the first ones would be gone again when
    /// they are planned.
    pub fn prefetch<'w>(&mut self, writes: impl Iterator<Item = (DeviceOffset, &'w [u8])> + Clone) {
        let count =
            |(at, data): (DeviceOffset, &[u8])| BlockRange::of_bytes(at, data.len() as u64).count;
        let blocks: u64 = writes.clone().map(count).sum();
        self.is_prefetched = (2..=BLOCKS_MAX).contains(&blocks);
        if !self.is_prefetched {
            return;
        }
        let (extent, volume) = (self.extent, self.extent.volume());
        let end = extent.size_blocks();
        self.found = Vec::with_capacity(usize::try_from(blocks).expect("at most 64"));
        let pieces = writes.flat_map(|(at, data)| pieces(at, data));
        let mut last = None;
        for piece in pieces.filter(|piece| piece.block.0 < end) {
            if let Ok(MapSlot::At(at)) = extent.look_up(piece.block) {
                // Entries of adjacent blocks lie side by side.
                let line = at.0 / LINE as u64;
                if last.replace(line) != Some(line) {
                    volume.prefetch_store(at, 8);
                }
                let (block, start, len) = (piece.block, piece.start, piece.data.len());
                self.found.push(Found { block, entry_at: at, start, len });
            }
        }
        self.batch.reserve(STEPS_EACH * self.found.len());
        let mut last = None;
        for found in &self.found {
            match extent.entries().load(found.entry_at) {
                Ok(Some(entry)) if found.len == BLOCK => volume.prefetch_free(entry.block),
                Ok(Some(entry)) => {
                    // What replaces the block leaves its bytes alone.
                    let lines = LineMask::covering(found.start, found.len);
                    let len = if extent.threshold().replaces(lines) { 0 } else { found.len };
                    volume.prefetch_store(entry.block.offset().plus(found.start as u64), len);
                }
                _ => {}
            }
            let group = WordGroup::of(found.entry_at);
            if last.replace(group) != Some(group) {
                volume.prefetch_record(found.entry_at);
            }
        }
    }

    /// The address of the entry for `block`, which was looked up ahead or is now, with the branch that
    /// leads to it planned if it is missing.
    pub(super) fn entry_for(&mut self, block: LogicalBlock) -> Result<PoolOffset, ExtentError> {
        // In the order in which they are planned.
        match self.found.get(self.passed) {
            Some(found) if found.block == block => {
                self.passed += 1;
                Ok(found.entry_at)
            }
            _ => self.extent.entry_for_write(self.batch, block),
        }
    }
}

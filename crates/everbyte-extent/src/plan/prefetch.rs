//! Prefetches for the plan of several blocks.

use everbyte_media::{BLOCK, LINE, LineMask, Medium, PoolOffset};
use everbyte_pool::WordGroup;

use super::Planner;
use crate::address::{BlockRange, DeviceOffset, LogicalBlock, pieces};
use crate::error::ExtentError;
use crate::map::MapSlot;

/// Most blocks of a plan with prefetches.
const BLOCKS_MAX: u64 = 64;

/// Steps of a replacement: allocate a block, change the entry, free the old block.
const STEPS_EACH: usize = 3;

/// A prefetched entry.
pub(super) struct PrefetchedEntry {
    block: LogicalBlock,
    entry_at: PoolOffset,
    /// First written byte in the block.
    start: usize,
    /// Number of written bytes.
    len: usize,
}

impl<M: Medium> Planner<'_, '_, '_, M> {
    /// Prefetches the state for a plan of `writes`: the entries, their undo records, the freshness of their
    /// blocks, and the bytes to log. In sequence, these misses of cache and TLB would take longer than the
    /// rest of a plan. Here each step requests the data of the next step for all blocks. With more than 64
    /// blocks, the first lines would be evicted before their use.
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
        // A block beyond the end would only be refused.
        for piece in pieces.filter(|piece| piece.block.0 < end) {
            // An invalid map is reported by the plan.
            if let Ok(MapSlot::At(at)) = extent.look_up(piece.block) {
                // Entries of adjacent blocks share a line.
                let line = at.0 / LINE as u64;
                if last.replace(line) != Some(line) {
                    volume.prefetch_store(at, 8);
                }
                let (block, start, len) = (piece.block, piece.start, piece.data.len());
                self.found.push(PrefetchedEntry { block, entry_at: at, start, len });
            }
        }
        self.batch.reserve(STEPS_EACH * self.found.len());
        let mut last = None;
        for found in &self.found {
            match extent.entries().load(found.entry_at) {
                Ok(Some(entry)) if found.len == BLOCK => volume.prefetch_free(entry.block),
                Ok(Some(entry)) => {
                    // A replacement does not read the replaced bytes.
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

    /// The address of the entry for `block`, prefetched or looked up now. Plans the branch to the entry if it
    /// is missing.
    pub(super) fn entry_for(&mut self, block: LogicalBlock) -> Result<PoolOffset, ExtentError> {
        // The plan uses the entries in the order of the prefetch.
        match self.found.get(self.passed) {
            Some(found) if found.block == block => {
                self.passed += 1;
                Ok(found.entry_at)
            }
            _ => self.extent.entry_for_write(self.batch, block),
        }
    }
}

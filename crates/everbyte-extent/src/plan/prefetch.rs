//! Fetching what a plan of several blocks will look at, before it is looked at.

use everbyte_media::{BLOCK, Medium, PoolOffset};
use smallvec::SmallVec;

use super::Planner;
use crate::address::{BlockRange, DeviceOffset, pieces};
use crate::map::Path;

/// Blocks of a plan up to which their entries are fetched ahead.
const BLOCKS_MAX: u64 = 64;

/// Steps that replace a block: one is taken, its entry changes, the old one is given up.
const STEPS_EACH: usize = 3;

impl<M: Medium> Planner<'_, '_, '_, M> {
    /// Fetches what planning `writes` will look at: the entries of the map, whether the blocks that
    /// they name are fresh, and for those that are not what is logged of the entries. One after the
    /// other, these misses of the cache would take longer than the rest of a plan; here each step
    /// asks for what the next one needs, for all blocks. Of many blocks at once the first ones
    /// would be gone again when they are planned.
    pub fn prefetch<'w>(&mut self, writes: impl Iterator<Item = (DeviceOffset, &'w [u8])> + Clone) {
        let count =
            |(at, data): (DeviceOffset, &[u8])| BlockRange::of_bytes(at, data.len() as u64).count;
        let blocks: u64 = writes.clone().map(count).sum();
        self.is_prefetched = (2..=BLOCKS_MAX).contains(&blocks);
        if !self.is_prefetched {
            return;
        }
        let extent = self.extent;
        let (medium, volume, reader) = (extent.medium(), extent.volume(), extent.entries());
        let end = extent.size_blocks();
        let mut entries: SmallVec<[(PoolOffset, bool); 16]> = SmallVec::new();
        let pieces = writes.flat_map(|(at, data)| pieces(at, data));
        for piece in pieces.filter(|piece| piece.block.0 < end) {
            if let Ok(Path::Entry(at)) = extent.look_up(piece.block) {
                medium.prefetch(at, 8);
                entries.push((at, piece.data.len() == BLOCK));
            }
        }
        self.batch.reserve(STEPS_EACH * entries.len());
        let named = |at| reader.load(at).ok().flatten();
        for &(at, is_whole) in &entries {
            match named(at) {
                Some(entry) if is_whole => volume.prefetch_free(entry.block),
                Some(entry) => volume.prefetch_store(entry.block.offset(), 0),
                None => {}
            }
        }
        let writer = self.batch.writer();
        entries.retain(|(at, is_whole)| {
            !(*is_whole && named(*at).is_some_and(|entry| writer.is_fresh(entry.block)))
        });
        entries.iter().for_each(|(at, _)| volume.prefetch_store(*at, 8));
        entries.iter().for_each(|(at, _)| volume.prefetch_record(*at));
    }
}

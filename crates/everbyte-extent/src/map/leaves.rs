//! Places of the lowest-level nodes of a map, in DRAM: a lookup of a block below one of them loads
//! no other node.
//!
//! A table of fixed size with a place for each leaf; leaves of a larger volume share places, and
//! the last one found has it. A place is one word, so it names a leaf and says whose it is, or
//! nothing.
//!
//! Invariants: what a place names is where a lookup from the root would lead, for anyone who has a
//! lock of a block below that leaf, or is alone. So a leaf is put here only by who looked it up so,
//! and forgotten here, before it is taken off the map, by who has all of them for writing.

use std::sync::atomic::{AtomicU64, Ordering};

use everbyte_media::{BlockNo, PoolOffset};

use super::{ENTRIES, slot_at};
use crate::address::LogicalBlock;

/// Most places: 1 MiB of DRAM, for 256 GiB of a volume.
const PLACES_MAX: u64 = 1 << 17;
/// Bits of a place that say which leaf it names; above them is the number of the leaf divided by
/// that of places.
const BLOCK_BITS: u32 = 40;

/// A table of leaves.
pub(crate) struct Leaves(Box<[AtomicU64]>);

impl Leaves {
    /// A table for a map of `blocks`, of which it knows nothing yet.
    pub(crate) fn new(blocks: u64) -> Self {
        let places = blocks.div_ceil(ENTRIES).clamp(1, PLACES_MAX).next_power_of_two();
        Self((0..places).map(|_| AtomicU64::new(0)).collect())
    }

    /// The place for the leaf of `block`, and what tells it from others that share it.
    fn place(&self, block: LogicalBlock) -> (&AtomicU64, u64) {
        // A power of two.
        let places = self.0.len();
        let leaf = block.0 / ENTRIES;
        (&self.0[leaf as usize & (places - 1)], leaf >> places.trailing_zeros())
    }

    /// Returns the offset of the entry of `block`, if its leaf is known here.
    #[inline]
    pub(crate) fn entry(&self, block: LogicalBlock) -> Option<PoolOffset> {
        let (place, tag) = self.place(block);
        let word = place.load(Ordering::Acquire);
        let is_known = word != 0 && word >> BLOCK_BITS == tag;
        let leaf = BlockNo(word & ((1 << BLOCK_BITS) - 1));
        is_known.then(|| slot_at(leaf, block.0 % ENTRIES))
    }

    /// Notes that a lookup led to the entry of `block` at `at`.
    pub(crate) fn put(&self, block: LogicalBlock, at: PoolOffset) {
        let (place, tag) = self.place(block);
        let leaf = at.block().0;
        // Neither is ever larger in a pool that can be: a node lies below 2^40, and so many places
        // are few only for a volume that has grown to 2^24 times what it was opened with.
        if leaf >> BLOCK_BITS == 0 && tag >> (u64::BITS - BLOCK_BITS) == 0 {
            place.store(tag << BLOCK_BITS | leaf, Ordering::Release);
        }
    }

    /// Forgets the leaf of `block`.
    pub(crate) fn forget(&self, block: LogicalBlock) {
        self.place(block).0.store(0, Ordering::Release);
    }

    /// Forgets all leaves.
    pub(crate) fn forget_all(&self) {
        self.0.iter().for_each(|place| place.store(0, Ordering::Release));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(leaf: u64, index: u64) -> PoolOffset {
        slot_at(BlockNo(leaf), index)
    }

    #[test]
    fn a_leaf_is_known_to_all_its_blocks_until_it_is_forgotten() {
        let leaves = Leaves::new(10 * ENTRIES);
        assert_eq!(leaves.0.len(), 16);
        assert_eq!(leaves.entry(LogicalBlock(0)), None);
        leaves.put(LogicalBlock(3 * ENTRIES + 7), entry(99, 7));
        assert_eq!(leaves.entry(LogicalBlock(3 * ENTRIES)), Some(entry(99, 0)));
        assert_eq!(leaves.entry(LogicalBlock(4 * ENTRIES - 1)), Some(entry(99, 511)));
        assert_eq!(
            (leaves.entry(LogicalBlock(3 * ENTRIES - 1)), leaves.entry(LogicalBlock(4 * ENTRIES))),
            (None, None)
        );
        leaves.put(LogicalBlock(5), entry(98, 5));
        leaves.forget(LogicalBlock(3 * ENTRIES + 1));
        assert_eq!(
            (leaves.entry(LogicalBlock(3 * ENTRIES)), leaves.entry(LogicalBlock(5))),
            (None, Some(entry(98, 5)))
        );
        leaves.forget_all();
        assert_eq!(leaves.entry(LogicalBlock(5)), None);
    }

    #[test]
    fn leaves_that_share_a_place_are_not_taken_for_each_other() {
        let leaves = Leaves::new(1);
        assert_eq!(leaves.0.len(), 1);
        for leaf in [0, 1, (1 << 24) - 1] {
            leaves.put(LogicalBlock(leaf * ENTRIES), entry((1 << 40) - 1, 0));
            assert_eq!(leaves.entry(LogicalBlock(leaf * ENTRIES)), Some(entry((1 << 40) - 1, 0)));
            assert_eq!(leaves.entry(LogicalBlock((leaf + 1) * ENTRIES)), None);
        }
        leaves.put(LogicalBlock((1 << 24) * ENTRIES), entry(5, 0));
        assert_eq!(
            leaves.entry(LogicalBlock((1 << 24) * ENTRIES)),
            None,
            "its number does not fit"
        );
        leaves.put(LogicalBlock(0), entry(1 << 40, 0));
        assert_eq!(leaves.entry(LogicalBlock(0)), None, "nor does the node's");
    }
}

//! Places of the lowest-level nodes of a map, in DRAM: a lookup of a block below one of them loads
//! no other node.
//!
//! Each leaf has one place, for any size of the map: one of the first table, or one of the tables beyond. The
//! first table has as many places as the map had leaves when it was opened. The tables beyond are made when a
//! leaf of theirs is found. If many extents are known at a time, the first table has one place only: they may
//! be sparse, or have no leaves. The leaves of the largest volumes share the last table's places, and the
//! last found leaf has the place. A place is one word: it names a leaf and its number, or nothing.
//!
//! Invariants: for a thread with a lock of a block below the leaf, or alone, a place names the same leaf as a
//! lookup from the root. So a leaf is put here only by a thread with such a lookup. A thread with all of its
//! blocks for writing clears it here before it is taken off the map.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use everbyte_media::{BlockNo, PoolOffset};

use super::{ENTRIES, slot_at};
use crate::address::LogicalBlock;

/// Most places of a table: 1 MiB of DRAM, for 256 GiB of a volume.
const PLACES_MAX: usize = 1 << 17;
/// Places of the tables beyond the first one, each for leaves without a place in those before it.
const BEYOND: [usize; 4] = [1 << 4, 1 << 8, 1 << 12, PLACES_MAX];
/// Bits of a place for the address of its leaf; above them is the number of the leaf divided by that of
/// places.
const BLOCK_BITS: u32 = 40;

type Table = Box<[AtomicU64]>;

/// Places of leaves.
pub(crate) struct Leaves {
    first: Table,
    /// Empty until a leaf without a place in the first table is found: most files stay small.
    beyond: OnceLock<Box<[OnceLock<Table>; BEYOND.len()]>>,
}

fn table(places: usize) -> Table {
    (0..places).map(|_| AtomicU64::new(0)).collect()
}

/// The number of the leaf of `block`.
fn leaf_of(block: LogicalBlock) -> usize {
    usize::try_from(block.0 / ENTRIES).unwrap_or(usize::MAX)
}

/// The table beyond the first one with the place of a leaf, the place, and the tag that distinguishes the
/// leaf from others of that place.
fn place_beyond(leaf: usize) -> (usize, usize, u64) {
    let nth = BEYOND.partition_point(|&places| places <= leaf).min(BEYOND.len() - 1);
    // A power of two.
    let places = BEYOND[nth];
    (nth, leaf & (places - 1), (leaf >> places.trailing_zeros()) as u64)
}

impl Leaves {
    /// An empty table for a map of `blocks`; the map may grow.
    pub(crate) fn new(blocks: u64) -> Self {
        let leaves = usize::try_from(blocks.div_ceil(ENTRIES)).unwrap_or(usize::MAX);
        Self { first: table(leaves.clamp(1, PLACES_MAX)), beyond: OnceLock::new() }
    }

    /// The place for the leaf of `block`, if it exists yet, and the tag that distinguishes the leaf from
    /// others of that place.
    #[inline]
    fn place(&self, block: LogicalBlock) -> Option<(&AtomicU64, u64)> {
        let leaf = leaf_of(block);
        match self.first.get(leaf) {
            Some(place) => Some((place, 0)),
            None => self.found_beyond(leaf),
        }
    }

    fn found_beyond(&self, leaf: usize) -> Option<(&AtomicU64, u64)> {
        let (nth, place, tag) = place_beyond(leaf);
        let table = self.beyond.get()?[nth].get()?;
        Some((&table[place], tag))
    }

    /// The same; a missing place is made.
    fn made_place(&self, block: LogicalBlock) -> (&AtomicU64, u64) {
        let leaf = leaf_of(block);
        if let Some(place) = self.first.get(leaf) {
            return (place, 0);
        }
        let (nth, place, tag) = place_beyond(leaf);
        let tables = self.beyond.get_or_init(Box::default);
        (&tables[nth].get_or_init(|| table(BEYOND[nth]))[place], tag)
    }

    /// Returns the offset of the entry of `block`, if its leaf is known here.
    #[inline]
    pub(crate) fn entry(&self, block: LogicalBlock) -> Option<PoolOffset> {
        let (place, tag) = self.place(block)?;
        let word = place.load(Ordering::Acquire);
        // 0 is an empty place. Another tag is another leaf at the same place.
        let is_known = word != 0 && word >> BLOCK_BITS == tag;
        let leaf = BlockNo(word & ((1 << BLOCK_BITS) - 1));
        is_known.then(|| slot_at(leaf, block.0 % ENTRIES))
    }

    /// Notes that a lookup led to the entry of `block` at `at`.
    pub(crate) fn put(&self, block: LogicalBlock, at: PoolOffset) {
        let (place, tag) = self.made_place(block);
        let leaf = at.block().0;
        // Neither is ever larger in a pool that can be: a node lies below 2^40, and the last table's places are
        // few only for a volume of 2^24 times 256 GiB.
        if leaf >> BLOCK_BITS == 0 && tag >> (u64::BITS - BLOCK_BITS) == 0 {
            place.store(tag << BLOCK_BITS | leaf, Ordering::Release);
        }
    }

    /// Forgets the leaf of `block`.
    pub(crate) fn forget(&self, block: LogicalBlock) {
        if let Some((place, _)) = self.place(block) {
            place.store(0, Ordering::Release);
        }
    }

    /// Forgets all leaves.
    pub(crate) fn forget_all(&self) {
        self.places().for_each(|place| place.store(0, Ordering::Release));
    }

    /// All present places.
    pub(crate) fn places(&self) -> impl Iterator<Item = &AtomicU64> {
        let beyond = self.beyond.get().into_iter().flat_map(|tables| tables.iter());
        beyond.filter_map(OnceLock::get).chain([&self.first]).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(leaf: u64, index: u64) -> PoolOffset {
        slot_at(BlockNo(leaf), index)
    }

    #[test]
    fn leaf_cache_serves_all_blocks_of_leaf() {
        let leaves = Leaves::new(10 * ENTRIES);
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
    fn leaf_cache_grows_with_map() {
        let leaves = Leaves::new(0);
        let numbers = [0, 1, 2, 15, 16, 17, 255, 256, 4095, 4096, 70_000, (1 << 17) - 1];
        for (node, leaf) in (100..).zip(numbers) {
            assert_eq!(leaves.entry(LogicalBlock(leaf * ENTRIES)), None, "{leaf}");
            leaves.forget(LogicalBlock(leaf * ENTRIES));
            leaves.put(LogicalBlock(leaf * ENTRIES + 3), entry(node, 3));
        }
        for (node, leaf) in (100..).zip(numbers) {
            let known = leaves.entry(LogicalBlock(leaf * ENTRIES + 9));
            assert_eq!(known, Some(entry(node, 9)), "{leaf}");
        }
        leaves.forget(LogicalBlock(17 * ENTRIES));
        assert_eq!(leaves.entry(LogicalBlock(17 * ENTRIES)), None);
        assert_eq!(leaves.entry(LogicalBlock(16 * ENTRIES)), Some(entry(104, 0)));
        leaves.forget_all();
        for leaf in numbers {
            assert_eq!(leaves.entry(LogicalBlock(leaf * ENTRIES)), None, "{leaf}");
        }
    }

    #[test]
    fn leaf_cache_tells_colliding_leaves_apart() {
        let leaves = Leaves::new(1);
        let places = PLACES_MAX as u64;
        for round in [1, 2, (1 << 24) - 1] {
            let leaf = 5 + round * places;
            leaves.put(LogicalBlock(leaf * ENTRIES), entry((1 << 40) - 1, 0));
            assert_eq!(leaves.entry(LogicalBlock(leaf * ENTRIES)), Some(entry((1 << 40) - 1, 0)));
            assert_eq!(leaves.entry(LogicalBlock((leaf + places) * ENTRIES)), None);
        }
        let leaf = 5 + (1 << 24) * places;
        leaves.put(LogicalBlock(leaf * ENTRIES), entry(5, 0));
        assert_eq!(leaves.entry(LogicalBlock(leaf * ENTRIES)), None, "its number does not fit");
        leaves.put(LogicalBlock(0), entry(1 << 40, 0));
        assert_eq!(leaves.entry(LogicalBlock(0)), None, "nor does the node's");
    }
}

//! Block locks: who may look at or change which logical blocks.
//!
//! Invariants: a thread takes all the stripes that it needs in ascending order, in one call, and
//! no others until it has given them back; so there is no deadlock. A block's stripe is its number
//! modulo the number of stripes, so that a run of blocks takes a run of stripes.

use everbyte_pool::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use smallvec::SmallVec;

/// Stripes; twice the blocks of a leaf, so that a leaf does not lock everything.
const STRIPES: u64 = 1024;
/// Locks of a cache line. A line for each would be 64 KiB of a volume's own, which requests for random
/// blocks would find in the cache less often than the line contended.
const LINE_LOCKS: usize = 8;

/// The locks of one volume. Stripes that follow each other lie in different lines, so that threads
/// which work side by side do not get in each other's way.
pub(crate) struct BlockLocks(Box<[RwLock<()>]>);

/// Blocks held for reading. For a few blocks it takes no memory of its own.
pub(crate) type ReadGuards<'a> = SmallVec<[RwLockReadGuard<'a, ()>; 16]>;
/// Blocks held for writing.
pub(crate) type WriteGuards<'a> = SmallVec<[RwLockWriteGuard<'a, ()>; 16]>;

/// Blocks `first .. first + count`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockRange {
    pub(crate) first: u64,
    pub(crate) count: u64,
}

impl BlockRange {
    /// The blocks that bytes `offset .. offset + len` touch. The range need not be checked yet.
    pub(crate) fn of_bytes(offset: u64, len: u64) -> Self {
        if len == 0 {
            return Self { first: 0, count: 0 };
        }
        let first = offset / everbyte_media::BLOCK_U64;
        let last = offset.saturating_add(len - 1) / everbyte_media::BLOCK_U64;
        Self { first, count: last - first + 1 }
    }

    /// Whether the two share a block.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.first < other.first + other.count && other.first < self.first + self.count
    }
}

fn stripe_of(block: u64) -> usize {
    (block % STRIPES) as usize
}

impl BlockLocks {
    pub(crate) fn new() -> Self {
        Self((0..STRIPES).map(|_| RwLock::new(())).collect())
    }

    /// Locks blocks for reading.
    pub(crate) fn read(&self, range: BlockRange) -> ReadGuards<'_> {
        if range.count == 1 {
            let mut one = ReadGuards::new();
            one.push(self.lock(stripe_of(range.first)).read());
            return one;
        }
        self.stripes([range]).into_iter().map(|stripe| self.lock(stripe).read()).collect()
    }

    /// Locks blocks for writing.
    pub(crate) fn write(&self, ranges: impl IntoIterator<Item = BlockRange>) -> WriteGuards<'_> {
        self.stripes(ranges).into_iter().map(|stripe| self.lock(stripe).write()).collect()
    }

    /// Locks every block for writing.
    pub(crate) fn write_all(&self) -> Vec<RwLockWriteGuard<'_, ()>> {
        (0..self.0.len()).map(|stripe| self.lock(stripe).write()).collect()
    }

    /// The lock of a stripe.
    fn lock(&self, stripe: usize) -> &RwLock<()> {
        let lines = self.0.len() / LINE_LOCKS;
        &self.0[stripe % lines * LINE_LOCKS + stripe / lines]
    }

    /// The stripes of `ranges`, ascending, each once.
    fn stripes(&self, ranges: impl IntoIterator<Item = BlockRange>) -> SmallVec<[usize; 16]> {
        let mut stripes: SmallVec<[usize; 16]> = SmallVec::new();
        for range in ranges {
            let count = range.count.min(STRIPES);
            stripes.extend((range.first..range.first + count).map(stripe_of));
        }
        if stripes.windows(2).any(|pair| pair[0] >= pair[1]) {
            stripes.sort_unstable();
            stripes.dedup();
        }
        stripes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_ascend_and_are_unique() {
        let locks = BlockLocks::new();
        let range = |first, count| BlockRange { first, count };
        assert_eq!(*locks.stripes([range(1022, 4)]), [0, 1, 1022, 1023]);
        assert_eq!(*locks.stripes([range(5, 1), range(1029, 1), range(2, 2)]), [2, 3, 5]);
        assert_eq!(locks.stripes([range(7, 5000)]).len(), 1024);
        assert!(locks.stripes([range(7, 0)]).is_empty());
    }

    #[test]
    fn every_stripe_has_a_lock_and_neighbours_are_lines_apart() {
        let locks = BlockLocks::new();
        let places: Vec<usize> = (0..locks.0.len())
            .map(|stripe| std::ptr::from_ref(locks.lock(stripe)).addr())
            .collect();
        assert!(places.windows(2).all(|pair| pair[0].abs_diff(pair[1]) >= 64));
        assert_eq!(places.iter().collect::<std::collections::BTreeSet<_>>().len(), places.len());
    }

    #[test]
    fn byte_ranges_become_block_ranges() {
        let blocks = |offset, len| {
            let range = BlockRange::of_bytes(offset, len);
            (range.first, range.count)
        };
        assert_eq!(blocks(0, 1), (0, 1));
        assert_eq!(blocks(4095, 2), (0, 2));
        assert_eq!(blocks(4096, 4096), (1, 1));
        assert_eq!(blocks(9, 0), (0, 0));
    }
}

//! Block locks: who may look at or change which logical blocks.
//!
//! Invariants: a thread takes all the stripes that it needs in ascending order, in one call, and
//! no others until it has given them back; so there is no deadlock. A block's stripe is its number
//! modulo the number of stripes, so that a run of blocks takes a run of stripes.

use std::sync::Arc;

use everbyte_pool::Users;
use everbyte_pool::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use smallvec::SmallVec;

use crate::address::{BlockRange, LogicalBlock};

/// Stripes; twice the blocks of a leaf, so that a leaf does not lock everything.
const STRIPES: u64 = 1024;
/// Locks of a cache line. A line for each would be 64 KiB of a volume's own, which requests for
/// random blocks would find in the cache less often than the line contended.
const LINE_LOCKS: usize = 8;

/// The locks of one extent. Stripes that follow each other lie in different lines, so that threads
/// which work side by side do not get in each other's way.
///
/// A clone is the same locks.
#[derive(Clone)]
pub struct BlockLocks {
    locks: Arc<[RwLock<()>]>,
    /// Added to the numbers of blocks, so that extents which share locks use different ones for
    /// blocks of one number.
    salt: u64,
}

/// Blocks held for reading. For a few blocks it takes no memory of its own.
pub type ReadGuards<'a> = SmallVec<[RwLockReadGuard<'a, ()>; 16]>;
/// Blocks held for writing.
pub type WriteGuards<'a> = SmallVec<[RwLockWriteGuard<'a, ()>; 16]>;

impl Default for BlockLocks {
    fn default() -> Self {
        Self::new()
    }
}

impl Users for BlockLocks {
    fn wait_idle(&self) {
        drop(self.write_all());
    }
}

impl BlockLocks {
    /// Locks of nobody yet.
    #[must_use]
    pub fn new() -> Self {
        Self { locks: (0..STRIPES).map(|_| RwLock::new(())).collect(), salt: 0 }
    }

    /// The same locks for the blocks of another extent, which `salt` tells from others that share
    /// them. A thread holds locks of one of them at a time.
    #[must_use]
    pub fn shared(&self, salt: u64) -> Self {
        Self { locks: Arc::clone(&self.locks), salt }
    }

    fn stripe_of(&self, block: LogicalBlock) -> usize {
        (block.0.wrapping_add(self.salt) % STRIPES) as usize
    }

    /// Locks blocks for reading.
    pub fn read(&self, range: BlockRange) -> ReadGuards<'_> {
        if range.count == 1 {
            let mut one = ReadGuards::new();
            one.push(self.lock(self.stripe_of(range.first)).read());
            return one;
        }
        self.stripes([range]).into_iter().map(|stripe| self.lock(stripe).read()).collect()
    }

    /// Locks one block for writing.
    pub fn write_one(&self, block: LogicalBlock) -> RwLockWriteGuard<'_, ()> {
        self.lock(self.stripe_of(block)).write()
    }

    /// Locks blocks that follow each other for writing.
    pub fn write_range(&self, range: BlockRange) -> WriteGuards<'_> {
        if range.count == 1 {
            let mut one = WriteGuards::new();
            one.push(self.write_one(range.first));
            return one;
        }
        self.write([range])
    }

    /// Locks blocks for writing.
    pub fn write(&self, ranges: impl IntoIterator<Item = BlockRange>) -> WriteGuards<'_> {
        self.stripes(ranges).into_iter().map(|stripe| self.lock(stripe).write()).collect()
    }

    /// Locks every block for writing.
    #[must_use]
    pub fn write_all(&self) -> Vec<RwLockWriteGuard<'_, ()>> {
        (0..self.locks.len()).map(|stripe| self.lock(stripe).write()).collect()
    }

    /// The lock of a stripe.
    fn lock(&self, stripe: usize) -> &RwLock<()> {
        let lines = self.locks.len() / LINE_LOCKS;
        &self.locks[stripe % lines * LINE_LOCKS + stripe / lines]
    }

    /// The stripes of `ranges`, ascending, each once.
    fn stripes(&self, ranges: impl IntoIterator<Item = BlockRange>) -> SmallVec<[usize; 16]> {
        let mut stripes: SmallVec<[usize; 16]> = SmallVec::new();
        for range in ranges {
            let first = range.first.0;
            let blocks = (first..first + range.count.min(STRIPES)).map(LogicalBlock);
            stripes.extend(blocks.map(|block| self.stripe_of(block)));
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
        let range = |first, count| BlockRange { first: LogicalBlock(first), count };
        assert_eq!(*locks.stripes([range(1022, 4)]), [0, 1, 1022, 1023]);
        assert_eq!(*locks.stripes([range(5, 1), range(1029, 1), range(2, 2)]), [2, 3, 5]);
        assert_eq!(locks.stripes([range(7, 5000)]).len(), 1024);
        assert!(locks.stripes([range(7, 0)]).is_empty());
    }

    #[test]
    fn every_stripe_has_a_lock_and_neighbours_are_lines_apart() {
        let locks = BlockLocks::new();
        let places: Vec<usize> = (0..locks.locks.len())
            .map(|stripe| std::ptr::from_ref(locks.lock(stripe)).addr())
            .collect();
        assert!(places.windows(2).all(|pair| pair[0].abs_diff(pair[1]) >= 64));
        assert_eq!(places.iter().collect::<std::collections::BTreeSet<_>>().len(), places.len());
    }
}

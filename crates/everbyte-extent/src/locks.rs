//! Block locks: the rights to read or change logical blocks.
//!
//! Invariants: a thread takes all needed stripes in ascending order, in one call, and no others until it has
//! released them; so there is no deadlock. A block's stripe is its number modulo the number of stripes: a run
//! of blocks takes a run of stripes.
//!
//! A stripe has a sequence: a reader without the lock detects from it if a thread had the lock for writing
//! (`sequenced`).

use std::sync::Arc;

use everbyte_pool::Users;
use everbyte_pool::sync::RwLockReadGuard;
use smallvec::SmallVec;

use crate::address::{BlockRange, LogicalBlock};
use crate::sequenced::{SequencedLock, WriteGuard};

/// Stripes of a cache line. A line for each would take 64 KiB per volume. Requests for random blocks would
/// then miss the cache more often than they now contend for a line.
const LINE_STRIPES: usize = 4;
/// Cache lines of them.
const LINES: usize = 256;
/// Stripes; twice the blocks of a leaf, so that a leaf does not lock everything.
const STRIPES: u64 = (LINES * LINE_STRIPES) as u64;

/// The locks of one extent. Adjacent stripes lie in different lines, so threads at adjacent blocks do not
/// contend for a line.
///
/// A clone is the same locks.
#[derive(Clone)]
pub struct BlockLocks {
    stripes: Arc<[SequencedLock]>,
    /// Added to the numbers of blocks: extents with shared locks use different locks for blocks of one
    /// number.
    salt: u64,
}

/// Blocks held for reading. A few blocks take no separate memory.
pub type ReadGuards<'a> = SmallVec<[RwLockReadGuard<'a, ()>; 16]>;
/// Blocks held for writing.
pub type WriteGuards<'a> = SmallVec<[WriteGuard<'a>; 16]>;

/// The sequences of a run of at most `N` blocks at one moment without a writer on any of them.
pub(crate) struct Noted<const N: usize>([u64; N]);

impl<const N: usize> Default for Noted<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

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
    /// Locks without a holder.
    #[must_use]
    pub fn new() -> Self {
        Self { stripes: (0..STRIPES).map(|_| SequencedLock::default()).collect(), salt: 0 }
    }

    /// The same locks for the blocks of another extent; `salt` distinguishes it from others with the same
    /// locks. A thread holds locks of one of them at a time.
    #[must_use]
    pub fn shared(&self, salt: u64) -> Self {
        Self { stripes: Arc::clone(&self.stripes), salt }
    }

    fn stripe_of(&self, block: LogicalBlock) -> usize {
        (block.0.wrapping_add(self.salt) % STRIPES) as usize
    }

    /// Locks blocks for reading.
    pub fn read(&self, range: BlockRange) -> ReadGuards<'_> {
        if range.count == 1 {
            let mut one = ReadGuards::new();
            one.push(self.stripe(self.stripe_of(range.first)).read());
            return one;
        }
        self.stripes_of([range]).into_iter().map(|stripe| self.stripe(stripe).read()).collect()
    }

    /// Locks one block for writing.
    #[inline]
    pub fn write_one(&self, block: LogicalBlock) -> WriteGuard<'_> {
        self.stripe(self.stripe_of(block)).write()
    }

    /// Locks adjacent blocks for writing.
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
        self.stripes_of(ranges).into_iter().map(|stripe| self.stripe(stripe).write()).collect()
    }

    /// Locks every block for writing.
    #[must_use]
    pub fn write_all(&self) -> Vec<WriteGuard<'_>> {
        // Ascending, as in every other call, so no two threads wait for each other.
        (0..self.stripes.len()).map(|stripe| self.stripe(stripe).write()).collect()
    }

    /// Notes the sequences of blocks, at most `N`. False if a thread has one of them for writing.
    #[inline]
    pub(crate) fn note<const N: usize>(&self, range: BlockRange, noted: &mut Noted<N>) -> bool {
        debug_assert!(range.count <= N as u64);
        for (block, noted) in (range.first.0..range.end().0).zip(&mut noted.0) {
            let Some(sequence) = self.stripe(self.stripe_of(LogicalBlock(block))).note() else {
                return false;
            };
            *noted = sequence;
        }
        true
    }

    /// Returns true if no thread had any of the blocks for writing since their sequences were `noted`: the
    /// calling thread's loads since then returned the contents of one moment.
    #[inline]
    pub(crate) fn are_as_noted<const N: usize>(&self, range: BlockRange, noted: &Noted<N>) -> bool {
        let blocks = range.first.0..range.end().0;
        let stripe = |block| self.stripe(self.stripe_of(LogicalBlock(block)));
        blocks.zip(&noted.0).all(|(block, &before)| stripe(block).is_as_noted(before))
    }

    #[inline]
    fn stripe(&self, number: usize) -> &SequencedLock {
        &self.stripes[number % LINES * LINE_STRIPES + number / LINES]
    }

    /// The stripes of `ranges`, ascending, each once.
    fn stripes_of(&self, ranges: impl IntoIterator<Item = BlockRange>) -> SmallVec<[usize; 16]> {
        let mut stripes: SmallVec<[usize; 16]> = SmallVec::new();
        for range in ranges {
            let first = range.first.0;
            // A longer range would only repeat the stripes.
            let blocks = (first..first + range.count.min(STRIPES)).map(LogicalBlock);
            stripes.extend(blocks.map(|block| self.stripe_of(block)));
        }
        // A range that wraps around, or several ranges, may not ascend.
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
        assert_eq!(*locks.stripes_of([range(1022, 4)]), [0, 1, 1022, 1023]);
        assert_eq!(*locks.stripes_of([range(5, 1), range(1029, 1), range(2, 2)]), [2, 3, 5]);
        assert_eq!(locks.stripes_of([range(7, 5000)]).len(), 1024);
        assert!(locks.stripes_of([range(7, 0)]).is_empty());
    }

    #[test]
    fn block_locks_of_neighbours_share_no_line() {
        let locks = BlockLocks::new();
        let places: Vec<usize> = (0..locks.stripes.len())
            .map(|stripe| std::ptr::from_ref(locks.stripe(stripe)).addr())
            .collect();
        assert!(places.windows(2).all(|pair| pair[0].abs_diff(pair[1]) >= 64));
        assert_eq!(places.iter().collect::<std::collections::BTreeSet<_>>().len(), places.len());
    }
    #[test]
    fn sequence_detects_each_later_writer() {
        let locks = BlockLocks::new();
        let range = BlockRange { first: LogicalBlock(7), count: 3 };
        let mut noted = Noted::<3>::default();
        assert!(locks.note(range, &mut noted));
        drop(locks.write_one(LogicalBlock(6)));
        drop(locks.read(range));
        assert!(locks.are_as_noted(range, &noted));
        let held = locks.write_one(LogicalBlock(9 + STRIPES));
        assert!(
            !locks.are_as_noted(range, &noted) && !locks.note(range, &mut Noted::<3>::default())
        );
        drop(held);
        assert!(!locks.are_as_noted(range, &noted));
        assert!(locks.note(range, &mut noted) && locks.are_as_noted(range, &noted));
        drop(locks.write_all());
        assert!(!locks.are_as_noted(range, &noted));
    }
}

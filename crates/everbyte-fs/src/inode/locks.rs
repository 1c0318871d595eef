//! Locks of inodes, in stripes.
//!
//! Invariants: a thread takes all inode locks of an operation in one call, in ascending order of stripes, so
//! a deadlock cannot occur. Inode locks come after the volume's gate, and before block locks, a lane and the
//! locks of inode tables.

use std::sync::Arc;

use everbyte_extent::{SequencedLock, WriteGuard};
use everbyte_plant::planted;
use everbyte_pool::Users;
use everbyte_pool::sync::RwLockReadGuard;
use smallvec::SmallVec;

use crate::format::number::InodeNo;
use crate::plant::Bug;

pub(crate) const STRIPES: usize = 4096;

/// The locks of a file system's inodes.
#[derive(Clone)]
pub(crate) struct InodeLocks(Arc<[SequencedLock]>);

/// Inodes locked for writing.
pub(crate) type WriteGuards<'l> = SmallVec<[WriteGuard<'l>; 4]>;

/// The stripe of an inode. Neighbours have different stripes, because one thread often makes them in
/// sequence.
pub(crate) fn stripe_of(inode: InodeNo) -> usize {
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    usize::try_from(inode.0.wrapping_mul(SPREAD) >> 52).expect("twelve bits")
}

impl InodeLocks {
    pub(crate) fn new() -> Self {
        Self((0..STRIPES).map(|_| SequencedLock::default()).collect())
    }

    pub(crate) fn read(&self, inode: InodeNo) -> RwLockReadGuard<'_, ()> {
        self.0[stripe_of(inode)].read()
    }

    /// The sequence of the lock of `inode`, unless a writer holds it.
    #[inline]
    pub(crate) fn note(&self, inode: InodeNo) -> Option<u64> {
        self.0[stripe_of(inode)].note()
    }

    /// Returns true if no writer has held the lock of `inode` since its sequence was `noted`.
    #[inline]
    pub(crate) fn is_as_noted(&self, inode: InodeNo, noted: u64) -> bool {
        self.0[stripe_of(inode)].is_as_noted(noted)
    }

    pub(crate) fn write(&self, inodes: &[InodeNo]) -> WriteGuards<'_> {
        let mut stripes: SmallVec<[usize; 4]> = inodes.iter().map(|&i| stripe_of(i)).collect();
        if planted(Bug::LocksInOrderOfCall) {
            let all = stripes.clone();
            let mut place = 0..;
            stripes.retain(|stripe| !all[..place.next().unwrap_or(0)].contains(stripe));
        } else {
            stripes.sort_unstable();
            stripes.dedup();
        }
        stripes.into_iter().map(|stripe| self.0[stripe].write()).collect()
    }
}

impl Users for InodeLocks {
    fn wait_idle(&self) {
        for lock in &*self.0 {
            drop(lock.write());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_stripe_is_locked_once() {
        let locks = InodeLocks::new();
        let same = (2..).map(InodeNo).find(|&i| stripe_of(i) == stripe_of(InodeNo(1))).unwrap();
        assert_eq!(locks.write(&[same, InodeNo(1), same]).len(), 1);
        assert_eq!(locks.write(&[InodeNo(3), InodeNo(2), InodeNo(1)]).len(), 3);
    }
}

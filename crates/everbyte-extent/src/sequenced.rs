//! A lock with a sequence, for readers without the lock.
//!
//! The sequence is odd while a thread has the lock for writing, and moves twice in that time: by a locked
//! instruction before the thread changes anything, and before the lock is released. A reader without the lock
//! checks it before and after (Lameter, "Effective Synchronization on Linux/NUMA Systems", 2005; Boehm, "Can
//! Seqlocks Get Along With Programming Language Memory Models?", MSPC 2012).

use std::sync::atomic::{AtomicU64, Ordering, fence};

use everbyte_pool::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A lock, and the number of changes under it.
#[derive(Default)]
#[repr(align(16))]
pub struct SequencedLock {
    lock: RwLock<()>,
    sequence: AtomicU64,
}

/// A lock held for writing.
#[must_use]
pub struct WriteGuard<'a> {
    sequence: &'a AtomicU64,
    /// Released after the sequence has moved.
    _lock: RwLockWriteGuard<'a, ()>,
}

impl SequencedLock {
    /// Takes it for reading.
    pub fn read(&self) -> RwLockReadGuard<'_, ()> {
        self.lock.read()
    }

    /// Takes it for writing; all earlier notes are then invalid.
    pub fn write(&self) -> WriteGuard<'_> {
        let lock = self.lock.write();
        // A locked instruction: no later store, and no later stream, passes it.
        self.sequence.fetch_add(1, Ordering::AcqRel);
        // The odd number is visible before any store of the writer.
        fence(Ordering::Release);
        WriteGuard { sequence: &self.sequence, _lock: lock }
    }

    /// The sequence, unless a thread has the lock for writing. Later loads happen after this one.
    #[inline]
    #[must_use]
    pub fn note(&self) -> Option<u64> {
        // Acquire: the reader's loads come later.
        let sequence = self.sequence.load(Ordering::Acquire);
        sequence.is_multiple_of(2).then_some(sequence)
    }

    /// Returns true if no thread had the lock for writing since its sequence was `noted`: the calling
    /// thread's loads of the guarded data since then returned the contents of one moment.
    #[inline]
    #[must_use]
    pub fn is_as_noted(&self, noted: u64) -> bool {
        // The loads before are not to be made after the look.
        fence(Ordering::Acquire);
        self.sequence.load(Ordering::Relaxed) == noted
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        // No other thread stores to it. All streams have been fenced, so this is seen after them.
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence + 1, Ordering::Release);
    }
}

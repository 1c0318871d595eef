//! A lock without allocations, transferable to a forked child.
//!
//! Unlike the standard library's lock, a child can release it by hand: the forking thread holds it
//! across the fork, so no other thread's hold is copied into the child forever.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::thread::{Timespec, nanosleep};

/// Tries before a waiter sleeps instead of yielding.
const YIELDS: u32 = 64;
const REST: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };

pub(crate) struct Lock<T> {
    is_held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by the holder alone, so it only moves between threads.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { is_held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock. The holder must not call this again.
    pub(crate) fn lock(&self) -> LockGuard<'_, T> {
        let mut tries = 0;
        while self.is_held.swap(true, Ordering::Acquire) {
            if tries < YIELDS {
                std::thread::yield_now();
            } else {
                // By the system call, since the C library's function is a cancellation point.
                let _woken = nanosleep(&REST);
            }
            tries += 1;
        }
        LockGuard(self)
    }

    /// Releases a lock with a forgotten [`LockGuard`] of this thread, or of the thread that forked
    /// this process.
    pub(crate) fn release(&self) {
        self.is_held.store(false, Ordering::Release);
    }
}

/// The right to the value of a [`Lock`].
pub(crate) struct LockGuard<'l, T>(&'l Lock<T>);

impl<T> Deref for LockGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: one `LockGuard` exists at a time, and it lends its value only as itself is borrowed.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for LockGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for LockGuard<'_, T> {
    fn drop(&mut self) {
        self.0.release();
    }
}

//! The locks of the write path, and the numbers of threads.
//!
//! Without the feature `schedule` these are `parking_lot`'s, and nothing remains of this file but names. With
//! it, a test can give a thread an `Observer`. The observer is called before each lock is taken, and instead
//! of each wait; a thread without an observer locks as always. Knows no scheduler.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

#[cfg(not(feature = "schedule"))]
pub use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[cfg(feature = "schedule")]
pub use observed::{
    Mutex, MutexGuard, Observer, RwLock, RwLockReadGuard, RwLockWriteGuard, observe,
};

/// A small number of this thread's own, for spreading threads over shards.
#[inline]
#[must_use]
pub fn thread_index() -> usize {
    #[cfg(feature = "schedule")]
    if let Some(index) = observed::thread_index() {
        return index;
    }
    let index = INDEX.get();
    if index == UNKNOWN { number_thread() } else { index }
}

/// The number of a thread without a number yet.
const UNKNOWN: usize = usize::MAX;

thread_local! {
    static INDEX: Cell<usize> = const { Cell::new(UNKNOWN) };
}

/// Gives the calling thread its number.
#[cold]
fn number_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let index = NEXT.fetch_add(1, Ordering::Relaxed);
    INDEX.set(index);
    index
}

#[cfg(feature = "schedule")]
mod observed {
    use std::cell::Cell;
    use std::ops::{Deref, DerefMut};

    /// Decides when a thread continues. Locks are named by their addresses.
    pub trait Observer: Sync {
        /// The thread is about to take a lock.
        fn before_lock(&self);
        /// The lock is held by another thread: returns when it may be worth another try. False if
        /// the thread is to wait as it would without an observer.
        fn wait(&self, lock: usize) -> bool;
        /// The thread has given a lock back.
        fn released(&self, lock: usize);
        /// The thread's number, the same in every run.
        fn thread_index(&self) -> usize;
    }

    thread_local! {
        static OBSERVER: Cell<Option<&'static dyn Observer>> = const { Cell::new(None) };
    }

    /// Gives the calling thread an observer, or none.
    pub fn observe(observer: Option<&'static dyn Observer>) {
        OBSERVER.set(observer);
    }

    pub(super) fn thread_index() -> Option<usize> {
        OBSERVER.get().map(Observer::thread_index)
    }

    /// Takes a lock: by `attempt` as long as the observer has us wait, else by `block`.
    fn take<T>(lock: usize, attempt: impl Fn() -> Option<T>, block: impl Fn() -> T) -> T {
        let Some(observer) = OBSERVER.get() else { return block() };
        observer.before_lock();
        loop {
            if let Some(taken) = attempt() {
                return taken;
            }
            if !observer.wait(lock) {
                return block();
            }
        }
    }

    /// Reports the release of a lock when dropped, so it must be dropped after the guard.
    struct Release(usize);

    impl Drop for Release {
        fn drop(&mut self) {
            if let Some(observer) = OBSERVER.get() {
                observer.released(self.0);
            }
        }
    }

    fn address<T>(lock: &T) -> usize {
        std::ptr::from_ref(lock).addr()
    }

    macro_rules! guard {
        ($(#[$doc:meta])* $name:ident) => {
            $(#[$doc])*
            #[must_use]
            pub struct $name<'a, T> {
                guard: parking_lot::$name<'a, T>,
                _release: Release,
            }

            impl<T> Deref for $name<'_, T> {
                type Target = T;
                fn deref(&self) -> &T {
                    &self.guard
                }
            }
        };
    }

    guard!(
        /// A held [`Mutex`].
        MutexGuard
    );
    guard!(
        /// An [`RwLock`] held for reading.
        RwLockReadGuard
    );
    guard!(
        /// An [`RwLock`] held for writing.
        RwLockWriteGuard
    );

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.guard
        }
    }

    impl<T> DerefMut for RwLockWriteGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.guard
        }
    }

    impl<T> MutexGuard<'_, T> {
        /// Gives the lock back for as long as `run` takes.
        pub fn unlocked<U>(held: &mut Self, run: impl FnOnce() -> U) -> U {
            let lock = held._release.0;
            let mutex = parking_lot::MutexGuard::mutex(&held.guard);
            parking_lot::MutexGuard::unlocked(&mut held.guard, || {
                // The lock is free here, so the observer may let a waiting thread continue.
                drop(Release(lock));
                let done = run();
                // A thread that waits here under an observer must not wait in the lock itself.
                drop(take(lock, || mutex.try_lock(), || mutex.lock()));
                done
            })
        }
    }

    /// A mutex with observable waits.
    #[derive(Default, Debug)]
    pub struct Mutex<T>(parking_lot::Mutex<T>);

    impl<T> Mutex<T> {
        /// A mutex around `value`.
        pub const fn new(value: T) -> Self {
            Self(parking_lot::Mutex::new(value))
        }

        /// Takes the lock.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            let lock = address(self);
            let guard = take(lock, || self.0.try_lock(), || self.0.lock());
            MutexGuard { guard, _release: Release(lock) }
        }

        /// Takes the lock if it is free.
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            // Also before an attempt: its outcome depends on the order of the threads.
            if let Some(observer) = OBSERVER.get() {
                observer.before_lock();
            }
            let guard = self.0.try_lock()?;
            Some(MutexGuard { guard, _release: Release(address(self)) })
        }
    }

    /// A readers-writer lock with observable waits.
    #[derive(Default, Debug)]
    pub struct RwLock<T>(parking_lot::RwLock<T>);

    impl<T> RwLock<T> {
        /// A lock around `value`.
        pub const fn new(value: T) -> Self {
            Self(parking_lot::RwLock::new(value))
        }

        /// Takes the lock shared.
        pub fn read(&self) -> RwLockReadGuard<'_, T> {
            let lock = address(self);
            let guard = take(lock, || self.0.try_read(), || self.0.read());
            RwLockReadGuard { guard, _release: Release(lock) }
        }

        /// Takes the lock alone.
        pub fn write(&self) -> RwLockWriteGuard<'_, T> {
            let lock = address(self);
            let guard = take(lock, || self.0.try_write(), || self.0.write());
            RwLockWriteGuard { guard, _release: Release(lock) }
        }
    }
}

//! Shard numbers of threads, for what is kept per thread.
//!
//! Invariants: a thread owns its shard for as long as it lives, so nobody else changes what is there.
//! Threads beyond the number of shards share the last one. So does a handler of a signal on a thread
//! that owns none yet, since to give a shard back at the thread's end takes an allocation.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, Ordering};

/// Shards of everything that is kept per thread: one for each bit of `OWNED`.
pub(crate) const SHARDS: usize = 64;
/// The shard of all threads that own none.
pub(crate) const SHARED: usize = SHARDS - 1;

/// Shards that a thread owns, and the shared one.
static OWNED: AtomicU64 = AtomicU64::new(1 << SHARED);

/// A thread's claim on a shard.
struct Claim(usize);

#[cfg(test)]
thread_local! {
    /// Makes this thread own no shard, as if it came after too many others.
    pub(crate) static OWNS_NONE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

impl Claim {
    fn new() -> Self {
        #[cfg(test)]
        if OWNS_NONE.get() {
            return Self(SHARED);
        }
        let mut owned = OWNED.load(Relaxed);
        while owned != u64::MAX {
            let free = owned.trailing_ones();
            // Acquire: what the last owner added came before it gave the shard back.
            match OWNED.compare_exchange_weak(owned, owned | 1 << free, Ordering::Acquire, Relaxed)
            {
                Ok(_) => return Self(free as usize),
                Err(now) => owned = now,
            }
        }
        Self(SHARED)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        SHARD.set(SHARED);
        if self.0 != SHARED {
            OWNED.fetch_and(!(1 << self.0), Ordering::Release);
        }
    }
}

/// The shard of a thread that has not asked yet.
const UNKNOWN: usize = usize::MAX;

thread_local! {
    /// Ends with the thread; the system allocates when it is first used.
    static CLAIM: Claim = Claim::new();
    /// The shard that was claimed. Of this and the next there is nothing to drop, so no first use
    /// allocates.
    static SHARD: Cell<usize> = const { Cell::new(UNKNOWN) };
    static IS_IN_HANDLER: Cell<bool> = const { Cell::new(false) };
}

/// This thread's shard, `0..SHARDS`; the same for as long as the thread's locals live, but that a
/// handler may come before it is claimed. A handler that flushes lines fences them itself.
#[inline]
pub(crate) fn shard() -> usize {
    let mine = SHARD.get();
    if mine == UNKNOWN { claim() } else { mine }
}

#[cold]
fn claim() -> usize {
    if IS_IN_HANDLER.get() {
        return SHARED;
    }
    let mine = CLAIM.try_with(|claim| claim.0).unwrap_or(SHARED);
    SHARD.set(mine);
    mine
}

/// Does `work` as a handler of a signal does it: without claiming a shard, which allocates.
pub(crate) fn in_handler<T>(work: impl FnOnce() -> T) -> T {
    let before = IS_IN_HANDLER.replace(true);
    let done = work();
    IS_IN_HANDLER.set(before);
    done
}

/// Does what this thread's first access to a medium does once: the system may allocate for it. For threads
/// that must not allocate later.
pub fn prepare_thread() {
    shard();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handler_claims_no_shard() {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let inside = in_handler(|| (shard(), in_handler(shard), shard()));
                let is_unclaimed = SHARD.get() == UNKNOWN;
                (inside, is_unclaimed, shard() == SHARD.get())
            });
            assert_eq!(thread.join().unwrap(), ((SHARED, SHARED, SHARED), true, true));
        });
        let mine = shard();
        assert_eq!(in_handler(shard), mine, "what is claimed already is used");
    }
}

//! Shard numbers of threads, for per-thread data.
//!
//! Invariants: a thread owns its shard for its whole life, and no other thread changes the data there.
//! Threads beyond the number of shards share the last one. A signal handler on a thread without a shard uses
//! the last one too, since the release of a shard at the thread's end takes an allocation.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, Ordering};

/// Shards of all per-thread data: one for each bit of `OWNED`.
pub(crate) const SHARDS: usize = 64;
/// The shard of all threads without their own.
pub(crate) const SHARED: usize = SHARDS - 1;

/// Shards owned by a thread, and the shared one.
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
            // Acquire: the last owner's additions came before its release of the shard.
            match OWNED.compare_exchange_weak(owned, owned | 1 << free, Ordering::Acquire, Relaxed)
            {
                Ok(_) => return Self(free as usize),
                Err(now) => owned = now,
            }
        }
        Self(SHARED)
    }
}

/// Returns true if a new thread can own a shard now.
#[cfg(test)]
pub(crate) fn has_free_shard() -> bool {
    OWNED.load(Relaxed) != u64::MAX
}

impl Drop for Claim {
    fn drop(&mut self) {
        SHARD.set(SHARED);
        if self.0 != SHARED {
            OWNED.fetch_and(!(1 << self.0), Ordering::Release);
        }
    }
}

/// The shard of a thread before its first query.
const UNKNOWN: usize = usize::MAX;

thread_local! {
    /// Ends with the thread; the system allocates when it is first used.
    static CLAIM: Claim = Claim::new();
    /// The claimed shard. This and the next need no drop, so no first use allocates.
    static SHARD: Cell<usize> = const { Cell::new(UNKNOWN) };
    static IS_IN_HANDLER: Cell<bool> = const { Cell::new(false) };
}

/// This thread's shard, `0..SHARDS`; the same for as long as the thread's locals live, except in a handler
/// before the claim. A handler that flushes lines fences them itself.
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

/// Does `work` as a signal handler does it: without the claim of a shard, since a claim allocates.
pub(crate) fn in_handler<T>(work: impl FnOnce() -> T) -> T {
    let before = IS_IN_HANDLER.replace(true);
    let done = work();
    IS_IN_HANDLER.set(before);
    done
}

/// Does the work of this thread's first access to a medium: the system may allocate for it. For threads that
/// must not allocate later.
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

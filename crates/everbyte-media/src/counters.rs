//! Exact counters that are cheap enough to stay on, and the shard numbers of threads.
//!
//! Invariants: every event is added once, to one shard, atomically; a sum taken while no other
//! thread works is exact. Each shard has a pair of cache lines to itself (the adjacent-line
//! prefetcher pairs lines), so threads on different shards do not slow each other down.
//! A shard may be shared by several threads, hence atomic additions and not plain stores.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::medium::Counters;
use crate::units::{LINE_U64, PoolOffset};

/// Shards of everything that is kept per thread, a power of two.
pub(crate) const SHARDS: usize = 32;

static NEXT_SHARD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// This thread's shard, `0..SHARDS`; the same for its whole life.
pub(crate) fn shard() -> usize {
    SHARD.with(|shard| {
        if shard.get() == usize::MAX {
            shard.set(NEXT_SHARD.fetch_add(1, Relaxed) % SHARDS);
        }
        shard.get()
    })
}

/// Lines that bytes `at .. at + len` touch; none if `len` is 0.
pub(crate) fn lines_touched(at: PoolOffset, len: u64) -> u64 {
    if len == 0 { 0 } else { (at.0 % LINE_U64 + len - 1) / LINE_U64 + 1 }
}

#[derive(Default)]
#[repr(align(128))]
struct Shard {
    bytes_stored: AtomicU64,
    lines_stored: AtomicU64,
    lines_flushed: AtomicU64,
    fences: AtomicU64,
    modelled_ns: AtomicU64,
}

/// The sums behind [`Counters`].
#[derive(Default)]
pub(crate) struct ShardedCounters {
    shards: [Shard; SHARDS],
}

impl ShardedCounters {
    pub(crate) fn stored(&self, bytes: u64, lines: u64) {
        let mine = self.mine();
        mine.bytes_stored.fetch_add(bytes, Relaxed);
        mine.lines_stored.fetch_add(lines, Relaxed);
    }

    pub(crate) fn flushed(&self, lines: u64) {
        self.mine().lines_flushed.fetch_add(lines, Relaxed);
    }

    pub(crate) fn fenced(&self) {
        self.mine().fences.fetch_add(1, Relaxed);
    }

    pub(crate) fn modelled(&self, ns: u64) {
        self.mine().modelled_ns.fetch_add(ns, Relaxed);
    }

    pub(crate) fn sum(&self) -> Counters {
        self.shards.iter().fold(Counters::default(), |sum, shard| Counters {
            bytes_stored: sum.bytes_stored + shard.bytes_stored.load(Relaxed),
            lines_stored: sum.lines_stored + shard.lines_stored.load(Relaxed),
            lines_flushed: sum.lines_flushed + shard.lines_flushed.load(Relaxed),
            fences: sum.fences + shard.fences.load(Relaxed),
            modelled_ns: sum.modelled_ns + shard.modelled_ns.load(Relaxed),
        })
    }

    fn mine(&self) -> &Shard {
        &self.shards[shard()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_touched_counts_partial_lines() {
        for (at, len, lines) in
            [(0, 0, 0), (63, 0, 0), (0, 1, 1), (0, 64, 1), (63, 2, 2), (1, 64, 2), (64, 4096, 64)]
        {
            assert_eq!(lines_touched(PoolOffset(at), len), lines, "{at}+{len}");
        }
    }

    #[test]
    fn sums_are_exact_across_more_threads_than_shards() {
        let counters = ShardedCounters::default();
        std::thread::scope(|scope| {
            for _ in 0..SHARDS + 5 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        counters.stored(3, 2);
                        counters.flushed(5);
                        counters.fenced();
                        counters.modelled(7);
                    }
                });
            }
        });
        let events = 1000 * (SHARDS as u64 + 5);
        let expected = Counters {
            bytes_stored: 3 * events,
            lines_stored: 2 * events,
            lines_flushed: 5 * events,
            fences: events,
            modelled_ns: 7 * events,
        };
        assert_eq!(counters.sum(), expected);
    }
}

//! Exact counters, cheap enough for permanent use.
//!
//! Invariants: every event is added once, to one shard. A sum is exact if no other thread works. The owner of
//! a shard adds with plain loads and stores: a locked addition would wait for every store before it, streamed
//! ones included. Each shard has its own pair of cache lines (the adjacent-line prefetcher pairs lines).

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::medium::Counters;
use crate::shards::{SHARDS, SHARED, shard};
use crate::units::{LINE_U64, PoolOffset};

/// Lines touched by bytes `at .. at + len`; none if `len` is 0.
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
pub(crate) struct ShardedCounters {
    shards: [Shard; SHARDS],
}

impl Default for ShardedCounters {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Shard::default()) }
    }
}

impl ShardedCounters {
    #[inline]
    pub(crate) fn stored(&self, bytes: u64, lines: u64) {
        let mine = shard();
        add(mine, &self.shards[mine].bytes_stored, bytes);
        add(mine, &self.shards[mine].lines_stored, lines);
    }

    pub(crate) fn flushed(&self, lines: u64) {
        let mine = shard();
        add(mine, &self.shards[mine].lines_flushed, lines);
    }

    #[inline]
    pub(crate) fn fenced(&self) {
        let mine = shard();
        add(mine, &self.shards[mine].fences, 1);
    }

    pub(crate) fn modelled(&self, ns: u64) {
        let mine = shard();
        add(mine, &self.shards[mine].modelled_ns, ns);
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
}

/// Adds to a figure of the calling thread's shard, number `mine`.
fn add(mine: usize, figure: &AtomicU64, more: u64) {
    if mine == SHARED {
        figure.fetch_add(more, Relaxed);
    } else {
        figure.store(figure.load(Relaxed) + more, Relaxed);
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
    fn counters_are_exact_with_more_threads_than_shards() {
        let counters = ShardedCounters::default();
        let together = std::sync::Barrier::new(SHARDS + 5);
        std::thread::scope(|scope| {
            for _ in 0..SHARDS + 5 {
                scope.spawn(|| {
                    shard();
                    together.wait();
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

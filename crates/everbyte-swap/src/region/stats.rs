//! Counters of a region.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of a region since its mapping, and its present contents. Each sum is exact. A snapshot
        /// reads the sums one after the other while other threads continue to count.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[non_exhaustive]
        pub struct Statistics {
            $($(#[$doc])* pub $name: u64,)*
            /// Units in DRAM now, of 4 KiB each.
            pub units_resident: u64,
            /// Units with contents now, in DRAM or in slots. 0 in direct mode.
            pub units_used: u64,
            /// Limit on units in DRAM.
            pub units_limit: u64,
            /// Pins held now, one for each unit and call.
            pub units_pinned: u64,
            /// Units mapped straight from the store now, in direct mode.
            pub units_direct: u64,
            /// Slots of the space free now.
            pub slots_free: u64,
        }

        /// The sums behind [`Statistics`].
        #[derive(Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            pub(crate) fn read(&self) -> Statistics {
                Statistics { $($name: self.$name.load(Relaxed),)* ..Statistics::default() }
            }
        }
    };
}

counters! {
    /// Faults on loads of units without a page.
    faults_load,
    /// Faults on stores to units without a page.
    faults_store,
    /// Faults on stores to write-protected pages.
    faults_protected,
    /// Faults during a move of the unit by another thread, or with a wait for space.
    faults_waited,
    /// Nanoseconds in faults, waits included.
    fault_ns,
    /// Units filled with zeroes.
    units_zeroed,
    /// Units filled from slots, including units read ahead.
    units_in,
    /// Units filled before a request for them.
    units_read_ahead,
    /// Units made writable for a stream of stores before a store to them.
    units_unprotected_ahead,
    /// Units copied to slots.
    units_out,
    /// Evicted units: their pages were removed.
    units_evicted,
    /// Evicted units with a still valid slot, and therefore without a copy.
    units_evicted_clean,
    /// Evicted units with only zeroes.
    units_evicted_zero,
    /// Units stored to during their copy to a slot.
    units_redirtied,
    /// Units filled again within a turn or two of the evictor's hand.
    ghost_hits,
    /// Batches evicted by a faulting thread.
    direct_evictions,
    /// Units filled above the limit because no unit could be evicted.
    units_over_limit,
    /// Chunks made inaccessible for a moment to detect their use.
    chunks_watched,
    /// Inaccessible chunks touched during that time.
    chunks_touched,
    /// Moves of chunks skipped because the process had too many mappings.
    moves_refused,
    /// Moves of chunks failed by the system or the store. The chunks kept their place.
    moves_failed,
}

/// Counts one.
#[inline]
pub(crate) fn count(counter: &AtomicU64) {
    add(counter, 1);
}

/// Counts `n`.
#[inline]
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}

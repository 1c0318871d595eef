//! Counters of a region.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of a region since it was mapped, and what it holds now. Each sum is exact; they are
        /// read one after the other while others count on.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[non_exhaustive]
        pub struct Statistics {
            $($(#[$doc])* pub $name: u64,)*
            /// Units in DRAM now, of 4 KiB each.
            pub units_resident: u64,
            /// Units that may be in DRAM.
            pub units_limit: u64,
            /// Pins that are held now, one for each unit and call.
            pub units_pinned: u64,
            /// Units of a region in direct mode that are mapped straight from the store now.
            pub units_direct: u64,
            /// Slots of the space that are free now.
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
    /// Faults on loads of units that had no page.
    faults_load,
    /// Faults on stores to units that had no page.
    faults_store,
    /// Faults on stores to write-protected pages.
    faults_protected,
    /// Faults that found another thread moving the unit, or had to wait for room.
    faults_waited,
    /// Nanoseconds in faults, waits included.
    fault_ns,
    /// Units filled with zeroes.
    units_zeroed,
    /// Units filled from slots, those read ahead included.
    units_in,
    /// Units filled before they were asked for.
    units_read_ahead,
    /// Units that became writable, for a stream of stores, before they were stored to.
    units_unprotected_ahead,
    /// Units copied to slots.
    units_out,
    /// Units whose pages were taken away.
    units_evicted,
    /// Those of them whose slots were still valid, so that nothing was copied.
    units_evicted_clean,
    /// Those of them that held nothing but zeroes.
    units_evicted_zero,
    /// Units that were stored to while they were copied out.
    units_redirtied,
    /// Units that came back within a turn or two of the evictor's hand.
    ghost_hits,
    /// Batches that a faulting thread evicted itself.
    direct_evictions,
    /// Units that went in above the limit, because nothing could be evicted.
    units_over_limit,
    /// Parts of a region in direct mode that were made inaccessible for a moment, to see whether they are used.
    chunks_watched,
    /// Those of them that were touched meanwhile.
    chunks_touched,
    /// Moves of chunks that were not made because the process had too many mappings.
    moves_refused,
    /// Moves of chunks that the system or the store made impossible; the chunks stayed where they were.
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

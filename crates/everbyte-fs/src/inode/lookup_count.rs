//! How often a thread has looked an inode table up: what benchmarks need to know which share of an
//! operation that is.
//!
//! Nothing is counted without the feature `count-lookups`.

#[cfg(feature = "count-lookups")]
use std::cell::Cell;

#[cfg(feature = "count-lookups")]
thread_local! {
    static LOOKUPS: Cell<u64> = const { Cell::new(0) };
}

/// Counts a look-up of this thread.
pub(crate) fn count() {
    #[cfg(feature = "count-lookups")]
    LOOKUPS.set(LOOKUPS.get() + 1);
}

/// Look-ups of inode tables that this thread has made, of any file system.
#[cfg(feature = "count-lookups")]
#[must_use]
pub fn lookups_of_this_thread() -> u64 {
    LOOKUPS.get()
}

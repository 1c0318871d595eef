//! Counts inode-table look-ups of a thread, for benchmarks of their share of an operation.
//!
//! Counts only with the feature `count-lookups`.

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

/// Inode-table look-ups of this thread, over all file systems.
#[cfg(feature = "count-lookups")]
#[must_use]
pub fn lookups_of_this_thread() -> u64 {
    LOOKUPS.get()
}

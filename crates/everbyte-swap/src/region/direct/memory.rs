//! The view that direct mode has of memory: what it can do to the parts of a region and the runs of a store.

use std::ops::Range;

use crate::region::direct::chunk::{PartNo, RunNo};

/// Accesses that the mapping of a part allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Allowed {
    /// None: each faults.
    Nothing,
    /// Loads; stores fault.
    Loads,
    Everything,
}

/// A step that was not made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PartError {
    /// The system has no memory, or no room for a mapping; later it may.
    Refused,
    /// The run cannot be read.
    Unreadable,
    /// The store has lost what was copied to it.
    StoreFailed,
}

/// Parts and runs, one step at a time. The caller owns the parts and runs that a step names.
///
/// # Contract
/// What replaces a mapping does so at once: whoever touches the part meanwhile meets the old mapping or the new
/// one. On failure the old one is there. When a step that takes an access away returns, none such is under way
/// any more.
pub(crate) trait PartMemory: Send + Sync {
    /// Makes an empty part accessible memory of zeroes.
    fn open(&self, at: PartNo) -> Result<(), PartError>;

    /// Makes a part in DRAM (`run` is `None`) or one that is a run empty: inaccessible, without either.
    fn close(&self, at: PartNo, run: Option<RunNo>) -> Result<(), PartError>;

    /// Changes what the mapping of a part that is not empty allows.
    fn allow(&self, at: PartNo, allowed: Allowed) -> Result<(), PartError>;

    /// Makes a run hold zeroes.
    fn zero_run(&self, run: RunNo) -> Result<(), PartError>;

    /// Copies a part, which may be loaded, to a run, and makes sure that it has arrived.
    fn copy_out(&self, at: PartNo, run: RunNo) -> Result<(), PartError>;

    /// Replaces the mapping of a part by that of a run, accessible.
    fn map_run(&self, at: PartNo, run: RunNo) -> Result<(), PartError>;

    /// Copies a run to new memory, and replaces the mapping of a part by that, accessible.
    fn move_in(&self, at: PartNo, run: RunNo) -> Result<(), PartError>;

    /// Makes units of a part, which is accessible, hold zeroes.
    fn zero(&self, at: PartNo, units: Range<u64>);

    /// Nanoseconds since some moment.
    fn now_ns(&self) -> u64;

    /// Waits a little for another thread, for the `tries`th time.
    fn pause(&self, tries: u32);

    /// Marks a place at which another thread may come in between; for tests.
    #[inline]
    fn step(&self) {}
}

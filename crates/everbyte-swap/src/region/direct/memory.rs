//! The view that direct mode has of memory: what it can do to the chunks of a region and the runs of a store.

use std::ops::Range;

use crate::region::direct::chunk::{ChunkNo, RunNo};

/// Accesses that the mapping of a chunk allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Permission {
    /// None: each faults.
    Nothing,
    /// Loads; stores fault.
    Loads,
    Everything,
}

/// A step that was not made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ChunkError {
    /// The system has no memory, or no room for a mapping; later it may.
    Refused,
    /// The run cannot be read.
    Unreadable,
    /// The store has lost what was copied to it.
    StoreFailed,
}

/// Chunks and runs, one step at a time. The caller owns the chunks and runs that a step names.
///
/// # Contract
/// What replaces a mapping does so at once: whoever touches the chunk meanwhile meets the old mapping or the new
/// one. On failure the old one is there. When a step that takes an access away returns, none such is under way
/// any more.
pub(crate) trait ChunkMemory: Send + Sync {
    /// Makes an empty chunk accessible memory of zeroes.
    fn open(&self, at: ChunkNo) -> Result<(), ChunkError>;

    /// Makes a chunk in DRAM (`run` is `None`) or one that is a run empty: inaccessible, without either.
    fn close(&self, at: ChunkNo, run: Option<RunNo>) -> Result<(), ChunkError>;

    /// Changes what the mapping of a chunk that is not empty allows.
    fn allow(&self, at: ChunkNo, allowed: Permission) -> Result<(), ChunkError>;

    /// Makes a run hold zeroes.
    fn zero_run(&self, run: RunNo) -> Result<(), ChunkError>;

    /// Copies a chunk, which may be loaded, to a run, and makes sure that it has arrived.
    fn copy_out(&self, at: ChunkNo, run: RunNo) -> Result<(), ChunkError>;

    /// Replaces the mapping of a chunk by that of a run, accessible.
    fn map_run(&self, at: ChunkNo, run: RunNo) -> Result<(), ChunkError>;

    /// Copies a run to new memory, and replaces the mapping of a chunk by that, accessible.
    fn move_in(&self, at: ChunkNo, run: RunNo) -> Result<(), ChunkError>;

    /// Makes units of a chunk, which is accessible, hold zeroes.
    fn zero(&self, at: ChunkNo, units: Range<u64>);

    /// Nanoseconds since some moment.
    fn now_ns(&self) -> u64;

    /// Waits a little for another thread, for the `tries`th time.
    fn pause(&self, tries: u32);

    /// Marks a place at which another thread may come in between; for tests.
    #[inline]
    fn step(&self) {}
}

//! The memory interface of direct mode: operations on the chunks of a region and the runs of a
//! store.

use std::ops::Range;

use crate::region::direct::chunk::{ChunkNo, RunNo};

/// Accesses allowed by the mapping of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Permission {
    /// None: each faults.
    Nothing,
    /// Loads; stores fault.
    Loads,
    Everything,
}

/// A failed step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ChunkError {
    /// The system has no memory, or no room for a mapping; later it may.
    Refused,
    /// The run cannot be read.
    Unreadable,
    /// The store lost copied bytes.
    StoreFailed,
}

/// Chunks and runs, changed one step at a time. The caller owns the chunks and runs of a step.
///
/// # Contract
/// A step replaces a mapping atomically: a concurrent access uses the old mapping or the new one.
/// On failure the old mapping stays. After a step has removed an access right, no access by that
/// right is in progress.
pub(crate) trait ChunkMemory: Send + Sync {
    /// Makes an empty chunk accessible memory of zeroes.
    fn open(&self, at: ChunkNo) -> Result<(), ChunkError>;

    /// Empties a chunk in DRAM (`run` is `None`) or a direct one: afterwards it is inaccessible,
    /// without DRAM or run.
    fn close(&self, at: ChunkNo, run: Option<RunNo>) -> Result<(), ChunkError>;

    /// Changes the access rights of a chunk's mapping. The chunk is not empty.
    fn allow(&self, at: ChunkNo, allowed: Permission) -> Result<(), ChunkError>;

    /// Makes a run hold zeroes.
    fn zero_run(&self, run: RunNo) -> Result<(), ChunkError>;

    /// Copies a readable chunk to a run and checks that the store has the bytes.
    fn copy_out(&self, at: ChunkNo, run: RunNo) -> Result<(), ChunkError>;

    /// Replaces the mapping of a chunk by an accessible one of a run.
    fn map_run(&self, at: ChunkNo, run: RunNo) -> Result<(), ChunkError>;

    /// Copies a run to new memory and replaces the mapping of a chunk by this memory, accessible.
    fn move_in(&self, at: ChunkNo, run: RunNo) -> Result<(), ChunkError>;

    /// Sets units of an accessible chunk to zero.
    fn zero(&self, at: ChunkNo, units: Range<u64>);

    /// Nanoseconds since some moment.
    fn now_ns(&self) -> u64;

    /// Waits a little for another thread, for the `tries`th time.
    fn pause(&self, tries: u32);

    /// Lets another thread run at this point; for tests.
    #[inline]
    fn step(&self) {}
}

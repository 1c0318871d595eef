//! The memory interface of the pager: operations on the pages of a region and the slots of a store.

use crate::region::units::{UnitNo, UnitRun};
use crate::slots::SlotNo;

/// A failed step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemoryError {
    /// There is a page already.
    AlreadyThere,
    /// The slot cannot be read.
    Unreadable,
    /// The system has no page to give, or is changing the mappings; later it may.
    Again,
    /// The descriptor for moving pages is closed, or its number belongs to another file.
    DescriptorLost,
    /// The store lost copied bytes.
    StoreFailed,
    /// The system does not take pages away, as if the program had locked them.
    Locked,
}

/// Pages and slots, changed one step at a time. The caller owns the units of a step.
pub(crate) trait Memory: Send + Sync {
    /// Gives `units` units a page each, filled from slots `slot` and following, write-protected if
    /// `protect`. Returns how many got one, at least 1.
    fn copy_in(
        &self,
        at: UnitNo,
        slot: SlotNo,
        units: u64,
        protect: bool,
    ) -> Result<u64, MemoryError>;

    /// Gives `units` units a writable page of zeroes each. Returns how many got one, at least 1.
    fn zero_in(&self, at: UnitNo, units: u64, is_store: bool) -> Result<u64, MemoryError>;

    /// Write-protects pages.
    fn protect(&self, run: UnitRun) -> Result<(), MemoryError>;

    /// Makes pages writable.
    fn unprotect(&self, run: UnitRun) -> Result<(), MemoryError>;

    /// Removes the pages of all runs. On failure each page may be present or missing.
    fn zap(&self, runs: &[UnitRun]) -> Result<(), MemoryError>;

    /// True if a unit's page holds only zeroes.
    fn is_zero(&self, at: UnitNo) -> bool;

    /// Copies a unit's page to a slot.
    fn copy_out(&self, at: UnitNo, slot: SlotNo);

    /// Checks that the store has all bytes copied out by this thread.
    fn check_copied(&self) -> Result<(), MemoryError>;

    /// Waits a little for another thread, for the `tries`th time.
    fn pause(&self, tries: u32);

    /// Lets another thread run at this point; for tests.
    #[inline]
    fn step(&self) {}
}

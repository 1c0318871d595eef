//! The pager's view of memory: what it can do to the pages of a region and the slots of a store.

use crate::region::units::{UnitNo, UnitRun};
use crate::slots::SlotNo;

/// A step that was not made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemoryError {
    /// There is a page already.
    AlreadyThere,
    /// The slot cannot be read.
    Unreadable,
    /// The system has no page to give, or is changing the mappings; later it may.
    Again,
    /// The descriptor by which pages are moved is closed, or is another file by now.
    DescriptorLost,
    /// The store has lost what was copied to it.
    StoreFailed,
    /// The system does not take pages away, as if the program had locked them.
    Locked,
}

/// UffdMemory and slots, one step at a time. The caller owns the units that a step names.
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

    /// Takes the pages of all runs away. If it fails, each of them may be there or gone.
    fn zap(&self, runs: &[UnitRun]) -> Result<(), MemoryError>;

    /// True if a unit's page holds nothing but zeroes.
    fn is_zero(&self, at: UnitNo) -> bool;

    /// Copies a unit's page to a slot.
    fn copy_out(&self, at: UnitNo, slot: SlotNo);

    /// Makes sure that everything that this thread copied out has arrived.
    fn check_copied(&self) -> Result<(), MemoryError>;

    /// Waits a little for another thread, for the `tries`th time.
    fn pause(&self, tries: u32);

    /// Marks a place at which another thread may come in between; for tests.
    #[inline]
    fn step(&self) {}
}

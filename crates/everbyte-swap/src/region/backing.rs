//! The memory behind a region: pages moved by faults, or chunks mapped straight from the store.

use crate::error::RegionError;
use crate::region::stats::Statistics;
use crate::region::units::UnitRun;

/// The memory of a region. Runs of units lie in the region.
pub(crate) trait Backing: Send + Sync {
    /// The first byte. The address is valid as long as this memory.
    fn base(&self) -> *mut u8;

    /// False in a forked child: it lacks this memory, and a call would move its parent's memory by stale state.
    fn is_here(&self) -> bool;

    /// Maximum number of slots for a region of `units` units under a limit.
    fn slots_needed(&self, units: u64, limit: u64) -> u64;

    /// As [`Region::prefetch`](crate::Region::prefetch), in units.
    fn prefetch(&self, run: UnitRun) -> Result<u64, RegionError>;

    /// As [`Region::pin`](crate::Region::pin).
    fn pin(&self, run: UnitRun) -> Result<(), RegionError>;

    /// As [`Region::unpin`](crate::Region::unpin).
    fn unpin(&self, run: UnitRun) -> Result<(), RegionError>;

    /// As [`Region::discard_shared`](crate::Region::discard_shared): no caller relies on the units' contents.
    fn discard(&self, run: UnitRun) -> Result<(), RegionError>;

    /// As [`Region::close_shared`](crate::Region::close_shared).
    fn close(&self, run: UnitRun) -> Result<(), RegionError>;

    /// As [`Region::open`](crate::Region::open).
    fn open(&self, run: UnitRun) -> Result<(), RegionError>;

    /// Changes the limit on units in DRAM.
    fn set_limit(&self, units: u64) -> Result<(), RegionError>;

    /// As [`Region::fork_begins`](crate::Region::fork_begins).
    fn fork_begins(&self, run: UnitRun) -> Result<(), RegionError>;

    /// As [`Region::fork_ended`](crate::Region::fork_ended).
    fn fork_ended(&self) -> Result<(), RegionError>;

    /// Units only in slots.
    fn units_stored(&self, run: UnitRun) -> u64;

    /// Number of units with contents that page with `slots` slots under a limit.
    fn units_paged_by(&self, slots: u64, limit: u64) -> u64;

    /// Units with contents; 0 in direct mode.
    fn units_used(&self) -> u64;

    /// As [`Region::statistics`](crate::Region::statistics).
    fn statistics(&self) -> Statistics;

    /// As [`Region::check`](crate::Region::check).
    fn check(&self) -> Result<(), RegionError>;
}

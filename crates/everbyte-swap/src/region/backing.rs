//! The memory behind a region: pages that move by faults, or chunks that are mapped straight.

use crate::error::RegionError;
use crate::region::stats::Statistics;
use crate::region::units::UnitRun;

/// The memory of a region. Runs of units lie in the region.
pub(crate) trait Backing: Send + Sync {
    /// The first byte; valid as long as this is.
    fn base(&self) -> *mut u8;

    /// False in a forked child, which has no such memory: a call would move its parent's by what the child knew of it.
    fn is_here(&self) -> bool;

    /// Slots that a region of `units` units can need under a limit.
    fn slots_needed(&self, units: u64, limit: u64) -> u64;

    /// As [`Region::prefetch`](crate::Region::prefetch), in units.
    fn prefetch(&self, run: UnitRun) -> Result<u64, RegionError>;

    /// As [`Region::pin`](crate::Region::pin).
    fn pin(&self, run: UnitRun) -> Result<(), RegionError>;

    /// As [`Region::unpin`](crate::Region::unpin).
    fn unpin(&self, run: UnitRun) -> Result<(), RegionError>;

    /// As [`Region::discard_shared`](crate::Region::discard_shared): nobody relies on what the units hold.
    fn discard(&self, run: UnitRun) -> Result<(), RegionError>;

    /// Changes the limit on units in DRAM.
    fn set_limit(&self, units: u64) -> Result<(), RegionError>;

    /// As [`Region::fork_begins`](crate::Region::fork_begins).
    fn fork_begins(&self, run: UnitRun) -> Result<(), RegionError>;

    /// As [`Region::fork_ended`](crate::Region::fork_ended).
    fn fork_ended(&self) -> Result<(), RegionError>;

    /// Units that are in slots alone.
    fn units_stored(&self, run: UnitRun) -> u64;

    /// As [`Region::statistics`](crate::Region::statistics).
    fn statistics(&self) -> Statistics;

    /// As [`Region::check`](crate::Region::check).
    fn check(&self) -> Result<(), RegionError>;
}

//! Numbers of units: 4 KiB pieces of a region.

/// The number of a unit in its region.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct UnitNo(pub(crate) u64);

/// Adjacent units.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UnitRun {
    pub(crate) first: UnitNo,
    pub(crate) units: u64,
}

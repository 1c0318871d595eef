//! The rollback log: old bytes and old pointers of the open epochs, and the new bytes of their
//! FUA fast-path writes.
//!
//! Owns the lanes of a volume's log: the places of records, and how they are appended and read back. Knows
//! nothing of the meaning of the saved addresses.

mod lane;
mod scan;

pub(crate) use lane::{LaneLog, LogGeometry};
pub(crate) use scan::{Logged, Restore, SavedLines, scan_half};

#[cfg(test)]
mod tests;

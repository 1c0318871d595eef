//! The rollback log: old bytes and old pointers of the open epochs, and the new bytes of their
//! FUA fast-path writes.
//!
//! Owns the lanes of a volume's log: where records lie, how they are appended and how they are
//! read back. Knows nothing of what the saved addresses mean.

mod lane;
mod scan;

pub(crate) use lane::{LaneLog, LogGeometry};
pub(crate) use scan::{Logged, Restore, SavedLines, scan_half};

#[cfg(test)]
mod tests;

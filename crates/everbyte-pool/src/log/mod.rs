//! The rollback log: old bytes and old pointers of the open epochs.
//!
//! Owns the lanes of a volume's log: where records lie, how they are appended and how they are
//! read back. Knows nothing of what the saved addresses mean.

mod lane;
mod scan;

pub(crate) use lane::{LaneLog, LogGeometry};
pub(crate) use scan::{Restore, scan_half};

//! The [`BlockDevice`] trait, its contract, and what is needed to hold devices to it.
//!
//! Knows nothing of pools or protocols.

mod device;
mod socket;

pub use device::{
    BlockDevice, DeviceError, Extent, Fua, Geometry, Hole, SendError, WriteRequest,
};
pub use socket::send_all;

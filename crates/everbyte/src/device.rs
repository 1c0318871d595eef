//! The contract of block devices. Volumes and caches fulfil it.
//!
//! [`conformance`] holds any other device to it; [`MemoryDevice`] is the reference.

pub use everbyte_device::{
    AtomicWriteError, AtomicWrites, BlockDevice, DeviceError, Extent, Fua, Geometry, Hole,
    MemoryDevice, SendError, Transport, WriteRequest, conformance,
};

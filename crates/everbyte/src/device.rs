//! The contract of block devices, which volumes and caches fulfil.
//!
//! [`conformance`] holds any other device to it; [`MemoryDevice`] is the reference.

pub use everbyte_device::{
    AtomicWriteError, AtomicWrites, BlockDevice, DeviceError, Extent, Fua, Geometry, Hole,
    MemoryDevice, SendError, Transport, WriteRequest, conformance,
};

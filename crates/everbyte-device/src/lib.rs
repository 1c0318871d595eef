//! The [`BlockDevice`] trait and its contract, a reference device in DRAM, and the conformance suite.
//! Also has devices for several crates: files and block devices of the system, and decorators. The
//! decorators record or count requests, fail, are slow, or refuse writes.
//!
//! Knows nothing of pools or protocols.
//!
//! # Example
//! A new device implements the trait's methods and passes the suite. This example tests the device in DRAM.
//! ```
//! use std::sync::Arc;
//!
//! use everbyte_device::{BlockDevice, MemoryDevice, conformance};
//!
//! let device = MemoryDevice::new(1 << 20);
//! device.write_at(4096, b"hello")?;
//! device.flush()?; // earlier writes are durable now
//! let mut found = [0; 5];
//! device.read_at(4096, &mut found)?;
//! assert_eq!(&found, b"hello");
//!
//! conformance(&|size_bytes| Arc::new(MemoryDevice::new(size_bytes))); // panics at a broken promise
//! # Ok::<(), everbyte_device::DeviceError>(())
//! ```
#![forbid(unsafe_code)]

mod atomic;
mod conformance;
pub mod connection;
mod decorator;
mod delay;
mod device;
mod direct;
mod direct_access;
mod error;
mod fault;
mod file;
mod identity;
mod memory;
pub mod meter;
mod metered;
mod read_only;
pub mod record;
pub mod request_queue;
mod send;
mod socket;
mod syncs;
mod transport;
pub mod unflushed;

pub use atomic::{AtomicWriteError, AtomicWrites};
pub use conformance::conformance;
pub use decorator::{Decorator, Passthrough};
pub use delay::{DelayDevice, DiskCosts, StepCosts};
pub use device::{BlockDevice, Extent, Fua, Geometry, Hole, WriteRequest, check_range};
pub use direct_access::{DirectAccess, MappedBytes};
pub use error::{DeviceError, SendError};
pub use fault::{FaultDevice, Faults};
pub use file::{FileDevice, FileDeviceError, FileOptions};
pub use identity::{BackingIdentity, FileIdentity, IdentityMatch, stable_path};
pub use memory::MemoryDevice;
pub use metered::MeteredDevice;
pub use read_only::ReadOnlyDevice;
pub use send::send;
pub use socket::send_all;
pub use transport::Transport;

//! Mounts: a file system in front of the kernel, through FUSE.
//!
//! Owns the translation of the kernel's requests and error numbers, and the mount itself. The kernel
//! checks permissions. Knows the file system's operations; knows no pool and no command line.

#![forbid(unsafe_code)]

mod attribute;
#[path = "invalidation.rs"]
mod caches;
mod caller;
mod changes;
mod convert;
mod device;
mod directory;
mod foreign;
#[path = "lookup_count.rs"]
mod known;
#[path = "writeback_errors.rs"]
mod lost;
mod mount;
mod operations;
mod presence;
mod remount;
mod replies;
mod seek;
#[path = "enospc_retry.rs"]
mod space;

pub use caches::KernelCaches;
pub use device::DirMount;
pub use directory::{KernelCaching, MountError, MountOptions, Privileges, source_of};
pub use lost::{Loss, LostStores};
pub use mount::{Mount, Unmounted};
pub use remount::{Remount, remount};

//! Mounts: a file system in front of the kernel, through FUSE.
//!
//! Owns the translation of the kernel's requests and error numbers, and the mount itself. The kernel
//! checks permissions. Knows the file system's operations; knows no pool and no command line.

#![forbid(unsafe_code)]

mod attribute;
mod caller;
mod changes;
mod convert;
mod device;
mod directory;
mod enospc_retry;
mod foreign;
mod invalidation;
mod lookup_count;
mod metered;
mod mount;
mod open_handles;
mod operations;
mod outcome;
mod presence;
mod remount;
mod replies;
mod seek;
mod writeback_errors;

pub use device::DirMount;
pub use directory::{KernelCaching, MountError, MountOptions, Privileges, source_of};
pub use invalidation::KernelCaches;
pub use mount::{Mount, UnmountOutcome};
pub use remount::{Remount, remount};
pub use writeback_errors::{Loss, LostStores};

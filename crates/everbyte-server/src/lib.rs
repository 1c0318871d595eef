//! A pool open in this process: its volumes, their clients, changes of both, and its closing.
//!
//! Owns the handles of volumes of every kind, exports for NBD servers, and the answers to control
//! requests. Owns the backing devices of caches and the recording of requests. Command lines, the
//! route of a command to its pool, and signals belong to the program.
//!
//! A user of one volume never waits for another volume. [`OpenPool`] has the necessary locks: a
//! lock of the table of volumes, held for lookups only, and a quiesce lock of each volume. The
//! quiesce lock separates the volume's clients from its changes.

#![forbid(unsafe_code)]

mod changes;
mod close;
mod close_status;
mod exports;
mod files;
mod fs_mounts;
mod guarded_device;
mod leases;
pub mod metrics;
mod mounts;
mod new_volume;
mod open_pool;
mod quiesce;
pub mod recording;
mod request_error;
mod status;
mod swap_export;
mod volumes;
mod words;

pub use everbyte_fuse::{
    DirMount, KernelCaching, Loss, MountOptions, Privileges, Remount, remount, source_of,
};
pub use open_pool::{OpenPool, Options};

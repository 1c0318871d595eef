//! A pool that this process has open: its volumes, their clients, changes of both, and its closing.
//!
//! Owns the handles of volumes of every kind, exports for NBD servers, the answers to control
//! requests, backing devices of caches, the recording of requests, and the route of a command to the
//! pool or to its server. Knows neither command lines nor signals, which are the program's.
//!
//! No user of one volume waits for another volume. [`OpenPool`] has the locks that this needs: one of
//! the table of volumes, held for lookups only, and a quiesce lock of each volume, which keeps its
//! clients and its changes apart.

#![forbid(unsafe_code)]

mod changes;
mod close;
mod close_status;
mod exports;
mod files;
mod fs_mounts;
mod leased;
mod leases;
mod mounts;
mod new_volume;
mod open_pool;
mod quiesce;
pub mod recording;
mod request_error;
mod resize;
mod session;
mod status;
mod swap_export;
mod volumes;
mod words;

pub use everbyte_fuse::{
    DirMount, KernelCaching, Loss, MountOptions, Privileges, Remount, remount, source_of,
};
pub use exports::listen;
pub use open_pool::{OpenPool, Options};
pub use session::{Access, Busy, Session, SessionError, ask, builder, wait_for};

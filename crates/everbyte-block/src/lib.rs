//! The block volume: the translation layer of the NTL paper over a crash-consistent pool.
//!
//! Owns the device over an extent: the grouping of requests, their durability, and the errors that
//! a client gets. Knows the pool's volumes and the device contract; knows no protocol, no client
//! and no map.

#![forbid(unsafe_code)]

mod atomic;
mod device;
mod error;
mod group;
mod kind;
mod read;
mod resize;
mod volume;
mod write;

pub use everbyte_extent::{Checksum, Delta, ExtentError, MapKind, View, ViewError};
pub use group::{BlockGroup, GroupWriteError};
pub use kind::{BLOCK_NAME, CACHE_NAME, kinds};
pub use volume::{BlockOptions, BlockVolume};

//! The block volume: the translation layer of the NTL paper over a crash-consistent pool.
//!
//! Owns the device over an extent: which requests are made together, when they are durable, and
//! what a client is told. Knows the pool's volumes and the device contract; knows no protocol and
//! no client, and not how an extent is mapped.

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

pub use everbyte_extent::{Checksum, Delta, MapKind};
pub use group::{BlockGroup, GroupWriteError};
pub use kind::{BLOCK_NAME, CACHE_NAME, kinds};
pub use volume::{BlockOptions, BlockVolume};

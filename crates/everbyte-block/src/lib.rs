//! The block volume: the translation layer of the NTL paper over a crash-consistent pool.
//!
//! Owns the device over an extent: the grouping of requests, their durability, and the errors for a client.
//! Knows the pool's volumes and the device contract; knows no protocol, no client and no map.
//!
//! # Example
//! ```
//! use std::sync::Arc;
//!
//! use everbyte_block::{BlockOptions, BlockVolume, kinds};
//! use everbyte_device::{BlockDevice, Fua};
//! use everbyte_media::{Mapped, MediaOptions};
//! use everbyte_pool::{OpenOptions, Pool};
//!
//! let medium = Arc::new(Mapped::anonymous(16 << 20, &MediaOptions::new())?);
//! Pool::format(&*medium, 8, [1; 16])?; // room for 8 volumes, and the pool's identity
//! let pool = Arc::new(Pool::open(medium, kinds(), &OpenOptions::default())?);
//! let disk = BlockVolume::create(&pool, "disk", 64 << 20, &BlockOptions::default())?;
//! disk.write(4096, b"hello", Fua::No)?;
//! disk.flush()?; // a checkpoint: from here on it is there after a crash
//! pool.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! [`everbyte_pool::file`] has pools in files. A timer
//! ([`Pool::start_timer`](everbyte_pool::Pool::start_timer)) is not needed; without one, checkpoints happen
//! at flushes and when the log fills, and a crash may undo all writes since.

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

pub use everbyte_extent::{Checksum, Delta, ExtentError, View, ViewError};
pub use group::{BlockGroup, GroupWriteError};
pub use kind::{BLOCK_NAME, CACHE_NAME, kinds};
pub use volume::{BlockOptions, BlockVolume};

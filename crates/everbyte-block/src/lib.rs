//! The block volume: the translation layer of the NTL paper over a crash-consistent pool.
//!
//! Owns the mapping table and the translation of block requests into byte-granular stores. Knows
//! the pool's volumes and the device contract; knows no protocol and no client.

#![forbid(unsafe_code)]

mod atomic;
mod bad;
mod checksum;
mod delta;
mod device;
mod group;
mod locks;
mod map;
mod owner;
mod plan;
mod read;
mod resize;
mod scrub;
mod threshold;
mod unmap;
mod volume;
mod write;

pub use checksum::Checksum;
pub use delta::Delta;
pub use group::{BlockGroup, GroupWriteError};
pub use map::MapKind;
pub use owner::owners;
pub use volume::{BlockOptions, BlockVolume};

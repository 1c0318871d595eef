//! Extents: bytes below a root word, in a volume of a pool.
//!
//! Owns the mapping, writing, reading, unmapping, checking and scrubbing of such bytes: the map from logical
//! blocks to blocks of the pool, the translation of writes into byte-granular stores, the choice between a
//! record and a new block, data checksums. A block volume is an extent; so is a file. Knows the pool's
//! batches, and neither devices nor files.

#![forbid(unsafe_code)]

mod address;
mod checksum;
mod delta;
mod direct;
mod error;
mod extent;
mod fast_path;
mod fua;
mod leaf;
mod locks;
mod map;
mod media_errors;
mod plan;
mod read;
mod scrub;
mod sequenced;
mod threshold;
mod unlocked;
mod unmap;
mod view;

pub use address::{BlockPiece, BlockRange, DeviceOffset, LogicalBlock, pieces};
pub use checksum::Checksum;
pub use delta::{Delta, DeltaState};
pub use error::{BlockReadError, Expected, ExtentError};
pub use extent::{Extent, ExtentSettings};
pub use fast_path::FastPath;
pub use fua::{DurableWrite, FuaOutcome};
pub use leaf::{LEAF_BYTES, LeafPart, leaf_parts};
pub use locks::{BlockLocks, ReadGuards, WriteGuards};
pub use map::{ENTRIES, FirstEntries, MAP_CODE, visit_checksums, visit_first_entries, visit_map};
pub use plan::Planner;
pub use read::{ByteRange, Stored, chunks};
pub use sequenced::{SequencedLock, WriteGuard};
pub use view::{View, ViewError};

//! Byte-addressable media: the one place that touches persistent memory.
//!
//! Owns the [`Medium`] contract and its mapped implementation. Knows nothing of pools, volumes,
//! logs or blocks beyond their size.

mod medium;
mod units;

pub use medium::{Counters, MediaError, Medium, Piece, Survives};
pub use units::{BLOCK, BLOCK_U64, BlockNo, LINE, LINE_U64, LINES_PER_BLOCK, LineMask, PoolOffset};

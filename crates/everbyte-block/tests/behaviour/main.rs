//! Behaviour of the block volume on memory: the device contract, exact costs, space, groups,
//! resizing, reopening, damage.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod atomic;
mod checksum;
mod counters;
mod crafted;
mod damage;
mod fading;
mod large;
mod lifecycle;
mod media;
mod repair;
mod space;
mod views;

use std::sync::Arc;

use everbyte_block::{BlockOptions, BlockVolume, kinds};
use everbyte_media::{Mapped, MediaOptions};
use everbyte_pool::{OpenOptions, Pool};

/// A new pool of `blocks` blocks on anonymous memory.
pub(crate) fn new_pool(blocks: u64) -> Arc<Pool<Mapped>> {
    let medium = Mapped::anonymous(blocks * 4096, &MediaOptions::new()).unwrap();
    Pool::format(&medium, 8, [1; 16]).unwrap();
    open_pool(Arc::new(medium))
}

/// Opens the pool on `medium`.
pub(crate) fn open_pool(medium: Arc<Mapped>) -> Arc<Pool<Mapped>> {
    let options = OpenOptions { capacity_blocks: 1 << 20 };
    Arc::new(Pool::open(medium, kinds(), &options).unwrap())
}

/// A new volume named `name`.
pub(crate) fn new_volume(
    pool: &Arc<Pool<Mapped>>,
    name: &str,
    size_bytes: u64,
    options: &BlockOptions,
) -> BlockVolume<Mapped> {
    BlockVolume::create(pool, name, size_bytes, options).unwrap()
}

/// Bytes different for each call and place.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        })
        .collect()
}

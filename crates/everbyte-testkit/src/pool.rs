//! New pools on media of tests.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]
#![allow(clippy::missing_panics_doc, reason = "a test that cannot go on should panic")]

use std::sync::Arc;

use everbyte_media::{BLOCK_U64, Mapped, MediaOptions, Medium};
use everbyte_pool::{Kinds, OpenOptions, Pool, PoolError};

/// Formats `medium` as a pool with room for `volumes` volumes, and opens it.
pub fn create<M: Medium>(medium: &Arc<M>, volumes: u64, kinds: Kinds<M>) -> Arc<Pool<M>> {
    Pool::format(&**medium, volumes, [1; 16]).unwrap();
    open(medium, kinds).unwrap()
}

/// Creates a pool of `bytes` bytes in anonymous memory.
#[must_use]
pub fn create_in_memory(bytes: u64, volumes: u64, kinds: Kinds<Mapped>) -> Arc<Pool<Mapped>> {
    let medium = Mapped::anonymous(bytes, &MediaOptions::new()).unwrap();
    create(&Arc::new(medium), volumes, kinds)
}

/// Opens the pool on `medium`.
///
/// # Errors
/// As [`Pool::open`].
pub fn open<M: Medium>(medium: &Arc<M>, kinds: Kinds<M>) -> Result<Arc<Pool<M>>, PoolError> {
    let options = OpenOptions { capacity_blocks: medium.len() / BLOCK_U64 };
    Pool::open(Arc::clone(medium), kinds, &options).map(Arc::new)
}

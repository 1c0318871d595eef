//! Extents under a kind of volume with two of them: cases outside the reach of block volumes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod choice;
mod crash;
mod direct;
mod durable;
mod fast_path;
mod fua;
mod looks;
mod model;
mod pair;
mod resize;
mod runs;
mod together;
mod views;
mod zeroes;

use std::sync::Arc;

use everbyte_media::{BLOCK_U64, Mapped, MediaOptions};

use crate::pair::{Pair, Settings};

/// A new pair in a pool of `blocks` blocks on anonymous memory.
pub(crate) fn new_pair(blocks: u64, settings: &Settings) -> Pair<Mapped> {
    let medium = Mapped::anonymous(blocks * BLOCK_U64, &MediaOptions::new()).unwrap();
    Pair::make(&Arc::new(medium), settings)
}

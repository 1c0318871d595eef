//! Regions on real memory. These tests need userfaultfd, for transparent faults with privilege: as
//! root, or with vm.unprivileged_userfaultfd=1. Where it is forbidden they fail and say so.

#![allow(unsafe_code, reason = "sharing a region among threads by its pointer, and raw accesses")]
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::sync::Arc;

use everbyte_swap::{FileStore, SlotOrder, SwapSpace};

mod direct;
mod hazards;
mod model;
mod stack;
mod streams;
mod stress;

const MIB: u64 = 1 << 20;
const UNIT: u64 = everbyte_swap::UNIT as u64;

/// A space of `bytes` bytes in a file of memory that nobody else can open.
fn space(bytes: u64, order: SlotOrder) -> Arc<SwapSpace> {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = FileStore::create(&directory.path().join("store"), bytes).unwrap();
    SwapSpace::new(store, order)
}

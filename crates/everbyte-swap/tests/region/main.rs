//! Regions on real memory. These tests need userfaultfd. The tests of transparent faults need it
//! with privilege and print a line if it is forbidden.

#![allow(unsafe_code, reason = "sharing a region among threads by its pointer, and raw accesses")]
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::sync::Arc;

use everbyte_swap::{FaultMode, FileStore, Region, RegionError, RegionOptions, SwapSpace};
use everbyte_testkit::not_run;

mod direct;
mod hazards;
mod model;
mod stack;
mod streams;
mod stress;

const MIB: u64 = 1 << 20;
const UNIT: u64 = everbyte_swap::UNIT as u64;

/// A space of `bytes` bytes in an unlinked file in memory.
fn space(bytes: u64) -> Arc<SwapSpace> {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = FileStore::create(&directory.path().join("store"), bytes).unwrap();
    SwapSpace::new(store)
}

/// Options of a region with `handlers` threads for its faults; `None` if that is forbidden.
fn transparent(handlers: usize) -> Option<RegionOptions> {
    let options = RegionOptions::new().fault_mode(FaultMode::Transparent { handlers });
    match Region::map(MIB, MIB / 4, &space(MIB), &options) {
        Err(RegionError::Forbidden { setting, .. }) => {
            not_run(setting);
            None
        }
        _ => Some(options),
    }
}

/// Options of regions of both ways to resolve faults, as far as they are allowed.
fn of_both_modes() -> impl Iterator<Item = RegionOptions> {
    [Some(RegionOptions::new()), transparent(1)].into_iter().flatten()
}

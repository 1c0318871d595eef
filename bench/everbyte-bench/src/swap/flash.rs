//! A store as slow as a good flash drive.
//!
//! The figures are those of a PCIe drive of the paper's time (Samsung XS1715): a read of 4 KiB takes about 90 us, and a
//! write about 25 us, with many in parallel. A read waits. Writes proceed at the drive's rate, and wait only above it.

#![allow(unsafe_code, reason = "the contract of a store, which is the store's below")]

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use everbyte_media::MediaError;
use everbyte_swap::{FileStore, SlotNo, SlotStore, UNIT};

use crate::stats::as_f64;

/// Time from a read's begin to its end.
const READ: Duration = Duration::from_micros(90);
/// Time of each further page of the same read.
const READ_NEXT_NS: u64 = 1_300;
/// Time that the drive is busy with a page that is written.
const WRITE_NS: u64 = 5_000;
/// Writes that the drive has room for, as the time that they take.
const WRITES_AHEAD_NS: u64 = 1_000_000;
/// Bytes that the drive can be written with before it is worn out: 1.6 TB, 12,775 times (7
/// full drives a day for 5 years).
const ENDURANCE_BYTES: f64 = 1.6e12 * 7.0 * 365.0 * 5.0;

/// Seconds of a year.
const YEAR_S: f64 = 31_557_600.0;

/// Years until the drive is worn out, if so many pages are written in that time and it goes on like that.
pub(super) fn lifetime_years(pages: u64, time_ns: u64) -> Option<f64> {
    let bytes_per_s = as_f64(pages * UNIT as u64) / (as_f64(time_ns) / 1e9);
    (pages > 0).then(|| ENDURANCE_BYTES / bytes_per_s / YEAR_S)
}

/// The slow store.
pub(super) struct Flash {
    store: FileStore,
    start: Instant,
    /// When the drive will have done all writes.
    busy_until_ns: AtomicU64,
}

impl Flash {
    pub(super) fn new(store: FileStore) -> Self {
        Self { store, start: Instant::now(), busy_until_ns: AtomicU64::new(0) }
    }
}

// SAFETY: every slot is the store's below, by the same calls; sleeping neither allocates nor locks.
unsafe impl SlotStore for Flash {
    fn slots(&self) -> u64 {
        self.store.slots()
    }

    fn slots_max(&self) -> u64 {
        self.store.slots_max()
    }

    fn address(&self, slot: SlotNo) -> *const u8 {
        self.store.address(slot)
    }

    unsafe fn write(&self, slot: SlotNo, page: *const u8) {
        // SAFETY: as the caller says.
        unsafe { self.store.write(slot, page) }
        let now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let next = |busy: u64| Some(busy.max(now) + WRITE_NS);
        let before = self.busy_until_ns.fetch_update(Relaxed, Relaxed, next).unwrap_or(now);
        let behind = before.saturating_sub(now);
        if behind > WRITES_AHEAD_NS {
            std::thread::sleep(Duration::from_nanos(behind - WRITES_AHEAD_NS));
        }
    }

    fn check(&self) -> Result<(), MediaError> {
        self.store.check()
    }

    fn is_readable(&self, slot: SlotNo, slots: u64) -> bool {
        std::thread::sleep(READ + Duration::from_nanos(READ_NEXT_NS * slots.saturating_sub(1)));
        self.store.is_readable(slot, slots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetime_at_rated_writes_is_rated() {
        // 1.6 TB seven times a day is its rating, for 5 years.
        let pages_a_day = 1_600_000_000_000 * 7 / 4096;
        let years = lifetime_years(pages_a_day, 86_400_000_000_000).unwrap();
        assert!((years - 5.0).abs() < 0.01, "{years}");
        assert_eq!(lifetime_years(0, 1), None);
    }
}

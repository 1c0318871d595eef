//! A store as slow as a good flash drive.
//!
//! The figures are of a PCIe drive of the paper's time (Samsung XS1715): a read of 4 KiB takes about 90 us, and a
//! write about 25 us, many in parallel. A read waits. Writes proceed at the drive's rate, and wait only above it.

#![allow(unsafe_code, reason = "the contract of a store, kept by the store below")]

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use everbyte_media::MediaError;
use everbyte_swap::{FileStore, SlotNo, SlotStore, UNIT};

use crate::stats::as_f64;

/// Time of a read.
const READ: Duration = Duration::from_micros(90);
/// Time of each further page of the same read.
const READ_NEXT_NS: u64 = 1_300;
/// Time of the drive for a written page.
const WRITE_NS: u64 = 5_000;
/// Room of the drive for waiting writes, as their time.
const WRITES_AHEAD_NS: u64 = 1_000_000;
/// Written bytes until the drive wears out: 1.6 TB, 12,775 times (7 full drives a day for 5 years).
const ENDURANCE_BYTES: f64 = 1.6e12 * 7.0 * 365.0 * 5.0;

/// Seconds of a year.
const YEAR_S: f64 = 31_557_600.0;

/// Years until the drive wears out at the rate of `pages` in `time_ns`. `None` without a written page.
pub(super) fn lifetime_years(pages: u64, time_ns: u64) -> Option<f64> {
    let bytes_per_s = as_f64(pages * UNIT as u64) / (as_f64(time_ns) / 1e9);
    (pages > 0).then(|| ENDURANCE_BYTES / bytes_per_s / YEAR_S)
}

/// The slow store.
pub(super) struct Flash {
    store: FileStore,
    start: Instant,
    /// End of all accepted writes.
    busy_until_ns: AtomicU64,
}

impl Flash {
    pub(super) fn new(store: FileStore) -> Self {
        Self { store, start: Instant::now(), busy_until_ns: AtomicU64::new(0) }
    }
}

// SAFETY: every slot belongs to the store below, by the same calls. A sleep neither allocates nor locks.
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
        // SAFETY: the caller keeps the contract of this function, and the store below has the same.
        unsafe { self.store.write(slot, page) }
        // The copy took almost no time. The rest emulates the drive: an idle drive starts the write now,
        // a busy drive queues it.
        let now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let next = |busy: u64| Some(busy.max(now) + WRITE_NS);
        let before = self.busy_until_ns.fetch_update(Relaxed, Relaxed, next).unwrap_or(now);
        let behind = before.saturating_sub(now);
        // The queue is full: the writer waits for room, not for its own write.
        if behind > WRITES_AHEAD_NS {
            std::thread::sleep(Duration::from_nanos(behind - WRITES_AHEAD_NS));
        }
    }

    fn check(&self) -> Result<(), MediaError> {
        self.store.check()
    }

    fn is_readable(&self, slot: SlotNo, slots: u64) -> bool {
        // The region calls this before each read, so the read is slow here.
        std::thread::sleep(READ + Duration::from_nanos(READ_NEXT_NS * slots.saturating_sub(1)));
        self.store.is_readable(slot, slots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetime_at_rated_writes_is_rated() {
        // The drive is rated for 1.6 TB seven times a day in 5 years.
        let pages_a_day = 1_600_000_000_000 * 7 / 4096;
        let years = lifetime_years(pages_a_day, 86_400_000_000_000).unwrap();
        assert!((years - 5.0).abs() < 0.01, "{years}");
        assert_eq!(lifetime_years(0, 1), None);
    }
}

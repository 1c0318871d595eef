//! Costs of operations on a file system: time, and what they store, fence and log.

use std::ops::AddAssign;
use std::time::{Duration, Instant};

use anyhow::Result;
use everbyte_fs::FileSystem;
use everbyte_media::{Mapped, Medium};

use crate::stats::as_f64;

/// The cost of some operations.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Cost {
    operations: u64,
    time: Duration,
    bytes_stored: u64,
    lines_stored: u64,
    fences: u64,
    log_bytes: u64,
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        self.time += other.time;
        self.bytes_stored += other.bytes_stored;
        self.lines_stored += other.lines_stored;
        self.fences += other.fences;
        self.log_bytes += other.log_bytes;
    }
}

impl Cost {
    /// The cost of `act`, which does so many operations on `fs`.
    ///
    /// # Errors
    /// Those of `act`.
    pub(super) fn of(
        fs: &FileSystem<Mapped>,
        operations: u64,
        act: impl FnOnce() -> Result<()>,
    ) -> Result<Self> {
        let medium = fs.volume().medium();
        let (before, log) = (medium.counters(), fs.volume().log_bytes());
        let start = Instant::now();
        act()?;
        let time = start.elapsed();
        let counters = medium.counters().since(&before);
        Ok(Self {
            operations,
            time,
            bytes_stored: counters.bytes_stored,
            lines_stored: counters.lines_stored,
            fences: counters.fences,
            log_bytes: fs.volume().log_bytes() - log,
        })
    }

    /// Nanoseconds of an operation.
    pub(super) fn ns(&self) -> f64 {
        self.time.as_secs_f64() * 1e9 / as_f64(self.operations.max(1))
    }

    /// Counts of each operation, with the names of metrics and units.
    pub(super) fn counts(&self) -> [(&'static str, &'static str, f64); 4] {
        let of_each = |count| as_f64(count) / as_f64(self.operations.max(1));
        [
            ("bytes_stored", "B/request", of_each(self.bytes_stored)),
            ("lines_stored", "1/request", of_each(self.lines_stored)),
            ("fences", "1/request", of_each(self.fences)),
            ("log_bytes", "B/request", of_each(self.log_bytes)),
        ]
    }
}

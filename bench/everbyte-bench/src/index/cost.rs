//! Costs of operations on a file system: time, and what they store, fence and log.

use std::ops::AddAssign;
use std::time::{Duration, Instant};

use anyhow::Result;
use everbyte_fs::FileSystem;
use everbyte_media::Mapped;

use crate::stats::as_f64;
use crate::subject::Counts;
use crate::subjects::floor::medium_counts;

/// The cost of some operations.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Cost {
    operations: u64,
    time: Duration,
    counts: Counts,
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        self.time += other.time;
        self.counts = self.counts.plus(&other.counts);
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
        let counts = || medium_counts(fs.volume().medium(), fs.volume().log_bytes());
        let (before, start) = (counts(), Instant::now());
        act()?;
        let time = start.elapsed();
        Ok(Self { operations, time, counts: counts().since(&before) })
    }

    /// Nanoseconds of an operation.
    pub(super) fn ns(&self) -> f64 {
        self.time.as_secs_f64() * 1e9 / as_f64(self.operations.max(1))
    }

    /// Counts of each operation, with the names of metrics and units.
    pub(super) fn counts(&self) -> [(&'static str, &'static str, f64); 5] {
        self.counts.means(self.operations.max(1))
    }
}

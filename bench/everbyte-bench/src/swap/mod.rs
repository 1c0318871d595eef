//! The memory extension: how free slots are found, and what paging costs.

mod access;
mod allocators;
pub(crate) mod child;
pub(crate) mod command;
mod fill;
mod flash;
mod ft;
mod meter;
mod paging;
mod place;
mod report;
mod solving;
mod subjects;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use indicatif::ProgressBar;

/// Settings of a run.
pub(crate) struct Settings<'a> {
    /// Slots of 4 KiB of the swap space.
    slots: u64,
    /// Pairs of a freed and a taken slot that are measured at each fill.
    pairs: u64,
    rounds: usize,
    /// The folder of files that are mapped, and of stores.
    folder: &'a Path,
    stop: &'a Arc<AtomicBool>,
    progress: &'a ProgressBar,
}

impl Settings<'_> {
    fn should_stop(&self) -> bool {
        self.stop.load(Relaxed)
    }
}

/// A number of points or pages as a fraction's part.
fn as_float(number: usize) -> f64 {
    crate::stats::as_f64(number as u64)
}

//! The memory extension: how free slots are found.

mod allocators;
pub(crate) mod command;
mod fill;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use indicatif::ProgressBar;

/// Settings of a run.
pub(crate) struct Settings<'a> {
    /// Slots of 4 KiB of the swap space.
    slots: u64,
    /// Pairs of a freed and a taken slot that are measured at each fill.
    pairs: u64,
    rounds: usize,
    stop: &'a Arc<AtomicBool>,
    progress: &'a ProgressBar,
}

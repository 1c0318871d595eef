//! One measurement of a subject, by a child process alone or under a guardian.

use std::time::Duration;

use anyhow::Result;

use super::Settings;
use super::child::{self, Load, Outcome, Task};
use super::full_store::Crowd;
use super::kernel::guardian::{self, Order};
use super::place::PAGE;
use super::subjects::Subject;

/// Thousandths of a crowded space that others hold.
const CROWDED_PERMILLE: u64 = 990;

/// The work of a measurement, and its bounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) load: Load,
    pub(super) threads: usize,
    pub(super) dram_bytes: u64,
    pub(super) limit: Duration,
}

/// Takes a measurement; `None` if it does not end in time.
///
/// # Errors
/// It fails, wrong contents among the reasons; or it is to stop.
pub(super) fn measure(
    settings: &Settings<'_>,
    subject: Subject,
    work: Work,
) -> Result<Option<Outcome>> {
    let Work { load, threads, dram_bytes, limit } = work;
    let should_stop = || settings.should_stop();
    if let Subject::Kernel(kernel) = subject {
        let order = Order { kernel, load, threads, dram_bytes, limit };
        let report = guardian::measure(&order, should_stop)?;
        settings.described.borrow_mut().insert(kernel.name(), report.settings);
        return Ok(report.outcome);
    }
    let crowd = |way| {
        let pages = (load.bytes() / PAGE, dram_bytes / PAGE);
        Crowd::around(way, settings.slots, pages, CROWDED_PERMILLE)
    };
    let backing = subject.backing(settings.folder(), dram_bytes, crowd);
    child::measure(&Task { backing, load, threads }, limit, should_stop)
}

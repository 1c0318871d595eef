//! The costs of paging: processor time of the process and of kernel threads, faults, and pages in and out.
//!
//! All are exact counters of the system or of the region. The process's time includes its system calls and faults, with the
//! reclaim of its memory cgroup. The time of kernel threads, as workers of loop devices, and the pages swapped belong to
//! the whole machine, so other activity counts too. Both sums are reported.

use std::fs;
use std::time::Instant;

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::place::Place;

/// Threads of the kernel that page or work for block devices.
const KERNEL_THREADS: [&str; 4] = ["kworker", "kswapd", "loop", "ksoftirqd"];

/// Costs so far, or of a part of a run.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Costs {
    pub(super) wall_ns: u64,
    /// Processor time of the process, in user and system mode.
    pub(super) process_ns: u64,
    /// Processor time of the kernel's threads.
    pub(super) kernel_ns: u64,
    /// Page faults as the system counts them, of both kinds.
    pub(super) faults: u64,
    pub(super) pages_in: u64,
    pub(super) pages_out: u64,
    /// Faults that a region resolved.
    pub(super) region_faults: u64,
    /// Nodes looked at for free slots.
    pub(super) slot_visits: u64,
    /// Time of searches for slots, where that is measured.
    pub(super) slot_search_ns: u64,
}

impl Costs {
    /// Processor time in all.
    pub(super) fn cpu_ns(self) -> u64 {
        self.process_ns + self.kernel_ns
    }

    /// The costs since `before`.
    pub(super) fn since(self, before: Self) -> Self {
        self.with(before, u64::saturating_sub)
    }

    pub(super) fn plus(self, other: Self) -> Self {
        self.with(other, |a, b| a + b)
    }

    fn with(self, other: Self, op: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            wall_ns: op(self.wall_ns, other.wall_ns),
            process_ns: op(self.process_ns, other.process_ns),
            kernel_ns: op(self.kernel_ns, other.kernel_ns),
            faults: op(self.faults, other.faults),
            pages_in: op(self.pages_in, other.pages_in),
            pages_out: op(self.pages_out, other.pages_out),
            region_faults: op(self.region_faults, other.region_faults),
            slot_visits: op(self.slot_visits, other.slot_visits),
            slot_search_ns: op(self.slot_search_ns, other.slot_search_ns),
        }
    }
}

/// A reader of the counters.
pub(super) struct Meter<'a> {
    place: &'a Place,
    start: Instant,
}

impl<'a> Meter<'a> {
    pub(super) fn new(place: &'a Place) -> Self {
        Self { place, start: Instant::now() }
    }

    /// The counters now.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn read(&self) -> Result<Costs> {
        costs_of(self.place, self.start)
    }
}

/// The counters now, and the time since `start`: for a place that is changed meanwhile.
///
/// # Errors
/// The system's.
pub(super) fn costs_of(place: &Place, start: Instant) -> Result<Costs> {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF)?;
    let count = |number: i64| u64::try_from(number).unwrap_or(0);
    let (major, minor) = (count(usage.major_page_faults()), count(usage.minor_page_faults()));
    let mut costs = Costs {
        wall_ns: u64::try_from(start.elapsed().as_nanos())?,
        process_ns: process_ns()?,
        kernel_ns: kernel_ns()?,
        faults: major + minor,
        slot_visits: place.slot_visits(),
        slot_search_ns: place.slot_search_ns(),
        ..Costs::default()
    };
    if let Some(statistics) = place.statistics() {
        costs.pages_in = statistics.units_in;
        costs.pages_out = statistics.units_out;
        costs.region_faults =
            statistics.faults_load + statistics.faults_store + statistics.faults_protected;
    }
    if let Place::Swapped(_) = place {
        (costs.pages_in, costs.pages_out) = machine_pages_swapped()?;
    }
    Ok(costs)
}

/// Pages that the machine has swapped in and out.
///
/// # Errors
/// The system's.
pub(super) fn machine_pages_swapped() -> Result<(u64, u64)> {
    Ok(pages_swapped(&fs::read_to_string("/proc/vmstat")?))
}

fn pages_swapped(vmstat: &str) -> (u64, u64) {
    let count = |name: &str| {
        let line = vmstat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|count| count.parse().ok()).unwrap_or(0)
    };
    (count("pswpin"), count("pswpout"))
}

fn process_ns() -> Result<u64> {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Ok(u64::try_from(time.tv_sec)? * 1_000_000_000 + u64::try_from(time.tv_nsec)?)
}

/// Processor time of the kernel's threads that page, since the system began.
fn kernel_ns() -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir("/proc")? {
        let folder = entry?.path();
        // Threads come and go.
        let Ok(name) = fs::read_to_string(folder.join("comm")) else { continue };
        if !KERNEL_THREADS.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let Ok(schedule) = fs::read_to_string(folder.join("schedstat")) else { continue };
        sum += schedule.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::super::place::Backing;
    use super::*;

    #[test]
    fn pages_swapped_are_read() {
        assert_eq!(pages_swapped("pgpgin 7\npswpin 12\npswpout 345\npswpout_zero 9\n"), (12, 345));
    }

    #[test]
    fn memory_fill_is_counted() {
        let place = Place::map(&Backing::Anonymous, 1 << 20).unwrap();
        let meter = Meter::new(&place);
        let before = meter.read().unwrap();
        (0..place.words().pages()).for_each(|page| place.words().store(page * 512, 1));
        let costs = meter.read().unwrap().since(before);
        assert!(costs.faults >= 256 && costs.process_ns > 0 && costs.wall_ns > 0, "{costs:?}");
        assert!(costs.cpu_ns() >= costs.process_ns && costs.plus(costs).faults == 2 * costs.faults);
    }
}

//! The costs of paging: processor time of the process and of kernel threads, faults, and pages in and out.
//!
//! The system and the region count exactly. The time of the process includes its system calls and faults, with the
//! reclaim of its memory cgroup. The time of kernel threads and the swapped pages belong to the whole machine, so
//! other activity counts too.

use std::fs;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::place::Place;

/// Kernel threads for paging and for block devices.
const KERNEL_THREADS: [&str; 4] = ["kworker", "kswapd", "loop", "ksoftirqd"];

/// Costs of this process until now, or of a part of a run.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Costs {
    pub(super) wall_ns: u64,
    /// Processor time of the process, in user and system mode.
    pub(super) process_ns: u64,
    /// Processor time of the kernel's threads.
    pub(super) kernel_ns: u64,
    /// Page faults of both kinds, counted by the system.
    pub(super) faults: u64,
    pub(super) pages_in: u64,
    pub(super) pages_out: u64,
    /// Faults resolved by a region.
    pub(super) region_faults: u64,
    /// Inspected nodes in searches for free slots.
    pub(super) slot_visits: u64,
    /// Time of measured searches for slots.
    pub(super) slot_search_ns: u64,
}

impl Costs {
    /// Sum of the processor times.
    pub(super) fn cpu_ns(self) -> u64 {
        self.process_ns + self.kernel_ns
    }

    /// The costs since `before`.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            wall_ns: self.wall_ns - before.wall_ns,
            process_ns: self.process_ns - before.process_ns,
            // Kernel threads end, and their time with them.
            kernel_ns: self.kernel_ns.saturating_sub(before.kernel_ns),
            faults: self.faults - before.faults,
            pages_in: self.pages_in - before.pages_in,
            pages_out: self.pages_out - before.pages_out,
            region_faults: self.region_faults - before.region_faults,
            slot_visits: self.slot_visits - before.slot_visits,
            slot_search_ns: self.slot_search_ns - before.slot_search_ns,
        }
    }

    /// The present counters.
    ///
    /// # Errors
    /// Errors of the system.
    pub(super) fn now(place: &Place) -> Result<Self> {
        let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF)?;
        let mut costs = Self {
            wall_ns: clock_ns(ClockId::Monotonic)?,
            process_ns: clock_ns(ClockId::ProcessCPUTime)?,
            kernel_ns: kernel_ns()?,
            faults: u64::try_from(usage.major_page_faults() + usage.minor_page_faults())?,
            ..Self::default()
        };
        match place {
            Place::Map(_) => {}
            Place::Swapped(_) => (costs.pages_in, costs.pages_out) = machine_pages_swapped()?,
            Place::Region(region, space, search_ns) => {
                let counted = region.statistics();
                (costs.pages_in, costs.pages_out) = (counted.units_in, counted.units_out);
                costs.region_faults =
                    counted.faults_load + counted.faults_store + counted.faults_protected;
                costs.slot_visits = space.slot_searches().visits;
                costs.slot_search_ns = search_ns.load(Relaxed);
            }
        }
        Ok(costs)
    }
}

/// Pages swapped in and out by the machine.
///
/// # Errors
/// Errors of the system.
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

fn clock_ns(clock: ClockId) -> Result<u64> {
    let time = clock_gettime(clock);
    Ok(u64::try_from(time.tv_sec)? * 1_000_000_000 + u64::try_from(time.tv_nsec)?)
}

/// Processor time of these kernel threads since the start of the system.
fn kernel_ns() -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir("/proc")? {
        let folder = entry?.path();
        // A thread can end between the listing and the read.
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
    use super::*;

    #[test]
    fn pages_swapped_are_read() {
        assert_eq!(pages_swapped("pgpgin 7\npswpin 12\npswpout 345\npswpout_zero 9\n"), (12, 345));
    }

    #[test]
    fn memory_fill_is_counted() {
        let place = Place::Map(memmap2::MmapMut::map_anon(1 << 20).unwrap());
        let before = Costs::now(&place).unwrap();
        (0..place.words().pages()).for_each(|page| place.words().store(page * 512, 1));
        let costs = Costs::now(&place).unwrap().since(before);
        assert!(costs.faults >= 256 && costs.process_ns > 0 && costs.wall_ns > 0, "{costs:?}");
        assert!(costs.cpu_ns() >= costs.process_ns);
    }
}

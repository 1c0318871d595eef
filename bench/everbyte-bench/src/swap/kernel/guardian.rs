//! The guardian: makes swap and a cgroup for one measurement, starts it, and removes everything.
//!
//! Invariants: the guardian leads its own session and ignores all signals except SIGKILL until everything is
//! removed. It ends the measurement at the end of its standard input, hence at any end of its parent. Swap goes
//! off only after the end of all processes in the cgroup.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result, bail};
use nix::sys::mman::{MlockAllFlags, mlockall};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::cgroup::Cgroup;
use super::device::SwapDevice;
use super::{KERNEL_SWAPS, machine, read, set};
use crate::swap::child::{self, Outcome, Report};
use crate::swap::subjects::Subject;
use crate::swap::task::{Swapped, Task, TaskArgs};

const PAGE_CLUSTER: &str = "/proc/sys/vm/page-cluster";
/// Bytes of swap beyond the footprint, for pages in memory and on the device.
const SLACK: u64 = 32 << 20;
/// Bytes beyond the DRAM limit for page tables and notes of the program: a share of the footprint, and a
/// minimum. The limit of a region does not cover them either.
const OVERHEAD_SHARE: u64 = 256;
const OVERHEAD: u64 = 1 << 20;
/// Bytes of the program beyond the measured memory.
const PROGRAM: u64 = 256 << 20;
/// Attempts of a measurement.
const ATTEMPTS: u32 = 4;

fn device_bytes(task: &Task) -> u64 {
    (task.load.bytes() + SLACK).next_multiple_of(1 << 20)
}

/// Runs as a guardian.
///
/// # Errors
/// Errors of the measurement; something could not be removed.
pub(crate) fn run(args: &TaskArgs) -> Result<()> {
    let task = args.task()?;
    let mount = machine::check(device_bytes(&task) + task.dram_bytes + PROGRAM)?;
    let stop = shield()?;
    let mut equipment = Equipment::default();
    let report = equipment.measure(task, &mount, &stop);
    // Before the report: a parent with a report finds a clean machine.
    equipment.remove()?;
    writeln!(io::stdout(), "{}", serde_json::to_string(&report?)?)?;
    Ok(())
}

/// Protects this process from signals, and returns a flag for the end of its parent.
fn shield() -> Result<Arc<AtomicBool>> {
    // A leader of a group fails here. The signals of its group are its own then.
    let _session = rustix::process::setsid();
    // A paged guardian could wait for its own swap device.
    mlockall(MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE)
        .context("cannot lock the guardian's memory")?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let is_gone = Arc::clone(&stop);
    std::thread::Builder::new().name("lifeline".to_owned()).spawn(move || {
        // The parent writes nothing, so any end of the read is the end of the parent.
        let _ended = io::stdin().read_to_end(&mut Vec::new());
        is_gone.store(true, Relaxed);
    })?;
    Ok(stop)
}

/// The group, the device and the changed setting of the machine.
#[derive(Default)]
struct Equipment {
    cgroup: Option<Cgroup>,
    device: SwapDevice,
    /// Path and previous value.
    page_cluster: Option<(PathBuf, String)>,
}

impl Equipment {
    fn measure(&mut self, mut task: Task, mount: &Path, stop: &AtomicBool) -> Result<Report> {
        let Subject::Kernel(nth) = task.subject else {
            bail!("{:?} needs no guardian", task.subject)
        };
        let settings = KERNEL_SWAPS[nth];
        let cgroup = self.cgroup.insert(Cgroup::make(mount)?);
        // Memory with swap stays bounded: a wrong program must not exhaust the machine.
        cgroup.bound(task.load.bytes() + PROGRAM, settings.swappiness)?;
        let limit_bytes = task.dram_bytes + task.load.bytes() / OVERHEAD_SHARE + OVERHEAD;
        task.cgroup = Some(Swapped { cgroup: cgroup.at.clone(), limit_bytes });
        // Recorded before the change, so every later error restores it.
        self.page_cluster = Some((PAGE_CLUSTER.into(), read(PAGE_CLUSTER)));
        set(Path::new(PAGE_CLUSTER), &settings.page_cluster.to_string())?;
        self.device.begin(&settings, device_bytes(&task))?;
        let described = format!(
            "page-cluster {}, swappiness {}, limit {limit_bytes} bytes for {} of DRAM; {}; huge pages {}; zswap {}",
            read(PAGE_CLUSTER),
            read(cgroup.at.join("memory.swappiness")),
            task.dram_bytes,
            self.device.describe(),
            read("/sys/kernel/mm/transparent_hugepage/enabled"),
            read("/sys/module/zswap/parameters/enabled"),
        );
        let outcome = attempt(&task, cgroup, stop)?;
        let (full, kills) = (cgroup.times_full(), cgroup.kills());
        let settings =
            format!("{described}; limit met {full} times; killed as out of memory {kills} times");
        Ok(Report { outcome, settings: Some(settings) })
    }

    /// Removes everything in the safe order.
    fn remove(&mut self) -> Result<()> {
        // The setting comes first: a device that cannot be removed must not keep it.
        let changed = self.page_cluster.take();
        let restored = changed.map_or(Ok(()), |(path, before)| set(&path, &before));
        if let Some(cgroup) = &self.cgroup {
            // Swapping off with a living program would bring its pages back over the limit.
            cgroup.kill_members()?;
        }
        let ended = self.device.end();
        // The group is empty, so its removal does not need the device.
        let removed = self.cgroup.take().map_or(Ok(()), |cgroup| cgroup.remove());
        ended.and(removed).and(restored)
    }
}

/// Measures, and repeats if the kernel kills the program because it finds no page to swap out. With a low limit
/// it sometimes does.
fn attempt(task: &Task, cgroup: &Cgroup, stop: &AtomicBool) -> Result<Option<Outcome>> {
    for _ in 0..ATTEMPTS {
        let before = cgroup.kills();
        match child::measure_here(task, || stop.load(Relaxed)) {
            // Only an out-of-memory kill allows another attempt.
            Err(error) if cgroup.kills() == before => return Err(error),
            Err(_killed) => {}
            Ok(report) => return Ok(report.outcome),
        }
    }
    Ok(None)
}

impl Drop for Equipment {
    fn drop(&mut self) {
        // Only a panic leaves anything here. An error of the removal is reported before.
        let _left = self.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_restored_after_failures() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page-cluster");
        std::fs::write(&path, "0").unwrap();
        let mut equipment = Equipment {
            cgroup: Some(Cgroup { at: folder.path().join("no-such-group") }),
            device: SwapDevice::default(),
            page_cluster: Some((path.clone(), "3".to_owned())),
        };
        assert!(equipment.remove().is_err());
        assert_eq!(read(&path), "3");
    }
}

//! The guardian: makes swap and a cgroup for one measurement, starts it, and takes everything down.
//!
//! Invariants: the guardian is a session of its own, ends by no signal but SIGKILL, and lives as long as
//! something is left to take down. It ends the measurement when its standard input ends, hence however
//! the process ends that started it. Swap is switched off only after everybody in the cgroup is dead.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::mman::{MlockAllFlags, mlockall};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::cgroup::Cgroup;
use super::device::SwapDevice;
use super::{KernelSwap, machine, read, set};
use crate::swap::child::{self, Load, Outcome, Task};
use crate::swap::place::{Backing, Swapped};

/// The name of the subcommand, which people do not see.
const SUBCOMMAND: &str = "swap-guardian";
const PAGE_CLUSTER: &str = "/proc/sys/vm/page-cluster";
/// Bytes of swap beyond the footprint, for pages that are in memory and on the device.
const SLACK: u64 = 32 << 20;
/// Bytes beside the DRAM limit for page tables and the program's own notes, as a share of the footprint,
/// and at least. A region's are not limited either.
const BESIDE_SHARE: u64 = 256;
const BESIDE: u64 = 1 << 20;
/// Bytes that the program may need beside the memory that is measured.
const PROGRAM: u64 = 256 << 20;
/// Times that a measurement is tried.
const TRIES: u32 = 4;
const LOOK: Duration = Duration::from_millis(10);

/// A measurement under kernel swap.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(in crate::swap) struct Order {
    pub(in crate::swap) kernel: KernelSwap,
    pub(in crate::swap) load: Load,
    pub(in crate::swap) threads: usize,
    pub(in crate::swap) dram_bytes: u64,
    pub(in crate::swap) limit: Duration,
}

impl Order {
    fn device_bytes(&self) -> u64 {
        (self.load.bytes() + SLACK).next_multiple_of(1 << 20)
    }

    /// Bytes of memory that the measurement takes at most.
    pub(in crate::swap) fn need(&self) -> u64 {
        self.device_bytes() + self.dram_bytes + PROGRAM
    }
}

/// The findings of a measurement under kernel swap.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::swap) struct Report {
    /// `None` if it did not end in time, or was killed by the kernel whenever it was tried.
    pub(in crate::swap) outcome: Option<Outcome>,
    /// Every setting, as the kernel tells it.
    pub(in crate::swap) settings: String,
}

/// Guards one measurement of kernel swap.
#[derive(clap::Args)]
pub(crate) struct GuardianArgs {
    /// The measurement, as JSON.
    order: String,
}

/// Takes a measurement, in the charge of a guardian.
///
/// # Errors
/// The machine is refused, the guardian fails, or `should_stop` says so. Nothing is left then but what
/// the error names.
pub(in crate::swap) fn measure(order: &Order, should_stop: impl Fn() -> bool) -> Result<Report> {
    let program = std::env::current_exe()?;
    let mut guardian = Command::new(program)
        .args([SUBCOMMAND, &serde_json::to_string(order)?])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start a guardian")?;
    let mut lifeline = guardian.stdin.take();
    let status = loop {
        if let Some(status) = guardian.try_wait()? {
            break status;
        }
        if should_stop() {
            // It then ends by itself, having taken everything down.
            drop(lifeline.take());
        }
        std::thread::sleep(LOOK);
    };
    if lifeline.is_none() {
        bail!("stopped");
    }
    if !status.success() {
        bail!("{order:?} ended with {status}");
    }
    let output = io::read_to_string(guardian.stdout.take().context("a guardian has no output")?)?;
    Ok(serde_json::from_str(&output)?)
}

/// Runs as a guardian.
///
/// # Errors
/// The measurement's; something could not be taken down.
pub(crate) fn run(args: &GuardianArgs) -> Result<()> {
    let order: Order = serde_json::from_str(&args.order)?;
    let mount = machine::check(order.need())?;
    let stop = shield()?;
    let mut equipment = Equipment::default();
    let report = equipment.measure(&order, &mount, &stop);
    equipment.take_down()?;
    writeln!(io::stdout(), "{}", serde_json::to_string(&report?)?)?;
    Ok(())
}

/// Makes this process hard to end, and returns a flag that says that it should come to an end.
fn shield() -> Result<Arc<AtomicBool>> {
    // Who leads a group already is not moved by the group's signals either way.
    let _session = rustix::process::setsid();
    mlockall(MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE)
        .context("cannot lock the guardian's memory")?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let is_gone = Arc::clone(&stop);
    std::thread::Builder::new().name("lifeline".to_owned()).spawn(move || {
        // Nobody writes there: any end is the end of who started this.
        let _ended = io::stdin().read_to_end(&mut Vec::new());
        is_gone.store(true, Relaxed);
    })?;
    Ok(stop)
}

/// Everything that was made, to be taken down again.
#[derive(Default)]
struct Equipment {
    cgroup: Option<Cgroup>,
    device: SwapDevice,
    page_cluster: Option<Changed>,
}

/// A setting of the whole machine that was changed.
struct Changed {
    path: PathBuf,
    before: String,
}

impl Changed {
    /// Remembers a setting that is about to be changed.
    fn remember(path: &Path) -> Self {
        Self { path: path.to_owned(), before: read(path) }
    }
}

impl Equipment {
    fn measure(&mut self, order: &Order, mount: &Path, stop: &AtomicBool) -> Result<Report> {
        let settings = order.kernel.settings();
        let cgroup = self.cgroup.insert(Cgroup::make(mount)?);
        cgroup.bound(order.load.bytes() + PROGRAM, settings.swappiness)?;
        let limit_bytes = order.dram_bytes + order.load.bytes() / BESIDE_SHARE + BESIDE;
        let swapped = Swapped { cgroup: cgroup.at.clone(), limit_bytes };
        self.page_cluster = Some(Changed::remember(Path::new(PAGE_CLUSTER)));
        set(Path::new(PAGE_CLUSTER), &settings.page_cluster.to_string())?;
        self.device.begin(&settings, order.device_bytes())?;
        let described = self.describe(order, &swapped);
        let backing = Backing::Swapped(swapped);
        let task = Task { backing, load: order.load, threads: order.threads };
        let outcome = self.try_measure(&task, order.limit, stop)?;
        let (full, kills) = self
            .cgroup
            .as_ref()
            .map_or_else(Default::default, |cgroup| (cgroup.times_full(), cgroup.kills()));
        let settings =
            format!("{described}; limit met {full} times; killed as out of memory {kills} times");
        Ok(Report { outcome, settings })
    }

    /// Measures, and again if the kernel kills the program because it finds nothing to swap out: with a
    /// low limit it does now and then.
    fn try_measure(
        &self,
        task: &Task,
        limit: Duration,
        stop: &AtomicBool,
    ) -> Result<Option<Outcome>> {
        let kills = || self.cgroup.as_ref().map_or(0, Cgroup::kills);
        for _ in 0..TRIES {
            let before = kills();
            match child::measure(task, limit, || stop.load(Relaxed)) {
                Err(error) if kills() == before => return Err(error),
                Err(_killed) => {}
                measured => return measured,
            }
        }
        Ok(None)
    }

    fn describe(&self, order: &Order, swapped: &Swapped) -> String {
        let thp = read(Path::new("/sys/kernel/mm/transparent_hugepage/enabled"));
        format!(
            "page-cluster {}, swappiness {}, limit {} bytes for {} of DRAM; {}; huge pages {thp}; zswap {}",
            read(Path::new(PAGE_CLUSTER)),
            read(&swapped.cgroup.join("memory.swappiness")),
            swapped.limit_bytes,
            order.dram_bytes,
            self.device.describe(),
            read(&PathBuf::from("/sys/module/zswap/parameters/enabled")),
        )
    }

    /// Takes everything down, in the order that is safe. The machine's setting comes first: no device that stays
    /// must keep it.
    fn take_down(&mut self) -> Result<()> {
        let restored = self.page_cluster.take().map_or(Ok(()), |it| set(&it.path, &it.before));
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill_members()?;
        }
        let ended = self.device.end();
        // Nobody is in it, so it needs no device.
        let removed = self.cgroup.take().map_or(Ok(()), |cgroup| cgroup.remove());
        ended.and(removed).and(restored)
    }
}

impl Drop for Equipment {
    fn drop(&mut self) {
        // Only for a panic: as a rule nothing is left, and what failed was told.
        let _left = self.take_down();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_restored_after_failures() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page-cluster");
        std::fs::write(&path, "3\n").unwrap();
        let mut equipment = Equipment {
            cgroup: Some(Cgroup { at: folder.path().join("no-such-group") }),
            device: SwapDevice::default(),
            page_cluster: Some(Changed::remember(&path)),
        };
        set(&path, "0").unwrap();
        assert!(equipment.take_down().is_err());
        assert_eq!(read(&path), "3");
    }
}

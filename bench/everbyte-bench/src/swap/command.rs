//! `everbyte-bench swap`: the command line of the suite.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use super::child::Load;
use super::ft::Class;
use super::kernel::machine;
use super::paging::Sizes;
use super::{Settings, crowded_paging, direct, fill, paging, serving, solving};
use crate::environment::Environment;
use crate::filter::Filter;
use crate::publish::{self, Output};
use crate::rows::{Results, Row};

/// Settings of a smoke test.
const QUICK_SLOTS: u64 = 1 << 14;
const QUICK_PAIRS: u64 = 1 << 10;
const QUICK_MIB: u64 = 8;
const QUICK_SERVED_MIB: u64 = 24;
/// Accesses for each page of the footprint.
const ACCESSES_PER_PAGE: u64 = 3;

/// Measures the memory extension: paging by access pattern, FT of the NAS Parallel Benchmarks and servers
/// of others in less memory than they need, and ways to find a free slot of a swap space.
///
/// Everything that is paged is verified: contents by what was stored, FT by the published checksums.
#[derive(clap::Args)]
pub(crate) struct SwapArgs {
    /// A smoke test of a few seconds, FT of class S only. Its figures mean nothing.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    filter: Filter,
    /// Rounds; figures are medians over them.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeats: u16,
    /// Slots of 4 KiB; 8 Mi are a swap space of 32 GiB.
    #[arg(long, default_value_t = 8 << 20, value_name = "COUNT",
          value_parser = clap::value_parser!(u64).range(1024..=1 << 32))]
    slots: u64,
    /// Slots that are freed and taken at each fill.
    #[arg(long, default_value_t = 1 << 14, value_name = "COUNT",
          value_parser = clap::value_parser!(u64).range(64..=1 << 32))]
    pairs: u64,
    /// Memory that access patterns go over, in MiB, half of which may be in DRAM. Servers are filled with half
    /// as much.
    #[arg(long, default_value_t = 512, value_name = "MIB",
          value_parser = clap::value_parser!(u64).range(2..=65536))]
    footprint: u64,
    /// Classes of FT; B needs 2.6 GiB for memory and store.
    #[arg(long, value_enum, value_name = "CLASS", value_delimiter = ',',
          default_values = ["s", "w", "a", "b"])]
    classes: Vec<Class>,
    /// Seconds that FT may take each time; it is killed then, and reported as such.
    #[arg(long, default_value_t = 900, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(1..=86400))]
    limit: u64,
    /// Folder for stores; on tmpfs, or on SCM.
    #[arg(long, default_value = "/dev/shm", value_name = "FOLDER")]
    folder: PathBuf,
    /// Measure kernel swap as well: over a loop device on tmpfs and on zram, with several settings. Needs
    /// root, memory cgroups of version 1, a machine that does not swap, and 4 GiB of memory to spare.
    /// Other programs' work of block devices is counted as the kernel's.
    #[arg(long)]
    kernel_swap: bool,
    /// Parts to leave out.
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',')]
    skip: Vec<Part>,
}

/// The parts of the suite.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Part {
    /// Ways to find a free slot.
    Slots,
    /// Access patterns.
    Paging,
    /// Access patterns in a swap space that is nearly full.
    Crowded,
    /// Moves of a page to DRAM, and the touches that pay for one.
    Direct,
    /// FT of the NAS Parallel Benchmarks.
    Ft,
    /// redis-server and memcached under load.
    Serving,
}

/// Runs the suite.
///
/// # Errors
/// The first failure, or it is to stop.
pub(crate) fn swap(args: &SwapArgs) -> Result<()> {
    let stop = publish::stop_flag()?;
    let progress = publish::progress_bar()?;
    let folder = tempfile::Builder::new().prefix("everbyte-bench.").tempdir_in(&args.folder);
    let folder = folder.with_context(|| format!("cannot use {}", args.folder.display()))?;
    let (slots, pairs, rounds, mib, classes) = match args.quick {
        true => (QUICK_SLOTS, QUICK_PAIRS, 1, QUICK_MIB, &[Class::S][..]),
        false => {
            (args.slots, args.pairs, usize::from(args.repeats), args.footprint, &args.classes[..])
        }
    };
    let folder = folder.path();
    let settings = Settings {
        slots,
        pairs,
        rounds,
        folder,
        filter: args.filter.clone(),
        with_kernel: args.kernel_swap,
        described: RefCell::default(),
        failures: RefCell::default(),
        stop: &stop,
        progress: &progress,
    };
    let bytes = mib << 20;
    let served_bytes = if args.quick { QUICK_SERVED_MIB << 20 } else { bytes / 2 };
    if args.kernel_swap {
        let largest = classes.iter().map(|class| Load::Ft(*class).bytes()).max().unwrap_or(0);
        machine::check(2 * largest.max(bytes).max(serving::bytes_max(served_bytes)))?;
    }
    let mut environment = Environment::new(&args.folder, bytes, rounds, 0.0);
    environment.medium = format!("DRAM, as tmpfs; {slots} slots");
    let wants = |part| !args.skip.contains(&part);
    let mut rows = Vec::new();
    if wants(Part::Slots) {
        rows.extend(fill::run(&settings)?);
    }
    let accesses = bytes / super::place::PAGE * ACCESSES_PER_PAGE;
    let sizes = Sizes { bytes, dram_bytes: bytes / 2, accesses };
    if wants(Part::Paging) {
        rows.extend(paging::run(&settings, sizes)?);
    }
    if wants(Part::Direct) {
        rows.extend(direct::run(&settings, sizes)?);
    }
    if wants(Part::Crowded) {
        rows.extend(crowded_paging::run(&settings)?);
    }
    if wants(Part::Ft) {
        rows.extend(solving::run(&settings, classes, Duration::from_secs(args.limit))?);
        if classes.contains(&Class::B) {
            rows.extend(solving::published());
        }
    }
    if wants(Part::Serving) {
        rows.extend(serving::run(&settings, served_bytes)?);
    }
    rows.extend(settings_rows(&settings.described.borrow()));
    let results = Results { suite: "swap", environment, rows };
    progress.finish_and_clear();
    args.output.publish(&results)?;
    let failures = settings.failures.take();
    ensure!(failures.is_empty(), "some measurements failed: {}", failures.join("; "));
    Ok(())
}

/// Rows that tell the settings of each kind of kernel swap.
fn settings_rows(described: &BTreeMap<&'static str, String>) -> Vec<Row> {
    let row = |(name, settings): (&&'static str, &String)| Row {
        metric: "settings",
        ..Row::skipped(name, "settings", settings.clone())
    };
    described.iter().map(row).collect()
}

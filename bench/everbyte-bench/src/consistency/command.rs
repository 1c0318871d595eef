//! `everbyte-bench consistency`: the command line of the suite.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use everbyte_extent::Delta;

use super::{Part, Settings, run};
use crate::environment::Environment;
use crate::filter::Filter;
use crate::publish::{self, Output};
use crate::rows::Results;

/// Rounds, seconds and warehouses of a smoke test.
const QUICK_ROUNDS: usize = 1;
const QUICK_SLICE_S: f64 = 0.005;
const QUICK_TPCC_SLICE_S: f64 = 0.02;
const QUICK_WAREHOUSES: u32 = 1;

/// Compares consistency schemes: none, redo journals, block journals, shadow paging, rollback
/// recovery, and ext4.
///
/// Rollback and redo stand twice, as published and improved. Every scheme runs on the same emulated
/// memory, as anonymous memory of this process: DRAM, with the flushes that persistent memory
/// needs, and phase-change memory, whose lines are written one after the other or in eight banks at
/// once. Ten warehouses of TPC-C take
/// about 16 GiB of memory.
#[derive(clap::Args)]
pub(crate) struct ConsistencyArgs {
    /// A smoke test of a few seconds. Its figures mean nothing.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: Output,
    /// Rounds; figures are medians over them.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeats: u16,
    /// Seconds that each scheme gets for each workload in each round.
    #[arg(long, default_value_t = 0.02)]
    seconds: f64,
    /// Seconds of TPC-C that each scheme gets in each round.
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    tpcc_seconds: f64,
    /// Warehouses of TPC-C.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    warehouses: u32,
    /// How every scheme detects which lines of a write change: ours and those compared with it, by
    /// the same code.
    #[arg(long, value_enum, default_value_t = Detection::Auto)]
    delta: Detection,
    /// Folder for ext4's images and SQLite's files; on tmpfs.
    #[arg(long, default_value = "/dev/shm", value_name = "FOLDER")]
    folder: PathBuf,
    #[command(flatten)]
    filter: Filter,
    /// Parts to leave out.
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',')]
    skip: Vec<Part>,
}

/// Change detection, as a choice on the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Detection {
    /// Compares where that saves more than it costs.
    Auto,
    /// Compares each write with what is stored.
    On,
    /// Compares nothing: all that is written counts as changed.
    Off,
}

impl Detection {
    fn setting(self) -> Delta {
        match self {
            Self::Auto => Delta::Auto,
            Self::On => Delta::On,
            Self::Off => Delta::Off,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

/// Runs the suite.
///
/// # Errors
/// The first failure.
pub(crate) fn consistency(args: &ConsistencyArgs) -> Result<()> {
    let stop = publish::stop_flag()?;
    let folder = tempfile::Builder::new().prefix("everbyte-bench.").tempdir_in(&args.folder);
    let folder = folder.with_context(|| format!("cannot use {}", args.folder.display()))?;
    let progress = publish::progress_bar()?;
    let (rounds, slice_s, tpcc_s, warehouses) = match args.quick {
        true => (QUICK_ROUNDS, QUICK_SLICE_S, QUICK_TPCC_SLICE_S, QUICK_WAREHOUSES),
        false => (usize::from(args.repeats), args.seconds, args.tpcc_seconds, args.warehouses),
    };
    let settings = Settings {
        folder: folder.path(),
        rounds,
        slice: Duration::try_from_secs_f64(slice_s).context("--seconds")?,
        tpcc_slice: Duration::try_from_secs_f64(tpcc_s).context("--tpcc-seconds")?,
        warehouses,
        delta: args.delta.setting(),
        filter: args.filter.clone(),
        quick: args.quick,
        stop: &stop,
        progress: &progress,
    };
    let mut environment = Environment::new(&args.folder, super::DEVICE_BYTES, rounds, slice_s);
    environment.medium = format!(
        "anonymous memory that costs what the workload's name says; changes detected: {}",
        args.delta.name()
    );
    let rows = run(&settings, |part| !args.skip.contains(&part))?;
    let results = Results { suite: "consistency", environment, rows };
    progress.finish_and_clear();
    args.output.publish(&results)
}

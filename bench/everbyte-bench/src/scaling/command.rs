//! `everbyte-bench scaling`: the command line of the suite.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{report, run};
use crate::environment::Environment;
use crate::filter::Filter;
use crate::publish::{self, Output};
use crate::rows::Results;
use crate::suite::Settings;

/// Rounds, seconds and size of a smoke test.
const QUICK_ROUNDS: usize = 2;
const QUICK_SLICE_S: f64 = 0.02;
const QUICK_MIB: u64 = 16;

/// Predicts the rates of 1 to 64 threads, and what they use up first: from the times of one thread, the time to hand a
/// line from one processor to another, and counts of what a request does.
#[derive(clap::Args)]
pub(crate) struct ScalingArgs {
    /// A smoke test of a second. Its figures mean nothing.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: Output,
    /// Rounds; figures are medians over them.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeats: u16,
    /// Seconds that each subject gets for each workload in each round.
    #[arg(long, default_value_t = 0.1)]
    seconds: f64,
    /// Bytes of each device, in MiB.
    #[arg(long, default_value_t = 512, value_name = "MIB",
          value_parser = clap::value_parser!(u64).range(16..=65536))]
    size: u64,
    /// Folder for the devices; on tmpfs, or on SCM.
    #[arg(long, default_value = "/dev/shm", value_name = "FOLDER")]
    folder: PathBuf,
}

/// Runs the suite.
///
/// # Errors
/// The first failure.
pub(crate) fn scaling(args: &ScalingArgs) -> Result<()> {
    let stop = publish::stop_flag()?;
    let folder = tempfile::Builder::new().prefix("everbyte-bench.").tempdir_in(&args.folder);
    let folder = folder.with_context(|| format!("cannot use {}", args.folder.display()))?;
    let progress = publish::progress_bar()?;
    let (rounds, slice_s, size_mib) = match args.quick {
        true => (QUICK_ROUNDS, QUICK_SLICE_S, QUICK_MIB),
        false => (usize::from(args.repeats), args.seconds, args.size),
    };
    let settings = Settings {
        folder: folder.path(),
        size_bytes: size_mib << 20,
        rounds,
        slice: Duration::try_from_secs_f64(slice_s).context("--seconds")?,
        filter: Filter::default(),
        quick: args.quick,
        stop: &stop,
        progress: &progress,
    };
    let mut environment = Environment::new(&args.folder, settings.size_bytes, rounds, slice_s);
    let (rows, medium) = run(&settings)?;
    environment.medium = medium;
    progress.finish_and_clear();
    let results = Results { suite: "scaling", environment, rows };
    args.output.publish("Everbyte: threads", &results, &report::figures())
}

//! `everbyte-bench layers`: the command line of the suite.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{Part, Settings, run};
use crate::environment::Environment;
use crate::publish::{self, Output};
use crate::rows::Results;

/// The paper's device in bytes.
const PAPER_DEVICE_BYTES: u64 = 10 << 30;
/// Scale, files, rounds and seconds of a smoke test.
const QUICK_SCALE: u64 = 160;
const QUICK_FILES: usize = 10;
const QUICK_ROUNDS: usize = 1;
const QUICK_SLICE_S: f64 = 0.05;

/// Measures ext4 on devices: on a ramdisk, on our export over NBD, on devices as slow as a disk and an
/// SSD, buffered and direct, by the four patterns of fio. Needs root, and `nbdfuse`.
#[derive(clap::Args)]
pub(crate) struct LayersArgs {
    /// A smoke test of some seconds. Its figures mean nothing.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: Output,
    /// How much smaller the devices are than the paper's 10 GB; half of a device is read or written.
    #[arg(long, default_value_t = 20, value_name = "TIMES",
          value_parser = clap::value_parser!(u64).range(1..=160))]
    scale: u64,
    /// Files that requests go to in turn.
    #[arg(long, default_value_t = 100, value_name = "COUNT",
          value_parser = clap::value_parser!(u16).range(2..=1000))]
    files: u16,
    /// Rounds; figures are medians over them.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeats: u16,
    /// Seconds that each workload gets on each place in each round at most.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Folder for the devices; on tmpfs.
    #[arg(long, default_value = "/dev/shm", value_name = "FOLDER")]
    folder: PathBuf,
    /// Parts to leave out.
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',')]
    skip: Vec<Part>,
}

/// Runs the suite.
///
/// # Errors
/// The first failure.
pub(crate) fn layers(args: &LayersArgs) -> Result<()> {
    let stop = publish::stop_flag()?;
    let folder = tempfile::Builder::new().prefix("everbyte-bench.").tempdir_in(&args.folder);
    let folder = folder.with_context(|| format!("cannot use {}", args.folder.display()))?;
    let progress = publish::progress_bar()?;
    let (scale, files, rounds, slice_s) = match args.quick {
        true => (QUICK_SCALE, QUICK_FILES, QUICK_ROUNDS, QUICK_SLICE_S),
        false => (args.scale, usize::from(args.files), usize::from(args.repeats), args.seconds),
    };
    let settings = Settings {
        folder: folder.path(),
        // Whole MiB, of which every device can be.
        device_bytes: (PAPER_DEVICE_BYTES / scale) >> 20 << 20,
        files,
        rounds,
        slice: Duration::try_from_secs_f64(slice_s).context("--seconds")?,
        stop: &stop,
        progress: &progress,
    };
    let mut environment =
        Environment::new(&args.folder, settings.device_bytes, settings.rounds, slice_s);
    environment.medium =
        format!("memory, flushed as persistent memory must be; 1/{scale} of the paper's devices");
    let rows = run(&settings, |part| !args.skip.contains(&part))?;
    progress.finish_and_clear();
    let results = Results { suite: "layers", environment, rows };
    args.output.publish(&results)
}

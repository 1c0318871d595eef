//! `everbyte-bench files`: the command line of the suite.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{Settings, run};
use crate::environment::Environment;
use crate::filter::Filter;
use crate::publish::{self, Output};
use crate::rows::Results;

/// Settings of a smoke test.
const QUICK_ROUNDS: usize = 1;
const QUICK_SLICE_S: f64 = 0.005;
const QUICK_SIZE_MIB: u64 = 4;
const QUICK_NAMES: usize = 100;

/// Compares operations on files: our file system in this process, the floor, tmpfs and ext4 through system
/// calls, and for reads the block volume.
///
/// Operations are named by paths of two names, in a directory that has as many as --names says. ext4 lies
/// on a loop device on a file in the folder, which takes root.
#[derive(clap::Args)]
pub(crate) struct FilesArgs {
    /// A smoke test of a second, without ext4. Its figures mean nothing.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    filter: Filter,
    /// Rounds; figures are medians over them.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeats: u16,
    /// Seconds that each subject gets for each operation in each round.
    #[arg(long, default_value_t = 0.2)]
    seconds: f64,
    /// Bytes of the file that is read, in MiB.
    #[arg(long, default_value_t = 64, value_name = "MIB",
          value_parser = clap::value_parser!(u64).range(1..=4096))]
    size: u64,
    /// Names in the directory.
    #[arg(long, default_value_t = 1000, value_name = "COUNT",
          value_parser = clap::value_parser!(u16).range(2..=5000))]
    names: u16,
    /// Folder for everything; on tmpfs, or on SCM.
    #[arg(long, default_value = "/dev/shm", value_name = "FOLDER")]
    folder: PathBuf,
}

/// Runs the suite.
///
/// # Errors
/// The first failure of our own subjects, or it is to stop.
pub(crate) fn files(args: &FilesArgs) -> Result<()> {
    let stop = publish::stop_flag()?;
    let folder = tempfile::Builder::new().prefix("everbyte-bench.").tempdir_in(&args.folder);
    let folder = folder.with_context(|| format!("cannot use {}", args.folder.display()))?;
    let progress = publish::progress_bar()?;
    let (rounds, slice_s, size_mib, names) = match args.quick {
        true => (QUICK_ROUNDS, QUICK_SLICE_S, QUICK_SIZE_MIB, QUICK_NAMES),
        false => (usize::from(args.repeats), args.seconds, args.size, usize::from(args.names)),
    };
    let settings = Settings {
        folder: folder.path(),
        file_bytes: size_mib << 20,
        names,
        rounds,
        slice: Duration::try_from_secs_f64(slice_s).context("--seconds")?,
        filter: args.filter.clone(),
        quick: args.quick,
        stop: &stop,
        progress: &progress,
    };
    let mut environment = Environment::new(&args.folder, settings.file_bytes, rounds, slice_s);
    let (rows, medium) = run(&settings)?;
    environment.medium = medium;
    let results = Results { suite: "files", environment, rows };
    progress.finish_and_clear();
    args.output.publish(&results)
}

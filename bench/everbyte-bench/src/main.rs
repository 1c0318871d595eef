//! Benchmarks: volumes, files, mounts, caches and paged memory beside the memory below them and their
//! rivals.
//!
//! Owns the command line. A program of its own, so that rivals stay out of the everyday build.
//! `unsafe` is confined to five modules, which opt in: raw memory, the C library, the allocator that
//! counts, memory that is paged, and a slow store.

mod baselines;
mod cache;
mod children;
mod consistency;
mod crowd;
mod environment;
mod files;
mod filter;
mod index;
mod layers;
mod measure;
mod media;
mod mount;
mod publish;
mod replay;
mod rows;
mod stats;
mod subject;
mod subjects;
mod suite;
mod swap;
mod table;
mod tpcc;
mod workload;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand, ValueEnum};

use crate::cache::command::{CacheArgs, cache};
use crate::consistency::command::{ConsistencyArgs, consistency};
use crate::crowd::{CrowdArgs, crowd};
use crate::environment::Environment;
use crate::files::command::{FilesArgs, files};
use crate::filter::Filter;
use crate::index::command::{IndexArgs, index};
use crate::index::misses::{self, MissesArgs};
use crate::layers::command::{LayersArgs, layers};
use crate::media::command::{MediaArgs, media};
use crate::mount::command::{MountArgs, mount};
use crate::mount::served::{self as served_mount, ServeMountArgs};
use crate::publish::Output;
use crate::rows::Results;
use crate::subjects::pmemblk_library;
use crate::subjects::served::{self, ServeArgs};
use crate::suite::Settings;
use crate::swap::child::{self, SwapChildArgs};
use crate::swap::command::{SwapArgs, swap};
use crate::swap::kernel::guardian::{self, GuardianArgs};
use crate::swap::serve::process::{self, LaunchArgs};
use crate::tpcc::command::{TpccArgs, tpcc};
use crate::tpcc::kill::{self, ChildArgs, KillArgs};

/// Rounds and seconds of a smoke test.
const QUICK_ROUNDS: usize = 2;
const QUICK_SLICE_S: f64 = 0.02;
const QUICK_SIZE_MIB: u64 = 16;

/// Measures Everbyte beside the memory below it and its rivals.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    suite: Suite,
}

#[derive(Subcommand)]
enum Suite {
    /// The block volume, in process and over NBD.
    Block(BlockArgs),
    Consistency(ConsistencyArgs),
    Cache(CacheArgs),
    /// Answers to one NBD client beside many silent ones.
    Crowd(CrowdArgs),
    Files(FilesArgs),
    Index(IndexArgs),
    Layers(LayersArgs),
    Media(MediaArgs),
    Mount(MountArgs),
    Swap(SwapArgs),
    /// TPC-C on SQLite, in one place and journal mode.
    Tpcc(TpccArgs),
    /// Kills TPC-C in the midst of transactions and judges the database that is left.
    TpccKill(KillArgs),
    #[command(hide = true)]
    TpccChild(ChildArgs),
    #[command(hide = true)]
    IndexMisses(MissesArgs),
    #[command(hide = true)]
    ServeDevice(ServeArgs),
    #[command(hide = true)]
    ServeMount(ServeMountArgs),
    #[command(hide = true)]
    SwapChild(SwapChildArgs),
    #[command(hide = true)]
    SwapGuardian(GuardianArgs),
    #[command(hide = true)]
    SwapLaunch(LaunchArgs),
}

/// Options of the block suite.
#[derive(clap::Args)]
struct BlockArgs {
    /// A smoke test of a few seconds: few workloads, small devices, our own subjects and those that
    /// need no root. Its figures mean nothing.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    filter: Filter,
    /// Rounds; figures are medians over them.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeats: u16,
    /// Seconds that each subject gets for each workload in each round.
    #[arg(long, default_value_t = 0.2)]
    seconds: f64,
    /// Bytes of each device, in MiB; memory for about twelve of them must be free.
    #[arg(long, default_value_t = 512, value_name = "MIB",
          value_parser = clap::value_parser!(u64).range(16..=65536))]
    size: u64,
    /// Folder for the devices; on tmpfs, or on SCM.
    #[arg(long, default_value = "/dev/shm", value_name = "FOLDER")]
    folder: PathBuf,
    /// Parts to leave out.
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',')]
    skip: Vec<Part>,
}

/// The parts of the suite.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Part {
    /// Calls in process.
    Calls,
    /// Servers over NBD.
    Nbd,
    /// ext4's own traffic.
    Replay,
}

fn main() -> ExitCode {
    pmemblk_library::set_environment();
    let done = match Cli::parse().suite {
        Suite::Block(args) => block(&args),
        Suite::Consistency(args) => consistency(&args),
        Suite::Cache(args) => cache(&args),
        Suite::Crowd(args) => crowd(&args),
        Suite::Files(args) => files(&args),
        Suite::Index(args) => index(&args),
        Suite::Layers(args) => layers(&args),
        Suite::Media(args) => media(&args),
        Suite::Mount(args) => mount(&args),
        Suite::Swap(args) => swap(&args),
        Suite::Tpcc(args) => tpcc(&args),
        Suite::TpccKill(args) => kill::rounds(&args),
        Suite::TpccChild(args) => kill::child(&args),
        Suite::IndexMisses(args) => misses::child(&args),
        Suite::ServeDevice(args) => served::serve(&args),
        Suite::ServeMount(args) => served_mount::serve(&args),
        Suite::SwapChild(args) => child::run(&args),
        Suite::SwapGuardian(args) => guardian::run(&args),
        Suite::SwapLaunch(args) => process::launched(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to do if this fails as well.
            let _closed = writeln!(io::stderr(), "everbyte-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn block(args: &BlockArgs) -> Result<()> {
    let stop = publish::stop_flag()?;
    let folder = tempfile::Builder::new().prefix("everbyte-bench.").tempdir_in(&args.folder);
    let folder = folder.with_context(|| format!("cannot use {}", args.folder.display()))?;
    let progress = publish::progress_bar()?;
    let (rounds, slice_s, size_mib) = match args.quick {
        true => (QUICK_ROUNDS, QUICK_SLICE_S, QUICK_SIZE_MIB),
        false => (usize::from(args.repeats), args.seconds, args.size),
    };
    let settings = Settings {
        folder: folder.path(),
        size_bytes: size_mib << 20,
        rounds,
        slice: Duration::try_from_secs_f64(slice_s).context("--seconds")?,
        filter: args.filter.clone(),
        quick: args.quick,
        stop: &stop,
        progress: &progress,
    };
    let environment = Environment::new(&args.folder, settings.size_bytes, rounds, slice_s);
    let mut results = Results { suite: "block", environment, rows: Vec::new() };
    let (here, over_nbd) = match args.quick {
        true => workload::smoke(),
        false => (workload::in_process(), workload::over_nbd()),
    };
    let wants = |part| !args.skip.contains(&part);
    if wants(Part::Calls) {
        let (rows, medium) = suite::in_process(&here, &settings)?;
        results.rows.extend(rows);
        results.environment.medium = medium;
    }
    if wants(Part::Nbd) {
        results.rows.extend(suite::over_nbd(&over_nbd, &settings)?);
    }
    if wants(Part::Replay) && !args.quick {
        results.rows.extend(replay::run(&settings)?);
    }
    progress.finish_and_clear();
    args.output.publish(&results)
}

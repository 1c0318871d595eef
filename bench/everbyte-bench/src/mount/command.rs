//! `everbyte-bench mount`: the command line of the suite.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::terms::Caching;
use super::{Part, Settings, run};
use crate::environment::Environment;
use crate::index::personality::Personality;
use crate::publish::{self, Output};
use crate::rows::Results;

/// Settings of a smoke test.
const QUICK_ROUNDS: usize = 1;
const QUICK_SLICE_S: f64 = 0.01;
const QUICK_FILES: u32 = 100;
const QUICK_CLIENTS: usize = 2;

/// The workloads that are run; createfiles makes a set once and is over.
const WORKLOADS: [Personality; 4] =
    [Personality::Fileserver, Personality::Webproxy, Personality::Webserver, Personality::Varmail];

/// Measures a mount: single system calls and Filebench's workloads, beside a FUSE file system that does
/// nothing, a plain one in memory, and libfuse's passthrough_ll over tmpfs.
///
/// Needs root, and gcc and libfuse3-dev for passthrough_ll. Everything is in a mount namespace of its own
/// and in memory, and gone when the program ends, however it does.
#[derive(clap::Args)]
pub(crate) struct MountArgs {
    /// A smoke test of a few seconds. Its figures mean nothing.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: Output,
    /// Rounds; figures are medians over them.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeats: u16,
    /// Seconds that each mount gets for each call in each round.
    #[arg(long, default_value_t = 0.2)]
    seconds: f64,
    /// Seconds that each mount gets for each workload in each round.
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    workload_seconds: f64,
    /// The kernel's caching; both by default.
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',')]
    caching: Vec<Caching>,
    /// Workloads; all but createfiles by default.
    #[arg(long, value_enum, value_name = "WORKLOAD", value_delimiter = ',')]
    workloads: Vec<Personality>,
    /// Files of each workload.
    #[arg(long, default_value_t = 2000, value_name = "COUNT",
          value_parser = clap::value_parser!(u32).range(2..=10_000_000))]
    files: u32,
    /// Threads of each workload.
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_values_t = [1, 16],
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    clients: Vec<u16>,
    /// Threads of each server.
    #[arg(long, default_value_t = 4, value_name = "COUNT",
          value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Bytes of our pool, in MiB.
    #[arg(long, default_value_t = 2048, value_name = "MIB",
          value_parser = clap::value_parser!(u64).range(256..=1_048_576))]
    size: u64,
    /// Parts to leave out.
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',')]
    skip: Vec<Part>,
}

/// Those that were asked for, or all.
fn or_all<T: Copy>(asked: &[T], all: &[T]) -> Vec<T> {
    if asked.is_empty() { all.to_vec() } else { asked.to_vec() }
}

/// Runs the suite.
///
/// # Errors
/// The first failure, or it is to stop.
pub(crate) fn mount(args: &MountArgs) -> Result<()> {
    let stop = publish::stop_flag()?;
    let progress = publish::progress_bar()?;
    let [slice_s, workload_s] = match args.quick {
        true => [QUICK_SLICE_S; 2],
        false => [args.seconds, args.workload_seconds],
    };
    let clients = args.clients.iter().copied().map(usize::from).collect();
    let settings = Settings {
        cachings: or_all(&args.caching, &Caching::ALL),
        personalities: or_all(&args.workloads, &WORKLOADS),
        files: if args.quick { QUICK_FILES } else { args.files },
        clients: if args.quick { vec![QUICK_CLIENTS] } else { clients },
        threads: usize::from(args.threads),
        size: args.size << 20,
        rounds: if args.quick { QUICK_ROUNDS } else { usize::from(args.repeats) },
        slices: [
            Duration::try_from_secs_f64(slice_s).context("--seconds")?,
            Duration::try_from_secs_f64(workload_s).context("--workload-seconds")?,
        ],
        stop: &stop,
        progress: &progress,
    };
    let mut environment =
        Environment::new(Path::new("/dev/shm"), settings.size, settings.rounds, slice_s);
    "memory of the server, with flushes".clone_into(&mut environment.medium);
    let rows = run(&settings, |part| !args.skip.contains(&part))?;
    let results = Results { suite: "mount", environment, rows };
    progress.finish_and_clear();
    args.output.publish(&results)
}

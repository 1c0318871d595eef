//! `everbyte-bench media`: the command line of the suite.

use std::path::Path;

use anyhow::Result;

use super::{Settings, run};
use crate::environment::Environment;
use crate::publish::{self, Output};
use crate::rows::Results;

/// Requests, rounds and memory of a smoke test.
const QUICK_REQUESTS: u32 = 200;
const QUICK_ROUNDS: usize = 2;
const QUICK_MIB: u64 = 4;

/// Measures single requests to memory by their size, from 2 bytes to 4 KiB: reads, and durable writes,
/// on every emulated technology.
#[derive(clap::Args)]
pub(crate) struct MediaArgs {
    /// A smoke test of a second. Its figures mean nothing.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: Output,
    /// Requests of each size in each round.
    #[arg(long, default_value_t = 10_000, value_name = "COUNT",
          value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    requests: u32,
    /// Rounds; figures are medians over them.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeats: u16,
    /// Memory of each technology, in MiB.
    #[arg(long, default_value_t = 256, value_name = "MIB",
          value_parser = clap::value_parser!(u64).range(1..=65536))]
    size: u64,
}

/// Runs the suite.
///
/// # Errors
/// The first failure.
pub(crate) fn media(args: &MediaArgs) -> Result<()> {
    let stop = publish::stop_flag()?;
    let progress = publish::progress_bar()?;
    let (requests, rounds, size_mib) = match args.quick {
        true => (QUICK_REQUESTS, QUICK_ROUNDS, QUICK_MIB),
        false => (args.requests, usize::from(args.repeats), args.size),
    };
    let memory_bytes = size_mib << 20;
    let settings = Settings { memory_bytes, requests, rounds, stop: &stop, progress: &progress };
    let mut environment = Environment::new(Path::new("/dev/shm"), memory_bytes, rounds, 0.0);
    environment.medium =
        format!("anonymous memory that costs what the subject says; {requests} requests of a size");
    let rows = run(&settings)?;
    progress.finish_and_clear();
    let results = Results { suite: "media", environment, rows };
    args.output.publish(&results)
}

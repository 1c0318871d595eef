//! `everbyte-bench cache`: the command line of the suite.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use everbyte_media::Technology;

use super::{Part, Settings, Speed, hits, run};
use crate::environment::Environment;
use crate::filter::Filter;
use crate::publish::{self, Output};
use crate::rows::Results;

/// Requests, sizes and rounds of a smoke test.
const QUICK_REQUESTS: u64 = 3000;
const QUICK_PERCENTS: [u32; 2] = [20, 80];
const QUICK_ROUNDS: usize = 1;
const QUICK_SLICE_S: f64 = 0.05;

/// Compares the hybrid cache, by policy and size, with its backing device alone, which is as slow
/// as a disk, an SSD or an SD card, and with plain caches in DRAM of as much DRAM, of the same cost and of
/// the same capacity.
///
/// Figures of a whole workload are counted, not waited for: only processor time differs from run to
/// run. Slices of real time come besides. The workloads are those of 'everbyte sim generate',
/// placed on a device that has the pages which they touch.
#[derive(clap::Args)]
pub(crate) struct CacheArgs {
    /// A smoke test of a few seconds. Its figures mean nothing.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: Output,
    /// Devices whose speeds the backing device imitates, one after the other.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "DEVICE,...",
        default_value = "hdd,ssd,sd"
    )]
    backing: Vec<Speed>,
    /// Memory technology that storage-class memory is emulated as: dram, stt-mram, reram, pcm or
    /// pcm-banks.
    #[arg(long, default_value = "pcm", value_name = "TECHNOLOGY")]
    scm: Technology,
    /// Price of a byte of storage-class memory in percent of one of DRAM. The cache of equal cost has as
    /// much DRAM as ours has DRAM and storage-class memory for that.
    #[arg(long, default_value_t = 50, value_name = "PERCENT",
          value_parser = clap::value_parser!(u64).range(1..=100))]
    scm_price: u64,
    /// A trace to play besides, in any format that 'everbyte sim' reads. Its pages must fit into
    /// DRAM.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Play at most so many requests of each generated workload.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1000..))]
    requests: Option<u64>,
    /// Sizes of the caches, in percent of the pages that the workload touches. A quarter of each is
    /// DRAM.
    #[arg(long, value_delimiter = ',', value_name = "PERCENT,...",
          default_value = "10,20,30,40,50,60,70,80,90,100",
          value_parser = clap::value_parser!(u32).range(1..=100))]
    sizes: Vec<u32>,
    /// Numbers of clients in timed slices, each of which waits for an answer before it asks again.
    #[arg(long, default_value = "1,8", value_delimiter = ',', value_name = "COUNT,...",
          value_parser = clap::value_parser!(u16).range(1..=64))]
    clients: Vec<u16>,
    /// Rounds of timed slices; figures are medians over them.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeats: u16,
    /// Seconds that each subject gets for each workload in each round.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Folder for the backing device's files.
    #[arg(long, default_value = "/dev/shm", value_name = "FOLDER")]
    folder: PathBuf,
    #[command(flatten)]
    filter: Filter,
    /// Parts to leave out.
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',')]
    skip: Vec<Part>,
}

/// Runs the suite.
///
/// # Errors
/// The first failure.
pub(crate) fn cache(args: &CacheArgs) -> Result<()> {
    let stop = publish::stop_flag()?;
    let folder = tempfile::Builder::new().prefix("everbyte-bench.").tempdir_in(&args.folder);
    let folder = folder.with_context(|| format!("cannot use {}", args.folder.display()))?;
    let progress = publish::progress_bar()?;
    let (requests, mut percents, rounds, slice_s) = match args.quick {
        true => (Some(QUICK_REQUESTS), QUICK_PERCENTS.to_vec(), QUICK_ROUNDS, QUICK_SLICE_S),
        false => (args.requests, args.sizes.clone(), usize::from(args.repeats), args.seconds),
    };
    percents.sort_unstable();
    percents.dedup();
    let settings = Settings {
        folder: folder.path().to_owned(),
        speeds: args.backing.clone(),
        scm: args.scm,
        scm_price_percent: args.scm_price,
        requests,
        percents,
        clients: args.clients.iter().copied().map(usize::from).collect(),
        rounds: if args.skip.contains(&Part::Timed) { 0 } else { rounds },
        slice: Duration::try_from_secs_f64(slice_s).context("--seconds")?,
        filter: args.filter.clone(),
        stop: &stop,
        progress: &progress,
    };
    let streams = run::streams(&args.skip, args.trace.as_deref(), &settings)?;
    let wants_hits = settings.rounds > 0 && !args.skip.contains(&Part::Hits);
    ensure!(
        wants_hits || !streams.is_empty(),
        "every workload was left out, and there is no --trace"
    );
    let largest = streams.iter().map(super::stream::Stream::size_bytes).max().unwrap_or(0);
    let mut environment = Environment::new(&args.folder, largest, rounds, slice_s);
    let backing: Vec<&str> = args.backing.iter().map(|speed| speed.name()).collect();
    environment.medium = format!(
        "anonymous memory, flushed as persistent memory must be, as slow as {}; backing devices as slow as {}",
        args.scm,
        backing.join(", ")
    );
    let mut rows = run::run(&streams, &settings)?;
    if wants_hits {
        rows.extend(hits::run(&settings)?);
    }
    let results = Results { suite: "cache", environment, rows };
    progress.finish_and_clear();
    args.output.publish(&results)
}

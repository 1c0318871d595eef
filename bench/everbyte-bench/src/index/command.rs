//! `everbyte-bench index`: the command line of the suite.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use everbyte_fs::IndexKind;

use super::directory::Place;
use super::memory::Memory;
use super::personality::Personality;
use super::{Part, Settings, run};
use crate::environment::Environment;
use crate::publish::{self, Output};
use crate::rows::Results;

/// Settings of a smoke test.
const QUICK_ROUNDS: usize = 1;
const QUICK_SLICE_S: f64 = 0.01;
const QUICK_FILES: u32 = 200;
const QUICK_THREADS: [usize; 2] = [1, 3];
const QUICK_NODE_BYTES: [u32; 2] = [128, 4096];

/// Compares indexes over inode tables under Filebench's workloads on the file system in this process,
/// and compares the file system with directories.
///
/// The file system lies in memory of this process, with the flushes that persistent memory needs. Data
/// that would not fit into memory get blocks that are reserved and not stored; such rows say so. A full
/// run takes hours: --files, --indexes, --workloads and --skip shorten it.
#[derive(clap::Args)]
pub(crate) struct IndexArgs {
    /// A smoke test of a few seconds. Its figures mean nothing.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: Output,
    /// Rounds; figures are medians over them.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeats: u16,
    /// Sizes of the file sets.
    #[arg(long, value_name = "COUNT", value_delimiter = ',',
          default_values_t = [80_000, 160_000, 320_000, 640_000],
          value_parser = clap::value_parser!(u32).range(2..=100_000_000))]
    files: Vec<u32>,
    /// Sizes of the file sets that createfiles makes besides.
    #[arg(long, value_name = "COUNT", value_delimiter = ',',
          default_values_t = [1_280_000, 2_560_000],
          value_parser = clap::value_parser!(u32).range(2..=100_000_000))]
    create_files: Vec<u32>,
    /// Seconds of each run; createfiles runs until its file set is whole.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Operations of each run, instead of seconds.
    #[arg(long, value_name = "COUNT", conflicts_with = "seconds")]
    operations: Option<u64>,
    /// Indexes; all by default.
    #[arg(long, value_name = "INDEX", value_delimiter = ',', value_parser = index_kind)]
    indexes: Vec<IndexKind>,
    /// Workloads; all by default.
    #[arg(long, value_enum, value_name = "WORKLOAD", value_delimiter = ',')]
    workloads: Vec<Personality>,
    /// Numbers of threads, ascending; by default 1, 2 and as many as the workload is defined with.
    #[arg(long, value_name = "COUNT", value_delimiter = ',',
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    threads: Vec<u16>,
    /// Sizes of nodes in bytes, powers of two from 64 to 4096, for the sweep.
    #[arg(long, value_name = "BYTES", value_delimiter = ',',
          default_values_t = [64, 128, 256, 512, 1024, 2048, 4096])]
    node_bytes: Vec<u32>,
    /// An empty directory to run the workloads in as well, with a name for the results.
    #[arg(long = "dir", value_name = "NAME=PATH")]
    directories: Vec<Place>,
    /// Size of the file sets in directories.
    #[arg(long, default_value_t = 10_000, value_name = "COUNT",
          value_parser = clap::value_parser!(u32).range(2..=100_000_000))]
    directory_files: u32,
    /// Parts to leave out.
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',')]
    skip: Vec<Part>,
}

/// Reads the name of an index.
fn index_kind(name: &str) -> Result<IndexKind, String> {
    IndexKind::from_name(name).ok_or_else(|| {
        let known = IndexKind::ALL.map(IndexKind::name).join(", ");
        format!("there is no such index; there are {known}")
    })
}

/// Those that were asked for, or all.
fn or_all<T: Copy>(asked: &[T], all: &[T]) -> Vec<T> {
    if asked.is_empty() { all.to_vec() } else { asked.to_vec() }
}

fn ascending<T: Ord + Copy>(of: &[T]) -> Vec<T> {
    let mut sorted = of.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    sorted
}

impl IndexArgs {
    /// Puts the settings of a smoke test in the place of those that were asked for.
    fn shorten(settings: &mut Settings<'_>) {
        settings.files = vec![QUICK_FILES];
        settings.create_files = Vec::new();
        settings.directory_files = QUICK_FILES;
        settings.threads = Some(QUICK_THREADS.to_vec());
        settings.node_bytes = QUICK_NODE_BYTES.to_vec();
        settings.rounds = QUICK_ROUNDS;
    }
}

/// Runs the suite.
///
/// # Errors
/// The first failure, or it is to stop.
pub(crate) fn index(args: &IndexArgs) -> Result<()> {
    let stop = publish::stop_flag()?;
    let progress = publish::progress_bar()?;
    let threads = ascending(&args.threads).into_iter().map(usize::from).collect::<Vec<_>>();
    let slice_s = if args.quick { QUICK_SLICE_S } else { args.seconds };
    let mut settings = Settings {
        files: ascending(&args.files),
        create_files: ascending(&args.create_files),
        directory_files: args.directory_files,
        indexes: or_all(&args.indexes, &IndexKind::ALL),
        personalities: or_all(&args.workloads, &Personality::ALL),
        threads: Some(threads).filter(|threads| !threads.is_empty()),
        node_bytes: ascending(&args.node_bytes),
        places: args.directories.clone(),
        rounds: usize::from(args.repeats),
        slice: Duration::try_from_secs_f64(slice_s).context("--seconds")?,
        operations: args.operations,
        quick: args.quick,
        memory: Memory::default(),
        stop: &stop,
        progress: &progress,
    };
    if args.quick {
        IndexArgs::shorten(&mut settings);
    }
    let mut environment = Environment::new(Path::new("/dev/shm"), 0, settings.rounds, slice_s);
    environment.medium = format!(
        "memory of this process, with flushes; files in memory have huge pages: {}",
        huge_pages()
    );
    let rows = run(&settings, |part| !args.skip.contains(&part))?;
    let results = Results { suite: "index", environment, rows };
    progress.finish_and_clear();
    args.output.publish(&results)
}

/// The system's setting for files in memory without a name.
fn huge_pages() -> String {
    let path = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let chosen = text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    chosen.unwrap_or("unknown").to_owned()
}

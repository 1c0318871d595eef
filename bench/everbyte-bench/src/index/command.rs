//! `everbyte-bench index`: the options of the suite.

use anyhow::Result;
use clap::ValueEnum;

use super::directory::Place;
use super::drive::{self, Bound};
use super::personality::Personality;
use super::{misses, series};
use crate::driver::{Common, Findings, Pace, Run, Suite};

/// The parts of the suite.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Part {
    /// Filebench's workloads with each index.
    Workloads,
    /// Sizes of nodes on the fileserver workload.
    Nodes,
    /// Misses of the last-level cache, by cachegrind.
    Misses,
    /// Filebench's workloads in directories.
    Directories,
}

/// Compares indexes over inode tables under Filebench's workloads on the file system in this process,
/// and compares the file system with directories.
///
/// The file system lies in memory of this process, with flushes. If the data exceed memory, blocks are
/// reserved without data, and a note in the row says so. A full run takes hours: --files, --filter and
/// --skip shorten it.
#[derive(clap::Args, Clone)]
pub(crate) struct IndexArgs {
    #[command(flatten)]
    common: Common,
    /// Sizes of the file sets.
    #[arg(long, value_name = "COUNT", value_delimiter = ',',
          default_values_t = [80_000, 160_000, 320_000, 640_000],
          value_parser = clap::value_parser!(u32).range(2..=100_000_000))]
    pub(super) files: Vec<u32>,
    /// Additional sizes of the file sets of createfiles.
    #[arg(long, value_name = "COUNT", value_delimiter = ',',
          default_values_t = [1_280_000, 2_560_000],
          value_parser = clap::value_parser!(u32).range(2..=100_000_000))]
    create_files: Vec<u32>,
    /// Operations of each run, instead of seconds.
    #[arg(long, value_name = "COUNT")]
    operations: Option<u64>,
    /// Numbers of threads; by default 1, 2 and the number in the definition of the workload.
    #[arg(long, value_name = "COUNT", value_delimiter = ',',
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    threads: Vec<u16>,
    /// Sizes of nodes in bytes, powers of two from 64 to 4096, for the sweep.
    #[arg(long, value_name = "BYTES", value_delimiter = ',',
          default_values_t = [64, 128, 256, 512, 1024, 2048, 4096])]
    pub(super) node_bytes: Vec<u32>,
    /// An additional empty directory for the workloads, with a name for the results.
    #[arg(long = "dir", value_name = "NAME=PATH")]
    pub(super) directories: Vec<Place>,
    /// Size of the file sets in directories.
    #[arg(long, default_value_t = 10_000, value_name = "COUNT",
          value_parser = clap::value_parser!(u32).range(2..=100_000_000))]
    pub(super) directory_files: u32,
    /// Parts to leave out.
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',')]
    skip: Vec<Part>,
}

impl IndexArgs {
    /// Sizes of the file sets of a workload.
    pub(super) fn files_of(&self, personality: Personality) -> Vec<u32> {
        let more = self.create_files.iter().filter(|_| personality == Personality::Createfiles);
        self.files.iter().chain(more).copied().collect()
    }

    pub(super) fn files_max(&self) -> u32 {
        self.files.iter().copied().max().unwrap_or_default()
    }

    /// Numbers of threads of a workload.
    pub(super) fn threads_of(&self, personality: Personality) -> Vec<usize> {
        match &self.threads[..] {
            [] => vec![1, 2, personality.definition().threads],
            threads => threads.iter().copied().map(usize::from).collect(),
        }
    }

    pub(super) fn threads_max(&self, personality: Personality) -> usize {
        self.threads_of(personality).into_iter().max().unwrap_or(1)
    }
}

impl Run<IndexArgs> {
    pub(super) fn run_of(&self, personality: Personality, threads: usize) -> drive::Run<'_> {
        let bound = match (self.own.operations, personality) {
            (Some(operations), _) => Bound::Operations(operations),
            (None, Personality::Createfiles) => Bound::Whole,
            (None, _) => Bound::Time(self.slice),
        };
        drive::Run { personality, threads, bound, stop: &self.stop }
    }
}

impl Suite for IndexArgs {
    const NAME: &'static str = "index";
    const PACE: Pace = Pace { rounds: 3, slice_s: 2.0 };
    const QUICK: Pace = Pace { rounds: 1, slice_s: 0.01 };

    fn common(&self) -> &Common {
        &self.common
    }

    fn shorten(&mut self) {
        (self.files, self.create_files, self.directory_files) = (vec![200], Vec::new(), 200);
        (self.threads, self.node_bytes) = (vec![1, 3], vec![128, 4096]);
    }

    fn measure(settings: &Run<Self>) -> Result<Findings> {
        let mut parts = vec![Part::Workloads, Part::Nodes, Part::Misses, Part::Directories];
        parts.retain(|part| !settings.own.skip.contains(part));
        // A full directory ends the run before a measurement of hours.
        if parts.contains(&Part::Directories) {
            settings.own.directories.iter().try_for_each(Place::check)?;
        }
        let mut rows = Vec::new();
        for part in parts {
            rows.extend(match part {
                Part::Workloads => series::workloads(settings)?,
                Part::Nodes => series::nodes(settings)?,
                Part::Misses => misses::run(settings)?,
                Part::Directories => series::directories(settings)?,
            });
        }
        let medium = format!(
            "memory of this process, with flushes; files in memory have huge pages: {}",
            huge_pages()
        );
        Ok(Findings::new(rows, medium, 0))
    }
}

/// The system's setting for huge pages of files in memory.
fn huge_pages() -> String {
    let path = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let chosen = text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    chosen.unwrap_or("unknown").to_owned()
}

//! `everbyte-bench index`: the options of the suite.

use anyhow::Result;
use everbyte_fs::IndexKind;

use super::directory::Place;
use super::memory::Memory;
use super::personality::Personality;
use super::{Part, Settings, run};
use crate::driver::{Common, Findings, Pace, Run, Suite};

/// Compares indexes over inode tables under Filebench's workloads on the file system in this process,
/// and compares the file system with directories.
///
/// The file system lies in memory of this process, with flushes. If the data exceed memory, blocks are
/// reserved without data, and a note in the row says so. A full run takes hours: --files, --indexes,
/// --workloads and --skip shorten it.
#[derive(clap::Args, Clone)]
pub(crate) struct IndexArgs {
    #[command(flatten)]
    common: Common,
    /// Sizes of the file sets.
    #[arg(long, value_name = "COUNT", value_delimiter = ',',
          default_values_t = [80_000, 160_000, 320_000, 640_000],
          value_parser = clap::value_parser!(u32).range(2..=100_000_000))]
    files: Vec<u32>,
    /// Additional sizes of the file sets of createfiles.
    #[arg(long, value_name = "COUNT", value_delimiter = ',',
          default_values_t = [1_280_000, 2_560_000],
          value_parser = clap::value_parser!(u32).range(2..=100_000_000))]
    create_files: Vec<u32>,
    /// Operations of each run, instead of seconds.
    #[arg(long, value_name = "COUNT")]
    operations: Option<u64>,
    /// Indexes; all by default.
    #[arg(long, value_name = "INDEX", value_delimiter = ',', value_parser = index_kind)]
    indexes: Vec<IndexKind>,
    /// Workloads; all by default.
    #[arg(long, value_enum, value_name = "WORKLOAD", value_delimiter = ',')]
    workloads: Vec<Personality>,
    /// Numbers of threads; by default 1, 2 and the number in the definition of the workload.
    #[arg(long, value_name = "COUNT", value_delimiter = ',',
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    threads: Vec<u16>,
    /// Sizes of nodes in bytes, powers of two from 64 to 4096, for the sweep.
    #[arg(long, value_name = "BYTES", value_delimiter = ',',
          default_values_t = [64, 128, 256, 512, 1024, 2048, 4096])]
    node_bytes: Vec<u32>,
    /// An additional empty directory for the workloads, with a name for the results.
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

/// The given values, or all.
fn or_all<T: Copy>(asked: &[T], all: &[T]) -> Vec<T> {
    if asked.is_empty() { all.to_vec() } else { asked.to_vec() }
}

fn ascending<T: Ord + Copy>(of: &[T]) -> Vec<T> {
    let mut sorted = of.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    sorted
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

    fn measure(run_of: &Run<Self>) -> Result<Findings> {
        let own = &run_of.own;
        let threads = ascending(&own.threads).into_iter().map(usize::from).collect::<Vec<_>>();
        let settings = Settings {
            files: ascending(&own.files),
            create_files: ascending(&own.create_files),
            directory_files: own.directory_files,
            indexes: or_all(&own.indexes, &IndexKind::ALL),
            personalities: or_all(&own.workloads, &Personality::ALL),
            threads: Some(threads).filter(|threads| !threads.is_empty()),
            node_bytes: ascending(&own.node_bytes),
            places: own.directories.clone(),
            operations: own.operations,
            memory: Memory::default(),
            run: run_of,
        };
        let medium = format!(
            "memory of this process, with flushes; files in memory have huge pages: {}",
            huge_pages()
        );
        let rows = run(&settings, |part| !own.skip.contains(&part))?;
        Ok(Findings::new(rows, medium, 0))
    }
}

/// The system's setting for files in memory without a name.
fn huge_pages() -> String {
    let path = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let chosen = text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    chosen.unwrap_or("unknown").to_owned()
}

//! Misses of the last-level cache and instructions under cachegrind: the paper's Figure 3, and the reason for its
//! Figure 2 at fileserver and createfiles.
//!
//! The program fills a file system and runs itself twice under valgrind on a private copy of the pool: without steps, and
//! with steps. The difference counts the steps. The cache has the paper's 15 MiB. It has 15 ways, because the number
//! of sets must be a power of two.

use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail, ensure};
use everbyte_fs::{FileSystem, IndexKind};
use everbyte_media::{Mapped, MediaOptions};

use super::drive::{self, Bound, Filled, Run};
use super::file_set::FileSet;
use super::library::{Bytes, Library};
use super::personality::Personality;
use super::place::{NAME, Need, file_system, inodes_for, open_pool, sparse_file};
use super::{Settings, title};
use crate::rows::{Row, exact};
use crate::stats::as_f64;

/// Bytes, ways and bytes of a line of each cache: those of the paper's processor.
const CACHES: [&str; 3] = ["--I1=32768,8,64", "--D1=32768,8,64", "--LL=15728640,15,64"];
/// Operations under valgrind.
const OPERATIONS: u64 = 50_000;
const QUICK_OPERATIONS: u64 = 200;
/// Largest pool under valgrind. A pool of 120 GiB did not fit.
const POOL_BYTES_MAX: u64 = 96 << 30;
/// The workloads of the figure, and the workloads with a published lead of an index.
const WORKLOADS: [Personality; 4] = [
    Personality::Webproxy,
    Personality::Webserver,
    Personality::Fileserver,
    Personality::Createfiles,
];
/// Name of the hidden subcommand.
const SUBCOMMAND: &str = "index-misses";

/// Takes steps of a workload on a filled pool, under cachegrind.
#[derive(clap::Args)]
pub(crate) struct MissesArgs {
    /// The pool.
    #[arg(long)]
    pool: PathBuf,
    /// The pool's workload.
    #[arg(long, value_enum)]
    workload: Personality,
    /// Files of its set.
    #[arg(long)]
    files: u32,
    /// Threads.
    #[arg(long)]
    threads: usize,
    /// Operations over all threads.
    #[arg(long)]
    operations: u64,
}

/// Cachegrind's counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Counted {
    instructions: u64,
    /// Data references with a miss in the first level. They reach the last level.
    asked: u64,
    missed: u64,
}

/// The counts of some operations.
struct Misses {
    counted: Counted,
    operations: u64,
}

/// The largest number of files whose pool fits under valgrind.
fn watched_files(settings: &Settings, personality: Personality) -> u32 {
    let mut files = settings.own.files_max();
    while Need::of(personality, files.into()).pool_bytes() > POOL_BYTES_MAX {
        files /= 2;
    }
    files
}

/// Takes the steps.
///
/// # Errors
/// The pool's.
pub(crate) fn child(args: &MissesArgs) -> Result<()> {
    let len = std::fs::metadata(&args.pool)?.len();
    let options = MediaOptions::new().private(true).reserve_bytes(len);
    let pool = open_pool(Mapped::open(&args.pool, &options)?)?;
    let mut fs = FileSystem::open(&pool, NAME)?;
    fs.set_dentries_max(0);
    let library = Library { fs, bytes: Bytes::Reserved };
    let set = FileSet::new(args.workload, args.files);
    let filled = Filled::made_before(&library, &set);
    let stop = AtomicBool::new(false);
    let (personality, threads) = (args.workload, args.threads);
    let bound = Bound::Operations(args.operations);
    drive::run(&filled, &Run { personality, threads, bound, stop: &stop }).map(drop)
}

impl Counted {
    /// Reads the output of cachegrind.
    fn parse(text: &str) -> Result<Self> {
        let line = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
        let (events, summary) =
            line("events:").zip(line("summary:")).context("it has no summary")?;
        let event = |name: &str| -> Result<u64> {
            let at = events.split_whitespace().position(|event| event == name);
            let count = at.and_then(|at| summary.split_whitespace().nth(at));
            Ok(count.with_context(|| format!("it has no count of {name}"))?.parse()?)
        };
        Ok(Self {
            instructions: event("Ir")?,
            asked: event("D1mr")? + event("D1mw")?,
            missed: event("DLmr")? + event("DLmw")?,
        })
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            instructions: self.instructions.saturating_sub(earlier.instructions),
            asked: self.asked.saturating_sub(earlier.asked),
            missed: self.missed.saturating_sub(earlier.missed),
        }
    }
}

/// Runs this program under valgrind.
fn watch(args: &MissesArgs) -> Result<Counted> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("cachegrind.out");
    let (personality, files) = (args.workload.name(), args.files.to_string());
    let counts = [args.threads.to_string(), args.operations.to_string()];
    let output = Command::new("valgrind")
        .args(["--tool=cachegrind", "--cache-sim=yes"])
        .args(CACHES)
        .arg(format!("--cachegrind-out-file={}", out.display()))
        .arg(std::env::current_exe()?)
        .arg(SUBCOMMAND)
        .args([Path::new("--pool"), &args.pool])
        .args(["--workload", personality, "--files", &files])
        .args(["--threads", &counts[0], "--operations", &counts[1]])
        .stdin(Stdio::null())
        .output();
    let output = match output {
        Err(error) if error.kind() == ErrorKind::NotFound => bail!("valgrind is not installed"),
        output => output.context("cannot start valgrind")?,
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    // Valgrind's own lines begin so, and some come after the program's.
    let own = errors.lines().rev().find(|line| !line.trim().is_empty() && !line.starts_with("=="));
    let last = own.or_else(|| errors.trim().lines().last()).unwrap_or("");
    ensure!(output.status.success(), "under valgrind: {last}");
    let text = std::fs::read_to_string(&out).context("cannot read what cachegrind wrote")?;
    Counted::parse(&text).context("what cachegrind wrote cannot be right")
}

/// Fills a file system of `index`, and counts the steps of a workload on it.
fn measure(settings: &Settings, index: IndexKind, personality: Personality) -> Result<Misses> {
    let files = watched_files(settings, personality);
    let set = FileSet::new(personality, files);
    let file = sparse_file(Need::of(personality, files.into()).pool_bytes())?;
    let medium = Mapped::from_file(&file, &MediaOptions::new())?;
    let fs = file_system(medium, index, None, inodes_for(files.into()))?;
    let library = Library { fs, bytes: Bytes::Reserved };
    Filled::new(&library, &set, personality, &settings.stop)?;
    drop(library);
    let mut args = MissesArgs {
        pool: PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())),
        workload: personality,
        files,
        threads: settings.own.threads_max(personality),
        operations: 0,
    };
    let before = watch(&args)?;
    args.operations = if settings.quick { QUICK_OPERATIONS } else { OPERATIONS };
    let counted = watch(&args)?.since(before);
    Ok(Misses { counted, operations: args.operations })
}

/// The rows of one index at one workload.
fn rows_of(index: IndexKind, workload: &str, misses: Result<Misses>) -> Vec<Row> {
    let Misses { counted, operations } = match misses {
        Ok(misses) => misses,
        Err(error) => return vec![Row::skipped(index.name(), workload, format!("{error:#}"))],
    };
    let Counted { instructions, asked, missed } = counted;
    let [instructions, asked, missed, operations] =
        [instructions, asked, missed, operations].map(as_f64);
    let figures = [
        ("instructions", "1/operation", instructions / operations),
        ("llc_miss_rate", "%", 100.0 * missed / asked.max(1.0)),
        ("llc_misses", "1/operation", missed / operations),
        ("llc_references", "1/operation", asked / operations),
    ];
    let row = |(metric, unit, value)| Row {
        note: Some("under cachegrind: 15 MiB, 15 ways; blocks are reserved".to_owned()),
        ..exact(index.name(), workload, metric, unit, value)
    };
    figures.map(row).to_vec()
}

/// Counts the misses of every index at the largest file sets. A failed measurement leaves a row with the reason.
///
/// # Errors
/// The user interrupted the run.
pub(super) fn run(settings: &Settings) -> Result<Vec<Row>> {
    let all = WORKLOADS.into_iter().flat_map(|own| IndexKind::ALL.map(|index| (own, index)));
    let titled = all.map(|(own, index)| {
        let (files, threads) = (watched_files(settings, own), settings.own.threads_max(own));
        (own, index, format!("{}, cachegrind", title(own, files, threads)))
    });
    let wanted = titled.filter(|(_, index, workload)| settings.wants(index.name(), workload));
    // A smoke test counts once, because valgrind takes seconds to start.
    let wanted: Vec<_> = wanted.take(if settings.quick { 1 } else { usize::MAX }).collect();
    settings.progress.inc_length(wanted.len() as u64);
    let mut rows = Vec::new();
    for (personality, index, workload) in wanted {
        settings.check_stop()?;
        settings.progress.set_message(format!("{workload}, {}", index.name()));
        rows.extend(rows_of(index, &workload, measure(settings, index, personality)));
        settings.progress.inc(1);
    }
    settings.check_stop()?;
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cachegrind_counts_are_parsed_by_name() {
        let text = "desc: D1 cache\nevents: Ir Dr D1mr DLmr Dw D1mw DLmw\nfn=(0)\n\
                    summary: 100 50 20 4 30 10 2\n";
        let counted = Counted::parse(text).unwrap();
        assert_eq!(counted, Counted { instructions: 100, asked: 30, missed: 6 });
        assert_eq!(
            counted.since(Counted { instructions: 30, asked: 10, missed: 1 }),
            Counted { instructions: 70, asked: 20, missed: 5 }
        );
        for broken in ["", "events: Ir\nsummary: 1\n", "events: D1mr\nsummary: x\n"] {
            assert!(Counted::parse(broken).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn missing_valgrind_leaves_a_row() {
        let error = Err(anyhow::anyhow!("valgrind is not installed"));
        let rows = rows_of(IndexKind::Direct, "webproxy", error);
        assert_eq!(rows.len(), 1);
        assert!(rows[0].value.is_none());
        assert_eq!(rows[0].note.as_deref(), Some("valgrind is not installed"));
    }
}

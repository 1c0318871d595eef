//! Filebench's workloads on each index and in directories: the index study's Table 1 and Figure 2, its choice of node
//! sizes, and Figure 5 of the NTL paper.
//!
//! Invariants: in a round all subjects get the same file set, in direct succession. All numbers of threads of a case
//! share a file set, except for createfiles. A workload does not begin if its data exceed the free space of a directory.
//! With `O_DIRECT` every write has whole blocks.

use std::cell::OnceCell;

use anyhow::{Result, ensure};
use everbyte_fs::IndexKind;

use super::directory::{Access, Directory, Place};
use super::drive::{self, Filled, Outcome};
use super::file_set::FileSet;
use super::personality::{Personality, Step};
use super::place::{self, Need};
use super::target::Target;
use super::{REFERENCE, Settings, title};
use crate::driver::{Grid, Rows};
use crate::rows::{Row, exact, metric};
use crate::stats::as_f64;

const TO_REFERENCE: &str = "rate_to_pmfs_radix";
/// The workload of the study's choice of node sizes.
const SWEPT: Personality = Personality::Fileserver;
/// Subject of the file system in process.
const IN_PROCESS: &str = "everbyte, in process";
/// The workloads of the NTL paper's figure: file, mail and web server.
const SERVERS: [Personality; 3] =
    [Personality::Fileserver, Personality::Varmail, Personality::Webserver];

/// A workload on one file set.
struct Case {
    personality: Personality,
    files: u32,
    set: OnceCell<FileSet>,
    /// The numbers of threads, each with the name of the workload in the results.
    threads: Vec<(usize, String)>,
}

impl Case {
    /// The case with the numbers of threads that the filter selects for a subject.
    fn new(
        settings: &Settings,
        subjects: &[&str],
        (personality, files): (Personality, u32),
        threads: Vec<usize>,
        suffix: &str,
    ) -> Self {
        let threads = threads.into_iter();
        let titled = threads.map(|n| (n, format!("{}{suffix}", title(personality, files, n))));
        let is_wanted = |(_, title): &(usize, String)| {
            subjects.iter().any(|subject| settings.wants(subject, title))
        };
        let threads = titled.filter(is_wanted).collect();
        Self { personality, files, set: OnceCell::new(), threads }
    }

    fn set(&self) -> &FileSet {
        self.set.get_or_init(|| FileSet::new(self.personality, self.files))
    }

    /// Measures every number of threads on targets of `make`.
    fn run<T: Target>(
        &self,
        settings: &Settings,
        mut make: impl FnMut() -> Result<T>,
    ) -> Result<Vec<Outcome>> {
        // createfiles leaves no file to create, so each number of threads gets an empty target.
        let sharing = match self.personality {
            Personality::Createfiles => 1,
            _ => self.threads.len(),
        };
        let mut outcomes = Vec::new();
        for threads in self.threads.chunks(sharing) {
            let target = make()?;
            let filled = Filled::new(&target, self.set(), self.personality, &settings.stop)?;
            for &(threads, _) in threads {
                outcomes.push(drive::run(&filled, &settings.run_of(self.personality, threads))?);
            }
        }
        Ok(outcomes)
    }
}

/// Measures the selected subjects at the cases: a sample has an outcome for each number of threads.
fn measure(
    settings: &Settings,
    subjects: &[&str],
    cases: &[Case],
    does: impl Fn(usize, usize) -> bool,
    mut sample: impl FnMut(usize, usize) -> Result<Vec<Outcome>>,
) -> Result<Grid<Vec<Outcome>>> {
    let titles = cases.iter().map(|case| {
        let titles: Vec<&str> = case.threads.iter().map(|(_, title)| &title[..]).collect();
        titles.join("; ")
    });
    let mut grid = Grid::new(subjects.iter().copied(), titles).select(
        settings,
        |subject| subjects[subject] == REFERENCE.name(),
        |subject, case| !cases[case].threads.is_empty() && does(subject, case),
    );
    grid.measure(settings, |subject, case, _| sample(subject, case))?;
    // An interrupted run has a short last sample.
    settings.check_stop()?;
    Ok(grid)
}

/// The rows of all cells, with ratios to the reference in the same round.
fn rows(grid: &Grid<Vec<Outcome>>, cases: &[Case]) -> Vec<Row> {
    grid.rows(|cell, rows| {
        let (own, base) = (&cell.samples, grid.samples(REFERENCE.name(), cell.workload));
        for (at, (_, title)) in cases[cell.workload].threads.iter().enumerate() {
            let mut of_threads = Rows::new(rows.subject, title);
            of_threads.timed(metric::RATE, "1/s", own.iter().map(|all| all[at].rate()));
            of_threads.ratio(TO_REFERENCE, own, base, |all| all[at].rate());
            of_threads.timed("durable_rate", "1/s", own.iter().map(|all| all[at].durable_rate()));
            let note = own.first().and_then(|all| all[at].note).map(str::to_owned);
            rows.all
                .extend(of_threads.all.into_iter().map(|row| Row { note: note.clone(), ..row }));
        }
    })
}

/// Measures every workload with every index.
///
/// # Errors
/// The user interrupted the run.
pub(super) fn workloads(settings: &Settings) -> Result<Vec<Row>> {
    let subjects = IndexKind::ALL.map(IndexKind::name);
    let sized = |&personality: &Personality| {
        let files = settings.own.files_of(personality);
        files.into_iter().map(move |files| (personality, files))
    };
    let cases: Vec<Case> = Personality::ALL
        .iter()
        .flat_map(sized)
        .map(|of| Case::new(settings, &subjects, of, settings.own.threads_of(of.0), ""))
        .collect();
    let mut kept = None;
    let grid = measure(
        settings,
        &subjects,
        &cases,
        |_, _| true,
        |index, case| {
            let (case, index) = (&cases[case], (IndexKind::ALL[index], None));
            let files = case.files.into();
            case.run(settings, || place::library(&mut kept, index, case.personality, files))
        },
    )?;
    let mut all = rows(&grid, &cases);
    all.extend(table(settings, &grid, &cases));
    Ok(all)
}

/// The lines of the study's Table 1: mean file size, threads and percentage of reads.
fn table(settings: &Settings, grid: &Grid<Vec<Outcome>>, cases: &[Case]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (at, case) in cases.iter().enumerate() {
        let is_largest = case.files == settings.own.files_max();
        let cell = grid.cells.iter().find(|cell| cell.workload == at && is_largest);
        let sample = cell.and_then(|cell| cell.samples.first());
        let last = sample.and_then(|all| all.last()).zip(case.threads.last());
        let Some((outcome, (threads, _))) = last else { continue };
        let sum = |steps: &[Step]| as_f64(steps.iter().map(|&step| outcome.count(step)).sum());
        let reads = sum(&[Step::ReadWhole]);
        let writes = sum(&[Step::WriteWhole, Step::Append, Step::AppendLog]);
        let mut push = |metric, unit, value| {
            rows.push(exact("everbyte", case.personality.name(), metric, unit, value));
        };
        push("file_size", "KiB", case.set().mean_bytes() / 1024.0);
        push("threads", "", as_f64(*threads as u64));
        push("reads", "%", 100.0 * reads / (reads + writes).max(1.0));
    }
    rows
}

/// Measures fileserver with the most files on every index with nodes, with every size of nodes.
///
/// # Errors
/// The user interrupted the run.
pub(super) fn nodes(settings: &Settings) -> Result<Vec<Row>> {
    let trees: Vec<IndexKind> =
        IndexKind::ALL.into_iter().filter(|index| index.is_tree()).collect();
    let subjects: Vec<&str> = trees.iter().map(|index| index.name()).collect();
    let files = settings.own.files_max();
    let sizes = settings.own.node_bytes.iter();
    let of_size = |bytes| {
        let (threads, suffix) = (settings.own.threads_max(SWEPT), format!(", nodes of {bytes} B"));
        Case::new(settings, &subjects, (SWEPT, files), vec![threads], &suffix)
    };
    let cases: Vec<Case> = sizes.map(of_size).collect();
    let mut kept = None;
    let grid = measure(
        settings,
        &subjects,
        &cases,
        |_, _| true,
        |tree, case| {
            let index = (trees[tree], Some(settings.own.node_bytes[case]));
            cases[case].run(settings, || place::library(&mut kept, index, SWEPT, files.into()))
        },
    )?;
    Ok(rows(&grid, &cases))
}

/// Measures every workload in process and in every directory, and servers in directories without page cache too.
///
/// # Errors
/// The user interrupted the run.
pub(super) fn directories(settings: &Settings) -> Result<Vec<Row>> {
    let (places, files) = (&settings.own.directories, settings.own.directory_files);
    if places.is_empty() {
        return Ok(Vec::new());
    }
    let names = places.iter().map(|place| &place.name[..]);
    let subjects: Vec<&str> = std::iter::once(IN_PROCESS).chain(names).collect();
    let buffered = Personality::ALL.map(|personality| (personality, Access::Buffered));
    let direct = SERVERS.map(|personality| (personality, Access::Direct));
    let kinds = [&buffered[..], &direct].concat();
    let of_kind = |&(personality, access): &(Personality, Access)| {
        let suffix = if access == Access::Direct { ", direct" } else { "" };
        let threads = settings.own.threads_of(personality);
        Case::new(settings, &subjects, (personality, files), threads, suffix)
    };
    let cases: Vec<Case> = kinds.iter().map(of_kind).collect();
    let does = |subject: usize, case: usize| subject > 0 || kinds[case].1 == Access::Buffered;
    let grid = measure(settings, &subjects, &cases, does, |subject, case| {
        let (case, (personality, access)) = (&cases[case], kinds[case]);
        match subject.checked_sub(1) {
            Some(at) => case.run(settings, || open(&places[at], access, case)),
            // A directory's file system allocates its memory during the measurement, so this one does too.
            None => case.run(settings, || place::new_library(personality, files.into())),
        }
    })?;
    Ok(rows(&grid, &cases))
}

fn open(place: &Place, access: Access, case: &Case) -> Result<Directory> {
    let (need, free) = (Need::of(case.personality, case.files.into()), place.free_bytes()?);
    ensure!(
        need.data <= free,
        "the files take {} MiB, and {} has {} MiB free",
        need.data >> 20,
        place.path.display(),
        free >> 20
    );
    place.open(access)
}

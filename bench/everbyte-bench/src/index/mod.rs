//! The suite of indexes over inode tables: Filebench's workloads on our file system in process and in
//! directories.
//!
//! Remakes the experiments of a study of index structures in PMFS (createfiles, fileserver, webproxy and
//! webserver with five indexes, and their misses of the last-level cache), and Figure 5 of the NTL paper,
//! whose workloads are Filebench's file, mail and web server through the page cache and past it.

mod cases;
mod choice;
mod collected;
pub(crate) mod command;
mod directories;
pub(crate) mod directory;
pub(crate) mod drive;
pub(crate) mod file_set;
pub(crate) mod library;
pub(crate) mod memory;
pub(crate) mod misses;
pub(crate) mod personality;
mod picker;
pub(crate) mod place;
mod published;
mod series;
mod share;
mod sweeps;
pub(crate) mod target;

use std::ops::Deref;

use anyhow::Result;
use clap::ValueEnum;
use everbyte_fs::IndexKind;

use crate::driver::Rounds;
use crate::rows::Row;
use collected::Collected;
use directory::Place;
use drive::{Bound, Run};
use memory::Memory;
use personality::Personality;
use place::Need;

/// The index that the paper's file system has, and the reference of the others.
const REFERENCE: IndexKind = IndexKind::PmfsRadix;

/// The parts of the suite.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Part {
    /// Filebench's workloads with each index.
    Workloads,
    /// Sizes of nodes on the fileserver workload.
    Nodes,
    /// Inode tables and pages of 4 KiB and 2 MiB.
    Sizes,
    /// Misses of the last-level cache, by cachegrind.
    Misses,
    /// Filebench's workloads in directories.
    Directories,
}

/// Settings of a run.
pub(crate) struct Settings<'a> {
    /// Sizes of the file sets, ascending.
    files: Vec<u32>,
    /// Sizes that only createfiles has besides.
    create_files: Vec<u32>,
    /// Size of the file sets in directories.
    directory_files: u32,
    indexes: Vec<IndexKind>,
    personalities: Vec<Personality>,
    /// Threads, where they are not 1, 2 and the paper's.
    threads: Option<Vec<usize>>,
    node_bytes: Vec<u32>,
    places: Vec<Place>,
    /// Operations of a run, instead of a slice of time.
    operations: Option<u64>,
    /// Memory that the file systems lie in which are compared, one after the other.
    memory: Memory,
    run: &'a Rounds,
}

impl Deref for Settings<'_> {
    type Target = Rounds;

    fn deref(&self) -> &Rounds {
        self.run
    }
}

impl Settings<'_> {
    /// Sizes of the file sets of a workload.
    fn files_of(&self, personality: Personality) -> Vec<u32> {
        let mut files = self.files.clone();
        if personality == Personality::Createfiles {
            files.extend(&self.create_files);
            files.sort_unstable();
            files.dedup();
        }
        files
    }

    fn files_max(&self) -> u32 {
        self.files.iter().copied().max().unwrap_or_default()
    }

    fn files_min(&self) -> u32 {
        self.files.iter().copied().min().unwrap_or_default()
    }

    /// Numbers of threads of a workload, ascending; the last one is the paper's.
    fn threads_of(&self, personality: Personality) -> Vec<usize> {
        self.threads.clone().unwrap_or_else(|| vec![1, 2, personality.threads()])
    }

    fn most_threads(&self, personality: Personality) -> usize {
        self.threads_of(personality).last().copied().unwrap_or(1)
    }

    fn run_of(&self, personality: Personality, threads: usize) -> Run<'_> {
        let bound = match (self.operations, personality) {
            (Some(operations), _) => Bound::Operations(operations),
            (None, Personality::Createfiles) => Bound::Whole,
            (None, _) => Bound::Time(self.slice),
        };
        Run { personality, threads, bound, stop: &self.stop }
    }

    /// The name of a workload in the results.
    fn title(&self, personality: Personality, files: u32, threads: usize) -> String {
        title(personality, files, threads)
    }

    /// Checks, before anything is measured, that the workloads fit into memory and the directories are
    /// such.
    ///
    /// # Errors
    /// What is short, or which directory cannot be used.
    fn check(&self, wants: &impl Fn(Part) -> bool) -> Result<()> {
        if wants(Part::Directories) {
            self.places.iter().try_for_each(Place::check)?;
        }
        if [Part::Workloads, Part::Nodes, Part::Sizes, Part::Misses].into_iter().any(wants) {
            for &personality in &self.personalities {
                let most = self.files_of(personality).into_iter().max().unwrap_or_default();
                let what = format!("{} with {most} files", personality.name());
                Need::of(personality, u64::from(most)).bytes().map_err(|e| e.context(what))?;
            }
        }
        Ok(())
    }
}

/// The name of a workload in the results.
pub(crate) fn title(personality: Personality, files: u32, threads: usize) -> String {
    let s = if threads == 1 { "" } else { "s" };
    format!("{}, {files} files, {threads} thread{s}", personality.name())
}

/// Measures the parts that `wants` names.
///
/// # Errors
/// What is measured does not fit, or it is to stop.
fn run(settings: &Settings<'_>, wants: impl Fn(Part) -> bool) -> Result<Vec<Row>> {
    settings.check(&wants)?;
    let (mut rows, mut workloads) = (Vec::new(), Collected::default());
    if wants(Part::Workloads) {
        let (outcomes, of_workloads) = series::run(settings)?;
        workloads = outcomes;
        rows.extend(of_workloads);
    }
    if wants(Part::Nodes) {
        rows.extend(sweeps::nodes(settings)?);
    }
    if wants(Part::Sizes) {
        rows.extend(sweeps::sizes(settings)?);
    }
    if wants(Part::Misses) {
        rows.extend(misses::run(settings)?);
    }
    if wants(Part::Directories) && !settings.places.is_empty() {
        rows.extend(directories::run(settings)?);
    }
    rows.extend(choice::rows(settings, &workloads, &rows));
    rows.extend(published::rows(settings));
    Ok(rows)
}

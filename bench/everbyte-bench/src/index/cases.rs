//! One workload on one target, with every number of threads.
//!
//! Invariants: a file set is made once for all numbers of threads, except for workloads of creation. The next number of
//! threads begins with the remaining files. A failure is an outcome and stops no other measurement.

use anyhow::Result;

use super::Settings;
use super::drive::{self, Filled, Outcome};
use super::file_set::FileSet;
use super::library::{Bytes, Library};
use super::personality::Personality;
use super::place::{self, Setting};
use super::target::Target;

/// A workload on a file set, with the numbers of threads.
pub(super) struct Case<'a> {
    pub(super) personality: Personality,
    pub(super) set: &'a FileSet,
    pub(super) threads: Vec<usize>,
}

/// A target, and what readers of its rows must know.
pub(super) struct Made<T> {
    pub(super) target: T,
    pub(super) note: Option<&'static str>,
}

impl Case<'_> {
    fn files(&self) -> u64 {
        self.set.entries.len() as u64
    }
}

impl Made<Library> {
    fn library(target: Library) -> Self {
        let note = match target.bytes() {
            Bytes::Stored => None,
            Bytes::Reserved => Some(
                "data exceed memory: blocks are reserved and not stored, and reading one fills 4 KiB with zeroes",
            ),
        };
        Self { target, note }
    }
}

/// Outcomes with their threads, and notes.
pub(super) type Outcomes = Vec<(usize, Option<&'static str>, Result<Outcome>)>;

/// Runs a case on what `make` makes. Nothing that fails keeps the rest from being measured.
pub(super) fn measure<T: Target>(
    settings: &Settings<'_>,
    case: &Case<'_>,
    make: impl Fn() -> Result<Made<T>>,
) -> Outcomes {
    measure_and(settings, case, make, |_| ())
}

/// The same, and calls `then` with each file set that was made, as the runs left it.
pub(super) fn measure_and<T: Target>(
    settings: &Settings<'_>,
    case: &Case<'_>,
    make: impl Fn() -> Result<Made<T>>,
    mut then: impl FnMut(&Filled<'_, T>),
) -> Outcomes {
    let personality = case.personality;
    let mut on = |made: &Made<T>, all: &[usize]| -> Result<Outcomes> {
        let filled = Filled::new(&made.target, case.set, personality, &settings.stop)?;
        let outcomes = all.iter().map(|&threads| {
            let outcome = drive::run(&filled, &settings.run_of(personality, threads));
            (threads, made.note, outcome)
        });
        let outcomes = outcomes.collect();
        then(&filled);
        Ok(outcomes)
    };
    // Who makes the file set begins with none, each time.
    let parts = match personality {
        Personality::Createfiles => case.threads.chunks(1).collect(),
        _ => vec![&case.threads[..]],
    };
    let measured = parts.into_iter().flat_map(|threads| {
        make().and_then(|made| on(&made, threads)).unwrap_or_else(|error| {
            let why = format!("{error:#}");
            threads.iter().map(|&count| (count, None, Err(anyhow::anyhow!(why.clone())))).collect()
        })
    });
    measured.collect()
}

/// Our file system for a case, in the memory that all such are made in.
pub(super) fn make_library(
    settings: &Settings<'_>,
    setting: &Setting,
    case: &Case<'_>,
) -> Result<Made<Library>> {
    place::library(&settings.memory, setting, case.personality, case.files()).map(Made::library)
}

/// The same, in memory that nobody has touched.
pub(super) fn make_new_library(setting: &Setting, case: &Case<'_>) -> Result<Made<Library>> {
    place::new_library(setting, case.personality, case.files()).map(Made::library)
}

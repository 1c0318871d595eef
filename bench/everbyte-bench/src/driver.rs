//! The driver of the suites: common options, scratch folder, rounds, filter, progress, results.
//!
//! Invariants: subjects take turns within a round, so noise longer than a slice affects all subjects. A ratio compares two
//! subjects in the same round. An impossible measurement leaves a row with the reason.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use tempfile::TempDir;

use crate::environment::Environment;
use crate::filter::Filter;
use crate::rows::{Results, Row, exact, timed};
use crate::table;

/// Options of every suite.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Common {
    /// Run a smoke test of seconds. Its figures mean nothing.
    #[arg(long)]
    quick: bool,
    /// Write only the results to standard output, as JSON.
    #[arg(long)]
    json: bool,
    /// Write the results as JSON to a file.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    filter: Filter,
    /// Number of rounds. Figures are medians over the rounds. Each suite has its own default.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeats: Option<u16>,
    /// Seconds of a subject for a workload in a round. Each suite has its own default.
    #[arg(long, value_parser = seconds)]
    seconds: Option<Duration>,
    /// Folder for devices and stores, on tmpfs or on SCM.
    #[arg(long, default_value = "/dev/shm", value_name = "FOLDER")]
    folder: PathBuf,
}

/// Rounds, and seconds of a slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) rounds: usize,
    pub(crate) slice_s: f64,
}

/// Results of a suite.
pub(crate) struct Findings {
    pub(crate) rows: Vec<Row>,
    /// Description of the medium.
    pub(crate) medium: String,
    /// Bytes of a device, or 0.
    pub(crate) size_bytes: u64,
    /// Names of failed measurements that are possible. The run fails after it has written its results.
    pub(crate) failures: Vec<String>,
}

impl Findings {
    pub(crate) fn new(rows: Vec<Row>, medium: String, size_bytes: u64) -> Self {
        Self { rows, medium, size_bytes, failures: Vec::new() }
    }
}

/// A suite: its options are its arguments.
pub(crate) trait Suite: clap::Args + Clone {
    /// Name in the results.
    const NAME: &'static str;
    /// Pace of a run.
    const PACE: Pace;
    /// Pace of a smoke test.
    const QUICK: Pace;

    /// The common options.
    fn common(&self) -> &Common;

    /// Changes the options to those of a smoke test.
    fn shorten(&mut self) {}

    /// Measures.
    ///
    /// # Errors
    /// A subject of ours fails, or the run is interrupted.
    fn measure(run: &Run<Self>) -> Result<Findings>;
}

/// A run of a suite.
pub(crate) struct Run<S> {
    /// Options of the suite.
    pub(crate) own: S,
    pub(crate) pace: Rounds,
}

/// The part of a run without a suite's own options.
pub(crate) struct Rounds {
    pub(crate) rounds: usize,
    pub(crate) slice: Duration,
    pub(crate) filter: Filter,
    pub(crate) quick: bool,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) progress: ProgressBar,
    folder: TempDir,
}

impl<S> Deref for Run<S> {
    type Target = Rounds;

    fn deref(&self) -> &Rounds {
        &self.pace
    }
}

impl Rounds {
    /// The scratch folder. The run removes it at its end.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns true if the filter selects `subject` at `workload`.
    pub(crate) fn wants(&self, subject: &str, workload: &str) -> bool {
        self.filter.wants(&format!("{subject} {workload}"))
    }

    /// # Errors
    /// The user interrupted the run.
    pub(crate) fn check_stop(&self) -> Result<()> {
        ensure!(!self.stop.load(Ordering::Relaxed), "stopped");
        Ok(())
    }

    /// A run of a test in `folder`.
    #[cfg(test)]
    pub(crate) fn of_test(rounds: usize, slice: Duration) -> Self {
        Self {
            rounds,
            slice,
            filter: Filter::default(),
            quick: true,
            stop: Arc::default(),
            progress: ProgressBar::hidden(),
            folder: tempfile::tempdir_in("/dev/shm").expect("a folder for a test"),
        }
    }
}

/// Runs a suite and writes its results.
///
/// # Errors
/// The suite's; a destination cannot be written.
pub(crate) fn drive<S: Suite>(args: &S) -> Result<()> {
    let (mut own, common) = (args.clone(), args.common().clone());
    let Pace { rounds, slice_s } = if common.quick { S::QUICK } else { S::PACE };
    // A smoke test stays short, also with options of a longer run.
    let rounds = common.repeats.filter(|_| !common.quick).map_or(rounds, usize::from);
    let slice = common.seconds.filter(|_| !common.quick);
    let slice = slice.unwrap_or(Duration::from_secs_f64(slice_s));
    if common.quick {
        own.shorten();
    }
    let folder = tempfile::Builder::new().prefix("everbyte-bench.").tempdir_in(&common.folder);
    let folder = folder.with_context(|| format!("cannot use {}", common.folder.display()))?;
    let pace = Rounds {
        rounds,
        slice,
        filter: common.filter,
        quick: common.quick,
        stop: stop_flag()?,
        progress: progress_bar()?,
        folder,
    };
    let mut environment =
        Environment::new(&common.folder, rounds, slice.as_secs_f64(), common.quick);
    let run = Run { own, pace };
    let Findings { rows, medium, size_bytes, failures } = S::measure(&run)?;
    run.progress.finish_and_clear();
    (environment.medium, environment.size_bytes) = (medium, size_bytes);
    // Failed measurements do not discard the rows of the others.
    let results = Results { suite: S::NAME, environment, rows };
    table::publish(&results, common.json, common.output.as_deref())?;
    ensure!(failures.is_empty(), "some measurements failed: {}", failures.join("; "));
    Ok(())
}

/// Reads a time in seconds from the command line.
///
/// # Errors
/// The text is not a number, negative, or too large.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected seconds, as 0.5".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// A flag for SIGINT and SIGTERM. The second signal ends the process.
///
/// # Errors
/// The system's.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // This handler comes first: it must see the flag before the next handler sets it.
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

fn progress_bar() -> Result<ProgressBar> {
    let progress = ProgressBar::new(0);
    progress.set_style(ProgressStyle::with_template("{elapsed} [{wide_bar}] {eta} {msg}")?);
    Ok(progress)
}

/// Does `work` on `count` threads in parallel, and returns the results by the threads' numbers.
///
/// # Errors
/// The work's.
pub(crate) fn on_threads<T: Send>(
    count: usize,
    work: impl Fn(usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..count).map(|number| scope.spawn(move || work(number))).collect();
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow!("a thread panicked")).flatten());
        joined.collect()
    })
}

/// Samples of a subject at a workload, or the reason for their absence.
pub(crate) struct Cell<T> {
    pub(crate) subject: usize,
    pub(crate) workload: usize,
    pub(crate) samples: Vec<T>,
    pub(crate) failed: Option<String>,
}

impl<T> Cell<T> {
    fn new(subject: usize, workload: usize) -> Self {
        Self { subject, workload, samples: Vec::new(), failed: None }
    }

    fn push(&mut self, sample: impl FnOnce() -> Result<T>) {
        // A failed subject would fail again, and take the time of a slice.
        if self.failed.is_none() {
            match sample() {
                Ok(sample) => self.samples.push(sample),
                Err(error) => self.failed = Some(format!("{error:#}")),
            }
        }
    }
}

/// Subjects by workloads.
pub(crate) struct Grid<T> {
    pub(crate) subjects: Vec<String>,
    pub(crate) workloads: Vec<String>,
    pub(crate) cells: Vec<Cell<T>>,
}

impl<T> Grid<T> {
    /// A grid without cells.
    pub(crate) fn new(
        subjects: impl IntoIterator<Item = impl Into<String>>,
        workloads: impl IntoIterator<Item = impl ToString>,
    ) -> Self {
        let subjects = subjects.into_iter().map(Into::into).collect();
        let workloads = workloads.into_iter().map(|workload| workload.to_string()).collect();
        Self { subjects, workloads, cells: Vec::new() }
    }

    /// Adds the cells that the filter selects, workload by workload. A workload with a selected cell also
    /// gets the cells of its references. `does` returns false if a subject has no part in a workload.
    #[must_use]
    pub(crate) fn select(
        mut self,
        run: &Rounds,
        is_reference: impl Fn(usize) -> bool,
        does: impl Fn(usize, usize) -> bool,
    ) -> Self {
        for (workload, title) in self.workloads.iter().enumerate() {
            let all = 0..self.subjects.len();
            let own: Vec<usize> = all.filter(|&subject| does(subject, workload)).collect();
            let is_wanted = |&subject: &usize| run.wants(&self.subjects[subject], title);
            if !own.iter().any(is_wanted) {
                continue;
            }
            // Without its reference a selected cell has no ratio.
            let kept = own.iter().filter(|at| is_wanted(at) || is_reference(**at));
            self.cells.extend(kept.map(|&subject| Cell::new(subject, workload)));
        }
        self
    }

    /// A grid with a cell for each pair of a subject and a workload, in this order.
    pub(crate) fn of_pairs(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        let (subjects, workloads): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let cells = (0..subjects.len()).map(|at| Cell::new(at, at)).collect();
        Self { subjects, workloads, cells }
    }

    /// Takes a sample of each cell in each round. A failure ends a cell's samples.
    ///
    /// # Errors
    /// The user interrupted the run.
    pub(crate) fn measure(
        &mut self,
        run: &Rounds,
        sample: impl FnMut(usize, usize, usize) -> Result<T>,
    ) -> Result<()> {
        self.measure_rounds(run, run.rounds, sample)
    }

    /// Takes samples as [`Self::measure`], in `rounds` rounds.
    ///
    /// # Errors
    /// The user interrupted the run.
    pub(crate) fn measure_rounds(
        &mut self,
        run: &Rounds,
        rounds: usize,
        mut sample: impl FnMut(usize, usize, usize) -> Result<T>,
    ) -> Result<()> {
        run.progress.inc_length((self.cells.len() * rounds) as u64);
        for round in 0..rounds {
            for of_workload in self.cells.chunk_by_mut(|one, other| one.workload == other.workload)
            {
                // Another subject is the first in each round: an advantage of a place would favor one subject.
                let first = round % of_workload.len();
                let (last, rest) = of_workload.split_at_mut(first);
                for cell in rest.iter_mut().chain(last) {
                    // An interrupted run publishes nothing: its rounds would be incomplete.
                    run.check_stop()?;
                    let (subject, workload) = (cell.subject, cell.workload);
                    let title = &self.workloads[workload];
                    run.progress.set_message(format!("{}: {title}", self.subjects[subject]));
                    cell.push(|| sample(subject, workload, round));
                    run.progress.inc(1);
                }
            }
        }
        Ok(())
    }

    /// Refuses failures, in suites without foreign subjects.
    ///
    /// # Errors
    /// The first failure of a cell.
    pub(crate) fn check(&self) -> Result<()> {
        for cell in &self.cells {
            if let Some(why) = &cell.failed {
                bail!(
                    "{} on {}: {why}",
                    self.workloads[cell.workload],
                    self.subjects[cell.subject]
                );
            }
        }
        Ok(())
    }

    /// The samples of another subject at a workload.
    pub(crate) fn samples(&self, subject: &str, workload: usize) -> Option<&[T]> {
        let is_it =
            |cell: &&Cell<T>| cell.workload == workload && self.subjects[cell.subject] == subject;
        self.cells.iter().find(is_it).map(|cell| &cell.samples[..])
    }

    /// The samples of another subject at the workload of `cell`.
    pub(crate) fn base(&self, cell: &Cell<T>, subject: &str) -> Option<&[T]> {
        // A ratio of a subject to itself says nothing.
        if self.subjects[cell.subject] == subject {
            return None;
        }
        self.samples(subject, cell.workload)
    }

    /// The rows of all cells: those of `of`, or the reason for a failure.
    pub(crate) fn rows(&self, of: impl Fn(&Cell<T>, &mut Rows<'_>)) -> Vec<Row> {
        let rows = self.cells.iter().flat_map(|cell| {
            let (subject, workload) =
                (&self.subjects[cell.subject], &self.workloads[cell.workload]);
            let mut rows = Rows::new(subject, workload);
            match &cell.failed {
                Some(why) => rows.all.push(Row::skipped(subject, workload, why.clone())),
                None => of(cell, &mut rows),
            }
            rows.all
        });
        rows.collect()
    }
}

/// Rows of a subject at a workload.
pub(crate) struct Rows<'a> {
    pub(crate) subject: &'a str,
    pub(crate) workload: &'a str,
    pub(crate) all: Vec<Row>,
}

impl<'a> Rows<'a> {
    pub(crate) fn new(subject: &'a str, workload: &'a str) -> Self {
        Self { subject, workload, all: Vec::new() }
    }

    /// Adds a figure with a value for each round, if it has values.
    pub(crate) fn timed(
        &mut self,
        metric: &'static str,
        unit: &'static str,
        figures: impl IntoIterator<Item = f64>,
    ) {
        let figures: Vec<f64> = figures.into_iter().collect();
        self.all.extend(timed(self.subject, self.workload, metric, unit, &figures));
    }

    /// Adds an exact figure.
    pub(crate) fn exact(&mut self, metric: &'static str, unit: &'static str, value: f64) {
        self.all.push(exact(self.subject, self.workload, metric, unit, value));
    }

    /// Adds the ratio of a figure to the figure of `base` in the same round.
    pub(crate) fn ratio<T>(
        &mut self,
        metric: &'static str,
        own: &[T],
        base: Option<&[T]>,
        of: impl Fn(&T) -> f64,
    ) {
        // Samples have the order of the rounds, so a pair is of one round.
        let pairs = own.iter().zip(base.unwrap_or_default());
        self.timed(metric, "ratio", pairs.map(|(own, base)| of(own) / of(base)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_take_turns_within_a_round() {
        let run = Rounds::of_test(2, Duration::ZERO);
        let mut grid = Grid::new(["one", "other"], ["w", "x"]).select(&run, |_| false, |_, _| true);
        let mut taken = Vec::new();
        grid.measure(&run, |subject, workload, round| {
            taken.push((round, workload, subject));
            Ok(())
        })
        .unwrap();
        let first = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)];
        assert_eq!(taken[..4], first);
        assert_eq!(taken[4..], [(1, 0, 1), (1, 0, 0), (1, 1, 1), (1, 1, 0)]);
    }

    #[test]
    fn failure_ends_samples_and_fills_a_row() {
        let run = Rounds::of_test(3, Duration::ZERO);
        let mut grid = Grid::of_pairs([("a".to_owned(), "w".to_owned())]);
        grid.measure(&run, |_, _, round| if round == 1 { bail!("full") } else { Ok(1.0) }).unwrap();
        assert_eq!(grid.check().unwrap_err().to_string(), "w on a: full");
        let rows = grid.rows(|cell, rows| rows.timed("m", "s", cell.samples.iter().copied()));
        assert_eq!((rows.len(), rows[0].note.as_deref()), (1, Some("full")));
    }

    #[test]
    fn threads_return_results_in_order() {
        assert_eq!(on_threads(3, |number| Ok(2 * number)).unwrap(), [0, 2, 4]);
        assert!(on_threads(2, |number| if number == 1 { bail!("no") } else { Ok(()) }).is_err());
    }
}

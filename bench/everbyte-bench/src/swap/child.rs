//! One measurement in its own process, so the counters of the process are those of the measurement.
//!
//! The parent passes a [`Task`] and reads a [`Report`], both as JSON.

use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::access::{Owner, Pattern};
use super::ft;
use super::meter::Costs;
use super::place::Place;
use super::serve::{self, Served};
use super::subjects::Subject;
use super::task::{Load, Task, TaskArgs};

/// Hidden subcommands.
const CHILD: &str = "swap-child";
const GUARDIAN: &str = "swap-guardian";
/// Time between two checks of a child.
const PAUSE: Duration = Duration::from_millis(20);

/// Findings of a measurement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Outcome {
    /// Costs without the fill of touched pages.
    pub(super) costs: Costs,
    pub(super) served: Option<Served>,
}

/// Answer of a child or a guardian.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Report {
    /// `None` if the measurement exceeded its time, or the kernel killed every attempt.
    pub(super) outcome: Option<Outcome>,
    /// Settings of kernel swap as reported by the kernel.
    pub(super) settings: Option<String>,
}

/// Runs as a child.
///
/// # Errors
/// The first failure, for example wrong contents.
pub(crate) fn run(args: &TaskArgs) -> Result<()> {
    let task = args.task()?;
    let outcome = match task.load {
        Load::Serve { bytes } => {
            Outcome { served: Some(serve::run(&task, bytes)?), ..Outcome::default() }
        }
        Load::Ft(class) => page(&task, |place| {
            let before = Costs::now(place)?;
            ft::solve(class, place.words(), task.threads)?;
            Ok(Costs::now(place)?.since(before))
        })?,
        Load::Touch { pattern, stores, warm, count, .. } => {
            page(&task, |place| touch(place, task.threads, pattern, stores, (warm, count)))?
        }
    };
    let report = Report { outcome: Some(outcome), settings: None };
    writeln!(io::stdout(), "{}", serde_json::to_string(&report)?)?;
    Ok(())
}

fn page(task: &Task, work: impl FnOnce(&Place) -> Result<Costs>) -> Result<Outcome> {
    let place = Place::map(task)?;
    let costs = work(&place)?;
    // A failed or full store stops paging, not accesses, so only this check reports it.
    if let Place::Region(region, ..) = &place {
        region.check()?;
    }
    Ok(Outcome { costs, served: None })
}

fn touch(
    place: &Place,
    threads: usize,
    pattern: Pattern,
    stores: bool,
    (warm, count): (u64, u64),
) -> Result<Costs> {
    let mut owners = Owner::fill(place.words(), threads);
    let share = |count: u64| count / threads as u64;
    // Brings the resident pages into the steady state of the pattern.
    on_all(&mut owners, |owner, seed| owner.touch(pattern, stores, share(warm), seed))?;
    // New seeds: a repetition of the same accesses would find other pages in DRAM than new accesses.
    let before = Costs::now(place)?;
    on_all(&mut owners, |owner, seed| owner.touch(pattern, stores, share(count), seed + 100))?;
    let costs = Costs::now(place)?.since(before);
    // Not measured: the check touches every page.
    on_all(&mut owners, |owner, _| owner.check_all())?;
    Ok(costs)
}

/// Runs `work` for each owner in its own thread.
fn on_all<'a>(
    owners: &mut [Owner<'a>],
    work: impl Fn(&mut Owner<'a>, u64) -> Result<()> + Sync,
) -> Result<()> {
    let work = &work;
    std::thread::scope(|scope| {
        let numbered = owners.iter_mut().zip(1u64..);
        let running: Vec<_> =
            numbered.map(|(owner, seed)| scope.spawn(move || work(owner, seed))).collect();
        running.into_iter().try_for_each(|thread| thread.join().expect("no worker panics"))
    })
}

/// Takes a measurement in a child, under kernel swap in a child of a guardian.
///
/// # Errors
/// The child or the guardian fails, or `should_stop` returns true.
pub(super) fn measure(task: &Task, should_stop: impl Fn() -> bool) -> Result<Report> {
    match task.subject {
        // The guardian keeps the limit for its child.
        Subject::Kernel(_) => supervised(GUARDIAN, task, Duration::MAX, should_stop),
        _ => measure_here(task, should_stop),
    }
}

/// Takes a measurement in a child. Kills the child at the limit.
///
/// # Errors
/// The child fails, or `should_stop` returns true.
pub(super) fn measure_here(task: &Task, should_stop: impl Fn() -> bool) -> Result<Report> {
    supervised(CHILD, task, task.limit, should_stop)
}

fn supervised(
    subcommand: &str,
    task: &Task,
    limit: Duration,
    should_stop: impl Fn() -> bool,
) -> Result<Report> {
    let mut child = Command::new(std::env::current_exe()?)
        .args([subcommand, &serde_json::to_string(task)?])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {subcommand}"))?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let is_late = start.elapsed() > limit;
        if is_late || should_stop() {
            // The guardian ends at the end of its input, after it removed everything.
            drop(child.stdin.take());
            if subcommand == CHILD {
                // A killed child leaves only files, in folders of its parent.
                child.kill()?;
            }
            child.wait()?;
            ensure!(is_late, "stopped");
            return Ok(Report { outcome: None, settings: None });
        }
        std::thread::sleep(PAUSE);
    };
    if !status.success() {
        bail!("{task:?} ended with {status}");
    }
    let output = io::read_to_string(child.stdout.take().context("a child has no output")?)?;
    Ok(serde_json::from_str(&output)?)
}

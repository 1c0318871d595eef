//! One measurement, in a process of its own, so that its counters are its alone.
//!
//! The parent passes a [`Task`] and reads an [`Outcome`], both as JSON.

use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::access::{Owner, Pattern};
use super::ft::{self, Class, Part};
use super::meter::{Costs, Meter};
use super::moves;
use super::place::{Backing, PAGE, Place};
use super::serve::{self, Serve, Served};

/// The name of the subcommand, which people do not see.
const SUBCOMMAND: &str = "swap-child";
/// Time between two looks at a child.
const LOOK: Duration = Duration::from_millis(20);

/// A measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) backing: Backing,
    pub(super) load: Load,
    pub(super) threads: usize,
}

/// The work of a measurement.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Load {
    /// Pages of `bytes` bytes are filled, touched `warm` times and then `count` times.
    Touch {
        pattern: Pattern,
        stores: bool,
        bytes: u64,
        warm: u64,
        count: u64,
    },
    Ft(Class),
    /// Pages of `bytes` bytes are filled; then the first `moved` bytes move to DRAM and out of it, `turns` times,
    /// as a region in direct mode is told to.
    Move {
        bytes: u64,
        moved: u64,
        turns: u64,
    },
    /// A server of others is started, filled and loaded.
    Serve(Serve),
}

impl Load {
    /// Bytes of memory.
    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::Touch { bytes, .. } | Self::Move { bytes, .. } => bytes,
            Self::Ft(class) => (8 * ft::words(class) as u64).next_multiple_of(PAGE),
            Self::Serve(serve) => serve.bytes_max(),
        }
    }
}

/// Findings of a measurement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Outcome {
    /// Costs by part, without the filling of what is touched.
    pub(super) parts: Vec<(String, Costs)>,
    /// Of a server.
    pub(super) served: Option<Served>,
}

impl Outcome {
    fn of(parts: Vec<(String, Costs)>) -> Self {
        Self { parts, served: None }
    }

    pub(super) fn total(&self) -> Costs {
        self.parts.iter().fold(Costs::default(), |sum, (_, costs)| sum.plus(*costs))
    }
}

/// Takes one measurement of the swap suite.
#[derive(clap::Args)]
pub(crate) struct SwapChildArgs {
    /// The measurement, as JSON.
    task: String,
}

/// Runs as a child.
///
/// # Errors
/// The first failure; wrong contents among them.
pub(crate) fn run(args: &SwapChildArgs) -> Result<()> {
    let task: Task = serde_json::from_str(&args.task)?;
    let outcome = match task.load {
        Load::Serve(serve) => {
            Outcome { served: Some(serve::run(&task.backing, serve)?), ..Outcome::default() }
        }
        load => page(&task, load)?,
    };
    writeln!(io::stdout(), "{}", serde_json::to_string(&outcome)?)?;
    Ok(())
}

fn page(task: &Task, load: Load) -> Result<Outcome> {
    let mut place = Place::map(&task.backing, load.bytes())?;
    let outcome = match load {
        Load::Move { moved, turns, .. } => {
            Outcome::of(moves::run(&mut place, moved, turns)?.into())
        }
        Load::Touch { pattern, stores, warm, count, .. } => {
            let meter = Meter::new(&place);
            touch(&place, &meter, task.threads, pattern, stores, (warm, count))?
        }
        Load::Ft(class) => run_ft(&place, &Meter::new(&place), task.threads, class)?,
        Load::Serve(_) => bail!("a server is no memory of this process"),
    };
    if let Place::Region(region, ..) = &place {
        region.check()?;
    }
    Ok(outcome)
}

fn touch(
    place: &Place,
    meter: &Meter<'_>,
    threads: usize,
    pattern: Pattern,
    stores: bool,
    (warm, count): (u64, u64),
) -> Result<Outcome> {
    let mut owners = Owner::fill(place.words(), threads);
    let share = |count: u64| count / threads as u64;
    on_all(&mut owners, |owner, seed| owner.touch(pattern, stores, share(warm), seed))?;
    let before = meter.read()?;
    on_all(&mut owners, |owner, seed| owner.touch(pattern, stores, share(count), seed + 100))?;
    let costs = meter.read()?.since(before);
    on_all(&mut owners, |owner, _| owner.check_all())?;
    Ok(Outcome::of(vec![(pattern.name().to_owned(), costs)]))
}

/// Has each owner work in a thread of its own.
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

fn run_ft(place: &Place, meter: &Meter<'_>, threads: usize, class: Class) -> Result<Outcome> {
    let mut sums = Part::ALL.map(|part| (part, Costs::default()));
    let mut before = meter.read()?;
    let mut failure = None;
    let solved = ft::solve(class, place.words(), threads, |part| match meter.read() {
        Ok(now) => {
            let costs = now.since(before);
            sums.iter_mut()
                .filter(|(of, _)| *of == part)
                .for_each(|(_, sum)| *sum = sum.plus(costs));
            before = now;
        }
        Err(error) => failure = Some(error),
    });
    solved?;
    failure.map_or(Ok(()), Err)?;
    let parts = sums.map(|(part, costs)| (part.name().to_owned(), costs)).to_vec();
    Ok(Outcome::of(parts))
}

/// Takes a measurement in a child; `None` if it does not end in time, and is killed.
///
/// # Errors
/// The child fails, or `should_stop` says so.
pub(super) fn measure(
    task: &Task,
    limit: Duration,
    should_stop: impl Fn() -> bool,
) -> Result<Option<Outcome>> {
    let program = std::env::current_exe()?;
    let mut child = Command::new(program)
        .args([SUBCOMMAND, &serde_json::to_string(task)?])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start a child")?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let is_late = start.elapsed() > limit;
        if is_late || should_stop() {
            child.kill()?;
            child.wait()?;
            ensure!(is_late, "stopped");
            return Ok(None);
        }
        std::thread::sleep(LOOK);
    };
    if !status.success() {
        bail!("{task:?} ended with {status}");
    }
    let output = io::read_to_string(child.stdout.take().context("a child has no output")?)?;
    Ok(Some(serde_json::from_str(&output)?))
}

//! Tasks on targets.
//!
//! Invariants: a pass without durable requests ends with a sync. A checkpoint ends each slice, and each pass of a file
//! that the next pass empties. The measured time includes the checkpoints, so no scheme leaves work to a later slice.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use everbyte_device::Fua;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::Settings;
use super::target::Target;
use super::task::{Request, Task};
use crate::driver::Grid;
use crate::stats::as_f64;
use crate::subject::Counts;

/// Bytes of the source of payloads.
const PAYLOAD_BYTES: usize = 1 << 20;
/// Requests between looks at the clock.
const STRIDE: u64 = 16;
/// Bytes of a request that fills a file.
const FILL_BYTES: u64 = 64 << 10;

/// Durability of writes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Durability {
    /// By the sync at the end of a pass.
    Checkpoint,
    /// By a sync after each so many writes.
    SyncEvery(usize),
    /// By each write.
    Request,
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Checkpoint => f.write_str("checkpoint"),
            Self::SyncEvery(count) => write!(f, "sync{count}"),
            Self::Request => f.write_str("request"),
        }
    }
}

/// Threads of a workload.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Load {
    /// One thread writes.
    Writer,
    /// Two threads write, each every second request.
    TwoWriters,
    /// One thread writes, and one reads random records of the file.
    WriterAndReader,
}

/// A task with the durability and the threads of its writes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Workload {
    pub(crate) task: Task,
    pub(crate) durability: Durability,
    pub(crate) load: Load,
}

impl Workload {
    /// The writes of one thread.
    pub(crate) const fn new(task: Task, durability: Durability) -> Self {
        Self { task, durability, load: Load::Writer }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let load = match self.load {
            Load::Writer => "",
            Load::TwoWriters => ", two writers",
            Load::WriterAndReader => ", a writer and a reader",
        };
        write!(f, "{}, {}{load}", self.task, self.durability)
    }
}

/// Counts and time of one slice.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    pub(crate) elapsed: Duration,
    pub(crate) sums: Option<Counts>,
}

impl Sample {
    pub(crate) fn ns_per_request(&self) -> f64 {
        self.elapsed.as_secs_f64() * 1e9 / as_f64(self.requests)
    }

    pub(crate) fn bytes_per_s(&self) -> f64 {
        as_f64(self.bytes) / self.elapsed.as_secs_f64()
    }
}

/// A target with the state of its file.
pub(crate) struct Bench<'t> {
    pub(crate) target: &'t dyn Target,
    /// Written bytes at the start of the file.
    filled: Cell<u64>,
}

impl<'t> Bench<'t> {
    pub(crate) fn new(target: &'t dyn Target) -> Self {
        Self { target, filled: Cell::new(0) }
    }

    fn clear(&self, bytes: u64) -> Result<()> {
        self.filled.set(0);
        self.target.clear(bytes)
    }

    fn fill(&self, bytes: u64, payload: &Payload) -> Result<()> {
        while self.filled.get() < bytes {
            let at = self.filled.get();
            let len = usize::try_from(FILL_BYTES.min(bytes - at))?;
            self.target.write(at, payload.part(at, len), Fua::No)?;
            self.filled.set(at + len as u64);
        }
        self.target.checkpoint()
    }
}

/// Random bytes, the same in each run.
pub(crate) struct Payload(Vec<u8>);

impl Payload {
    pub(crate) fn new() -> Self {
        let mut bytes = vec![0; PAYLOAD_BYTES];
        SmallRng::seed_from_u64(1).fill_bytes(&mut bytes);
        Self(bytes)
    }

    /// `len` bytes. Nearby values of `which` give other bytes.
    fn part(&self, which: u64, len: usize) -> &[u8] {
        let room = self.0.len() - len;
        let start = which.wrapping_mul(4097 * 64 + 64) % (room as u64 + 1);
        let start = usize::try_from(start).unwrap_or(0);
        &self.0[start..start + len]
    }
}

/// Measures the cells of `grid`, whose subjects are `benches`.
///
/// # Errors
/// The user interrupted the run.
pub(crate) fn run(
    grid: &mut Grid<Sample>,
    benches: &[Bench<'_>],
    workloads: &[Workload],
    settings: &Settings,
) -> Result<()> {
    let payload = Payload::new();
    grid.measure(settings, |subject, workload, round| {
        measure(&benches[subject], workloads[workload], &payload, settings.slice, round as u64)
    })
}

/// Does passes of `workload` until `slice` is over.
fn measure(
    bench: &Bench<'_>,
    workload: Workload,
    payload: &Payload,
    slice: Duration,
    round: u64,
) -> Result<Sample> {
    let task = workload.task;
    if !task.begins_empty() {
        bench.fill(task.file_bytes(), payload)?;
    }
    let mut sample = Sample::default();
    for pass in round << 32.. {
        let is_over = sample.elapsed >= slice;
        if !is_over && task.begins_empty() {
            bench.clear(task.file_bytes())?;
        }
        let before = bench.target.counts();
        if !is_over {
            one_pass(bench.target, workload, payload, slice, pass, &mut sample)
                .with_context(|| format!("{workload} with {}", workload.durability))?;
        }
        // The clear before the next pass would do the deferred work, or make it needless.
        if is_over || task.begins_empty() {
            let start = Instant::now();
            bench.target.checkpoint()?;
            sample.elapsed += start.elapsed();
        }
        if let Some((before, after)) = before.zip(bench.target.counts()) {
            let sums = sample.sums.unwrap_or_default();
            sample.sums = Some(sums.plus(&after.since(&before)));
        }
        if is_over {
            break;
        }
    }
    Ok(sample)
}

/// Adds the requests of a pass to `sample` until the time of `slice` is over.
fn one_pass(
    target: &dyn Target,
    workload: Workload,
    payload: &Payload,
    slice: Duration,
    pass: u64,
    sample: &mut Sample,
) -> Result<()> {
    let Workload { task, durability, load } = workload;
    let start = Instant::now();
    let pass = Pass { payload, number: pass, durability, end: start + (slice - sample.elapsed) };
    let requests = task.requests(pass.number);
    let (requests, is_over) = (&requests[..], AtomicBool::new(false));
    let sums = match load {
        Load::Writer => pass.write(target, requests, 0, 1)?,
        Load::TwoWriters => thread::scope(|scope| {
            let other = scope.spawn(|| pass.write(target, requests, 1, 2));
            let own = pass.write(target, requests, 0, 2);
            let (own, other) = (own?, joined(other)?);
            Ok::<_, anyhow::Error>((own.0 + other.0, own.1 + other.1))
        })?,
        Load::WriterAndReader => thread::scope(|scope| {
            let reader = scope.spawn(|| read_until(target, requests, &is_over));
            let own = pass.write(target, requests, 0, 1);
            is_over.store(true, Ordering::Relaxed);
            joined(reader)?;
            own
        })?,
    };
    let unsynced = match durability {
        Durability::Request => 0,
        Durability::Checkpoint => sums.0,
        Durability::SyncEvery(count) => sums.0 % count as u64,
    };
    if unsynced > 0 {
        target.sync()?;
    }
    sample.requests += sums.0;
    sample.bytes += sums.1;
    sample.elapsed += start.elapsed();
    Ok(())
}

/// One pass over the requests of a task.
struct Pass<'p> {
    payload: &'p Payload,
    number: u64,
    durability: Durability,
    end: Instant,
}

impl Pass<'_> {
    /// Writes every request at `first`, `first + step` and so on until the end of the time. Returns the numbers of
    /// requests and bytes.
    fn write(
        &self,
        target: &dyn Target,
        requests: &[Request],
        first: usize,
        step: usize,
    ) -> Result<(u64, u64)> {
        let (fua, sync_every) = match self.durability {
            Durability::Checkpoint => (Fua::No, u64::MAX),
            Durability::SyncEvery(count) => (Fua::No, count as u64),
            Durability::Request => (Fua::Yes, u64::MAX),
        };
        let (mut written, mut bytes) = (0, 0);
        for (i, request) in requests.iter().enumerate().skip(first).step_by(step) {
            if written % STRIDE == 0 && Instant::now() > self.end {
                break;
            }
            let data = self.payload.part(self.number.wrapping_mul(31) + i as u64, request.bytes);
            target.write(request.offset, data, fua)?;
            (written, bytes) = (written + 1, bytes + request.bytes as u64);
            if written.is_multiple_of(sync_every) {
                target.sync()?;
            }
        }
        Ok((written, bytes))
    }
}

/// Reads the places of `requests` again and again.
fn read_until(target: &dyn Target, requests: &[Request], is_over: &AtomicBool) -> Result<()> {
    let mut bytes = vec![0; requests.iter().map(|request| request.bytes).max().unwrap_or(0)];
    // The writer's order backwards: the reader meets recent writes and old ones.
    for request in requests.iter().rev().cycle() {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        target.read(request.offset, &mut bytes[..request.bytes])?;
    }
    Ok(())
}

/// Returns the result of a thread. A panic of the thread continues in the caller.
fn joined<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

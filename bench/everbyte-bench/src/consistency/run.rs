//! Tasks on targets.
//!
//! Invariants: a pass without durable requests ends with a sync. A checkpoint ends each slice, and each pass of a file
//! that the next pass empties. The measured time includes the checkpoints, so no scheme leaves work to a later slice.

use std::cell::Cell;
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use everbyte_device::Fua;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::Settings;
use super::target::Target;
use super::task::Task;
use crate::driver::Grid;
use crate::stats::as_f64;
use crate::subject::Counts;

/// Bytes of the source of payloads.
const PAYLOAD_BYTES: usize = 1 << 20;
/// Requests between looks at the clock.
const STRIDE: usize = 16;
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

/// A task with the durability of its writes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Workload {
    pub(crate) task: Task,
    pub(crate) durability: Durability,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.task, self.durability)
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
    Workload { task, durability }: Workload,
    payload: &Payload,
    slice: Duration,
    pass: u64,
    sample: &mut Sample,
) -> Result<()> {
    let (fua, sync_every) = match durability {
        Durability::Checkpoint => (Fua::No, usize::MAX),
        Durability::SyncEvery(count) => (Fua::No, count),
        Durability::Request => (Fua::Yes, usize::MAX),
    };
    let time_left = slice - sample.elapsed;
    let requests = task.requests(pass);
    let mut unsynced = 0;
    let start = Instant::now();
    for (i, request) in requests.iter().enumerate() {
        if i % STRIDE == 0 && start.elapsed() > time_left {
            break;
        }
        let data = payload.part(pass.wrapping_mul(31) + i as u64, request.bytes);
        target.write(request.offset, data, fua)?;
        sample.requests += 1;
        sample.bytes += request.bytes as u64;
        unsynced += 1;
        if unsynced == sync_every {
            target.sync()?;
            unsynced = 0;
        }
    }
    if fua == Fua::No && unsynced > 0 {
        target.sync()?;
    }
    sample.elapsed += start.elapsed();
    Ok(())
}

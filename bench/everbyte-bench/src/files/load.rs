//! Appends of 4 KiB with `fsync`, while one thread streams over a file and another creates and removes files.
//!
//! Invariants: the three threads start together. The other two do a part of their work, and continue until the
//! last append is durable. An append and its `fsync` are one latency.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use hdrhistogram::Histogram;

use crate::index::target::Target;
use crate::workload::Payload;

const APPEND_BYTES: usize = 4 << 10;
const STREAM_BYTES: usize = 256 << 10;
/// Bytes of the streamed file. The stream restarts at its end.
const STREAMED_BYTES: u64 = 64 << 20;
/// Size at which the log is truncated.
const LOG_BYTES_MAX: u64 = 64 << 20;
/// Number of files that are created before their removal.
const FILES: usize = 500;
/// Longest latency that the histogram distinguishes.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
const LOG: &str = "log";
const STREAM: &str = "stream";
const DIRECTORY: &str = "load";

/// Latencies of appends, and the work of the other threads.
#[derive(Clone, Debug)]
pub(super) struct LoadSample {
    latencies: Histogram<u64>,
    pub(super) elapsed: Duration,
    pub(super) streamed_bytes: u64,
    pub(super) files_made: u64,
}

impl LoadSample {
    /// The latency in microseconds that `percent` of appends do not exceed.
    pub(super) fn latency_us(&self, percent: f64) -> f64 {
        crate::stats::as_f64(self.latencies.value_at_quantile(percent / 100.0)) / 1e3
    }

    pub(super) fn appends(&self) -> u64 {
        self.latencies.len()
    }
}

/// Creates the files of the load.
///
/// # Errors
/// The target's.
pub(super) fn make<T: Target>(target: &T) -> Result<()> {
    target.make_directory(DIRECTORY)?;
    target.make_file(LOG)?;
    target.make_file(STREAM)
}

fn append<T: Target>(target: &T, slice: Duration) -> Result<Histogram<u64>> {
    let mut latencies = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)?;
    let mut payload = Payload::unedited();
    let log = target.open(LOG)?;
    target.truncate(&log)?;
    let (start, mut bytes) = (Instant::now(), 0);
    while latencies.is_empty() || start.elapsed() < slice {
        let begun = Instant::now();
        target.append(&log, payload.next(APPEND_BYTES))?;
        target.fsync(&log)?;
        latencies.saturating_record(u64::try_from(begun.elapsed().as_nanos())?);
        bytes += APPEND_BYTES as u64;
        if bytes >= LOG_BYTES_MAX {
            target.truncate(&log)?;
            bytes = 0;
        }
    }
    target.close(log)?;
    Ok(latencies)
}

/// Streams over a file until `is_over`, and returns how many bytes.
fn stream<T: Target>(target: &T, is_over: &AtomicBool) -> Result<u64> {
    let mut payload = Payload::unedited();
    let (file, mut bytes) = (target.open(STREAM)?, 0);
    while bytes == 0 || !is_over.load(Ordering::Relaxed) {
        target.write(&file, bytes % STREAMED_BYTES, payload.next(STREAM_BYTES))?;
        bytes += STREAM_BYTES as u64;
    }
    target.close(file)?;
    Ok(bytes)
}

/// Makes and removes files until `is_over`, and returns how many it made.
fn make_files<T: Target>(target: &T, is_over: &AtomicBool) -> Result<u64> {
    let paths: Vec<String> = (0..FILES).map(|file| format!("{DIRECTORY}/{file}")).collect();
    let mut made = 0;
    while made == 0 || !is_over.load(Ordering::Relaxed) {
        for path in &paths {
            target.make_file(path)?;
            made += 1;
        }
        paths.iter().try_for_each(|path| target.delete(path))?;
    }
    Ok(made)
}

/// Measures for `slice`.
///
/// # Errors
/// The target's, of any thread.
pub(super) fn measure<T: Target>(target: &T, slice: Duration) -> Result<LoadSample> {
    let (is_over, barrier) = (AtomicBool::new(false), Barrier::new(3));
    std::thread::scope(|scope| {
        let streaming = scope.spawn(|| {
            barrier.wait();
            stream(target, &is_over)
        });
        let making = scope.spawn(|| {
            barrier.wait();
            make_files(target, &is_over)
        });
        barrier.wait();
        let start = Instant::now();
        let latencies = append(target, slice);
        let elapsed = start.elapsed();
        is_over.store(true, Ordering::Relaxed);
        let joined = |done: std::thread::Result<Result<u64>>| {
            done.map_err(|_| anyhow!("a thread of the load panicked")).flatten()
        };
        let (streamed, made) = (joined(streaming.join()), joined(making.join()));
        Ok(LoadSample {
            latencies: latencies?,
            elapsed,
            streamed_bytes: streamed?,
            files_made: made?,
        })
    })
}

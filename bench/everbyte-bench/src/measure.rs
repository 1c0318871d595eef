//! Measurement of one workload on one subject for one slice of time.
//!
//! Invariants: threads start together, with requests, payloads and sessions ready. The clock stops at the end of the last
//! thread, and for durability by checkpoint after one flush. Single requests are not timed, because a clock read costs as
//! much as a small request.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use everbyte_device::Fua;
use rustix::time::{ClockId, clock_gettime};

use crate::stats::as_f64;
use crate::subject::{Counts, Session, Subject};
use crate::workload::{Action, Durability, Offsets, Payload, Workload};

/// Requests between looks at the clock.
const STRIDE: u32 = 16;

/// Counts and times of one slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) requests: u64,
    /// From the first thread's start to the last one's end, and the flush.
    pub(crate) elapsed: Duration,
    /// Processor time of the measuring threads.
    pub(crate) cpu: Duration,
    pub(crate) counts: Option<Counts>,
    /// Processor time of the server, in nanoseconds.
    pub(crate) server_cpu_ns: Option<u64>,
}

/// Counts and times of one thread.
struct Done {
    requests: u64,
    start: Instant,
    end: Instant,
    cpu: Duration,
}

impl Sample {
    /// Requests in a second, over all threads.
    pub(crate) fn per_second(&self) -> f64 {
        as_f64(self.requests) / self.elapsed.as_secs_f64()
    }

    /// Nanoseconds of processor time that a request takes of the measuring threads.
    pub(crate) fn cpu_ns_per_request(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e9 / as_f64(self.requests)
    }

    /// Nanoseconds of processor time that a request takes of the server, if there is one.
    pub(crate) fn server_cpu_per_request(&self) -> Option<f64> {
        Some(as_f64(self.server_cpu_ns?) / as_f64(self.requests))
    }

    /// Nanoseconds from request to request, over all threads.
    pub(crate) fn ns_per_request(&self) -> f64 {
        self.elapsed.as_secs_f64() * 1e9 / as_f64(self.requests)
    }
}

/// Measures `workload` on `subject` for about `slice`, or until every place was touched.
///
/// # Errors
/// The subject's.
pub(crate) fn measure(
    subject: &dyn Subject,
    workload: &Workload,
    size_bytes: u64,
    slice: Duration,
    round: usize,
) -> Result<Sample> {
    // This session flushes after all threads, for the durability by checkpoint.
    let mut last = subject.open(workload)?;
    let barrier = Barrier::new(workload.threads + 1);
    let sample = std::thread::scope(|scope| -> Result<Sample> {
        let threads: Vec<_> = (0..workload.threads)
            .map(|thread| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let offsets = Offsets::new(workload, size_bytes, thread, round);
                    let payload = match workload.action {
                        Action::Edit => Payload::unedited(),
                        _ => Payload::new(workload, thread, round),
                    };
                    let mut session = subject.open(workload);
                    // An error waits too: the others would wait for this thread forever.
                    barrier.wait();
                    let done = match &mut session {
                        Ok(session) => run(&mut **session, workload, offsets, payload, slice),
                        Err(error) => Err(anyhow!("cannot open: {error:#}")),
                    };
                    barrier.wait();
                    // Sessions close after the last look at the server: the end of a connection ends a thread of the
                    // server, and its processor time goes with it.
                    barrier.wait();
                    done
                })
            })
            .collect();
        let before = subject.counts();
        let cpu_before = subject.server_cpu_ns();
        barrier.wait();
        barrier.wait();
        let (start, cpu_start) = (Instant::now(), thread_cpu());
        // The flush is a part of the work only if the threads did not flush.
        let flushed = match workload.durability {
            Durability::Checkpoint if workload.writes() => last.flush(),
            _ => Ok(()),
        };
        let (flush_time, flush_cpu) = (start.elapsed(), thread_cpu().saturating_sub(cpu_start));
        // The counts include the flush, so both come after it.
        let server_cpu = subject.server_cpu_ns();
        let after = subject.counts();
        // An error returns only after the threads can end.
        barrier.wait();
        flushed?;
        let joined = threads.into_iter().map(|thread| {
            thread.join().map_err(|_| anyhow!("a measuring thread panicked")).flatten()
        });
        let done = joined.collect::<Result<Vec<Done>>>()?;
        let first = done.iter().map(|done| done.start).min().unwrap_or(start);
        let last = done.iter().map(|done| done.end).max().unwrap_or(start);
        let counts = before.zip(after).map(|(before, after)| after.since(&before));
        let server_cpu_ns = cpu_before.zip(server_cpu).map(|(before, after)| after - before);
        Ok(Sample {
            requests: done.iter().map(|done| done.requests).sum(),
            elapsed: last.duration_since(first) + flush_time,
            cpu: done.iter().map(|done| done.cpu).sum::<Duration>() + flush_cpu,
            counts,
            server_cpu_ns,
        })
    });
    sample.with_context(|| format!("{} on {workload}", subject.name()))
}

/// Processor time of this thread so far.
pub(crate) fn thread_cpu() -> Duration {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    spent.try_into().unwrap_or_default()
}

/// One thread's requests.
fn run(
    session: &mut dyn Session,
    workload: &Workload,
    mut offsets: Offsets,
    mut payload: Payload,
    slice: Duration,
) -> Result<Done> {
    let bytes = workload.bytes;
    let fua = match workload.durability {
        Durability::Request => Fua::Yes,
        Durability::Checkpoint | Durability::FlushEvery(_) => Fua::No,
    };
    let flush_every = match workload.durability {
        Durability::FlushEvery(count) => count,
        Durability::Checkpoint | Durability::Request => u32::MAX,
    };
    let (start, cpu_start) = (Instant::now(), thread_cpu());
    let (mut requests, mut unflushed) = (0, 0);
    // On a busy machine a slice can end before the first request. One stride is made nevertheless.
    'slice: loop {
        // The clock is read once in a stride, so its cost is not part of each request.
        for _ in 0..STRIDE {
            let Some(offset) = offsets.next() else { break 'slice };
            match workload.action {
                Action::Read => session.read(offset, payload.room(bytes))?,
                Action::First | Action::Rewrite | Action::Again => {
                    session.write(offset, payload.next(bytes), fua)?;
                }
                Action::Edit => session.write(offset, payload.edited(bytes), fua)?,
            }
            requests += 1;
            unflushed += 1;
            if unflushed == flush_every {
                session.flush()?;
                unflushed = 0;
            }
        }
        if start.elapsed() >= slice {
            break;
        }
    }
    // Requests in flight are a part of the slice.
    session.settle()?;
    let cpu = thread_cpu().saturating_sub(cpu_start);
    Ok(Done { requests, start, end: Instant::now(), cpu })
}

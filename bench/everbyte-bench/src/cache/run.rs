//! Plays streams on subjects, and makes the rows.
//!
//! Invariants: counted figures are of one client and all requests, from a cold cache. In a timed round every subject begins
//! at the same request, one subject after the other. Ratios are of one round.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use everbyte_device::{BlockDevice, Fua};
use everbyte_policy::sim::{self, Spec};
use everbyte_policy::trace::{Request, RequestOp};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::backing::Backing;
use super::options::CacheArgs;
use super::stream::Stream;
use super::subject::{Front, Subject};
use super::{Counts, Part, Settings, Speed};
use crate::driver::{Grid, Rows, on_threads};
use crate::rows::{Row, metric};
use crate::stats::{as_f64, percentile};

/// Figures of a subject over all requests, one after the other.
struct Whole {
    /// Processor time and the backing device's, one after the other.
    elapsed: Duration,
    /// Time of the backing device.
    backing: Duration,
    /// Time of the backing device's reads without writes between them.
    reads_alone: Duration,
    reads: u64,
    /// Latencies in microseconds, ascending.
    latencies: Vec<f64>,
    counts: Option<Counts>,
    /// Percentage of hits of the simulator.
    simulated: Option<f64>,
}

/// Figures of a slice of time.
struct Slice {
    per_second: f64,
    /// Percent of accesses; `None` without a cache.
    hits: Option<f64>,
    /// Latencies in microseconds, ascending.
    latencies: Vec<f64>,
}

/// A front before a device, at a size.
struct Case {
    front: Front,
    spec: Spec,
    workload: String,
}

/// Measures the selected cases of `streams`.
///
/// # Errors
/// A subject's; the user interrupted the run.
pub(crate) fn run(streams: &[Stream], settings: &Settings) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for stream in streams {
        for &speed in &settings.own.backing {
            rows.extend(run_one(stream, speed, settings)?);
        }
    }
    Ok(rows)
}

/// Measures a stream over a device of one speed.
fn run_one(stream: &Stream, speed: Speed, settings: &Settings) -> Result<Vec<Row>> {
    let cases = cases(stream, speed, settings)?;
    if cases.len() < 2 {
        return Ok(Vec::new());
    }
    let (clients, rounds) = (&settings.own.clients, rounds(settings));
    let mut subjects = Vec::new();
    let pairs = cases.iter().map(|case| (case.front.name(), case.workload.clone()));
    let mut wholes = Grid::of_pairs(pairs);
    wholes.measure_rounds(settings, 1, |at, _, _| {
        let path = settings.folder().join(format!("{}-{at}", stream.name));
        let backing = Backing::new(&path, stream.size_bytes(), speed.costs())?;
        let Case { front, spec, .. } = &cases[at];
        let subject = Subject::new(*front, backing, spec, &settings.own)?;
        let mut whole = play_all(&subject, stream, settings)?;
        if let Some((kind, spec)) = front.simulated(spec, &settings.own)? {
            whole.simulated = Some(sim::run(kind, &spec, &stream.pages).hit_ratio() * 100.0);
        }
        // Slices begin with the warm cache. Without slices its memory is free for the next subject.
        subjects.extend((rounds > 0).then_some(subject));
        Ok(whole)
    })?;
    wholes.check()?;
    let pairs = clients.iter().flat_map(|&clients| {
        cases.iter().map(move |case| (case.front.name(), timed(&case.workload, clients)))
    });
    let mut slices = Grid::of_pairs(pairs);
    slices.measure_rounds(settings, rounds, |at, _, round| {
        let turn = at / cases.len();
        // Each turn has its part of the stream: else later turns would request pages that earlier turns have cached.
        let (part, parts) = (round * clients.len() + turn, rounds * clients.len());
        let first = stream.later.len() * part / parts;
        play_slice(&subjects[at % cases.len()], stream, settings, (first, clients[turn]))
    })?;
    slices.check()?;
    let alone = &wholes.cells[0].samples[0];
    let mut rows = wholes.rows(|cell, rows| {
        whole_rows(rows, &cell.samples[0], (cell.subject > 0).then_some(alone), stream);
    });
    rows.extend(slices.rows(|cell, rows| {
        let own = &cell.samples[..];
        // The backing device alone is the first case of each number of clients.
        let base = cell.workload - cell.workload % cases.len();
        let base = (base != cell.workload).then(|| &slices.cells[base].samples[..]);
        rows.timed(metric::RATE, "1/s", own.iter().map(|slice| slice.per_second));
        rows.timed("timed_hits", "%", own.iter().filter_map(|slice| slice.hits));
        rows.timed("p50", "us", own.iter().map(|slice| percentile(&slice.latencies, 50)));
        rows.timed("p99", "us", own.iter().map(|slice| percentile(&slice.latencies, 99)));
        rows.ratio("rate_to_backing", own, base, |slice| slice.per_second);
    }));
    Ok(rows)
}

/// Returns the cases of a stream, the backing device alone first.
fn cases(stream: &Stream, speed: Speed, settings: &Settings) -> Result<Vec<Case>> {
    let place = format!("{} on {}", stream.name, speed.name());
    let alone = Case { front: Front::Nothing, spec: Spec::new(2)?, workload: place.clone() };
    let mut cases = vec![alone];
    for percent in settings.own.percents() {
        let workload = format!("{place}, cache of {percent}%");
        for front in Front::CACHES {
            if settings.wants(&front.name(), &workload) {
                let spec = Spec::new(stream.cache_pages(percent)?)?;
                cases.push(Case { front, spec, workload: workload.clone() });
            }
        }
    }
    Ok(cases)
}

/// The name of a workload under so many clients in real time.
fn timed(workload: &str, clients: u16) -> String {
    format!("{workload}, {clients} client{}", if clients == 1 { "" } else { "s" })
}

/// Fills the payload of a request in `buffer` with bytes of no earlier request.
fn refresh(rng: &mut SmallRng, request: &Request, buffer: &mut [u8]) {
    let len = usize::try_from(request.len).unwrap_or(0).min(buffer.len());
    match request.op {
        RequestOp::Write => rng.fill_bytes(&mut buffer[..len]),
        RequestOp::Zero => buffer[..len].fill(0),
        RequestOp::Read | RequestOp::Flush | RequestOp::Trim => {}
    }
}

fn ask(device: &dyn BlockDevice, request: &Request, buffer: &mut [u8]) -> Result<()> {
    let bytes = &mut buffer[..usize::try_from(request.len).unwrap_or(0)];
    match request.op {
        RequestOp::Read => device.read(request.offset, bytes)?,
        RequestOp::Write | RequestOp::Zero => device.write(request.offset, bytes, Fua::No)?,
        RequestOp::Flush => device.flush()?,
        RequestOp::Trim => {}
    }
    Ok(())
}

fn play_all(subject: &Subject, stream: &Stream, settings: &Settings) -> Result<Whole> {
    let (device, backing) = (subject.device(), &subject.backing);
    let mut buffer = vec![1; stream.longest];
    let mut rng = SmallRng::seed_from_u64(0);
    let mut latencies = Vec::with_capacity(stream.requests.len());
    let mut elapsed = Duration::ZERO;
    for request in &stream.requests {
        settings.check_stop()?;
        refresh(&mut rng, request, &mut buffer);
        let (start, spent) = (Instant::now(), backing.spent());
        ask(device, request, &mut buffer)?;
        // A client waits for the answer, and not for the write-back after it.
        let answered = start.elapsed() + (backing.spent() - spent);
        subject.write_back_due()?;
        elapsed += start.elapsed() + (backing.spent() - spent);
        latencies.push(answered.as_secs_f64() * 1e6);
    }
    latencies.sort_by(f64::total_cmp);
    Ok(Whole {
        elapsed,
        backing: backing.spent(),
        reads_alone: backing.reads_alone(),
        reads: backing.read_requests(),
        latencies,
        counts: subject.counts(),
        simulated: None,
    })
}

/// Plays for a slice of time, from request `first` of the stream's later requests on.
fn play_slice(
    subject: &Subject,
    stream: &Stream,
    settings: &Settings,
    (first, clients): (usize, u16),
) -> Result<Slice> {
    let next = AtomicUsize::new(first);
    let before = subject.counts();
    subject.backing.set_waits(true);
    let writer = subject.writer()?;
    let start = Instant::now();
    let latencies = on_threads(clients.into(), |number| {
        let (mut buffer, mut own) = (vec![1; stream.longest], Vec::new());
        // Bytes of another client or slice would meet their own copies in the cache.
        let mut rng = SmallRng::seed_from_u64(1 + (first as u64) * 64 + number as u64);
        while own.is_empty() || start.elapsed() < settings.slice {
            settings.check_stop()?;
            let at = next.fetch_add(1, Ordering::Relaxed) % stream.later.len();
            refresh(&mut rng, &stream.later[at], &mut buffer);
            let asked = Instant::now();
            ask(subject.device(), &stream.later[at], &mut buffer)?;
            own.push(asked.elapsed().as_secs_f64() * 1e6);
        }
        Ok(own)
    })?;
    let elapsed = start.elapsed();
    drop(writer);
    subject.backing.set_waits(false);
    let mut latencies = latencies.concat();
    latencies.sort_by(f64::total_cmp);
    let per_second = as_f64(latencies.len() as u64) / elapsed.as_secs_f64();
    let hits = before
        .zip(subject.counts())
        .map(|(before, after)| percent(after.hits - before.hits, after.accesses - before.accesses));
    Ok(Slice { per_second, hits, latencies })
}

fn percent(part: u64, all: u64) -> f64 {
    as_f64(part) * 100.0 / as_f64(all.max(1))
}

/// Adds the rows of a whole stream. `alone` are the figures of the backing device alone, for other subjects.
fn whole_rows(rows: &mut Rows<'_>, whole: &Whole, alone: Option<&Whole>, stream: &Stream) {
    let requests = as_f64(stream.requests.len() as u64);
    let share = |a: Duration, b: Duration| a.as_secs_f64() / b.as_secs_f64();
    let mut push = |metric, unit, value: f64| {
        // A subject without a read of the backing device has no bound.
        if value.is_finite() {
            rows.exact(metric, unit, value);
        }
    };
    push("counted_rate", "1/s", requests / whole.elapsed.as_secs_f64());
    push("backing_time", "us/request", whole.backing.as_secs_f64() * 1e6 / requests);
    push("backing_reads", "1/request", as_f64(whole.reads) / requests);
    push("counted_p50", "us", percentile(&whole.latencies, 50));
    push("counted_p99", "us", percentile(&whole.latencies, 99));
    if let Some(alone) = alone {
        let speed_up = share(alone.elapsed, whole.elapsed);
        // Both have the same time of the backing device alone, so a slow moment of the machine raises both.
        let bound = share(alone.elapsed, whole.reads_alone);
        push("counted_rate_to_backing", "ratio", speed_up);
        push("counted_rate_to_backing_at_most", "ratio", bound);
        push("share_of_bound", "ratio", speed_up / bound);
    }
    if let Some(counts) = &whole.counts {
        push("hits", "%", percent(counts.hits, counts.accesses));
        push("hits_simulated", "%", whole.simulated.unwrap_or(f64::NAN));
        push("scm_bytes", "B/request", counts.scm_bytes.map_or(f64::NAN, as_f64) / requests);
        push("pages_written_back", "1/request", as_f64(counts.written_back) / requests);
        push("write_back_runs", "1/request", as_f64(counts.runs) / requests);
    }
}

/// The selected workloads.
///
/// # Errors
/// The trace's.
pub(crate) fn streams(own: &CacheArgs) -> Result<Vec<Stream>> {
    let parts = Part::WORKLOADS.iter().filter(|(part, _)| own.wants(*part));
    let generated = parts.map(|(_, workload)| Stream::generated(*workload, own.requests));
    let mut streams = generated.collect::<Result<Vec<_>>>()?;
    if let Some(path) = &own.trace {
        streams.push(Stream::from_file(path)?);
    }
    Ok(streams)
}

/// Rounds of timed slices.
fn rounds(settings: &Settings) -> usize {
    if settings.own.wants(Part::Timed) { settings.rounds } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_writes_are_fresh() {
        let request = Request { time_ns: 0, op: RequestOp::Write, file: 0, offset: 0, len: 4001 };
        let (mut first, mut second) = (vec![1; 4096], vec![1; 4096]);
        let mut rng = SmallRng::seed_from_u64(3);
        refresh(&mut rng, &request, &mut first);
        refresh(&mut rng, &request, &mut second);
        let same = first[..4001].iter().zip(&second).filter(|(one, other)| one == other).count();
        assert!(same < 60, "{same} bytes of 4001 are the same");
        assert_eq!(first[4001..], [1; 95]);
        let before = second.clone();
        refresh(&mut rng, &Request { op: RequestOp::Read, ..request }, &mut second);
        assert_eq!(second, before, "reads have no payload");
        let zeroes = first[..4001].iter().filter(|byte| **byte == 0).count();
        assert!((1..60).contains(&zeroes), "{zeroes} zeroes");
    }
}

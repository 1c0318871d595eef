//! Playing streams on subjects, and the rows that this makes.
//!
//! Invariants: counted figures are of one client and all requests, from a cold cache; in a timed
//! round every subject begins at the same request, one subject right after the other, and ratios
//! are of the same round.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use everbyte_device::{BlockDevice, Fua};
use everbyte_policy::sim::{self, Spec};
use everbyte_policy::trace::{Request, RequestOp};

use super::backing::Backing;
use super::options::CacheArgs;
use super::stream::Stream;
use super::subject::{BACKING, Counted, Front, Subject};
use super::{Part, Settings, Speed};
use crate::rows::{self, Row, metric};
use crate::stats::as_f64;

/// Figures of a subject over all requests, one after the other.
struct Whole {
    /// Processor time and the backing device's, one after the other.
    elapsed: Duration,
    /// Time of the backing device.
    backing: Duration,
    /// Time of its reads, had there been no write between them.
    reads_alone: Duration,
    reads: u64,
    latencies: Latencies,
    counted: Option<Counted>,
}

/// Figures of a slice of time.
struct Slice {
    per_second: f64,
    /// Percent of accesses; `None` without a cache.
    hits: Option<f64>,
    latencies: Latencies,
}

/// Latencies in microseconds, ascending.
struct Latencies(Vec<f64>);

impl Latencies {
    fn new(mut all: Vec<f64>) -> Self {
        all.sort_by(f64::total_cmp);
        Self(all)
    }

    /// The one that `percent` of all are not above.
    fn percentile(&self, percent: usize) -> f64 {
        let rank = (self.0.len() * percent).div_ceil(100).max(1) - 1;
        self.0.get(rank).copied().unwrap_or(0.0)
    }
}

/// One subject at one stream, device and size.
struct Cell {
    front: Front,
    spec: Spec,
    workload: String,
    /// Only where slices follow.
    subject: Option<Subject>,
    whole: Whole,
    /// By the number of clients.
    slices: BTreeMap<usize, Vec<Slice>>,
}

/// Measures everything that `settings` want of `streams`.
///
/// # Errors
/// A subject's, or it is to stop.
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
    let wanted = wanted(stream, speed, settings)?;
    if wanted.len() < 2 {
        return Ok(Vec::new());
    }
    let steps = wanted.len() * (1 + rounds(settings) * settings.own.clients.len());
    settings.progress.inc_length(steps as u64);
    let mut cells = Vec::new();
    for (front, spec, workload) in wanted {
        let what = format!("{}: {workload}", front.name());
        settings.progress.set_message(what.clone());
        let path = settings.folder().join(format!("{}-{}", stream.name, cells.len()));
        let backing = Backing::new(&path, stream.size_bytes(), speed.costs())?;
        let subject = Subject::new(front, backing, &spec, &settings.own)?;
        let whole = play_all(&subject, stream, settings).context(what)?;
        let subject = (rounds(settings) > 0).then_some(subject);
        cells.push(Cell { front, spec, workload, subject, whole, slices: BTreeMap::new() });
        settings.progress.inc(1);
    }
    for round in 0..rounds(settings) {
        for (turn, clients) in
            settings.own.clients.iter().map(|count| usize::from(*count)).enumerate()
        {
            // A place of its own: else more clients would ask again for what fewer have just brought.
            let part = round * settings.own.clients.len() + turn;
            for cell in &mut cells {
                let Some(subject) = &cell.subject else { continue };
                settings.progress.set_message(format!("{}: {}", cell.front.name(), cell.workload));
                let slice = play_slice(subject, stream, settings, (part, clients))?;
                cell.slices.entry(clients).or_default().push(slice);
                settings.progress.inc(1);
            }
        }
    }
    let backing = &cells[0];
    let rows = cells.iter().map(|cell| rows_of(cell, backing, stream, settings));
    Ok(rows.collect::<Result<Vec<_>>>()?.concat())
}

/// Returns the subjects of a stream, the backing device alone first.
fn wanted(
    stream: &Stream,
    speed: Speed,
    settings: &Settings,
) -> Result<Vec<(Front, Spec, String)>> {
    let smallest = Spec::new(2)?;
    let place = place(&stream.name, speed);
    let mut wanted = vec![(Front::Nothing, smallest, place.clone())];
    for percent in settings.own.percents() {
        let workload = workload(&place, percent);
        for front in Front::CACHES {
            if settings.wants(&front.name(), &workload) {
                wanted.push((front, Spec::new(stream.cache_pages(percent)?)?, workload.clone()));
            }
        }
    }
    Ok(wanted)
}

/// The name of a stream over a device of a speed.
pub(crate) fn place(stream: &str, speed: Speed) -> String {
    format!("{stream} on {}", speed.name())
}

/// The name of a place before which there is a cache of `percent` of the stream's pages.
pub(crate) fn workload(place: &str, percent: u32) -> String {
    format!("{place}, cache of {percent}%")
}

/// The name of a workload under so many clients in real time.
pub(crate) fn timed(workload: &str, clients: usize) -> String {
    let clients = if clients == 1 { "1 client".to_owned() } else { format!("{clients} clients") };
    format!("{workload}, {clients}")
}

/// Bytes for writes, such as none had before (Marsaglia's xorshift).
struct Fresh(u64);

impl Fresh {
    fn new(seed: u64) -> Self {
        Self(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed + 1) | 1)
    }

    /// Fills the part of `buffer` that a request writes.
    fn fill(&mut self, request: &Request, buffer: &mut [u8]) {
        let len = usize::try_from(request.len).unwrap_or(0).min(buffer.len());
        match request.op {
            RequestOp::Write => {}
            RequestOp::Zero => return buffer[..len].fill(0),
            RequestOp::Read | RequestOp::Flush | RequestOp::Trim => return,
        }
        for part in buffer[..len].chunks_mut(8) {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            part.copy_from_slice(&self.0.to_le_bytes()[..part.len()]);
        }
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
    let mut fresh = Fresh::new(0);
    let mut latencies = Vec::with_capacity(stream.requests.len());
    let mut elapsed = Duration::ZERO;
    for request in &stream.requests {
        settings.check_stop()?;
        fresh.fill(request, &mut buffer);
        let (start, spent) = (Instant::now(), backing.spent());
        ask(device, request, &mut buffer)?;
        let answered = start.elapsed() + (backing.spent() - spent);
        subject.write_back_due()?;
        elapsed += start.elapsed() + (backing.spent() - spent);
        latencies.push(answered.as_secs_f64() * 1e6);
    }
    Ok(Whole {
        elapsed,
        backing: backing.spent(),
        reads_alone: backing.reads_alone(),
        reads: backing.read_requests(),
        latencies: Latencies::new(latencies),
        counted: subject.counted(),
    })
}

/// Plays for a slice of time, from the beginning of one of as many parts of the stream's later requests as there
/// are slices.
fn play_slice(
    subject: &Subject,
    stream: &Stream,
    settings: &Settings,
    (part, clients): (usize, usize),
) -> Result<Slice> {
    let parts = (rounds(settings) * settings.own.clients.len()).max(1);
    let first = stream.later.len() * part / parts;
    let next = AtomicUsize::new(first);
    let latencies = Mutex::new(Vec::new());
    let before = subject.counted();
    subject.backing.set_waits(true);
    let writer = subject.writer()?;
    let start = Instant::now();
    let client = |number: u64| -> Result<()> {
        let (mut buffer, mut own) = (vec![1; stream.longest], Vec::new());
        let mut fresh = Fresh::new(1 + number + 64 * part as u64);
        while start.elapsed() < settings.slice {
            settings.check_stop()?;
            let at = next.fetch_add(1, Ordering::Relaxed) % stream.later.len();
            fresh.fill(&stream.later[at], &mut buffer);
            let asked = Instant::now();
            ask(subject.device(), &stream.later[at], &mut buffer)?;
            own.push(asked.elapsed().as_secs_f64() * 1e6);
        }
        latencies.lock().map_err(|_| anyhow!("another client panicked"))?.extend(own);
        Ok(())
    };
    std::thread::scope(|scope| {
        let client = &client;
        let clients: Vec<_> =
            (0..clients as u64).map(|number| scope.spawn(move || client(number))).collect();
        let done = clients
            .into_iter()
            .map(|client| client.join().map_err(|_| anyhow!("a client panicked")).flatten());
        done.collect::<Result<Vec<()>>>()
    })?;
    let elapsed = start.elapsed();
    drop(writer);
    subject.backing.set_waits(false);
    let all = latencies.into_inner().map_err(|_| anyhow!("a client panicked"))?;
    let per_second = as_f64(all.len() as u64) / elapsed.as_secs_f64();
    let hits = before
        .zip(subject.counted())
        .map(|(before, after)| percent(after.hits - before.hits, after.accesses - before.accesses));
    Ok(Slice { per_second, hits, latencies: Latencies::new(all) })
}

fn percent(part: u64, all: u64) -> f64 {
    as_f64(part) * 100.0 / as_f64(all.max(1))
}

/// Rows of one cell while they are made.
struct Rows<'c> {
    cell: &'c Cell,
    all: Vec<Row>,
}

impl Rows<'_> {
    fn push(&mut self, metric: &'static str, unit: &'static str, figures: &[f64]) {
        self.push_at(&self.cell.workload.clone(), metric, unit, figures);
    }

    fn push_at(
        &mut self,
        workload: &str,
        metric: &'static str,
        unit: &'static str,
        figures: &[f64],
    ) {
        let subject = self.cell.front.name();
        let row = rows::timed(&subject, workload, metric, unit, figures);
        // One figure alone has none.
        let spread = row.as_ref().and_then(|row| row.spread).filter(|_| figures.len() > 1);
        self.all.extend(row.map(|row| Row { spread, ..row }));
    }
}

fn rows_of(cell: &Cell, backing: &Cell, stream: &Stream, settings: &Settings) -> Result<Vec<Row>> {
    let mut rows = Rows { cell, all: Vec::new() };
    let requests = stream.requests.len() as u64;
    let (whole, alone) = (&cell.whole, &backing.whole);
    let share = |a: Duration, b: Duration| a.as_secs_f64() / b.as_secs_f64();
    let each = |time: Duration| time.as_secs_f64() * 1e6 / as_f64(requests);
    rows.push(metric::COUNTED_RATE, "1/s", &[as_f64(requests) / whole.elapsed.as_secs_f64()]);
    rows.push("backing_time", "us/request", &[each(whole.backing)]);
    rows.push("backing_reads", "1/request", &[as_f64(whole.reads) / as_f64(requests)]);
    rows.push("counted_p50", "us", &[whole.latencies.percentile(50)]);
    rows.push("counted_p99", "us", &[whole.latencies.percentile(99)]);
    if cell.front.name() != BACKING {
        let speed_up = share(alone.elapsed, whole.elapsed);
        // Of the same time as the rate, so that what slows this machine raises both.
        let bound = share(alone.elapsed, whole.reads_alone);
        rows.push(metric::COUNTED_TO_BACKING, "ratio", &[speed_up]);
        rows.push(metric::BOUND, "ratio", &[bound]);
        rows.push("share_of_bound", "ratio", &[speed_up / bound]);
    }
    if let Some(counted) = &whole.counted {
        rows.push(metric::HITS, "%", &[percent(counted.hits, counted.accesses)]);
        if let Some((kind, spec)) = cell.front.simulated(&cell.spec, &settings.own)? {
            let said = sim::run(kind, &spec, &stream.pages);
            rows.push(metric::HITS_SIMULATED, "%", &[said.hit_ratio() * 100.0]);
        }
        let per_request = |count: u64| as_f64(count) / as_f64(requests);
        if let Some(bytes) = counted.scm_bytes {
            rows.push("scm_bytes", "B/request", &[per_request(bytes)]);
        }
        rows.push("pages_written_back", "1/request", &[per_request(counted.written_back)]);
        rows.push("write_back_runs", "1/request", &[per_request(counted.runs)]);
    }
    for (&clients, slices) in &cell.slices {
        timed_rows(&mut rows, clients, slices, backing.slices.get(&clients));
    }
    Ok(rows.all)
}

/// Rows of slices of real time under so many clients.
fn timed_rows(rows: &mut Rows<'_>, clients: usize, slices: &[Slice], backing: Option<&Vec<Slice>>) {
    let workload = timed(&rows.cell.workload, clients);
    let of = |figure: &dyn Fn(&Slice) -> f64| slices.iter().map(figure).collect::<Vec<_>>();
    rows.push_at(&workload, metric::RATE, "1/s", &of(&|slice| slice.per_second));
    let hits: Vec<f64> = slices.iter().filter_map(|slice| slice.hits).collect();
    rows.push_at(&workload, "timed_hits", "%", &hits);
    rows.push_at(&workload, "p50", "us", &of(&|slice| slice.latencies.percentile(50)));
    rows.push_at(&workload, "p99", "us", &of(&|slice| slice.latencies.percentile(99)));
    if let (false, Some(backing)) = (rows.cell.front.name() == BACKING, backing) {
        let pairs = slices.iter().zip(backing);
        let ratios: Vec<f64> = pairs.map(|(own, base)| own.per_second / base.per_second).collect();
        rows.push_at(&workload, metric::TO_BACKING, "ratio", &ratios);
    }
}

/// The workloads that are played.
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
        let mut fresh = Fresh::new(3);
        fresh.fill(&request, &mut first);
        fresh.fill(&request, &mut second);
        let same = first[..4001].iter().zip(&second).filter(|(one, other)| one == other).count();
        assert!(same < 60, "{same} bytes of 4001 are the same");
        assert_eq!(first[4001..], [1; 95]);
        let before = second.clone();
        fresh.fill(&Request { op: RequestOp::Read, ..request }, &mut second);
        assert_eq!(second, before, "reads have no bytes of their own");
        let zeroes = first[..4001].iter().filter(|byte| **byte == 0).count();
        assert!((1..60).contains(&zeroes), "{zeroes} zeroes");
    }

    #[test]
    fn percentiles_of_few_latencies() {
        let latencies = Latencies::new((1..=200_u32).rev().map(f64::from).collect());
        assert!((latencies.percentile(50) - 100.0).abs() < 1e-9);
        assert!((latencies.percentile(99) - 198.0).abs() < 1e-9);
        assert!(Latencies::new(Vec::new()).percentile(99).abs() < 1e-9);
    }
}

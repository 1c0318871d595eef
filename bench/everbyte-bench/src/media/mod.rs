//! The suite of single requests to memory: the time of a read and of a write by their size, on every
//! emulated technology, beside the simulator's model and what was published.
//!
//! Remakes Figure 1 of Kang and Eom, "A Buffer Cache Replacement Algorithm for Considering both Hybrid
//! Main Memory and Storage" (2015), which measured a board with PRAM. Invariants: a request lies at a
//! random multiple of its size in memory that was touched before and is larger than any cache; a write is
//! durable before the next one begins; a round does every size on every technology, so that ratios are
//! of the same round.

pub(crate) mod command;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use everbyte_media::{Mapped, MediaOptions, Medium, PoolOffset, Technology};
use everbyte_policy::sim::{Costs, MemoryCosts};
use indicatif::ProgressBar;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

use crate::rows::{Row, exact, metric, timed};
use crate::stats::as_f64;
use crate::subjects::floor::touch;

/// Sizes of requests in bytes, as in the paper.
const SIZES: [u32; 12] = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];
const LARGEST: u32 = 4096;
const LINE_BYTES: f64 = 64.0;

/// Ratio of a request's time to that of one of 4 KiB in the same round.
const TO_LARGEST: &str = "time_to_4k";
/// Cost by the technology's model.
const MODELLED: &str = "modelled_time";

/// The simulator's costs of SCM, as a subject.
const SIMULATOR: &str = "simulator";
/// The paper's numbers, as a subject.
const PAPER: &str = "paper";
/// Its writes as shares of one of 4 KiB, whose smaller ones are 2 to 32 times cheaper.
const PUBLISHED: [(u32, f64); 3] = [(2, 1.0 / 32.0), (2048, 1.0 / 2.0), (LARGEST, 1.0)];

/// Settings of a run.
pub(crate) struct Settings<'a> {
    /// Bytes of each technology's memory, a multiple of 4096.
    pub(crate) memory_bytes: u64,
    /// Requests of each size in each round.
    pub(crate) requests: u32,
    pub(crate) rounds: usize,
    pub(crate) stop: &'a AtomicBool,
    pub(crate) progress: &'a ProgressBar,
}

/// Direction of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Access {
    Read,
    Write,
}

impl Access {
    const BOTH: [Self; 2] = [Self::Read, Self::Write];

    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// Time of one request, by the clock and by the model, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Sample {
    time_ns: f64,
    modelled_ns: f64,
}

/// The workload's name in the results.
fn title(access: Access, bytes: u32) -> String {
    format!("{} {}", access.name(), size(bytes))
}

fn size(bytes: u32) -> String {
    if bytes >= 1024 { format!("{} KiB", bytes / 1024) } else { format!("{bytes} B") }
}

/// Measures every size on every technology.
///
/// # Errors
/// No memory, or it is to stop.
pub(crate) fn run(settings: &Settings<'_>) -> Result<Vec<Row>> {
    let media: Vec<Mapped> = Technology::ALL
        .into_iter()
        .map(|technology| {
            let options = MediaOptions::new().emulate(Some(technology));
            let medium = Mapped::anonymous(settings.memory_bytes, &options)?;
            touch(&medium, 0, settings.memory_bytes)?;
            Ok(medium)
        })
        .collect::<Result<_>>()?;
    let steps = media.len() * Access::BOTH.len() * SIZES.len();
    settings.progress.inc_length((steps * settings.rounds) as u64);
    let mut samples = vec![Vec::new(); steps];
    for round in 0..settings.rounds {
        let mut cells = samples.iter_mut();
        for access in Access::BOTH {
            for (technology, medium) in Technology::ALL.into_iter().zip(&media) {
                settings.progress.set_message(format!("{technology}: {}", access.name()));
                for (bytes, cell) in SIZES.into_iter().zip(&mut cells) {
                    if settings.stop.load(Ordering::Relaxed) {
                        bail!("stopped");
                    }
                    cell.push(measure(medium, access, bytes, settings.requests, round as u64)?);
                    settings.progress.inc(1);
                }
            }
        }
    }
    let mut rows = Vec::new();
    let mut series = samples.chunks(SIZES.len());
    for access in Access::BOTH {
        for technology in Technology::ALL {
            let of_sizes = series.next().unwrap_or_default();
            rows.extend(rows_of(technology.name(), access, of_sizes));
        }
        rows.extend(simulated(access));
    }
    rows.extend(published());
    Ok(rows)
}

/// Does `requests` requests of `bytes` at random places.
fn measure(
    medium: &Mapped,
    access: Access,
    bytes: u32,
    requests: u32,
    round: u64,
) -> Result<Sample> {
    let mut rng = SmallRng::seed_from_u64(u64::from(bytes) ^ (round << 32));
    let places = medium.len() / u64::from(bytes);
    let offsets: Vec<PoolOffset> =
        (0..requests).map(|_| PoolOffset(rng.random_range(0..places) * u64::from(bytes))).collect();
    let mut buffer = vec![0; bytes as usize];
    rng.fill_bytes(&mut buffer);
    let before = medium.counters().modelled_ns;
    let start = Instant::now();
    for &at in &offsets {
        match access {
            Access::Read => medium.read(at, &mut buffer),
            Access::Write => {
                medium.stream(at, &buffer);
                medium.fence()?;
            }
        }
    }
    // Reads owe less than a clock can measure until now.
    medium.fence()?;
    let elapsed: Duration = start.elapsed();
    std::hint::black_box(&buffer);
    let modelled = medium.counters().modelled_ns - before;
    let requests = f64::from(requests);
    Ok(Sample {
        time_ns: elapsed.as_secs_f64() * 1e9 / requests,
        modelled_ns: as_f64(modelled) / requests,
    })
}

/// Figures of one technology; `samples` has the rounds of each size.
fn rows_of(subject: &str, access: Access, samples: &[Vec<Sample>]) -> Vec<Row> {
    let Some(largest) = samples.last() else { return Vec::new() };
    let mut rows = Vec::new();
    for (bytes, own) in SIZES.into_iter().zip(samples) {
        let title = title(access, bytes);
        let times: Vec<f64> = own.iter().map(|sample| sample.time_ns).collect();
        rows.extend(timed(subject, &title, metric::TIME, "ns", &times));
        let pairs = own.iter().zip(largest);
        let ratios: Vec<f64> = pairs.map(|(own, large)| own.time_ns / large.time_ns).collect();
        rows.extend(timed(subject, &title, TO_LARGEST, "ratio", &ratios));
        if let Some(sample) = own.first() {
            rows.push(exact(subject, &title, MODELLED, "ns", sample.modelled_ns));
        }
    }
    rows
}

/// The simulator's model of SCM: an operation, and each line or part of one.
fn simulated(access: Access) -> Vec<Row> {
    let MemoryCosts { operation_ns, read_line_ns, write_line_ns } = Costs::default().scm;
    let line_ns = match access {
        Access::Read => read_line_ns,
        Access::Write => write_line_ns,
    };
    let time = |bytes: u32| operation_ns + f64::from(bytes) / LINE_BYTES * line_ns;
    let mut rows = Vec::new();
    for bytes in SIZES {
        let title = title(access, bytes);
        rows.push(exact(SIMULATOR, &title, metric::TIME, "ns", time(bytes)));
        rows.push(exact(SIMULATOR, &title, TO_LARGEST, "ratio", time(bytes) / time(LARGEST)));
    }
    rows
}

/// The paper's numbers, which are of writes alone.
fn published() -> Vec<Row> {
    let row =
        |(bytes, share)| exact(PAPER, &title(Access::Write, bytes), TO_LARGEST, "ratio", share);
    PUBLISHED.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_simulators_model_has_the_papers_ends() {
        let rows = simulated(Access::Write);
        for (bytes, share) in PUBLISHED {
            let own = rows.iter().find(|row| {
                row.workload == title(Access::Write, bytes) && row.metric == TO_LARGEST
            });
            let own = own.and_then(|row| row.value).unwrap();
            assert!((own / share - 1.0).abs() < 0.04, "{bytes} B: {own} and {share}");
        }
    }

    #[test]
    fn a_write_is_charged_for_each_line_and_a_read_less() {
        let options = MediaOptions::new().emulate(Some(Technology::Pcm));
        let medium = Mapped::anonymous(1 << 20, &options).unwrap();
        let cost = Technology::Pcm.cost();
        for (bytes, lines) in [(2, 1), (64, 1), (128, 2), (4096, 64)] {
            for (access, line_ns) in [(Access::Read, cost.read_ns), (Access::Write, cost.write_ns)]
            {
                let sample = measure(&medium, access, bytes, 20, 0).unwrap();
                let expected = as_f64(lines * line_ns);
                assert!((sample.modelled_ns - expected).abs() < 1e-9, "{access:?} of {bytes} B");
                assert!(sample.time_ns > 0.0);
            }
        }
    }
}

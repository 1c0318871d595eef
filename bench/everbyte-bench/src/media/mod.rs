//! The suite of single requests to memory: the time of a read and of a write by size, on every emulated
//! technology, compared with the simulator's model and with published numbers.
//!
//! Remakes Figure 1 of Kang and Eom, "A Buffer Cache Replacement Algorithm for Considering both Hybrid Main
//! Memory and Storage" (2015). The paper measured a board with PRAM. Each request lies at a random multiple of
//! its size, in touched memory larger than any cache.

use std::time::{Duration, Instant};

use anyhow::Result;
use everbyte_media::{Mapped, MediaOptions, Medium, PoolOffset, Technology};
use everbyte_policy::sim::{Costs, MemoryCosts};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

use crate::driver::{Common, Findings, Grid, Pace, Run, Suite};
use crate::rows::{Row, exact, metric};
use crate::stats::as_f64;
use crate::subjects::floor::touch;

/// Sizes of requests in bytes, as in the paper.
const SIZES: [u32; 12] = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];
const LARGEST: u32 = 4096;
const LINE_BYTES: f64 = 64.0;

/// Ratio of a request's time to the time of 4 KiB in the same round.
const TO_LARGEST: &str = "time_to_4k";
/// Cost by the technology's model.
const MODELLED: &str = "modelled_time";

/// The simulator's costs of SCM, as a subject.
const SIMULATOR: &str = "simulator";
/// The paper's numbers, as a subject.
const PAPER: &str = "paper";
/// Writes of the paper as shares of a write of 4 KiB: smaller writes are 2 to 32 times cheaper.
const PUBLISHED: [(u32, f64); 3] = [(2, 1.0 / 32.0), (2048, 1.0 / 2.0), (LARGEST, 1.0)];

type Settings = Run<MediaArgs>;

/// Measures single requests to memory by their size, from 2 bytes to 4 KiB: reads, and durable writes,
/// on every emulated technology.
#[derive(clap::Args, Clone)]
pub(crate) struct MediaArgs {
    #[command(flatten)]
    common: Common,
    /// Requests of each size in each round.
    #[arg(long, default_value_t = 10_000, value_name = "COUNT",
          value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    requests: u32,
    /// Memory of each technology, in MiB.
    #[arg(long, default_value_t = 256, value_name = "MIB",
          value_parser = clap::value_parser!(u64).range(1..=65536))]
    size: u64,
}

impl Suite for MediaArgs {
    const NAME: &'static str = "media";
    const PACE: Pace = Pace { rounds: 5, slice_s: 0.0 };
    const QUICK: Pace = Pace { rounds: 2, slice_s: 0.0 };

    fn common(&self) -> &Common {
        &self.common
    }

    fn shorten(&mut self) {
        (self.requests, self.size) = (200, 4);
    }

    fn measure(settings: &Run<Self>) -> Result<Findings> {
        let requests = settings.own.requests;
        let medium = format!(
            "anonymous memory with the costs of the subject; {requests} requests of a size"
        );
        Ok(Findings::new(run(settings)?, medium, settings.own.size << 20))
    }
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
/// No memory, or the user interrupted the run.
fn run(settings: &Settings) -> Result<Vec<Row>> {
    let media: Vec<Mapped> = Technology::ALL
        .into_iter()
        .map(|technology| {
            let options = MediaOptions::new().emulate(Some(technology));
            let medium = Mapped::anonymous(settings.own.size << 20, &options)?;
            // A first touch would add a page fault to its request.
            touch(&medium, 0, settings.own.size << 20)?;
            Ok(medium)
        })
        .collect::<Result<_>>()?;
    let requests = Access::BOTH.map(|access| SIZES.map(|bytes| (access, bytes))).concat();
    let titles = requests.iter().map(|&(access, bytes)| title(access, bytes));
    let mut grid = Grid::new(Technology::ALL.map(Technology::name), titles).select(
        settings,
        |_| false,
        |_, _| true,
    );
    grid.measure(settings, |subject, workload, round| {
        let (access, bytes) = requests[workload];
        measure(&media[subject], access, bytes, settings.own.requests, round as u64)
    })?;
    let mut rows = grid.rows(|cell, rows| {
        let (access, _) = requests[cell.workload];
        let largest = requests.iter().position(|own| *own == (access, LARGEST));
        let largest = largest.and_then(|at| grid.samples(rows.subject, at));
        rows.timed(metric::TIME, "ns", cell.samples.iter().map(|sample| sample.time_ns));
        rows.ratio(TO_LARGEST, &cell.samples, largest, |sample| sample.time_ns);
        if let Some(sample) = cell.samples.first() {
            rows.exact(MODELLED, "ns", sample.modelled_ns);
        }
    });
    rows.extend(Access::BOTH.into_iter().flat_map(simulated));
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
    // Drawn before the clock starts: a draw costs as much as a small request.
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
                // Each write is durable before the next write begins.
                medium.fence()?;
            }
        }
    }
    // The emulation waits for small sums of read costs later. The fence waits for the rest.
    medium.fence()?;
    let elapsed: Duration = start.elapsed();
    // Without a use of the buffer the compiler could delete the reads.
    std::hint::black_box(&buffer);
    let modelled = medium.counters().modelled_ns - before;
    let requests = f64::from(requests);
    Ok(Sample {
        time_ns: elapsed.as_secs_f64() * 1e9 / requests,
        modelled_ns: as_f64(modelled) / requests,
    })
}

/// The simulator's model of SCM: a cost of the operation and a cost of each line.
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

/// The paper's numbers. It has writes only.
fn published() -> Vec<Row> {
    let row =
        |(bytes, share)| exact(PAPER, &title(Access::Write, bytes), TO_LARGEST, "ratio", share);
    PUBLISHED.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulator_costs_match_the_paper() {
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
    fn write_pays_each_line_and_read_less() {
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

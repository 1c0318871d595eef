//! The suite of crowds: answers to one client of an NBD server beside many silent ones.
//!
//! Invariants: rounds with and without the silent clients alternate, over one connection of the working
//! client each; the silent clients connect before a round and stop at all points of a handshake; the
//! working client has one request in flight, so each time is that of one answer. A ratio is of two
//! neighboring rounds.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use everbyte_device::Fua;
use everbyte_nbd::Client;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::driver::{Common, Findings, Grid, Pace, Run, Suite};
use crate::subjects::nbd::{Server, ServerKind};

/// Bytes of a request.
const BYTES: u64 = 4096;
/// Seed of places.
const SEED: u64 = 0xc0_0d;
/// Name of the rounds without silent clients.
const ALONE: &str = "alone";

/// Measures answers to one NBD client beside many silent clients.
#[derive(clap::Args, Clone)]
pub(crate) struct CrowdArgs {
    #[command(flatten)]
    common: Common,
    /// Silent clients.
    #[arg(long, default_value_t = 64)]
    silent: u16,
    /// Bytes of the device, in MiB.
    #[arg(long, default_value_t = 256, value_name = "MIB",
          value_parser = clap::value_parser!(u64).range(16..=65536))]
    size: u64,
}

/// A figure of a round.
type Figure = fn(&Round) -> f64;

/// Times of answers in one round, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Round {
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
}

impl Suite for CrowdArgs {
    const NAME: &'static str = "crowd";
    const PACE: Pace = Pace { rounds: 10, slice_s: 1.0 };
    const QUICK: Pace = Pace { rounds: 2, slice_s: 0.05 };

    fn common(&self) -> &Common {
        &self.common
    }

    fn shorten(&mut self) {
        self.size = 16;
    }

    fn measure(run: &Run<Self>) -> Result<Findings> {
        let (silent, size_bytes) = (run.own.silent, run.own.size << 20);
        let server = Server::start(ServerKind::OurVolume, run.folder(), size_bytes)?;
        let socket = run.folder().join("nbd-everbyte.sock");
        let beside = format!("beside {silent} silent clients");
        // The rounds without silent clients are a subject, because ratios compare subjects.
        let mut grid =
            Grid::new([ALONE, &beside], ["one client"]).select(run, |_| true, |_, _| true);
        grid.measure(run, |subject, _, _| {
            let silent = if subject == 0 { 0 } else { silent };
            let silent = (0..silent).map(|number| silent_client(&socket, number));
            let silent = silent.collect::<Result<Vec<_>>>()?;
            let round = round(&server.uri(), size_bytes, run.slice);
            drop(silent);
            round
        })?;
        grid.check()?;
        let rows = grid.rows(|cell, rows| {
            let figures: [(_, _, Figure); 3] = [
                ("p50", "p50_to_alone", |round| round.p50_us),
                ("p99", "p99_to_alone", |round| round.p99_us),
                ("max", "max_to_alone", |round| round.max_us),
            ];
            for (metric, ratio, of) in figures {
                rows.timed(metric, "us", cell.samples.iter().map(of));
                rows.ratio(ratio, &cell.samples, grid.base(cell, ALONE), of);
            }
        });
        Ok(Findings::new(rows, "a volume over NBD".to_owned(), size_bytes))
    }
}

/// A client that stops in the midst of a handshake.
fn silent_client(socket: &std::path::Path, number: u16) -> Result<UnixStream> {
    let mut stream = UnixStream::connect(socket).context("a silent client cannot connect")?;
    let sent: &[u8] = match number % 3 {
        0 => &[],
        1 => &[0, 0, 0, 3],
        _ => b"\0\0\0\x03IHAVEOPT\0\0",
    };
    stream.write_all(sent)?;
    Ok(stream)
}

/// The times of the answers to a client that connects, and reads and writes in turn.
fn round(uri: &str, size_bytes: u64, time: Duration) -> Result<Round> {
    let mut client = Client::connect_uri(uri)?;
    let mut places = SmallRng::seed_from_u64(SEED);
    let payload = vec![7; usize::try_from(BYTES)?];
    let mut times = Vec::new();
    let start = Instant::now();
    while start.elapsed() < time {
        let at = places.random_range(0..size_bytes / BYTES) * BYTES;
        let asked = Instant::now();
        match times.len() % 4 {
            0 => client.write(at, &payload, Fua::No)?,
            _ => drop(client.read(at, payload.len())?),
        }
        times.push(asked.elapsed());
    }
    client.disconnect()?;
    times.sort_unstable();
    let percentile = |percent: usize| {
        let time = times.get(times.len() * percent / 100).or(times.last());
        time.map_or(0.0, |time| time.as_secs_f64() * 1e6)
    };
    let (p50_us, p99_us, max_us) = (percentile(50), percentile(99), percentile(100));
    Ok(Round { p50_us, p99_us, max_us })
}

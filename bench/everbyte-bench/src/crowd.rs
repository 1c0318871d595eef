//! The suite of crowds: answers to one client of an NBD server compared with answers in a crowd of silent clients.
//!
//! Invariants: rounds with and without the silent clients alternate. The silent clients connect before a round and stop at
//! all points of a handshake. The working client has one request in flight, so each time is the time of one answer. A ratio
//! is of two neighboring rounds.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use everbyte_device::Fua;
use everbyte_nbd::Client;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::driver::{Common, Findings, Grid, Pace, Run, Suite};
use crate::stats::percentile;
use crate::subjects::nbd::{Server, ServerKind};

/// Bytes of a request.
const BYTES: u64 = 4096;
/// Seed of places.
const SEED: u64 = 0xc0_0d;
/// Name of the rounds without silent clients.
const ALONE: &str = "alone";

/// Measures answers to one NBD client in a crowd of silent clients.
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
            // The crowd stays until the last answer.
            drop(silent);
            round
        })?;
        // Both rounds are of our own server: a failure is ours.
        grid.check()?;
        let rows = grid.rows(|cell, rows| {
            for (metric, ratio, percent) in [
                ("p50", "p50_to_alone", 50),
                ("p99", "p99_to_alone", 99),
                ("max", "max_to_alone", 100),
            ] {
                let of = |times: &Vec<f64>| percentile(times, percent);
                rows.timed(metric, "us", cell.samples.iter().map(of));
                rows.ratio(ratio, &cell.samples, grid.base(cell, ALONE), of);
            }
        });
        Ok(Findings::new(rows, "a volume over NBD".to_owned(), size_bytes))
    }
}

/// A client without an end of its handshake.
fn silent_client(socket: &std::path::Path, number: u16) -> Result<UnixStream> {
    let mut stream = UnixStream::connect(socket).context("a silent client cannot connect")?;
    // Nothing, a part of the flags, and a part of an option: the server waits at three places.
    let sent: &[u8] = match number % 3 {
        0 => &[],
        1 => &[0, 0, 0, 3],
        _ => b"\0\0\0\x03IHAVEOPT\0\0",
    };
    stream.write_all(sent)?;
    Ok(stream)
}

/// Times of the answers to a client with reads and writes in turn, in microseconds, ascending.
fn round(uri: &str, size_bytes: u64, time: Duration) -> Result<Vec<f64>> {
    let mut client = Client::connect_uri(uri)?;
    let mut places = SmallRng::seed_from_u64(SEED);
    let payload = vec![7; usize::try_from(BYTES)?];
    let mut times = Vec::new();
    let start = Instant::now();
    while times.is_empty() || start.elapsed() < time {
        let at = places.random_range(0..size_bytes / BYTES) * BYTES;
        let asked = Instant::now();
        match times.len() % 4 {
            0 => client.write(at, &payload, Fua::No)?,
            _ => drop(client.read(at, payload.len())?),
        }
        times.push(asked.elapsed().as_secs_f64() * 1e6);
    }
    client.disconnect()?;
    times.sort_by(f64::total_cmp);
    Ok(times)
}

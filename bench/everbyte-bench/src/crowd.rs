//! The suite of crowds: answers to one client of an NBD server beside many silent ones.
//!
//! Invariants: rounds with and without the silent clients alternate, over one connection of the working
//! client each; the silent clients connect before a round and stop at all points of a handshake; the
//! working client has one request in flight, so each time is that of one answer. A ratio is of two
//! neighboring rounds.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use everbyte_device::Fua;
use everbyte_nbd::Client;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

use crate::environment::Environment;
use crate::stats::{Spread, as_f64, summarise};
use crate::subjects::nbd::{Server, ServerKind};

/// Bytes of a request.
const BYTES: u64 = 4096;
/// Seed of places.
const SEED: u64 = 0xc0_0d;

/// Options of the suite of crowds.
#[derive(clap::Args)]
pub(crate) struct CrowdArgs {
    /// A smoke test: few and short rounds. Its figures mean nothing.
    #[arg(long)]
    quick: bool,
    /// Silent clients.
    #[arg(long, default_value_t = 64)]
    silent: u16,
    /// Pairs of rounds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeats: u16,
    /// Seconds of each round.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Folder for the device; on tmpfs, or on SCM.
    #[arg(long, default_value = "/dev/shm", value_name = "FOLDER")]
    folder: PathBuf,
    /// Write the results as JSON.
    #[arg(long)]
    json: bool,
}

/// Times of answers in one round, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Round {
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
    requests: u64,
}

/// A figure with and without the crowd: medians of the rounds.
#[derive(Debug, Serialize)]
struct Figure {
    name: &'static str,
    alone_us: f64,
    beside_us: f64,
    ratio: f64,
    ratio_spread: Spread,
}

/// The result of the suite.
#[derive(Debug, Serialize)]
struct Report {
    environment: Environment,
    silent_clients: u16,
    figures: Vec<Figure>,
    rounds: Vec<[Round; 2]>,
}

/// Measures and prints.
///
/// # Errors
/// The server cannot be started or has ended; standard output's.
pub(crate) fn crowd(args: &CrowdArgs) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("everbyte-bench.").tempdir_in(&args.folder);
    let folder = folder.with_context(|| format!("cannot use {}", args.folder.display()))?;
    let (repeats, seconds, size_bytes) = match args.quick {
        true => (2, 0.05, 16 << 20),
        false => (args.repeats, args.seconds, 256 << 20),
    };
    let server = Server::start(ServerKind::OurVolume, folder.path(), size_bytes)?;
    let socket = folder.path().join("nbd-everbyte.sock");
    let time = Duration::from_secs_f64(seconds);
    let mut rounds = Vec::new();
    for number in 0..repeats {
        let beside = || -> Result<Round> {
            let silent: Result<Vec<_>> =
                (0..args.silent).map(|place| silent_client(&socket, place)).collect();
            let round = round(&server.uri(), size_bytes, time);
            drop(silent?);
            round
        };
        // Neither is always the first.
        let pair = match number % 2 {
            0 => [round(&server.uri(), size_bytes, time)?, beside()?],
            _ => {
                let beside = beside()?;
                [round(&server.uri(), size_bytes, time)?, beside]
            }
        };
        rounds.push(pair);
    }
    let figures = [
        figure("p50", &rounds, |round| round.p50_us),
        figure("p99", &rounds, |round| round.p99_us),
        figure("max", &rounds, |round| round.max_us),
    ];
    let figures = figures.into_iter().flatten().collect();
    let environment = Environment::new(&args.folder, size_bytes, repeats.into(), seconds);
    if let Some(warning) = environment.warning() {
        // A closed standard error changes nothing.
        let _unwritten = writeln!(io::stderr(), "everbyte-bench: warning: {warning}");
    }
    let report = Report { environment, silent_clients: args.silent, figures, rounds };
    print(&report, args.json)
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
    Ok(Round { p50_us, p99_us, max_us, requests: times.len() as u64 })
}

fn figure(name: &'static str, rounds: &[[Round; 2]], of: impl Fn(&Round) -> f64) -> Option<Figure> {
    let all = |which: usize| rounds.iter().map(|pair| of(&pair[which])).collect::<Vec<_>>();
    let ratios: Vec<f64> = rounds.iter().map(|[alone, beside]| of(beside) / of(alone)).collect();
    let (ratio, ratio_spread) = summarise(&ratios)?;
    let ((alone_us, _), (beside_us, _)) = (summarise(&all(0))?, summarise(&all(1))?);
    Some(Figure { name, alone_us, beside_us, ratio, ratio_spread })
}

fn print(report: &Report, is_json: bool) -> Result<()> {
    let mut out = io::stdout().lock();
    if is_json {
        writeln!(out, "{}", serde_json::to_string_pretty(report)?)?;
        return Ok(());
    }
    let requests: u64 = report.rounds.iter().flatten().map(|round| round.requests).sum();
    let per_round = as_f64(requests) / as_f64(2 * report.rounds.len() as u64);
    writeln!(
        out,
        "one client beside {} silent ones: {} pairs of rounds, {per_round:.0} requests a round",
        report.silent_clients,
        report.rounds.len()
    )?;
    for Figure { name, alone_us, beside_us, ratio, ratio_spread } in &report.figures {
        let Spread { min, max, .. } = ratio_spread;
        writeln!(
            out,
            "{name}: {alone_us:.1} us alone, {beside_us:.1} us beside them, ratio {ratio:.2} \
             ({min:.2} to {max:.2})"
        )?;
    }
    Ok(())
}

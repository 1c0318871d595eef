//! Servers of others under load, in memory of which a part may be in DRAM: redis-server by redis-benchmark,
//! memcached by clients of our own.
//!
//! Invariants: every wait has a limit; servers listen on Unix sockets in a folder of their own; whatever is
//! started ends with this process, however that ends; every value that was stored is compared.

mod benchmark;
mod client;
pub(crate) mod process;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand_distr::{Distribution, Zipf};
use serde::{Deserialize, Serialize};

use super::meter::machine_pages_swapped;
use super::place::Backing;
use benchmark::Test;
use client::{Connection, Request};
use process::{Lender, Server};

/// Connections of our clients, a thread each.
const CONNECTIONS: u64 = 2;
/// Requests that are on their way at once on each of them.
const PIPELINED: u64 = 8;
/// The same while a server is filled and compared.
const PIPELINED_ALL: u64 = 32;
/// One request in so many of our clients' is a store.
const STORES_SHARE: u64 = 10;
/// Skew of the keys that our clients ask for.
const SKEW: f64 = 0.99;
/// Odd and prime, so that it is coprime to every number of keys that is smaller: spreads what is hot.
const SPREAD: u64 = 2_654_435_761;
/// The longest time that our clients make requests.
const LOAD_TIME_MAX: Duration = Duration::from_secs(30);
/// The longest time that redis-server may take to save.
const SAVE_TIME_MAX: Duration = Duration::from_mins(2);
const LOOK: Duration = Duration::from_millis(20);
/// Bytes of memory that a key and its value take, about.
const KEY_BYTES: u64 = 1400;

/// A server of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Program {
    Redis,
    Memcached,
}

impl Program {
    pub(super) const BOTH: [Self; 2] = [Self::Redis, Self::Memcached];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis-server",
            Self::Memcached => "memcached",
        }
    }

    /// Programs that must be installed.
    pub(super) fn needs(self) -> &'static [&'static str] {
        match self {
            Self::Redis => &["redis-server", "redis-benchmark"],
            Self::Memcached => &["memcached"],
        }
    }

    /// The loads that it is measured under.
    pub(super) fn loads(self) -> &'static [&'static str] {
        match self {
            Self::Redis => &["gets", "sets while it saves"],
            Self::Memcached => &["gets and a tenth sets"],
        }
    }
}

/// The work of one measurement.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Serve {
    pub(super) program: Program,
    /// Bytes that keys and values take, about.
    pub(super) bytes: u64,
    /// The process that started it all, which makes and removes the folder for what servers write.
    pub(super) owner: u32,
}

impl Serve {
    fn keys(&self) -> u64 {
        self.bytes / KEY_BYTES
    }

    /// Bytes of memory and swap that the server can take, a forked child that saves included.
    pub(super) fn bytes_max(&self) -> u64 {
        2 * self.bytes
    }
}

/// The folder for sockets, logs and what redis-server saves, which should be on a disk: files on tmpfs are
/// memory of the server's cgroup.
pub(super) fn folder(owner: u32) -> PathBuf {
    std::env::temp_dir().join(folder_name(owner))
}

pub(super) fn folder_name(owner: u32) -> String {
    format!("everbyte-serving.{owner}")
}

/// Findings of one measurement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Served {
    /// In the order of [`Program::loads`].
    pub(super) loads: Vec<Load>,
    /// Anonymous memory once it was filled, and at most, in bytes.
    pub(super) filled_bytes: u64,
    pub(super) peak_bytes: u64,
    /// Pages that went out and in during its whole life, as far as they are counted.
    pub(super) pages_out: u64,
    pub(super) pages_in: u64,
    /// The time that the fork for saving took, and that saving took, in milliseconds.
    pub(super) fork_ms: Option<f64>,
    pub(super) save_ms: Option<f64>,
}

/// Findings under one load.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Load {
    pub(super) per_second: f64,
    pub(super) p99_us: f64,
}

/// Starts the server in its memory, fills, loads and compares it.
///
/// # Errors
/// A program's or the system's; something takes too long; a value is wrong.
pub(super) fn run(backing: &Backing, serve: Serve) -> Result<Served> {
    process::end_with_parent()?;
    let folder = tempfile::Builder::new().prefix("run.").tempdir_in(folder(serve.owner));
    let folder = folder.context("there is no folder for servers")?;
    let lender = match backing {
        Backing::Run(run) => Some(Lender::start(run, folder.path(), serve.bytes_max())?),
        _ => None,
    };
    let mut server = Server::start(serve, folder.path(), backing, lender.as_ref())?;
    let swapped_before = machine_pages_swapped()?;
    let served = use_server(&server, serve, folder.path());
    let mut served = served.with_context(|| server.told())?;
    served.peak_bytes = server.peak_bytes();
    let swapped = machine_pages_swapped()?;
    server.end()?;
    (served.pages_in, served.pages_out) = match backing {
        Backing::Run(_) => server.pages_moved().context("there are no statistics of the heap")?,
        Backing::Swapped(_) => (swapped.0 - swapped_before.0, swapped.1 - swapped_before.1),
        _ => (0, 0),
    };
    if let Some(lender) = lender {
        lender.end()?;
    }
    Ok(served)
}

fn use_server(server: &Server, serve: Serve, folder: &Path) -> Result<Served> {
    let connect = || Connection::open(serve.program, server.socket());
    let keys = serve.keys();
    let mut connection = connect()?;
    fill(&mut connection, keys)?;
    let mut served = Served { filled_bytes: server.resident_bytes()?, ..Served::default() };
    match serve.program {
        Program::Redis => {
            connection.ensure_saves_by_default()?;
            served.loads.push(benchmark::run(Test::Get, server.socket(), keys, folder)?);
            connection.begin_saving()?;
            served.loads.push(benchmark::run(Test::Set, server.socket(), keys, folder)?);
            let (fork_ms, save_ms) = wait_until_saved(&mut connection)?;
            (served.fork_ms, served.save_ms) = (Some(fork_ms), Some(save_ms));
            check_after_benchmark(&mut connection, keys)?;
        }
        Program::Memcached => {
            let (load, turns) = load(connect, keys)?;
            served.loads.push(load);
            check(&mut connection, &turns)?;
        }
    }
    Ok(served)
}

/// Stores every key.
fn fill(connection: &mut Connection, keys: u64) -> Result<()> {
    for first in (0..keys).step_by(stride(PIPELINED_ALL)) {
        let batch = first..keys.min(first + PIPELINED_ALL);
        connection.send(batch.clone().map(|key| Request::Store { key, turn: 0 }))?;
        batch.clone().try_for_each(|key| connection.stored(key))?;
    }
    Ok(())
}

/// Hands the value of every key to `look`.
fn for_all(
    connection: &mut Connection,
    keys: u64,
    mut look: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    for first in (0..keys).step_by(stride(PIPELINED_ALL)) {
        let batch = first..keys.min(first + PIPELINED_ALL);
        connection.send(batch.clone().map(|key| Request::Load { key }))?;
        for key in batch {
            look(key, connection.loaded(key)?)?;
        }
    }
    Ok(())
}

fn stride(requests: u64) -> usize {
    usize::try_from(requests).unwrap_or(usize::MAX)
}

/// Compares every value with that of its turn.
fn check(connection: &mut Connection, turns: &[u32]) -> Result<()> {
    for_all(connection, turns.len() as u64, |key, value| {
        let turn = turns.get(usize::try_from(key)?).copied().unwrap_or(0);
        ensure!(
            value == client::value(key, turn),
            "key {key} has another value than what was stored"
        );
        Ok(())
    })
}

/// Compares every value with ours, or with the one that redis-benchmark stores for all keys.
fn check_after_benchmark(connection: &mut Connection, keys: u64) -> Result<()> {
    let mut theirs: Option<Vec<u8>> = None;
    for_all(connection, keys, |key, value| {
        if value == client::value(key, 0) {
            return Ok(());
        }
        let is_theirs = value.len() == client::VALUE_LEN && benchmark::could_store(value);
        let first = theirs.get_or_insert_with(|| value.to_vec());
        ensure!(is_theirs && first == value, "key {key} has a value that nobody stored");
        Ok(())
    })?;
    ensure!(theirs.is_some(), "redis-benchmark has stored nothing");
    Ok(())
}

/// Waits until redis-server has saved; returns the time that its fork and its saving took.
fn wait_until_saved(connection: &mut Connection) -> Result<(f64, f64)> {
    let start = std::time::Instant::now();
    loop {
        let found = connection.info()?;
        let number = |name: &str| -> Result<f64> {
            let line = found.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|line| line.trim().parse().ok()).with_context(|| format!("no {name}"))
        };
        if number("rdb_bgsave_in_progress")? == 0.0 {
            ensure!(found.contains("rdb_last_bgsave_status:ok"), "redis-server could not save");
            let (fork_us, save_s) =
                (number("latest_fork_usec")?, number("rdb_last_bgsave_time_sec")?);
            return Ok((fork_us / 1e3, save_s * 1e3));
        }
        if start.elapsed() > SAVE_TIME_MAX {
            bail!("redis-server has not saved within {} s", SAVE_TIME_MAX.as_secs());
        }
        std::thread::sleep(LOOK);
    }
}

/// Has clients of our own load the server; returns how often each key was stored.
fn load(connect: impl Fn() -> Result<Connection>, keys: u64) -> Result<(Load, Vec<u32>)> {
    let clients = (0..CONNECTIONS).map(|number| Client::new(connect()?, number, keys));
    let clients = clients.collect::<Result<Vec<Client>>>()?;
    let start = std::time::Instant::now();
    let ended = std::thread::scope(|scope| {
        let running: Vec<_> =
            clients.into_iter().map(|client| scope.spawn(move || client.run())).collect();
        let joined = running.into_iter().map(|thread| thread.join().expect("no client panics"));
        joined.collect::<Result<Vec<Client>>>()
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let mut times_us = Histogram::<u64>::new(3)?;
    let mut turns = vec![0; usize::try_from(keys)?];
    for client in ended {
        times_us.add(&client.times_us)?;
        for (key, turn) in (client.number..keys).step_by(stride(CONNECTIONS)).zip(client.turns) {
            turns[usize::try_from(key)?] = turn;
        }
    }
    let per_second = crate::stats::as_f64(times_us.len()) / seconds;
    let p99_us = crate::stats::as_f64(times_us.value_at_quantile(0.99));
    Ok((Load { per_second, p99_us }, turns))
}

/// A client that has every `CONNECTIONS`th key, compares what it loads and remembers what it stored.
struct Client {
    connection: Connection,
    number: u64,
    /// How often it has stored each of its keys.
    turns: Vec<u32>,
    random: SmallRng,
    zipf: Zipf<f64>,
    requests: u64,
    times_us: Histogram<u64>,
}

impl Client {
    fn new(connection: Connection, number: u64, keys: u64) -> Result<Self> {
        let own = keys.saturating_sub(number).div_ceil(CONNECTIONS);
        Ok(Self {
            connection,
            number,
            turns: vec![0; usize::try_from(own)?],
            random: SmallRng::seed_from_u64(number),
            zipf: Zipf::new(crate::stats::as_f64(own), SKEW)?,
            requests: 2 * own,
            times_us: Histogram::new(3)?,
        })
    }

    /// Makes its requests, or as many of them as there is time for.
    fn run(mut self) -> Result<Self> {
        let start = std::time::Instant::now();
        let mut made = 0;
        while made < self.requests && start.elapsed() < LOAD_TIME_MAX {
            let batch = (made..made + PIPELINED).map(|nth| self.next(nth % STORES_SHARE == 0));
            let batch: Vec<(Request, u32)> = batch.collect();
            let sent = std::time::Instant::now();
            self.connection.send(batch.iter().map(|(request, _)| *request))?;
            for (request, turn) in batch {
                match request {
                    Request::Store { key, .. } => self.connection.stored(key)?,
                    Request::Load { key } => {
                        let is_right = self.connection.loaded(key)? == client::value(key, turn);
                        ensure!(is_right, "key {key} has another value than what was stored");
                    }
                }
                self.times_us.record(u64::try_from(sent.elapsed().as_micros())?)?;
            }
            made += PIPELINED;
        }
        Ok(self)
    }

    /// The next request, and the turn of its value.
    fn next(&mut self, is_store: bool) -> (Request, u32) {
        let own = self.turns.len() as u64;
        let nth = super::access::rank(self.zipf.sample(&mut self.random)) as u64 * SPREAD % own;
        let turn = &mut self.turns[usize::try_from(nth).unwrap_or(0)];
        let key = self.number + nth * CONNECTIONS;
        *turn += u32::from(is_store);
        (if is_store { Request::Store { key, turn: *turn } } else { Request::Load { key } }, *turn)
    }
}

//! A server of others whose memory is limited, and clients that load it.
//!
//! The server is the process that pages; clients and whoever measures are outside of its limit. Every value
//! that memcached gives is compared; redis-server is loaded by redis-benchmark, which compares nothing.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use super::place::Backing;

/// Bytes of a value.
const VALUE: usize = 1024;
/// Connections, each with a request under way.
const CLIENTS: u64 = 4;
/// One request in so many is a store, of memcached's.
const STORES: u32 = 10;
/// Requests that are sent before answers are read, while a server is filled.
const BATCH: u64 = 256;
/// Looks at a server that begins, and the time between them.
const LOOKS: u32 = 500;
const LOOK: Duration = Duration::from_millis(20);

/// A server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Server {
    Redis,
    Memcached,
}

/// A server and what it is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Service {
    pub(super) server: Server,
    pub(super) keys: u64,
    pub(super) requests: u64,
}

/// Findings about one kind of request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Served {
    pub(super) request: String,
    /// Requests in a second.
    pub(super) rate: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

impl Service {
    /// Bytes of memory that the server takes at most, copies for a forked child not counted.
    pub(super) fn bytes_max(self) -> u64 {
        (self.keys * 2 * VALUE as u64).max(16 << 20)
    }
}

impl Server {
    pub(super) const ALL: [Self; 2] = [Self::Redis, Self::Memcached];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis-server",
            Self::Memcached => "memcached",
        }
    }

    /// Checks that the programs are there.
    ///
    /// # Errors
    /// The one that is not.
    pub(super) fn check_installed(self) -> Result<()> {
        let programs: &[&str] = match self {
            Self::Redis => &["redis-server", "redis-benchmark", "setpriv"],
            Self::Memcached => &["memcached", "setpriv"],
        };
        for program in programs {
            let called = Command::new(program).arg("--version").output();
            called.with_context(|| format!("{program} is not installed"))?;
        }
        everbyte().map(|_| ())
    }

    fn arguments(self, socket: &Path, service: Service) -> Vec<String> {
        let socket = socket.display().to_string();
        let mib = 64 + service.keys * 2 * VALUE as u64 / (1 << 20);
        let mib = mib.to_string();
        let words: &[&str] = match self {
            // Saving is as redis-server does it by default: in a forked child, now and then.
            Self::Redis => &["--port", "0", "--unixsocket", &socket, "--loglevel", "warning"],
            Self::Memcached => &["-s", &socket, "-m", &mib, "-t", "2", "-u", "root"],
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }
}

/// A server that runs, in a folder of its own.
pub(super) struct Running {
    service: Service,
    process: Child,
    socket: PathBuf,
    _folder: tempfile::TempDir,
}

impl Running {
    /// Starts a server with the memory that `backing` says, and waits until it answers.
    ///
    /// # Errors
    /// A program is not installed, or ends.
    pub(super) fn start(service: Service, backing: &Backing) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("everbyte-serve.").tempdir()?;
        let socket = folder.path().join("socket");
        // A server must not outlive who measures it, however that ends.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        if let Backing::Region(region) = backing {
            command.arg(everbyte()?).args(["run", "--dram", &region.dram_bytes.to_string(), "--"]);
        }
        command.arg(service.server.name()).args(service.server.arguments(&socket, service));
        command.current_dir(folder.path()).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        if let Backing::Swapped(swapped) = backing {
            swapped.enter()?;
        }
        let process = command.spawn().context("setpriv is not installed");
        if let Backing::Swapped(swapped) = backing {
            swapped.leave()?;
        }
        let mut running = Self { service, process: process?, socket, _folder: folder };
        running.wait_for_answer()?;
        Ok(running)
    }

    fn wait_for_answer(&mut self) -> Result<()> {
        for _ in 0..LOOKS {
            if let Some(status) = self.process.try_wait()? {
                bail!("{} ended with {status}; is it installed?", self.service.server.name());
            }
            if UnixStream::connect(&self.socket).is_ok() {
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
        bail!("{} does not answer", self.service.server.name())
    }

    /// Bytes of memory that the server has.
    ///
    /// # Errors
    /// It is gone.
    pub(super) fn resident_bytes(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        Ok(kib.context("the server has no memory")? << 10)
    }

    /// Processor time of the server so far, in nanoseconds.
    ///
    /// # Errors
    /// It is gone.
    pub(super) fn cpu_ns(&self) -> Result<u64> {
        let mut sum = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.process.id()))? {
            let Ok(times) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
            sum += times.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(sum)
    }

    /// Stores every key once.
    ///
    /// # Errors
    /// The server's.
    pub(super) fn fill(&self) -> Result<()> {
        let mut client = Client::connect(&self.socket)?;
        let keys = self.service.keys;
        for first in (0..keys).step_by(usize::try_from(BATCH)?) {
            let end = (first + BATCH).min(keys);
            let mut text = Vec::new();
            for key in first..end {
                self.append_store(&mut text, key);
            }
            client.stream.write_all(&text)?;
            for _ in first..end {
                client.expect(if self.service.server == Server::Redis {
                    "+OK"
                } else {
                    "STORED"
                })?;
            }
        }
        Ok(())
    }

    fn append_store(&self, text: &mut Vec<u8>, key: u64) {
        let value = value(key);
        let head = match self.service.server {
            // The keys of redis-benchmark.
            Server::Redis => {
                format!("*3\r\n$3\r\nSET\r\n$16\r\nkey:{key:012}\r\n${}\r\n", value.len())
            }
            Server::Memcached => format!("set key:{key:012} 0 0 {}\r\n", value.len()),
        };
        text.extend(head.into_bytes());
        text.extend(value);
        text.extend(b"\r\n");
    }

    /// Loads the server.
    ///
    /// # Errors
    /// The server's, or the program's that loads it; a value that is not what was stored.
    pub(super) fn load(&self) -> Result<Vec<Served>> {
        match self.service.server {
            Server::Redis => self.run_redis_benchmark(),
            Server::Memcached => Ok(vec![self.request_values()?]),
        }
    }

    fn run_redis_benchmark(&self) -> Result<Vec<Served>> {
        let Service { keys, requests, .. } = self.service;
        let output = Command::new("redis-benchmark")
            .args(["--csv", "-t", "set,get", "-s"])
            .arg(&self.socket)
            .args(["-r", &keys.to_string(), "-n", &requests.to_string()])
            .args(["-c", &CLIENTS.to_string(), "-d", &VALUE.to_string()])
            .output()
            .context("redis-benchmark is not installed")?;
        ensure!(output.status.success(), "redis-benchmark ended with {}", output.status);
        parse_redis_benchmark(&String::from_utf8_lossy(&output.stdout))
    }

    fn request_values(&self) -> Result<Served> {
        let share = self.service.requests / CLIENTS;
        let start = Instant::now();
        let latencies = std::thread::scope(|scope| {
            let running: Vec<_> = (0..CLIENTS)
                .map(|seed| scope.spawn(move || self.request_some(share, seed)))
                .collect();
            let mut all = Histogram::<u64>::new(3)?;
            for thread in running {
                all.add(thread.join().expect("no client panics")?)?;
            }
            anyhow::Ok(all)
        })?;
        let rate = crate::stats::as_f64(share * CLIENTS) / start.elapsed().as_secs_f64();
        let us = |quantile| crate::stats::as_f64(latencies.value_at_quantile(quantile)) / 1e3;
        Ok(Served { request: "90% GET".to_owned(), rate, p50_us: us(0.5), p99_us: us(0.99) })
    }

    fn request_some(&self, count: u64, seed: u64) -> Result<Histogram<u64>> {
        let mut client = Client::connect(&self.socket)?;
        let mut random = SmallRng::seed_from_u64(seed);
        let mut latencies = Histogram::<u64>::new(3)?;
        let mut text = Vec::new();
        for _ in 0..count {
            let key = random.random_range(0..self.service.keys);
            text.clear();
            let is_store = random.random_range(0..STORES) == 0;
            if is_store {
                self.append_store(&mut text, key);
            } else {
                write!(text, "get key:{key:012}\r\n")?;
            }
            let start = Instant::now();
            client.stream.write_all(&text)?;
            if is_store {
                client.expect("STORED")?;
            } else {
                client.expect_value(key)?;
            }
            latencies.record(u64::try_from(start.elapsed().as_nanos())?)?;
        }
        Ok(latencies)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.process.kill();
        let _waited = self.process.wait();
    }
}

/// The program beside this one, built likewise, with the library that it needs.
fn everbyte() -> Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name("everbyte");
    for file in [program.clone(), program.with_file_name("libeverbyte_preload.so")] {
        ensure!(file.exists(), "{} is not built", file.display());
    }
    Ok(program)
}

/// A connection to a server.
struct Client {
    stream: UnixStream,
    answers: BufReader<UnixStream>,
}

impl Client {
    fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)?;
        let answers = BufReader::new(stream.try_clone()?);
        Ok(Self { stream, answers })
    }

    fn expect(&mut self, words: &str) -> Result<()> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        ensure!(
            line.trim_end() == words,
            "the server says {:?} instead of {words}",
            line.trim_end()
        );
        Ok(())
    }

    fn expect_value(&mut self, key: u64) -> Result<()> {
        let expected = value(key);
        self.expect(&format!("VALUE key:{key:012} 0 {}", expected.len()))?;
        let mut got = vec![0; expected.len() + 2];
        self.answers.read_exact(&mut got)?;
        ensure!(got.starts_with(&expected), "key {key} has another value than what was stored");
        self.expect("END")
    }
}

/// The value of a key: half of it random, as pages elsewhere are.
fn value(key: u64) -> Vec<u8> {
    let mut random = SmallRng::seed_from_u64(key);
    let mut value = vec![b'v'; VALUE];
    random.fill(&mut value[VALUE / 2..]);
    value
}

fn parse_redis_benchmark(text: &str) -> Result<Vec<Served>> {
    let served = text.lines().skip(1).map(|line| {
        let mut words = line.split(',').map(|word| word.trim_matches('"'));
        let request = words.next().unwrap_or("").to_owned();
        let figures: Vec<f64> = words.filter_map(|word| word.parse().ok()).collect();
        let [rate, _, _, p50_ms, _, p99_ms, ..] = figures[..] else {
            bail!("redis-benchmark says {line:?}")
        };
        Ok(Served { request, rate, p50_us: p50_ms * 1e3, p99_us: p99_ms * 1e3 })
    });
    served.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_redis_benchmark_are_read() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\
                    \"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n\
                    \"SET\",\"1000.50\",\"0.020\",\"0.001\",\"0.015\",\"0.030\",\"0.250\",\"9.000\"\n";
        let served = parse_redis_benchmark(text).unwrap();
        assert_eq!(served.len(), 1);
        assert!((served[0].rate - 1000.5).abs() < 1e-9 && served[0].request == "SET");
        assert!((served[0].p50_us - 15.0).abs() < 1e-9 && (served[0].p99_us - 250.0).abs() < 1e-9);
        assert!(parse_redis_benchmark("head\nnothing").is_err());
    }
}

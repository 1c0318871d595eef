//! redis-server with a limit on its DRAM, under redis-benchmark.
//!
//! Invariants: redis-server listens on a Unix socket in a new folder. It ends with this process, also after
//! SIGKILL. Every stored value is compared. The parent limits the time of the whole measurement.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use super::meter::machine_pages_swapped;
use super::subjects::Subject;
use super::task::Task;
use super::words::PAGE;
use crate::children::call;

/// The loads in the order of [`Served::loads`].
pub(super) const LOADS: [&str; 2] = ["gets", "sets while it saves"];
/// Bytes of a value.
const VALUE_LEN: usize = 1024;
/// Memory of a key and its value in bytes, about.
const KEY_BYTES: u64 = 1400;
/// Requests in flight.
const PIPELINED: usize = 32;
/// Maximum time until the server listens, and until it answers.
const READY_TIME_MAX: Duration = Duration::from_secs(30);
const ANSWER_TIME_MAX: Duration = Duration::from_mins(1);
const PAUSE: Duration = Duration::from_millis(20);
/// Bytes of a swap volume beyond the need of the server: arenas grow by large steps.
const VOLUME_SLACK: u64 = 192 << 20;
/// Bytes of a pool beyond its volume.
const POOL_SLACK: u64 = 64 << 20;
/// Moves a shell into a cgroup, sets the limit and becomes the program.
const ENTER: &str = "echo 0 >\"$1/cgroup.procs\" && echo \"$2\" >\"$1/memory.limit_in_bytes\" && \
                     shift 2 && exec \"$@\"";
/// Becomes the program, and ends with the parent.
const TIED: [&str; 4] = ["setpriv", "--pdeathsig", "KILL", "--"];

/// Findings of one measurement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Served {
    /// In the order of [`LOADS`].
    pub(super) loads: Vec<Load>,
    /// DRAM limit, and anonymous memory after the fill, in bytes.
    pub(super) limit_bytes: u64,
    pub(super) filled_bytes: u64,
    /// Counted pages in and out during the server's life.
    pub(super) pages_in: u64,
    pub(super) pages_out: u64,
    /// Times of the fork and of the save, in milliseconds.
    pub(super) fork_ms: f64,
    pub(super) save_ms: f64,
}

/// Findings under one load.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Load {
    pub(super) per_second: f64,
    pub(super) p99_us: f64,
}

/// Checks for the programs of a subject.
///
/// # Errors
/// The reason.
pub(super) fn check(subject: Subject) -> Result<()> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    for name in ["redis-server", "redis-benchmark"] {
        let is_installed = std::env::split_paths(&folders).any(|at| at.join(name).is_file());
        ensure!(is_installed, "{name} is not installed");
    }
    if subject == Subject::Run {
        let mut command = Command::new(everbyte()?);
        call(command.args(["run", "--dram", "16M", "--", "true"]).stdin(Stdio::null()))?;
    }
    Ok(())
}

/// The program `everbyte`, named by EVERBYTE or in the folder of this program.
fn everbyte() -> Result<PathBuf> {
    let named = std::env::var_os("EVERBYTE").map(PathBuf::from);
    let path = named.unwrap_or(std::env::current_exe()?.with_file_name("everbyte"));
    ensure!(path.is_file(), "everbyte is not built: {} is not a file", path.display());
    Ok(path)
}

/// Starts the server in its memory, fills it, loads it and compares its values.
///
/// # Errors
/// Errors of a program or of the system; a step takes too long; a value is wrong.
pub(super) fn run(task: &Task, bytes: u64) -> Result<Served> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let folder = task.server_folder.as_deref().context("redis-server needs a folder")?;
    let (log, socket) = (folder.join("log"), folder.join("socket"));
    let mut command = command(task)?;
    command.args(["redis-server", "--port", "0", "--loglevel", "warning", "--unixsocket"]);
    // Without a configuration file the server saves by its default rules.
    command.arg(&socket).arg("--dir").arg(folder);
    // A log without a reader: a full pipe would block the server.
    let out = File::create(&log)?;
    command.stdin(Stdio::null()).stderr(out.try_clone()?).stdout(out);
    let mut child = command.spawn().context("setpriv is not installed")?;
    let swapped_before = machine_pages_swapped()?;
    let used = wait_until_ready(&mut child, &socket)
        .and_then(|connection| use_server(connection, &socket, bytes / KEY_BYTES));
    let mut served = used.with_context(|| end_of(&log))?;
    // Before the end of the server, which frees its swap without reads.
    let swapped = machine_pages_swapped()?;
    child.wait()?;
    served.limit_bytes = task.dram_bytes;
    (served.pages_in, served.pages_out) = match task.subject {
        Subject::Run => {
            pages_moved(&fs::read_to_string(&log)?).context("the heap has no statistics")?
        }
        Subject::Kernel(_) => (swapped.0 - swapped_before.0, swapped.1 - swapped_before.1),
        _ => (0, 0),
    };
    Ok(served)
}

/// The beginning of the server's command, by subject.
fn command(task: &Task) -> Result<Command> {
    let mut command = Command::new(TIED[0]);
    command.args(&TIED[1..]);
    if let Some(swapped) = &task.cgroup {
        command.args(["sh", "-c", ENTER, "sh"]).arg(&swapped.cgroup);
        command.arg(swapped.limit_bytes.to_string());
    } else if task.subject == Subject::Run {
        let (program, pool) = (everbyte()?, task.folder.join("serving.pool"));
        let path = pool.to_str().context("the folder's name is not UTF-8")?;
        // A pool of an earlier round.
        if pool.exists() {
            fs::remove_file(&pool)?;
        }
        let volume = (task.load.bytes() + VOLUME_SLACK).next_multiple_of(2 << 20);
        let size = |bytes: u64| format!("{}M", bytes >> 20);
        let make = |arguments: &[&str]| call(Command::new(&program).args(arguments));
        make(&["pool", "create", path, "--size", &size(volume + POOL_SLACK)])?;
        make(&["volume", "create", path, "more", "--kind", "swap", "--size", &size(volume)])?;
        command.arg(&program).args(["run", "--stats", "--dram", &task.dram_bytes.to_string()]);
        // Without a running server `everbyte run` serves the pool and is the parent of redis-server. A
        // killed parent would leave redis-server alone, so both are tied.
        command.arg("--pool").arg(pool.join("more")).arg("--").args(TIED);
    }
    Ok(command)
}

fn wait_until_ready(child: &mut Child, socket: &Path) -> Result<Connection> {
    let start = Instant::now();
    loop {
        if let Ok(stream) = UnixStream::connect(socket) {
            stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
            stream.set_write_timeout(Some(ANSWER_TIME_MAX))?;
            return Ok(Connection { answers: BufReader::new(stream.try_clone()?), stream });
        }
        if let Some(status) = child.try_wait()? {
            bail!("redis-server ended with {status}");
        }
        ensure!(start.elapsed() < READY_TIME_MAX, "redis-server is not ready");
        std::thread::sleep(PAUSE);
    }
}

fn use_server(mut connection: Connection, socket: &Path, keys: u64) -> Result<Served> {
    for first in (0..keys).step_by(PIPELINED) {
        let batch = first..keys.min(first + PIPELINED as u64);
        let mut requests = Vec::new();
        for key in batch.clone() {
            // The keys of redis-benchmark.
            write!(requests, "*3\r\n$3\r\nSET\r\n$16\r\nkey:{key:012}\r\n${VALUE_LEN}\r\n")?;
            requests.extend(value(key));
            requests.extend(b"\r\n");
        }
        connection.stream.write_all(&requests)?;
        for key in batch {
            let answer = connection.line()?;
            ensure!(answer == "+OK", "key {key} cannot be stored: {answer}");
        }
    }
    // The child can be `everbyte run`, so the server names its own process.
    let pid = connection.number("process_id")?;
    let mut served = Served { filled_bytes: resident_bytes(pid)?, ..Served::default() };
    served.loads.push(benchmark("get", socket, keys)?);
    connection.stream.write_all(b"BGSAVE\r\n")?;
    let answer = connection.line()?;
    // A rule can have started a save before this request.
    let is_saving = answer.starts_with('+') || answer.contains("already in progress");
    ensure!(is_saving, "redis-server does not save: {answer}");
    served.loads.push(benchmark("set", socket, keys)?);
    while connection.number("rdb_bgsave_in_progress")? != 0.0 {
        std::thread::sleep(PAUSE);
    }
    ensure!(
        connection.info()?.contains("rdb_last_bgsave_status:ok"),
        "redis-server could not save"
    );
    served.fork_ms = connection.number("latest_fork_usec")? / 1e3;
    served.save_ms = connection.number("rdb_last_bgsave_time_sec")? * 1e3;
    // Last: the check must not change the caches before a measured load.
    check_values(&mut connection, keys)?;
    connection.stream.write_all(b"SHUTDOWN NOSAVE\r\n")?;
    Ok(served)
}

/// The value of a key: half of it is random, so it compresses about 2:1.
fn value(key: u64) -> [u8; VALUE_LEN] {
    let mut value = [b'v'; VALUE_LEN];
    SmallRng::seed_from_u64(key).fill_bytes(&mut value[..VALUE_LEN / 2]);
    value
}

/// Compares every value with ours, or with the one value of redis-benchmark for all keys.
fn check_values(connection: &mut Connection, keys: u64) -> Result<()> {
    let mut theirs: Option<Vec<u8>> = None;
    for key in 0..keys {
        let request = format!("*2\r\n$3\r\nGET\r\n$16\r\nkey:{key:012}\r\n");
        connection.stream.write_all(request.as_bytes())?;
        let found = connection.body().with_context(|| format!("key {key} has no value"))?;
        if found != value(key) {
            let is_theirs = found.len() == VALUE_LEN && could_store(&found);
            let first = theirs.get_or_insert_with(|| found.clone());
            ensure!(is_theirs && *first == found, "key {key} has a value from no client");
        }
    }
    ensure!(theirs.is_some(), "redis-benchmark stored nothing");
    Ok(())
}

/// Returns true for a possible value of redis-benchmark: 64 characters from '0' on.
fn could_store(value: &[u8]) -> bool {
    value.iter().all(|byte| (b'0'..b'0' + 64).contains(byte))
}

/// Runs a test of redis-benchmark with one request for each of `keys` random keys.
fn benchmark(test: &str, socket: &Path, keys: u64) -> Result<Load> {
    let (keys, len) = (keys.to_string(), VALUE_LEN.to_string());
    let mut command = Command::new("redis-benchmark");
    command.arg("-s").arg(socket).args(["--csv", "-t", test, "-r", &keys, "-n", &keys, "-d", &len]);
    let output = command.stdin(Stdio::null()).output().context("cannot start redis-benchmark")?;
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    ensure!(output.status.success(), "redis-benchmark ended with {}: {text}", output.status);
    figures(&text).with_context(|| format!("redis-benchmark wrote {text:?}"))
}

/// Finds the rate and the 99th percentile by their columns.
fn figures(text: &str) -> Option<Load> {
    // Warnings precede the head of the table.
    let mut lines = text.lines().skip_while(|line| !line.starts_with("\"test\""));
    let (names, values) = (lines.next()?, lines.next()?);
    let value = |name: &str| -> Option<f64> {
        let at = names.split(',').position(|found| found.trim_matches('"') == name)?;
        values.split(',').nth(at)?.trim_matches('"').parse().ok()
    };
    Some(Load { per_second: value("rps")?, p99_us: value("p99_latency_ms")? * 1e3 })
}

/// A connection to redis-server.
struct Connection {
    stream: UnixStream,
    answers: BufReader<UnixStream>,
}

impl Connection {
    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line).context("redis-server does not answer")?;
        line.strip_suffix("\r\n").map(str::to_owned).context("redis-server closed the connection")
    }

    /// Reads an answer of stated length.
    fn body(&mut self) -> Result<Vec<u8>> {
        let head = self.line()?;
        let len = head.strip_prefix('$').and_then(|len| len.parse::<usize>().ok());
        let len = len.with_context(|| format!("no text: {head}"))?;
        let mut body = vec![0; len + 2];
        self.answers.read_exact(&mut body)?;
        body.truncate(len);
        Ok(body)
    }

    fn info(&mut self) -> Result<String> {
        self.stream.write_all(b"INFO\r\n")?;
        Ok(String::from_utf8(self.body()?)?)
    }

    /// A number of INFO.
    fn number(&mut self, name: &str) -> Result<f64> {
        let info = self.info()?;
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|line| line.trim().parse().ok()).with_context(|| format!("no {name}"))
    }
}

/// The end of a log.
fn end_of(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let end = text.lines().rev().take(6).collect::<Vec<&str>>();
    end.into_iter().rev().collect::<Vec<&str>>().join("\n")
}

/// Pages in and out by the last statistics of `everbyte run`.
fn pages_moved(log: &str) -> Option<(u64, u64)> {
    let line = log.lines().rfind(|line| line.contains(" MiB, out "))?;
    let pages = |before: &str| {
        let number = line.split(before).nth(1)?.split(' ').next()?;
        Some(number.parse::<u64>().ok()? * ((1 << 20) / PAGE))
    };
    Some((pages(", in ")?, pages(", out ")?))
}

/// Anonymous memory of a process in DRAM.
fn resident_bytes(pid: f64) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(kib.context("the system does not report anonymous memory")? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_by_their_columns() {
        let text = "WARNING: Could not fetch server CONFIG\n\
                    \"test\",\"rps\",\"avg_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n\
                    \"GET\",\"125000.00\",\"0.2\",\"0.415\",\"1.1\"\n";
        let load = figures(text).unwrap();
        assert!((load.per_second - 125_000.0).abs() < 1e-6 && (load.p99_us - 415.0).abs() < 1e-6);
        assert!(figures("\"test\",\"rps\"\n\"GET\",\"1\"\n").is_none());
        assert!(figures("Could not connect\n").is_none());
    }

    #[test]
    fn own_values_differ_from_redis_benchmarks() {
        assert!(could_store(b"0aZo") && !could_store(b"vvv~"));
        assert!(!(0..1000).any(|key| could_store(&value(key))));
        assert_ne!(value(1), value(2));
    }

    #[test]
    fn answers_are_read_to_their_ends() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"+OK\r\n$3\r\na\r\n\r\n$-1\r\n$9\r\nshort").unwrap();
        drop(theirs);
        let mut redis =
            Connection { answers: BufReader::new(ours.try_clone().unwrap()), stream: ours };
        assert_eq!(redis.line().unwrap(), "+OK");
        assert_eq!(redis.body().unwrap(), b"a\r\n");
        assert!(redis.body().unwrap_err().to_string().contains("no text: $-1"));
        assert!(redis.body().is_err());
    }

    #[test]
    fn last_statistics_are_used() {
        let log = "everbyte: 1 s: DRAM 4 of 4 MiB, slots 1 of 64 MiB, in 1 MiB, out 2 MiB, faults 1 load\n\
                   everbyte: 2 s: DRAM 4 of 4 MiB, slots 1 of 64 MiB, in 3 MiB, out 5 MiB, faults 1 load\n\
                   everbyte: 5 MiB were written to 64 MiB\n";
        assert_eq!(pages_moved(log), Some((3 * 256, 5 * 256)));
        assert_eq!(pages_moved("nothing"), None);
    }
}

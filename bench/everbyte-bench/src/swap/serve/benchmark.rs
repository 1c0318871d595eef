//! redis-benchmark: a run of one of its tests over all keys, and what it says.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::client::VALUE_LEN;
use super::{LOOK, Load, process};

/// The longest time that it may take.
const TIME_MAX: Duration = Duration::from_mins(2);

/// A test of redis-benchmark's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Test {
    Get,
    Set,
}

/// Runs a test of one request for each of `keys` keys, which are random.
///
/// # Errors
/// It fails, or takes too long.
pub(super) fn run(test: Test, socket: &Path, keys: u64, folder: &Path) -> Result<Load> {
    let (keys, len) = (keys.to_string(), VALUE_LEN.to_string());
    let name = if test == Test::Get { "get" } else { "set" };
    let path = folder.join("redis-benchmark");
    let out = File::create(&path)?;
    let mut command = process::launch(None)?;
    command.arg("redis-benchmark").arg("-s").arg(socket);
    command.args(["--csv", "-t", name, "-r", &keys, "-n", &keys, "-d", &len]);
    command.stdin(Stdio::null()).stderr(out.try_clone()?).stdout(out);
    let mut child = command.spawn().context("cannot start redis-benchmark")?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() > TIME_MAX {
            child.kill()?;
            child.wait()?;
            bail!("redis-benchmark has not ended within {} s", TIME_MAX.as_secs());
        }
        std::thread::sleep(LOOK);
    };
    let said = fs::read_to_string(&path)?;
    ensure!(status.success(), "redis-benchmark ended with {status}: {}", said.trim());
    figures(&said).with_context(|| format!("redis-benchmark says {:?}", said.trim()))
}

/// Finds the rate and the 99th percentile by their columns.
fn figures(said: &str) -> Option<Load> {
    let mut lines = said.lines().skip_while(|line| !line.starts_with("\"test\""));
    let split = |line: &str| -> Vec<String> {
        line.split(',').map(|field| field.trim_matches('"').to_owned()).collect()
    };
    let (names, values) = (split(lines.next()?), split(lines.next()?));
    let value = |name: &str| -> Option<f64> {
        let at = names.iter().position(|found| found == name)?;
        values.get(at)?.parse().ok()
    };
    Some(Load { per_second: value("rps")?, p99_us: value("p99_latency_ms")? * 1e3 })
}

/// True if redis-benchmark could have stored this: it makes values of 64 characters, from '0' on.
pub(super) fn could_store(value: &[u8]) -> bool {
    value.iter().all(|byte| (b'0'..b'0' + 64).contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_by_their_columns() {
        let said = "WARNING: Could not fetch server CONFIG\n\
                    \"test\",\"rps\",\"avg_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n\
                    \"GET\",\"125000.00\",\"0.2\",\"0.415\",\"1.1\"\n";
        let load = figures(said).unwrap();
        assert!((load.per_second - 125_000.0).abs() < 1e-6 && (load.p99_us - 415.0).abs() < 1e-6);
        assert!(figures("\"test\",\"rps\"\n\"GET\",\"1\"\n").is_none());
        assert!(figures("Could not connect\n").is_none());
    }

    #[test]
    fn own_values_differ_from_redis_benchmarks() {
        assert!(could_store(b"0aZo") && !could_store(b"vvv~"));
        assert!(!(0..1000).any(|key| could_store(&super::super::client::value(key, 0))));
    }
}

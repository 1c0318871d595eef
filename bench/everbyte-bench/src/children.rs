//! Child processes: tools that run to their end, and servers.
//!
//! Invariants: a server ends with its [`ServerProcess`]. Our servers end with their standard input. The others get a signal,
//! and ask for the death of their parent as a signal.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// Time between looks at a child.
const LOOK: Duration = Duration::from_millis(10);
/// Longest time for a server's start, and for its end.
const SERVER_TIME_MAX: Duration = Duration::from_secs(60);

/// A running server.
pub(crate) struct ServerProcess {
    child: Child,
    is_ours: bool,
}

impl ServerProcess {
    /// Starts a server. Our servers announce their readiness. A foreign server is ready once `is_ready` returns true.
    ///
    /// # Errors
    /// The server is not installed, or does not start.
    pub(crate) fn start(
        name: &str,
        command: &mut Command,
        is_ours: bool,
        is_ready: impl Fn() -> bool,
    ) -> Result<Self> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let child = child.with_context(|| format!("{name} is not installed"))?;
        let mut process = Self { child, is_ours };
        if is_ours {
            let out = process.child.stdout.take().context("no standard output")?;
            let mut line = String::new();
            BufReader::new(out).read_line(&mut line)?;
            ensure!(line == "ready\n", "{name} did not start");
        } else {
            wait_until(&mut process.child, name, SERVER_TIME_MAX, is_ready)?;
        }
        Ok(process)
    }

    /// Processor time so far, in nanoseconds.
    ///
    /// # Errors
    /// The server has ended.
    pub(crate) fn cpu_ns(&self) -> Result<u64> {
        cpu_ns(&self.child)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        if !self.is_ours {
            terminate(&self.child);
        }
        wait_or_kill(&mut self.child, SERVER_TIME_MAX);
    }
}

/// Runs a tool to its end and returns its standard output.
///
/// # Errors
/// The tool is not installed, or fails; the error has its standard error.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("{name} is not installed"))?;
    if !output.status.success() {
        bail!("{name} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Runs a tool to its end.
///
/// # Errors
/// As [`output`].
pub(crate) fn call(command: &mut Command) -> Result<()> {
    output(command).map(drop)
}

/// Waits until `is_ready` returns true.
///
/// # Errors
/// The child ends first, or needs more than `time_max`.
pub(crate) fn wait_until(
    child: &mut Child,
    name: &str,
    time_max: Duration,
    is_ready: impl Fn() -> bool,
) -> Result<()> {
    let start = Instant::now();
    while !is_ready() {
        if let Some(status) = child.try_wait()? {
            bail!("{name} ended at once: {status}");
        }
        ensure!(start.elapsed() < time_max, "{name} is not ready after {time_max:?}");
        // Foreign servers have no common event for their readiness.
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Sends SIGTERM to a child. The child may have ended before.
fn terminate(child: &Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _gone = kill_process(pid, Signal::TERM);
    }
}

/// Waits until a child has ended, and kills it after `time_max`.
pub(crate) fn wait_or_kill(child: &mut Child, time_max: Duration) {
    let start = Instant::now();
    while matches!(child.try_wait(), Ok(None)) {
        if start.elapsed() > time_max {
            // The child may have ended between the two calls.
            let _gone = child.kill();
        }
        std::thread::sleep(LOOK);
    }
}

/// Processor time of a child so far, in nanoseconds.
///
/// # Errors
/// The child has ended.
fn cpu_ns(child: &Child) -> Result<u64> {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id())?);
    let spent = nix::time::clock_getcpuclockid(pid).and_then(nix::time::ClockId::now)?;
    Ok(u64::try_from(Duration::from(spent).as_nanos())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_ends_at_sigterm_or_sigkill() {
        let start = |script: &str| Command::new("sh").args(["-c", script]).spawn().unwrap();
        let mut polite = start("exec sleep 600");
        assert!(cpu_ns(&polite).is_ok());
        terminate(&polite);
        wait_or_kill(&mut polite, Duration::from_secs(600));
        assert!(!polite.wait().unwrap().success());
        let mut deaf = start("trap '' TERM; while :; do sleep 1; done");
        terminate(&deaf);
        wait_or_kill(&mut deaf, Duration::ZERO);
        assert!(cpu_ns(&deaf).is_err());
    }

    #[test]
    fn tool_error_has_its_stderr() {
        let error = call(Command::new("sh").args(["-c", "echo no room >&2; exit 1"])).unwrap_err();
        assert_eq!(error.to_string(), "sh failed: no room");
        call(&mut Command::new("true")).unwrap();
    }
}

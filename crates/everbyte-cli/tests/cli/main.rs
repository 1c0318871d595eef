//! The command as its users meet it: output, JSON, exit status, error texts, signals.
//!
//! Owns the harness: a folder with a pool in it, commands run in it, servers ended in every case,
//! and bounded waits.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod caches;
mod complaints;
mod create;
mod demo;
mod devices;
mod faults;
mod file_attributes;
mod files;
mod health;
mod hostile;
mod leases;
mod local;
mod media;
mod metrics;
mod mount;
mod mount_end;
mod mounts_served;
mod paths;
mod repair;
mod rights;
mod scrubs;
mod served;
mod service;
mod simulate;
mod swap;
mod texts;
mod traces;
mod watchdog;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use everbyte_nbd::{Address, Client};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::watchdog::Watchdog;

fn everbyte() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_everbyte"));
    command.stdin(Stdio::null()).env_remove("RUST_LOG");
    command
}

/// Exit status and outputs of a command.
#[derive(Debug)]
struct Outcome {
    status: i32,
    out: String,
    err: String,
}

impl Outcome {
    #[track_caller]
    fn of(command: &mut Command) -> Self {
        Self::with_stdout(command, Stdio::piped())
    }

    /// Runs a command with a full standard output.
    #[track_caller]
    fn unheard(command: &mut Command) -> Self {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        Self::with_stdout(command, full.into())
    }

    #[track_caller]
    fn with_stdout(command: &mut Command, stdout: Stdio) -> Self {
        let child = command.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap();
        let watchdog = Watchdog::over(&child);
        let output = child.wait_with_output().unwrap();
        watchdog.call_off(command);
        Self {
            status: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Its standard output, if it succeeded and complained about nothing.
    fn good(self) -> String {
        assert!(self.status == 0 && self.err.is_empty(), "{self:?}");
        self.out
    }

    fn json(self) -> Value {
        serde_json::from_str(&self.good()).unwrap()
    }

    /// Checks a failure: `status`, `words` on standard error, and no other output.
    fn failed(self, status: i32, words: &[&str]) {
        assert!(self.status == status && self.out.is_empty(), "{self:?}");
        for word in words {
            assert!(self.err.contains(word), "{word:?} is not in {self:?}");
        }
    }
}

/// A folder with a pool.
struct Place {
    folder: TempDir,
    pool: PathBuf,
}

impl Place {
    fn empty() -> Self {
        let shm = Path::new("/dev/shm");
        let folder = tempfile::tempdir_in(shm).or_else(|_| tempfile::tempdir()).unwrap();
        Self { pool: folder.path().join("pool"), folder }
    }

    /// With a pool of 32 MiB and a volume `disk` of 8 MiB.
    fn with_disk() -> Self {
        let place = Self::empty();
        place.run("pool create POOL --size 32M").good();
        place.run("volume create POOL disk --size 8M").good();
        place
    }

    /// Runs `everbyte` with `arguments`. POOL and FOLDER in them stand for the paths.
    #[track_caller]
    fn run(&self, arguments: &str) -> Outcome {
        Outcome::of(everbyte().args(self.arguments(arguments)))
    }

    fn arguments(&self, arguments: &str) -> Vec<String> {
        let replace = |word: &str| {
            word.replace("POOL", self.pool.to_str().unwrap())
                .replace("FOLDER", self.folder.path().to_str().unwrap())
        };
        arguments.split_whitespace().map(replace).collect()
    }

    fn info(&self) -> Value {
        self.run("pool info POOL --json").json()
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(&self.pool).unwrap()
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("nbd.sock")
    }

    /// Serves `target`, with more `arguments`, on a Unix socket.
    fn serve(&self, target: &str, arguments: &str) -> Running {
        let line = format!("serve {target} --nbd unix:FOLDER/nbd.sock {arguments}");
        Running::start(everbyte().args(self.arguments(&line)))
    }

    fn client(&self, export: &str) -> Client {
        Client::connect(&Address::Unix(self.socket()), export).unwrap()
    }
}

/// A running server.
struct Running {
    child: Child,
    out: BufReader<ChildStdout>,
    /// Its first line.
    ready: String,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        Self::start_with(command, Stdio::null())
    }

    /// The same with its standard error going somewhere.
    fn start_with(command: &mut Command, stderr: Stdio) -> Self {
        let mut running = Self::begin_with(command, stderr);
        running.ready = running.line();
        running
    }

    /// Starts it and does not wait for its first line.
    fn begin(command: &mut Command) -> Self {
        Self::begin_with(command, Stdio::null())
    }

    fn begin_with(command: &mut Command, stderr: Stdio) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out, ready: String::new() }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let watchdog = Watchdog::over(&self.child);
        self.out.read_line(&mut line).unwrap();
        watchdog.call_off(&"a line of a server");
        line.trim_end().to_owned()
    }

    fn signal(&mut self, signal: Signal) -> ExitStatus {
        self.send(signal);
        let watchdog = Watchdog::over(&self.child);
        let status = self.child.wait().unwrap();
        watchdog.call_off(&"the end of a server");
        status
    }

    fn send(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Ends it by a signal, and expects its success.
    fn stop(mut self) {
        assert!(self.signal(Signal::TERM).success());
    }

    /// Kills it on the spot.
    fn kill(mut self) {
        self.signal(Signal::KILL);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already if all went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

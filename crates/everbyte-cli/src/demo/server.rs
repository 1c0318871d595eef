//! The server of the demonstration: this program, run as `everbyte serve`. The demonstration starts
//! it, kills it and starts it again.
//!
//! Invariant: however the demonstration ends, by an error or a signal too, its server is ended
//! and its folder removed.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Exit status after a signal.
const INTERRUPTED_STATUS: i32 = 130;
const REMOVAL_TRIES: u32 = 100;
const REMOVAL_REST: Duration = Duration::from_millis(20);

/// Things to clean up when a signal comes.
pub(super) struct Cleanup {
    folder: PathBuf,
    /// True once a signal has come: from then on no server may be started.
    interrupted: AtomicBool,
    server: Mutex<Option<Child>>,
}

impl Cleanup {
    /// Watches for signals from now on; the first one cleans up and ends the process.
    ///
    /// # Errors
    /// The system cannot deliver signals or start a thread.
    pub(super) fn start(folder: &Path) -> anyhow::Result<Arc<Self>> {
        let cleanup = Arc::new(Self {
            folder: folder.to_owned(),
            interrupted: AtomicBool::new(false),
            server: Mutex::new(None),
        });
        let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
        let watched = Arc::clone(&cleanup);
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            if signals.forever().next().is_some() {
                watched.interrupted.store(true, Ordering::SeqCst);
                watched.end_server();
                watched.remove_folder();
                std::process::exit(INTERRUPTED_STATUS);
            }
        })?;
        Ok(cleanup)
    }

    /// Waits for the end of the process if a signal has come: it must not act or print in between.
    pub(super) fn yield_to_signal(&self) {
        while self.interrupted.load(Ordering::SeqCst) {
            std::thread::park();
        }
    }

    /// Removes the folder although a tool, or the story itself, may still be writing to it.
    fn remove_folder(&self) {
        for _ in 0..REMOVAL_TRIES {
            match std::fs::remove_dir_all(&self.folder) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {}
                _ => return,
            }
            std::thread::sleep(REMOVAL_REST);
        }
        tracing::error!("{} could not be removed", self.folder.display());
    }

    fn end_server(&self) {
        if let Some(mut server) = self.server.lock().take() {
            // It may have ended already.
            let _ended = server.kill();
            let _reaped = server.wait();
        }
    }
}

/// A running server.
pub(super) struct DemoServer {
    cleanup: Arc<Cleanup>,
    pub(super) pid: u32,
    /// From the start of the process to its "ready".
    pub(super) start_time: Duration,
    /// Open for as long as the server may write to it.
    _output: Option<BufReader<ChildStdout>>,
}

impl DemoServer {
    /// Starts a server for the pool at `pool` and waits until it listens on the Unix socket at
    /// `socket`. Its log is appended to `log`.
    ///
    /// # Errors
    /// It cannot be started, or says nothing; the error has the log.
    pub(super) fn start(
        cleanup: &Arc<Cleanup>,
        pool: &Path,
        socket: &Path,
        log: &Path,
    ) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let started = Instant::now();
        let mut address = std::ffi::OsString::from("unix:");
        address.push(socket);
        let mut slot = cleanup.server.lock();
        if cleanup.interrupted.load(Ordering::SeqCst) {
            // The thread with the clean-up needs the lock.
            drop(slot);
            cleanup.yield_to_signal();
            bail!("interrupted");
        }
        let mut child = Command::new(program)
            .arg("serve")
            .arg(pool)
            .arg("--nbd")
            .arg(address)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::options().create(true).append(true).open(log)?)
            .spawn()
            .context("cannot start the server")?;
        let mut output = child.stdout.take().map(BufReader::new);
        let pid = child.id();
        *slot = Some(child);
        drop(slot);
        let mut line = String::new();
        let read = output.as_mut().map_or(Ok(0), |output| output.read_line(&mut line));
        let start_time = started.elapsed();
        let server = Self { cleanup: Arc::clone(cleanup), pid, start_time, _output: output };
        read.context("cannot read what the server says")?;
        if !line.starts_with("ready: ") {
            let log = std::fs::read_to_string(log).unwrap_or_default();
            bail!("the server did not start:\n{log}");
        }
        Ok(server)
    }

    /// Ends it as a crash would: its handlers do not run.
    pub(super) fn kill(self) {
        self.cleanup.end_server();
    }

    /// Asks it to end and waits until it has.
    ///
    /// # Errors
    /// It fails to.
    pub(super) fn stop(self) -> anyhow::Result<()> {
        let mut server = self.cleanup.server.lock();
        let Some(child) = server.as_mut() else { bail!("the server has ended already") };
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.context("the server has no process number")?, Signal::TERM)?;
        let status = child.wait()?;
        *server = None;
        drop(server);
        if !status.success() {
            bail!("the server ended with {status}");
        }
        Ok(())
    }
}

impl Drop for DemoServer {
    fn drop(&mut self) {
        self.cleanup.end_server();
    }
}

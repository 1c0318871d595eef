//! Processes of a measurement: each is started by a launcher, which becomes it, and ends with who started it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use super::client::Connection;
use super::{LOOK, Program, Serve};
use crate::children::{call, terminate};
use crate::swap::place::{Backing, PAGE, RunBacking, Swapped};

/// The name of the subcommand, which people do not see.
const SUBCOMMAND: &str = "swap-launch";
/// The longest time until a process is ready, and until it has ended.
const READY_TIME_MAX: Duration = Duration::from_secs(30);
const END_TIME_MAX: Duration = Duration::from_secs(30);
/// Bytes of a volume beyond the most that a server takes: arenas grow by large steps.
const VOLUME_SLACK: u64 = 192 << 20;
/// Bytes of a pool beyond those of its volume.
const POOL_SLACK: u64 = 64 << 20;
const VOLUME: &str = "more";
/// The end of what a process has said that is passed on.
const TOLD_LEN: usize = 600;

/// Becomes a program, which ends with who started it, in a memory cgroup if that is asked for.
#[derive(clap::Args)]
pub(crate) struct LaunchArgs {
    /// The process that starts it.
    parent: i32,
    /// The memory cgroup, as JSON, or null.
    swapped: String,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

/// Runs as a launcher; returns only if that fails.
///
/// # Errors
/// The system's.
pub(crate) fn launched(args: &LaunchArgs) -> Result<()> {
    match serde_json::from_str::<Option<Swapped>>(&args.swapped)? {
        Some(swapped) => swapped.enter()?,
        None => end_with_parent()?,
    }
    // Had it ended before that, nobody would end this process.
    ensure!(getppid() == Pid::from_raw(args.parent), "who started this has ended");
    let (program, arguments) = args.program.split_first().context("there is no program")?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}

/// A command that becomes the program that is still to be named, with its arguments.
pub(super) fn launch(swapped: Option<&Swapped>) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    let parent = std::process::id().to_string();
    command.args([SUBCOMMAND, &parent, &serde_json::to_string(&swapped)?, "--"]);
    command.stdin(Stdio::null());
    Ok(command)
}

/// Has this process end when who started it does.
///
/// # Errors
/// The system's.
pub(super) fn end_with_parent() -> Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// The program `everbyte`: the one that EVERBYTE names, or that lies beside this one.
fn everbyte() -> Option<PathBuf> {
    let named = std::env::var_os("EVERBYTE").map(PathBuf::from);
    let beside = || Some(std::env::current_exe().ok()?.with_file_name("everbyte"));
    named.or_else(beside).filter(|path| path.is_file())
}

/// True if a program of this name can be run.
pub(in crate::swap) fn is_installed(name: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(name).is_file())
}

/// Checks that `everbyte run` can run programs here.
///
/// # Errors
/// The reason why not.
pub(in crate::swap) fn check_everbyte_run() -> Result<()> {
    let Some(program) = everbyte() else {
        bail!("everbyte is not built: it is neither beside this program nor what EVERBYTE names");
    };
    let mut command = Command::new(program);
    command.args(["run", "--dram", "16M", "--", "true"]).stdin(Stdio::null());
    call(&mut command)
}

/// A process that is killed when this is dropped.
struct Running {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Running {
    fn start(name: &'static str, mut command: Command, folder: &Path) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let out = File::create(&log)?;
        command.stderr(out.try_clone()?).stdout(out);
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name, child, log })
    }

    /// Waits until somebody listens.
    fn wait_until_ready(&mut self, socket: &Path) -> Result<()> {
        let start = Instant::now();
        while UnixStream::connect(socket).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended with {status}: {}", self.name, self.told());
            }
            if start.elapsed() > READY_TIME_MAX {
                bail!("{} is not ready: {}", self.name, self.told());
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Waits until it has ended of itself.
    fn wait_until_gone(&mut self) -> Result<()> {
        let start = Instant::now();
        while self.child.try_wait()?.is_none() {
            if start.elapsed() > END_TIME_MAX {
                bail!("{} does not end: {}", self.name, self.told());
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// The end of what it has said.
    fn told(&self) -> String {
        let mut said = Vec::new();
        let _read = File::open(&self.log).and_then(|mut log| log.read_to_end(&mut said));
        let end = &said[said.len().saturating_sub(TOLD_LEN)..];
        String::from_utf8_lossy(end).trim().to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended, and then there is nothing to do.
        let _killed = self.child.kill();
        let _waited = self.child.wait();
    }
}

/// A server of a pool with a swap volume, which lends to the program.
pub(super) struct Lender {
    running: Running,
    program: PathBuf,
    pool: PathBuf,
    dram_bytes: u64,
}

impl Lender {
    /// Makes the pool, and serves it.
    ///
    /// # Errors
    /// The program's.
    pub(super) fn start(run: &RunBacking, folder: &Path, bytes_max: u64) -> Result<Self> {
        let program = everbyte().context("there is no everbyte")?;
        let pool = run.folder.join("serving.pool");
        let volume = (bytes_max + VOLUME_SLACK).next_multiple_of(2 << 20);
        let size = |bytes: u64| format!("{}M", bytes >> 20);
        if pool.exists() {
            fs::remove_file(&pool)?;
        }
        let make = |arguments: &[&str]| {
            let mut command = Command::new(&program);
            call(command.args(arguments).stdin(Stdio::null()))
        };
        let path = pool.to_str().context("the folder's name is no text")?;
        make(&["pool", "create", path, "--size", &size(volume + POOL_SLACK)])?;
        make(&["volume", "create", path, VOLUME, "--kind", "swap", "--size", &size(volume)])?;
        let mut command = launch(None)?;
        command.arg(&program).arg("serve").arg(&pool);
        let running = Running::start("everbyte", command, folder)?;
        let mut lender = Self { running, program, pool, dram_bytes: run.dram_bytes };
        let mut socket = lender.pool.clone().into_os_string();
        socket.push(".sock");
        lender.running.wait_until_ready(Path::new(&socket))?;
        Ok(lender)
    }

    /// Ends the server, and removes the pool.
    ///
    /// # Errors
    /// It does not end.
    pub(super) fn end(mut self) -> Result<()> {
        terminate(&self.running.child);
        self.running.wait_until_gone()?;
        Ok(fs::remove_file(&self.pool)?)
    }

    /// Adds what starts a program that borrows.
    fn add_to(&self, command: &mut Command) {
        command.arg(&self.program).args(["run", "--stats", "--dram"]);
        command.arg(self.dram_bytes.to_string()).arg("--pool");
        command.arg(self.pool.join(VOLUME)).arg("--");
    }
}

/// A server under load.
pub(super) struct Server {
    running: Running,
    program: Program,
    socket: PathBuf,
    watch: Watch,
}

impl Server {
    /// Starts it in its memory and waits until it answers.
    ///
    /// # Errors
    /// It does not.
    pub(super) fn start(
        serve: Serve,
        folder: &Path,
        backing: &Backing,
        lender: Option<&Lender>,
    ) -> Result<Self> {
        let socket = folder.join("socket");
        let swapped = match backing {
            Backing::Swapped(swapped) => Some(swapped),
            _ => None,
        };
        let mut command = launch(swapped)?;
        if let Some(lender) = lender {
            lender.add_to(&mut command);
        }
        command.arg(serve.program.name());
        match serve.program {
            Program::Redis => {
                command.args(["--port", "0", "--loglevel", "warning", "--unixsocket"]);
                command.arg(&socket).arg("--dir").arg(folder);
            }
            Program::Memcached => {
                let mib = (serve.bytes_max() >> 20).to_string();
                command.arg("-s").arg(&socket).args(["-t", "2", "-m", &mib]);
                if rustix::process::geteuid().is_root() {
                    command.args(["-u", "root"]);
                }
            }
        }
        let mut running = Running::start(serve.program.name(), command, folder)?;
        running.wait_until_ready(&socket)?;
        let watch = Watch::start(running.child.id())?;
        Ok(Self { running, program: serve.program, socket, watch })
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// The end of what it has said.
    pub(super) fn told(&self) -> String {
        self.running.told()
    }

    /// Bytes of anonymous memory in DRAM.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn resident_bytes(&self) -> Result<u64> {
        resident_bytes(self.running.child.id())
    }

    /// The most of them that was seen.
    pub(super) fn peak_bytes(&self) -> u64 {
        self.watch.peak_bytes.load(Relaxed)
    }

    /// Ends it, without saving.
    ///
    /// # Errors
    /// It does not end.
    pub(super) fn end(&mut self) -> Result<()> {
        match self.program {
            Program::Redis => Connection::open(self.program, &self.socket)?.shut_down()?,
            Program::Memcached => terminate(&self.running.child),
        }
        self.running.wait_until_gone()
    }

    /// Pages that came in and went out, by the last statistics of `everbyte run`.
    pub(super) fn pages_moved(&self) -> Option<(u64, u64)> {
        pages_moved(&fs::read_to_string(&self.running.log).ok()?)
    }
}

fn pages_moved(said: &str) -> Option<(u64, u64)> {
    let line = said.lines().rfind(|line| line.contains(" MiB, out "))?;
    let pages = |before: &str| {
        let number = line.split(before).nth(1)?.split(' ').next()?;
        Some(number.parse::<u64>().ok()? * ((1 << 20) / PAGE))
    };
    Some((pages(", in ")?, pages(", out ")?))
}

fn resident_bytes(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(kib.context("the system does not say what is in DRAM")? << 10)
}

/// A thread that looks at a process's memory now and then.
struct Watch {
    peak_bytes: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    fn start(pid: u32) -> Result<Self> {
        let (peak_bytes, is_over) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (peak, over) = (Arc::clone(&peak_bytes), Arc::clone(&is_over));
        let look = move || {
            while !over.load(Relaxed)
                && let Ok(bytes) = resident_bytes(pid)
            {
                peak.fetch_max(bytes, Relaxed);
                std::thread::sleep(LOOK);
            }
        };
        let thread = Some(std::thread::Builder::new().name("watch".to_owned()).spawn(look)?);
        Ok(Self { peak_bytes, is_over, thread })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // It does not panic, and has nothing to say.
            let _joined = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_statistics_are_used() {
        let said = "everbyte: 1 s: DRAM 4 of 4 MiB, slots 1 of 64 MiB, in 1 MiB, out 2 MiB, faults 1 load\n\
                    everbyte: 2 s: DRAM 4 of 4 MiB, slots 1 of 64 MiB, in 3 MiB, out 5 MiB, faults 1 load\n\
                    everbyte: 5 MiB were written to 64 MiB\n";
        assert_eq!(pages_moved(said), Some((3 * 256, 5 * 256)));
        assert_eq!(pages_moved("nothing"), None);
    }

    #[test]
    fn own_memory_is_seen() {
        assert!(resident_bytes(std::process::id()).unwrap() > 0);
    }
}

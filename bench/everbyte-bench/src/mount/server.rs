//! Servers of mounts, each in a separate process with its own processor time.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::fuse_options::Caching;
use super::room::Room;
use super::served::ServedFs;
use crate::children::{ServerProcess, call};

/// libfuse's example as Debian's `libfuse3-dev` has it.
const SOURCE: &str = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c";

/// A measured file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// One of this program.
    Own(ServedFs),
    /// libfuse's example of a mirror of another directory, here of one on tmpfs.
    Passthrough,
}

/// A mount with its server.
pub(crate) struct Server {
    pub(crate) kind: Kind,
    pub(crate) dir: PathBuf,
    process: ServerProcess,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [
        Self::Own(ServedFs::Null),
        Self::Own(ServedFs::Plain),
        Self::Passthrough,
        Self::Own(ServedFs::Everbyte),
    ];

    /// Its name in the results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Own(fs) => fs.name(),
            Self::Passthrough => "passthrough_ll",
        }
    }

    /// Returns true if files keep written bytes.
    pub(crate) fn keeps(self) -> bool {
        self != Self::Own(ServedFs::Null)
    }
}

/// Compiles libfuse's example, and returns the program.
///
/// # Errors
/// The source, the compiler or the library is not there.
pub(crate) fn build_passthrough(room: &Room) -> Result<PathBuf> {
    if !Path::new(SOURCE).exists() {
        bail!("{SOURCE} is not there: install libfuse3-dev");
    }
    let program = room.directory("build")?.join("passthrough_ll");
    let flags = Command::new("pkg-config").args(["--cflags", "--libs", "fuse3"]).output();
    let flags = String::from_utf8(flags.context("pkg-config is not installed")?.stdout)?;
    let mut compiler = Command::new("gcc");
    compiler.args(["-O2", "-o"]).arg(&program).arg(SOURCE).args(flags.split_whitespace());
    call(&mut compiler)?;
    Ok(program)
}

/// Settings of the C library: a process keeps freed memory, so the kernel does not zero the plain file system's
/// vectors repeatedly. Our file system has all of its memory from the start.
const KEPT_MEMORY: &str =
    "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=4294967296";

impl Server {
    /// Starts a server with `threads` threads and mounts it; ours has a pool of `size` bytes.
    ///
    /// # Errors
    /// It does not start.
    pub(crate) fn start(
        (kind, caching): (Kind, Caching),
        room: &Room,
        passthrough: &Path,
        (threads, size): (usize, u64),
    ) -> Result<Self> {
        let name = format!("{}-{}", kind.name(), caching.name());
        let dir = room.directory(&name)?;
        let mut command = match kind {
            Kind::Own(fs) => own(fs, caching, (threads, size))?,
            Kind::Passthrough => {
                let source = room.directory(&format!("{name}-source"))?;
                mirror(passthrough, &source, caching, threads)
            }
        };
        if let Kind::Own(_) = kind {
            command.arg("--dir");
        }
        command.arg(&dir);
        let device = |path: &Path| fs::metadata(path).ok().map(|found| found.dev());
        let is_mounted = || device(&dir) != dir.parent().and_then(device);
        let is_ours = matches!(kind, Kind::Own(_));
        let process = ServerProcess::start(&name, &mut command, is_ours, is_mounted)?;
        Ok(Self { kind, dir, process })
    }

    /// Starts a server of ours as it is shipped, with two threads and a pool of `size` bytes.
    ///
    /// # Errors
    /// It does not start.
    pub(crate) fn ours(room: &Room, size: u64) -> Result<Self> {
        let subject = (Kind::Own(ServedFs::Everbyte), Caching::Cached);
        Self::start(subject, room, Path::new(""), (2, size))
    }

    /// Processor time of the server so far, in nanoseconds.
    ///
    /// # Errors
    /// It has ended.
    pub(crate) fn cpu_ns(&self) -> Result<u64> {
        let spent = self.process.cpu_ns();
        spent.with_context(|| format!("{} has ended", self.kind.name()))
    }
}

/// The command of a server of this program, but for its directory.
fn own(fs: ServedFs, caching: Caching, (threads, size): (usize, u64)) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["serve-mount", "--fs", fs.name(), "--caching", caching.name()]);
    command.args(["--threads", &threads.to_string(), "--size", &size.to_string()]);
    command.env("GLIBC_TUNABLES", KEPT_MEMORY);
    Ok(command)
}

/// The command of the mirror, but for its directory.
fn mirror(program: &Path, source: &Path, caching: Caching, threads: usize) -> Command {
    let cache = match caching {
        Caching::Cached => "always",
        Caching::Direct => "never",
    };
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).arg(program).arg("-f");
    command.args(["-o", "xattr,no_writeback,default_permissions,clone_fd"]);
    command.args(["-o", &format!("max_idle_threads={threads},cache={cache}")]);
    command.args(["-o", &format!("source={}", source.display())]);
    command
}

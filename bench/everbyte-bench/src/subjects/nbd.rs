//! Servers over NBD, each a process of its own, all driven by the same client.
//!
//! The client keeps up to the workload's depth in flight. When that is reached it waits for the
//! oldest quarter of them, and only then asks for more, so that requests travel in small batches,
//! as they do from a queue of a kernel or a VM.
//!
//! Invariants: a server ends with its `Subject`: ours because its standard input ends, the others
//! by a signal and, should this process die first, because they asked for that.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use everbyte_device::Fua;
use everbyte_media::allocate_file;
use everbyte_nbd::{Address, Client, Cookie};

use super::served::ServedDevice;
use crate::children::{self, terminate, wait_or_kill};
use crate::subject::{Session, Subject};
use crate::workload::{Payload, Workload};

/// Time that a server may take to listen, and to end.
const SERVER_TIME_MAX: Duration = Duration::from_secs(60);
/// Time between looks whether it does.
const SERVER_POLL: Duration = Duration::from_millis(10);
/// Bytes of the requests that a device is filled with.
const FILL_BYTES: usize = 64 << 10;

/// A server and its one export.
pub(crate) struct Server {
    name: &'static str,
    child: Child,
    address: Address,
}

/// The servers there can be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ServerKind {
    OurNull,
    OurMemory,
    OurVolume,
    /// A cache that has all of its backing device, and writes nothing back.
    OurCache,
    /// Memory as slow as a hard disk.
    OurDisk,
    /// Memory as slow as a SATA solid-state disk.
    OurSsd,
    NbdkitNull,
    NbdkitMemory,
    NbdkitFile,
    QemuNbd,
}

impl ServerKind {
    /// Those that are compared over NBD; the slow ones only lie below file systems.
    pub(crate) const ALL: [Self; 8] = [
        Self::OurNull,
        Self::OurMemory,
        Self::OurVolume,
        Self::OurCache,
        Self::NbdkitNull,
        Self::NbdkitMemory,
        Self::NbdkitFile,
        Self::QemuNbd,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OurNull => "nbd-null",
            Self::OurMemory => "nbd-memory",
            Self::OurVolume => "nbd-everbyte",
            Self::OurCache => "nbd-cache",
            Self::OurDisk => "nbd-disk",
            Self::OurSsd => "nbd-ssd",
            Self::NbdkitNull => "nbdkit-null",
            Self::NbdkitMemory => "nbdkit-memory",
            Self::NbdkitFile => "nbdkit-file",
            Self::QemuNbd => "qemu-nbd",
        }
    }

    /// Returns true for our own servers.
    pub(crate) fn is_ours(self) -> bool {
        matches!(
            self,
            Self::OurNull
                | Self::OurMemory
                | Self::OurVolume
                | Self::OurCache
                | Self::OurDisk
                | Self::OurSsd
        )
    }

    /// Returns true if all of it is to be written before it is measured.
    fn is_filled(self) -> bool {
        !matches!(self, Self::OurNull | Self::NbdkitNull | Self::OurDisk | Self::OurSsd)
    }
}

impl Server {
    /// Starts a server of `size_bytes` with its files in `folder`, and writes all of its export
    /// unless it is slow.
    ///
    /// # Errors
    /// It is not installed, or does not start.
    pub(crate) fn start(kind: ServerKind, folder: &Path, size_bytes: u64) -> Result<Self> {
        let name = kind.name();
        let socket = folder.join(format!("{name}.sock"));
        let mut command = command(kind, folder, &socket, size_bytes)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let child = command.spawn().with_context(|| format!("{name} is not installed"))?;
        let mut server = Self { name, child, address: Address::Unix(socket.clone()) };
        server.wait_until_listening(kind, &socket)?;
        if kind.is_filled() {
            server.fill(size_bytes)?;
        }
        Ok(server)
    }

    /// Its export's URI.
    pub(crate) fn uri(&self) -> String {
        self.address.uri("disk")
    }

    fn wait_until_listening(&mut self, kind: ServerKind, socket: &Path) -> Result<()> {
        if kind.is_ours() {
            let out = self.child.stdout.take().context("no standard output")?;
            let mut line = String::new();
            BufReader::new(out).read_line(&mut line)?;
            if line != "ready\n" {
                bail!("{} did not start", self.name);
            }
            return Ok(());
        }
        let start = Instant::now();
        while !socket.exists() || Client::connect(&self.address, "").is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended at once: {status}", self.name);
            }
            if start.elapsed() > SERVER_TIME_MAX {
                bail!("{} does not listen", self.name);
            }
            std::thread::sleep(SERVER_POLL);
        }
        Ok(())
    }

    fn fill(&self, size_bytes: u64) -> Result<()> {
        let mut session = NbdSession::open(&self.address, 16)?;
        let payload = Payload::unedited();
        for part in 0..size_bytes / FILL_BYTES as u64 {
            let at = part * FILL_BYTES as u64;
            session.write(at, payload.first(FILL_BYTES), Fua::No)?;
        }
        session.flush()
    }
}

/// The command that starts a server.
fn command(kind: ServerKind, folder: &Path, socket: &Path, size_bytes: u64) -> Result<Command> {
    let ours = |device: ServedDevice| -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve-device").arg("--device").arg(match device {
            ServedDevice::Null => "null",
            ServedDevice::Memory => "memory",
            ServedDevice::Volume => "volume",
            ServedDevice::Cache => "cache",
            ServedDevice::Disk => "disk",
            ServedDevice::Ssd => "ssd",
        });
        command.arg("--socket").arg(socket).arg("--folder").arg(folder);
        command.arg("--size").arg(size_bytes.to_string());
        Ok(command)
    };
    let nbdkit = |plugin: &str| {
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(socket).arg(plugin);
        command
    };
    Ok(match kind {
        ServerKind::OurNull => ours(ServedDevice::Null)?,
        ServerKind::OurMemory => ours(ServedDevice::Memory)?,
        ServerKind::OurVolume => ours(ServedDevice::Volume)?,
        ServerKind::OurCache => ours(ServedDevice::Cache)?,
        ServerKind::OurDisk => ours(ServedDevice::Disk)?,
        ServerKind::OurSsd => ours(ServedDevice::Ssd)?,
        ServerKind::NbdkitNull | ServerKind::NbdkitMemory => {
            let plugin = if kind == ServerKind::NbdkitNull { "null" } else { "memory" };
            let mut command = nbdkit(plugin);
            command.arg(format!("size={size_bytes}"));
            command
        }
        ServerKind::NbdkitFile => {
            let mut command = nbdkit("file");
            command.arg(format!("file={}", image(folder, kind, size_bytes)?.display()));
            command
        }
        ServerKind::QemuNbd => {
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "TERM", "--", "qemu-nbd", "--persistent"]);
            command.args(["--shared=8", "--format=raw", "--cache=writeback", "--socket"]);
            command.arg(socket).arg(image(folder, kind, size_bytes)?);
            command
        }
    })
}

/// A file for a server to serve.
fn image(folder: &Path, kind: ServerKind, size_bytes: u64) -> Result<PathBuf> {
    let path = folder.join(format!("{}.img", kind.name()));
    allocate_file(&File::create(&path)?, size_bytes)?;
    Ok(path)
}

impl Drop for Server {
    fn drop(&mut self) {
        // Ours ends when its input does, the others when told to.
        drop(self.child.stdin.take());
        if !self.name.starts_with("nbd-") {
            terminate(&self.child);
        }
        wait_or_kill(&mut self.child, SERVER_TIME_MAX);
    }
}

impl Subject for Server {
    fn name(&self) -> &str {
        self.name
    }

    fn prepare(&self, workload: &Workload) -> Result<()> {
        if workload.writes() {
            Client::connect(&self.address, "")?.flush()?;
        }
        Ok(())
    }

    fn open(&self, workload: &Workload) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(NbdSession::open(&self.address, workload.depth)?))
    }

    fn server_cpu_ns(&self) -> Option<u64> {
        children::cpu_ns(&self.child).ok()
    }
}

struct NbdSession {
    client: Client,
    depth: usize,
    in_flight: VecDeque<Cookie>,
}

impl NbdSession {
    fn open(address: &Address, depth: usize) -> Result<Self> {
        let client = Client::connect(address, "")?;
        Ok(Self { client, depth: depth.max(1), in_flight: VecDeque::new() })
    }

    fn submitted(&mut self, cookie: Cookie) -> Result<()> {
        self.in_flight.push_back(cookie);
        if self.in_flight.len() == self.depth {
            self.wait_for((self.depth / 4).max(1))?;
        }
        Ok(())
    }

    /// Waits for the `count` oldest requests.
    fn wait_for(&mut self, count: usize) -> Result<()> {
        for cookie in self.in_flight.drain(..count) {
            self.client.wait(cookie)?;
        }
        Ok(())
    }
}

impl Session for NbdSession {
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        let cookie = self.client.submit_read(offset, out.len())?;
        self.submitted(cookie)
    }

    fn write(&mut self, offset: u64, data: &[u8], fua: Fua) -> Result<()> {
        let cookie = self.client.submit_write(offset, data, fua)?;
        self.submitted(cookie)
    }

    fn flush(&mut self) -> Result<()> {
        self.settle()?;
        if self.client.can_flush() {
            self.client.flush()?;
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        self.wait_for(self.in_flight.len())
    }
}

//! Servers over NBD, each in its own process, and one client for all.
//!
//! The client keeps up to the workload's depth in flight. At that depth it waits for the oldest quarter before it sends
//! more. So requests travel in small batches, as from a queue of a kernel or a VM.

use std::collections::VecDeque;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use clap::ValueEnum;
use everbyte_device::Fua;
use everbyte_media::allocate_file;
use everbyte_nbd::{Address, Client, Cookie};

use super::served::ServedDevice;
use crate::children::ServerProcess;
use crate::subject::{Session, Subject, fill};
use crate::workload::Workload;

/// A server and its export.
pub(crate) struct Server {
    kind: ServerKind,
    process: ServerProcess,
    address: Address,
}

/// A server and its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ServerKind {
    OurNull,
    OurMemory,
    OurVolume,
    /// A cache with all pages of its backing device. It writes nothing back.
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
    /// Servers of the suite of block devices. The slow servers only lie below file systems.
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

    /// The name in the results, and the device of our own servers.
    fn describe(self) -> (&'static str, Option<ServedDevice>) {
        match self {
            Self::OurNull => ("nbd-null", Some(ServedDevice::Null)),
            Self::OurMemory => ("nbd-memory", Some(ServedDevice::Memory)),
            Self::OurVolume => ("nbd-everbyte", Some(ServedDevice::Volume)),
            Self::OurCache => ("nbd-cache", Some(ServedDevice::Cache)),
            Self::OurDisk => ("nbd-disk", Some(ServedDevice::Disk)),
            Self::OurSsd => ("nbd-ssd", Some(ServedDevice::Ssd)),
            Self::NbdkitNull => ("nbdkit-null", None),
            Self::NbdkitMemory => ("nbdkit-memory", None),
            Self::NbdkitFile => ("nbdkit-file", None),
            Self::QemuNbd => ("qemu-nbd", None),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        self.describe().0
    }

    /// Returns true for our own servers.
    pub(crate) fn is_ours(self) -> bool {
        self.describe().1.is_some()
    }
}

impl Server {
    /// Starts a server of `size_bytes` with its files in `folder`, and writes its whole export. Null devices and slow
    /// devices are not filled.
    ///
    /// # Errors
    /// The server is not installed, or does not start.
    pub(crate) fn start(kind: ServerKind, folder: &Path, size_bytes: u64) -> Result<Self> {
        let name = kind.name();
        let socket = folder.join(format!("{name}.sock"));
        let mut command = command(kind, folder, &socket, size_bytes)?;
        let address = Address::Unix(socket.clone());
        // The socket of another server can exist before the server accepts connections.
        let is_ready = || socket.exists() && Client::connect(&address, "").is_ok();
        let process =
            ServerProcess::start(name, command.stderr(Stdio::null()), kind.is_ours(), is_ready)?;
        let server = Self { kind, process, address };
        use ServerKind::{NbdkitNull, OurDisk, OurNull, OurSsd};
        if !matches!(kind, OurNull | NbdkitNull | OurDisk | OurSsd) {
            let mut session = NbdSession::open(&server.address, 16)?;
            fill(&mut session, size_bytes, 64 << 10)?;
            session.flush()?;
        }
        Ok(server)
    }

    /// The URI of the export.
    pub(crate) fn uri(&self) -> String {
        self.address.uri("disk")
    }
}

/// The command of a server.
fn command(kind: ServerKind, folder: &Path, socket: &Path, size_bytes: u64) -> Result<Command> {
    if let (_, Some(device)) = kind.describe() {
        let device = device.to_possible_value().context("a device without a name")?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve-device", "--device", device.get_name()]);
        command.args(["--size", &size_bytes.to_string(), "--socket"]).arg(socket);
        command.arg("--folder").arg(folder);
        return Ok(command);
    }
    let image = folder.join(format!("{}.img", kind.name()));
    if matches!(kind, ServerKind::NbdkitFile | ServerKind::QemuNbd) {
        allocate_file(&File::create(&image)?, size_bytes)?;
    }
    if kind == ServerKind::QemuNbd {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "--", "qemu-nbd", "--persistent"]);
        command.args(["--shared=8", "--format=raw", "--cache=writeback", "--socket"]);
        command.arg(socket).arg(image);
        return Ok(command);
    }
    let (plugin, setting) = match kind {
        ServerKind::NbdkitNull => ("null", format!("size={size_bytes}")),
        ServerKind::NbdkitFile => ("file", format!("file={}", image.display())),
        _ => ("memory", format!("size={size_bytes}")),
    };
    let mut command = Command::new("nbdkit");
    command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(socket);
    command.args([plugin, &setting]);
    Ok(command)
}

impl Subject for Server {
    fn name(&self) -> &str {
        self.kind.name()
    }

    fn prepare(&self, workload: &Workload) -> Result<()> {
        // A checkpoint of the last workload's writes would count for this one.
        if workload.writes() {
            Client::connect(&self.address, "")?.flush()?;
        }
        Ok(())
    }

    fn open(&self, workload: &Workload) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(NbdSession::open(&self.address, workload.depth)?))
    }

    fn server_cpu_ns(&self) -> Option<u64> {
        self.process.cpu_ns().ok()
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
        // NBD covers answered writes only by a flush, so all answers come first.
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

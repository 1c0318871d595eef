//! Servers by vhost-user-blk, each in its own process, and one guest for all: the crate `virtio-driver`.
//!
//! A server takes one connection, so a subject has one for its whole life. Each session has a queue of it. The guest
//! looks for completions without sleeping. At the workload's depth it waits for the oldest quarter before it submits more.
//!
//! Invariant: a slot of memory belongs to one request in flight.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use everbyte_device::Fua;
use everbyte_media::allocate_file;
use memmap2::MmapMut;
use parking_lot::{Mutex, MutexGuard};
use virtio_driver::{
    QueueNotifier, VhostUser, VirtioBlkConfig, VirtioBlkFeatureFlags, VirtioBlkQueue,
    VirtioBlkReqBuf, VirtioBlkTransport, VirtioFeatureFlags,
};

use super::raw_memory::shared_memory;
use crate::children::ServerProcess;
use crate::subject::{Session, Subject, fill};
use crate::workload::Workload;

/// One queue for the requests, and one for the flush at the end.
const QUEUES: usize = 2;
/// Most requests in flight.
const DEPTH_MAX: usize = 64;
/// Bytes of a slot, and of the longest request.
const SLOT_BYTES: usize = 64 << 10;

/// A server and its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum VhostKind {
    /// Our volume. Each answered write is durable.
    WriteThrough,
    /// Our volume. A flush makes writes durable.
    WriteBack,
    /// Our server over bare memory: the floor.
    Memory,
    /// qemu-storage-daemon over a file on tmpfs, with its threads.
    QemuThreads,
    /// qemu-storage-daemon over a file on tmpfs, with `io_uring`.
    QemuUring,
}

impl VhostKind {
    pub(crate) const ALL: [Self; 5] =
        [Self::WriteThrough, Self::WriteBack, Self::Memory, Self::QemuThreads, Self::QemuUring];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::WriteThrough => "vhost-everbyte",
            Self::WriteBack => "vhost-everbyte-write-back",
            Self::Memory => "vhost-memory",
            Self::QemuThreads => "vhost-qemu",
            Self::QemuUring => "vhost-qemu-uring",
        }
    }

    /// Returns true for our own servers.
    pub(crate) fn is_ours(self) -> bool {
        !matches!(self, Self::QemuThreads | Self::QemuUring)
    }

    fn command(self, folder: &Path, socket: &Path, size_bytes: u64) -> Result<Command> {
        if self.is_ours() {
            let mut command = Command::new(std::env::current_exe()?);
            let device = if self == Self::Memory { "memory" } else { "volume" };
            command.args(["serve-device", "--vhost", "--device", device, "--socket"]).arg(socket);
            command.args(["--size", &size_bytes.to_string(), "--folder"]).arg(folder);
            command.args((self != Self::WriteThrough).then_some("--write-back"));
            return Ok(command);
        }
        let image = folder.join(format!("{}.img", self.name()));
        allocate_file(&File::create(&image)?, size_bytes)?;
        let aio = if self == Self::QemuUring { "io_uring" } else { "threads" };
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "--", "qemu-storage-daemon"]);
        // An I/O thread keeps the monitor away from the requests.
        command.args(["--object", "iothread,id=own", "--blockdev"]);
        command.arg(format!("driver=file,node-name=disk,aio={aio},filename={}", image.display()));
        command.arg("--export").arg(format!(
            "vhost-user-blk,id=export,node-name=disk,addr.type=unix,addr.path={},writable=on,\
             num-queues={QUEUES},iothread=own",
            socket.display()
        ));
        Ok(command)
    }
}

/// A server with a guest.
pub(crate) struct VhostSubject {
    kind: VhostKind,
    // Before the server: it ends its connection first.
    queues: Vec<Mutex<GuestQueue>>,
    _transport: Box<VirtioBlkTransport>,
    process: ServerProcess,
}

struct GuestQueue {
    queue: VirtioBlkQueue<'static, usize>,
    notifier: Box<dyn QueueNotifier>,
    /// A slot for each request.
    memory: MmapMut,
    /// Slots without a request.
    free: Vec<usize>,
}

impl VhostSubject {
    /// Starts a server of `size_bytes` with its files in `folder`, connects, and writes the whole disk.
    ///
    /// # Errors
    /// The server is not installed, or does not start.
    pub(crate) fn start(kind: VhostKind, folder: &Path, size_bytes: u64) -> Result<Self> {
        let name = kind.name();
        let socket = folder.join(format!("{name}.sock"));
        let mut command = kind.command(folder, &socket, size_bytes)?;
        let process =
            ServerProcess::start(name, command.stderr(Stdio::null()), kind.is_ours(), || {
                socket.exists()
            })?;
        let (transport, queues) = connect(&socket)?;
        let subject = Self { kind, queues, _transport: transport, process };
        fill(&mut subject.session(16)?, size_bytes, SLOT_BYTES)?;
        subject.session(1)?.flush()?;
        Ok(subject)
    }

    fn session(&self, depth: usize) -> Result<GuestSession<'_>> {
        let queue = self.queues.iter().find_map(Mutex::try_lock).context("no queue is free")?;
        Ok(GuestSession { queue, depth: depth.clamp(1, DEPTH_MAX) })
    }
}

/// Connects to a server, with memory for each queue.
fn connect(socket: &Path) -> Result<(Box<VirtioBlkTransport>, Vec<Mutex<GuestQueue>>)> {
    let path = socket.to_str().context("the folder's name is not UTF-8")?;
    let features = VirtioBlkFeatureFlags::MQ | VirtioBlkFeatureFlags::FLUSH;
    let features = features.bits()
        | (VirtioFeatureFlags::VERSION_1 | VirtioFeatureFlags::RING_EVENT_IDX).bits();
    let transport = VhostUser::<VirtioBlkConfig, VirtioBlkReqBuf>::new(path, features)?;
    let mut transport: Box<VirtioBlkTransport> = Box::new(transport);
    let mut memories = Vec::new();
    for _ in 0..QUEUES {
        let (file, memory) = shared_memory(DEPTH_MAX * SLOT_BYTES)?;
        transport.map_mem_region(memory.as_ptr() as usize, memory.len(), file.as_raw_fd(), 0)?;
        memories.push(memory);
    }
    let made = VirtioBlkQueue::setup_queues(&mut *transport, QUEUES, 256)?;
    let mut queues = Vec::new();
    for (mut queue, memory) in made.into_iter().zip(memories) {
        // The guest looks for completions itself.
        queue.set_used_notif_enabled(false);
        let notifier = transport.get_submission_notifier(queues.len());
        let free = (0..DEPTH_MAX).collect();
        queues.push(Mutex::new(GuestQueue { queue, notifier, memory, free }));
    }
    Ok((transport, queues))
}

impl Subject for VhostSubject {
    fn name(&self) -> &str {
        self.kind.name()
    }

    fn prepare(&self, workload: &Workload) -> Result<()> {
        // A checkpoint of the last workload's writes would count for this one.
        if workload.writes() { self.session(1)?.flush() } else { Ok(()) }
    }

    fn open(&self, workload: &Workload) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(self.session(workload.depth)?))
    }

    fn server_cpu_ns(&self) -> Option<u64> {
        self.process.cpu_ns().ok()
    }
}

/// A queue in use.
struct GuestSession<'a> {
    queue: MutexGuard<'a, GuestQueue>,
    depth: usize,
}

impl GuestSession<'_> {
    /// Submits a request in a free slot.
    fn submit(
        &mut self,
        len: usize,
        request: impl FnOnce(&mut VirtioBlkQueue<'static, usize>, &mut [u8], usize) -> io::Result<()>,
    ) -> Result<()> {
        ensure!(len <= SLOT_BYTES, "a request of {len} B is too long for a slot");
        let own = &mut *self.queue;
        let slot = own.free.pop().context("no slot is free")?;
        request(&mut own.queue, &mut own.memory[slot * SLOT_BYTES..][..len], slot)?;
        match DEPTH_MAX - own.free.len() {
            in_flight if in_flight == self.depth => self.wait(self.depth - (self.depth / 4).max(1)),
            _ => Ok(()),
        }
    }

    /// Waits until at most `in_flight` requests are incomplete.
    fn wait(&mut self, in_flight: usize) -> Result<()> {
        let own = &mut *self.queue;
        // One notification for all requests since the last wait.
        if own.queue.avail_notif_needed() {
            own.notifier.notify()?;
        }
        while DEPTH_MAX - own.free.len() > in_flight {
            for done in own.queue.completions() {
                ensure!(done.ret == 0, "a request failed: error {}", -done.ret);
                own.free.push(done.context);
            }
            std::hint::spin_loop();
        }
        Ok(())
    }
}

impl Session for GuestSession<'_> {
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.submit(out.len(), |queue, memory, slot| queue.read(offset, memory, slot))
    }

    fn write(&mut self, offset: u64, data: &[u8], fua: Fua) -> Result<()> {
        self.submit(data.len(), |queue, memory, slot| {
            memory.copy_from_slice(data);
            queue.write(offset, memory, slot)
        })?;
        // Guests have no other durable write.
        if fua == Fua::Yes { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        // A flush covers completed writes only.
        self.settle()?;
        self.submit(0, |queue, _, slot| queue.flush(slot))?;
        self.settle()
    }

    fn settle(&mut self) -> Result<()> {
        self.wait(0)
    }
}

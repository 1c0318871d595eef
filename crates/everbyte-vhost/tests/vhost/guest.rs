//! A virtual machine made by hand: its memory is a file, and its rings are bytes in the file.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use everbyte_device::{
    BlockDevice, Decorator, DeviceError, Fua, MemoryDevice, Passthrough, WriteRequest,
};
use everbyte_vhost::{VhostServer, VhostSettings};
use vhost::vhost_user::message::VhostUserInflight;
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

pub(crate) const EVENT_IDX: u64 = 1 << 29;
pub(crate) const FLUSH: u64 = 1 << 9;
pub(crate) const RO: u64 = 1 << 5;
const BASE_FEATURES: u64 = 1 << 32 | 1 << 30 | 1 << 28 | FLUSH;

pub(crate) const IN: u32 = 0;
pub(crate) const OUT: u32 = 1;
pub(crate) const FLUSH_KIND: u32 = 4;
pub(crate) const GET_ID: u32 = 8;
pub(crate) const DISCARD: u32 = 11;
pub(crate) const WRITE_ZEROES: u32 = 13;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

pub(crate) const MEMORY_LEN: u64 = 8 << 20;
/// Physical address of the first byte.
pub(crate) const GUEST: u64 = 0x1_0000_0000;
/// Address of the first byte in the process of the virtual machine.
const USER: u64 = 0x7000_0000_0000;
pub(crate) const QUEUE_SIZE: u16 = 64;
/// Bytes of memory of each queue.
const QUEUE_LEN: u64 = 1 << 20;
const AVAIL: u64 = 0x1000;
const USED: u64 = 0x2000;
const HEADER: u64 = 0x3000;
pub(crate) const STATUS: u64 = 0x3800;
/// The place of data in the memory of a queue.
pub(crate) const DATA: u64 = 0x4000;

/// A device in DRAM that notes the durability of writes, and flushes.
pub(crate) struct Spy {
    inner: MemoryDevice,
    pub(crate) events: Mutex<Vec<Event>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    Write(Fua),
    Flush,
}

impl Decorator for Spy {
    type Inner = MemoryDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Split;

    fn inner(&self) -> &MemoryDevice {
        &self.inner
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        self.events.lock().unwrap().push(Event::Write(fua));
        self.inner.write(offset, data, fua)
    }

    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> Vec<Result<(), DeviceError>> {
        requests.iter().map(|r| Decorator::write(self, r.offset, r.data, r.fua)).collect()
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.events.lock().unwrap().push(Event::Flush);
        self.inner.flush()
    }
}

/// A server with its device and its socket.
pub(crate) struct Host {
    pub(crate) path: PathBuf,
    pub(crate) spy: Arc<Spy>,
    pub(crate) server: VhostServer,
    _folder: tempfile::TempDir,
}

impl Host {
    pub(crate) fn new(write_back: bool) -> Self {
        Self::named("disk", write_back)
    }

    pub(crate) fn named(name: &str, write_back: bool) -> Self {
        let spy = Arc::new(Spy { inner: MemoryDevice::new(4 << 20), events: Mutex::default() });
        let device: Arc<dyn BlockDevice> = Arc::<Spy>::clone(&spy);
        let (path, server, folder) = serve(device, name, write_back);
        Self { path, spy, server, _folder: folder }
    }

    pub(crate) fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut *self.spy.events.lock().unwrap())
    }
}

pub(crate) fn serve(
    device: Arc<dyn BlockDevice>,
    name: &str,
    write_back: bool,
) -> (PathBuf, VhostServer, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vhost.sock");
    let listener = UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    let settings =
        VhostSettings { name: name.to_owned(), address: "guest.sock".to_owned(), write_back };
    let open = move || Ok(Arc::clone(&device));
    (path, VhostServer::start(listener, settings, Box::new(open)).unwrap(), folder)
}

struct GuestQueue {
    kick: EventFd,
    call: EventFd,
    avail: u16,
    used: u16,
}

/// A virtual machine with a connection.
pub(crate) struct Guest {
    pub(crate) frontend: Frontend,
    pub(crate) memory: File,
    queues: Vec<GuestQueue>,
}

pub(crate) fn memory() -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(MEMORY_LEN).unwrap();
    file
}

pub(crate) fn region(memory: &File) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: GUEST,
        memory_size: MEMORY_LEN,
        userspace_addr: USER,
        mmap_offset: 0,
        mmap_handle: memory.as_raw_fd(),
    }
}

/// Connects and negotiates features.
pub(crate) fn connect(host: &Host, features: u64) -> Frontend {
    let mut frontend = Frontend::from_stream(UnixStream::connect(&host.path).unwrap(), 64);
    frontend.set_owner().unwrap();
    let offered = frontend.get_features().unwrap();
    let wanted = BASE_FEATURES | features;
    assert_eq!(offered & wanted, wanted, "{offered:#x}");
    frontend.set_features(wanted).unwrap();
    let offered = frontend.get_protocol_features().unwrap();
    let wanted = VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::CONFIG
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::INFLIGHT_SHMFD
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS;
    assert!(offered.contains(wanted));
    frontend.set_protocol_features(wanted).unwrap();
    frontend.set_hdr_flags(vhost::vhost_user::message::VhostUserHeaderFlag::NEED_REPLY);
    frontend
}

pub(crate) fn addresses(queue: usize) -> VringConfigData {
    let base = USER + queue as u64 * QUEUE_LEN;
    VringConfigData {
        queue_max_size: QUEUE_SIZE,
        queue_size: QUEUE_SIZE,
        flags: 0,
        desc_table_addr: base,
        used_ring_addr: base + USED,
        avail_ring_addr: base + AVAIL,
        log_addr: None,
    }
}

impl Guest {
    /// Connects with new memory and running queues.
    pub(crate) fn new(host: &Host, queues: usize, features: u64) -> Self {
        let mut guest =
            Self { frontend: connect(host, features), memory: memory(), queues: Vec::new() };
        guest.frontend.set_mem_table(&[region(&guest.memory)]).unwrap();
        guest.start(queues);
        guest
    }

    /// Connects again with the memory of a guest that lost its server, and the in-flight region.
    pub(crate) fn reconnect(
        self,
        host: &Host,
        features: u64,
        inflight: Option<(&VhostUserInflight, &File)>,
    ) -> Self {
        let (memory, old) = (self.memory, self.queues);
        drop(self.frontend);
        let mut guest = Self { frontend: connect(host, features), memory, queues: Vec::new() };
        guest.frontend.set_mem_table(&[region(&guest.memory)]).unwrap();
        if let Some((inflight, file)) = inflight {
            guest.frontend.set_inflight_fd(inflight, file.as_raw_fd()).unwrap();
        }
        guest.start(old.len());
        for (queue, old) in guest.queues.iter_mut().zip(old) {
            (queue.avail, queue.used) = (old.avail, old.used);
        }
        guest
    }

    fn start(&mut self, queues: usize) {
        for index in 0..queues {
            let [kick, call] = [(); 2].map(|()| EventFd::new(EFD_NONBLOCK).unwrap());
            let frontend = &mut self.frontend;
            frontend.set_vring_num(index, QUEUE_SIZE).unwrap();
            // As QEMU after the loss of a server: the index of the used ring.
            let base = load16(&self.memory, index as u64 * QUEUE_LEN + USED + 2);
            frontend.set_vring_base(index, base).unwrap();
            frontend.set_vring_addr(index, &addresses(index)).unwrap();
            frontend.set_vring_kick(index, &kick).unwrap();
            frontend.set_vring_call(index, &call).unwrap();
            frontend.set_vring_enable(index, true).unwrap();
            self.queues.push(GuestQueue { kick, call, avail: 0, used: 0 });
        }
    }

    /// Physical address of byte `at` in the memory of a queue.
    pub(crate) fn address(queue: usize, at: u64) -> u64 {
        GUEST + queue as u64 * QUEUE_LEN + at
    }

    pub(crate) fn put(&self, queue: usize, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, queue as u64 * QUEUE_LEN + at).unwrap();
    }

    pub(crate) fn get(&self, queue: usize, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_exact_at(&mut bytes, queue as u64 * QUEUE_LEN + at).unwrap();
        bytes
    }

    /// Writes a descriptor, at `table` in the memory of the queue.
    pub(crate) fn descriptor(
        &self,
        queue: usize,
        table: u64,
        index: u16,
        (address, len, flags, next): (u64, u32, u16, u16),
    ) {
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.put(queue, table + u64::from(index) * 16, &bytes);
    }

    pub(crate) fn header(&self, queue: usize, slot: u16, kind: u32, sector: u64) -> u64 {
        let at = HEADER + u64::from(slot) * 16;
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend([0; 4]);
        bytes.extend(sector.to_le_bytes());
        self.put(queue, at, &bytes);
        Self::address(queue, at)
    }

    /// Makes a chain of three descriptors from `3 * slot` on, with `len` bytes of data at `DATA` of the slot.
    pub(crate) fn chain(&self, queue: usize, slot: u16, kind: u32, sector: u64, len: u32) -> u16 {
        let head = slot * 3;
        let header = self.header(queue, slot, kind, sector);
        let is_read = [IN, GET_ID].contains(&kind);
        let data = Self::address(queue, DATA + u64::from(slot) * 0x2000);
        let flags = if is_read { NEXT | WRITE } else { NEXT };
        let next = if len > 0 { head + 1 } else { head + 2 };
        self.descriptor(queue, 0, head, (header, 16, NEXT, next));
        self.descriptor(queue, 0, head + 1, (data, len, flags, head + 2));
        let status = STATUS + u64::from(slot);
        self.put(queue, status, &[0xff]);
        self.descriptor(queue, 0, head + 2, (Self::address(queue, status), 1, WRITE, 0));
        head
    }

    /// Makes a chain available.
    pub(crate) fn publish(&mut self, queue: usize, head: u16) {
        let avail = self.queues[queue].avail;
        self.put(queue, AVAIL + 4 + u64::from(avail % QUEUE_SIZE) * 2, &head.to_le_bytes());
        self.set_avail(queue, avail.wrapping_add(1));
    }

    pub(crate) fn set_avail(&mut self, queue: usize, index: u16) {
        self.put(queue, AVAIL + 2, &index.to_le_bytes());
        self.queues[queue].avail = index;
    }

    pub(crate) fn kick(&self, queue: usize) {
        self.queues[queue].kick.write(1).unwrap();
    }

    /// Waits for the next answer: the head, and the bytes written by the server. `None` if none comes.
    pub(crate) fn answer(&mut self, queue: usize) -> Option<(u32, u32)> {
        let deadline = Instant::now() + Duration::from_secs(5);
        let used = self.queues[queue].used;
        while load16(&self.memory, queue as u64 * QUEUE_LEN + USED + 2) == used {
            if Instant::now() > deadline {
                return None;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        self.queues[queue].used = used.wrapping_add(1);
        let bytes = self.get(queue, USED + 4 + u64::from(used % QUEUE_SIZE) * 8, 8);
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        Some((word(0), word(4)))
    }

    /// Returns the notifications since the last call.
    pub(crate) fn notifications(&self, queue: usize) -> u64 {
        self.queues[queue].call.read().unwrap_or(0)
    }

    pub(crate) fn status(&self, queue: usize, slot: u16) -> u8 {
        self.get(queue, STATUS + u64::from(slot), 1)[0]
    }

    /// Executes one request in slot 0, and returns its status.
    pub(crate) fn execute(&mut self, queue: usize, kind: u32, sector: u64, len: u32) -> u8 {
        let head = self.chain(queue, 0, kind, sector, len);
        self.publish(queue, head);
        self.kick(queue);
        let (answered, _) = self.answer(queue).expect("the request has no answer");
        assert_eq!(answered, u32::from(head));
        self.status(queue, 0)
    }

    pub(crate) fn write(&mut self, queue: usize, sector: u64, bytes: &[u8]) -> u8 {
        self.put(queue, DATA, bytes);
        self.execute(queue, OUT, sector, u32::try_from(bytes.len()).unwrap())
    }

    pub(crate) fn read(&mut self, queue: usize, sector: u64, len: usize) -> (u8, Vec<u8>) {
        self.put(queue, DATA, &vec![0xee; len]);
        let status = self.execute(queue, IN, sector, u32::try_from(len).unwrap());
        (status, self.get(queue, DATA, len))
    }

    /// Returns true once the server has ended the connection.
    pub(crate) fn is_disconnected(&self) -> bool {
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.frontend.get_features().is_ok() {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

fn load16(memory: &File, at: u64) -> u16 {
    let mut bytes = [0; 2];
    memory.read_exact_at(&mut bytes, at).unwrap();
    u16::from_le_bytes(bytes)
}

//! Exports, devices that record or stall, and a client that sends any bytes.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use everbyte_device::{
    BlockDevice, DeviceError, Extent, Fua, Hole, MemoryDevice, Passthrough, WriteRequest,
};
use everbyte_nbd::{Address, Durability, Export, ExportInfo, Exports, OpenError, Server, Settings};
use parking_lot::{Condvar, Mutex};

pub(crate) const SIZE: u64 = 1 << 20;

/// Longer than anything here takes; its end means a hang.
const HANG: Duration = Duration::from_secs(30);

pub(crate) struct Shelf(
    pub(crate) Mutex<BTreeMap<String, Arc<dyn BlockDevice>>>,
    pub(crate) Durability,
);

impl Exports for Shelf {
    fn list(&self) -> Vec<ExportInfo> {
        let describe =
            |name: &String| ExportInfo { name: name.clone(), description: format!("about {name}") };
        self.0.lock().keys().map(describe).collect()
    }

    fn open(&self, name: &str) -> Result<Export, OpenError> {
        let shelf = self.0.lock();
        let found = match name {
            "" if shelf.len() == 1 => shelf.iter().next(),
            _ => shelf.get_key_value(name),
        };
        let (name, device) = found.ok_or(OpenError::Unknown)?;
        Ok(Export::new(name.clone(), Arc::clone(device)).with_durability(self.1))
    }
}

/// A server on a Unix socket in a temporary folder.
pub(crate) struct Fixture {
    pub(crate) server: Server,
    pub(crate) shelf: Arc<Shelf>,
    pub(crate) folder: tempfile::TempDir,
}

impl Fixture {
    pub(crate) fn new(device: Arc<dyn BlockDevice>) -> Self {
        Self::with(device, Settings::default())
    }

    /// One export, `disk`.
    pub(crate) fn with(device: Arc<dyn BlockDevice>, settings: Settings) -> Self {
        Self::serving(device, settings, Durability::AtFlush)
    }

    pub(crate) fn write_through(device: Arc<dyn BlockDevice>) -> Self {
        Self::serving(device, Settings::default(), Durability::WhenAnswered)
    }

    fn serving(device: Arc<dyn BlockDevice>, settings: Settings, durability: Durability) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let shelf = Arc::new(Shelf(Mutex::default(), durability));
        shelf.0.lock().insert("disk".to_owned(), device);
        let address = Address::Unix(folder.path().join("s"));
        let exports: Arc<dyn Exports> = Arc::clone(&shelf) as _;
        let server = Server::bind_with(&address, exports, settings).unwrap();
        Self { server, shelf, folder }
    }

    pub(crate) fn memory() -> Self {
        Self::new(Arc::new(MemoryDevice::new(SIZE)))
    }

    pub(crate) fn address(&self) -> &Address {
        self.server.address()
    }

    /// A connection before its first byte.
    pub(crate) fn raw(&self) -> Raw {
        let Address::Unix(path) = self.address() else { panic!("not a Unix socket") };
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        stream.set_write_timeout(Some(HANG)).unwrap();
        Raw { stream }
    }

    /// A connection that has sent its client flags.
    pub(crate) fn greeted(&self) -> Raw {
        let mut raw = self.raw();
        let greeting = raw.take(18);
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        assert_eq!(greeting[16..], [0, 3]);
        raw.put(&3_u32.to_be_bytes());
        raw
    }

    /// A connection in the transmission phase, with simple replies.
    pub(crate) fn simple(&self) -> Raw {
        let mut raw = self.greeted();
        raw.option(1, b"disk");
        raw.take(10);
        raw
    }

    /// A connection in the transmission phase, with structured replies and block status.
    pub(crate) fn structured(&self) -> Raw {
        let mut raw = self.greeted();
        raw.option(8, b"");
        assert_eq!(raw.option_reply(8), (1, vec![]));
        raw.option(10, &context_query("disk", &["base:allocation"]));
        assert_eq!(raw.option_reply(10).0, 4);
        assert_eq!(raw.option_reply(10), (1, vec![]));
        raw.option(7, &go("disk", &[]));
        while raw.option_reply(7).0 != 1 {}
        raw
    }

    /// Proves that the server still serves others.
    pub(crate) fn assert_alive(&self) {
        let mut client = everbyte_nbd::Client::connect(self.address(), "disk").unwrap();
        assert!(client.size_bytes() > 0);
        client.read(0, 512).unwrap();
        client.disconnect().unwrap();
    }

    /// Waits until the counts are as they should be.
    pub(crate) fn await_stats(&self, reached: impl Fn(&everbyte_nbd::ServerStats) -> bool) {
        for _ in 0..3000 {
            if reached(&self.server.stats()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("never reached: {:?}", self.server.stats());
    }
}

pub(crate) fn string(text: &str) -> Vec<u8> {
    let len = u32::try_from(text.len()).unwrap();
    [&len.to_be_bytes()[..], text.as_bytes()].concat()
}

/// Data of `INFO` and `GO`.
pub(crate) fn go(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = string(name);
    data.extend(u16::try_from(wanted.len()).unwrap().to_be_bytes());
    data.extend(wanted.iter().flat_map(|kind| kind.to_be_bytes()));
    data
}

/// Data of the options about metadata contexts.
pub(crate) fn context_query(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = string(name);
    data.extend(u32::try_from(queries.len()).unwrap().to_be_bytes());
    data.extend(queries.iter().flat_map(|query| string(query)));
    data
}

/// A request without payload.
pub(crate) fn request(command: u16, flags: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes
}

#[derive(PartialEq, Debug)]
pub(crate) enum Answer {
    Simple {
        errno: u32,
        cookie: u64,
    },
    /// Flags, kind, cookie, payload.
    Chunk(u16, u16, u64, Vec<u8>),
}

impl Answer {
    /// The number of the error, 0 if there is none.
    pub(crate) fn errno(&self) -> u32 {
        match self {
            Self::Simple { errno, .. } => *errno,
            Self::Chunk(1, 0x8001, _, payload) => {
                u32::from_be_bytes(payload[..4].try_into().unwrap())
            }
            Self::Chunk(..) => 0,
        }
    }
}

pub(crate) struct Raw {
    pub(crate) stream: UnixStream,
}

impl Raw {
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub(crate) fn take(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take(2).try_into().unwrap())
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().unwrap())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take(8).try_into().unwrap())
    }

    pub(crate) fn option(&mut self, number: u32, data: &[u8]) {
        let len = u32::try_from(data.len()).unwrap();
        let number = number.to_be_bytes();
        self.put(&[b"IHAVEOPT", &number[..], &len.to_be_bytes(), data].concat());
    }

    /// The kind and data of the next reply to this option.
    pub(crate) fn option_reply(&mut self, number: u32) -> (u32, Vec<u8>) {
        assert_eq!(self.u64(), 0x0003_e889_0455_65a9);
        assert_eq!(self.u32(), number);
        let kind = self.u32();
        let len = self.u32();
        (kind, self.take(len as usize))
    }

    /// The next simple reply, without data, or chunk.
    pub(crate) fn answer(&mut self) -> Answer {
        match self.u32() {
            0x6744_6698 => Answer::Simple { errno: self.u32(), cookie: self.u64() },
            0x668e_33ef => {
                let (flags, kind, cookie) = (self.u16(), self.u16(), self.u64());
                let len = self.u32();
                Answer::Chunk(flags, kind, cookie, self.take(len as usize))
            }
            magic => panic!("an answer starts with {magic:#x}"),
        }
    }

    /// Sends a request and returns the number of its error.
    pub(crate) fn errno(&mut self, command: u16, flags: u16, offset: u64, len: u32) -> u32 {
        self.put(&request(command, flags, 9, offset, len));
        if command == 1 {
            self.put(&vec![1; len as usize]);
        }
        self.answer().errno()
    }

    /// Returns true if the server has closed, and nothing else came before.
    pub(crate) fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0]) {
            Ok(count) => count == 0,
            // It closed without having read all.
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// Records the requests to a memory device, and can stall or lose it.
pub(crate) struct WatchedDevice {
    pub(crate) inner: MemoryDevice,
    /// Sizes of the batches of writes.
    pub(crate) batches: Mutex<Vec<usize>>,
    pub(crate) calls: Mutex<Vec<String>>,
    pub(crate) gone: AtomicBool,
    pub(crate) slow_zeroes: AtomicBool,
    /// Writes wait while it is closed.
    gate: Mutex<bool>,
    moved: Condvar,
    waiting: AtomicBool,
}

impl WatchedDevice {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: MemoryDevice::new(SIZE),
            batches: Mutex::default(),
            calls: Mutex::default(),
            gone: AtomicBool::new(false),
            slow_zeroes: AtomicBool::new(false),
            gate: Mutex::new(true),
            moved: Condvar::new(),
            waiting: AtomicBool::new(false),
        })
    }

    pub(crate) fn close_gate(&self) {
        *self.gate.lock() = false;
    }

    pub(crate) fn open_gate(&self) {
        *self.gate.lock() = true;
        self.moved.notify_all();
    }

    /// Returns once a write stands before the gate.
    pub(crate) fn await_waiting(&self) {
        while !self.waiting.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }

    fn pass(&self, call: String) -> Result<(), DeviceError> {
        self.calls.lock().push(call);
        if self.gone.load(Ordering::SeqCst) {
            return Err(DeviceError::Gone);
        }
        Ok(())
    }

    fn pass_gate(&self) {
        let mut open = self.gate.lock();
        while !*open {
            self.waiting.store(true, Ordering::SeqCst);
            self.moved.wait(&mut open);
        }
    }
}

impl everbyte_device::Decorator for WatchedDevice {
    type Inner = MemoryDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Split;

    fn inner(&self) -> &Self::Inner {
        &self.inner
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.pass(format!("read {offset}+{}", out.len()))?;
        self.inner.read(offset, out)
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        self.pass(format!("write {offset}+{} {fua:?}", data.len()))?;
        self.pass_gate();
        self.inner.write(offset, data, fua)
    }

    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> Vec<Result<(), DeviceError>> {
        self.batches.lock().push(requests.len());
        requests.iter().map(|r| BlockDevice::write(self, r.offset, r.data, r.fua)).collect()
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.pass("flush".to_owned())
    }

    fn discard(&self, offset: u64, len: u64, fua: Fua) -> Result<(), DeviceError> {
        self.pass(format!("discard {offset}+{len} {fua:?}"))?;
        self.inner.discard(offset, len, fua)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        hole: Hole,
        fast: bool,
        fua: Fua,
    ) -> Result<(), DeviceError> {
        self.pass(format!("zero {offset}+{len} {hole:?} {fast} {fua:?}"))?;
        if fast && self.slow_zeroes.load(Ordering::SeqCst) {
            return Err(DeviceError::NotFast);
        }
        self.inner.write_zeroes(offset, len, hole, fast, fua)
    }

    fn status(&self, offset: u64, len: u64, max: usize) -> Result<Vec<Extent>, DeviceError> {
        self.pass(format!("status {offset}+{len} {max}"))?;
        self.inner.status(offset, len, max)
    }

    fn prefetch(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.pass(format!("cache {offset}+{len}"))?;
        self.inner.prefetch(offset, len)
    }
}

//! Remote devices with cut connections and crashing servers that lose unflushed writes: every
//! answered write is read back, every flushed one is durable.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::ops::Range;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use everbyte_device::{
    BlockDevice, DeviceError, Extent, Fua, Geometry, Hole, MemoryDevice, Passthrough,
};
use everbyte_nbd::{ClientOptions, Reconnect, RemoteDevice};
use parking_lot::{Condvar, Mutex};

use crate::plain::{FLUSH, FUA, Kind, PlainServer, ZEROES};
use crate::support::Fixture;

const SIZE: u64 = 64 << 10;

/// Longer than any wait for a server, and shorter than the limit of a test.
const LONG: Duration = Duration::from_secs(120);

/// A small generator: a seed always gives the same steps (SplitMix64).
struct TestRng(u64);

impl TestRng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

/// A device that loses unflushed writes in a crash.
struct VolatileDevice {
    now: MemoryDevice,
    durable: MemoryDevice,
    fails_flush: AtomicBool,
    /// Makes the next write with FUA fail in its flush.
    fails_fua: AtomicBool,
    /// The range where writes fail.
    bad: Mutex<Range<u64>>,
}

impl VolatileDevice {
    fn new() -> Arc<Self> {
        let (now, durable) = (MemoryDevice::new(SIZE), MemoryDevice::new(SIZE));
        let (fails_flush, fails_fua) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { now, durable, fails_flush, fails_fua, bad: Mutex::new(0..0) })
    }

    fn bytes_of(device: &MemoryDevice) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(SIZE).unwrap()];
        device.read(0, &mut bytes).unwrap();
        bytes
    }

    fn durable_bytes(&self) -> Vec<u8> {
        Self::bytes_of(&self.durable)
    }

    /// Some of the unflushed blocks of 512 bytes survive.
    fn crash(&self, rng: &mut TestRng) {
        let (now, mut durable) = (Self::bytes_of(&self.now), self.durable_bytes());
        for (kept, lost) in durable.chunks_mut(512).zip(now.chunks(512)) {
            if rng.below(4) == 0 {
                kept.copy_from_slice(lost);
            }
        }
        self.durable.write(0, &durable, Fua::No).unwrap();
        self.now.write(0, &durable, Fua::No).unwrap();
    }

    fn persist(&self, offset: u64, len: u64, fua: Fua) {
        if fua == Fua::Yes {
            let mut bytes = vec![0; usize::try_from(len).unwrap()];
            self.now.read(offset, &mut bytes).unwrap();
            self.durable.write(offset, &bytes, Fua::No).unwrap();
        }
    }
}

impl everbyte_device::Decorator for VolatileDevice {
    type Inner = MemoryDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Split;

    fn inner(&self) -> &Self::Inner {
        &self.now
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        let len = data.len() as u64;
        let bad = self.bad.lock().clone();
        if offset < bad.end && bad.start < offset + len {
            return Err(DeviceError::Media { offset, len, reason: "planted".to_owned() });
        }
        if fua == Fua::Yes && self.fails_fua.swap(false, Ordering::SeqCst) {
            self.fails_flush.store(true, Ordering::SeqCst);
            return BlockDevice::flush(self);
        }
        self.now.write(offset, data, fua)?;
        self.persist(offset, len, fua);
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        if self.fails_flush.swap(false, Ordering::SeqCst) {
            // Like a system that drops unwritable pages, and forgets them.
            self.now.write(0, &self.durable_bytes(), Fua::No)?;
            return Err(DeviceError::Media { offset: 0, len: 0, reason: "planted".to_owned() });
        }
        self.durable.write(0, &Self::bytes_of(&self.now), Fua::No)
    }

    fn discard(&self, offset: u64, len: u64, fua: Fua) -> Result<(), DeviceError> {
        self.now.discard(offset, len, fua)?;
        self.persist(offset, len, fua);
        Ok(())
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        hole: Hole,
        fast: bool,
        fua: Fua,
    ) -> Result<(), DeviceError> {
        self.now.write_zeroes(offset, len, hole, fast, fua)?;
        self.persist(offset, len, fua);
        Ok(())
    }
}

/// Stands between client and server and cuts each connection after some bytes in one direction.
/// With most cuts, the server crashes. Requests received before the cut are done when the client
/// notices it.
struct Cutter {
    uri: String,
    is_cutting: Arc<AtomicBool>,
    cuts: Arc<Mutex<u64>>,
    _folder: tempfile::TempDir,
}

/// Moves bytes until one side ends or `left` are moved.
fn carry(mut from: UnixStream, mut to: UnixStream, mut left: usize) {
    let mut buffer = [0; 8192];
    while left > 0 {
        let room = left.min(buffer.len());
        match from.read(&mut buffer[..room]) {
            Ok(count) if count > 0 && to.write_all(&buffer[..count]).is_ok() => left -= count,
            _ => break,
        }
    }
    // The other direction ends with this one: the server sees the end of its input.
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}

impl Cutter {
    fn new(server: PathBuf, device: Arc<VolatileDevice>, seed: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cutter");
        let listener = UnixListener::bind(&path).unwrap();
        let is_cutting = Arc::new(AtomicBool::new(true));
        let cuts = Arc::new(Mutex::new(0));
        let (cutting, count) = (Arc::clone(&is_cutting), Arc::clone(&cuts));
        std::thread::spawn(move || {
            let mut rng = TestRng(seed);
            for client in listener.incoming().map_while(Result::ok) {
                let limits = if cutting.load(Ordering::SeqCst) {
                    let limit = usize::try_from(100 + rng.below(60_000)).unwrap();
                    if rng.below(2) == 0 { (limit, usize::MAX) } else { (usize::MAX, limit) }
                } else {
                    (usize::MAX, usize::MAX)
                };
                if !serve_one(client, &server, limits) {
                    continue;
                }
                *count.lock() += 1;
                if rng.below(4) > 0 {
                    device.crash(&mut rng);
                }
            }
        });
        let uri = format!("nbd+unix:///disk?socket={}", path.display());
        Self { uri, is_cutting, cuts, _folder: folder }
    }
}

/// Serves one connection to its end. Returns true if this function ended it.
fn serve_one(client: UnixStream, server: &Path, (up, down): (usize, usize)) -> bool {
    let Ok(server) = UnixStream::connect(server) else { return false };
    let clone = |stream: &UnixStream| stream.try_clone().unwrap();
    let (from, to) = (clone(&client), clone(&server));
    let upward = std::thread::spawn(move || carry(from, to, up));
    // Downwards by hand: the client may learn of the end only when the server is done.
    let mut left = down;
    let mut buffer = [0; 8192];
    let (mut from, mut to) = (clone(&server), clone(&client));
    while let Ok(count) = from.read(&mut buffer) {
        if count == 0 {
            break;
        }
        let shown = count.min(left);
        if to.write_all(&buffer[..shown]).is_err() || shown < count {
            // No further request reaches the server, which still finishes the received ones.
            let _ = server.shutdown(Shutdown::Write);
            left = 0;
            continue;
        }
        left -= shown;
    }
    let _ = client.shutdown(Shutdown::Read);
    let _ = upward.join();
    up < usize::MAX || down < usize::MAX
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.is_cutting.store(false, Ordering::SeqCst);
    }
}

/// Random requests, compared with a model: answered writes are read back, flushed ones are durable.
fn workload(device: &dyn BlockDevice, below: &VolatileDevice, seed: u64) -> Result<(), String> {
    let mut rng = TestRng(seed);
    let mut model = vec![0; usize::try_from(SIZE).unwrap()];
    let failed = |error: DeviceError| format!("seed {seed}: {error}");
    for step in 0..250 {
        let at = rng.below(SIZE - 1);
        let len = 1 + rng.below((SIZE - at).min(9000));
        let range = usize::try_from(at).unwrap()..usize::try_from(at + len).unwrap();
        let fua = if rng.below(4) == 0 { Fua::Yes } else { Fua::No };
        let is_durable = match rng.below(10) {
            0 => {
                device.flush().map_err(failed)?;
                if below.durable_bytes() != model {
                    return Err(format!("seed {seed}, step {step}: the flush covers not all"));
                }
                continue;
            }
            1 => {
                device.discard(at, len, fua).map_err(failed)?;
                model[range.clone()].fill(0);
                fua == Fua::Yes
            }
            2..=4 => {
                let mut found = vec![0; range.len()];
                device.read(at, &mut found).map_err(failed)?;
                if found != model[range] {
                    return Err(format!("seed {seed}, step {step}: other bytes at {at}+{len}"));
                }
                continue;
            }
            _ => {
                let byte = u8::try_from(1 + rng.below(255)).unwrap();
                model[range.clone()].fill(byte);
                device.write(at, &model[range.clone()], fua).map_err(failed)?;
                fua == Fua::Yes
            }
        };
        if is_durable && below.durable_bytes()[range.clone()] != model[range] {
            return Err(format!("seed {seed}, step {step}: {at}+{len} is not durable"));
        }
    }
    Ok(())
}

#[test]
fn replay_keeps_answered_and_flushed_writes() {
    let mut cuts = 0;
    for seed in 0..12 {
        let device = VolatileDevice::new();
        let fixture = Fixture::new(Arc::clone(&device) as _);
        let cutter = Cutter::new(fixture.folder.path().join("s"), Arc::clone(&device), seed);
        let unflushed_bytes_max = if seed % 2 == 0 { 8 << 10 } else { 64 << 20 };
        let reconnect = Reconnect { timeout: LONG, unflushed_bytes_max };
        let Ok(remote) = RemoteDevice::open(&cutter.uri, reconnect) else { continue };
        workload(&remote, &device, seed).unwrap();
        cuts += *cutter.cuts.lock();
    }
    assert!(cuts > 60, "only {cuts} cuts");
}

/// A client that only repeats unanswered requests.
struct NaiveClient {
    uri: String,
    inner: Mutex<RemoteDevice>,
}

impl NaiveClient {
    fn connect(uri: &str) -> RemoteDevice {
        let reconnect = Reconnect { timeout: Duration::ZERO, unflushed_bytes_max: 0 };
        loop {
            if let Ok(device) = RemoteDevice::open(uri, reconnect) {
                return device;
            }
        }
    }

    fn again<T>(&self, request: impl Fn(&RemoteDevice) -> Result<T, DeviceError>) -> T {
        let mut inner = self.inner.lock();
        loop {
            match request(&inner) {
                Ok(answer) => return answer,
                Err(_) => *inner = Self::connect(&self.uri),
            }
        }
    }
}

impl BlockDevice for NaiveClient {
    fn geometry(&self) -> Geometry {
        self.inner.lock().geometry()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let bytes = self.again(|device| {
            let mut bytes = vec![0; out.len()];
            device.read(offset, &mut bytes).map(|()| bytes)
        });
        out.copy_from_slice(&bytes);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        self.again(|device| device.write(offset, data, fua));
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.again(BlockDevice::flush);
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64, fua: Fua) -> Result<(), DeviceError> {
        self.again(|device| device.discard(offset, len, fua));
        Ok(())
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        _: Hole,
        _: bool,
        fua: Fua,
    ) -> Result<(), DeviceError> {
        self.discard(offset, len, fua)
    }

    fn status(&self, offset: u64, len: u64, max: usize) -> Result<Vec<Extent>, DeviceError> {
        self.inner.lock().status(offset, len, max)
    }

    fn prefetch(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.inner.lock().prefetch(offset, len)
    }
}

#[test]
fn naive_repetition_is_caught() {
    // Under other clients each of these seeds passes, as the test before says.
    let caught = (0..10).find_map(|seed| {
        let device = VolatileDevice::new();
        let fixture = Fixture::new(Arc::clone(&device) as _);
        let cutter = Cutter::new(fixture.folder.path().join("s"), Arc::clone(&device), seed);
        let inner = Mutex::new(NaiveClient::connect(&cutter.uri));
        let naive = NaiveClient { uri: cutter.uri.clone(), inner };
        workload(&naive, &device, seed).err()
    });
    let caught = caught.expect("a server that forgot what it had answered was not noticed");
    let words = ["the flush covers not all", "other bytes at"];
    assert!(words.iter().any(|words| caught.contains(words)), "{caught}");
}

#[test]
fn flush_covers_writes_of_a_failed_flush() {
    let device = VolatileDevice::new();
    let fixture = Fixture::new(Arc::clone(&device) as _);
    let remote = RemoteDevice::open(&fixture.address().uri("disk"), Reconnect::default()).unwrap();
    remote.write(1000, &[7; 5000], Fua::No).unwrap();
    device.fails_flush.store(true, Ordering::SeqCst);
    assert!(remote.flush().is_err());
    assert_eq!(device.durable_bytes()[1000], 0);
    let mut found = [0; 5000];
    remote.read(1000, &mut found).unwrap();
    assert_eq!(found, [7; 5000]);
    remote.flush().unwrap();
    assert_eq!(device.durable_bytes()[1000..6000], [7; 5000]);
}

#[test]
fn flush_after_failed_fua_covers_earlier_writes() {
    for unaligned in [false, true] {
        let device = VolatileDevice::new();
        let fixture = Fixture::new(Arc::clone(&device) as _);
        let uri = fixture.address().uri("disk");
        let remote = RemoteDevice::open(&uri, Reconnect::default()).unwrap();
        remote.write(1000, &[7; 5000], Fua::No).unwrap();
        device.fails_fua.store(true, Ordering::SeqCst);
        let at = if unaligned { 20_001 } else { 20_480 };
        assert!(remote.write(at, &[8; 512], Fua::Yes).is_err());
        assert_eq!(device.durable_bytes()[1000], 0);
        let mut found = [0; 5000];
        remote.read(1000, &mut found).unwrap();
        assert_eq!(found, [7; 5000]);
        remote.flush().unwrap();
        assert_eq!(device.durable_bytes()[1000..6000], [7; 5000]);
    }
}

/// Servers use EINVAL for errors without a protocol name, also of a flush within a write.
#[test]
fn failed_fua_with_any_error_needs_a_replay() {
    let plain = PlainServer::new(SIZE, Kind { fua_errno: 22, ..Kind::default() });
    let remote = RemoteDevice::open(&plain.uri(), Reconnect::default()).unwrap();
    remote.write(0, &[7; 512], Fua::No).unwrap();
    assert!(remote.write(4096, &[8; 512], Fua::Yes).is_err());
    remote.flush().unwrap();
    assert_eq!(plain.bytes.lock().1[..512], [7; 512]);
}

/// Holds its first write back until the gate is open.
struct GatedDevice {
    inner: MemoryDevice,
    is_first: AtomicBool,
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl everbyte_device::Decorator for GatedDevice {
    type Inner = MemoryDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Split;

    fn inner(&self) -> &Self::Inner {
        &self.inner
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        if self.is_first.swap(false, Ordering::SeqCst) {
            let mut is_open = self.is_open.lock();
            while !*is_open {
                self.opened.wait(&mut is_open);
            }
        }
        self.inner.write(offset, data, fua)
    }
}

/// A slow server executes a request although its client has abandoned it.
#[test]
fn abandoned_write_never_lands_after_newer_ones() {
    let device = Arc::new(GatedDevice {
        inner: MemoryDevice::new(SIZE),
        is_first: AtomicBool::new(true),
        is_open: Mutex::new(false),
        opened: Condvar::new(),
    });
    let fixture = Fixture::new(Arc::clone(&device) as _);
    let options = ClientOptions {
        request_time_max: Some(Duration::from_millis(100)),
        ..ClientOptions::default()
    };
    let reconnect = Reconnect { timeout: Duration::from_millis(300), ..Reconnect::default() };
    let uri = fixture.address().uri("disk");
    let remote = RemoteDevice::open_with(&uri, reconnect, options).unwrap();
    let error = remote.write(0, &[1; 512], Fua::No).unwrap_err().to_string();
    assert!(error.contains("may still carry the change out"), "{error}");
    assert!(remote.write(0, &[2; 512], Fua::No).is_err(), "it could be undone");
    *device.is_open.lock() = true;
    device.opened.notify_all();
    let again = std::iter::repeat_with(|| {
        std::thread::sleep(Duration::from_millis(20));
        remote.write(0, &[2; 512], Fua::No)
    });
    assert!(again.take(1000).any(|written| written.is_ok()));
    remote.flush().unwrap();
    let mut found = [0; 512];
    device.inner.read(0, &mut found).unwrap();
    assert_eq!(found, [2; 512]);
}

#[test]
fn written_zeroes_are_flushed_regularly() {
    for (flags, len, flushes) in
        [(FLUSH | FUA, 8 << 20, 2..16), (FLUSH | FUA | ZEROES, 8 << 20, 0..1)]
    {
        let plain = PlainServer::new(16 << 20, Kind { flags, ..Kind::default() });
        let reconnect = Reconnect { unflushed_bytes_max: 2 << 20, ..Reconnect::default() };
        let remote = RemoteDevice::open(&plain.uri(), reconnect).unwrap();
        remote.discard(0, len, Fua::No).unwrap();
        let found = plain.requests.lock().iter().filter(|request| request.0 == 3).count();
        assert!(flushes.contains(&found), "{found} flushes");
    }
}

#[test]
fn fua_write_is_durable_across_server_without_fua() {
    let block = 4096_u32;
    let small = (1, block);
    // It answers the first piece of a write of two, and is lost.
    let without = Kind { flags: FLUSH, blocks: small, closes_after: 1, ..Kind::default() };
    let plain = PlainServer::new(SIZE, without);
    let remote = RemoteDevice::open(&plain.uri(), Reconnect::default()).unwrap();
    *plain.kind.lock() = Kind { blocks: small, ..Kind::default() };
    let data = vec![7; 2 * block as usize];
    remote.write(0, &data, Fua::Yes).unwrap();
    assert_eq!(plain.connections.load(Ordering::SeqCst), 2);
    assert_eq!(plain.bytes.lock().1[..data.len()], data);
}

#[test]
fn refused_replay_blocks_only_its_range() {
    let device = VolatileDevice::new();
    let mut fixture = Fixture::new(Arc::clone(&device) as _);
    // Room for the refused writes, and little more.
    let reconnect = Reconnect { unflushed_bytes_max: 12 << 10, ..Reconnect::default() };
    let remote = RemoteDevice::open(&fixture.address().uri("disk"), reconnect).unwrap();
    for at in [0, 8192] {
        remote.write(at, &[7; 4096], Fua::No).unwrap();
    }
    device.crash(&mut TestRng(3));
    *device.bad.lock() = 512..1024;
    serve_instead(&mut fixture, Arc::clone(&device) as _);
    let read = |at| {
        let mut found = [0; 512];
        remote.read(at, &mut found).map(|()| found[0])
    };
    assert_eq!(read(8192).unwrap(), 7);
    let error = read(0).unwrap_err();
    assert!(matches!(error, DeviceError::Media { .. }), "{error}");
    assert!(error.to_string().contains("does not take again"), "{error}");
    for at in [16_384, 24_576, 32_768, 40_960] {
        remote.write(at, &[8; 4096], Fua::No).unwrap();
    }
    remote.write(49_152, &[9; 512], Fua::Yes).unwrap();
    for _ in 0..2 {
        assert!(remote.flush().is_err(), "a flush would promise what is not there");
    }
    // The rest is as durable as a flush makes it.
    let durable = device.durable_bytes();
    assert_eq!([8192, 16_384, 40_960, 49_152].map(|at| durable[at]), [7, 8, 8, 9]);
    // Newer bytes over a part of it leave the rest refused.
    *device.bad.lock() = 2048..2560;
    remote.write(0, &[5; 512], Fua::No).unwrap();
    assert_eq!(read(0).unwrap(), 5);
    assert!(read(512).is_err() && remote.flush().is_err());
    *device.bad.lock() = 0..0;
    assert_eq!(read(512).unwrap(), 7);
    remote.flush().unwrap();
    let durable = device.durable_bytes();
    assert_eq!([0, 511, 512, 4095].map(|at| durable[at]), [5, 5, 7, 7]);
}

/// Ends the server and serves `device` instead.
fn serve_instead(fixture: &mut Fixture, device: Arc<dyn BlockDevice>) {
    let address = fixture.address().clone();
    fixture.server.shutdown();
    fixture.shelf.0.lock().insert("disk".to_owned(), device);
    let exports = Arc::clone(&fixture.shelf) as _;
    let settings = everbyte_nbd::Settings::default();
    fixture.server = everbyte_nbd::Server::bind_with(&address, exports, settings).unwrap();
}

#[test]
fn another_export_in_the_same_place_gets_nothing() {
    let device = VolatileDevice::new();
    let mut fixture = Fixture::new(Arc::clone(&device) as _);
    let remote = RemoteDevice::open(&fixture.address().uri("disk"), Reconnect::default()).unwrap();
    remote.write(0, &[7; 512], Fua::No).unwrap();
    let read_only = MemoryDevice::new(SIZE);
    read_only.set_read_only(true);
    for other in [MemoryDevice::new(SIZE + 512), MemoryDevice::new(SIZE / 2), read_only] {
        let other = Arc::new(other);
        serve_instead(&mut fixture, Arc::clone(&other) as _);
        // The first one meets the broken connection, the second one finds none.
        for _ in 0..2 {
            let error = remote.write(512, &[8; 512], Fua::Yes).unwrap_err().to_string();
            assert!(error.contains("another one than before: it had 65536 bytes"), "{error}");
            std::thread::sleep(Duration::from_millis(250));
        }
        let mut found = [1; 1024];
        other.read(0, &mut found).unwrap();
        assert_eq!(found, [0; 1024]);
    }
    device.crash(&mut TestRng(1));
    serve_instead(&mut fixture, Arc::clone(&device) as _);
    remote.write(1024, &[9; 512], Fua::No).unwrap();
    remote.flush().unwrap();
    let durable = device.durable_bytes();
    assert_eq!((durable[0], durable[512], durable[1024]), (7, 0, 9));
}

#[test]
fn requests_time_out_and_resume_with_the_server() {
    for timeout in [Duration::ZERO, Duration::from_millis(200)] {
        let device = VolatileDevice::new();
        let mut fixture = Fixture::new(Arc::clone(&device) as _);
        let reconnect = Reconnect { timeout, ..Reconnect::default() };
        let remote = RemoteDevice::open(&fixture.address().uri("disk"), reconnect).unwrap();
        remote.write(0, &[7; 512], Fua::No).unwrap();
        fixture.server.shutdown();
        for _ in 0..3 {
            let error = remote.flush().unwrap_err();
            assert!(matches!(error, DeviceError::Media { .. }), "{error}");
        }
        device.crash(&mut TestRng(2));
        serve_instead(&mut fixture, Arc::clone(&device) as _);
        let back = std::iter::repeat_with(|| {
            std::thread::sleep(Duration::from_millis(20));
            remote.flush()
        });
        assert!(back.take(1000).any(|flushed| flushed.is_ok()));
        assert_eq!(device.durable_bytes()[..512], [7; 512]);
    }
}

//! Caches of exports of NBD servers.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use everbyte::{BlockDevice, Error, Fua, Pool};
use everbyte_device::{DelayDevice, DiskCosts, FaultDevice, Faults, MemoryDevice, StepCosts};
use everbyte_nbd::{Address, Export, ExportInfo, Exports, OpenError, Server};

use super::{POOL_BYTES, Place};

const SCM_BYTES: u64 = 1 << 20;

/// Exports one device by any name.
struct Disk<D>(Arc<D>);

impl Disk<FaultDevice> {
    fn new() -> Self {
        Self(Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new(4 << 20)))))
    }
}

impl<D: BlockDevice + 'static> Exports for Disk<D> {
    fn list(&self) -> Vec<ExportInfo> {
        Vec::new()
    }

    fn open(&self, _: &str) -> Result<Export, OpenError> {
        Ok(Export::new("disk", Arc::<D>::clone(&self.0)))
    }
}

fn uri(socket: &Path) -> String {
    format!("nbd+unix:///disk?socket={}", socket.display())
}

#[test]
fn export_has_one_cache_by_any_socket_name() {
    let (place, pool) = Place::with_pool();
    let [socket, link] = ["socket", "link"].map(|name| place.folder.path().join(name));
    let server = Server::bind(&Address::Unix(socket.clone()), Arc::new(Disk::new())).unwrap();
    std::os::unix::fs::symlink(&socket, &link).unwrap();
    let first = pool.create_cache("first", uri(&socket), SCM_BYTES).unwrap();
    let error = pool.create_cache("second", uri(&link), SCM_BYTES).unwrap_err();
    assert!(matches!(&error, Error::SharedBacking { other, .. } if other == "first"), "{error}");
    first.close().unwrap();
    pool.close().unwrap();
    server.shutdown();
}

#[test]
fn backing_timeout_bounds_creation() {
    let place = Place::new();
    let socket = place.folder.path().join("socket");
    // Connections are accepted by the system and never answered.
    let _silent = UnixListener::bind(&socket).unwrap();
    let builder = Pool::builder().size(POOL_BYTES).backing_timeout(Duration::from_millis(200));
    let pool = builder.create(&place.path).unwrap();
    let error = pool.create_cache("cache", uri(&socket), SCM_BYTES).unwrap_err();
    assert!(matches!(&error, Error::Backing { .. }), "{error}");
    assert!(error.to_string().contains("has not answered"), "{error}");
    assert!(pool.volumes().is_empty());
    pool.close().unwrap();
    assert!(place.reopened().volumes().is_empty());
}

#[test]
fn cache_opens_after_stalled_attempt() {
    let place = Place::new();
    let socket = place.folder.path().join("socket");
    let disk = Disk::new();
    let faults = Arc::clone(&disk.0);
    let server = Server::bind(&Address::Unix(socket.clone()), Arc::new(disk)).unwrap();
    let builder = Pool::builder().size(POOL_BYTES).backing_timeout(Duration::from_millis(200));
    let pool = builder.create(&place.path).unwrap();
    let cache = pool.create_cache("cache", uri(&socket), SCM_BYTES).unwrap();
    cache.close().unwrap();
    // Opening a cache flushes.
    faults.hang(Faults { flushes: true, ..Faults::NONE });
    let error = pool.open_cache("cache").unwrap_err();
    assert!(error.to_string().contains("has not answered"), "{error}");
    faults.hang(Faults::NONE);
    // The first attempt lets go of it once it was answered.
    let cache = loop {
        match pool.open_cache("cache") {
            Err(Error::VolumeInUse { .. }) => std::thread::yield_now(),
            opened => break opened.unwrap(),
        }
    };
    cache.close().unwrap();
    pool.close().unwrap();
    server.shutdown();
}

#[test]
fn close_with_hung_request_reports_loss() {
    let place = Place::new();
    let socket = place.folder.path().join("socket");
    let disk = Disk::new();
    let faults = Arc::clone(&disk.0);
    let server = Server::bind(&Address::Unix(socket.clone()), Arc::new(disk)).unwrap();
    let builder = Pool::builder().size(POOL_BYTES).backing_timeout(Duration::from_millis(200));
    let pool = builder.create(&place.path).unwrap();
    let cache = pool.create_cache("cache", uri(&socket), SCM_BYTES).unwrap();
    faults.hang(Faults { reads: true, ..Faults::NONE });
    let reader = cache.clone();
    let reading = std::thread::spawn(move || reader.read(0, &mut [0; 4096]));
    faults.wait_for_hanging(1);
    for closed in [cache.close(), pool.close()] {
        let error = closed.unwrap_err();
        assert!(matches!(&error, Error::Lost { lost } if lost[0].volume == "cache"), "{error}");
        assert!(error.to_string().contains("backing device"), "{error}");
    }
    assert!(!reading.is_finished());
    faults.hang(Faults::NONE);
    // The read either succeeds or reports the closed pool.
    let _answer = reading.join().unwrap();
    server.shutdown();
}

#[test]
fn close_waits_for_slow_drain() {
    let silence_max = Duration::from_millis(400);
    let place = Place::new();
    let socket = place.folder.path().join("socket");
    let (none, jump) = (Duration::ZERO, Duration::from_millis(50));
    let step = |jump| StepCosts { jump_min: jump, jump_max: jump, bytes_per_s: u64::MAX };
    let costs = DiskCosts { read: step(none), write: step(jump) };
    let slow = Arc::new(DelayDevice::new(Arc::new(MemoryDevice::new(4 << 20)), costs));
    let disk = Arc::new(Disk(Arc::clone(&slow)));
    let server = Server::bind(&Address::Unix(socket.clone()), disk).unwrap();
    let builder = Pool::builder().size(POOL_BYTES).backing_timeout(silence_max);
    let pool = builder.create(&place.path).unwrap();
    let cache = pool.create_cache("cache", uri(&socket), SCM_BYTES).unwrap();
    // Each page without a neighbour is a separate write.
    for page in 0..30 {
        cache.write(page * (64 << 10), &[7; 4096], Fua::No).unwrap();
    }
    assert_eq!(cache.stats().unwrap().dirty_pages, 30);
    let drained = cache.clone();
    let (begun, before) = (Instant::now(), slow.spent());
    let draining = std::thread::spawn(move || drained.drain());
    while slow.spent() - before < jump {
        std::thread::yield_now();
    }
    pool.close().unwrap();
    assert!(begun.elapsed() > silence_max, "it had nothing to wait for");
    draining.join().unwrap().unwrap();
    drop(cache);
    assert!(place.reopened().volumes().len() == 1);
    server.shutdown();
}

#[test]
fn close_reports_all_hung_caches() {
    const CACHES: u32 = 6;
    let (place, silence_max) = (Place::new(), Duration::from_secs(1));
    let socket = place.folder.path().join("socket");
    let disk = Disk::new();
    let faults = Arc::clone(&disk.0);
    let server = Server::bind(&Address::Unix(socket.clone()), Arc::new(disk)).unwrap();
    let builder = Pool::builder().size(3 * POOL_BYTES).close_timeout(silence_max);
    let pool = builder.create(&place.path).unwrap();
    let create = |number| {
        let uri = format!("nbd+unix:///disk{number}?socket={}", socket.display());
        pool.create_cache(&format!("cache{number}"), uri, SCM_BYTES).unwrap()
    };
    let caches: Vec<_> = (0..CACHES).map(create).collect();
    faults.hang(Faults { reads: true, ..Faults::NONE });
    let read = |cache: &everbyte::CacheVolume| {
        let cache = cache.clone();
        std::thread::spawn(move || cache.read(0, &mut [0; 4096]))
    };
    let reading: Vec<_> = caches.iter().map(read).collect();
    faults.wait_for_hanging(u64::from(CACHES));
    let Error::Lost { lost } = pool.close().unwrap_err() else { panic!("another error") };
    drop(caches);
    assert_eq!(lost.len(), CACHES as usize);
    faults.hang(Faults::NONE);
    reading.into_iter().for_each(|reading| drop(reading.join().unwrap()));
    server.shutdown();
}

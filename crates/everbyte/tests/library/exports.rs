//! Caches of exports of NBD servers.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use everbyte::{BlockDevice, Error, Pool};
use everbyte_device::{FaultDevice, Faults, MemoryDevice};
use everbyte_nbd::{Address, Export, ExportInfo, Exports, OpenError, Server};

use super::{POOL_BYTES, Place};

const SCM_BYTES: u64 = 1 << 20;

/// Exports one device by any name.
struct Disk(Arc<FaultDevice>);

impl Disk {
    fn new() -> Self {
        Self(Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new(4 << 20)))))
    }
}

impl Exports for Disk {
    fn list(&self) -> Vec<ExportInfo> {
        Vec::new()
    }

    fn open(&self, _: &str) -> Result<Export, OpenError> {
        Ok(Export::new("disk", Arc::<FaultDevice>::clone(&self.0)))
    }
}

fn uri(socket: &Path) -> String {
    format!("nbd+unix:///disk?socket={}", socket.display())
}

#[test]
fn two_caches_of_one_export_are_refused_by_whatever_name_its_socket_has() {
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
fn a_backing_device_that_is_silent_is_waited_for_no_longer_than_was_asked_for() {
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
fn a_cache_whose_backing_device_falls_silent_while_it_is_opened_can_be_opened_later() {
    let place = Place::new();
    let socket = place.folder.path().join("socket");
    let disk = Disk::new();
    let faults = Arc::clone(&disk.0);
    let server = Server::bind(&Address::Unix(socket.clone()), Arc::new(disk)).unwrap();
    let builder = Pool::builder().size(POOL_BYTES).backing_timeout(Duration::from_millis(200));
    let pool = builder.create(&place.path).unwrap();
    let cache = pool.create_cache("cache", uri(&socket), SCM_BYTES).unwrap();
    cache.close().unwrap();
    // What opening a cache asks for.
    faults.hang(Faults { flushes: true, ..Faults::NONE });
    let error = pool.cache("cache").unwrap_err();
    assert!(error.to_string().contains("has not answered"), "{error}");
    faults.hang(Faults::NONE);
    // The first attempt lets go of it once it was answered.
    let cache = loop {
        match pool.cache("cache") {
            Err(Error::VolumeInUse { .. }) => std::thread::yield_now(),
            opened => break opened.unwrap(),
        }
    };
    cache.close().unwrap();
    pool.close().unwrap();
    server.shutdown();
}

#[test]
fn a_pool_is_closed_although_a_request_waits_for_a_silent_backing_device_and_says_what_that_means()
{
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
        assert!(matches!(&error, Error::Lost { volume, .. } if volume == "cache"), "{error}");
        assert!(error.to_string().contains("backing device"), "{error}");
    }
    assert!(!reading.is_finished());
    faults.hang(Faults::NONE);
    // It is answered, or told that the pool is closed.
    let _answer = reading.join().unwrap();
    server.shutdown();
}

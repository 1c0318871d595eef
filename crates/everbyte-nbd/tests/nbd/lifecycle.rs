//! Starting, resizing, shutting down.

use std::sync::Arc;
use std::time::Duration;

use everbyte_device::{BlockDevice, Fua, MemoryDevice};
use everbyte_nbd::{Address, BindError, Client, Server, Settings};

use crate::support::{Answer, Fixture, SIZE, WatchedDevice, request};

#[test]
fn tcp_serves_too() {
    let fixture = Fixture::memory();
    let server = Server::bind(&"tcp:0".parse().unwrap(), fixture.shelf.clone()).unwrap();
    let mut client = Client::connect_uri(&server.address().uri("disk")).unwrap();
    client.write(3, b"over TCP", Fua::Yes).unwrap();
    assert_eq!(client.read(3, 8).unwrap(), b"over TCP");
    client.disconnect().unwrap();
    // An idle connection does not hold up a shutdown.
    let mut idle = Client::connect(server.address(), "disk").unwrap();
    server.shutdown();
    assert_eq!(server.stats().connections, 0);
    assert!(idle.flush().is_err());
    assert!(Client::connect(server.address(), "disk").is_err());
}

#[test]
fn exports_come_go_and_grow() {
    let fixture = Fixture::memory();
    let disk = Arc::new(MemoryDevice::new(4096));
    assert!(Client::connect(fixture.address(), "new").is_err());
    fixture.shelf.0.lock().insert("new".to_owned(), Arc::clone(&disk) as _);
    let mut client = Client::connect(fixture.address(), "new").unwrap();
    assert!(client.write(4096, &[1], Fua::No).is_err());
    disk.resize(8192);
    client.write(4096, &[1], Fua::No).unwrap();
    fixture.shelf.0.lock().remove("new");
    client.read(4096, 1).unwrap();
    assert!(Client::connect(fixture.address(), "new").is_err());
}

#[test]
fn address_is_free_only_after_shutdown() {
    let fixture = Fixture::memory();
    let again = || Server::bind(fixture.address(), fixture.shelf.clone());
    assert!(matches!(again().err().unwrap(), BindError::InUse { .. }));
    fixture.assert_alive();
    fixture.server.shutdown();
    fixture.server.shutdown();
    let Address::Unix(path) = fixture.address() else { panic!("not a Unix socket") };
    assert!(!path.exists());
    let second = again().unwrap();
    Client::connect(second.address(), "disk").unwrap();
    drop(second);
    assert!(!path.exists());
}

#[test]
fn shutdown_finishes_taken_requests() {
    let device = WatchedDevice::new();
    let fixture = Fixture::new(Arc::clone(&device) as _);
    let mut raw = fixture.simple();
    let mut idle = fixture.simple();
    let mut negotiating = fixture.greeted();
    device.close_gate();
    raw.put(&[request(1, 0, 1, 0, 3), b"abc".to_vec()].concat());
    device.await_waiting();
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| fixture.server.shutdown());
        // Idle connections end immediately, while the write still waits.
        assert!(idle.is_closed());
        assert!(negotiating.is_closed());
        assert!(!stopping.is_finished());
        device.open_gate();
        assert_eq!(raw.answer(), Answer::Simple { errno: 0, cookie: 1 });
        assert!(raw.is_closed());
        stopping.join().unwrap();
    });
    let mut got = [0; 3];
    device.inner.read(0, &mut got).unwrap();
    assert_eq!(&got, b"abc");
    assert_eq!(fixture.server.stats().connections, 0);
    assert_eq!(Arc::strong_count(&device), 2, "only the shelf and the test hold the device");
}

#[test]
fn requests_after_a_shutdown_began_are_refused() {
    let device = WatchedDevice::new();
    let fixture = Fixture::new(Arc::clone(&device) as _);
    let mut raw = fixture.simple();
    let mut idle = fixture.simple();
    device.close_gate();
    raw.put(&[request(1, 0, 1, 0, 3), b"abc".to_vec()].concat());
    device.await_waiting();
    // It has arrived, but was not taken.
    raw.put(&[request(1, 0, 2, 0, 3), b"xyz".to_vec()].concat());
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| fixture.server.shutdown());
        assert!(idle.is_closed());
        device.open_gate();
        assert_eq!(raw.answer(), Answer::Simple { errno: 0, cookie: 1 });
        assert_eq!(raw.answer(), Answer::Simple { errno: 108, cookie: 2 });
        assert!(raw.is_closed());
        stopping.join().unwrap();
    });
    let mut got = [0; 3];
    device.inner.read(0, &mut got).unwrap();
    assert_eq!(&got, b"abc");
}

#[test]
fn shutdown_breaks_connections_without_reads() {
    let settings =
        Settings { shutdown_time_max: Duration::from_millis(100), ..Settings::default() };
    let fixture = Fixture::with(Arc::new(MemoryDevice::new(SIZE)), settings);
    let mut raw = fixture.simple();
    for cookie in 0..20 {
        raw.put(&request(0, 0, cookie, 0, 1 << 20));
    }
    fixture.await_stats(|stats| stats.requests > 0);
    fixture.server.shutdown();
    assert_eq!(fixture.server.stats().connections, 0);
}

#[test]
fn many_clients_at_once_keep_their_data() {
    let fixture = Fixture::memory();
    std::thread::scope(|scope| {
        for number in 0..8_u8 {
            let address = fixture.address();
            scope.spawn(move || {
                let mut client = Client::connect(address, "disk").unwrap();
                let base = u64::from(number) * 100_000;
                for round in 0..30 {
                    let data = vec![number + round; 9000];
                    client.write(base + 11, &data, Fua::No).unwrap();
                    assert_eq!(client.read(base + 11, 9000).unwrap(), data);
                }
                client.disconnect().unwrap();
            });
        }
    });
    fixture.await_stats(|stats| stats.connections == 0);
    let stats = fixture.server.stats();
    assert_eq!((stats.connections_total, stats.connections_dropped), (8, 0));
    assert_eq!(stats.written_bytes, 8 * 30 * 9000);
    assert_eq!(stats.read_bytes, stats.written_bytes);
}

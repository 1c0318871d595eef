//! Misbehaving clients.

use std::io::Write;
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

use everbyte_device::{Fua, MemoryDevice};
use everbyte_nbd::{Client, Settings};
use proptest::prelude::*;

use crate::support::{Fixture, SIZE, WatchedDevice, go, request};

#[test]
fn bad_magic_drops_that_connection_only() {
    let fixture = Fixture::memory();
    let mut bystander = Client::connect(fixture.address(), "disk").unwrap();
    let mut raw = fixture.greeted();
    raw.put(&[0x55; 16]);
    assert!(raw.is_closed());
    let mut raw = fixture.simple();
    // Earlier requests are answered.
    raw.put(&[request(1, 0, 1, 0, 1), vec![7], vec![0x25; 28]].concat());
    assert_eq!(raw.answer().errno(), 0);
    assert!(raw.is_closed());
    assert_eq!(bystander.read(0, 1).unwrap(), [7]);
    fixture.await_stats(|stats| stats.connections_dropped == 2);
}

#[test]
fn huge_lengths_drop_without_memory() {
    let fixture = Fixture::memory();
    for len in [(64 << 10) + 1, u32::MAX] {
        let mut raw = fixture.greeted();
        raw.put(&[b"IHAVEOPT", &3_u32.to_be_bytes()[..], &len.to_be_bytes()].concat());
        assert!(raw.is_closed());
    }
    for len in [(32 << 20) + 1, u32::MAX] {
        let mut raw = fixture.simple();
        raw.put(&request(1, 0, 1, 0, len));
        assert_eq!(raw.answer().errno(), 22);
        assert!(raw.is_closed());
    }
    fixture.assert_alive();
}

#[test]
fn half_a_request_then_close() {
    let fixture = Fixture::memory();
    for bytes in [
        request(0, 0, 1, 0, 1)[..27].to_vec(),
        [request(1, 0, 1, 0, 512), vec![1; 511]].concat(),
        [request(1, 0, 1, 0, 1 << 20), vec![1; 1000]].concat(),
    ] {
        let mut raw = fixture.simple();
        raw.put(&bytes);
        raw.stream.shutdown(Shutdown::Write).unwrap();
        assert!(raw.is_closed());
    }
    fixture.await_stats(|stats| stats.connections == 0);
    assert_eq!(fixture.server.stats().written_bytes, 0, "half a write is no write");
}

#[test]
fn client_without_reads_delays_no_other() {
    let fixture = Fixture::memory();
    let mut raw = fixture.simple();
    for cookie in 0..40 {
        raw.put(&request(0, 0, cookie, 0, 1 << 20));
    }
    fixture.await_stats(|stats| stats.requests > 0);
    fixture.assert_alive();
    drop(raw);
    fixture.await_stats(|stats| stats.connections == 0);
}

#[test]
fn slow_handshakes_end_in_time_and_then_others_get_in() {
    let settings = Settings {
        handshake_time_max: Duration::from_millis(300),
        handshakes_max: 4,
        ..Settings::default()
    };
    let fixture = Fixture::with(Arc::new(MemoryDevice::new(SIZE)), settings);
    let mut slow: Vec<_> = (0..4).map(|_| fixture.raw()).collect();
    for raw in &mut slow {
        raw.take(18);
    }
    // It waits for its turn, while one of the others drips bytes.
    let dripping = std::thread::spawn(move || {
        let mut sent = 0;
        while slow[0].stream.write_all(&[0]).is_ok() && sent < 10_000 {
            sent += 1;
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(slow.iter_mut().skip(1).all(crate::support::Raw::is_closed));
    });
    fixture.assert_alive();
    dripping.join().unwrap();
    // One ended at its first bytes, which had no option's magic, the others by time.
    fixture.await_stats(|stats| stats.connections_dropped == 4);
    // Only handshakes are timed.
    let mut client = Client::connect(fixture.address(), "disk").unwrap();
    std::thread::sleep(Duration::from_millis(350));
    client.flush().unwrap();
}

#[test]
fn dripping_option_times_out() {
    let settings =
        Settings { handshake_time_max: Duration::from_millis(200), ..Settings::default() };
    let fixture = Fixture::with(Arc::new(MemoryDevice::new(SIZE)), settings);
    let mut raw = fixture.greeted();
    raw.put(&[b"IHAVEOPT", &6_u32.to_be_bytes()[..], &60_000_u32.to_be_bytes()].concat());
    let mut sent = 0;
    while raw.stream.write_all(&[1]).is_ok() {
        sent += 1;
        assert!(sent < 50_000, "never dropped");
        std::thread::sleep(Duration::from_millis(2));
    }
    fixture.await_stats(|stats| stats.connections_dropped == 1);
}

#[test]
fn too_many_connections_are_refused() {
    let settings = Settings { connections_max: 3, ..Settings::default() };
    let fixture = Fixture::with(Arc::new(MemoryDevice::new(SIZE)), settings);
    let mut clients: Vec<_> =
        (0..3).map(|_| Client::connect(fixture.address(), "disk").unwrap()).collect();
    for _ in 0..2 {
        assert!(Client::connect(fixture.address(), "disk").is_err());
    }
    for client in &mut clients {
        client.write(0, &[1], Fua::No).unwrap();
    }
    let stats = fixture.server.stats();
    assert_eq!((stats.connections, stats.connections_refused), (3, 2));
    clients.pop().unwrap().disconnect().unwrap();
    fixture.await_stats(|stats| stats.connections == 2);
    fixture.assert_alive();
}

/// Bytes similar to options.
fn options() -> impl Strategy<Value = Vec<u8>> {
    let one = (0_u32..13, prop::collection::vec(any::<u8>(), 0..40), any::<bool>()).prop_map(
        |(number, noise, sensible)| {
            let data = if sensible { go("disk", &[u16::from(noise.len() > 9)]) } else { noise };
            let len = u32::try_from(data.len()).unwrap();
            [b"IHAVEOPT", &number.to_be_bytes()[..], &len.to_be_bytes(), &data].concat()
        },
    );
    prop_oneof![
        1 => prop::collection::vec(any::<u8>(), 0..200),
        4 => prop::collection::vec(one, 0..12).prop_map(|options| options.concat()),
    ]
}

/// Bytes similar to requests.
fn requests() -> impl Strategy<Value = Vec<u8>> {
    let small = prop_oneof![0_u64..5000, Just(SIZE - 1), Just(SIZE), any::<u64>()];
    let one = (0_u16..10, prop_oneof![Just(0_u16), 0_u16..64], any::<u64>(), small, any::<u16>())
        .prop_map(|(command, flags, cookie, offset, len)| {
            let mut bytes = request(command, flags, cookie, offset, u32::from(len));
            if command == 1 && len % 5 > 0 {
                bytes.extend(vec![1; usize::from(len)]);
            }
            bytes
        });
    prop_oneof![
        1 => prop::collection::vec(any::<u8>(), 0..300),
        6 => prop::collection::vec(one, 0..20).prop_map(|requests| requests.concat()),
    ]
}

/// Sends bytes and reads all answers until the server closes.
fn throw(mut raw: crate::support::Raw, bytes: &[u8]) {
    let mut reader = raw.stream.try_clone().unwrap();
    let reading = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    // The server may have closed already.
    let _ = raw.stream.write_all(bytes);
    let _ = raw.stream.shutdown(Shutdown::Write);
    let read = reading.join().unwrap();
    if let Err(error) = read {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    }
}

fn few() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) }
}

#[test]
fn random_bytes_never_harm_the_server() {
    let device = WatchedDevice::new();
    let fixture = Fixture::new(Arc::clone(&device) as _);
    let mut bystander = Client::connect(fixture.address(), "disk").unwrap();
    let mut bystander_is_well = |case: &[u8]| {
        bystander.write(500_000, case, Fua::No).unwrap();
        assert_eq!(bystander.read(500_000, case.len()).unwrap(), case);
    };
    let mut runner = proptest::test_runner::TestRunner::new(few());
    let strategy = (0..3, options(), requests());
    runner
        .run(&strategy, |(phase, options, requests)| {
            match phase {
                0 => throw(fixture.greeted(), &[options, requests.clone()].concat()),
                1 => throw(fixture.simple(), &requests),
                _ => throw(fixture.structured(), &requests),
            }
            Ok(())
        })
        .unwrap();
    bystander_is_well(b"well");
    fixture.await_stats(|stats| stats.connections == 1);
}

//! Silent servers: clients time out, or end on cancellation.

use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use everbyte_device::{BlockDevice, DeviceError, Fua};
use everbyte_nbd::{Address, Cancel, Client, ClientError, ClientOptions, Reconnect, RemoteDevice};

use crate::plain::{Kind, PlainServer};

const SHORT: Duration = Duration::from_millis(150);
/// Longer than any test runs.
const LONG: Duration = Duration::from_secs(600);
/// Far more than any finite operation here takes.
const HANG: Duration = Duration::from_secs(20);

fn patient(cancel: &Cancel) -> ClientOptions {
    ClientOptions {
        connect_time_max: LONG,
        handshake_time_max: LONG,
        request_time_max: Some(LONG),
        cancel: Some(cancel.clone()),
        ..ClientOptions::default()
    }
}

/// Cancels once `is_waiting`, and requires the end of `wait`.
fn ends_when_cancelled<T: Send>(
    cancel: &Cancel,
    is_waiting: impl Fn() -> bool,
    wait: impl FnOnce() -> T + Send,
) -> T {
    std::thread::scope(|scope| {
        let waiting = scope.spawn(wait);
        while !is_waiting() {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waiting.is_finished(), "it waits for nothing");
        cancel.cancel();
        let cancelled = Instant::now();
        let ended = waiting.join().unwrap();
        assert!(cancelled.elapsed() < HANG);
        ended
    })
}

/// A listener whose backlog is full.
fn full(folder: &tempfile::TempDir) -> (Address, UnixListener) {
    let path = folder.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let address = Address::Unix(path);
    let options = ClientOptions {
        connect_time_max: SHORT,
        handshake_time_max: Duration::from_millis(1),
        ..ClientOptions::default()
    };
    // Each fails in its handshake, but stays in the backlog.
    while !matches!(Client::connect_with(&address, "x", &options), Err(ClientError::Connect { .. }))
    {
    }
    (address, listener)
}

#[test]
fn connecting_ends_in_time_and_when_cancelled() {
    let folder = tempfile::tempdir().unwrap();
    let (address, _listener) = full(&folder);
    let options = ClientOptions { connect_time_max: SHORT, ..ClientOptions::default() };
    let error = Client::connect_with(&address, "x", &options).err().unwrap();
    assert!(matches!(error, ClientError::Connect { .. }), "{error}");
    let cancel = Cancel::new().unwrap();
    let options = patient(&cancel);
    let ended =
        ends_when_cancelled(&cancel, || true, || Client::connect_with(&address, "x", &options));
    assert!(matches!(ended.err().unwrap(), ClientError::Cancelled));
}

#[test]
fn handshakes_end_in_time_and_when_cancelled() {
    let plain = PlainServer::new(4096, Kind { is_mute: true, ..Kind::default() });
    let options = ClientOptions { handshake_time_max: SHORT, ..ClientOptions::default() };
    let error = Client::connect_uri_with(&plain.uri(), &options).err().unwrap();
    assert!(error.to_string().contains("in time"), "{error}");
    let cancel = Cancel::new().unwrap();
    let options = patient(&cancel);
    let is_waiting = || plain.connections.load(Ordering::SeqCst) == 2;
    let open = || RemoteDevice::open_with(&plain.uri(), Reconnect::default(), options);
    let ended = ends_when_cancelled(&cancel, is_waiting, open);
    assert!(matches!(ended.err().unwrap(), ClientError::Cancelled));
}

#[test]
fn requests_end_in_time_and_when_cancelled() {
    let plain = PlainServer::new(4096, Kind { silent_after: 1, ..Kind::default() });
    let options = ClientOptions { request_time_max: Some(SHORT), ..ClientOptions::default() };
    let mut client = Client::connect_uri_with(&plain.uri(), &options).unwrap();
    client.flush().unwrap();
    for _ in 0..2 {
        let error = client.flush().unwrap_err();
        assert!(matches!(error, ClientError::Broken { .. }), "{error}");
        assert!(error.to_string().contains("in time"), "{error}");
    }
    let cancel = Cancel::new().unwrap();
    let device =
        RemoteDevice::open_with(&plain.uri(), Reconnect::default(), patient(&cancel)).unwrap();
    device.flush().unwrap();
    let is_waiting = || plain.connections.load(Ordering::SeqCst) == 2;
    let ended = ends_when_cancelled(&cancel, is_waiting, || device.write(0, &[1], Fua::No));
    let says_so = |error: DeviceError| error.to_string().contains("cancelled");
    assert!(says_so(ended.unwrap_err()));
    // And so do all that come later.
    assert!(says_so(device.flush().unwrap_err()));
    assert!(says_so(device.read(0, &mut [0]).unwrap_err()));
}

/// Its answer never ends, and there is always more of it.
#[test]
fn request_times_out_under_a_flood() {
    let plain = PlainServer::new(1 << 20, Kind { floods: true, ..Kind::default() });
    let options = ClientOptions { request_time_max: Some(SHORT), ..ClientOptions::default() };
    let mut client = Client::connect_uri_with(&plain.uri(), &options).unwrap();
    let started = Instant::now();
    assert!(matches!(client.flush(), Err(ClientError::Broken { .. })));
    assert!(started.elapsed() < HANG);
}

#[test]
fn device_abandons_a_mute_server() {
    let plain = PlainServer::new(4096, Kind { silent_after: 0, ..Kind::default() });
    let reconnect = Reconnect { timeout: 2 * SHORT, ..Reconnect::default() };
    let options = ClientOptions { request_time_max: Some(SHORT), ..ClientOptions::default() };
    let device = RemoteDevice::open_with(&plain.uri(), reconnect, options).unwrap();
    let started = Instant::now();
    assert!(matches!(device.write(0, &[1], Fua::No), Err(DeviceError::Media { .. })));
    assert!(started.elapsed() < HANG);
    assert!(plain.connections.load(Ordering::SeqCst) > 1, "it looked for another one");
    // The server comes to itself.
    *plain.kind.lock() = Kind::default();
    let is_back = || {
        std::thread::sleep(Duration::from_millis(20));
        device.write(0, &[2], Fua::Yes).is_ok()
    };
    assert!((0..500).any(|_| is_back()));
    assert_eq!(plain.bytes.lock().1[0], 2);
}

#[test]
fn waiting_for_a_lost_server_ends_when_cancelled() {
    let plain = PlainServer::new(4096, Kind { closes_after: 1, ..Kind::default() });
    let cancel = Cancel::new().unwrap();
    let reconnect = Reconnect { timeout: LONG, ..Reconnect::default() };
    let device = RemoteDevice::open_with(&plain.uri(), reconnect, patient(&cancel)).unwrap();
    *plain.kind.lock() = Kind { is_mute: true, ..Kind::default() };
    device.flush().unwrap();
    let is_waiting = || plain.connections.load(Ordering::SeqCst) == 2;
    let ended = ends_when_cancelled(&cancel, is_waiting, || device.flush());
    assert!(ended.is_err());
    // Between two attempts to connect, too.
    let gone = PlainServer::new(4096, Kind { closes_after: 0, ..Kind::default() });
    let cancel = Cancel::new().unwrap();
    let device = RemoteDevice::open_with(&gone.uri(), reconnect, patient(&cancel)).unwrap();
    let attempts = Arc::clone(&gone);
    let is_waiting = move || attempts.connections.load(Ordering::SeqCst) > 4;
    assert!(ends_when_cancelled(&cancel, is_waiting, || device.flush()).is_err());
}

//! Connections as the server's owner sees them: listed, ended, limited, kept out of each other's
//! way.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use everbyte_device::{BlockDevice, Fua, MemoryDevice};
use everbyte_nbd::{
    Address, Client, ClientOptions, Export, ExportInfo, Exports, OpenError, Server, Settings,
};
use parking_lot::{Condvar, Mutex};

use crate::support::{Answer, Fixture, SIZE, WatchedDevice, go, request};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(30);

#[test]
fn connections_are_listed_with_what_they_do() {
    let fixture = Fixture::memory();
    assert_eq!(fixture.server.connections(), []);
    let mut client = Client::connect(fixture.address(), "").unwrap();
    client.write(0, &[1; 1000], Fua::No).unwrap();
    client.read(0, 10).unwrap();
    let handshake = fixture.greeted();
    let tcp = Server::bind(&"tcp:0".parse().unwrap(), fixture.shelf.clone()).unwrap();
    let _remote = Client::connect(tcp.address(), "disk").unwrap();
    let list = fixture.server.connections();
    let [worker, waiting] = &list[..] else { panic!("{list:?}") };
    assert_eq!(worker.export.as_deref(), Some("disk"), "the default export by its real name");
    assert_eq!((worker.requests, worker.read_bytes, worker.written_bytes), (2, 10, 1000));
    assert!(worker.peer.contains(&format!("process {}", std::process::id())), "{worker:?}");
    assert!(worker.age >= waiting.age && worker.age >= worker.idle);
    assert_eq!((&waiting.export, waiting.requests), (&None, 0));
    let [remote] = &tcp.connections()[..] else { panic!("not one connection") };
    assert!(remote.peer.starts_with("127.0.0.1:"), "{remote:?}");
    assert!(worker.id < waiting.id && waiting.id < remote.id, "numbers are of the whole process");
    drop(handshake);
    client.disconnect().unwrap();
    fixture.await_stats(|stats| stats.connections == 0);
    assert_eq!(fixture.server.connections(), []);
    assert_eq!(fixture.server.stats().written_bytes, 1000, "counted for good");
}

#[test]
fn disconnect_ends_only_the_chosen_connections() {
    let fixture = Fixture::memory();
    fixture.shelf.0.lock().insert("other".to_owned(), Arc::new(MemoryDevice::new(SIZE)));
    let connect = |name| Client::connect(fixture.address(), name).unwrap();
    let (mut first, mut second) = (connect("disk"), connect("disk"));
    let mut other = connect("other");
    let mut asking = fixture.greeted();
    asking.option(6, &go("disk", &[]));
    while asking.option_reply(6).0 != 1 {}
    let id = fixture.server.connections()[0].id;
    assert_eq!(fixture.server.disconnect(id, LONG).ended, 1);
    assert!(first.flush().is_err());
    second.flush().unwrap();
    let again = fixture.server.disconnect(id, LONG);
    assert_eq!((again.ended, again.stuck.len()), (0, 0), "there is none of this number");
    assert_eq!(fixture.server.disconnect_export("disk", LONG).ended, 2);
    assert!(second.flush().is_err());
    assert!(asking.is_closed());
    other.flush().unwrap();
    assert_eq!(fixture.server.connections().len(), 1);
}

#[test]
fn stuck_connection_ends_with_its_request() {
    let device = WatchedDevice::new();
    let fixture = Fixture::new(Arc::clone(&device) as _);
    let mut raw = fixture.simple();
    device.close_gate();
    raw.put(&[request(1, 0, 1, 0, 3), b"abc".to_vec()].concat());
    device.await_waiting();
    let ended = fixture.server.disconnect_export("disk", Duration::from_millis(50));
    assert_eq!((ended.ended, ended.stuck.len()), (0, 1));
    assert_eq!(ended.stuck[0].id, fixture.server.connections()[0].id);
    assert!(raw.is_closed());
    device.open_gate();
    fixture.await_stats(|stats| stats.connections == 0);
}

#[test]
fn clients_that_are_idle_or_stall_are_ended_if_so_set() {
    let short = Duration::from_millis(100);
    let settings = Settings { stall_time_max: short, ..Settings::default() };
    let fixture = Fixture::with(Arc::new(MemoryDevice::new(SIZE)), settings);
    let mut idle = fixture.simple();
    // Half a request; half a payload in the buffer; half of a directly received one.
    for bytes in [
        request(0, 0, 1, 0, 1)[..20].to_vec(),
        [request(1, 0, 1, 0, 512), vec![1; 100]].concat(),
        [request(1, 0, 1, 0, 1 << 20), vec![1; 1000]].concat(),
    ] {
        let mut raw = fixture.simple();
        raw.put(&bytes);
        assert!(raw.is_closed());
    }
    // Replies without a reader.
    let mut raw = fixture.simple();
    for cookie in 0..40 {
        raw.put(&request(0, 0, cookie, 0, 1 << 20));
    }
    fixture.await_stats(|stats| stats.connections_dropped == 4);
    drop(raw);
    assert_eq!(idle.errno(3, 0, 0, 0), 0, "who asks nothing does not stall");

    let settings = Settings { idle_time_max: Some(short), ..Settings::default() };
    let fixture = Fixture::with(Arc::new(MemoryDevice::new(SIZE)), settings);
    let mut idle = fixture.simple();
    assert_eq!(idle.errno(3, 0, 0, 0), 0);
    assert!(idle.is_closed());
    fixture.await_stats(|stats| stats.connections_dropped == 1);
}

/// Exports with one slow or unavailable open.
struct SlowExports {
    device: Arc<MemoryDevice>,
    is_open: Mutex<bool>,
    moved: Condvar,
    hangs: AtomicBool,
}

impl SlowExports {
    fn new() -> Arc<Self> {
        let device = Arc::new(MemoryDevice::new(SIZE));
        let (is_open, moved) = (Mutex::new(false), Condvar::new());
        Arc::new(Self { device, is_open, moved, hangs: AtomicBool::new(false) })
    }

    fn release(&self) {
        *self.is_open.lock() = true;
        self.moved.notify_all();
    }
}

impl Exports for SlowExports {
    fn list(&self) -> Vec<ExportInfo> {
        Vec::new()
    }

    fn open(&self, name: &str) -> Result<Export, OpenError> {
        let secret = "open /dev/sdb: no such device".to_owned();
        match name {
            "lost" => return Err(OpenError::Unavailable { reason: secret }),
            "private" => return Err(OpenError::Forbidden { reason: secret }),
            "slow" => {
                self.hangs.store(true, Ordering::SeqCst);
                let mut is_open = self.is_open.lock();
                self.moved.wait_while(&mut is_open, |is_open| !*is_open);
            }
            _ => {}
        }
        Ok(Export::new(name, Arc::clone(&self.device) as Arc<dyn BlockDevice>))
    }
}

fn serve(exports: &Arc<SlowExports>, settings: Settings) -> (Server, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let address = Address::Unix(folder.path().join("s"));
    let exports = Arc::clone(exports) as Arc<dyn Exports>;
    (Server::bind_with(&address, exports, settings).unwrap(), folder)
}

#[test]
fn hanging_open_delays_no_other_export() {
    let exports = SlowExports::new();
    // Seven clients: the first handshake hangs before the last client connects, so the others never
    // exceed the limit, and no handshake is replaced.
    let settings = Settings {
        handshakes_max: 6,
        handshake_time_max: Duration::from_secs(2),
        shutdown_time_max: Duration::from_millis(100),
        ..Settings::default()
    };
    let (server, _folder) = serve(&exports, settings);
    std::thread::scope(|scope| {
        let address = server.address();
        let hanging: Vec<_> =
            (0..6).map(|_| scope.spawn(move || Client::connect(address, "slow"))).collect();
        while !exports.hangs.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let mut client = Client::connect(address, "quick").unwrap();
        client.flush().unwrap();
        // Four are opening it, and the others had an error in time.
        let told = Instant::now();
        while server.connections().len() > 5 {
            assert!(told.elapsed() < LONG, "nobody was told");
            std::thread::sleep(Duration::from_millis(10));
        }
        // A shutdown leaves the hanging ones behind.
        server.shutdown();
        assert!(client.flush().is_err());
        exports.release();
        for client in hanging {
            assert!(client.join().unwrap().is_err());
        }
    });
}

#[test]
fn disconnect_ends_handshake_waiting_for_export() {
    let exports = SlowExports::new();
    let settings = Settings { handshake_time_max: 10 * LONG, ..Settings::default() };
    let (server, _folder) = serve(&exports, settings);
    let options = ClientOptions { handshake_time_max: 10 * LONG, ..ClientOptions::default() };
    std::thread::scope(|scope| {
        let connect = || Client::connect_with(server.address(), "slow", &options);
        let hanging: Vec<_> = (0..6).map(|_| scope.spawn(connect)).collect();
        while server.connections().len() < 6 {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(50));
        // Two wait for their turn and end immediately, four are within the export.
        for info in server.connections() {
            server.disconnect(info.id, Duration::ZERO);
        }
        let told = Instant::now();
        while server.connections().len() > 4 {
            assert!(told.elapsed() < LONG, "they wait on");
            std::thread::sleep(Duration::from_millis(10));
        }
        exports.release();
        for client in hanging {
            assert!(client.join().unwrap().is_err());
        }
    });
}

#[test]
fn open_error_is_sent_without_paths() {
    let (server, _folder) = serve(&SlowExports::new(), Settings::default());
    for (name, words, number) in [
        ("lost", "the export is not available; ", 6),
        ("private", "the export is not to be opened", 2),
    ] {
        let error = Client::connect(server.address(), name).err().unwrap().to_string();
        assert!(error.contains(words) && error.contains(&format!("error {number}")), "{error}");
        assert!(!error.contains("no such device"), "{error}");
    }
}

#[test]
fn several_servers_are_shut_down_in_the_time_of_one() {
    let device = WatchedDevice::new();
    let wait = Duration::from_millis(300);
    let settings = Settings { shutdown_time_max: wait, ..Settings::default() };
    let fixtures: Vec<_> =
        (0..2).map(|_| Fixture::with(Arc::clone(&device) as _, settings)).collect();
    let mut stuck: Vec<_> = fixtures.iter().map(Fixture::simple).collect();
    let mut idle = fixtures[1].simple();
    device.close_gate();
    for raw in &mut stuck {
        raw.put(&[request(1, 0, 1, 0, 3), b"abc".to_vec()].concat());
    }
    for fixture in &fixtures {
        fixture.await_stats(|stats| stats.requests == 1);
    }
    for fixture in &fixtures {
        fixture.server.begin_shutdown();
    }
    // No thread waits for the one before it.
    assert!(idle.is_closed());
    device.open_gate();
    for (fixture, raw) in fixtures.iter().zip(&mut stuck) {
        fixture.server.shutdown();
        assert_eq!(raw.answer(), Answer::Simple { errno: 0, cookie: 1 });
        assert_eq!(fixture.server.stats().connections, 0);
    }
}

#[test]
fn write_through_export_is_durable_without_flush() {
    let device = WatchedDevice::new();
    let fixture = Fixture::write_through(Arc::clone(&device) as _);
    let mut raw = fixture.greeted();
    raw.option(1, b"disk");
    raw.take(8);
    let mut flags = [0; 2];
    raw.stream.read_exact(&mut flags).unwrap();
    assert_eq!(u16::from_be_bytes(flags) & 0b1101, 0b1001, "FUA, but nothing to flush");
    for (command, len) in [(1, 3), (4, 512), (6, 512), (3, 0)] {
        assert_eq!(raw.errno(command, 0, 0, len), 0);
    }
    device.close_gate();
    raw.put(&[request(1, 0, 1, 0, 1), vec![9]].concat());
    device.await_waiting();
    let pair = [request(1, 0, 2, 1, 1), vec![9], request(1, 0, 3, 2, 1), vec![9]].concat();
    raw.put(&pair);
    device.open_gate();
    for _ in 0..3 {
        assert_eq!(raw.answer().errno(), 0);
    }
    let calls = device.calls.lock().clone();
    let expected = [
        "write 0+3 Yes",
        "discard 0+512 Yes",
        "zero 0+512 Allowed false Yes",
        "flush",
        "write 0+1 Yes",
        "write 1+1 Yes",
        "write 2+1 Yes",
    ];
    assert_eq!(calls, expected);
    assert_eq!(*device.batches.lock(), [2], "one batch, so that the device pays once for it");
}

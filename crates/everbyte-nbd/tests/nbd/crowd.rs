//! Many silent, slow or greedy clients, concurrent with a working one.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use everbyte_device::{Fua, MemoryDevice};
use everbyte_nbd::{Address, Client, Exports, PayloadMemory, Server, Settings};
use parking_lot::Mutex;

use crate::support::{Fixture, Raw, Shelf, request, string};

/// Longest time of a greeting or an answer, under any load.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
const CROWD: usize = 64;
const SIZE: u64 = 40 << 20;

/// Calls `work`, and fails if it takes too long.
#[track_caller]
fn in_time<T>(work: impl FnOnce() -> T) -> T {
    let since = Instant::now();
    let done = work();
    assert!(since.elapsed() < ANSWER_TIME_MAX, "{:?}", since.elapsed());
    done
}

/// Requests of every size, each answered in time.
fn work(client: &mut Client) {
    for len in [512, 4096, 64 << 10, 300 << 10, 2 << 20] {
        let bytes = vec![7; len];
        in_time(|| client.write(4096, &bytes, Fua::No).unwrap());
        assert!(in_time(|| client.read(4096, len).unwrap()) == bytes);
        in_time(|| client.flush().unwrap());
    }
}

fn shelf() -> Arc<dyn Exports> {
    let shelf = Shelf(Mutex::default(), everbyte_nbd::Durability::AtFlush);
    let disk = Arc::new(MemoryDevice::new(SIZE));
    shelf.0.lock().insert("disk".to_owned(), disk);
    Arc::new(shelf)
}

/// Clients that stop at all points of a handshake, each at another one.
fn stopped_handshake(number: usize, stream: &mut (impl Read + Write)) {
    in_time(|| stream.read_exact(&mut [0; 18]).unwrap());
    let option = [b"IHAVEOPT", &5_u32.to_be_bytes()[..], &0_u32.to_be_bytes()].concat();
    let sent: &[u8] = match number % 6 {
        0 => b"",
        1 => &[0, 0],
        2 => &[0, 0, 0, 3],
        3 => &[&[0, 0, 0, 3], &b"IHAVEOP"[..]].concat(),
        4 => &[&[0, 0, 0, 3], &b"IHAVEOPT\0\0\0\x07\0\0\xff\xff"[..], &[1; 99]].concat(),
        // A request for TLS, which is refused, and nothing more.
        _ => &[&[0, 0, 0, 3], &option[..], &option].concat(),
    };
    stream.write_all(sent).unwrap();
}

#[test]
fn silent_clients_delay_no_greeting_over_tcp() {
    let address = Address::Tcp("127.0.0.1:0".parse().unwrap());
    let server = Server::bind(&address, shelf()).unwrap();
    let Address::Tcp(address) = server.address() else { unreachable!("it was bound to TCP") };
    let mut before = Client::connect(server.address(), "disk").unwrap();
    let mut crowd = Vec::new();
    for number in 0..CROWD {
        let mut stream = in_time(|| TcpStream::connect(address).unwrap());
        stopped_handshake(number, &mut stream);
        crowd.push(stream);
    }
    work(&mut before);
    let mut new = in_time(|| Client::connect(server.address(), "disk").unwrap());
    work(&mut new);
    assert_eq!(server.stats().connections_refused, 0);
}

#[test]
fn newcomers_replace_the_oldest_silent_handshakes() {
    let settings = Settings { connections_max: 8, ..Settings::default() };
    let fixture = Fixture::with(Arc::new(MemoryDevice::new(SIZE)), settings);
    let mut disks: Vec<_> = (0..2).map(|_| fixture.simple()).collect();
    let mut crowd: Vec<Raw> = Vec::new();
    for number in 0..CROWD {
        let mut raw = fixture.raw();
        stopped_handshake(number, &mut raw.stream);
        crowd.push(raw);
    }
    assert!(crowd[0].is_closed(), "six are left, the newest ones");
    let mut client = in_time(|| Client::connect(fixture.address(), "disk").unwrap());
    work(&mut client);
    for disk in &mut disks {
        assert_eq!(disk.errno(3, 0, 0, 0), 0, "established connections stay");
    }
    let replaced = CROWD as u64 - 5;
    fixture.await_stats(|stats| stats.connections_dropped == replaced);
    assert_eq!(fixture.server.stats().connections_refused, 0);
}

#[test]
fn endless_options_end() {
    let fixture = Fixture::with(Arc::new(MemoryDevice::new(SIZE)), Settings::default());
    let mut raw = fixture.greeted();
    let mut reader = raw.stream.try_clone().unwrap();
    // It reads its answers, so only the number of options ends it.
    let reading =
        std::thread::spawn(move || while reader.read(&mut [0; 65536]).is_ok_and(|len| len > 0) {});
    let option = [b"IHAVEOPT", &10_u32.to_be_bytes()[..], &0_u32.to_be_bytes()].concat();
    let many = option.repeat(100);
    let ended = (0..1000).any(|_| raw.stream.write_all(&many).is_err());
    assert!(ended, "100,000 options were taken");
    reading.join().unwrap();
    fixture.await_stats(|stats| stats.connections_dropped == 1);
}

/// A server with payload memory for only few of the largest payloads.
fn tight() -> (Server, PayloadMemory, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let payloads = PayloadMemory::new(0);
    let address = Address::Unix(folder.path().join("s"));
    let server =
        Server::bind_sharing(&address, shelf(), Settings::default(), payloads.clone()).unwrap();
    (server, payloads, folder)
}

/// A client that has sent a part of a large write.
fn unfinished(server: &Server, len: u32, sent: usize) -> Raw {
    let Address::Unix(path) = server.address() else { panic!("not a Unix socket") };
    let stream = std::os::unix::net::UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.set_nonblocking(false).unwrap();
    let mut raw = Raw { stream };
    raw.take(18);
    raw.put(&3_u32.to_be_bytes());
    raw.option(1, b"disk");
    raw.take(10);
    raw.put(&request(1, 0, 7, 0, len));
    raw.put(&vec![1; sent]);
    raw
}

#[test]
fn unfinished_writes_share_one_bound() {
    let (server, payloads, _folder) = tight();
    let greedy: Vec<_> = (0..24).map(|_| unfinished(&server, 32 << 20, 50_000)).collect();
    let mut client = in_time(|| Client::connect(server.address(), "disk").unwrap());
    let mut most = 0;
    for _ in 0..4 {
        work(&mut client);
        most = most.max(payloads.used_bytes());
    }
    let bytes = vec![3; 32 << 20];
    in_time(|| client.write(0, &bytes, Fua::No).unwrap());
    assert!(most <= 96 << 20, "{most}");
    assert!(server.stats().connections_dropped > 0, "a slow one lost its connection");
    drop(greedy);
    work(&mut client);
}

#[test]
fn unfinished_small_writes_leave_room_for_others() {
    let (server, payloads, _folder) = tight();
    let greedy: Vec<_> = (0..CROWD).map(|_| unfinished(&server, 1 << 20, 50_000)).collect();
    let mut client = in_time(|| Client::connect(server.address(), "disk").unwrap());
    work(&mut client);
    assert!(payloads.used_bytes() <= 96 << 20);
    drop(greedy);
}

#[test]
fn shutdown_ends_waits_for_memory() {
    let (server, _payloads, _folder) = tight();
    let _greedy: Vec<_> = (0..4).map(|_| unfinished(&server, 32 << 20, 100)).collect();
    in_time(|| server.disconnect_export("disk", ANSWER_TIME_MAX));
    in_time(|| server.shutdown());
}

#[test]
fn names_of_exports_come_as_they_are() {
    // The log escapes them, and not the protocol.
    let fixture = Fixture::memory();
    let mut raw = fixture.greeted();
    raw.option(7, &[string("no\u{1b}[31m\n"), vec![0, 0]].concat());
    let (kind, text) = raw.option_reply(7);
    assert_eq!((kind, &text[..]), (0x8000_0006, &b"there is no export of this name"[..]));
}

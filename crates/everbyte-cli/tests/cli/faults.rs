//! Caches with a missing, silent or shared backing device, full pools below caches, and the effect
//! on everything else.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use everbyte_device::Fua;
use everbyte_nbd::{Address, Client, ClientError};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, WaitOptions, waitpid};

use crate::mount::Files;
use crate::{Place, Running};

const CREATE: &str = "volume create POOL c --kind cache --backing FOLDER/disk --scm 1M --dram 256K";

/// Caches of silent files: the server must not wait for one after another.
const CACHES: usize = 10;
/// Longest time in which a server is ready, lists its volumes or ends, during any hang. It is
/// shorter than the time limits of clients of a silent server: after these limits their wait ends
/// without the server.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// A pool with a volume `disk`, and a cache `c` of an export of another server. The test can make
/// this server silent: its process stops, and its sockets still accept.
struct Behind {
    place: Place,
    below: Place,
    server_below: Running,
}

impl Behind {
    fn new() -> Self {
        let below = Place::with_disk();
        let server_below = below.serve("POOL", "");
        let place = Place::with_disk();
        let uri = format!("nbd+unix:///disk?socket={}", below.socket().display());
        let create = format!("volume create POOL c --kind cache --backing {uri} --scm 1M");
        place.run(&create).good();
        Self { place, below, server_below }
    }

    fn silence(&self) {
        silence(&self.server_below);
    }

    fn resume(&self) {
        self.server_below.send(Signal::CONT);
    }

    fn connect(&self, export: &str) -> Result<Client, everbyte_nbd::ClientError> {
        Client::connect(&Address::Unix(self.place.socket()), export)
    }
}

/// Makes a server silent: its process stops, and its sockets still accept.
fn silence(server: &Running) {
    server.send(Signal::STOP);
    // It may still answer until all its threads have stopped. Its parent is notified then.
    let stopped = waitpid(Some(Pid::from_child(&server.child)), WaitOptions::UNTRACED);
    assert!(stopped.unwrap().is_some_and(|(_, status)| status.stopped()));
}

/// Ends a server with SIGTERM, in no more time than is promised.
#[track_caller]
fn ends_in_time(server: &mut Running) -> ExitStatus {
    in_time(|| server.signal(Signal::TERM))
}

/// Runs work within the promised time limit.
#[track_caller]
fn in_time<T>(work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = work();
    assert!(begun.elapsed() < ANSWER_TIME_MAX, "it took {:?}", begun.elapsed());
    done
}

/// Waits until the cache `c` is in this state.
fn await_state(place: &Place, state: &str) {
    for _ in 0..3000 {
        let listed = in_time(|| place.run("volume list POOL --json")).json();
        if listed["volumes"][0]["cache"]["state"] == state {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("the cache never is in the state {state:?}");
}

fn uri(place: &Place, export: &str) -> String {
    format!("ready: {}", Address::Unix(place.socket()).uri(export))
}

#[test]
fn hung_backing_stops_no_other_volume() {
    let behind = Behind::new();
    let place = &behind.place;
    behind.silence();
    let server = in_time(|| place.serve("POOL", ""));
    assert_eq!(server.ready, uri(place, "disk"), "the cache is not ready, and nobody waits for it");
    place.client("disk").write(0, &[1; 4096], Fua::Yes).unwrap();
    assert!(behind.connect("c").is_err());
    let listed = place.run("volume list POOL --json").json();
    assert_ne!(listed["volumes"][0]["cache"]["state"], "open", "{listed}");
    place.run("volume create POOL more --size 1M").good();
    place.client("more").read(0, 512).unwrap();
    behind.resume();
    let mut found = None;
    for _ in 0..500 {
        found = behind.connect("c").ok();
        if found.is_some() {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    found.expect("the cache comes back with its backing device").read(0, 512).unwrap();
    server.stop();
}

#[test]
fn lists_answer_with_hung_backing() {
    let behind = Behind::new();
    let place = &behind.place;
    let server = place.serve("POOL", "");
    let clients: [Client; 4] = std::array::from_fn(|_| place.client("c"));
    let [mut reader, mut trimmer, mut flusher, mut writer] = clients;
    writer.write(0, &[1; 1 << 16], Fua::No).unwrap();
    behind.silence();
    let waiting = [
        thread::spawn(move || reader.read(6 << 20, 1 << 16).is_err()),
        thread::spawn(move || trimmer.trim(1 << 20, 1 << 20, Fua::No).is_err()),
        // More than the cache has room for: pages must leave it.
        thread::spawn(move || {
            (0..64).any(|at| writer.write(at << 16, &[2; 1 << 16], Fua::No).is_err())
        }),
        thread::spawn(move || flusher.flush().is_err()),
    ];
    await_state(place, "backing silent");
    let look = || {
        let exports = Client::list(&Address::Unix(place.socket())).unwrap();
        let names: Vec<&str> = exports.iter().map(|export| export.name.as_str()).collect();
        assert_eq!(names, ["c", "disk"]);
        let listed = place.run("volume list POOL --json").json();
        assert_eq!(listed["volumes"][1]["name"], "disk", "{listed}");
        assert_eq!(place.info()["volumes"][1]["clients"], 0);
    };
    let lists = || in_time(look);
    lists();
    let arguments = place.arguments("volume resize POOL c --scm 512K --force");
    let changing = thread::spawn(move || crate::Outcome::of(crate::everbyte().args(arguments)));
    lists();
    assert_ne!(changing.join().unwrap().status, 0);
    lists();
    server.kill();
    for client in waiting {
        client.join().unwrap();
    }
    behind.resume();
}

#[test]
fn server_ends_with_hung_backing() {
    let behind = Behind::new();
    let place = &behind.place;
    let mut server = place.serve("POOL", "--checkpoint-interval 10m");
    let mut writer = place.client("c");
    writer.write(0, &[7; 4096], Fua::No).unwrap();
    place.client("disk").write(0, &[8; 4096], Fua::No).unwrap();
    behind.silence();
    let mut reader = place.client("c");
    let reading = thread::spawn(move || reader.read(4 << 20, 4096).is_err());
    await_state(place, "backing silent");
    assert!(ends_in_time(&mut server).success(), "everything answered is in the pool");
    assert!(reading.join().unwrap());
    assert_eq!(place.info()["clean"], true);
    behind.resume();
    let server = place.serve("POOL", "");
    assert_eq!(place.client("c").read(0, 4096).unwrap(), [7; 4096]);
    assert_eq!(place.client("disk").read(0, 4096).unwrap(), [8; 4096]);
    server.stop();
}

#[test]
fn server_ends_with_many_hung_files() {
    let files = Files::new();
    let mount = files.mount();
    let place = Place::with_disk();
    for number in 0..CACHES {
        let backing = files.dir.join(number.to_string());
        File::create(&backing).unwrap().set_len(1 << 20).unwrap();
        let create = "volume create POOL cNUMBER --kind cache --scm 64K --dram 64K --backing";
        let create = create.replace("NUMBER", &number.to_string());
        place.run(&format!("{create} {}", backing.display())).good();
    }
    let mut server = place.serve("POOL", "--checkpoint-interval 10m");
    let mut waiting = Vec::new();
    let mut clients: Vec<_> = (0..CACHES).map(|n| place.client(&format!("c{n}"))).collect();
    for client in &mut clients {
        client.write(0, &[7; 4096], Fua::No).unwrap();
    }
    silence(&mount);
    for mut client in clients {
        // More than the cache has room for: its write-back hangs as well.
        waiting.push(thread::spawn(move || {
            (1..16).any(|at| client.write(at << 16, &[2; 1 << 16], Fua::No).is_err())
        }));
    }
    await_state(&place, "backing silent");
    assert!(ends_in_time(&mut server).success(), "everything answered is in the pool");
    mount.send(Signal::CONT);
    assert!(waiting.into_iter().all(|reading| reading.join().unwrap()));
    assert_eq!(place.info()["clean"], true);
    let server = place.serve("POOL", "");
    for number in 0..CACHES {
        let mut client = place.client(&format!("c{number}"));
        assert_eq!(client.read(0, 4096).unwrap(), [7; 4096]);
    }
    server.stop();
    mount.stop();
}

#[test]
fn hung_backing_file_delays_no_server() {
    let files = Files::new();
    let mount = files.mount();
    let place = Place::with_disk();
    let [backing, unused] = ["disk", "unused"].map(|name| files.dir.join(name));
    for path in [&backing, &unused] {
        File::create(path).unwrap().set_len(1 << 20).unwrap();
    }
    let create = "volume create POOL c --kind cache --scm 64K --backing";
    place.run(&format!("{create} {}", backing.display())).good();
    silence(&mount);
    let mut server = place.serve("POOL", "");
    assert_eq!(server.ready, uri(&place, "disk"));
    place.client("disk").write(0, &[1; 4096], Fua::Yes).unwrap();
    assert!(Client::connect(&Address::Unix(place.socket()), "c").is_err());
    let listed = place.run("volume list POOL --json").json();
    assert_ne!(listed["volumes"][0]["cache"]["state"], "open", "{listed}");
    let arguments = place.arguments(&create.replace("POOL c", "POOL other"));
    let creating =
        thread::spawn(move || crate::Outcome::of(crate::everbyte().args(arguments).arg(unused)));
    place.run("volume create POOL more --size 1M").good();
    place.client("more").write(0, &[2; 4096], Fua::Yes).unwrap();
    assert!(ends_in_time(&mut server).success());
    mount.send(Signal::CONT);
    // The command either loses its server or makes the cache itself.
    creating.join().unwrap();
    assert_eq!(place.info()["clean"], true);
    let server = place.serve("POOL", "");
    place.client("c").read(0, 4096).unwrap();
    server.stop();
    mount.stop();
}

#[test]
fn starting_server_ends_on_signal() {
    let behind = Behind::new();
    let place = &behind.place;
    behind.silence();
    for target in ["POOL", "POOL/c"] {
        let line = format!("serve {target} --nbd unix:FOLDER/nbd.sock --checkpoint-interval 10m");
        let mut server = Running::begin(crate::everbyte().args(place.arguments(&line)));
        // It takes clients and commands from the beginning, while it waits for the cache.
        let mut client = loop {
            match behind.connect("disk") {
                Ok(client) => break Some(client),
                Err(ClientError::Connect { .. }) => thread::sleep(Duration::from_millis(5)),
                Err(_) => break None,
            }
        };
        assert_eq!(client.is_some(), target == "POOL");
        if let Some(client) = &mut client {
            client.write(0, &[6; 4096], Fua::No).unwrap();
        }
        assert!(ends_in_time(&mut server).success(), "{target}");
        assert_eq!(server.line(), "", "{target}: nobody is told that it is ready any more");
        assert_eq!(place.info()["clean"], true, "{target}");
    }
    behind.resume();
    let server = place.serve("POOL", "");
    assert_eq!(place.client("disk").read(0, 4096).unwrap(), [6; 4096]);
    server.stop();
}

#[test]
fn change_of_hung_cache_blocks_no_other() {
    let behind = Behind::new();
    let place = &behind.place;
    let mut server = place.serve("POOL", "");
    await_state(place, "open");
    behind.silence();
    let arguments = place.arguments("volume resize POOL c --scm 512K");
    let resizing = thread::spawn(move || crate::Outcome::of(crate::everbyte().args(arguments)));
    await_state(place, "changing");
    place.run("volume create POOL more --size 1M").good();
    place.client("more").write(0, &[1; 512], Fua::Yes).unwrap();
    place.run("volume list POOL").good();
    assert!(server.signal(Signal::TERM).success());
    assert_ne!(resizing.join().unwrap().status, 0);
    behind.resume();
    assert_eq!(place.info()["clean"], true);
    place.run("volume detach POOL c").good();
    assert_eq!(behind.below.client("disk").read(0, 512).unwrap(), [0; 512]);
}

#[test]
fn missing_backing_is_reported() {
    let place = Place::with_disk();
    let disk = place.folder.path().join("disk");
    File::create(&disk).unwrap().set_len(8 << 20).unwrap();
    place.run(CREATE).good();
    fs::rename(&disk, place.folder.path().join("away")).unwrap();
    let server = place.serve("POOL", "");
    assert_eq!(server.ready, uri(&place, "disk"));
    let listed = place.run("volume list POOL --json").json();
    assert_eq!(listed["volumes"][0]["cache"]["state"], "backing missing", "{listed}");
    assert!(place.run("volume list POOL").good().contains("backing missing"));
    let refused = Client::connect(&Address::Unix(place.socket()), "c").err().unwrap().to_string();
    assert!(refused.contains("backing") && !refused.contains("no export"), "{refused}");
    fs::rename(place.folder.path().join("away"), &disk).unwrap();
    place.client("c").write(0, &[1; 512], Fua::Yes).unwrap();
    let listed = place.run("volume list POOL --json").json();
    assert_eq!(listed["volumes"][0]["cache"]["state"], "open", "{listed}");
    server.stop();
}

/// An open of a pipe blocks until another process opens its other end. In this test no process
/// does.
#[test]
fn pipe_as_backing_is_named() {
    let place = Place::with_disk();
    let [disk, away] = ["disk", "away"].map(|name| place.folder.path().join(name));
    File::create(&disk).unwrap().set_len(8 << 20).unwrap();
    place.run(CREATE).good();
    fs::rename(&disk, &away).unwrap();
    mknodat(CWD, &disk, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let words = ["neither a file nor a block device"];
    place.run(&CREATE.replace("POOL c", "POOL other")).failed(1, &words);
    let mut server = place.serve("POOL", "");
    assert_eq!(server.ready, uri(&place, "disk"));
    place.client("disk").write(0, &[1; 512], Fua::Yes).unwrap();
    let refused = Client::connect(&Address::Unix(place.socket()), "c").err().unwrap().to_string();
    assert!(refused.contains(words[0]), "{refused}");
    place.run(&CREATE.replace("POOL c", "POOL other")).failed(1, &words);
    let listed = place.run("volume list POOL --json").json();
    assert_ne!(listed["volumes"][0]["cache"]["state"], "open", "{listed}");
    fs::rename(&away, &disk).unwrap();
    place.client("c").read(0, 512).unwrap();
    assert!(ends_in_time(&mut server).success());
}

/// A server with a cache with an answered, unflushed write. The write cannot become durable: the
/// pool has no free block, and the backing device has gone.
struct Stuck {
    place: Place,
    below: Place,
    server: Running,
}

impl Stuck {
    fn new() -> Self {
        let below = Place::with_disk();
        let server_below = below.serve("POOL", "");
        let place = Place::empty();
        place.run("pool create POOL --size 16M").good();
        let uri = format!("nbd+unix:///disk?socket={}", below.socket().display());
        let create = "volume create POOL c --kind cache --scm 1M --dram 256K --backing";
        place.run(&format!("{create} {uri}")).good();
        place.run("volume create POOL fill --size 64M -o log-size=4M").good();
        let arguments = "--checkpoint-interval 10m --reconnect-timeout 200ms";
        let server = place.serve("POOL", arguments);
        let mut client = place.client("c");
        client.write(0, &[7; 64 << 10], Fua::No).unwrap();
        client.disconnect().unwrap();
        let mut fill = place.client("fill");
        for len in [1_usize << 20, 4096] {
            let pieces = (64 << 20) / len as u64;
            let mut is_full =
                |piece| fill.write(piece * len as u64, &vec![1; len], Fua::No).is_err();
            assert!((0..pieces).any(&mut is_full));
        }
        fill.disconnect().unwrap();
        server_below.kill();
        Self { place, below, server }
    }
}

#[test]
fn refused_resize_keeps_cache_data() {
    for change in ["volume resize POOL c --scm 512K", "volume attach POOL c --backing FOLDER/other"]
    {
        let Stuck { place, below, server } = Stuck::new();
        File::create(place.folder.path().join("other")).unwrap().set_len(8 << 20).unwrap();
        place.run(change).failed(1, &["cache c", "could not be made durable"]);
        place.run("volume delete POOL fill --force").good();
        let server_below = below.serve("POOL", "");
        assert_eq!(place.client("c").read(0, 64 << 10).unwrap(), [7; 64 << 10], "{change}");
        server.stop();
        server_below.stop();
    }
}

#[test]
fn shutdown_with_lost_writes_fails() {
    let Stuck { place, mut server, .. } = Stuck::new();
    assert!(!server.signal(Signal::TERM).success(), "it lost what it had answered");
    assert_eq!(place.info()["clean"], false);
    place.run("pool check POOL").good();
}

#[test]
fn hangup_ends_server_cleanly() {
    let place = Place::with_disk();
    let mut server = place.serve("POOL", "--checkpoint-interval 10m");
    place.client("disk").write(0, &[9; 4096], Fua::No).unwrap();
    assert!(server.signal(Signal::HUP).success());
    assert_eq!(place.info()["clean"], true);
}

#[test]
fn record_replaces_no_existing_file() {
    let place = Place::with_disk();
    let disk = place.folder.path().join("image");
    fs::write(&disk, vec![5; 1 << 20]).unwrap();
    place.run("volume create POOL c --kind cache --backing FOLDER/image --scm 1M").good();
    let other = place.folder.path().join("other");
    place.run(&format!("pool create {} --size 4M", other.display())).good();
    let kept = place.folder.path().join("kept");
    fs::write(&kept, "precious").unwrap();
    std::os::unix::fs::symlink(&disk, place.folder.path().join("link")).unwrap();
    let serve = "serve POOL --nbd unix:FOLDER/nbd.sock --record FOLDER/";
    place.run(&format!("{serve}kept")).failed(1, &["kept", "--force"]);
    for (name, words) in [
        ("image", "backing device of cache c"),
        ("link", "backing device of cache c"),
        ("other", "is a pool"),
        ("pool", "is the pool"),
    ] {
        let outcome = place.run(&format!("{serve}{name} --force"));
        assert_eq!(fs::read(&disk).unwrap(), vec![5; 1 << 20], "{name}");
        assert_eq!(fs::metadata(&other).unwrap().len(), 4 << 20, "{name}");
        outcome.failed(1, &[name, words]);
    }
    assert_eq!(fs::read(&kept).unwrap(), b"precious");
    let server = place.serve("POOL", "--record FOLDER/kept --force");
    server.stop();
    assert_ne!(fs::read(&kept).unwrap(), b"precious");
}

#[test]
fn second_cache_of_one_backing_is_refused() {
    let place = Place::with_disk();
    let disk = place.folder.path().join("image");
    File::create(&disk).unwrap().set_len(8 << 20).unwrap();
    fs::hard_link(&disk, place.folder.path().join("again")).unwrap();
    std::os::unix::fs::symlink(&disk, place.folder.path().join("link")).unwrap();
    place.run("volume create POOL one --kind cache --backing FOLDER/image --scm 1M").good();
    let create = "volume create POOL two --kind cache --scm 1M --backing FOLDER/";
    let words = ["is the backing device of cache one"];
    for name in ["image", "again", "link"] {
        place.run(&format!("{create}{name}")).failed(1, &words);
    }
    let server = place.serve("POOL", "");
    place.run(&format!("{create}image")).failed(1, &words);
    server.stop();
    let below = Place::with_disk();
    let server = below.serve("POOL", "");
    let uri = format!("nbd+unix:///disk?socket={}", below.socket().display());
    place.run(&format!("volume create POOL far --kind cache --scm 1M --backing {uri}")).good();
    place
        .run(&format!("volume create POOL two --kind cache --scm 1M --backing {uri}"))
        .failed(1, &["is the backing device of cache far"]);
    place
        .run("volume attach POOL far --backing FOLDER/again")
        .failed(1, &["is the backing device of cache one"]);
    server.stop();
}

#[test]
fn cache_deletion_beats_reconnecting_clients() {
    let place = Place::with_disk();
    File::create(place.folder.path().join("disk")).unwrap().set_len(8 << 20).unwrap();
    place.run(CREATE).good();
    let server = place.serve("POOL", "");
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (stop, address) = (Arc::clone(&stop), Address::Unix(place.socket()));
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if let Ok(mut client) = Client::connect(&address, "c") {
                        // It may be deleted at any moment.
                        let _ = client.read(0, 512);
                    }
                }
            })
        })
        .collect();
    for _ in 0..20 {
        place.run("volume delete POOL c --force").good();
        place.run(CREATE).good();
    }
    stop.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
    let mut client = place.client("c");
    client.write(0, &[3; 512], Fua::Yes).unwrap();
    assert_eq!(client.read(0, 512).unwrap(), [3; 512]);
    server.stop();
    assert_eq!(place.run("pool check POOL --json").json()["clean"], true);
}

#[test]
fn write_through_keeps_answered_writes() {
    let place = Place::with_disk();
    File::create(place.folder.path().join("disk")).unwrap().set_len(8 << 20).unwrap();
    place.run(CREATE).good();
    let server = place.serve("POOL", "--write-through --checkpoint-interval 10m");
    for export in ["disk", "c"] {
        let mut client = place.client(export);
        assert!(!client.can_flush(), "there is no volatile cache to be flushed");
        client.write(4096, &[4; 9000], Fua::No).unwrap();
    }
    server.kill();
    let server = place.serve("POOL", "");
    for export in ["disk", "c"] {
        let mut client = place.client(export);
        assert!(client.can_flush());
        assert_eq!(client.read(4096, 9000).unwrap(), [4; 9000], "{export}");
    }
    server.stop();
}

#[test]
fn clients_are_listed_and_disconnected() {
    let place = Place::with_disk();
    File::create(place.folder.path().join("disk")).unwrap().set_len(8 << 20).unwrap();
    place.run(CREATE).good();
    for command in ["list POOL", "disconnect POOL 1"] {
        place.run(&format!("client {command}")).failed(1, &["nobody serves"]);
    }
    let server = place.serve("POOL", "");
    let (mut first, mut second) = (place.client("disk"), place.client("c"));
    first.write(0, &[1; 700], Fua::No).unwrap();
    let listed = place.run("client list POOL --json").json();
    let clients = listed["clients"].as_array().unwrap();
    assert_eq!(clients.len(), 2, "{listed}");
    assert_eq!(
        (&clients[0]["export"], &clients[0]["written_bytes"]),
        (&"disk".into(), &700.into())
    );
    let shown = place.run("client list POOL").good();
    assert!(shown.contains("VOLUME") && shown.contains("disk"), "{shown}");
    place.run("client disconnect POOL 999999").failed(1, &["no client 999999"]);
    place.run(&format!("client disconnect POOL {}", clients[0]["id"])).good();
    assert!(first.read(0, 512).is_err());
    place.run("volume resize POOL c --scm 2M").failed(1, &["1 client has", "--force"]);
    second.write(0, &[2; 512], Fua::No).unwrap();
    place.run("volume resize POOL c --scm 2M --force").good();
    assert!(second.read(0, 512).is_err());
    let mut second = place.client("c");
    assert_eq!(second.read(0, 512).unwrap(), [2; 512]);
    place.run("volume detach POOL disk --force").failed(1, &["is not a cache"]);
    place.run("volume detach POOL c --force").good();
    assert!(second.read(0, 512).is_err());
    assert_eq!(fs::read(place.folder.path().join("disk")).unwrap()[..512], [2; 512]);
    assert_eq!(place.run("client list POOL --json").json()["clients"].as_array().unwrap().len(), 0);
    server.stop();
}

#[test]
fn guests_are_listed_and_disconnected() {
    let place = Place::with_disk();
    let socket = place.folder.path().join("guest.sock");
    let arguments = place.arguments("serve POOL --vhost disk=FOLDER/guest.sock");
    let server = Running::start(crate::everbyte().args(arguments));
    let guests = |wanted: usize| {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let listed = place.run("client list POOL --json").json();
            let clients = listed["clients"].as_array().unwrap().clone();
            if clients.len() == wanted {
                return clients;
            }
            assert!(Instant::now() < deadline, "{listed}");
        }
    };
    // A connection has the volume before its first message.
    let connect = || UnixStream::connect(&socket).unwrap();
    let is_ended = |guest: &mut UnixStream| guest.read(&mut [0]).is_ok_and(|len| len == 0);
    let mut guest = connect();
    let listed = guests(1);
    assert_eq!(listed[0]["export"], "disk");
    assert!(listed[0]["address"].as_str().unwrap().ends_with("guest.sock"), "{listed:?}");
    place.run("volume delete POOL disk").failed(1, &["1 client"]);
    place.run(&format!("client disconnect POOL {}", listed[0]["id"])).good();
    assert!(is_ended(&mut guest));
    guests(0);
    let mut guest = connect();
    guests(1);
    place.run("volume delete POOL disk --force").good();
    assert!(is_ended(&mut guest));
    assert!(is_ended(&mut connect()), "the volume is gone");
    server.stop();
}

#[test]
fn pool_is_served_without_nbd() {
    let place = Place::with_disk();
    let arguments = place.arguments("serve POOL");
    let server = Running::start(crate::everbyte().args(arguments));
    assert_eq!(server.ready, "ready");
    assert_eq!(place.info()["serving"]["pid"], server.child.id());
    place.run("volume create POOL more --size 1M").good();
    place.run("client list POOL").good();
    server.stop();
    assert_eq!(place.info()["clean"], true);
}

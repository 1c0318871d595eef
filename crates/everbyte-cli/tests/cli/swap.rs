//! Swap volumes: made, resized, exported and deleted; nothing of them is promised to last.

use everbyte_control::ControlClient;
use everbyte_device::{Fua, Hole};
use everbyte_nbd::{Address, Client};

use crate::Place;

#[test]
fn exported_swap_volume_is_volatile() {
    let place = Place::with_disk();
    place.run("volume create POOL more --kind swap --size 3M").failed(1, &["multiple of 2 MiB"]);
    place.run("volume create POOL more --kind swap --size 1G").failed(1, &["runs of 2 MiB"]);
    place.run("volume create POOL more --size 2M --wipe").failed(2, &["--kind swap"]);
    place.run("volume create POOL more --kind swap --size 4M --wipe").good();
    let listed = place.run("volume list POOL --json").json();
    let made = listed["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .find(|volume| volume["name"] == "more")
        .unwrap();
    assert_eq!((&made["kind"], &made["size_bytes"]), (&"swap".into(), &(4 << 20).into()));
    assert_eq!(made["log_bytes"], 0);
    place.run("volume resize POOL more --size 6M").good();
    let server = place.serve("POOL", "");
    let mut client = place.client("more");
    assert_eq!(client.size_bytes(), 6 << 20);
    client.write(1 << 20, &[7; 8192], Fua::No).unwrap();
    assert_eq!(client.read((1 << 20) + 4096, 4096).unwrap(), [7; 4096]);
    let refused = client.write(0, &[1; 512], Fua::Yes).unwrap_err().to_string();
    assert!(refused.contains("durable"), "{refused}");
    assert!(client.flush().is_err(), "it would be a false yes");
    client.write_zeroes(1 << 20, 4096, Hole::Allowed, false, Fua::No).unwrap();
    assert_eq!(client.read(1 << 20, 4096).unwrap(), [0; 4096]);
    place.run("volume resize POOL more --size 2M").failed(1, &["1 client has"]);
    place.run("volume delete POOL more").failed(1, &["1 client has"]);
    drop(client);
    server.kill();
    let server = place.serve("POOL", "");
    assert_eq!(place.client("more").read((1 << 20) + 4096, 4096).unwrap(), [0; 4096]);
    assert_eq!(place.run("pool check POOL --json").json()["clean"], true);
    server.stop();
    place.run("volume resize POOL more --size 2M").good();
    place.run("volume delete POOL more").good();
    assert_eq!(place.run("pool check POOL --json").json()["clean"], true);
}

#[test]
fn unservable_swap_is_not_ready() {
    let place = Place::empty();
    place.run("pool create POOL --size 32M").good();
    place.run("volume create POOL more --kind swap --size 4M").good();
    let address = Address::Unix(place.socket());
    let [itself, export] = ["", "more"].map(|name| format!("ready: {}", address.uri(name)));
    let server = place.serve("POOL", "--read-only");
    assert_eq!(server.ready, itself);
    let refused = Client::connect(&address, "more").err().unwrap().to_string();
    assert!(refused.contains("read-only"), "{refused}");
    server.stop();
    let alone = "serve POOL/more --read-only --nbd unix:FOLDER/nbd.sock";
    place.run(alone).failed(1, &["volume more", "read-only"]);

    let server = place.serve("POOL", "");
    assert_eq!(server.ready, export);
    let lease = ControlClient::connect(&place.pool).unwrap().borrow_runs("more", 2 << 20).unwrap();
    server.kill();
    for target in ["POOL", "POOL/more"] {
        let server = place.serve(target, "");
        assert_eq!(server.ready, itself, "{target}: a program has a part of it");
        let refused = Client::connect(&address, "more").err().unwrap().to_string();
        assert!(refused.contains("lent"), "{refused}");
        server.stop();
    }
    drop(lease);
}

/// Bits of a process's effective capabilities.
const IPC_LOCK: u64 = 1 << 14;
const SYS_RESOURCE: u64 = 1 << 24;
/// The kernel's mark of a thread without I/O in its allocations.
const MEMALLOC_NOIO: u64 = 0x0008_0000;

/// The word after `key` in the status of a process.
fn status_of(pid: u32, key: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.split_whitespace().next().unwrap().to_owned()
}

fn locked_kib(pid: u32) -> u64 {
    status_of(pid, "VmLck:").parse().unwrap()
}

/// True if a mapping of `path` is locked.
fn is_locked(pid: u32, path: &std::path::Path) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let mut is_of_path = false;
    let mut found = 0;
    let locked = maps.lines().any(|line| {
        if line.split_once('-').is_some_and(|(start, _)| u64::from_str_radix(start, 16).is_ok()) {
            is_of_path = line.ends_with(path.to_str().unwrap());
            found += usize::from(is_of_path);
        }
        is_of_path && line.starts_with("VmFlags:") && line.contains(" lo")
    });
    assert!(found > 0, "{} is not mapped", path.display());
    locked
}

/// Threads with this prefix in their names, and their flags.
fn threads_of(pid: u32, name: &str) -> Vec<u64> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let stat = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("stat"));
    let stats = threads.filter_map(|thread| stat(thread.unwrap()).ok());
    let named = stats.filter(|stat| stat.split_once('(').unwrap().1.starts_with(name));
    let flags = named.map(|stat| {
        let after = stat.rsplit_once(')').unwrap().1.to_owned();
        after.split_whitespace().nth(6).unwrap().parse().unwrap()
    });
    flags.collect()
}

#[test]
fn swap_server_locks_its_memory() {
    let place = Place::with_disk();
    place.run("volume create POOL more --kind swap --size 4M").good();
    let server = place.serve("POOL", "");
    let pid = server.child.id();
    let disk = place.client("disk");
    assert_eq!(locked_kib(pid), 0, "nobody pages to it");
    let client = place.client("more");
    let capabilities = u64::from_str_radix(&status_of(pid, "CapEff:"), 16).unwrap();
    let (may_lock, may_mark) = (capabilities & IPC_LOCK != 0, capabilities & SYS_RESOURCE != 0);
    assert_eq!(locked_kib(pid) > 0, may_lock);
    assert!(!is_locked(pid, &place.pool), "the pool's memory is not the server's own");
    let flags = threads_of(pid, "nbd-");
    let marked = flags.iter().filter(|&&flags| flags & MEMALLOC_NOIO != 0).count();
    assert_eq!(marked, usize::from(may_mark), "of {flags:x?}");
    let second = place.client("more");
    drop(client);
    assert_eq!(locked_kib(pid) > 0, may_lock, "one client is left");
    drop(second);
    for _ in 0..200 {
        if locked_kib(pid) == 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(locked_kib(pid), 0, "nobody pages to it any more");
    drop(disk);
    server.stop();
}

/// Locked bytes of all mappings of `path`, in KiB.
fn locked_kib_of(pid: u32, path: &std::path::Path) -> u64 {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let mut is_of_path = false;
    let mut locked_kib = 0;
    for line in maps.lines() {
        if line.split_once('-').is_some_and(|(start, _)| u64::from_str_radix(start, 16).is_ok()) {
            is_of_path = line.ends_with(path.to_str().unwrap());
        } else if let Some(kib) = line.strip_prefix("Locked:").filter(|_| is_of_path) {
            locked_kib += kib.trim().trim_end_matches(" kB").parse::<u64>().unwrap();
        }
    }
    locked_kib
}

#[test]
fn grown_pool_memory_stays_unlocked() {
    let place = Place::empty();
    place.run("pool create POOL --size 48M").good();
    place.run("volume create POOL more --kind swap --size 4M").good();
    place.run("volume create POOL files --kind fs --size 16M").good();
    let server = place.serve("POOL", "");
    let pid = server.child.id();
    let client = place.client("more");
    let unlocked = |when: &str| {
        assert_eq!(locked_kib_of(pid, &place.pool), 0, "{when}");
        assert!(!is_locked(pid, &place.pool), "{when}");
    };
    // A tree of directories is read through a second mapping, made while the memory is locked.
    let source = place.folder.path().join("tree");
    for number in 0..300 {
        let dir = source.join(format!("dir-{}", number % 7));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join(format!("file-{number}")), [7; 5000]).unwrap();
    }
    place.run("fs put -r FOLDER/tree POOL/files:/").good();
    unlocked("files were put");
    place.run("pool grow POOL --size 160M").good();
    unlocked("the pool has grown");
    place.run("volume create POOL disk --size 96M").good();
    let mut disk = place.client("disk");
    for at in 0..90 {
        disk.write(at << 20, &vec![3; 1 << 20], Fua::No).unwrap();
    }
    disk.flush().unwrap();
    unlocked("the new part has data");
    drop(client);
    let client = place.client("more");
    unlocked("a client has come back");
    place.run("pool grow POOL --size 200M").good();
    unlocked("the pool has grown again");
    drop((client, disk));
    server.stop();
}

#[test]
fn swap_server_without_rights_warns() {
    let place = Place::with_disk();
    place.run("volume create POOL more --kind swap --size 4M").good();
    let everbyte = env!("CARGO_BIN_EXE_everbyte");
    let may_lock = status_of(std::process::id(), "CapEff:");
    let may_lock = u64::from_str_radix(&may_lock, 16).unwrap() & (IPC_LOCK | SYS_RESOURCE) != 0;
    let without = "setpriv --bounding-set -ipc_lock,-sys_resource";
    let without = if may_lock { without } else { "" };
    let serve = "serve POOL --nbd unix:FOLDER/nbd.sock 2>FOLDER/log";
    let serve = format!("exec {without} {everbyte} {}", place.arguments(serve).join(" "));
    let server = crate::Running::start(std::process::Command::new("sh").args(["-c", &serve]));
    let mut client = place.client("more");
    client.write(0, &[7; 4096], Fua::No).unwrap();
    assert_eq!(client.read(0, 4096).unwrap(), [7; 4096]);
    assert_eq!(locked_kib(server.child.id()), 0);
    drop(client);
    server.stop();
    let log = std::fs::read_to_string(place.socket().with_file_name("log")).unwrap();
    for words in ["cannot lock its own memory", "cannot become an I/O flusher", "can hang it"] {
        assert!(log.contains(words), "{words:?} is not in {log}");
    }
}

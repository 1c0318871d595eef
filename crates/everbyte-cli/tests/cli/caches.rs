//! Caches: made, served, listed, killed, detached, refused.

use std::fs::{self, File};
use std::path::PathBuf;

use everbyte_device::Fua;

use crate::Place;

const CREATE: &str = "volume create POOL c --kind cache --backing FOLDER/disk --scm 1M --dram 256K";

/// Makes a pool of 32 MiB and a file of 8 MiB for a cache.
fn place() -> (Place, PathBuf) {
    let place = Place::empty();
    place.run("pool create POOL --size 32M").good();
    let disk = place.folder.path().join("disk");
    File::create(&disk).unwrap().set_len(8 << 20).unwrap();
    (place, disk)
}

#[test]
fn detached_cache_is_written_back() {
    let (place, disk) = place();
    let created = place.run(&format!("{CREATE} --json")).json();
    assert_eq!((&created["kind"], &created["size_bytes"]), (&"cache".into(), &(8 << 20).into()));
    let server = place.serve("POOL", "--checkpoint-interval 10m");
    let mut client = place.client("c");
    assert_eq!(client.size_bytes(), 8 << 20);
    client.write(5 << 20, &[7; 9000], Fua::No).unwrap();
    client.flush().unwrap();
    let listed = place.run("volume list POOL --json").json();
    let cache = &listed["volumes"][0]["cache"];
    assert_eq!(cache["dirty_bytes"], 3 * 4096);
    assert_eq!(cache["counts"]["misses"], 3);
    assert_eq!(cache["reasons"]["fill_dram/write_miss"], 3);
    assert_eq!(listed["volumes"][0]["clients"], 1);
    place.run("volume detach POOL c").failed(1, &["1 client has"]);
    place.run("volume resize POOL c --size 9M").failed(1, &["as large as its backing device"]);
    server.kill();
    assert!(fs::read(&disk).unwrap().iter().all(|&byte| byte == 0));

    let shown = place.run("volume list POOL").good();
    assert!(shown.contains("CACHE") && shown.contains("write-back"), "{shown}");
    place.run("volume delete POOL c").failed(1, &["12 KiB", "detach", "--force"]);
    let server = place.serve("POOL", "");
    let mut client = place.client("c");
    assert_eq!(client.read(5 << 20, 9000).unwrap(), [7; 9000]);
    let listed = place.run("volume list POOL --json").json();
    assert_eq!(listed["volumes"][0]["cache"]["hit_permille"], 1000, "it is warm");
    client.disconnect().unwrap();
    server.stop();
    place.run("volume detach POOL c").good();
    let bytes = fs::read(&disk).unwrap();
    assert_eq!(bytes[5 << 20..(5 << 20) + 9001], [&[7; 9000][..], &[0]].concat());
    assert_eq!(place.run("pool check POOL --json").json()["clean"], true);
}

#[test]
fn unreadable_cache_needs_forced_deletion() {
    let (place, _) = place();
    place.run(CREATE).good();
    let server = place.serve("POOL", "");
    let mut client = place.client("c");
    client.write(0, &[7; 4096], Fua::No).unwrap();
    client.flush().unwrap();
    client.disconnect().unwrap();
    server.stop();
    let mut bytes = place.bytes();
    let header = bytes.windows(8).position(|bytes| bytes == b"EVRCACHE").unwrap();
    bytes[header + 8] ^= 1;
    fs::write(&place.pool, bytes).unwrap();
    place.run("volume delete POOL c").failed(1, &["cannot read the dirty-page count", "--force"]);
    place.run("volume delete POOL c --force").good();
}

#[test]
fn replaced_backing_is_refused() {
    let (place, disk) = place();
    place.run(CREATE).good();
    fs::rename(&disk, place.folder.path().join("old")).unwrap();
    let target = "serve POOL/c --nbd unix:FOLDER/nbd.sock";
    place.run(target).failed(1, &["disk"]);
    File::create(&disk).unwrap().set_len(8 << 20).unwrap();
    place.run(target).failed(1, &["the cache belongs to", "inode"]);
    fs::rename(place.folder.path().join("old"), &disk).unwrap();
    place.serve("POOL/c", "").stop();
}

#[test]
fn impossible_caches_are_explained() {
    let (place, _) = place();
    let create = "volume create POOL c --kind cache --scm 1M --backing";
    place.run(&format!("{create} FOLDER/none")).failed(1, &["none", "truncate"]);
    place.run(&format!("{create} FOLDER")).failed(1, &["cannot use the backing device"]);
    place.run(&format!("{create} nbd+unix:///x?socket=FOLDER/none")).failed(1, &["none"]);
    place.run("volume create POOL c --kind cache --scm 1M").failed(2, &["--backing"]);
    place
        .run("volume create POOL c --kind cache --scm 1G --backing FOLDER/disk")
        .failed(1, &["are free"]);
    place.run("volume create POOL c --scm 1M --backing FOLDER/disk").failed(2, &["--kind cache"]);
    place.run("volume create POOL b --size 1M").good();
    place.run("volume detach POOL b").failed(1, &["is not a cache"]);
    place.run(CREATE).good();
    place.run("serve POOL/c --read-only --nbd unix:FOLDER/nbd.sock").failed(1, &["read-only"]);
}

/// Bytes read by a client with a new connection for this read.
fn read(place: &Place, at: u64, len: usize) -> Vec<u8> {
    let mut client = place.client("c");
    let found = client.read(at, len).unwrap();
    client.disconnect().unwrap();
    found
}

fn write(place: &Place, at: u64, data: &[u8]) {
    let mut client = place.client("c");
    client.write(at, data, Fua::Yes).unwrap();
    client.disconnect().unwrap();
}

/// Runs a command on a cache until its last client's goodbye has arrived.
fn once_alone(place: &Place, command: &str) -> crate::Outcome {
    for _ in 0..1000 {
        let ran = place.run(command);
        if !ran.err.contains("volume c open") {
            return ran;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("a client is left for ever: {command}");
}

#[test]
fn cache_resizes_with_its_backing() {
    let (place, disk) = place();
    place.run(CREATE).good();
    let server = place.serve("POOL", "");
    let bytes: Vec<u8> = (0..1 << 20).map(|at: u32| at.to_le_bytes()[1] | 1).collect();
    write(&place, 1 << 20, &bytes);
    let mut client = place.client("c");
    client.read(0, 1).unwrap();
    place.run("volume resize POOL c --scm 64K").failed(1, &["1 client has", "disconnect"]);
    client.disconnect().unwrap();
    let resize = "volume resize POOL c --scm 64K --dram 32K --json";
    let resized = once_alone(&place, resize).json();
    assert_eq!(resized["cache"]["scm_bytes"], 64 << 10);
    assert!(resized["cache"]["cached_bytes"].as_u64().unwrap() <= 96 << 10, "{resized}");
    // Pages without room in the cache are on the backing device.
    assert!(
        fs::read(&disk).unwrap()[1 << 20..2 << 20].iter().filter(|b| **b == 0).count() <= 96 << 10
    );
    assert_eq!(read(&place, 1 << 20, 1 << 20), bytes);
    let shown = once_alone(&place, "volume resize POOL c --scm 2M").good();
    assert!(shown.contains("2 MiB of SCM and 32 KiB of DRAM"), "{shown}");
    once_alone(&place, "volume resize POOL c --scm 1G").failed(1, &["are free"]);
    assert_eq!(read(&place, 1 << 20, 1 << 20), bytes);
    server.stop();

    File::options().write(true).open(&disk).unwrap().set_len((20 << 20) + 100).unwrap();
    let target = "serve POOL/c --nbd unix:FOLDER/nbd.sock";
    place.run(target).failed(1, &["8388608 bytes and has 20971620", "--follow-backing"]);
    let resized = place.run("volume resize POOL c --follow-backing --json").json();
    assert_eq!(resized["size_bytes"], (20 << 20) + 100);
    let server = place.serve("POOL", "");
    write(&place, (20 << 20) + 99, &[9]);
    assert_eq!(read(&place, 1 << 20, 1 << 20), bytes);
    server.kill();
    let detached = place.run("volume detach POOL c --json").json();
    assert!(detached["written_bytes"].as_u64().unwrap() > 0, "{detached}");
    let stored = fs::read(&disk).unwrap();
    assert_eq!((stored.len(), stored.last()), ((20 << 20) + 100, Some(&9)));
    assert_eq!(stored[1 << 20..2 << 20], bytes);
    assert_eq!(place.run("pool check POOL --json").json()["clean"], true);
}

#[test]
fn moved_backing_is_attached_again() {
    let (place, disk) = place();
    place.run(CREATE).good();
    let server = place.serve("POOL", "");
    let bytes: Vec<u8> = (0..16 * 4096).map(|at: u32| at.to_le_bytes()[0]).collect();
    write(&place, 0, &bytes);
    server.stop();
    let other = place.folder.path().join("other");
    File::create(&other).unwrap().set_len(8 << 20).unwrap();
    let attach = "volume attach POOL c --backing";
    // All pages of the cache are dirty: they prove nothing about the device.
    place.run(&format!("{attach} FOLDER/other")).failed(1, &["nothing shows", "inode"]);
    place.run("volume attach POOL c").failed(2, &["--backing"]);
    place.run(&format!("{attach} FOLDER/none")).failed(1, &["none"]);
    let moved = place.folder.path().join("moved");
    fs::rename(&disk, &moved).unwrap();
    let attached = place.run(&format!("{attach} FOLDER/moved --json")).json();
    assert!(attached["cache"]["backing"].as_str().unwrap().ends_with("/moved"), "{attached}");
    place.run("volume detach POOL c").good();
    assert_eq!(fs::read(&moved).unwrap()[..bytes.len()], bytes);

    // Clean pages in the pool are evidence, for and against.
    let create = "volume create POOL c --kind cache --backing FOLDER/moved --scm 1M --dram 4K \
                  --mode write-through --policy hybrid";
    place.run(create).good();
    let server = place.serve("POOL", "");
    write(&place, 0, &bytes);
    once_alone(&place, &format!("{attach} FOLDER/other")).failed(1, &["not the backing device"]);
    assert_eq!(read(&place, 0, bytes.len()), bytes);
    fs::copy(&moved, place.folder.path().join("copy")).unwrap();
    once_alone(&place, &format!("{attach} FOLDER/copy")).good();
    write(&place, 5, &[1]);
    server.stop();
    place.run("volume detach POOL c").good();
    let copy = fs::read(place.folder.path().join("copy")).unwrap();
    assert_eq!(copy[..8], [0, 1, 2, 3, 4, 1, 6, 7]);
}

#[test]
fn impossible_resize_is_explained() {
    let (place, disk) = place();
    place.run(CREATE).good();
    place.run("volume create POOL b --size 1M").good();
    place.run("volume resize POOL c").failed(2, &["--size"]);
    place.run("volume resize POOL c --size 9M --scm 1M").failed(2, &["--size"]);
    place.run("volume resize POOL c --size 9M").failed(1, &["--follow-backing"]);
    place.run("volume resize POOL b --scm 1M").failed(1, &["is not a cache"]);
    place.run("volume attach POOL b --backing FOLDER/disk").failed(1, &["is not a cache"]);
    place.run("volume resize POOL c --scm 0").failed(1, &["out of range"]);
    File::options().write(true).open(&disk).unwrap().set_len(1 << 20).unwrap();
    place.run("volume resize POOL c --follow-backing").failed(1, &["cannot shrink"]);
    place.run("volume detach POOL c").failed(1, &["cannot shrink"]);
    File::options().write(true).open(&disk).unwrap().set_len(8 << 20).unwrap();
    place.run("volume detach POOL c").good();
}

#[test]
fn cache_outlives_backing_server() {
    const LAST: usize = (1 << 20) - 4096;
    let (place, _) = place();
    let below = Place::empty();
    below.run("pool create POOL --size 32M").good();
    below.run("volume create POOL disk --size 8M").good();
    let server_below = below.serve("POOL", "");
    let uri = format!("nbd+unix:///disk?socket={}/nbd.sock", below.folder.path().display());
    let create = format!("volume create POOL c --kind cache --backing {uri} --scm 64K --dram 32K");
    place.run(&create).good();
    let server = place.serve("POOL", "--reconnect-timeout 300ms");
    let mut bytes: Vec<u8> = (0..1 << 20).map(|at: u32| at.to_le_bytes()[1] | 1).collect();
    write(&place, 0, &bytes);
    server_below.kill();
    let mut client = place.client("c");
    assert!(client.read(4 << 20, 4096).is_err());
    // The last written bytes are still cached.
    client.write(LAST as u64, &[7; 100], Fua::Yes).unwrap();
    let server_below = below.serve("POOL", "");
    let found = (0..1000).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        client.read(0, 1 << 20).ok()
    });
    bytes[LAST..LAST + 100].fill(7);
    assert!(found.unwrap() == bytes);
    client.disconnect().unwrap();
    once_alone(&place, "volume detach POOL c").good();
    let mut client = below.client("disk");
    assert!(client.read(0, 1 << 20).unwrap() == bytes);
    client.disconnect().unwrap();
    server.stop();
    server_below.stop();
}

#[test]
fn unproven_pages_are_listed_and_logged() {
    let (place, below) = (Place::empty(), Place::with_disk());
    let server_below = below.serve("POOL", "");
    place.run("pool create POOL --size 16M").good();
    let uri = format!("nbd+unix:///disk?socket={}", below.socket().display());
    place.run(&format!("volume create POOL c --kind cache --scm 1M --backing {uri}")).good();
    let server = place.serve("POOL", "");
    let mut client = place.client("c");
    client.write(0, &[7; 8 << 12], Fua::Yes).unwrap();
    let dirty = || {
        let listed = place.run("volume list POOL --json").json();
        listed["volumes"][0]["cache"]["dirty_bytes"].as_u64().unwrap() / 4096
    };
    let before = dirty();
    assert!(before > 0, "no page is dirty");
    server.kill();

    // An export has no lasting identity, and no clean page is left to compare.
    let (server, log) = place.serve_logging("");
    place.client("c").disconnect().unwrap();
    let listed = place.run("volume list POOL --json").json();
    let counts = &listed["volumes"][0]["cache"]["counts"];
    assert!(counts["unproven_pages"].as_u64().unwrap() > 0, "{listed}");
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.contains("nothing proves that this is the backing device"), "{text}");
    server.stop();
    server_below.stop();
}

#[test]
fn unforced_deletion_needs_synced_backing() {
    let below = Place::with_disk();
    let server_below = below.serve("POOL", "--checkpoint-interval 10m");
    let place = Place::empty();
    place.run("pool create POOL --size 16M").good();
    let uri = format!("nbd+unix:///disk?socket={}", below.socket().display());
    let create = "volume create POOL c --kind cache --mode write-around --scm 1M --backing";
    place.run(&format!("{create} {uri}")).good();
    let server = place.serve("POOL", "--reconnect-timeout 200ms");
    let mut client = place.client("c");
    client.write(0, &[7; 64 << 10], Fua::No).unwrap();
    client.disconnect().unwrap();
    let listed = place.run("volume list POOL --json").json();
    assert_eq!(listed["volumes"][0]["cache"]["dirty_bytes"], 0);
    server_below.kill();
    let words = ["volume c is a cache", "may lose", "--force"];
    once_alone(&place, "volume delete POOL c").failed(1, &words);
    let server_below = below.serve("POOL", "--checkpoint-interval 10m");
    let deleted = (0..1000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        place.run("volume delete POOL c").status == 0
    });
    assert!(deleted);
    server_below.kill();
    let server_below = below.serve("POOL", "");
    let mut client = below.client("disk");
    assert_eq!(client.read(0, 64 << 10).unwrap(), [7; 64 << 10]);
    client.disconnect().unwrap();
    server.stop();
    server_below.stop();
}

#[test]
fn cache_larger_than_pool_names_the_remedy() {
    let (place, _) = place();
    let create = "volume create POOL c --kind cache --backing FOLDER/disk --scm 1G --dram 256K";
    let words = ["cache c may take", "are free", "hint: ", "everbyte pool grow"];
    place.run(create).failed(1, &words);
    let server = place.serve("POOL", "");
    place.run(create).failed(1, &words);
    server.stop();
}

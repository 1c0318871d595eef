//! Caches: made, served, listed, killed, detached, refused.

use std::fs::{self, File};
use std::path::PathBuf;

use everbyte_device::Fua;

use crate::Place;

const CREATE: &str = "volume create POOL c --kind cache --backing FOLDER/disk --scm 1M --dram 256K";

/// With a pool of 32 MiB and a file of 8 MiB that is to be cached.
fn place() -> (Place, PathBuf) {
    let place = Place::empty();
    place.run("pool create POOL --size 32M").good();
    let disk = place.folder.path().join("disk");
    File::create(&disk).unwrap().set_len(8 << 20).unwrap();
    (place, disk)
}

#[test]
fn a_cache_keeps_what_was_flushed_and_gives_it_to_its_storage_in_the_end() {
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
    place.run("volume detach POOL c").failed(1, &["1 clients"]);
    place.run("volume resize POOL c --size 9M").failed(1, &["as large as its storage"]);
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
fn another_storage_in_the_same_place_is_refused() {
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
fn what_cannot_be_is_explained() {
    let (place, _) = place();
    let create = "volume create POOL c --kind cache --scm 1M --backing";
    place.run(&format!("{create} FOLDER/none")).failed(1, &["none", "truncate"]);
    place.run(&format!("{create} FOLDER")).failed(1, &["cannot use the storage"]);
    place.run(&format!("{create} nbd+unix:///x?socket=FOLDER/none")).failed(1, &["none"]);
    place.run("volume create POOL c --kind cache --scm 1M").failed(2, &["--backing"]);
    place
        .run("volume create POOL c --kind cache --scm 1G --backing FOLDER/disk")
        .failed(1, &["are free"]);
    place.run("volume create POOL c --scm 1M --backing FOLDER/disk").failed(1, &["--kind cache"]);
    place.run("volume create POOL b --size 1M").good();
    place.run("volume detach POOL b").failed(1, &["is no cache"]);
    place.run(CREATE).good();
    place.run("serve POOL/c --read-only --nbd unix:FOLDER/nbd.sock").failed(1, &["read-only"]);
}

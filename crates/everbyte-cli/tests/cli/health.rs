//! Health of pools and volumes: one verdict from all commands, deletion of damaged volumes, and
//! sizes under clients.

use everbyte_device::Fua;

use crate::{Outcome, Place};

const HEADER: usize = 2 * 4096;
/// Offsets in a volume header: the two copies of the checkpoint record and of the descriptor, root and size.
const ROOT: usize = 192;
const SIZE: usize = 200;

fn flip(place: &Place, at: &[usize]) {
    let mut bytes = place.bytes();
    at.iter().for_each(|&at| bytes[at] ^= 0x40);
    std::fs::write(&place.pool, bytes).unwrap();
}

/// A pool with a block volume `a`, a file system `f`, a swap volume `s` and a block volume `sound`, with data.
fn with_volumes() -> Place {
    let place = Place::empty();
    place.run("pool create POOL --size 128M").good();
    place.run("volume create POOL a --size 8M").good();
    place.run("volume create POOL f --kind fs --size 16M").good();
    place.run("volume create POOL s --kind swap --size 8M").good();
    place.run("volume create POOL sound --size 8M").good();
    let server = place.serve("POOL", "");
    for name in ["a", "sound"] {
        let mut client = place.client(name);
        client.write(0, &[0x5a; 1 << 20], Fua::No).unwrap();
        client.flush().unwrap();
    }
    place.run("fs mkdir POOL/f:/d").good();
    server.stop();
    place
}

fn status(place: &Place) -> Outcome {
    place.run("pool status POOL --json")
}

fn json(outcome: &Outcome) -> serde_json::Value {
    serde_json::from_str(&outcome.out).unwrap_or_else(|_| panic!("{outcome:?}"))
}

/// The state of a volume in `volume list --json`.
fn state(place: &Place, name: &str) -> String {
    let list = place.run("volume list POOL --json").json();
    let volumes = list["volumes"].as_array().unwrap();
    let found = volumes.iter().find(|volume| volume["name"] == name).unwrap();
    found["state"].as_str().unwrap().to_owned()
}

/// The address of the block named by a word of a header.
fn named_by(bytes: &[u8], at: usize) -> usize {
    let word = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let entry = everbyte_pool::format::Entry::decode(word).unwrap().unwrap();
    usize::try_from(entry.block.offset().0).unwrap()
}

#[test]
fn damaged_volumes_are_deleted_and_repaired() {
    let place = with_volumes();
    let sound = place.bytes();
    let header = |slot: usize| HEADER + slot * 4096;
    for (kind, name, slot, at) in [
        ("root", "a", 0, header(0) + ROOT),
        ("size", "a", 0, header(0) + SIZE),
        ("top of the map", "a", 0, named_by(&sound, header(0) + ROOT)),
        ("root", "f", 1, header(1) + ROOT),
        ("superblock of the file system", "f", 1, named_by(&sound, header(1) + ROOT) + 16),
        ("root", "s", 2, header(2) + ROOT),
        ("table", "s", 2, named_by(&sound, header(2) + ROOT)),
    ] {
        for is_served in [false, true] {
            let what = format!("{kind} of {name} (slot {slot}), served: {is_served}");
            std::fs::write(&place.pool, &sound).unwrap();
            flip(&place, &[at]);
            let server = is_served.then(|| place.serve("POOL", ""));
            assert_eq!(state(&place, name), "damaged", "{what}");
            assert_eq!(state(&place, "sound"), "ok", "{what}");
            let judged = status(&place);
            assert_eq!((judged.status, &json(&judged)["status"]), (2, &"damaged".into()), "{what}");
            assert_eq!(place.run("pool check POOL").status, 1, "{what}");
            let refused = place.run(&format!("volume delete POOL {name}"));
            assert_eq!(refused.status, 1, "{what}: {refused:?}");
            assert!(refused.err.contains(&format!("volume {name}")), "{what}: {refused:?}");
            assert!(refused.err.contains("--force"), "{what}: {refused:?}");
            let deleted = place.run(&format!("volume delete POOL {name} --force --json"));
            assert_eq!(deleted.status, 0, "{what}: {deleted:?}");
            let deleted = json(&deleted);
            assert!(deleted["leaked_bytes"].as_u64().unwrap() > 0, "{what}: {deleted}");
            assert!(deleted["damage"].is_string(), "{what}: {deleted}");
            if let Some(server) = server {
                server.stop();
            }
            assert_eq!(status(&place).status, 1, "leaks degrade: {what}");
            let repaired = place.run("pool check POOL --repair");
            assert_eq!(repaired.status, 0, "{what}: {repaired:?}");
            assert_eq!(status(&place).status, 0, "{what}");
            let _server = place.serve("POOL", "");
            let bytes = place.client("sound").read(0, 1 << 20).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0x5a), "{what}");
        }
    }
}

#[test]
fn one_verdict_from_check_scrub_info_and_status() {
    let place = with_volumes();
    let clean = place.run("pool status POOL");
    assert_eq!((clean.status, clean.out.as_str()), (0, "clean\n"), "{clean:?}");
    for (what, at) in [
        ("superblock", 60),
        ("second superblock", 4096 + 60),
        ("checkpoint record", HEADER + 64),
        ("descriptor", HEADER + 1024),
    ] {
        flip(&place, &[at]);
        let judged = status(&place);
        assert_eq!(judged.status, 1, "{what}: {judged:?}");
        for command in ["pool check POOL --json", "pool scrub POOL --json"] {
            let outcome = place.run(command);
            assert_eq!(
                (outcome.status, &json(&outcome)["health"]),
                (1, &"degraded".into()),
                "{what}"
            );
        }
        assert_eq!(place.info()["health"], "degraded", "{what}");
        flip(&place, &[at]);
    }
    flip(&place, &[60, 4096 + 60]);
    assert_eq!(status(&place).status, 2, "both superblocks");
    let scrubbed = place.run("pool scrub POOL --json");
    assert_eq!(json(&scrubbed)["health"], "damaged");
}

#[test]
fn pool_that_cannot_be_judged_is_unknown() {
    let place = Place::empty();
    assert_eq!(status(&place).status, 3, "missing");
    std::fs::write(&place.pool, [7; 1 << 16]).unwrap();
    assert_eq!(status(&place).status, 3, "no pool");
    for usage in ["pool status", "pool status POOL --no-such-option", "-v pool status"] {
        let outcome = place.run(usage);
        assert_eq!(outcome.status, 3, "{usage}: {outcome:?}");
    }
    assert_eq!(place.run("pool check").status, 2);
    std::fs::remove_file(&place.pool).unwrap();
    place.run("pool create POOL --size 16M").good();
    let server = place.serve("POOL", "");
    assert_eq!(status(&place).status, 0);
    server.send(rustix::process::Signal::STOP);
    let judged = status(&place);
    server.send(rustix::process::Signal::CONT);
    assert_eq!(judged.status, 3, "{judged:?}");
    assert!(json(&judged)["problems"][0].is_string(), "{judged:?}");
    server.kill();
    assert_eq!(status(&place).status, 0, "a crash is recovered from");
}

#[test]
fn shrinking_under_clients_needs_force() {
    let place = with_volumes();
    let server = place.serve("POOL", "");
    let mut client = place.client("sound");
    let refused = place.run("volume resize POOL sound --size 4M --shrink");
    assert_eq!(refused.status, 1, "{refused:?}");
    assert!(refused.err.contains("1 client has volume sound open"), "{refused:?}");
    assert!(refused.err.contains("--force"), "{refused:?}");
    client.read(6 << 20, 4096).unwrap();
    let grown = place.run("volume resize POOL sound --size 12M").good();
    assert!(grown.contains("1 client keeps the old size until it reconnects"), "{grown}");
    let grown = place.run("volume resize POOL sound --size 16M --json").json();
    assert_eq!(grown["clients_with_old_size"], 1);
    place.run("volume resize POOL sound --size 4M --shrink --force").good();
    assert!(client.read(0, 4096).is_err(), "it was not disconnected");
    let grown = place.run("volume resize POOL sound --size 8M").good();
    assert!(!grown.contains("keep"), "{grown}");
    server.stop();
}

#[test]
fn files_are_made_moved_and_removed() {
    let place = with_volumes();
    for is_served in [false, true] {
        let server = is_served.then(|| place.serve("POOL", ""));
        place.run("fs mkdir -p POOL/f:/x/y/z").good();
        place.run("fs mkdir -p POOL/f:/x/y/z").good();
        let exists = place.run("fs mkdir POOL/f:/x");
        assert!(exists.status == 1 && exists.err.contains("f:/x"), "{exists:?}");
        place.run("fs mv POOL/f:/x/y/z /x").good();
        place.run("fs mkdir POOL/f:/t").good();
        place.run("fs mv POOL/f:/t /x/z").good();
        assert_eq!(place.run("fs ls POOL/f:/x/z").good(), "t\n");
        let space = place.run("fs df POOL/f --json").json();
        assert_eq!(space["size_bytes"], 16 << 20);
        assert!(space["used_inodes"].as_u64().unwrap() >= 5, "{space}");
        for wrong in
            ["POOL/f", "POOL/f:/", "POOL/f:/x/.", "POOL/f:/x/..", "POOL/f:/x", "POOL/f:/no"]
        {
            let outcome = place.run(&format!("fs rm {wrong}"));
            assert!(outcome.status == 1 && outcome.err.contains("f:"), "{wrong}: {outcome:?}");
        }
        place.run("fs rm -r POOL/f:/x").good();
        assert_eq!(place.run("fs ls POOL/f").good(), "d\n");
        if let Some(server) = server {
            server.stop();
        }
    }
    place.run("pool check POOL").good();
}

/// A pool with the directory `/tree` of eight files, and the place of a byte of the entry `entry3`.
fn with_tree() -> (Place, usize) {
    let place = with_volumes();
    let tree = place.folder.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    for number in 0..8 {
        std::fs::write(tree.join(format!("entry{number}")), vec![1; 5000]).unwrap();
    }
    place.run("fs put -r FOLDER/tree POOL/f:/tree").good();
    let name = place.bytes().windows(6).position(|window| window == b"entry3").unwrap();
    (place, name)
}

#[test]
fn damaged_directory_entries_are_removed() {
    let (place, name) = with_tree();
    let sound = place.bytes();
    flip(&place, &[name]);
    let removed = place.run("fs rm POOL/f:/tree/entry3 --json").json();
    assert_eq!(removed["leaked"][0]["entries"], 1, "{removed}");
    assert_eq!(place.run("fs ls POOL/f:/tree").good().lines().count(), 7);
    std::fs::write(&place.pool, &sound).unwrap();
    flip(&place, &[name]);
    let removed = place.run("fs rm -r POOL/f:/tree").good();
    assert!(removed.contains("f:/tree"), "{removed}");
    assert_eq!(place.run("fs ls POOL/f").good(), "d\n");
}

#[test]
fn copy_continues_past_a_damaged_entry() {
    let (place, name) = with_tree();
    flip(&place, &[name]);
    place.run("fs get -r POOL/f:/tree FOLDER/back").failed(1, &["tree"]);
    let back = place.folder.path().join("back");
    assert_eq!(std::fs::read_dir(&back).unwrap().count(), 7);
    assert_eq!(std::fs::read(back.join("entry7")).unwrap(), vec![1; 5000]);
}

//! `pool check --repair` as an operator meets it.

use everbyte_device::Fua;

use crate::Place;

const COMMAND: &str = "pool check --repair POOL";

/// Offset of the header of the first volume in the pool, in bytes.
const HEADER: usize = 2 * 4096;

fn content(block: u64) -> Vec<u8> {
    (0..4096_u64).map(|i| (i.wrapping_mul(block + 5) >> 2).to_le_bytes()[0]).collect()
}

/// A pool. Its volume `disk` has checksums and eight blocks of data.
fn with_data() -> Place {
    let place = Place::empty();
    place.run("pool create POOL --size 8M").good();
    place.run("volume create POOL disk --size 1M --checksum crc32c").good();
    let server = place.serve("POOL", "");
    let mut client = place.client("disk");
    for block in 0..8 {
        client.write(block * 4096, &content(block), Fua::No).unwrap();
    }
    drop(client);
    server.stop();
    place
}

fn damage(place: &Place, at: &[usize]) {
    let mut bytes = place.bytes();
    at.iter().for_each(|&at| bytes[at] ^= 0x40);
    std::fs::write(&place.pool, bytes).unwrap();
}

#[test]
fn repair_of_sound_pool_changes_nothing() {
    let place = with_data();
    let before = place.bytes();
    assert!(place.run(COMMAND).good().starts_with("clean: 1 volumes"));
    assert!(place.bytes() == before);
}

#[test]
fn repair_is_announced_and_done_once() {
    let place = with_data();
    damage(&place, &[60, HEADER + 64, HEADER + 1024, 2 * HEADER]);
    let before = place.bytes();
    let dry = place.run(&format!("{COMMAND} --dry-run"));
    assert_eq!(dry.status, 1, "{dry:?}");
    assert_eq!(dry.out.matches("would mend: ").count(), 4, "{dry:?}");
    assert!(place.bytes() == before, "a dry run changed the pool");
    let done = place.run(&format!("{COMMAND} --json")).json();
    let mended: Vec<&str> =
        done["mended"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
    let names = ["superblock at 0x0", "checkpoint record", "volume descriptor", "volume state"];
    for (line, name) in mended.iter().zip(names) {
        assert!(line.starts_with(name), "{mended:?}");
        assert!(dry.out.contains(&format!("would mend: {line}")), "{line}");
    }
    assert_eq!((mended.len(), &done["clean"], &done["dry_run"]), (4, &true.into(), &false.into()));
    let after = place.bytes();
    let again = place.run(COMMAND).good();
    assert!(again.starts_with("clean: "), "{again}");
    assert!(place.bytes() == after);
    place.run("pool scrub POOL").good();
}

/// Opening repairs them in the inspected private copy; the pool still has them.
#[test]
fn scrub_finds_damage_repaired_in_copy() {
    let place = with_data();
    let damaged = [
        (60, "superblock (pool offset 0x0): "),
        (4096 + 60, "superblock (pool offset 0x1000): "),
        (HEADER + 64, "checkpoint record (pool offset 0x2040): "),
        (HEADER + 128, "checkpoint record (pool offset 0x2080): "),
        (HEADER + 1024, "volume disk, volume descriptor (pool offset 0x2400): "),
        (HEADER, "volume state (pool offset 0x2000): "),
    ];
    for (at, problem) in damaged {
        damage(&place, &[at]);
        let before = place.bytes();
        let scrubbed = place.run("pool scrub POOL");
        assert_eq!(scrubbed.status, 1, "{scrubbed:?}");
        assert!(scrubbed.out.starts_with(&format!("problem: {problem}")), "{scrubbed:?}");
        assert_eq!(scrubbed.out.matches("problem: ").count(), 1, "{scrubbed:?}");
        let checked = place.run("pool check POOL");
        assert!(!checked.out.contains("rewritten"), "{checked:?}");
        assert!(place.bytes() == before);
        damage(&place, &[at]);
    }
    place.run("pool scrub POOL").good();
}

#[test]
fn pool_of_all_kinds_is_repaired() {
    let place = Place::empty();
    place.run("pool create POOL --size 64M").good();
    place.run("volume create POOL files --kind fs --size 8M").good();
    place.run("volume create POOL swap --kind swap --size 8M").good();
    damage(&place, &[60]);
    let done = place.run(COMMAND).good();
    assert!(done.contains("mended: superblock at 0x0"), "{done}");
    place.run("volume delete POOL files").good();
    damage(&place, &[60]);
    place.run(COMMAND).good();
}

#[test]
fn lost_data_is_named_by_volume_and_byte() {
    let place = with_data();
    let bytes = place.bytes();
    let at = (0..bytes.len()).step_by(4096).find(|&at| bytes[at..at + 4096] == content(3)).unwrap();
    damage(&place, &[at + 77]);
    let before = place.bytes();
    let outcome = place.run(COMMAND);
    assert_eq!(outcome.status, 1, "{outcome:?}");
    assert!(outcome.out.contains("lost: volume disk, data at byte 12288 (pool"), "{outcome:?}");
    assert!(place.bytes() == before);
    let mut status = place.run(&format!("{COMMAND} --json"));
    status.status = 0;
    let status = status.json();
    assert_eq!(status["clean"], false);
    assert_eq!(
        (&status["lost"][0]["volume"], &status["lost"][0]["offset"]),
        (&"disk".into(), &12288.into())
    );
}

#[test]
fn unrepairable_damage_is_refused() {
    let place = with_data();
    place.run("pool check POOL --dry-run").failed(2, &["--repair"]);
    let server = place.serve("POOL", "");
    place.run(COMMAND).failed(1, &["is being served by process"]);
    server.stop();
    damage(&place, &[60, 4096 + 60]);
    let before = place.bytes();
    let outcome = place.run(COMMAND);
    assert_eq!(outcome.status, 1);
    assert!(outcome.out.contains("problem: superblock at 0x0 is corrupt"), "{outcome:?}");
    assert!(place.bytes() == before);
}

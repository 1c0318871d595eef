//! Media errors under a served pool, from the view of clients and commands. The test truncates the
//! pool's file. The faults are the same as those of a poisoned range.

use std::fs::OpenOptions;

use everbyte_device::Fua;

use crate::Place;

const POOL_BYTES: u64 = 8 << 20;

/// Fills `disk` until the pool is full: its last page then holds data. Returns the blocks.
fn full(place: &Place) -> u64 {
    let mut client = place.client("disk");
    let mut blocks = 0;
    while client.write(blocks * 4096, &content(blocks), Fua::No).is_ok() {
        blocks += 1;
    }
    client.flush().unwrap();
    assert!(blocks > 1000, "{blocks}");
    blocks
}

fn content(block: u64) -> Vec<u8> {
    (0..4096_u64).map(|i| (i.wrapping_mul(block + 3) >> 3).to_le_bytes()[0] | 1).collect()
}

fn with_full_disk(command: &str) -> Place {
    let place = Place::empty();
    place.run(&format!("pool create POOL --size {POOL_BYTES}")).good();
    place.run(command).good();
    place
}

fn cut_last_page(place: &Place) {
    let file = OpenOptions::new().write(true).open(&place.pool).unwrap();
    file.set_len(POOL_BYTES - 4096).unwrap();
}

#[test]
fn poisoned_page_fails_one_request() {
    let place = with_full_disk("volume create POOL disk --size 16M");
    let server = place.serve("POOL", "");
    let blocks = full(&place);
    assert_eq!(place.run("pool scrub POOL --json").json()["clean"], true);
    cut_last_page(&place);
    let mut client = place.client("disk");
    let mut lost = Vec::new();
    for block in 0..blocks {
        match client.read(block * 4096, 4096) {
            Ok(bytes) => assert!(bytes == content(block), "block {block} reads wrong"),
            Err(error) => lost.push((block, error.to_string())),
        }
    }
    assert_eq!(lost.len(), 1, "{lost:?}");
    let (block, error) = &lost[0];
    assert!(error.contains("error 5") && error.contains("media error"), "{error}");
    // One request over everything fails as a whole, and the connection continues.
    let from = block.saturating_sub(200) * 4096;
    assert!(client.read(from, 1 << 20).is_err());
    let good = (block + 1) % blocks;
    assert!(client.read(good * 4096, 4096).unwrap() == content(good));
    client.write(0, &content(0), Fua::Yes).unwrap();

    let offset = block * 4096;
    let report = place.run("pool scrub POOL");
    assert_eq!(report.status, 1, "{report:?}");
    let line = format!(
        "problem: volume disk, data at byte {offset} (pool offset {:#x}): memory error",
        POOL_BYTES - 4096
    );
    assert_eq!(report.out.matches("problem: ").count(), 1, "{report:?}");
    assert!(report.out.contains(&line), "{report:?}");
    let check = place.run("pool check POOL");
    assert_eq!(check.status, 1);
    let named = format!("it holds the data at byte {offset} of volume disk");
    assert!(check.out.contains(&named), "{check:?}");
    client.trim(offset, 4096, Fua::Yes).unwrap();
    assert_eq!(client.read(offset, 4096).unwrap(), [0; 4096]);
    assert_eq!(place.run("pool scrub POOL --json").json()["clean"], true);
    server.stop();
}

#[test]
fn reopened_pool_has_no_poisoned_range() {
    for is_killed in [false, true] {
        let place = with_full_disk("volume create POOL disk --size 16M");
        let server = place.serve("POOL", "");
        let blocks = full(&place);
        cut_last_page(&place);
        let mut client = place.client("disk");
        let lost = (0..blocks).filter(|block| client.read(block * 4096, 4096).is_err()).count();
        assert_eq!(lost, 1);
        let file = OpenOptions::new().write(true).open(&place.pool).unwrap();
        file.set_len(POOL_BYTES).unwrap();
        // The memory is sound again, and the open pool does not try it again.
        assert_eq!(place.run("pool check POOL").status, 1);
        drop(client);
        if is_killed {
            server.kill()
        } else {
            server.stop()
        }

        let server = place.serve("POOL", "");
        assert_eq!(place.run("pool check POOL --json").json()["clean"], true);
        let mut client = place.client("disk");
        (0..blocks).for_each(|block| drop(client.read(block * 4096, 4096).unwrap()));
        drop(client);
        server.stop();
    }
}

#[test]
fn flips_are_found_by_a_scrub() {
    let place = with_full_disk("volume create POOL disk --size 2M --checksum crc32c");
    let server = place.serve("POOL", "");
    let mut client = place.client("disk");
    for block in 0..100 {
        client.write(block * 4096, &content(block), Fua::No).unwrap();
    }
    drop(client);
    server.stop();
    let list = place.run("volume list POOL --json").json();
    assert_eq!(list["volumes"][0]["checksum"], "crc32c");
    let clean = place.run("pool scrub POOL --json").json();
    assert_eq!(clean["verified_blocks"], 100);
    assert_eq!(clean["problems"].as_array().unwrap().len(), 0);

    let mut bytes = place.bytes();
    let flipped = [3, 50, 99];
    for block in flipped {
        let content = content(block);
        let at = (0..bytes.len()).step_by(4096).find(|&at| bytes[at..at + 4096] == content);
        bytes[at.unwrap() + 1234] ^= 0x10;
    }
    std::fs::write(&place.pool, &bytes).unwrap();
    for served in [false, true] {
        let server = served.then(|| place.serve("POOL", ""));
        let outcome = place.run("pool scrub POOL");
        assert_eq!(outcome.status, 1);
        let lines: Vec<&str> = outcome.out.lines().collect();
        assert_eq!(lines.len(), 4, "{lines:?}");
        for (block, line) in flipped.iter().zip(&lines) {
            let expected = format!("problem: volume disk, data at byte {} (pool", block * 4096);
            assert!(line.starts_with(&expected) && line.contains("checksum"), "{line}");
        }
        assert!(lines[3].starts_with("NOT CLEAN, damaged: 1 volumes, "), "{lines:?}");
        if let Some(server) = server {
            let mut client = place.client("disk");
            assert!(client.read(50 * 4096 + 9, 10).is_err());
            for block in flipped {
                client.write(block * 4096, &content(block), Fua::Yes).unwrap();
            }
            place.run("pool scrub POOL").good();
            server.stop();
        }
    }
}

//! Checksums of data: every flip is found, no reader gets other bytes than were stored, and a block written
//! as a whole is sound again.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use everbyte_block::{BlockOptions, BlockVolume, Checksum, Delta, kinds};
use everbyte_crash::SimMedium;
use everbyte_device::{BlockDevice, DeviceError, Fua, Hole, SendError};
use everbyte_media::{Medium, PoolOffset};
use everbyte_pool::format::Entry;
use everbyte_pool::{OpenOptions, Pool, ScrubFinding};

use crate::pattern;

const BLOCKS: u64 = 12;

fn options(delta: Delta, threshold_percent: u32) -> BlockOptions {
    let checksum = Checksum::Crc32c;
    BlockOptions {
        delta,
        checksum,
        threshold_percent,
        log_bytes: Some(2 * 16384),
        lanes: 1,
        checkpoint_lines: 0,
    }
}

fn plain() -> BlockOptions {
    options(Delta::On, 50)
}

fn open(medium: &Arc<SimMedium>) -> (Arc<Pool<SimMedium>>, BlockVolume<SimMedium>) {
    let options = OpenOptions { capacity_blocks: medium.len() / 4096 };
    let pool = Arc::new(Pool::open(Arc::clone(medium), kinds(), &options).unwrap());
    let volume = BlockVolume::open(&pool, "v").unwrap();
    (pool, volume)
}

fn content(block: u64) -> Vec<u8> {
    pattern(block + 1, 4096)
}

/// A pool of so many blocks with a full and flushed volume.
fn full_volume(pool_blocks: u64, options: &BlockOptions) -> Arc<SimMedium> {
    let medium = Arc::new(SimMedium::new(pool_blocks * 4096));
    Pool::format(&*medium, 4, [1; 16]).unwrap();
    let capacity = OpenOptions { capacity_blocks: pool_blocks };
    let pool = Arc::new(Pool::open(Arc::clone(&medium), kinds(), &capacity).unwrap());
    let volume = BlockVolume::create(&pool, "v", BLOCKS * 4096, options).unwrap();
    for block in 0..BLOCKS {
        volume.write(block * 4096, &content(block), Fua::No).unwrap();
    }
    volume.flush().unwrap();
    medium
}

fn flip(medium: &SimMedium, at: PoolOffset, bit: u32) {
    let mut byte = [0];
    medium.read(at, &mut byte);
    medium.store(at, &[byte[0] ^ 1 << bit]);
}

/// Returns the place of block `block`; the map has one level.
fn place_of(medium: &SimMedium, block: u64) -> PoolOffset {
    let entry = |at| Entry::decode(medium.load_word(PoolOffset(at))).unwrap().unwrap().block;
    entry(entry(2 * 4096 + 192).offset().0 + block * 8).offset()
}

fn read(volume: &BlockVolume<SimMedium>, block: u64) -> Result<Vec<u8>, DeviceError> {
    let mut bytes = vec![0; 4096];
    volume.read(block * 4096, &mut bytes).map(|()| bytes)
}

fn scrub(pool: &Pool<SimMedium>, volume: &BlockVolume<SimMedium>) -> Vec<ScrubFinding> {
    let mut findings = pool.scrub().findings;
    let (report, next) = volume.scrub(0).unwrap();
    assert_eq!(next, None);
    findings.extend(report.findings);
    findings
}

#[test]
fn checksum_detects_data_flips() {
    let image = full_volume(128, &plain()).image();
    for (round, block) in (0..BLOCKS).chain(0..BLOCKS).enumerate() {
        let medium = Arc::new(SimMedium::from_image(image.clone()));
        let (pool, volume) = open(&medium);
        let at = place_of(&medium, block).plus((round as u64 * 1111 + 7) % 4096);
        flip(&medium, at, (round % 8).try_into().unwrap());
        for other in 0..BLOCKS {
            let found = read(&volume, other);
            if other != block {
                assert!(found.unwrap() == content(other));
                continue;
            }
            let error = found.unwrap_err().to_string();
            assert!(error.contains("expected 0x") && error.contains("found 0x"), "{error}");
        }
        let found = scrub(&pool, &volume);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].offset, found[0].at), (Some(block * 4096), place_of(&medium, block)));
        assert!(pool.check().unwrap().is_clean(), "ownership is another matter");

        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let sent = everbyte_device::send(&volume, (block * 4096 + 100, 50), b"ok", ours.as_fd());
        assert!(matches!(sent, Err(SendError::Device(DeviceError::Media { .. }))));
        theirs.set_nonblocking(true).unwrap();
        let got = std::io::Read::read(&mut theirs, &mut [0; 9]);
        assert_eq!(got.unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "something left");
    }
}

#[test]
fn flip_in_checksum_metadata_is_detected() {
    let medium = full_volume(128, &plain());
    let (pool, volume) = open(&medium);
    let node = Entry::decode(medium.load_word(PoolOffset(2 * 4096 + 208))).unwrap().unwrap().block;
    let slot = node.offset().plus(place_of(&medium, 4).block().0 * 8);
    flip(&medium, slot.plus(2), 3);
    assert!(read(&volume, 4).unwrap_err().to_string().contains("checksum slot at 0x"));
    let found = scrub(&pool, &volume);
    assert!(found.len() == 1 && found[0].offset == Some(4 * 4096), "{found:?}");
    flip(&medium, slot.plus(2), 3);
    medium.store_word(slot, 0);
    assert!(read(&volume, 3).is_ok());
    assert!(read(&volume, 4).unwrap_err().to_string().contains("none is stored"));
}

#[test]
fn poisoned_checksums_stop_volume_lose_no_store() {
    let medium = full_volume(128, &plain());
    let (pool, volume) = open(&medium);
    let node = Entry::decode(medium.load_word(PoolOffset(2 * 4096 + 208))).unwrap().unwrap().block;
    medium.inject_poison(node.offset(), 4096);
    assert_eq!(scrub(&pool, &volume)[0].structure, "checksum node");
    for fua in [Fua::No, Fua::Yes] {
        assert!(volume.write(4096, &content(7), fua).is_err());
    }
    let reason = volume.volume().read_only_reason().unwrap();
    assert!(reason.contains("checksum slot") && reason.contains("memory error"), "{reason}");
    assert!(read(&volume, 1).is_err(), "nobody can tell what was stored");
    volume.flush().unwrap();
    medium.check().unwrap();
    let problems = pool.check().unwrap().problems;
    assert!(problems.iter().any(|p| p.starts_with("volume v is read-only")), "{problems:?}");
    assert!(problems.iter().any(|p| p.contains("it holds the checksums of volume v")));
    assert!(problems.iter().all(|p| !p.contains("leaked")), "{problems:?}");
}

#[test]
fn partial_write_keeps_checksum_error() {
    for delta in [Delta::On, Delta::Off] {
        for threshold in [0, 50, 101] {
            for fua in [Fua::No, Fua::Yes] {
                let medium = full_volume(128, &options(delta, threshold));
                let (pool, volume) = open(&medium);
                flip(&medium, place_of(&medium, 3).plus(9), 1);
                for (start, len) in [(0, 100), (4000, 96), (1, 4095)] {
                    let part = vec![7; len];
                    let written = volume.write(3 * 4096 + start, &part, fua);
                    assert!(matches!(written, Err(DeviceError::Media { .. })), "{written:?}");
                }
                assert!(read(&volume, 3).is_err());
                // The very bytes that were stored once, so that almost nothing seems to change.
                volume.write(3 * 4096, &content(3), fua).unwrap();
                assert!(read(&volume, 3).unwrap() == content(3));
                flip(&medium, place_of(&medium, 5).plus(9), 1);
                let mut now = content(5);
                now[9] ^= 2;
                volume.write(5 * 4096, &now, fua).unwrap();
                assert!(read(&volume, 5).unwrap() == now, "it seemed to be there already");
                volume.flush().unwrap();
                assert_eq!(scrub(&pool, &volume), []);
                assert!(pool.check().unwrap().is_clean());
            }
        }
    }
}

#[test]
fn checksums_follow_their_blocks() {
    for (delta, threshold) in [(Delta::On, 50), (Delta::Off, 101)] {
        let medium = full_volume(160, &options(delta, threshold));
        let (pool, volume) = open(&medium);
        let size = BLOCKS * 4096;
        for seed in 0..400_u64 {
            let at = seed * 7919 % size;
            let len = (seed * 331 % 9000).min(size - at);
            let fua = if seed % 5 == 0 { Fua::Yes } else { Fua::No };
            let bytes = pattern(seed, usize::try_from(len).unwrap());
            match seed % 8 {
                6 => volume.discard(at, len, fua).unwrap(),
                7 => volume.write_zeroes(at, len, Hole::Forbidden, false, fua).unwrap(),
                _ => volume.write(at, &bytes, fua).unwrap(),
            }
            if seed % 50 == 0 {
                volume.flush().unwrap();
                volume.read(0, &mut vec![0; usize::try_from(size).unwrap()]).unwrap();
            }
        }
        volume.resize(size / 2 + 512).unwrap();
        volume.resize(size).unwrap();
        volume.flush().unwrap();
        assert_eq!(scrub(&pool, &volume), []);
        assert!(pool.check().unwrap().is_clean());
        pool.delete_volume("v").unwrap();
        assert_eq!(pool.info().free_bytes, pool.info().data_bytes);
    }
}

#[test]
fn checksums_set_feature_bit() {
    let medium = full_volume(128, &plain());
    assert_eq!(medium.load_word(PoolOffset(24)), 1, "ro_compat");
    let (pool, volume) = open(&medium);
    assert_eq!(volume.checksum(), Checksum::Crc32c);
    let none = BlockOptions { checksum: Checksum::None, ..plain() };
    let other = BlockVolume::create(&pool, "w", 4096, &none).unwrap();
    assert_eq!(other.checksum(), Checksum::None);
}

/// A volume with a checksums' tree with a node just made by an open epoch, and a durable write below the
/// node. Returns true if that write can be read after a crash.
fn durable_write_below_a_fresh_node() -> bool {
    let medium = full_volume(1200, &plain());
    let (_pool, volume) = open(&medium);
    // The second node begins with block 512: use up the blocks before it.
    let mut seed = 1000;
    loop {
        seed += 1;
        volume.write(0, &pattern(seed, 4096), Fua::No).unwrap();
        if place_of(&medium, 0).block().0 >= 512 {
            break;
        }
        // The next write replaces the block again, by one further on.
        let guard = volume.volume().lock_checkpoint();
        volume.volume().begin_checkpoint(&guard).unwrap().finish().unwrap();
    }
    volume.write(4096, &pattern(1, 4096), Fua::Yes).unwrap();
    let beyond = place_of(&medium, 1).block().0 >= 512;
    assert!(beyond, "the durable write landed elsewhere");
    let (_pool, volume) = open(&Arc::new(SimMedium::from_image(medium.image())));
    read(&volume, 1).is_ok_and(|bytes| bytes == pattern(1, 4096))
}

#[test]
fn fua_write_avoids_fresh_checksum_node() {
    assert!(durable_write_below_a_fresh_node(), "the durable write is lost");
}

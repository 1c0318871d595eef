//! Media errors: one bad line is one error, no reader gets the zeroes of a poisoned range, and all survivable
//! errors are survived.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use everbyte_block::{BlockOptions, BlockVolume, Checksum, Delta, kinds};
use everbyte_crash::{Plan, SimMedium};
use everbyte_device::{BlockDevice, DeviceError, Fua, SendError};
use everbyte_media::{BlockNo, Mapped, MediaOptions, Medium, PoolOffset, create_file};
use everbyte_pool::format::{COMPLETED_A_AT, COMPLETED_B_AT, Entry};
use everbyte_pool::{OpenOptions, Pool, PoolError, ScrubFinding};

use crate::pattern;

const BLOCKS: u64 = 16;
const POOL_BLOCKS: u64 = 160;
/// Offset of the first volume's header in bytes.
const HEADER: u64 = 2 * 4096;

fn options(delta: Delta, threshold_percent: u32) -> BlockOptions {
    let checksum = Checksum::None;
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

fn open<M: Medium>(medium: &Arc<M>) -> Result<Arc<Pool<M>>, PoolError> {
    let options = OpenOptions { capacity_blocks: POOL_BLOCKS };
    Pool::open(Arc::clone(medium), kinds(), &options).map(Arc::new)
}

fn content(block: u64) -> Vec<u8> {
    pattern(block + 1, 4096)
}

fn fill<M: Medium>(volume: &BlockVolume<M>, blocks: std::ops::Range<u64>) {
    for block in blocks {
        volume.write(block * 4096, &content(block), Fua::No).unwrap();
    }
    volume.flush().unwrap();
}

/// A pool with the volumes `v` and `other`, both full and flushed.
fn two_volumes(options: &BlockOptions) -> Arc<SimMedium> {
    let medium = Arc::new(SimMedium::new(POOL_BLOCKS * 4096));
    Pool::format(&*medium, 4, [1; 16]).unwrap();
    let pool = open(&medium).unwrap();
    for name in ["v", "other"] {
        fill(&BlockVolume::create(&pool, name, BLOCKS * 4096, options).unwrap(), 0..BLOCKS);
    }
    medium
}

fn read<M: Medium>(volume: &BlockVolume<M>, block: u64) -> Result<Vec<u8>, DeviceError> {
    let mut bytes = vec![0; 4096];
    volume.read(block * 4096, &mut bytes).map(|()| bytes)
}

/// Returns the bytes received by a client of `send`; the device's error only if nothing was sent.
fn sent<M: Medium>(volume: &BlockVolume<M>, block: u64) -> Result<Vec<u8>, DeviceError> {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let done = everbyte_device::send(volume, (block * 4096, 4096), b"ok", ours.as_fd());
    drop(ours);
    let mut got = Vec::new();
    theirs.read_to_end(&mut got).unwrap();
    match done {
        Ok(()) => {
            assert_eq!(got[..2], *b"ok");
            Ok(got.split_off(2))
        }
        Err(SendError::Device(error)) => {
            assert!(got.is_empty(), "bytes left before the error");
            Err(error)
        }
        Err(other) => panic!("{other}"),
    }
}

/// Checks that exactly the blocks in `bad` cannot be read, and the others are right.
fn only_bad_are_lost<M: Medium>(volume: &BlockVolume<M>, bad: &[u64]) {
    for block in 0..volume.geometry().size_bytes / 4096 {
        for found in [read(volume, block), sent(volume, block)] {
            match found {
                Ok(bytes) => {
                    assert!(bytes == content(block), "block {block} reads wrong");
                    assert!(!bad.contains(&block), "block {block} reads");
                }
                Err(DeviceError::Media { reason, .. }) => {
                    assert!(bad.contains(&block), "block {block}: {reason}");
                    assert!(reason.contains("memory error at 0x"), "{reason}");
                }
                Err(error) => panic!("block {block}: {error}"),
            }
        }
    }
}

/// Returns the place of block `block` of the first volume; its map has one level.
fn place_of<M: Medium>(medium: &M, block: u64) -> PoolOffset {
    let entry = |at| Entry::decode(medium.load_word(PoolOffset(at))).unwrap().unwrap().block;
    entry(entry(HEADER + 192).offset().0 + block * 8).offset()
}

/// A part of a group does not count as a write, for any result of the roll-back.
#[test]
fn failed_group_roll_back_is_never_durable() {
    let medium = two_volumes(&options(Delta::Off, 50));
    let pool = open(&medium).unwrap();
    let volume = BlockVolume::open(&pool, "v").unwrap();
    volume.flush().unwrap();
    let group = volume.begin_group().unwrap();
    group.write(100, &[9; 50]).unwrap();
    // The last lines of both halves of the first lane, which have no records.
    let (start, half) = {
        let volume = volume.volume();
        (BlockNo(volume.descriptor().log_start).offset(), volume.log_half_bytes())
    };
    for end in [half, 2 * half] {
        medium.inject_poison(start.plus(end - 64), 64);
    }
    group.roll_back().unwrap_err();
    for _ in 0..2 {
        volume.flush().unwrap_err();
        volume.write(5, &[1], Fua::No).unwrap_err();
    }
    pool.close().unwrap_err();
    drop((volume, pool));
    let again = Arc::new(SimMedium::from_image(medium.image()));
    let pool = open(&again).unwrap();
    let volume = BlockVolume::open(&pool, "v").unwrap();
    assert_eq!(read(&volume, 0).unwrap(), content(0));
}

#[test]
fn poisoned_data_line_is_one_error() {
    for delta in [Delta::On, Delta::Off] {
        for threshold in [0, 50, 101] {
            one_bad_line(&options(delta, threshold));
        }
    }
}

fn one_bad_line(options: &BlockOptions) {
    let medium = two_volumes(options);
    let pool = open(&medium).unwrap();
    let volume = BlockVolume::open(&pool, "v").unwrap();
    let other = BlockVolume::open(&pool, "other").unwrap();
    let line = place_of(&*medium, 5).plus(7 * 64);
    medium.inject_poison(line, 1);
    only_bad_are_lost(&volume, &[5]);
    only_bad_are_lost(&other, &[]);
    let report = pool.check().unwrap();
    let expected =
        format!("poisoned range at {line}, 64 bytes: it holds the data at byte 20480 of");
    assert!(report.problems.len() == 1 && report.problems[0].starts_with(&expected), "{report:?}");

    // Requests in need of the bad bytes fail, alone of their batch; the others do not.
    let piece = |offset| everbyte_device::WriteRequest { offset, data: &[7; 100], fua: Fua::No };
    let outcomes = volume.write_batch(&[piece(4 * 4096), piece(5 * 4096 + 100), piece(6 * 4096)]);
    let failed: Vec<bool> = outcomes.iter().map(Result::is_err).collect();
    assert_eq!(failed, [false, true, false]);
    assert!(volume.write(5 * 4096 + 7 * 64, &[0; 64], Fua::Yes).is_err());
    for block in [4, 6] {
        volume.write(block * 4096, &content(block)[..100], Fua::Yes).unwrap();
    }
    volume.flush().unwrap();
    only_bad_are_lost(&volume, &[5]);
    // Zeroes are not the stored bytes, although they compare equal.
    for (round, fua) in [Fua::No, Fua::Yes].into_iter().enumerate() {
        let line = place_of(&*medium, 5).plus(7 * 64);
        medium.inject_poison(line, 1);
        assert!(read(&volume, 5).is_err());
        volume.write(5 * 4096, &[0; 4096], fua).unwrap();
        assert_eq!(read(&volume, 5).unwrap(), [0; 4096], "round {round}");
        volume.flush().unwrap();
    }
    volume.write(5 * 4096, &content(5), Fua::No).unwrap();
    volume.flush().unwrap();
    only_bad_are_lost(&volume, &[]);
    for block in 0..BLOCKS {
        volume.write(block * 4096, &pattern(900 + block, 4096), Fua::No).unwrap();
        other.write(block * 4096, &pattern(700 + block, 4096), Fua::No).unwrap();
    }
    volume.flush().unwrap();
    fill(&volume, 0..BLOCKS);
    fill(&other, 0..BLOCKS);
    // The replaced blocks were not allocated again.
    let report = pool.check().unwrap();
    assert_eq!(report.problems.len(), 2, "{report:?}");
    assert!(report.problems.iter().all(|p| p.contains("nothing that any map leads to")));
    drop((volume, other, pool));
    let again = open(&Arc::new(SimMedium::from_image(medium.image()))).unwrap();
    only_bad_are_lost(&BlockVolume::open(&again, "v").unwrap(), &[]);
}

#[test]
fn discarded_poisoned_block_is_withheld() {
    let medium = two_volumes(&plain());
    let pool = open(&medium).unwrap();
    let volume = BlockVolume::open(&pool, "v").unwrap();
    medium.inject_poison(place_of(&*medium, 3), 4096);
    assert!(read(&volume, 3).is_err());
    let free = pool.info().free_bytes;
    volume.discard(2 * 4096, 8192, Fua::Yes).unwrap();
    assert_eq!(read(&volume, 3).unwrap(), [0; 4096]);
    assert_eq!(pool.info().free_bytes, free + 4096);
    fill(&volume, 0..BLOCKS);
    only_bad_are_lost(&volume, &[]);
    pool.delete_volume("v").unwrap();
    let report = pool.check().unwrap();
    assert!(report.problems.iter().all(|p| p.starts_with("poisoned range")), "{report:?}");
    // It is free again where the memory is sound.
    let free = report.free_blocks;
    pool.close().unwrap();
    let pool = open(&Arc::new(SimMedium::from_image(medium.image()))).unwrap();
    assert!(pool.recovery().was_clean);
    let report = pool.check().unwrap();
    assert!(report.is_clean() && report.free_blocks == free, "{report:?}");
    assert_eq!(pool.allocator().free_blocks(), free);
}

/// A page may fail after it was filled, and before anything of its epoch is durable.
#[test]
fn poisoned_fresh_block_is_withheld() {
    for by_write in [true, false] {
        let medium = two_volumes(&options(Delta::Off, 50));
        let pool = open(&medium).unwrap();
        let volume = BlockVolume::open(&pool, "v").unwrap();
        volume.write(5 * 4096, &pattern(50, 4096), Fua::No).unwrap();
        medium.inject_poison(place_of(&*medium, 5), 1);
        assert!(read(&volume, 5).is_err());
        match by_write {
            true => volume.write(5 * 4096, &pattern(51, 4096), Fua::No).unwrap(),
            false => volume.discard(5 * 4096, 4096, Fua::No).unwrap(),
        }
        for block in 5..8 {
            volume.write(block * 4096, &content(block), Fua::No).unwrap();
        }
        volume.flush().unwrap();
        only_bad_are_lost(&volume, &[]);
        let report = pool.check().unwrap();
        let named = |p: &String| p.contains("nothing that any map leads to");
        assert!(report.problems.len() == 1 && report.problems.iter().all(named), "{report:?}");
    }
}

#[test]
fn poisoned_free_blocks_are_withheld() {
    let off = options(Delta::Off, 50);
    let medium = two_volumes(&off);
    let pool = open(&medium).unwrap();
    let volume = BlockVolume::open(&pool, "v").unwrap();
    volume.write(5 * 4096, &content(5), Fua::No).unwrap();
    // One that the lane took in advance, and two that it did not.
    let next = place_of(&*medium, 5).plus(4096);
    assert!(!pool.allocator().is_free(next.block()));
    let is_free = |&block: &u64| pool.allocator().is_free(BlockNo(block));
    let first = (0..POOL_BLOCKS).find(is_free).unwrap();
    for at in [next, BlockNo(first).offset(), BlockNo(first + 9).offset()] {
        lose(&medium, at);
    }
    volume.write(6 * 4096, &content(6), Fua::No).unwrap();
    let large = BlockVolume::create(&pool, "large", POOL_BLOCKS * 4096, &off).unwrap();
    let mut blocks = 0;
    while large.write(blocks * 4096, &content(blocks), Fua::No).is_ok() {
        blocks += 1;
    }
    medium.check().unwrap();
    for volume in [&volume, &large] {
        volume.flush().unwrap();
    }
    large.resize(blocks * 4096).unwrap();
    only_bad_are_lost(&volume, &[]);
    only_bad_are_lost(&large, &[]);
    let report = pool.check().unwrap();
    let named = |p: &String| p.contains("nothing that any map leads to");
    assert!(report.problems.len() == 3 && report.problems.iter().all(named), "{report:?}");
    pool.close().unwrap();
}

/// The image of a crashed pool with two epochs of records in the log of `v`.
fn crashed() -> Vec<u8> {
    let medium = two_volumes(&plain());
    let pool = open(&medium).unwrap();
    let volume = BlockVolume::open(&pool, "v").unwrap();
    volume.write(100, &[1; 100], Fua::No).unwrap();
    volume.write(4096, &[2; 4096], Fua::No).unwrap();
    let inner = Arc::clone(volume.volume());
    let guard = inner.lock_checkpoint();
    let pending = inner.begin_checkpoint(&guard).unwrap();
    volume.write(8192 + 100, &[3; 100], Fua::No).unwrap();
    drop(pending);
    medium.image()
}

/// Every line of metadata of `v`, and the superblocks.
fn metadata_lines(medium: &Arc<SimMedium>) -> Vec<u64> {
    let pool = open(&Arc::new(SimMedium::from_image(medium.image()))).unwrap();
    let descriptor = *pool.volume("v").unwrap().descriptor();
    let log = descriptor.log_start * 4096;
    let leaf = Entry::decode(medium.load_word(PoolOffset(HEADER + 192))).unwrap().unwrap().block;
    let mut lines: Vec<u64> = (0..3 * 4096).step_by(64).collect();
    lines.extend((log..log + descriptor.log_blocks() * 4096).step_by(64));
    lines.extend((leaf.offset().0..leaf.offset().0 + 4096).step_by(64));
    lines
}

#[test]
fn poisoned_metadata_is_never_trusted() {
    let image = crashed();
    let lines = metadata_lines(&Arc::new(SimMedium::from_image(image.clone())));
    let (mut writable, mut damaged) = (0, 0);
    for line in lines {
        for len in [1, 4096 - line % 4096] {
            let medium = Arc::new(SimMedium::from_image(image.clone()));
            medium.inject_poison(PoolOffset(line), len);
            let at = format!("{len} bytes at {line:#x}");
            let pool = open(&medium).unwrap_or_else(|error| panic!("{at}: {error}"));
            let other = BlockVolume::open(&pool, "other").unwrap();
            only_bad_are_lost(&other, &[]);
            let volume = BlockVolume::open(&pool, "v");
            let sound = volume.is_ok_and(|volume| survives(&volume));
            if line < HEADER && medium.has_poison() {
                assert!(pool.read_only_reason().unwrap().contains("superblock"), "{at}");
            } else {
                other.write(50, &content(0)[50..99], Fua::No).unwrap();
                other.write(4096, &content(1), Fua::Yes).unwrap();
                other.flush().unwrap_or_else(|error| panic!("{at}: {error}"));
                only_bad_are_lost(&other, &[]);
            }
            if medium.has_poison() {
                let report = pool.check().unwrap();
                let named = |p: &String| p.contains("0x") && p.contains("poisoned");
                assert!(report.problems.iter().any(named), "{at}: {report:?}");
            }
            *(if sound { &mut writable } else { &mut damaged }) += 1;
            medium.check().unwrap_or_else(|error| panic!("{at}: a store was lost: {error}"));
        }
    }
    assert!(writable > 20 && damaged > 100, "{writable} writable, {damaged} damaged");
}

/// Checks a volume with damage somewhere: writable and right, or read-only with a reason. Returns true if it
/// is writable.
fn survives(volume: &BlockVolume<SimMedium>) -> bool {
    if volume.volume().read_only_reason().is_none() {
        for block in 0..BLOCKS {
            match read(volume, block) {
                Ok(bytes) => assert!(bytes == content(block), "block {block} reads wrong"),
                Err(error) => assert!(error.to_string().contains("memory error"), "{error}"),
            }
        }
    }
    match volume.volume().read_only_reason() {
        Some(reason) => {
            assert!(reason.contains("memory error at 0x"), "{reason}");
            assert!(matches!(volume.write(0, &[1], Fua::No), Err(DeviceError::ReadOnly { .. })));
            false
        }
        None => {
            fill(volume, 0..BLOCKS);
            only_bad_are_lost(volume, &[]);
            true
        }
    }
}

/// Two epochs written and completed: a checkpoint record of 0 would undo both.
fn completed_twice() -> Vec<u8> {
    let medium = Arc::new(SimMedium::new(POOL_BLOCKS * 4096));
    Pool::format(&*medium, 4, [1; 16]).unwrap();
    let pool = open(&medium).unwrap();
    let volume = BlockVolume::create(&pool, "v", BLOCKS * 4096, &plain()).unwrap();
    volume.write(64, &[9; 64], Fua::No).unwrap();
    volume.flush().unwrap();
    fill(&volume, 0..BLOCKS);
    assert_eq!(volume.volume().completed_epoch(), 2);
    medium.image()
}

fn damage_mark(medium: &SimMedium, copy: u64, torn: bool) {
    let at = PoolOffset(HEADER + copy);
    if torn {
        let word = medium.load_word(at);
        medium.store_word(at, word & !3);
    } else {
        medium.inject_poison(at, 8);
    }
}

#[test]
fn one_checkpoint_record_copy_suffices() {
    let image = completed_twice();
    for copy in [COMPLETED_A_AT, COMPLETED_B_AT] {
        for torn in [true, false] {
            let medium = Arc::new(SimMedium::from_image(image.clone()));
            damage_mark(&medium, copy, torn);
            let pool = open(&medium).unwrap();
            let volume = BlockVolume::open(&pool, "v").unwrap();
            assert_eq!(volume.volume().read_only_reason(), None);
            only_bad_are_lost(&volume, &[]);
            volume.write(64, &[5; 64], Fua::No).unwrap();
            volume.flush().unwrap();
            fill(&volume, 0..BLOCKS);
            // The later completed contents survive a crash, with the copy as bad as before.
            let again = Arc::new(SimMedium::from_image(medium.image()));
            if !torn {
                damage_mark(&again, copy, torn);
            }
            let pool = open(&again).unwrap();
            only_bad_are_lost(&BlockVolume::open(&pool, "v").unwrap(), &[]);
        }
    }
}

#[test]
fn undo_leaves_bad_blocks_alone() {
    let image = crashed();
    let sound = Arc::new(SimMedium::from_image(image.clone()));
    for block in [0, 2] {
        let medium = Arc::new(SimMedium::from_image(image.clone()));
        medium.inject_poison(place_of(&*sound, block).plus(64), 64);
        let pool = open(&medium).unwrap();
        let volume = BlockVolume::open(&pool, "v").unwrap();
        only_bad_are_lost(&volume, &[block]);
        volume.write(block * 4096, &content(block), Fua::Yes).unwrap();
        only_bad_are_lost(&volume, &[]);
    }
}

#[test]
fn lost_store_fails_later_requests() {
    let medium = two_volumes(&plain());
    let pool = open(&medium).unwrap();
    let volume = BlockVolume::open(&pool, "v").unwrap();
    volume.write(100, &[1; 10], Fua::No).unwrap();
    medium.inject_poison(place_of(&*medium, 0).plus(64), 64);
    let error = volume.flush().unwrap_err().to_string();
    assert!(error.contains("a store at 0x") && error.contains("was lost"), "{error}");
    assert!(volume.write(8192, &[1; 10], Fua::No).is_err());
    assert!(volume.flush().is_err());
    assert_eq!(read(&volume, 9).unwrap(), content(9), "good data is read as before");
    assert!(read(&volume, 0).is_err());
}

/// Returns the place of the leaf of the first volume; its map has one level.
fn leaf_of<M: Medium>(medium: &M) -> PoolOffset {
    Entry::decode(medium.load_word(PoolOffset(HEADER + 192))).unwrap().unwrap().block.offset()
}

/// Makes a word bad, and known to be.
fn lose(medium: &SimMedium, at: PoolOffset) {
    medium.inject_poison(at, 8);
    medium.probe(at, 8);
}

#[test]
fn flush_after_damage_keeps_earlier_writes() {
    // The damage is met by a reader, or by a writer.
    for by_reader in [true, false] {
        let medium = two_volumes(&plain());
        let pool = open(&medium).unwrap();
        let volume = BlockVolume::open(&pool, "v").unwrap();
        volume.write(0, &pattern(77, 4096), Fua::No).unwrap();
        medium.inject_poison(leaf_of(&*medium).plus(8 * 8), 8);
        let met = match by_reader {
            true => read(&volume, 9).map(drop),
            false => volume.write(9 * 4096, &[1], Fua::No),
        };
        assert!(met.is_err() && volume.volume().read_only_reason().is_some());
        volume.flush().unwrap();
        // The image has the contents after a power cut, since all flushed data is durable.
        let again = Arc::new(SimMedium::from_image(medium.image()));
        let pool = open(&again).unwrap();
        assert_eq!(pool.recovery().records_undone, 0);
        let volume = BlockVolume::open(&pool, "v").unwrap();
        assert!(read(&volume, 0).unwrap() == pattern(77, 4096), "the write was undone");
    }
}

#[test]
fn timer_checkpoints_damaged_volume() {
    let medium = two_volumes(&plain());
    let pool = open(&medium).unwrap();
    let volume = BlockVolume::open(&pool, "v").unwrap();
    volume.write(0, &pattern(77, 4096), Fua::No).unwrap();
    medium.inject_poison(leaf_of(&*medium).plus(8 * 8), 8);
    assert!(read(&volume, 9).is_err());
    let epoch = volume.volume().current_epoch();
    let timer = pool.start_timer(Duration::from_millis(1)).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while volume.volume().completed_epoch() < epoch && Instant::now() < deadline {
        std::thread::yield_now();
    }
    drop(timer);
    assert_eq!(volume.volume().completed_epoch(), epoch, "the timer left it alone");
}

#[test]
fn flush_after_failed_checkpoint_fails() {
    let medium = two_volumes(&plain());
    let pool = open(&medium).unwrap();
    let volume = BlockVolume::open(&pool, "v").unwrap();
    volume.write(0, &pattern(77, 4096), Fua::No).unwrap();
    for copy in [COMPLETED_A_AT, COMPLETED_B_AT] {
        lose(&medium, PoolOffset(HEADER + copy));
    }
    let first = volume.flush().unwrap_err().to_string();
    assert!(first.contains("memory error at 0x"), "{first}");
    for round in 0..3 {
        let error = volume.flush().unwrap_err().to_string();
        assert!(error.contains("checkpoint"), "round {round}: {error}");
    }
    assert!(volume.write(4096, &[1; 4096], Fua::No).is_ok() && volume.flush().is_err());
}

#[test]
fn dropped_checkpoint_fails_later_flushes() {
    let medium = two_volumes(&plain());
    let pool = open(&medium).unwrap();
    let volume = BlockVolume::open(&pool, "v").unwrap();
    volume.write(0, &pattern(77, 4096), Fua::No).unwrap();
    let inner = Arc::clone(volume.volume());
    drop(inner.begin_checkpoint(&inner.lock_checkpoint()).unwrap());
    assert!(volume.flush().is_err());
    assert!(pool.close().is_err());
}

#[test]
fn close_flushes_sound_volumes_reports_others() {
    let medium = two_volumes(&plain());
    let pool = open(&medium).unwrap();
    let volumes = ["v", "other"].map(|name| BlockVolume::open(&pool, name).unwrap());
    for volume in &volumes {
        volume.write(0, &pattern(77, 4096), Fua::No).unwrap();
    }
    // Volumes are closed by name, so `other` comes first.
    for copy in [COMPLETED_A_AT, COMPLETED_B_AT] {
        lose(&medium, PoolOffset(HEADER + 4096 + copy));
    }
    for round in 0..3 {
        let error = pool.close().unwrap_err().to_string();
        assert!(error.contains("other") && error.contains("memory error"), "{round}: {error}");
    }
    let pool = open(&Arc::new(SimMedium::from_image(medium.image()))).unwrap();
    assert!(!pool.recovery().was_clean);
    let volume = BlockVolume::open(&pool, "v").unwrap();
    assert!(read(&volume, 0).unwrap() == pattern(77, 4096), "the write was undone");
}

#[test]
fn unreadable_size_word_is_not_changed() {
    let medium = two_volumes(&plain());
    let pool = open(&medium).unwrap();
    let volume = BlockVolume::open(&pool, "v").unwrap();
    medium.inject_poison(volume.volume().size_at(), 8);
    let error = volume.resize(BLOCKS / 2 * 4096).unwrap_err().to_string();
    assert!(error.contains("volume size at 0x") && error.contains("memory error"), "{error}");
    medium.check().unwrap();
    let left = medium.crash_state();
    for plan in [Plan::nothing(), Plan::everything()] {
        let pool = open(&Arc::new(left.boot(plan))).unwrap();
        let volume = BlockVolume::open(&pool, "v").unwrap();
        assert_eq!(volume.geometry().size_bytes, BLOCKS * 4096);
        only_bad_are_lost(&volume, &[]);
    }
}

/// All findings of a scrub of the pool and its volumes.
fn scrub<M: Medium>(pool: &Pool<M>, volumes: &[&BlockVolume<M>]) -> Vec<ScrubFinding> {
    let mut findings = pool.scrub().findings;
    for volume in volumes {
        let mut next = Some(0);
        while let Some(from) = next {
            let (report, then) = volume.scrub(from).unwrap();
            findings.extend(report.findings);
            next = then;
        }
    }
    findings
}

#[test]
fn scrub_finds_each_poisoned_line() {
    let image = two_volumes(&plain()).image();
    let sound = Arc::new(SimMedium::from_image(image.clone()));
    let data = place_of(&*sound, 5).0;
    let pool = open(&sound).unwrap();
    let volumes = ["v", "other"].map(|name| BlockVolume::open(&pool, name).unwrap());
    assert_eq!(scrub(&pool, &[&volumes[0], &volumes[1]]), []);
    let log = pool.volume("v").unwrap().descriptor().log_start * 4096;
    let leaf = Entry::decode(sound.load_word(PoolOffset(HEADER + 192))).unwrap().unwrap();
    let places = [
        ("superblock", 3 * 64, None),
        ("superblock", 4096, None),
        ("volume header", HEADER + 64, None),
        ("volume header", HEADER + 2 * 4096, None),
        ("log", log + 9000, None),
        ("map node", leaf.block.offset().0 + 63 * 64, Some(0)),
        ("data", data + 64, Some(5 * 4096)),
    ];
    for (structure, at, offset) in places {
        let medium = Arc::new(SimMedium::from_image(image.clone()));
        let pool = open(&medium).unwrap();
        let volumes = ["v", "other"].map(|name| BlockVolume::open(&pool, name).unwrap());
        medium.inject_poison(PoolOffset(at), 1);
        let found = scrub(&pool, &[&volumes[0], &volumes[1]]);
        assert_eq!(found.len(), 1, "{structure} at {at:#x}: {found:?}");
        assert_eq!((found[0].structure.as_str(), found[0].offset), (structure, offset));
        assert_eq!(found[0].at.block(), PoolOffset(at).block());
        assert!(found[0].what.contains(&format!("memory error at {}", PoolOffset(at / 64 * 64))));
    }
}

/// The same by real faults: pages beyond the end of a file.
#[test]
fn truncated_file_loses_truncated_range_only() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("pool");
    let file = create_file(&path, POOL_BLOCKS * 4096).unwrap();
    let medium = Arc::new(Mapped::open(&path, &MediaOptions::new()).unwrap());
    Pool::format(&*medium, 4, [1; 16]).unwrap();
    let pool = open(&medium).unwrap();
    let size = POOL_BLOCKS * 4096;
    let volume = BlockVolume::create(&pool, "v", size, &options(Delta::Off, 50));
    let volume = volume.unwrap();
    let mut blocks = 0;
    while volume.write(blocks * 4096, &content(blocks), Fua::No).is_ok() {
        blocks += 1;
    }
    volume.flush().unwrap();
    let last = PoolOffset(size - 4096);
    let lost = (0..blocks).find(|&block| place_of(&*medium, block) == last).unwrap();
    file.set_len(last.0).unwrap();
    volume.resize(blocks * 4096).unwrap();
    only_bad_are_lost(&volume, &[lost]);
    assert!(volume.write(lost * 4096 + 9, &[1], Fua::No).is_err());
    assert!(matches!(
        volume.write(lost * 4096, &content(lost), Fua::No),
        Err(DeviceError::NoSpace { .. })
    ));
    let other = (lost + 1) % blocks;
    volume.discard(other * 4096, 4096, Fua::Yes).unwrap();
    volume.write(lost * 4096, &content(lost), Fua::Yes).unwrap();
    assert_eq!(read(&volume, lost).unwrap(), content(lost));
    let report = pool.check().unwrap();
    assert_eq!(report.problems.len(), 1, "{report:?}");
    pool.close().unwrap();
}

#[test]
fn flush_succeeds_with_many_poisoned_pages() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("pool");
    let size = 1000 * 4096;
    let file = create_file(&path, size).unwrap();
    let medium = Arc::new(Mapped::open(&path, &MediaOptions::new()).unwrap());
    Pool::format(&*medium, 4, [1; 16]).unwrap();
    let open_options = OpenOptions { capacity_blocks: 1000 };
    let pool = Arc::new(Pool::open(Arc::clone(&medium), kinds(), &open_options).unwrap());
    let off = options(Delta::Off, 50);
    let volume = BlockVolume::create(&pool, "v", 500 * 4096, &off).unwrap();
    fill(&volume, 0..500);
    let kept = 400 * 4096;
    let lost: Vec<u64> = (0..500).filter(|&b| place_of(&*medium, b).0 >= kept).collect();
    assert!(lost.len() > 70, "{}", lost.len());
    file.set_len(kept).unwrap();
    volume.write(100, &[7; 100], Fua::No).unwrap();
    for block in 0..500 {
        match read(&volume, block) {
            Ok(bytes) => assert!(!lost.contains(&block) && (block == 0 || bytes == content(block))),
            Err(error) => {
                let error = error.to_string();
                assert!(lost.contains(&block) && error.contains("memory error at 0x"), "{error}");
                assert!(!error.contains("map entry"), "{error}");
            }
        }
    }
    assert_eq!(volume.volume().read_only_reason(), None);
    let epoch = volume.volume().current_epoch();
    volume.flush().unwrap();
    assert_eq!(volume.volume().completed_epoch(), epoch);
}

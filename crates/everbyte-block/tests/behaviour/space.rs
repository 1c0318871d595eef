//! Space: thin provisioning, a full pool, quarantine, ownership.

use everbyte_block::{BlockOptions, Checksum, Delta};
use everbyte_device::{AtomicWrites, BlockDevice, DeviceError, Fua, Hole, WriteRequest};

use crate::{new_pool, new_volume, pattern};

fn small() -> BlockOptions {
    BlockOptions {
        log_bytes: Some(64 << 10),
        lanes: 1,
        delta: Delta::Off,
        ..BlockOptions::default()
    }
}

fn assert_partition(pool: &everbyte_pool::Pool<everbyte_media::Mapped>) {
    let report = pool.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    let counts = report.remarks.iter().filter(|remark| remark.contains("counted as used"));
    assert_eq!(counts.count(), 0, "{:?}", report.remarks);
}

#[test]
fn full_pool_overwrites_mapped_blocks() {
    let pool = new_pool(200);
    let volume = new_volume(&pool, "v", 4 << 20, &small());
    let mut written = 0;
    let error = loop {
        match volume.write(written * 4096, &pattern(written, 4096), Fua::No) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, DeviceError::NoSpace { .. }), "{error}");
    assert!(written > 100, "{written} blocks fitted");
    for block in 0..written {
        volume.write(block * 4096, &pattern(block + 1000, 4096), Fua::No).unwrap();
        volume.write(block * 4096 + 100, &pattern(block, 50), Fua::Yes).unwrap();
    }
    let everything = pattern(7, usize::try_from(written).unwrap() * 4096);
    volume.write(0, &everything, Fua::No).unwrap();
    volume.flush().unwrap();
    let mut back = vec![0; everything.len()];
    volume.read(0, &mut back).unwrap();
    assert_eq!(back, everything);
    assert_partition(&pool);
    volume.discard(0, 40 * 4096, Fua::No).unwrap();
    volume.write(written * 4096, &pattern(9, 4096), Fua::No).unwrap();
    assert_partition(&pool);
}

#[test]
fn last_free_block_goes_to_hole() {
    let pool = new_pool(200);
    let volume = new_volume(&pool, "v", 4 << 20, &small());
    let mut end = 0;
    while volume.write(end, &pattern(end, 4096), Fua::No).is_ok() {
        end += 4096;
    }
    // One block is free, and each request goes over the last block that has data and the hole behind it.
    let free_one = |block: u64| {
        volume.discard(block * 4096, 4096, Fua::Yes).unwrap();
        assert_eq!(pool.allocator().free_blocks(), 1);
    };
    let read_back = |offset| {
        let mut back = vec![0; 8192];
        volume.read(offset, &mut back).unwrap();
        back
    };
    free_one(0);
    let bytes = pattern(9, 8192);
    volume.write(end - 4096, &bytes, Fua::No).unwrap();
    assert!(read_back(end - 4096) == bytes);
    let both = |offset| {
        let (first, second) = bytes.split_at(4096);
        let request = |offset, data| WriteRequest { offset, data, fua: Fua::No };
        [request(offset, first), request(offset + 4096, second)]
    };
    free_one(1);
    for outcome in volume.write_batch(&both(end)) {
        outcome.unwrap();
    }
    assert!(read_back(end) == bytes);
    free_one(2);
    volume.write_atomic(&both(end + 4096)).unwrap();
    assert!(read_back(end + 4096) == bytes);
    assert_partition(&pool);
    let beyond = volume.write(end + 8192, &bytes, Fua::No);
    assert!(matches!(beyond, Err(DeviceError::NoSpace { .. })), "{beyond:?}");
}

#[test]
fn full_pool_reclaims_preallocated_blocks() {
    let pool = new_pool(2000);
    let volume = new_volume(&pool, "v", 16 << 20, &BlockOptions { lanes: 2, ..small() });
    let other = new_volume(&pool, "w", 16 << 20, &small());
    // This thread's usual lane is taken, so the other one takes blocks.
    let usual = volume.volume().join().unwrap();
    volume.write(0, &pattern(1, 4096), Fua::No).unwrap();
    drop(usual);
    volume.flush().unwrap();
    let mut at = 0;
    while pool.allocator().free_blocks() > 0 {
        other.write(at, &pattern(2, 4096), Fua::No).unwrap();
        at += 4096;
    }
    volume.write(4096, &pattern(3, 4096), Fua::No).unwrap();
    assert_partition(&pool);
}

#[test]
fn full_pool_reclaims_from_idle_volumes() {
    let pool = new_pool(3000);
    let options = BlockOptions { lanes: 4, log_bytes: Some(256 << 10), ..small() };
    let idle = new_volume(&pool, "idle", 16 << 20, &options);
    // Each lane takes some.
    let mut writers: Vec<_> = (0..4).map(|_| idle.volume().join().unwrap()).collect();
    for writer in &mut writers {
        let block = writer.alloc().unwrap();
        writer.cancel_alloc(block);
    }
    drop(writers);
    assert!(pool.allocator().free_blocks() * 4096 < pool.info().free_bytes, "taken in advance");
    let other = new_volume(&pool, "other", 16 << 20, &small());
    let mut at = 0;
    while other.write(at, &pattern(2, 4096), Fua::No).is_ok() {
        at += 4096;
    }
    assert_eq!(pool.info().free_bytes, 0, "a write found no space");
    other.discard(0, 64 * 4096, Fua::Yes).unwrap();
    idle.write(0, &pattern(3, 4096), Fua::No).unwrap();
    assert_partition(&pool);
}

#[test]
fn group_on_two_lanes_rolls_back_whole() {
    let pool = new_pool(400);
    let volume = new_volume(&pool, "v", 1 << 20, &BlockOptions { lanes: 2, ..small() });
    volume.write(0, &pattern(1, 4096), Fua::No).unwrap();
    let group = volume.begin_group().unwrap();
    group.write(0, &pattern(2, 4096)).unwrap();
    let usual = volume.volume().join().unwrap();
    group.write(0, &pattern(3, 4096)).unwrap();
    drop(usual);
    group.roll_back().unwrap();
    // Both lanes use their remaining blocks, and more once it is free.
    for block in 1..200 {
        let usual = (block % 2 == 0).then(|| volume.volume().join().unwrap());
        volume.write(block * 4096, &pattern(block, 4096), Fua::No).unwrap();
        drop(usual);
        if block % 20 == 0 {
            volume.flush().unwrap();
        }
    }
    volume.flush().unwrap();
    assert_partition(&pool);
    for block in 0..200 {
        let mut back = vec![0; 4096];
        volume.read(block * 4096, &mut back).unwrap();
        assert!(back == pattern(block.max(1), 4096), "block {block}");
    }
}

#[test]
fn checkpoint_precedes_logging_of_whole_blocks() {
    let pool = new_pool(400);
    let volume = new_volume(&pool, "v", 1 << 20, &small());
    volume.write(0, &pattern(1, 1 << 20), Fua::No).unwrap();
    volume.flush().unwrap();
    let before = (volume.volume().log_bytes(), volume.volume().checkpoints());
    for round in 0..4 {
        for block in 0..256 {
            volume.write(block * 4096, &pattern(round * 256 + block, 4096), Fua::No).unwrap();
        }
    }
    let log_bytes = volume.volume().log_bytes() - before.0;
    assert!(log_bytes <= 4 * 256 * 64, "{log_bytes}: a pointer for each block, and no block");
    assert!(volume.volume().checkpoints() > before.1, "the pool has no room for four files");
    let mut back = vec![0; 4096];
    volume.read(77 * 4096, &mut back).unwrap();
    assert_eq!(back, pattern(3 * 256 + 77, 4096));
    assert_partition(&pool);
}

#[test]
fn write_without_space_changes_nothing() {
    let pool = new_pool(200);
    let volume = new_volume(&pool, "v", 4 << 20, &small());
    let error = volume.write(0, &pattern(1, 1 << 20), Fua::No).unwrap_err();
    assert!(matches!(error, DeviceError::NoSpace { .. }), "{error}");
    let extents = volume.status(0, 4 << 20, 10).unwrap();
    assert_eq!(extents.len(), 1);
    assert!(extents[0].hole);
    assert_partition(&pool);
    volume.write(0, &pattern(1, 100 * 4096), Fua::No).unwrap();
}

#[test]
fn zeroing_without_space_reports_partial() {
    const PART: u64 = 2 << 20;
    let pool = new_pool(900);
    let volume = new_volume(&pool, "v", 2 * PART, &small());
    volume.write(0, &pattern(1, usize::try_from(PART).unwrap()), Fua::No).unwrap();
    let zero = |offset, len| volume.write_zeroes(offset, len, Hole::Forbidden, false, Fua::No);
    let error = zero(PART, PART).unwrap_err();
    assert!(matches!(error, DeviceError::NoSpace { .. }), "{error}");
    let error = zero(0, 2 * PART).unwrap_err();
    assert!(matches!(error, DeviceError::Media { .. }), "{error}");
    assert!(error.to_string().contains("done in part: no space"), "{error}");
    let mut back = vec![1; 4096];
    volume.read(0, &mut back).unwrap();
    assert_eq!(back, [0; 4096]);
    assert_partition(&pool);
}

#[test]
fn reserved_zeroes_keep_their_space() {
    let pool = new_pool(200);
    let volume = new_volume(&pool, "v", 4 << 20, &small());
    volume.write_zeroes(0, 40 * 4096 + 9, Hole::Forbidden, false, Fua::No).unwrap();
    let extents = volume.status(0, 40 * 4096, 10).unwrap();
    assert!(extents.iter().all(|extent| extent.zero && !extent.hole));
    let mut at = 1 << 20;
    while volume.write(at, &pattern(at, 4096), Fua::No).is_ok() {
        at += 4096;
    }
    for block in 0..40 {
        volume.write(block * 4096 + 5, &pattern(block, 1000), Fua::No).unwrap();
        volume.write(block * 4096 + 5, &pattern(block + 1, 1000), Fua::No).unwrap();
    }
    let mut back = vec![1; 4096];
    volume.read(7 * 4096, &mut back).unwrap();
    assert_eq!(&back[5..1005], pattern(8, 1000));
    assert!(back[1005..].iter().chain(&back[..5]).all(|&byte| byte == 0));
    assert_partition(&pool);
}

#[test]
fn reserved_zeroes_have_checksum_slots() {
    let pool = new_pool(2600);
    let options = BlockOptions { checksum: Checksum::Crc32c, ..small() };
    let volume = new_volume(&pool, "v", 4 << 20, &options);
    volume.write_zeroes(0, 600 * 4096, Hole::Forbidden, false, Fua::No).unwrap();
    // This also returns the blocks preallocated by the volume.
    assert_partition(&pool);
    let other = new_volume(&pool, "other", 16 << 20, &small());
    let mut at = 0;
    while other.write(at, &pattern(at, 4096), Fua::No).is_ok() {
        at += 4096;
    }
    for block in 0..600 {
        volume.write(block * 4096 + 5, &pattern(block, 1000), Fua::No).unwrap();
    }
    volume.flush().unwrap();
    let mut back = vec![1; 4096];
    for block in 0..600 {
        volume.read(block * 4096, &mut back).unwrap();
        assert_eq!(&back[5..1005], pattern(block, 1000));
    }
    assert_partition(&pool);
}

#[test]
fn replaced_blocks_are_free_after_checkpoint() {
    let pool = new_pool(400);
    let volume = new_volume(&pool, "v", 4 << 20, &small());
    volume.write(0, &pattern(1, 64 * 4096), Fua::No).unwrap();
    volume.flush().unwrap();
    let before = pool.info().free_bytes;
    volume.write(0, &pattern(2, 64 * 4096), Fua::No).unwrap();
    assert_eq!(pool.info().free_bytes, before, "they are nobody's data any more");
    let held = pool.allocator().free_blocks();
    volume.flush().unwrap();
    assert!(pool.allocator().free_blocks() >= held + 64);
    assert_eq!(pool.info().free_bytes, before);
}

#[test]
fn trimmed_blocks_are_free_and_reusable() {
    let pool = new_pool(1500);
    let make = |name| new_volume(&pool, name, 4 << 20, &small());
    let [one, two] = ["one", "two"].map(make);
    one.write(0, &pattern(1, 4 << 20), Fua::No).unwrap();
    one.flush().unwrap();
    assert!(two.write(0, &pattern(2, 4 << 20), Fua::No).is_err(), "the pool is full");
    let before = pool.info().free_bytes;
    one.discard(0, 4 << 20, Fua::No).unwrap();
    assert!(pool.info().free_bytes >= before + (4 << 20));
    assert!(pool.volume_info(one.volume()).used_bytes.unwrap() < 1 << 20);
    two.write(0, &pattern(2, 4 << 20), Fua::No).unwrap();
    assert_partition(&pool);
}

#[test]
fn zero_and_rewrite_in_epoch_keeps_counts() {
    let pool = new_pool(2000);

    let volume = new_volume(&pool, "v", 8 << 20, &small());
    volume.write(0, &pattern(1, 3 << 20), Fua::No).unwrap();
    for round in 0..4 {
        volume.discard(0, 2 << 20, Fua::No).unwrap();
        volume.write(4096 * round, &pattern(round, 70_000), Fua::No).unwrap();
        volume.write_zeroes(0, 5 << 12, Hole::Forbidden, true, Fua::No).unwrap();
        volume.write(8192, &pattern(round + 9, 4096), Fua::No).unwrap();
        volume.discard(8192 + 17, 10_000, Fua::Yes).unwrap();
        assert_partition(&pool);
    }
}

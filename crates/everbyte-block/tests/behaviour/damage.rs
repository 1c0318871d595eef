//! Damaged pools: every answer names structure and address, nothing panics, good data stays readable.

use std::sync::Arc;

use everbyte_block::{BlockOptions, BlockVolume, Checksum, Delta, kinds};
use everbyte_device::{BlockDevice, DeviceError, Fua};
use everbyte_media::{BlockNo, Mapped, Medium, PoolOffset};
use everbyte_pool::format::{
    CHECKSUM_ROOT_AT, COMPLETED_A_AT, COMPLETED_B_AT, DESCRIPTOR_AT, Descriptor, Entry, EntryFlags,
    ROOT_AT, RecordHeader, SIZE_AT, SUPERBLOCK_COPIES, Superblock, USED_AT, encode_word,
};
use everbyte_pool::{OpenOptions, Pool, PoolError};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use crate::{new_pool, new_volume, pattern};

const OPTIONS: BlockOptions = BlockOptions {
    delta: Delta::On,
    checksum: Checksum::None,
    threshold_percent: 50,
    log_bytes: Some(64 << 10),
    lanes: 1,
    checkpoint_lines: 0,
};

fn open(medium: &Arc<Mapped>) -> Result<Arc<Pool<Mapped>>, PoolError> {
    let options = OpenOptions { capacity_blocks: 4096 };
    Pool::open(Arc::clone(medium), kinds(), &options).map(Arc::new)
}

/// A pool with a flushed block at 0 and, if asked, unflushed writes with records.
fn pool_with_data(unflushed: usize) -> Arc<Mapped> {
    let pool = new_pool(1024);
    let volume = new_volume(&pool, "v", 1 << 20, &OPTIONS);
    volume.write(0, &pattern(1, 64 << 10), Fua::No).unwrap();
    volume.flush().unwrap();
    for index in 0..unflushed {
        volume.write(index as u64 * 4096, &pattern(9, 64), Fua::No).unwrap();
    }
    Arc::clone(pool.medium())
}

fn flip(medium: &Mapped, at: u64) {
    let mut byte = [0];
    medium.read(PoolOffset(at), &mut byte);
    medium.store(PoolOffset(at), &[byte[0] ^ 0x40]);
}

#[test]
fn one_bad_superblock_is_repaired_two_are_fatal() {
    for (first, second) in [(true, false), (false, true)] {
        let medium = pool_with_data(0);
        if first {
            flip(&medium, 60);
        }
        if second {
            flip(&medium, 4096 + 60);
        }
        let pool = open(&medium).unwrap();
        assert_eq!(pool.recovery().remarks.len(), 1, "{:?}", pool.recovery());
        assert!(open(&medium).unwrap().recovery().remarks.is_empty(), "it was mended");
    }
    let medium = pool_with_data(0);
    flip(&medium, 60);
    flip(&medium, 4096 + 60);
    let error = open(&medium).err().unwrap().to_string();
    assert!(error.contains("superblock at 0x0") && error.contains("checksum"), "{error}");
}

#[test]
fn non_pool_is_named() {
    let medium =
        Arc::new(Mapped::anonymous(1 << 20, &everbyte_media::MediaOptions::new()).unwrap());
    let error = open(&medium).err().unwrap().to_string();
    assert!(error.contains("this is no pool"), "{error}");
}

#[test]
fn damaged_log_record_makes_volume_read_only() {
    let medium = pool_with_data(5);
    let sound = open(&copy(&medium)).unwrap();
    assert_eq!(sound.recovery().records_undone, 5);
    let log = log_start(&sound);
    // Epoch 2 is open; its records fill half 0 from the start: a header and a line each.
    flip(&medium, log + 2 * 128 + 70);
    let pool = open(&medium).unwrap();
    assert_eq!(pool.read_only_reason(), None);
    let volume = BlockVolume::open(&pool, "v").unwrap();
    let reason = volume.volume().read_only_reason().unwrap();
    assert!(reason.contains("log record 2 of lane 0, epoch 2"), "{reason}");
    let mut back = vec![0; 4096];
    volume.read(15 * 4096, &mut back).unwrap();
    assert_eq!(back, pattern(1, 64 << 10)[15 * 4096..]);
    assert!(matches!(volume.write(0, &[1], Fua::No), Err(DeviceError::ReadOnly { .. })));
    assert!(!pool.check().unwrap().is_clean());
}

#[test]
fn torn_last_record_is_not_damage() {
    let medium = pool_with_data(5);
    let log = log_start(&open(&copy(&medium)).unwrap());
    flip(&medium, log + 4 * 128 + 70);
    let pool = open(&medium).unwrap();
    assert_eq!(pool.recovery().records_undone, 4);
    assert_eq!(pool.read_only_reason(), None);
}

#[test]
fn damaged_entry_fails_its_block_only() {
    let medium = pool_with_data(0);
    let pool = open(&medium).unwrap();
    let volume = BlockVolume::open(&pool, "v").unwrap();
    let leaf = leaf_of(&medium);
    flip(&medium, leaf.offset().0 + 3 * 8 + 1);
    let mut back = vec![0; 4096];
    let error = volume.read(3 * 4096, &mut back).unwrap_err().to_string();
    assert!(error.contains("map entry at"), "{error}");
    volume.read(4 * 4096, &mut back).unwrap();
    let report = pool.check().unwrap();
    assert!(report.problems.iter().any(|p| p.contains("map entry at")), "{report:?}");
    drop((volume, pool));
    let pool = open(&medium).unwrap();
    let reason = pool.volume("v").unwrap().read_only_reason().unwrap().to_owned();
    assert!(reason.contains("map entry at"), "{reason}");
    assert!(pool.space_unknown().unwrap().contains(&reason));
}

#[test]
fn unreadable_header_is_reported_when_clean() {
    let medium = pool_with_data(0);
    let pool = open(&medium).unwrap();
    pool.close().unwrap();
    drop(pool);
    // The state of the third header, which no volume uses.
    flip(&medium, 4 * 4096);
    let pool = open(&medium).unwrap();
    assert_eq!(pool.space_unknown(), None, "what is free was saved");
    let problems = pool.check().unwrap().problems;
    assert!(problems[0].contains("volume state at 0x4000"), "{problems:?}");
}

#[test]
fn two_owners_of_a_block_are_found() {
    let medium = pool_with_data(0);
    let pool = open(&medium).unwrap();
    let leaf = leaf_of(&medium).offset();
    let entry = medium.load_word(leaf);
    medium.store_word(leaf.plus(100 * 8), entry);
    let report = pool.check().unwrap();
    assert!(report.problems[0].contains("belong to someone else already"), "{report:?}");
}

#[test]
fn leaked_block_is_found() {
    let medium = pool_with_data(0);
    let pool = open(&medium).unwrap();
    medium.store_word(leaf_of(&medium).offset(), 0);
    let report = pool.check().unwrap();
    assert_eq!(report.problems.len(), 1);
    assert!(report.problems[0].contains("it leaked"), "{report:?}");
}

#[test]
fn unfinished_deletions_are_finished() {
    let medium = pool_with_data(0);
    let header = PoolOffset(2 * 4096);
    medium.store_word(header, everbyte_pool::format::encode_word(2));
    let pool = open(&medium).unwrap();
    assert!(pool.volumes().is_empty());
    assert_eq!(pool.info().free_bytes, pool.info().data_bytes);
}

/// Blocks with a record. A flip may have made each record look torn, and so not undone.
const UNFLUSHED: u64 = 6;

/// Relevant bytes of a volume's header: its state, its words, both copies of its descriptor. A flip in one
/// copy of the checkpoint record is not reported, since the other one is as good.
const HEADER_USED: [std::ops::Range<u64>; 4] = [0..8, 192..216, 1024..1152, 2048..2176];

/// Opens a pool with a flipped byte, reads all of its volume, changes it and checks it. Returns true if anybody
/// noticed.
///
/// # Panics
/// A block reads as contents that it never held, or should not hold now.
fn notices_flip(medium: &Arc<Mapped>, at: u64) -> bool {
    let Ok(pool) = open(medium) else { return true };
    let mut is_noticed = !pool.recovery().remarks.is_empty() || pool.read_only_reason().is_some();
    let original = pattern(1, 64 << 10);
    match BlockVolume::open(&pool, "v") {
        Err(_) => is_noticed = true,
        Ok(volume) => {
            is_noticed |= volume.volume().read_only_reason().is_some();
            for block in 0..volume.geometry().size_bytes.min(1 << 20) / 4096 {
                let mut back = vec![0; 4096];
                if volume.read(block * 4096, &mut back).is_err() {
                    is_noticed = true;
                    continue;
                }
                let start = usize::try_from(block * 4096).unwrap();
                let mut held =
                    original.get(start..start + 4096).map_or(vec![0; 4096], <[u8]>::to_vec);
                let is_old = back == held;
                held[..64].copy_from_slice(&pattern(9, 64));
                let is_new = block < UNFLUSHED && back == held;
                assert!(is_old || is_new, "byte {at:#x} flipped: block {block} holds other bytes");
            }
            is_noticed |= volume.write(5, &[1, 2, 3], Fua::Yes).is_err();
            is_noticed |= volume.discard(0, 70_000, Fua::No).is_err();
            is_noticed |= volume.flush().is_err();
        }
    }
    is_noticed |= pool.check().map_or(true, |report| !report.is_clean());
    is_noticed |= pool.close().is_err();
    is_noticed
}

#[test]
fn metadata_flip_gives_no_wrong_bytes() {
    let original = pool_with_data(usize::try_from(UNFLUSHED).unwrap());
    let log = log_start(&open(&copy(&original)).unwrap());
    let leaf = leaf_of(&original).offset().0;
    let superblock = size_of::<Superblock>() as u64;
    let areas = [(0, superblock), (4096, superblock), (8192, 2300), (log, 1024), (leaf, 200)];
    for (start, len) in areas {
        let mut missed = Vec::new();
        for at in (start..start + len).step_by(3) {
            let medium = copy(&original);
            flip(&medium, at);
            if !notices_flip(&medium, at) {
                missed.push(at - start);
            }
        }
        // A flip that looks like the end of the log, and unused bytes.
        let may_be_missed = |at: u64| match start {
            0 | 4096 => false,
            8192 => !HEADER_USED.iter().any(|used| used.contains(&at)),
            start if start == log => at >= (UNFLUSHED - 1) * 128,
            _ => false,
        };
        missed.retain(|&at| !may_be_missed(at));
        assert!(missed.is_empty(), "of the area at {start:#x} flips of {missed:?} are missed");
    }
}

/// The header of the only volume.
const HEADER: PoolOffset = PoolOffset(2 * 4096);

/// A cleanly closed pool with a volume of 1 MiB.
fn closed_pool() -> Arc<Mapped> {
    let pool = new_pool(1024);
    let volume = new_volume(&pool, "v", 1 << 20, &OPTIONS);
    volume.write(0, &pattern(1, 64 << 10), Fua::No).unwrap();
    pool.close().unwrap();
    Arc::clone(pool.medium())
}

fn rewrite<T: FromBytes + IntoBytes + Immutable>(
    medium: &Mapped,
    at: PoolOffset,
    change: impl FnOnce(T) -> T,
) {
    let mut value = T::new_zeroed();
    medium.read(at, value.as_mut_bytes());
    medium.store(at, change(value).as_bytes());
}

#[test]
fn check_finds_unknown_translation() {
    let medium = closed_pool();
    for copy in DESCRIPTOR_AT {
        rewrite(&medium, HEADER.plus(copy), |descriptor: Descriptor| {
            Descriptor { delta: 7, ..descriptor }.sealed()
        });
    }
    let pool = open(&medium).unwrap();
    assert!(BlockVolume::open(&pool, "v").is_err());
    let report = pool.check().unwrap();
    assert!(report.problems[0].contains("unknown translation"), "{report:?}");
}

#[test]
fn impossible_log_is_an_error() {
    let crafted: [fn(Descriptor) -> Descriptor; 4] = [
        |descriptor| Descriptor { half_blocks: 1, ..descriptor },
        |descriptor| Descriptor { half_blocks: 3, ..descriptor },
        |descriptor| Descriptor { lanes: 1025, half_blocks: 4, log_start: 16, ..descriptor },
        |descriptor| Descriptor { half_blocks: (1 << 20) + 1, log_start: 16, ..descriptor },
    ];
    for (which, change) in crafted.into_iter().enumerate() {
        // Large enough for the logs that are claimed; untouched memory takes none.
        let medium =
            Mapped::anonymous(9 << 30, &everbyte_media::MediaOptions::new()).map(Arc::new).unwrap();
        Pool::format(&*medium, 8, [1; 16]).unwrap();
        let pool = open(&medium).unwrap();
        let volume = new_volume(&pool, "v", 1 << 20, &OPTIONS);
        volume.write(0, &pattern(1, 4096), Fua::No).unwrap();
        pool.close().unwrap();
        drop((volume, pool));
        for copy in DESCRIPTOR_AT {
            rewrite(&medium, HEADER.plus(copy), |descriptor| change(descriptor).sealed());
        }
        let pool = open(&medium).unwrap();
        let remarks = &pool.recovery().remarks;
        assert!(
            remarks.iter().any(|r| r.contains("volume descriptor at 0x")),
            "{which}: {remarks:?}"
        );
        assert!(BlockVolume::open(&pool, "v").is_err(), "{which}");
    }
}

/// A cleanly closed pool with a volume with its root and map changed by `craft`. `craft` gets the leaf.
fn closed_pool_crafted(
    options: &BlockOptions,
    craft: impl FnOnce(&Mapped, BlockNo),
) -> Arc<Mapped> {
    let pool = new_pool(1024);
    let volume = new_volume(&pool, "v", 1 << 20, options);
    volume.write(0, &pattern(1, 64 << 10), Fua::No).unwrap();
    drop(volume);
    pool.close().unwrap();
    let medium = Arc::clone(pool.medium());
    let leaf = leaf_of(&medium);
    craft(&medium, leaf);
    medium
}

fn root(block: BlockNo, height: u8) -> u64 {
    Entry { block, flags: EntryFlags { height, ..EntryFlags::default() } }.encode()
}

/// Makes every entry of `node` name `child`.
fn fill_node(medium: &Mapped, node: BlockNo, child: BlockNo) {
    for index in 0..512 {
        medium.store_word(node.offset().plus(index * 8), Entry::data(child).encode());
    }
}

#[test]
fn cyclic_map_is_an_error_in_bounded_time() {
    for root_offset in [ROOT_AT, CHECKSUM_ROOT_AT] {
        let options = BlockOptions { checksum: Checksum::Crc32c, ..OPTIONS };
        let medium = closed_pool_crafted(&options, |medium, leaf| {
            fill_node(medium, leaf, leaf);
            medium.store_word(HEADER.plus(root_offset), root(leaf, 5));
            // The used blocks must then be counted by a walk.
            medium.store_word(HEADER.plus(USED_AT), 0);
        });
        let pool = open(&medium).unwrap();
        let volume = pool.volume("v").unwrap();
        assert_eq!(pool.volume_info(&volume).used_bytes, None);
        let expected = "map of volume v at 0x";
        let error = pool.delete_volume("v").unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        let problems = open(&copy(&medium)).unwrap().check().unwrap().problems;
        assert!(problems.iter().any(|p| p.contains("belong to someone else")), "{problems:?}");
        let volume = BlockVolume::open(&open(&copy(&medium)).unwrap(), "v");
        let report = volume.unwrap().scrub(0).unwrap().0;
        let is_named = report.findings.iter().any(|finding| finding.structure == "map node");
        assert_eq!(is_named, root_offset == CHECKSUM_ROOT_AT, "{report:?}");
    }
}

#[test]
fn cyclic_leafless_map_is_an_error_in_time() {
    // Five levels, each node of which names one node over and over; the last one is empty.
    let medium = closed_pool_crafted(&OPTIONS, |medium, leaf| {
        let nodes = [leaf.0, 1000, 1001, 1002].map(BlockNo);
        for pair in nodes.windows(2) {
            fill_node(medium, pair[0], pair[1]);
        }
        medium.store(nodes[3].offset(), &[0; 4096]);
        medium.store_word(HEADER.plus(ROOT_AT), root(leaf, 5));
        medium.store_word(HEADER.plus(SIZE_AT), encode_word(1));
    });
    let pool = open(&medium).unwrap();
    let volume = BlockVolume::open(&pool, "v").unwrap();
    let reason = volume.volume().read_only_reason().unwrap();
    assert!(reason.contains("map node at 0x"), "{reason}");
}

#[test]
fn impossible_tree_height_is_an_error() {
    for height in [0, 6, 7] {
        let medium = closed_pool_crafted(&OPTIONS, |medium, leaf| {
            medium.store_word(HEADER.plus(ROOT_AT), root(leaf, height));
        });
        let pool = open(&medium).unwrap();
        let volume = BlockVolume::open(&pool, "v").unwrap();
        let reason = volume.volume().read_only_reason().map(str::to_owned);
        assert!(reason.unwrap().contains("volume root at 0x"), "{height}");
        assert!(volume.read(0, &mut [0; 10]).is_err());
        assert!(volume.status(0, 1 << 20, 9).is_err());
    }
}

#[test]
fn later_header_proves_lost_record_in_one_pass() {
    let medium = pool_with_data(0);
    let pool = open(&medium).unwrap();
    let descriptor = *pool.volume("v").unwrap().descriptor();
    let epoch = pool.volume("v").unwrap().current_epoch();
    drop(pool);
    // Each line of the half pretends to begin a record of all that follows.
    let half_bytes = u64::from(descriptor.half_blocks) * 4096;
    let half = PoolOffset(descriptor.log_start * 4096 + epoch % 2 * half_bytes);
    for line in 1..half_bytes / 64 {
        let header = RecordHeader {
            log_key: descriptor.log_key,
            epoch,
            payload_crc: 1,
            seq: 2,
            commit_start: 2,
            position: u32::try_from(line).unwrap(),
            kind: 1,
            count: u32::try_from((half_bytes / 64 - 1 - line) * 4 + 1).unwrap(),
            ..RecordHeader::new_zeroed()
        };
        medium.store(half.plus(line * 64), header.sealed().as_bytes());
    }
    let reason = open(&medium).unwrap().volume("v").unwrap().read_only_reason().unwrap().to_owned();
    assert!(reason.contains("log record 0 of lane 0"), "{reason}");
}

#[test]
fn overflowing_counters_are_errors() {
    let medium = closed_pool();
    for at in [COMPLETED_A_AT, COMPLETED_B_AT] {
        medium.store_word(HEADER.plus(at), encode_word((1 << 48) - 2));
    }
    let pool = open(&medium).unwrap();
    let volume = pool.volume("v").unwrap();
    assert!(volume.read_only_reason().unwrap().contains("checkpoint record"), "{:?}", pool.info());
    let changes: [fn(Superblock) -> Superblock; 2] = [
        |superblock| Superblock { generation: u64::MAX, ..superblock }.sealed(),
        |superblock| Superblock { next_volume_uid: u64::MAX, ..superblock }.sealed(),
    ];
    for change in changes {
        let medium = closed_pool();
        for copy in SUPERBLOCK_COPIES {
            rewrite(&medium, copy, change);
        }
        let error = open(&medium).err().unwrap().to_string();
        assert!(error.contains("its counters"), "{error}");
    }
}

#[test]
fn wrong_saved_free_map_is_found_harmlessly() {
    let medium = closed_pool();
    let mut superblock = Superblock::new_zeroed();
    medium.read(SUPERBLOCK_COPIES[0], superblock.as_mut_bytes());
    let saved_at = BlockNo(superblock.saved_start).offset();
    let mut saved = vec![0; usize::try_from(superblock.saved_bytes).unwrap()];
    medium.read(saved_at, &mut saved);
    // Blocks that are in use are called free, with a checksum that is right.
    let data_start = usize::try_from(superblock.data_start).unwrap();
    saved[data_start.div_ceil(8)..].fill(0xFF);
    medium.store(saved_at, &saved);
    superblock.saved_crc = crc32c::crc32c(&saved);
    for copy in SUPERBLOCK_COPIES {
        medium.store(copy, superblock.sealed().as_bytes());
    }
    let pool = open(&medium).unwrap();
    let report = pool.check().unwrap();
    assert!(report.problems[0].contains("yet is free for others"), "{report:?}");
    // A block that is replaced is freed although it was free.
    let volume = BlockVolume::open(&pool, "v").unwrap();
    volume.write(0, &pattern(2, 4096), Fua::Yes).unwrap();
    volume.flush().unwrap();
}

fn copy(medium: &Arc<Mapped>) -> Arc<Mapped> {
    let mut bytes = vec![0; usize::try_from(medium.len()).unwrap()];
    medium.read(PoolOffset(0), &mut bytes);
    let copy = Mapped::anonymous(medium.len(), &everbyte_media::MediaOptions::new()).unwrap();
    copy.store(PoolOffset(0), &bytes);
    Arc::new(copy)
}

fn log_start(pool: &Pool<Mapped>) -> u64 {
    pool.volume("v").unwrap().descriptor().log_start * 4096
}

/// The only leaf of the only volume: its root's block, since the tree has one level.
fn leaf_of(medium: &Mapped) -> BlockNo {
    let root = medium.load_word(PoolOffset(2 * 4096 + 192));
    everbyte_pool::format::Entry::decode(root).unwrap().unwrap().block
}

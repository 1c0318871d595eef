//! Crafted maps: whole words with blocks outside the volume.

use std::sync::Arc;

use everbyte_block::{BlockOptions, BlockVolume, Checksum, Delta, kinds};
use everbyte_device::{BlockDevice, DeviceError, Fua, Hole};
use everbyte_media::{BLOCK, BLOCK_U64, BlockNo, Mapped, MediaOptions, Medium, PoolOffset};
use everbyte_pool::format::{CHECKSUM_ROOT_AT, Entry, EntryFlags, ROOT_AT};
use everbyte_pool::{OpenOptions, Pool};

use crate::{new_pool, new_volume, pattern};

/// Blocks of the pool. The medium has more, not in use yet.
const POOL_BLOCKS: u64 = 1024;
const MEDIUM_BLOCKS: u64 = 1100;
/// The header of the first volume, after both superblocks.
const HEADER: BlockNo = BlockNo(2);
/// Blocks that no map may name: the second superblock, the own header, another volume's, a free one, and both
/// ends of the range not yet used by the pool.
const FORBIDDEN: [BlockNo; 6] =
    [BlockNo(1), HEADER, BlockNo(3), BlockNo(9), BlockNo(POOL_BLOCKS), BlockNo(MEDIUM_BLOCKS - 1)];
/// The block of the volume with the crafted entry.
const CRAFTED: u64 = 3;
/// Two levels of a tree.
const SIZE: u64 = 4 << 20;

fn options(delta: Delta, checksum: Checksum) -> BlockOptions {
    BlockOptions { delta, checksum, log_bytes: Some(64 << 10), lanes: 1, ..BlockOptions::default() }
}

fn open(medium: &Arc<Mapped>) -> Arc<Pool<Mapped>> {
    let options = OpenOptions { capacity_blocks: 4096 };
    Arc::new(Pool::open(Arc::clone(medium), kinds(), &options).unwrap())
}

fn image_of(medium: &Mapped) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(medium.len()).unwrap()];
    medium.read(PoolOffset(0), &mut bytes);
    bytes
}

/// A medium with `image` at its start.
fn longer(image: &[u8]) -> Arc<Mapped> {
    let medium = Mapped::anonymous(MEDIUM_BLOCKS * BLOCK_U64, &MediaOptions::new()).unwrap();
    medium.store(PoolOffset(0), image);
    Arc::new(medium)
}

/// A cleanly closed pool with a volume with data in its first blocks.
fn closed_pool(options: &BlockOptions) -> Vec<u8> {
    let pool = new_pool(POOL_BLOCKS);
    let volume = new_volume(&pool, "v", SIZE, options);
    volume.write(0, &pattern(1, 16 * BLOCK), Fua::No).unwrap();
    volume.flush().unwrap();
    drop(volume);
    pool.close().unwrap();
    image_of(pool.medium())
}

fn named_at(medium: &Mapped, at: PoolOffset) -> BlockNo {
    Entry::decode(medium.load_word(at)).unwrap().unwrap().block
}

/// The word with the leaf of the first entries of the volume at `header`.
fn leaf_link(medium: &Mapped, header: BlockNo) -> PoolOffset {
    named_at(medium, header.offset().plus(ROOT_AT)).offset()
}

fn entry_at(medium: &Mapped, header: BlockNo, block: u64) -> PoolOffset {
    named_at(medium, leaf_link(medium, header)).offset().plus(block * 8)
}

type Request = fn(&BlockVolume<Mapped>) -> Result<(), DeviceError>;

const AT: u64 = CRAFTED * BLOCK_U64;
/// All requests that read the crafted entry.
const REQUESTS: [(&str, Request); 12] = [
    ("read", |v| v.read(AT + 100, &mut [0; 10])),
    ("read of more", |v| v.read(0, &mut [0; 8 * BLOCK])),
    ("write of a part", |v| v.write(AT + 100, &[7; 10], Fua::No)),
    ("write of all", |v| v.write(AT, &pattern(9, BLOCK), Fua::No)),
    ("write of several", |v| v.write(AT - 9, &pattern(9, 3 * BLOCK), Fua::No)),
    ("durable write of a part", |v| v.write(AT + 100, &[7; 10], Fua::Yes)),
    ("durable write of all", |v| v.write(AT, &pattern(9, BLOCK), Fua::Yes)),
    ("trim of all", |v| v.discard(AT, BLOCK_U64, Fua::No)),
    ("trim of a part", |v| v.discard(AT + 9, 100, Fua::No)),
    ("trim of a leaf", |v| v.discard(0, 2 << 20, Fua::No)),
    ("zeroes", |v| v.write_zeroes(AT, BLOCK_U64, Hole::Forbidden, false, Fua::No)),
    ("status", |v| v.status(0, 8 * BLOCK_U64, 9).map(drop)),
];

/// Demands that each request fails because of the word at `at`, and that nothing is stored to `block`.
fn all_are_refused(image: &[u8], craft: impl Fn(&Mapped) -> PoolOffset, block: BlockNo) {
    for (name, request) in REQUESTS {
        let medium = longer(image);
        let at = craft(&medium);
        let pool = open(&medium);
        let volume = BlockVolume::open(&pool, "v").unwrap();
        let mut before = [0; BLOCK];
        medium.read(block.offset(), &mut before);
        let error = request(&volume).expect_err(name).to_string();
        let named = format!("map entry at {at} is corrupt: {block} is outside the pool's data");
        assert!(error.contains(&named), "{name} of what names {block}: {error}");
        let mut after = [0; BLOCK];
        medium.read(block.offset(), &mut after);
        assert!(before == after, "{name} of what names {block} has stored there");
        let reason = volume.volume().read_only_reason().unwrap();
        assert!(reason.contains(&named), "{name}: {reason}");
        let findings = volume.scrub(0).unwrap().0.findings;
        assert!(findings.iter().any(|found| found.at == at), "{name}: {findings:?}");
        let problems = pool.check().unwrap().problems;
        assert!(problems.iter().any(|p| p.contains(&named)), "{name}: {problems:?}");
    }
}

#[test]
fn crafted_entry_fails_requests_without_store() {
    for (delta, checksum) in [(Delta::On, Checksum::None), (Delta::Off, Checksum::Crc32c)] {
        let image = closed_pool(&options(delta, checksum));
        for block in FORBIDDEN {
            for entry in [Entry::data(block), Entry::zero(block)] {
                let craft = |medium: &Mapped| {
                    let at = entry_at(medium, HEADER, CRAFTED);
                    medium.store_word(at, entry.encode());
                    at
                };
                all_are_refused(&image, craft, block);
            }
        }
    }
}

#[test]
fn crafted_node_is_never_walked() {
    let image = closed_pool(&options(Delta::On, Checksum::None));
    for block in FORBIDDEN {
        let craft = |medium: &Mapped| {
            let at = leaf_link(medium, HEADER);
            medium.store_word(at, Entry::data(block).encode());
            at
        };
        all_are_refused(&image, craft, block);
    }
}

#[test]
fn crafted_root_makes_volume_read_only() {
    let image = closed_pool(&options(Delta::On, Checksum::None));
    for block in FORBIDDEN {
        let medium = longer(&image);
        let at = HEADER.offset().plus(ROOT_AT);
        let flags = EntryFlags { height: 2, ..EntryFlags::default() };
        medium.store_word(at, Entry { block, flags }.encode());
        let pool = open(&medium);
        let said = match BlockVolume::open(&pool, "v") {
            Ok(volume) => {
                assert!(volume.read(0, &mut [0; 10]).is_err());
                volume.volume().read_only_reason().unwrap().to_owned()
            }
            Err(error) => error.to_string(),
        };
        let named = format!("map entry at {at} is corrupt: {block} is outside the pool's data");
        assert!(said.contains(&named), "{said}");
    }
}

/// A volume with this height set in its root word while it is open, and the word's address.
fn volume_with_height(image: &[u8], height: u8) -> (BlockVolume<Mapped>, PoolOffset) {
    let medium = longer(image);
    let volume = BlockVolume::open(&open(&medium), "v").unwrap();
    let at = HEADER.offset().plus(ROOT_AT);
    let flags = EntryFlags { height, ..EntryFlags::default() };
    medium.store_word(at, Entry { block: named_at(&medium, at), flags }.encode());
    (volume, at)
}

#[test]
fn trim_below_impossible_height_is_an_error() {
    let image = closed_pool(&options(Delta::On, Checksum::None));
    for height in [0, 6, 7] {
        let (volume, at) = volume_with_height(&image, height);
        let root = volume.pool().medium().load_word(at);
        let error = volume.discard(0, 2 << 20, Fua::No).unwrap_err().to_string();
        let named = format!("volume root at {at} is corrupt: {height} levels cannot be");
        assert!(error.contains(&named), "{error}");
        assert_eq!(volume.pool().medium().load_word(at), root);
        assert!(volume.volume().read_only_reason().unwrap().contains(&named));
    }
}

#[test]
fn crafted_checksum_node_is_not_used() {
    let image = closed_pool(&options(Delta::On, Checksum::Crc32c));
    for block in FORBIDDEN {
        for fua in [Fua::No, Fua::Yes] {
            let medium = longer(&image);
            let root_at = HEADER.offset().plus(CHECKSUM_ROOT_AT);
            let top = named_at(&medium, root_at).offset();
            medium.store_word(top, Entry::data(block).encode());
            let before = image_of(&medium);
            let pool = open(&medium);
            let volume = BlockVolume::open(&pool, "v").unwrap();
            let read = volume.read(0, &mut [0; 10]).unwrap_err().to_string();
            let named =
                format!("map entry at {top} is corrupt: {block} is outside the pool's data");
            assert!(read.contains(&named), "{read}");
            drop((volume, pool));
            let volume = BlockVolume::open(&open(&medium), "v").unwrap();
            assert!(volume.write(0, &pattern(2, BLOCK), fua).is_err());
            let here = usize::try_from(block.offset().0).unwrap();
            let after = &image_of(&medium)[here + 512..here + BLOCK];
            assert!(before[here + 512..here + BLOCK] == *after, "{block}");
        }
    }
}

/// A pool with two volumes. An entry of the second one names a block of the first one's data, or of its log.
/// Also that block and the entry's address.
fn pool_with_a_shared_block(of_the_log: bool) -> (Arc<Pool<Mapped>>, BlockNo, PoolOffset) {
    let pool = new_pool(POOL_BLOCKS);
    for (name, seed) in [("first", 1), ("second", 2)] {
        let settings = options(Delta::On, Checksum::None);
        let volume = new_volume(&pool, name, SIZE, &settings);
        volume.write(0, &pattern(seed, 16 * BLOCK), Fua::No).unwrap();
        volume.flush().unwrap();
    }
    let medium = pool.medium();
    let shared = match of_the_log {
        true => BlockNo(pool.volume("first").unwrap().descriptor().log_start + 2),
        false => named_at(medium, entry_at(medium, HEADER, 5)),
    };
    let at = entry_at(medium, BlockNo(HEADER.0 + 1), 100);
    medium.store_word(at, Entry::data(shared).encode());
    (pool, shared, at)
}

#[test]
fn check_names_both_owners_of_block() {
    for (of_the_log, holds) in [(false, "the data at byte 20480"), (true, "the log")] {
        let (pool, shared, at) = pool_with_a_shared_block(of_the_log);
        let problems = pool.check().unwrap().problems;
        let owner =
            format!("map of volume second at {at} is corrupt: 1 blocks from {shared} on belong to");
        let first = format!("{holds} of volume first");
        assert!(problems[0].contains(&owner), "{problems:?}");
        assert!(problems[0].contains(&first), "{problems:?}");
    }
}

#[test]
fn shared_block_makes_killed_pool_read_only() {
    for of_the_log in [false, true] {
        let (pool, _, at) = pool_with_a_shared_block(of_the_log);
        let pool = open(pool.medium());
        assert!(!pool.recovery().was_clean);
        let reason = pool.read_only_reason().unwrap();
        assert!(reason.contains(&format!("map of volume second at {at}")), "{reason}");
        assert!(reason.contains("of volume first"), "{reason}");
        let volume = BlockVolume::open(&pool, "second").unwrap();
        let written = volume.write(0, &[1], Fua::No);
        assert!(matches!(written, Err(DeviceError::ReadOnly { .. })), "{written:?}");
    }
}

#[test]
fn check_names_both_places_of_block() {
    let (pool, _, _) = pool_with_a_shared_block(false);
    let medium = pool.medium();
    let named = medium.load_word(entry_at(medium, HEADER, 7));
    medium.store_word(entry_at(medium, HEADER, 200), named);
    let problems = pool.check().unwrap().problems;
    assert!(problems[0].contains("the data at byte 28672 of volume first"), "{problems:?}");
}

#[test]
fn open_volumes_use_grown_space() {
    let medium = longer(&closed_pool(&options(Delta::Off, Checksum::None)));
    let pool = open(&medium);
    let volume = BlockVolume::open(&pool, "v").unwrap();
    let mut block = 16;
    while volume.write(block * BLOCK_U64, &pattern(block, BLOCK), Fua::No).is_ok() {
        block += 1;
    }
    pool.extend().unwrap();
    for gained in block..block + 20 {
        let data = pattern(gained, BLOCK);
        volume.write(gained * BLOCK_U64, &data, Fua::No).unwrap();
        let mut back = vec![0; BLOCK];
        volume.read(gained * BLOCK_U64, &mut back).unwrap();
        assert!(back == data);
    }
    volume.flush().unwrap();
    assert!(pool.check().unwrap().is_clean());
}

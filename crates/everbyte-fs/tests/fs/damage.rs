//! Damaged structures: an error names them, without a panic or an endless loop.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use everbyte_crash::SimMedium;
use everbyte_fs::testkit::reseal;
use everbyte_media::{BLOCK_U64, BlockNo, Medium, PoolOffset};
use everbyte_pool::format::{DESCRIPTOR_AT, Descriptor};
use zerocopy::{FromBytes, IntoBytes};

use everbyte_fs::{FileSystem, FileType, FsError, FsOptions, IndexKind, Name, NewInode};

use crate::operations::{Op, Subject};
use crate::posix::{name, new_inode};
use crate::random::options;
use crate::real::{Real, open_pool};

pub(crate) const POOL_BYTES: u64 = 12 << 20;

/// The image of a closed pool with files of every kind.
fn image() -> Vec<u8> {
    image_of(&options())
}

/// The image of a file system with these options.
pub(crate) fn image_of(options: &FsOptions) -> Vec<u8> {
    let medium = Arc::new(SimMedium::new(POOL_BYTES));
    let mut real = Real::make(&medium, &FsOptions { inodes_max: Some(60), ..*options });
    for op in [
        Op::Mkdir(vec!["d"], 0o755),
        Op::Create(vec!["a"], 0o644),
        Op::Write { path: vec!["a"], offset: 60_000, len: 20_000, byte: 3 },
        Op::Attribute(vec!["a"], "user.a", 30),
        Op::Symlink(vec!["link"], 200),
        Op::Names(vec!["d"], 0, 120),
        Op::Sync,
    ] {
        real.make(&op).unwrap();
    }
    let pool = Arc::clone(real.fs.pool());
    drop(real);
    pool.close().unwrap();
    medium.image()
}

/// Opens and uses a damaged image. Returns true if damage was noticed.
fn use_damaged(image: Vec<u8>) -> bool {
    let medium = Arc::new(SimMedium::from_image(image));
    let Ok(pool) = open_pool(&medium) else { return true };
    let checked = pool.check().is_ok_and(|report| report.is_clean());
    drop(pool);
    let Ok(real) = Real::open(&medium) else { return true };
    let seen = real.try_tree().is_ok();
    // Use of any damage neither panics nor hangs.
    let mut real = real;
    for op in [
        Op::Create(vec!["new"], 0o644),
        Op::Write { path: vec!["a"], offset: 5, len: 9000, byte: 1 },
        Op::Truncate(vec!["a"], 10),
        Op::Unlink(vec!["d", "name 7"]),
        Op::Unlink(vec!["a"]),
        Op::Sync,
    ] {
        let _ = real.try_make(&op);
    }
    !(checked && seen)
}

#[test]
fn bit_flips_neither_panic_nor_hang() {
    let image = image();
    let medium = Arc::new(SimMedium::from_image(image.clone()));
    let pool = open_pool(&medium).unwrap();
    let data = pool.data_bounds();
    drop(pool);
    let (mut flips, mut noticed) = (0_u32, 0_u32);
    for block in data {
        let start = block * BLOCK_U64;
        let word = |at: u64| medium.load_word(PoolOffset(start + at));
        // Data blocks have no structure, and logs belong to the pool.
        let is_superblock = word(0) == u64::from_le_bytes(*b"EVERBFS1");
        let is_structure =
            is_superblock || word(0) == 0x4255_434b_4554 || word(0) >> 32 & 0xffff == 0x5441;
        if !is_structure {
            continue;
        }
        for at in (0..4096).step_by(101) {
            let at = usize::try_from(start).unwrap() + at;
            if image[at] == 0 {
                continue;
            }
            let mut damaged = image.clone();
            damaged[at] ^= 1 << (at % 8);
            let used = catch_unwind(AssertUnwindSafe(|| use_damaged(damaged)));
            flips += 1;
            noticed += u32::from(used.unwrap_or_else(|_| panic!("a flip at {at:#x} panics")));
        }
    }
    println!("{noticed} of {flips} flips were noticed");
    // Other flips hit free blocks and places.
    assert!(flips > 30 && noticed * 2 >= flips, "{noticed} of {flips} flips were noticed");
}

/// Offsets of the used and orphan bits in a table of one block.
const BITS_AT: [u64; 2] = [64, 128];

/// Table bits have no check bits. A false orphan bit would free the file at an opening, but the inode
/// contradicts it. A false free inode cannot be detected.
#[test]
fn flipped_table_bit_frees_no_used_inode() {
    let image = image();
    let sound = Real::open(&Arc::new(SimMedium::from_image(image.clone()))).unwrap().tree();
    let medium = SimMedium::from_image(image.clone());
    let blocks = (0..POOL_BYTES / BLOCK_U64).map(|block| PoolOffset(block * BLOCK_U64));
    let tables = blocks.filter(|at| medium.load_word(*at) >> 32 & 0xffff == 0x5441);
    let slots = tables.flat_map(|table| (1..16).map(move |slot| (table, slot)));
    let mut files = 0;
    for (table, slot) in slots {
        let [used, _] = BITS_AT.map(|at| medium.load_word(table.plus(at)));
        let is_used = used >> slot & 1 == 1;
        files += u32::from(is_used);
        for at in BITS_AT {
            let what = format!("slot {slot}, used: {is_used}, word {at}");
            let medium = Arc::new(SimMedium::from_image(image.clone()));
            let word_at = table.plus(at);
            medium.store_word(word_at, medium.load_word(word_at) ^ 1 << slot);
            let damaged = medium.image();
            let pool = open_pool(&medium).unwrap();
            let problems = pool.check().unwrap().problems.join("; ");
            drop(pool);
            // The orphan bit of a free inode has no meaning.
            assert_eq!(problems.is_empty(), !is_used && at == BITS_AT[1], "{what}: {problems}");
            if at == BITS_AT[1] && is_used {
                assert!(problems.contains("only an orphan has no name"), "{what}: {problems}");
            }
            for _ in 0..2 {
                if at == BITS_AT[0] && is_used {
                    break;
                }
                let real = Real::open(&medium).unwrap();
                assert_eq!(real.tree(), sound, "{what}");
                let found = real.fs.scrub(0).0.findings;
                assert_eq!(found.is_empty(), problems.is_empty(), "{what}: {found:?}");
                let pool = Arc::clone(real.fs.pool());
                drop(real);
                pool.close().unwrap();
            }
            let used = catch_unwind(AssertUnwindSafe(|| use_damaged(damaged)));
            used.unwrap_or_else(|_| panic!("{what}"));
        }
    }
    assert_eq!(files, 4);
}

/// A directory of one bucket with a prefix of an impossible depth.
#[test]
fn invalid_bucket_prefix_is_an_error() {
    let medium = Arc::new(SimMedium::from_image(image()));
    let real = Real::open(&medium).unwrap();
    let bounds = real.fs.pool().data_bounds();
    drop(real);
    for prefix in [u64::MAX, 5] {
        let buckets = bounds.clone().map(BlockNo).filter(|block| {
            let word = |at| medium.load_word(block.offset().plus(at));
            // The root directory.
            word(0) == 0x4255_434b_4554 && word(8) == 1
        });
        for bucket in buckets {
            medium.store_word(bucket.offset().plus(16), prefix);
            reseal(&*medium, bucket);
        }
        let real = Real::open(&medium).unwrap();
        let error = real.try_tree().expect_err("such a bucket was believed");
        assert!(error.to_string().contains("bucket"), "{error}");
    }
}

#[test]
fn name_with_a_slash_on_disk_is_an_error() {
    let medium = Arc::new(SimMedium::new(8 << 20));
    let real = Real::make(&medium, &FsOptions { log_bytes: Some(64 << 10), ..options() });
    let new = NewInode {
        kind: FileType::Fifo,
        permissions: 0o600,
        umask: 0,
        uid: 0,
        gid: 0,
        device: 0,
        target: &[],
    };
    real.fs.create_inode(real.fs.root(), Name::new(b"..x..y").unwrap(), &new).unwrap();
    let bounds = real.fs.pool().data_bounds();
    real.fs.pool().close().unwrap();
    drop(real);
    let mut bytes = [0; 4096];
    for block in bounds.map(BlockNo) {
        medium.read(block.offset(), &mut bytes);
        if let Some(at) = bytes.windows(6).position(|name| name == b"..x..y") {
            medium.store(block.offset().plus(at as u64), b"../../");
            reseal(&*medium, block);
        }
    }
    let real = Real::open(&medium).unwrap();
    let error = real.fs.list(real.fs.root(), 0).unwrap_err();
    assert!(error.to_string().contains("no directory can have it"), "{error}");
}

/// The block that the word at `at` names.
fn block_named_at(medium: &SimMedium, at: PoolOffset) -> BlockNo {
    BlockNo(medium.load_word(at) & ((1 << 40) - 1))
}

/// The address of the root word of the directory with `entries` entries.
pub(crate) fn directory_with(medium: &SimMedium, entries: u64) -> PoolOffset {
    let is_table = |at: &PoolOffset| medium.load_word(*at) >> 32 & 0xffff == 0x5441;
    let tables = (0..medium.len() / BLOCK_U64).map(|block| PoolOffset(block * BLOCK_U64));
    let mut inodes = tables.filter(is_table).flat_map(|at| (1..16).map(move |n| at.plus(256 * n)));
    let is_it = |at: &PoolOffset| {
        let is_directory = medium.load_word(at.plus(24)) >> 12 & 0xf == 4;
        is_directory && medium.load_word(at.plus(40)) == entries
    };
    inodes.find(is_it).expect("there is such a directory").plus(112)
}

#[test]
fn readdir_beyond_the_last_place_is_empty() {
    let medium = Arc::new(SimMedium::from_image(image()));
    let fs = Real::open(&medium).unwrap().fs;
    let directory = fs.lookup(fs.root(), name("d")).unwrap().inode;
    for place in [1 << 62, u64::MAX] {
        assert_eq!(fs.list(directory, place).unwrap().len(), 0);
    }
}

#[test]
fn unknown_directory_shape_is_an_error() {
    let medium = Arc::new(SimMedium::from_image(image()));
    let block = superblock(&medium);
    medium.store_word(block.offset().plus(48), 3);
    reseal(&*medium, block);
    let error = Real::open(&medium).map(drop).expect_err("it was believed").to_string();
    assert!(error.contains("directories of kind 3 are unknown"), "{error}");
}

#[test]
fn unknown_kind_of_block_maps_is_an_error() {
    let image = image();
    for kind in [1, 2] {
        let medium = Arc::new(SimMedium::from_image(image.clone()));
        for copy in DESCRIPTOR_AT {
            // The volume has the first slot, behind the two superblocks of the pool.
            let at = BlockNo(2).offset().plus(copy);
            let mut bytes = [0; size_of::<Descriptor>()];
            medium.read(at, &mut bytes);
            let descriptor = Descriptor::read_from_bytes(&bytes).unwrap();
            medium.store(at, Descriptor { map: kind, ..descriptor }.sealed().as_bytes());
        }
        let error = Real::open(&medium).map(drop).expect_err("it was believed").to_string();
        assert!(error.contains(&format!("block maps of kind {kind} are unknown")), "{error}");
    }
}

/// The block of `medium` with the superblock of a file system.
pub(crate) fn superblock(medium: &SimMedium) -> BlockNo {
    let is_it =
        |block: &BlockNo| medium.load_word(block.offset()) == u64::from_le_bytes(*b"EVERBFS1");
    (0..medium.len() / BLOCK_U64).map(BlockNo).find(is_it).expect("there is a file system")
}

#[test]
fn invalid_table_size_is_an_error() {
    let closed = image();
    let medium = Arc::new(SimMedium::from_image(closed.clone()));
    let mut real = Real::open(&medium).unwrap();
    [Op::Create(vec!["new"], 0o644), Op::Sync].iter().for_each(|op| real.make(op).unwrap());
    for image in [closed, medium.image()] {
        for blocks in [0, 2, 1 << 52, u64::MAX] {
            let medium = Arc::new(SimMedium::from_image(image.clone()));
            let block = superblock(&medium);
            medium.store_word(block.offset().plus(16), blocks);
            reseal(&*medium, block);
            let pool = open_pool(&medium).unwrap();
            let problems = pool.check().unwrap().problems.join("; ");
            drop(pool);
            let error = Real::open(&medium).map(drop).expect_err("it was believed").to_string();
            for said in [problems, error] {
                assert!(said.contains(&format!("tables of {blocks} blocks cannot be")), "{said}");
            }
        }
    }
}

/// A large table with only its first block in the pool, and a misaligned one.
#[test]
fn large_table_beyond_the_pool_is_an_error() {
    for index in [IndexKind::Direct, IndexKind::PmfsRadix] {
        let medium = Arc::new(SimMedium::new(25 << 20));
        let large = FsOptions { index, large_tables: true, inodes_max: Some(9000), ..options() };
        let real = Real::make(&medium, &large);
        let fs = Arc::clone(&real.fs);
        let make = |number: u32| {
            let text = format!("file {number}");
            let new = new_inode(FileType::Regular, 0o644);
            fs.create_inode(fs.root(), name(&text), &new).map(|attr| attr.inode)
        };
        (0..30).for_each(|number| _ = make(number).unwrap());
        let last = fs.lookup(fs.root(), name("file 29")).unwrap().inode;
        fs.sync().unwrap();
        let crashed = medium.image();
        let table = fs.inode_table_at(0).unwrap().block();
        let words_at = superblock(&medium).offset().plus(1024);
        let (word_at, shift) = match index {
            IndexKind::Direct => (block_named_at(&medium, words_at).offset(), 0),
            _ => (words_at, 6),
        };
        let naming = |block: BlockNo| everbyte_pool::format::encode_word(block.0 << shift);
        assert_eq!(medium.load_word(word_at), naming(table), "{index:?}");
        let blocks = medium.len() / BLOCK_U64;
        let mut head = [0; 4096];
        medium.read(table.offset(), &mut head);
        let lead_to = |medium: &SimMedium, block: BlockNo| {
            medium.store(block.offset(), &head);
            medium.store_word(word_at, naming(block));
        };
        let is_said = |what: &str| {
            assert!(what.contains("no table can begin here"), "{index:?}: {what}");
        };
        let crafted = [blocks - 1, blocks / 512 * 512].map(BlockNo);
        for block in crafted {
            lead_to(&medium, block);
            is_said(&fs.attr(last).unwrap_err().to_string());
            is_said(&fs.unlink(fs.root(), name("file 3")).unwrap_err().to_string());
            is_said(&make(99).unwrap_err().to_string());
            medium.store_word(word_at, naming(table));
        }
        drop((fs, real));
        let pool = open_pool(&Arc::new(SimMedium::from_image(crashed.clone()))).unwrap();
        let clean = Arc::new(SimMedium::from_image(crashed.clone()));
        Real::open(&clean).unwrap().fs.pool().close().unwrap();
        assert!(!pool.recovery().was_clean);
        for (image, block) in
            [&crashed, &clean.image()].into_iter().flat_map(|image| crafted.map(|at| (image, at)))
        {
            let medium = Arc::new(SimMedium::from_image(image.clone()));
            lead_to(&medium, block);
            let pool = open_pool(&medium).unwrap();
            is_said(&pool.check().unwrap().problems.join("; "));
            drop(pool);
            is_said(&Real::open(&medium).map(drop).expect_err("it was believed").to_string());
        }
    }
}

#[test]
fn damaged_slot_hides_no_name_and_blocks_creat() {
    let image = image();
    let names = ["a", "d", "link"];
    let medium = SimMedium::from_image(image.clone());
    let is_root = |at: &PoolOffset| {
        medium.load_word(*at) == 0x4255_434b_4554 && medium.load_word(at.plus(8)) == 1
    };
    let mut blocks = (0..POOL_BYTES / BLOCK_U64).map(|block| PoolOffset(block * BLOCK_U64));
    let bucket = blocks.find(is_root).expect("the root directory has a bucket");
    let slots = (0..120).map(|slot| bucket.plus(64 + 8 * slot));
    let used: Vec<PoolOffset> = slots.filter(|at| medium.load_word(*at) != 0).collect();
    assert_eq!(used.len(), names.len());
    for at in used {
        for bit in [0, 5, 20, 60] {
            let medium = Arc::new(SimMedium::from_image(image.clone()));
            medium.store_word(at, medium.load_word(at) ^ 1 << bit);
            let fs = Real::open(&medium).unwrap().fs;
            let root = fs.root();
            let found = names.map(|text| match fs.lookup(root, name(text)) {
                Ok(_) => 1,
                Err(FsError::Corrupt(_)) => 0,
                Err(error) => panic!("{text}: {error}"),
            });
            assert_eq!(found.iter().sum::<usize>(), names.len() - 1, "the others are found");
            let missing = fs.lookup(root, name("none"));
            assert!(matches!(missing, Err(FsError::Corrupt(_))), "{missing:?}");
            let added = fs.create_inode(root, name("new"), &new_inode(FileType::Regular, 0o600));
            assert!(matches!(added, Err(FsError::Corrupt(_))), "{added:?}");
        }
    }
}

/// Changes a word of the inode with `size` bytes, and updates its checksum.
pub(crate) fn change_inode(
    medium: &SimMedium,
    blocks: std::ops::Range<u64>,
    size: u64,
    (word, value): (u64, u64),
) {
    let is_table = |at: &PoolOffset| medium.load_word(*at) >> 32 & 0xffff == 0x5441;
    for table in blocks.map(|block| PoolOffset(block * BLOCK_U64)).filter(is_table) {
        for inode in (1..16).map(|slot| table.plus(256 * slot)) {
            if medium.load_word(inode.plus(40)) == size {
                medium.store_word(inode.plus(8 * word), value);
            }
        }
        reseal(medium, table.block());
    }
}

/// A file above the size limit has no definite blocks.
#[test]
fn invalid_inode_size_frees_no_block() {
    for size in [u64::MAX, u64::MAX - 4095, (1 << 52) + 1] {
        let medium = Arc::new(SimMedium::from_image(image()));
        let pool = open_pool(&medium).unwrap();
        change_inode(&medium, pool.data_bounds(), 80_000, (5, size));
        let report = pool.check().unwrap();
        assert!(report.problems.iter().any(|problem| problem.contains("its size")), "{report:?}");
        drop(pool);
        let mut real = Real::open(&medium).unwrap();
        let error = real.try_tree().expect_err("such an inode was believed");
        assert!(error.to_string().contains("inode"), "{error}");
        // The free blocks are unknown now, so no block is allocated.
        assert!(real.try_make(&Op::Truncate(vec!["a"], 5)).is_err());
    }
}

#[test]
fn scrub_reports_damage_and_media_errors() {
    let medium = Arc::new(SimMedium::from_image(image()));
    let findings = |real: &Real<SimMedium>| {
        let (report, next) = real.fs.scrub(0);
        assert!(report.read_bytes > 0 && next.is_none());
        report.findings
    };
    let real = Real::open(&medium).unwrap();
    assert_eq!(findings(&real), []);
    // Only a scrub reads this block of attributes.
    let bounds = real.fs.pool().data_bounds();
    let xattr = |block: u64| medium.load_word(PoolOffset(block * BLOCK_U64)) & 0xffff_ffff;
    let magic = u64::from(u32::from_le_bytes(*b"XATR"));
    let block = bounds.clone().find(|&block| xattr(block) == magic).unwrap();
    medium.inject_poison(PoolOffset(block * BLOCK_U64), 64);
    let found = findings(&real);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].at.block().0, found[0].volume.as_deref()), (block, Some("files")));
    drop(real);
    // A bit flip in an inode.
    let medium = Arc::new(SimMedium::from_image(image()));
    let real = Real::open(&medium).unwrap();
    let mut tables = bounds.map(|block| PoolOffset(block * BLOCK_U64));
    let table = tables.find(|&at| medium.load_word(at) >> 32 & 0xffff == 0x5441).unwrap();
    let size_at = table.plus(2 * 256 + 40);
    medium.store_word(size_at, medium.load_word(size_at) ^ 1);
    let found = findings(&real);
    assert!(found.iter().any(|found| found.what.contains("checksum")), "{found:?}");
}

#[test]
fn creation_without_space_leaves_no_volume() {
    // No run of 2 MiB is free.
    let medium = Arc::new(SimMedium::new(1 << 20));
    everbyte_pool::Pool::format(&*medium, 2, [1; 16]).unwrap();
    let pool = open_pool(&medium).unwrap();
    let free = pool.info().free_bytes;
    let small = FsOptions { log_bytes: Some(64 << 10), lanes: 1, ..options() };
    let make = |options: &FsOptions| {
        let made = FileSystem::create(&pool, "files", 1 << 20, options);
        made.map(drop).map_err(|error| error.to_string())
    };
    for wanting in
        [FsOptions { index: IndexKind::Window, ..small }, FsOptions { large_tables: true, ..small }]
    {
        let error = make(&wanting).unwrap_err();
        assert!(error.contains("512 adjacent blocks are needed"), "{error}");
        assert_eq!((pool.info().free_bytes, pool.info().volumes), (free, 0));
    }
    make(&small).unwrap();
}

/// The address of the root word of the only file with so many bytes.
pub(crate) fn word_of_file(medium: &SimMedium, size: u64) -> PoolOffset {
    let inodes = (0..POOL_BYTES / 256).map(|inode| PoolOffset(inode * 256));
    let is_it = |at: &PoolOffset| {
        let mode = medium.load_word(at.plus(24));
        mode & 0o170_000 == 0o100_000 && medium.load_word(at.plus(40)) == size
    };
    let mut inodes = inodes;
    inodes.find(is_it).expect("there is such a file").plus(112)
}

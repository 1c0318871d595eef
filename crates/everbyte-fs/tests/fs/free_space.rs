//! Reported free space: a program can allocate all of it, and removals return it immediately.

use std::sync::Arc;

use everbyte_fs::{
    Allocation, FileSystem, FileType, FsOptions, IndexKind, InodeNo, RenameMode, kinds,
};
use everbyte_media::{BLOCK_U64, Mapped, MediaOptions};
use everbyte_pool::{OpenOptions, Pool};
use proptest::prelude::*;

use crate::posix::{name, new_inode};

const MIB: u64 = 1 << 20;

type Fs = FileSystem<Mapped>;

fn new_pool(bytes: u64) -> Arc<Pool<Mapped>> {
    let medium = Arc::new(Mapped::anonymous(bytes, &MediaOptions::default()).unwrap());
    Pool::format(&*medium, 4, [1; 16]).unwrap();
    let options = OpenOptions { capacity_blocks: bytes / BLOCK_U64 };
    Arc::new(Pool::open(medium, kinds(), &options).unwrap())
}

fn small_log() -> FsOptions {
    FsOptions { lanes: 2, log_bytes: Some(MIB), ..FsOptions::default() }
}

fn create(fs: &Fs, text: &str) -> InodeNo {
    let new = new_inode(FileType::Regular, 0o644);
    fs.create_inode(fs.root(), name(text), &new).unwrap().inode
}

fn unlink(fs: &Fs, text: &str) {
    fs.unlink(fs.root(), name(text)).unwrap();
}

fn reserve(fs: &Fs, inode: InodeNo, blocks: u64) -> Result<(), everbyte_fs::FsError> {
    match blocks {
        0 => Ok(()),
        _ => fs.allocate(inode, (0, blocks * BLOCK_U64), Allocation::Reserve, false),
    }
}

/// Allocates all reported free blocks, by writes or reservations, and frees them.
fn take_all(fs: &Fs, by_writing: bool) {
    let free = fs.status().free_blocks;
    let file = create(fs, "all");
    if by_writing {
        let piece = vec![7; 1 << 20];
        let mut at = 0;
        while at < free * BLOCK_U64 {
            let len = piece.len().min(usize::try_from(free * BLOCK_U64 - at).unwrap());
            at += fs.write(file, at, &piece[..len]).unwrap() as u64;
        }
    } else {
        reserve(fs, file, free).unwrap();
    }
    assert_eq!(fs.attr(file).unwrap().size, free * BLOCK_U64);
    unlink(fs, "all");
    let again = fs.status().free_blocks;
    // The directory keeps a bucket and the inode keeps its table.
    assert!(again + 600 >= free, "{again} blocks of {free} are free after a removal");
}

/// A step that fragments a file system.
#[derive(Clone, Debug)]
enum Aging {
    /// A file of so many KiB.
    Whole(u8, u64),
    /// A file with a block in each of so many parts of 2 MiB.
    Sparse(u8, u64),
    /// So many files of one block.
    Small(u8, u64),
    Remove(u8),
    /// The first file replaces the second one.
    Replace(u8, u8),
    Truncate(u8),
    /// Removes every second block of a file.
    Punch(u8),
    Sync,
}

fn aging() -> impl Strategy<Value = Aging> {
    let file = 0_u8..6;
    prop_oneof![
        4 => (file.clone(), 1_u64..12_000).prop_map(|(f, kib)| Aging::Whole(f, kib)),
        2 => (file.clone(), 1_u64..40).prop_map(|(f, parts)| Aging::Sparse(f, parts)),
        1 => (file.clone(), 1_u64..100).prop_map(|(f, files)| Aging::Small(f, files)),
        3 => file.clone().prop_map(Aging::Remove),
        1 => (file.clone(), file.clone()).prop_map(|(a, b)| Aging::Replace(a, b)),
        1 => file.clone().prop_map(Aging::Truncate),
        2 => file.prop_map(Aging::Punch),
        1 => Just(Aging::Sync),
    ]
}

/// Performs a step, as far as space allows.
fn age(fs: &Fs, step: &Aging) {
    let root = fs.root();
    let title = |file: &u8| format!("file {file}");
    let found = |file: &u8| fs.lookup(root, name(&title(file))).ok();
    let made = |file: &u8| found(file).map_or_else(|| create(fs, &title(file)), |attr| attr.inode);
    match step {
        Aging::Whole(file, kib) => {
            let _lack = fs.write(made(file), 0, &vec![3; usize::try_from(kib << 10).unwrap()]);
        }
        Aging::Sparse(file, parts) => {
            let inode = made(file);
            (0..*parts).all(|part| fs.write(inode, part * 2 * MIB, &[5; 100]).is_ok());
        }
        Aging::Small(file, files) => {
            for number in 0..*files {
                let text = format!("small {file} {number}");
                let new = new_inode(FileType::Regular, 0o644);
                let Ok(attr) = fs.create_inode(root, name(&text), &new) else { return };
                let _lack = fs.write(attr.inode, 0, &[1; 4096]);
            }
        }
        Aging::Remove(file) => {
            if let Some(attr) = found(file) {
                let before = fs.status();
                unlink(fs, &title(file));
                let freed = fs.status().free_blocks - before.free_blocks;
                // Map blocks are freed with the data.
                assert!(
                    freed + freed / 100 + 2 >= attr.blocks.min(2),
                    "{freed} of {}",
                    attr.blocks
                );
            }
        }
        Aging::Replace(from, to) => {
            if found(from).is_some() {
                let (from, to) = (title(from), title(to));
                fs.rename((root, name(&from)), (root, name(&to)), RenameMode::Replace).unwrap();
            }
        }
        Aging::Truncate(file) => {
            if let Some(attr) = found(file) {
                fs.truncate(attr.inode, attr.size / 2).unwrap();
            }
        }
        Aging::Punch(file) => {
            let Some(attr) = found(file) else { return };
            for block in (0..(attr.size / BLOCK_U64).min(400)).step_by(2) {
                let range = (block * BLOCK_U64, BLOCK_U64);
                fs.allocate(attr.inode, range, Allocation::Punch, true).unwrap();
            }
        }
        Aging::Sync => fs.sync().unwrap(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn reported_free_space_is_allocatable(
        steps in prop::collection::vec(aging(), 0..14),
        index in prop::sample::select(vec![IndexKind::Direct, IndexKind::BPlus, IndexKind::Window]),
        (fs_mib, by_writing) in (prop::sample::select(vec![12_u64, 30, 64]), any::<bool>()),
    ) {
        let pool = new_pool(40 * MIB);
        let options = FsOptions { index, ..small_log() };
        let fs = FileSystem::create(&pool, "files", fs_mib * MIB, &options).unwrap();
        take_all(&fs, by_writing);
        steps.iter().for_each(|step| age(&fs, step));
        take_all(&fs, by_writing);
        fs.sync().unwrap();
        take_all(&fs, !by_writing);
        prop_assert!(pool.check().unwrap().is_clean());
    }
}

#[test]
fn removed_files_are_free_before_a_checkpoint() {
    for pool_mib in [300, 130] {
        let pool = new_pool(pool_mib * MIB);
        let fs = FileSystem::create(&pool, "files", 128 * MIB, &small_log()).unwrap();
        let before = fs.status().free_blocks;
        let checkpoints = fs.volume().checkpoints();
        let change: [(&str, &dyn Fn(InodeNo)); 4] = [
            ("removed", &|_| unlink(&fs, "f")),
            ("truncated", &|inode| assert_eq!(fs.truncate(inode, 0).unwrap().size, 0)),
            ("punched", &|inode| {
                let range = (0, 90 * MIB);
                fs.allocate(inode, range, Allocation::Punch, true).unwrap();
            }),
            ("replaced", &|_| {
                let _other = create(&fs, "other");
                let [from, to] = ["other", "f"].map(|text| (fs.root(), name(text)));
                fs.rename(from, to, RenameMode::Replace).unwrap();
            }),
        ];
        for (what, change) in change {
            let file = create(&fs, "f");
            reserve(&fs, file, 90 * 256).unwrap();
            fs.sync().unwrap();
            let used = before - fs.status().free_blocks;
            assert!((90 * 256..90 * 256 + 100).contains(&used), "{what}: {used} blocks");
            let made = fs.volume().checkpoints();
            change(file);
            let left = before - fs.status().free_blocks;
            assert!(left <= 4, "{what}: {left} blocks are used");
            assert_eq!(fs.volume().checkpoints(), made, "{what}");
            let _gone = fs.unlink(fs.root(), name("f"));
            // Blocks that wait for the checkpoint are allocatable.
            take_all(&fs, false);
        }
        assert!(fs.volume().checkpoints() > checkpoints);
    }
}

#[test]
fn blocks_that_another_volume_freed_are_allocated() {
    let pool = new_pool(64 * MIB);
    let make = |text| FileSystem::create(&pool, text, 80 * MIB, &small_log()).unwrap();
    let [one, two] = ["one", "two"].map(make);
    let file = create(&one, "f");
    reserve(&one, file, one.status().free_blocks).unwrap();
    one.sync().unwrap();
    assert!(two.status().free_blocks < 200, "{:?}", two.status());
    unlink(&one, "f");
    assert!(two.status().free_blocks > 50 * 256, "{:?}", two.status());
    assert!(pool.info().free_bytes > 50 * MIB);
    take_all(&two, true);
    // A new volume needs a run of adjacent blocks.
    two.sync().unwrap();
    let file = create(&one, "g");
    reserve(&one, file, one.status().free_blocks).unwrap();
    one.sync().unwrap();
    unlink(&one, "g");
    drop(FileSystem::create(&pool, "three", 8 * MIB, &small_log()).unwrap());
}

#[test]
fn inodes_are_reported_only_as_far_as_tables_fit() {
    let pool = new_pool(16 * MIB);
    let options = FsOptions { inodes_max: Some(100_000), ..small_log() };
    let fs = FileSystem::create(&pool, "files", 14 * MIB, &options).unwrap();
    let empty = fs.status();
    let file = create(&fs, "f");
    reserve(&fs, file, empty.free_blocks).unwrap();
    let full = fs.status();
    assert!(full.free_inodes < 2000, "{full:?}");
    assert_eq!(full.inodes - full.free_inodes, 2);
    unlink(&fs, "f");
    assert!(fs.status().free_inodes > 20_000, "{:?}", fs.status());
}

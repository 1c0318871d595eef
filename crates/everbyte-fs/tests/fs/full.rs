//! Full pools: mapped blocks stay writable, and removals make space.

use std::sync::Arc;

use everbyte_crash::SimMedium;
use everbyte_fs::{
    Allocation, FilePlace, FileSystem, FileType, FsError, FsOptions, IndexKind, InodeNo, RenameMode,
};

use crate::posix::{create, name, new_inode};
use crate::random::options;
use crate::real::Real;

const FILE_BYTES: usize = 1 << 20;

/// Allocates all free blocks to a file `filler`.
fn fill(fs: &Arc<FileSystem<SimMedium>>) {
    let filler = create(fs, fs.root(), "filler");
    let error = (0..).find_map(|block| fs.write(filler, block << 12, &[3; 4096]).err());
    assert!(matches!(error, Some(FsError::NoSpace)), "{error:?}");
    fs.sync().unwrap();
}

fn read(fs: &FileSystem<SimMedium>, inode: InodeNo) -> Vec<u8> {
    let mut bytes = vec![0; FILE_BYTES + 1];
    assert_eq!(fs.read(inode, 0, &mut bytes).unwrap(), FILE_BYTES);
    bytes.truncate(FILE_BYTES);
    bytes
}

/// Without a free block or log for the whole write.
#[test]
fn full_pool_still_overwrites_mapped_blocks() {
    let medium = Arc::new(SimMedium::new(8 << 20));
    let small = FsOptions { lanes: 1, log_bytes: Some(64 << 10), ..options() };
    let real = Real::make(&medium, &small);
    let fs = &real.fs;
    let [file, other] = ["file", "other"].map(|text| create(fs, fs.root(), text));
    for (inode, byte) in [(file, 1), (other, 2)] {
        assert_eq!(fs.write(inode, 0, &vec![byte; FILE_BYTES]).unwrap(), FILE_BYTES);
    }
    fill(fs);
    assert_eq!(fs.write(file, 0, &vec![7; FILE_BYTES]).unwrap(), FILE_BYTES);
    assert!(read(fs, file).iter().all(|&byte| byte == 7));
    // Parts are whole blocks.
    let crashed = Real::open(&Arc::new(SimMedium::from_image(medium.image()))).unwrap();
    for block in read(&crashed.fs, file).chunks(4096) {
        assert!([[1; 4096], [7; 4096]].contains(block.first_chunk().unwrap()));
    }
    fs.sync().unwrap();
    let bytes = vec![8; FILE_BYTES - 300];
    assert_eq!(fs.write(file, 100, &bytes).unwrap(), bytes.len());
    let mut expected = vec![7; FILE_BYTES];
    expected[100..FILE_BYTES - 200].fill(8);
    assert!(read(fs, file) == expected);
    fs.sync().unwrap();
    let [from, to] =
        [(other, 5000), (file, 900)].map(|(inode, offset)| FilePlace { inode, offset });
    let copied = fs.copy(from, to, FILE_BYTES as u64).unwrap();
    assert_eq!(copied, FILE_BYTES as u64 - 5000);
    expected[900..900 + FILE_BYTES - 5000].fill(2);
    assert!(read(fs, file) == expected);
    fs.sync().unwrap();
    assert!(fs.pool().check().unwrap().is_clean());
}

/// The first and the last block and the words of all others must be logged, which exceeds the smallest log.
#[test]
fn full_pool_still_punches_holes() {
    const BYTES: usize = 2 << 20;
    const HOLE: u64 = BYTES as u64 - 2;
    const RANGE: (u64, u64) = (1, HOLE);
    type Change = fn(&FileSystem<SimMedium>, InodeNo, InodeNo);
    let punch: Change = |fs, file, _| fs.allocate(file, RANGE, Allocation::Punch, true).unwrap();
    let zero: Change = |fs, file, _| fs.allocate(file, RANGE, Allocation::Zero, true).unwrap();
    let copy: Change = |fs, file, hole| {
        let [from, to] = [hole, file].map(|inode| FilePlace { inode, offset: 1 });
        assert_eq!(fs.copy(from, to, HOLE).unwrap(), HOLE);
    };
    for (way, change) in [punch, zero, copy].into_iter().enumerate() {
        let medium = Arc::new(SimMedium::new(8 << 20));
        let small = FsOptions { lanes: 1, log_bytes: Some(32 << 10), ..options() };
        let real = Real::make(&medium, &small);
        let fs = &real.fs;
        let [file, hole] = ["file", "hole"].map(|text| create(fs, fs.root(), text));
        assert_eq!(fs.write(file, 0, &vec![1; BYTES]).unwrap(), BYTES);
        fs.truncate(hole, BYTES as u64).unwrap();
        fill(fs);
        change(fs, file, hole);
        let mut bytes = vec![7; BYTES];
        assert_eq!(fs.read(file, 0, &mut bytes).unwrap(), BYTES);
        assert_eq!((bytes[0], bytes[BYTES - 1]), (1, 1), "way {way}");
        assert!(bytes[1..BYTES - 1].iter().all(|&byte| byte == 0), "way {way}");
        fs.sync().unwrap();
        assert!(fs.pool().check().unwrap().is_clean(), "way {way}");
    }
}

/// A freed inode waits until the free is durable, and no space for another table exists.
#[test]
fn freed_inode_is_reused_without_table_space() {
    // A region of a window holds more tables than a bucket holds names.
    for index in IndexKind::ALL.into_iter().filter(|&index| index != IndexKind::Window) {
        let medium = Arc::new(SimMedium::new(16 << 20));
        let real = Real::make(&medium, &FsOptions { index, ..options() });
        let (fs, root) = (&real.fs, real.fs.root());
        let make =
            |text: &str| fs.create_inode(root, name(text), &new_inode(FileType::Fifo, 0o600));
        fill(fs);
        let error = (0..100).find_map(|number| make(&format!("fifo {number}")).err());
        assert!(matches!(error, Some(FsError::NoSpace)), "{index:?}: {error:?}");
        for (removed, text) in [("fifo 0", "again"), ("fifo 1", "and again")] {
            fs.unlink(root, name(removed)).unwrap();
            make(text).unwrap_or_else(|error| panic!("{index:?}: {text}: {error}"));
        }
        assert!(make("too many").is_err());
        fs.sync().unwrap();
        assert!(fs.pool().check().unwrap().is_clean(), "{index:?}");
    }
}

/// An existing name stays an error after space returns, so it is reported first.
#[test]
fn eexist_comes_before_enospc() {
    let medium = Arc::new(SimMedium::new(16 << 20));
    let real = Real::make(&medium, &FsOptions { inodes_max: Some(1), ..options() });
    let (fs, root) = (&real.fs, real.fs.root());
    let make = |text: &str| fs.create_inode(root, name(text), &new_inode(FileType::Fifo, 0o600));
    let error = (0..1000).find_map(|number| make(&format!("fifo {number}")).err());
    assert!(matches!(error, Some(FsError::NoInodes { .. })), "{error:?}");
    assert!(matches!(make("fifo 0"), Err(FsError::Exists)));
    let rename = |to, replaces| {
        let whiteout = RenameMode::Whiteout { uid: 0, gid: 0, replaces };
        fs.rename((root, name("fifo 0")), (root, name(to)), whiteout)
    };
    assert!(matches!(rename("fifo 1", false), Err(FsError::Exists)));
    for (to, replaces) in [("new", false), ("fifo 1", true)] {
        let refused = rename(to, replaces);
        assert!(matches!(refused, Err(FsError::NoInodes { .. })), "{to}: {refused:?}");
    }
    rename("fifo 0", true).unwrap();
    fs.lookup(root, name("fifo 1")).unwrap();
    assert!(fs.pool().check().unwrap().is_clean());
}

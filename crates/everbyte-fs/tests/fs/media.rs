//! Media errors in the metadata of a file system: unreadable metadata is an error, never absence.

use std::sync::Arc;

use everbyte_crash::SimMedium;
use everbyte_fs::{Attr, FileType, FsOptions, IndexKind, RenameMode};
use everbyte_media::{BLOCK_U64, Medium, PoolOffset};

use crate::damage::POOL_BYTES;
use crate::operations::{Op, Subject};
use crate::posix::{name, new_inode};
use crate::random::options;
use crate::real::{Real, open_pool};

/// Images of a pool with files: after a crash and closed.
fn images(options: &FsOptions) -> [Vec<u8>; 2] {
    let medium = Arc::new(SimMedium::new(POOL_BYTES));
    let mut real = Real::make(&medium, &FsOptions { inodes_max: Some(60), ..*options });
    for op in [
        Op::Mkdir(vec!["d"], 0o755),
        Op::Create(vec!["a"], 0o644),
        Op::Write { path: vec!["a"], offset: 60_000, len: 20_000, byte: 3 },
        Op::Names(vec!["d"], 0, 40),
        Op::Sync,
    ] {
        real.make(&op).unwrap();
    }
    let crashed = medium.image();
    let pool = Arc::clone(real.fs.pool());
    drop(real);
    pool.close().unwrap();
    [crashed, medium.image()]
}

/// Lines with contents: of the superblock, of the block named by the first word of the index, and of the
/// tables.
fn metadata_lines(medium: &SimMedium) -> Vec<u64> {
    let word = |at: u64| medium.load_word(PoolOffset(at));
    let starts = (0..POOL_BYTES / BLOCK_U64).map(|block| block * BLOCK_U64);
    let superblock =
        starts.clone().find(|&at| word(at) == u64::from_le_bytes(*b"EVERBFS1")).unwrap();
    let index = (word(superblock + 1024) & ((1 << 40) - 1)) * BLOCK_U64;
    // The root of a tree with one table is the table.
    let index = Some(index).filter(|&at| at < POOL_BYTES);
    let tables = starts.filter(|&at| word(at) >> 32 & 0xffff == 0x5441);
    let lines = [superblock].into_iter().chain(index).chain(tables);
    let lines = lines.flat_map(|start| (start..start + BLOCK_U64).step_by(64));
    lines.filter(|&line| (line..line + 64).step_by(8).any(|at| word(at) != 0)).collect()
}

#[test]
fn poisoned_metadata_frees_nothing() {
    let kinds = [
        options(),
        FsOptions { index: IndexKind::BPlus, ..options() },
        FsOptions { index: IndexKind::Window, ..options() },
    ];
    for options in kinds {
        for (image, end) in images(&options).into_iter().zip(["a crash", "a clean end"]) {
            let medium = Arc::new(SimMedium::from_image(image.clone()));
            let lines = metadata_lines(&medium);
            let real = Real::open(&medium).unwrap();
            let attr = real.fs.lookup(real.fs.root(), name("a")).unwrap();
            let mut bytes = vec![0; 80_000];
            assert_eq!(real.fs.read(attr.inode, 0, &mut bytes).unwrap(), bytes.len());
            let free_bytes = real.fs.pool().info().free_bytes;
            let sound =
                SoundImage { free_bytes, free_inodes: real.fs.status().free_inodes, attr, bytes };
            assert!(lines.len() > 10, "{} lines", lines.len());
            for line in lines {
                let medium = Arc::new(SimMedium::from_image(image.clone()));
                medium.inject_poison(PoolOffset(line), 1);
                sound.check(&medium, &format!("{:?}, {line:#x} after {end}", options.index));
            }
        }
    }
}

/// A file system without media errors.
struct SoundImage {
    free_bytes: u64,
    free_inodes: u64,
    /// Attributes of the file `a`.
    attr: Attr,
    bytes: Vec<u8>,
}

impl SoundImage {
    /// Opens and uses the file system on `medium`, and checks that each loss is reported.
    fn check(&self, medium: &Arc<SimMedium>, at: &str) {
        let pool = open_pool(medium).unwrap_or_else(|error| panic!("{at}: {error}"));
        assert!(pool.info().free_bytes <= self.free_bytes, "{at}: blocks of files are free");
        drop(pool);
        let Ok(real) = Real::open(medium) else { return };
        assert!(real.fs.status().free_inodes <= self.free_inodes, "{at}: files are free");
        let new = new_inode(FileType::Regular, 0o600);
        for number in 0..60 {
            let text = format!("new {number}");
            let Ok(made) = real.fs.create_inode(real.fs.root(), name(&text), &new) else { break };
            let _ = real.fs.write(made.inode, 0, &[9; 100_000]);
        }
        let root = real.fs.root();
        match real.fs.lookup(root, name("a")) {
            Ok(found) => assert_eq!(found, self.attr, "{at}"),
            Err(error) => assert!(error.to_string().contains("memory error"), "{at}: {error}"),
        }
        let mut bytes = vec![0; self.bytes.len()];
        if real.fs.read(self.attr.inode, 0, &mut bytes).is_ok() {
            assert!(bytes == self.bytes, "{at}: other bytes");
        }
    }
}

/// A rename of a directory follows the parents of its target, and reads no other part of them.
#[test]
fn poisoned_parent_is_an_error_for_rename() {
    let medium = Arc::new(SimMedium::new(POOL_BYTES));
    let fs = Real::make(&medium, &options()).fs;
    let make = |parent, text| {
        fs.create_inode(parent, name(text), &new_inode(FileType::Directory, 0o755)).unwrap().inode
    };
    make(fs.root(), "moved");
    let outer = make(fs.root(), "outer");
    let inner = make(outer, "inner");
    fs.sync().unwrap();
    // The first table holds both, 256 bytes each.
    let at = fs.inode_table_at(0).unwrap().plus(256 * outer.0);
    assert_eq!(medium.load_word(at.plus(8)), outer.0);
    medium.inject_poison(at, 64);
    let moved = fs.rename((fs.root(), name("moved")), (inner, name("new")), RenameMode::Replace);
    let error = moved.unwrap_err().to_string();
    assert!(error.contains("memory error") && error.contains(&at.plus(56).to_string()), "{error}");
}

//! Limits: the last valid value, and the error number of the first invalid one.

use std::sync::Arc;

use everbyte_fs::{
    Allocation, FileSystem, FileType, FsError, FsOptions, InodeNo, Name, RenameMode, SetAttribute,
    kinds,
};
use everbyte_media::{Mapped, MediaOptions};
use everbyte_pool::{OpenOptions, Pool};

use crate::posix::{create, name, new, new_inode};
use crate::real::Real;

const EFBIG: i32 = 27;
const FILE_BYTES_MAX: u64 = 1 << 52;
const LINKS_MAX: u32 = 65_000;

fn errno<T: std::fmt::Debug>(result: Result<T, FsError>) -> i32 {
    result.unwrap_err().errno()
}

#[test]
fn file_size_is_limited() {
    let fs = new();
    let file = create(&fs, fs.root(), "f");
    let last = FILE_BYTES_MAX - 3;
    assert_eq!(fs.write(file, last, b"bytes").unwrap(), 3, "as many as there is room for");
    assert_eq!(fs.attr(file).unwrap().size, FILE_BYTES_MAX);
    assert_eq!(fs.write(file, FILE_BYTES_MAX, b"").unwrap(), 0);
    for offset in [FILE_BYTES_MAX, FILE_BYTES_MAX + 1, u64::MAX - 1] {
        assert_eq!(errno(fs.write(file, offset, b"bytes")), EFBIG);
        assert_eq!(errno(fs.allocate(file, (offset, 9), Allocation::Reserve, false)), EFBIG);
    }
    assert_eq!(errno(fs.truncate(file, FILE_BYTES_MAX + 1)), EFBIG);
    assert_eq!(errno(fs.allocate(file, (0, 0), Allocation::Reserve, false)), 22);
    let mut bytes = [0; 9];
    assert_eq!(fs.read(file, last, &mut bytes).unwrap(), 3);
    assert_eq!(&bytes[..3], b"byt");
    assert_eq!(fs.read(file, u64::MAX, &mut bytes).unwrap(), 0);
    fs.truncate(file, 5).unwrap();
    fs.truncate(file, FILE_BYTES_MAX).unwrap();
}

#[test]
fn space_freed_by_one_thread_serves_another() {
    let medium = Mapped::anonymous(96 << 20, &MediaOptions::default()).unwrap();
    let options = FsOptions { log_bytes: Some(8 << 20), lanes: 2, ..FsOptions::default() };
    let medium = Arc::new(medium);
    Pool::format(&*medium, 2, [1; 16]).unwrap();
    let open = OpenOptions { capacity_blocks: (96 << 20) / 4096 };
    let pool = Arc::new(Pool::open(medium, kinds(), &open).unwrap());
    // The volume is full before the pool.
    let fs = Arc::new(FileSystem::create(&pool, "files", 32 << 20, &options).unwrap());
    let data = vec![7; 1 << 20];
    for round in 0..4 {
        let new = new_inode(FileType::Regular, 0o644);
        let file = fs.create_inode(fs.root(), name("f"), &new).unwrap().inode;
        for part in 0..24 {
            let written = fs.write(file, part << 20, &data);
            assert_eq!(written.unwrap_or_else(|error| panic!("round {round}: {error}")), 1 << 20);
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                fs.open_inode(file).unwrap();
                fs.unlink(fs.root(), name("f")).unwrap();
                fs.close_inode(file).unwrap();
            });
        });
    }
}

/// A file system with space for many files and names.
fn large() -> Arc<FileSystem<Mapped>> {
    let medium = Mapped::anonymous(96 << 20, &MediaOptions::default()).unwrap();
    let options = FsOptions {
        inodes_max: Some(70_000),
        log_bytes: Some(8 << 20),
        lanes: 2,
        ..FsOptions::default()
    };
    Real::make(&Arc::new(medium), &options).fs
}

#[test]
fn link_count_is_limited() {
    let fs = large();
    let root = fs.root();
    let made = fs.create_inode(root, name("f"), &new_inode(FileType::Regular, 0o644)).unwrap();
    let link = |number: u32| fs.link(made.inode, root, name(&format!("name {number}")));
    for number in 1..LINKS_MAX {
        link(number).unwrap();
    }
    assert_eq!(errno(link(LINKS_MAX)), 31);
    assert_eq!(errno(link(1)), 17, "that the name exists is said first");
    assert_eq!(fs.attr(made.inode).unwrap().links, LINKS_MAX);
    fs.unlink(root, name("f")).unwrap();
    link(LINKS_MAX).unwrap();
}

#[test]
fn subdirectory_count_is_limited() {
    let fs = large();
    let root = fs.root();
    let new = new_inode(FileType::Directory, 0o755);
    let mkdir = |parent: InodeNo, number: u32| {
        fs.create_inode(parent, name(&format!("directory {number}")), &new)
    };
    let other = mkdir(root, 0).unwrap().inode;
    for number in 1..LINKS_MAX - 2 {
        mkdir(root, number).unwrap();
    }
    assert_eq!(errno(mkdir(root, LINKS_MAX)), 31);
    mkdir(other, 0).unwrap();
    let up = |mode| {
        fs.rename((other, name("directory 0")), (root, name("another")), mode)
            .map_err(|e| e.errno())
    };
    assert_eq!(up(RenameMode::Replace), Err(31));
    // A replaced or exchanged directory keeps the count.
    for (number, mode) in [(5, RenameMode::Replace), (6, RenameMode::Exchange)] {
        let (from, there) = ((other, name("directory 0")), format!("directory {number}"));
        fs.rename(from, (root, name(&there)), mode).map_err(|error| error.errno()).unwrap();
        if mode == RenameMode::Replace {
            mkdir(other, 0).unwrap();
        }
    }
    assert_eq!([root, other].map(|inode| fs.attr(inode).unwrap().links), [LINKS_MAX, 3]);
    fs.create_inode(root, name("file"), &new_inode(FileType::Regular, 0o644)).unwrap();
    fs.remove_directory(root, name("directory 9")).unwrap();
    assert_eq!(up(RenameMode::Replace), Ok(()));
}

#[test]
fn longest_names_targets_and_xattrs_are_accepted() {
    let fs = new();
    let root = fs.root();
    let longest = "n".repeat(255);
    let file = create(&fs, root, &longest);
    assert_eq!(fs.lookup(root, name(&longest)).unwrap().inode, file);
    assert_eq!(errno(Name::new("n".repeat(256).as_bytes())), 36);
    let target = vec![b't'; 4096];
    let link = |len: usize| {
        let new =
            everbyte_fs::NewInode { target: &target[..len], ..new_inode(FileType::Symlink, 0o777) };
        fs.create_inode(root, name("link"), &new)
    };
    assert_eq!(errno(link(4096)), 36);
    assert_eq!(fs.read_link(link(4095).unwrap().inode).unwrap().len(), 4095);
    let set =
        |name: &[u8], len: usize| fs.set_attribute(file, (name, &vec![1; len]), SetAttribute::Any);
    assert_eq!(errno(set(b"", 1)), 34);
    assert_eq!(errno(set(&[b'a'; 256], 1)), 34);
    assert_eq!(errno(set(b"user.a", 65_537)), 7);
    assert_eq!(errno(set(b"user.a", 4084 - 3 - 6 + 1)), 28);
    set(b"user.a", 4084 - 3 - 6).unwrap();
    assert_eq!(errno(set(&[b'a'; 255], 0)), 28, "there is no room for another");
    fs.remove_attribute(file, b"user.a").unwrap();
    set(&[b'a'; 255], 0).unwrap();
}

#[test]
fn removed_directory_is_empty_and_refuses_entries() {
    let fs = new();
    let root = fs.root();
    let dir = fs.create_inode(root, name("d"), &new_inode(FileType::Directory, 0o755)).unwrap();
    fs.open_inode(dir.inode).unwrap();
    fs.remove_directory(root, name("d")).unwrap();
    assert_eq!(fs.attr(dir.inode).unwrap().links, 0);
    assert!(fs.list(dir.inode, 0).unwrap().is_empty());
    let file = new_inode(FileType::Regular, 0o644);
    assert_eq!(errno(fs.create_inode(dir.inode, name("f"), &file)), 2);
    assert_eq!(errno(fs.create_unnamed(dir.inode, &file)), 2);
    assert_eq!(errno(fs.lookup(dir.inode, name("f"))), 2);
    let other = create(&fs, root, "f");
    assert_eq!(errno(fs.link(other, dir.inode, name("f"))), 2);
    fs.close_inode(dir.inode).unwrap();
    assert_eq!(errno(fs.attr(dir.inode)), 116);
    assert!(fs.pool().check().unwrap().is_clean());
}

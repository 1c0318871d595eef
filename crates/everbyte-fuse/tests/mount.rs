//! A file system under the kernel: what programs do with files, through a mount.
//!
//! Needs `/dev/fuse`, and root or `fusermount3`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use everbyte_fs::{FileSystem, FsOptions, kinds};
use everbyte_fuse::{Mount, MountOptions};
use everbyte_media::{Mapped, MediaOptions};
use everbyte_pool::{OpenOptions as PoolOptions, Pool};

/// A file system that is mounted on a directory of its own.
struct Mounted {
    mount: Option<Mount>,
    dir: tempfile::TempDir,
    pool: Arc<Pool<Mapped>>,
}

impl Mounted {
    fn new() -> Self {
        let bytes = 64 << 20;
        let medium = Arc::new(Mapped::anonymous(bytes, &MediaOptions::default()).unwrap());
        Pool::format(&*medium, 2, [1; 16]).unwrap();
        let options = PoolOptions { capacity_blocks: bytes / 4096 };
        let pool = Arc::new(Pool::open(medium, kinds(), &options).unwrap());
        let options = FsOptions { log_bytes: Some(8 << 20), ..FsOptions::default() };
        drop(FileSystem::create(&pool, "files", 48 << 20, &options).unwrap());
        let mut mounted = Self { mount: None, dir: tempfile::tempdir().unwrap(), pool };
        mounted.mount();
        mounted
    }

    fn mount(&mut self) {
        let fs = Arc::new(FileSystem::open(&self.pool, "files").unwrap());
        let options = MountOptions {
            source: "test/files".into(),
            allow_other: false,
            read_only: false,
            threads: 2,
        };
        self.mount = Some(Mount::new(fs, self.dir.path(), &options).unwrap());
    }

    fn unmount(&mut self) {
        self.mount.take().unwrap().unmount().unwrap();
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }
}

fn names(dir: &Path) -> Vec<OsString> {
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    names
}

#[test]
fn files_are_what_was_written_also_after_mounting_again() {
    let mut mounted = Mounted::new();
    let dir = mounted.path().to_owned();
    fs::create_dir(dir.join("d")).unwrap();
    let large: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    fs::write(dir.join("d/large"), &large).unwrap();
    fs::write(dir.join("small"), b"hello").unwrap();
    fs::hard_link(dir.join("small"), dir.join("d/second")).unwrap();
    symlink("d/second", dir.join("link")).unwrap();
    fs::set_permissions(dir.join("small"), fs::Permissions::from_mode(0o640)).unwrap();
    for round in 0..2 {
        assert_eq!(names(&dir), ["d", "link", "small"], "in round {round}");
        assert_eq!(fs::read(dir.join("d/large")).unwrap(), large);
        assert_eq!(fs::read(dir.join("link")).unwrap(), b"hello");
        let seen = fs::metadata(dir.join("small")).unwrap();
        assert_eq!((seen.nlink(), seen.mode() & 0o7777, seen.len()), (2, 0o640, 5));
        mounted.unmount();
        assert!(names(&dir).is_empty(), "nothing is mounted");
        mounted.mount();
    }
}

#[test]
fn names_come_and_go_as_system_calls_say() {
    let mounted = Mounted::new();
    let dir = mounted.path();
    fs::write(dir.join("a"), b"a").unwrap();
    fs::write(dir.join("b"), b"b").unwrap();
    fs::rename(dir.join("a"), dir.join("b")).unwrap();
    assert_eq!(fs::read(dir.join("b")).unwrap(), b"a");
    fs::create_dir_all(dir.join("x/y/z")).unwrap();
    let error = fs::remove_dir(dir.join("x/y")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(39));
    let error = fs::rename(dir.join("x"), dir.join("x/y/x")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(22));
    let error = File::create(dir.join("n".repeat(256))).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(36));
    fs::remove_dir_all(dir.join("x")).unwrap();
    let many = dir.join("many");
    fs::create_dir(&many).unwrap();
    for number in 0..1000 {
        fs::write(many.join(format!("file {number}")), number.to_string()).unwrap();
    }
    assert_eq!(names(&many).len(), 1000);
    fs::remove_dir_all(&many).unwrap();
    assert_eq!(names(dir), ["b"]);
}

#[test]
fn an_open_file_outlives_its_name_and_holes_are_holes() {
    let mounted = Mounted::new();
    let path = mounted.path().join("f");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(b"still here").unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here");
    file.set_len(1 << 20).unwrap();
    file.write_all_at(b"end", (1 << 20) - 3).unwrap();
    let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(4096)).unwrap();
    assert_eq!(data, (1 << 20) - 4096);
    file.sync_all().unwrap();
    assert!(file.metadata().unwrap().blocks() < 64);
    drop(file);
    assert!(names(mounted.path()).is_empty());
}

#[test]
fn extended_attributes_are_kept() {
    let mounted = Mounted::new();
    let path = mounted.path().join("f");
    fs::write(&path, b"").unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&path, "user.colour", b"green", flags).unwrap();
    let mut value = [0; 16];
    let len = rustix::fs::getxattr(&path, "user.colour", &mut value).unwrap();
    assert_eq!(&value[..len], b"green");
    let mut list = [0; 64];
    let len = rustix::fs::listxattr(&path, &mut list).unwrap();
    assert_eq!(&list[..len], b"user.colour\0");
    rustix::fs::removexattr(&path, "user.colour").unwrap();
    assert!(rustix::fs::getxattr(&path, "user.colour", &mut value).is_err());
}

//! File systems.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use everbyte::files::{FileType, Name, NewInode};
use everbyte::{Error, Pool};

use super::{POOL_BYTES, Place};

const FS_BYTES: u64 = 16 << 20;

#[test]
fn last_handle_persists_files() {
    let (place, pool) = Place::with_pool();
    let files = pool.create_fs("files", FS_BYTES).unwrap();
    files.create_dir("docs").unwrap();
    files.write("docs/letter", b"dear reader").unwrap();
    files.write("docs/letter", b"short").unwrap();
    files.write("/docs/../draft", &[7; 3 << 20]).unwrap();
    files.rename("draft", "docs/draft").unwrap();
    drop(pool);
    let clone = files.clone();
    drop(files);
    assert!(matches!(Pool::open(&place.path), Err(Error::InUse { .. })));
    drop(clone);
    let pool = place.reopened();
    let files = pool.open_fs("files").unwrap();
    assert_eq!(files.read("docs/letter").unwrap(), b"short");
    assert_eq!(files.metadata("docs/draft").unwrap().size, 3 << 20);
    assert_eq!(files.read_dir("docs").unwrap().len(), 2);
    assert!(matches!(pool.open_fs("files"), Err(Error::VolumeInUse { .. })));
    assert!(matches!(pool.delete("files"), Err(Error::VolumeInUse { .. })));
    drop(files);
    pool.delete("files").unwrap();
    assert!(matches!(pool.open_fs("files"), Err(Error::NoSuchVolume { .. })));
}

#[test]
fn file_errors_name_volume_and_path() {
    let (_place, pool) = Place::with_pool();
    let files = pool.create_fs("files", FS_BYTES).unwrap();
    files.create_dir("d").unwrap();
    for (done, what) in [
        (files.read("d/none").map(drop), "files:d/none: no such file or directory"),
        (files.read("d").map(drop), "files:d: is a directory"),
        (files.create_dir("d"), "files:d: the name exists already"),
        (files.write("none/f", b""), "files:none/f: no such file or directory"),
        (files.remove_dir("/"), "files:/: no directory can have this name"),
        (files.write("large", &[1; 20 << 20]), "files:large: no space is left"),
    ] {
        let error = done.unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
    files.remove_file("large").unwrap();
    files.resize(20 << 20).unwrap();
    assert_eq!(files.status().blocks, 20 << 8);
    assert!(matches!(pool.open_block("files"), Err(Error::Volume { .. })));
    pool.close().unwrap();
    assert!(files.write("late", b"").is_err());
}

#[test]
fn timer_makes_files_durable() {
    let place = Place::new();
    let interval = Duration::from_millis(10);
    let builder = Pool::builder().size(POOL_BYTES).checkpoint_interval(interval);
    let pool = builder.create(&place.path).unwrap();
    let files = pool.create_fs("files", FS_BYTES).unwrap();
    let before = pool.volumes()[0].completed_epoch;
    files.write("f", b"not synced").unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while pool.volumes()[0].completed_epoch == before {
        assert!(Instant::now() < deadline);
        std::thread::sleep(interval);
    }
}

#[test]
fn read_only_pool_shows_files() {
    let (place, pool) = Place::with_pool();
    pool.create_fs("files", FS_BYTES).unwrap().write("f", b"bytes").unwrap();
    drop(pool);
    let pool = Pool::builder().read_only(true).open(&place.path).unwrap();
    let files = pool.open_fs("files").unwrap();
    assert_eq!(files.read("f").unwrap(), b"bytes");
    assert!(matches!(files.write("f", b""), Err(Error::ReadOnly { .. })));
    assert!(matches!(pool.create_fs("more", FS_BYTES), Err(Error::ReadOnly { .. })));
    pool.close().unwrap();
    assert!(files.read("f").is_err());
}

#[test]
fn huge_sparse_file_is_not_read() {
    let (_place, pool) = Place::with_pool();
    let files = pool.create_fs("files", FS_BYTES).unwrap();
    files.write("f", b"bytes").unwrap();
    let inode = files.metadata("f").unwrap().inode;
    files.engine().truncate(inode, 1 << 52).unwrap();
    let error = files.read("f").unwrap_err().to_string();
    assert!(error.contains("there is no memory for"), "{error}");
    files.write("f", b"again").unwrap();
    assert_eq!(files.read("f").unwrap(), b"again");
}

#[test]
fn overwrite_is_atomic_for_readers() {
    const LEN: usize = 8192;
    let (_place, pool) = Place::with_pool();
    let files = pool.create_fs("files", FS_BYTES).unwrap();
    files.write("f", &[0; LEN]).unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                let found = files.read("f").unwrap();
                assert_eq!(found.len(), LEN);
                assert!(found.iter().all(|byte| *byte == found[0]), "old and new bytes");
            }
        });
        for byte in (0..=255).cycle().take(2000) {
            files.write("f", &[byte; LEN]).unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
    });
    // Longer and shorter contents also replace all the old bytes.
    for len in [LEN + 5, 7, 0, (1 << 20) + 1, 1 << 20, 3] {
        files.write("f", &vec![9; len]).unwrap();
        assert_eq!(files.read("f").unwrap(), vec![9; len]);
    }
    files.create_dir("d").unwrap();
    assert!(files.write("d", b"").unwrap_err().to_string().contains("is a directory"));
}

/// Each holder of a file in use releases the file.
#[test]
fn operations_release_removed_files() {
    let (_place, pool) = Place::with_pool();
    let files = pool.create_fs("files", FS_BYTES).unwrap();
    let free = files.status().free_inodes;
    files.create_dir("d/").unwrap();
    files.engine().create_inode(files.engine().root(), Name::new(b"link").unwrap(), &LINK).unwrap();
    files.write("link", b"where it leads").unwrap();
    files.write("link", b"short").unwrap();
    assert_eq!(files.read("d/f").unwrap(), b"short");
    assert!(files.write("none/f", b"").is_err() && files.read("d").is_err());
    assert!(files.create_dir("d").is_err() && files.create_dir("/").is_err());
    files.rename("d/f", "d/g").unwrap();
    assert_eq!(files.read_dir("d").unwrap().len(), 1);
    files.remove_file("d/g").unwrap();
    files.remove_file("link").unwrap();
    files.remove_dir("d/").unwrap();
    files.sync().unwrap();
    assert_eq!(files.status().free_inodes, free);
}

/// A link to a file created later.
const LINK: NewInode<'_> = NewInode {
    kind: FileType::Symlink,
    permissions: 0o777,
    umask: 0,
    uid: 0,
    gid: 0,
    device: 0,
    target: b"d/f",
};

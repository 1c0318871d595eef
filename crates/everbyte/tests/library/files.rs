//! File systems.

use std::time::{Duration, Instant};

use everbyte::{Error, Pool};

use super::{POOL_BYTES, Place};

const FS_BYTES: u64 = 16 << 20;

#[test]
fn files_are_there_after_the_last_handle_was_dropped() {
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
    let files = pool.fs("files").unwrap();
    assert_eq!(files.read("docs/letter").unwrap(), b"short");
    assert_eq!(files.metadata("docs/draft").unwrap().size, 3 << 20);
    assert_eq!(files.read_dir("docs").unwrap().len(), 2);
    assert!(matches!(pool.fs("files"), Err(Error::VolumeInUse { .. })));
    assert!(matches!(pool.delete("files"), Err(Error::VolumeInUse { .. })));
    drop(files);
    pool.delete("files").unwrap();
    assert!(matches!(pool.fs("files"), Err(Error::NoSuchVolume { .. })));
}

#[test]
fn errors_name_the_file_system_and_the_path() {
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
    assert!(matches!(pool.block("files"), Err(Error::Volume { .. })));
    pool.close().unwrap();
    assert!(files.write("late", b"").is_err());
}

#[test]
fn files_become_durable_without_being_asked() {
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
fn a_pool_that_was_opened_read_only_shows_its_files_and_changes_none() {
    let (place, pool) = Place::with_pool();
    pool.create_fs("files", FS_BYTES).unwrap().write("f", b"bytes").unwrap();
    drop(pool);
    let pool = Pool::builder().read_only(true).open(&place.path).unwrap();
    let files = pool.fs("files").unwrap();
    assert_eq!(files.read("f").unwrap(), b"bytes");
    assert!(matches!(files.write("f", b""), Err(Error::ReadOnly { .. })));
    assert!(matches!(pool.create_fs("more", FS_BYTES), Err(Error::ReadOnly { .. })));
}

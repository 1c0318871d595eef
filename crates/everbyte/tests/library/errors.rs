//! Messages of errors.

use std::error::Error as _;

use everbyte::error::PoolError;
use everbyte::media::MediaOptions;
use everbyte::{Error, Pool};

use super::Place;

/// Checks the error: it has these words, contains its source and names no command.
fn check_words(error: &Error, words: &[&str]) {
    let said = error.to_string();
    for word in words {
        assert!(said.contains(word), "{said:?} lacks {word:?}");
    }
    assert!(!said.contains("everbyte ") && !said.contains("--"), "{said}");
    if let Some(source) = error.source() {
        assert!(said.contains(&source.to_string()), "{said}");
    }
}

#[test]
fn errors_name_object_and_no_command() {
    let place = Place::new();
    let path = place.path.to_str().unwrap();
    check_words(&Pool::open(path).unwrap_err(), &["there is no pool at", path]);
    check_words(&Pool::builder().create(path).unwrap_err(), &["needs a size", path]);
    check_words(&Pool::create(path, 1000).unwrap_err(), &["multiple of 4096", path]);
    check_words(&Pool::create("/none/such", 1 << 20).unwrap_err(), &["folder", "/none/such"]);
    check_words(&Pool::create(path, 1 << 60).unwrap_err(), &["pool"]);
    assert!(!place.path.exists());

    let other = place.file("other", 8192);
    check_words(&Pool::open(&other).unwrap_err(), &["this is no pool", "other"]);
    check_words(
        &Pool::open(place.folder.path()).unwrap_err(),
        &[&place.folder.path().display().to_string()],
    );

    let pool = Pool::create(path, super::POOL_BYTES).unwrap();
    let pid = format!("process {}", std::process::id());
    let in_use = Pool::open(path).unwrap_err();
    check_words(&in_use, &["in use by", path]);
    assert!(
        !matches!(in_use, Error::InUse { pid: Some(_), .. }) || in_use.to_string().contains(&pid)
    );
    check_words(&Pool::create(path, 1 << 20).unwrap_err(), &["is there already", path]);
    check_words(&pool.open_block("disk").unwrap_err(), &["no volume named \"disk\""]);
    check_words(&pool.delete("disk").unwrap_err(), &["no volume named \"disk\""]);
    let error = pool.create_block("dis k", 512).unwrap_err();
    check_words(&error, &["no volume name"]);
    assert!(matches!(error, Error::Volume { source: PoolError::Invalid(_), .. }));
    check_words(&pool.create_block("disk", 100).unwrap_err(), &["volume disk", "512"]);
    let disk = pool.create_block("disk", 512).unwrap();
    check_words(&pool.open_block("disk").unwrap_err(), &["volume disk is open already"]);
    check_words(&pool.create_block("disk", 512).unwrap_err(), &["a volume named \"disk\" exists"]);
    check_words(&pool.open_cache("disk").unwrap_err(), &["volume disk is a block volume"]);
    check_words(&disk.resize(1).unwrap_err(), &["volume disk", "512"]);
}

#[test]
fn unopened_new_pool_leaves_no_file() {
    let place = Place::new();
    // More address space than any process has.
    let builder =
        Pool::builder().size(super::POOL_BYTES).media(MediaOptions::new().reserve_bytes(1 << 62));
    let error = builder.create(&place.path).unwrap_err();
    assert!(matches!(error, Error::Medium { .. }), "{error}");
    assert!(!place.path.exists());
    Pool::create(&place.path, super::POOL_BYTES).unwrap().close().unwrap();
    builder.overwrite(true).create(&place.path).unwrap_err();
    assert!(place.path.exists(), "it was there before");
    Pool::open(&place.path).unwrap();
}

#[test]
fn huge_volumes_max_is_refused() {
    let place = Place::new();
    for volumes in [u64::MAX, u64::MAX - 2, u64::MAX / 4096] {
        let builder = Pool::builder().size(super::POOL_BYTES).volumes_max(volumes);
        let error = builder.create(&place.path).unwrap_err();
        assert!(error.to_string().contains("needs at least"), "{error}");
        assert!(!place.path.exists());
    }
}

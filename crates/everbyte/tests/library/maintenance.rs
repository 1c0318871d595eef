//! Operations of the pool and of its volumes, as the commands `pool` and `volume` have them.

use everbyte::cache::{CacheState, ChangeOptions, NewSizes};
use everbyte::error::CacheError;
use everbyte::pool::Health;
use everbyte::volume::VolumeState;
use everbyte::{BlockDevice, Error, Pool, Volume};

use super::{POOL_BYTES, Place};

const SLOW_BYTES: usize = 4 << 20;

#[test]
fn open_volume_keeps_its_bytes_under_a_new_name() {
    let (place, pool) = Place::with_pool();
    let disk = pool.create_block("old", 1 << 20).unwrap();
    pool.create_block("taken", 1 << 20).unwrap();
    disk.write_durable(0, b"bytes").unwrap();
    let error = pool.rename("old", "taken").unwrap_err();
    assert!(matches!(error, Error::VolumeExists { .. }), "{error}");
    pool.rename("old", "new").unwrap();
    assert_eq!(disk.name(), "new");
    drop((disk, pool));
    let mut found = [0; 5];
    place.reopened().open_block("new").unwrap().read_at(0, &mut found).unwrap();
    assert_eq!(&found, b"bytes");
}

#[test]
fn grown_pool_is_clean_and_larger() {
    let (_place, pool) = Place::with_pool();
    assert!(matches!(pool.grow(POOL_BYTES), Err(Error::Invalid { .. })));
    assert_eq!(pool.grow(2 * POOL_BYTES).unwrap(), 2 * POOL_BYTES);
    assert_eq!(pool.info().size_bytes, 2 * POOL_BYTES);
    let report = pool.check().unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.health, Health::Clean);
    assert!(pool.scrub().findings.is_empty());
}

#[test]
fn volumes_of_all_kinds_scrub_and_report_status() {
    let (place, pool) = Place::with_pool();
    let slow = place.file("slow", SLOW_BYTES);
    pool.create_block("disk", 1 << 20).unwrap().write_durable(0, &[7; 4096]).unwrap();
    pool.create_cache("cache", slow, 1 << 20).unwrap().close().unwrap();
    pool.create_fs("files", 4 << 20).unwrap().write("f", b"bytes").unwrap();
    pool.create_swap("swap", 2 << 20).unwrap();
    for name in ["cache", "disk", "files", "swap"] {
        let volume = pool.open_volume(name).unwrap();
        assert_eq!(volume.name(), name);
        let mut next = Some(0);
        while let Some(from) = next {
            let (report, rest) = volume.scrub(from).unwrap();
            assert!(report.findings.is_empty(), "{report:?}");
            next = rest;
        }
        let status = volume.status();
        assert_eq!(status.state(), VolumeState::Ok, "{status:?}");
        assert_eq!(status.cache.is_some(), name == "cache");
        assert_eq!(pool.volume_status(name).unwrap().info.size_bytes, status.info.size_bytes);
        if !matches!(volume, Volume::Cache(_)) {
            volume.resize(8 << 20).unwrap();
            assert_eq!(volume.size_bytes().unwrap(), 8 << 20);
        } else {
            assert!(matches!(volume.resize(8 << 20), Err(Error::CacheSize { .. })));
        }
    }
}

#[test]
fn swap_volume_lends_runs_until_their_lock_ends() {
    let (_place, pool) = Place::with_pool();
    let swap = pool.create_swap("swap", 4 << 20).unwrap();
    let lease = swap.lend(2 << 20, std::process::id()).unwrap();
    assert_eq!(swap.status().unwrap().lent, 1);
    assert!(swap.is_lent() && swap.scratch().is_err());
    drop(lease);
    assert!(!swap.is_lent());
    drop(swap);
    pool.delete("swap").unwrap();
}

#[test]
fn cache_grows_with_its_backing_device() {
    let (place, pool) = Place::with_pool();
    let slow = place.file("slow", SLOW_BYTES);
    let cache = pool.create_cache("cache", &slow, 1 << 20).unwrap();
    cache.resize(NewSizes { scm_bytes: Some(2 << 20), ..NewSizes::default() }).unwrap();
    assert_eq!(cache.status().unwrap().settings.scm_bytes, 2 << 20);
    cache.write_at(0, b"kept").unwrap();
    cache.close().unwrap();
    std::fs::OpenOptions::new().write(true).open(&slow).unwrap().set_len(8 << 20).unwrap();
    let error = pool.open_cache("cache").unwrap_err();
    assert!(matches!(error, Error::Cache { source: CacheError::OtherSize { .. }, .. }), "{error}");
    let cache = pool.open_cache_in_background("cache").unwrap();
    cache.resize(NewSizes { follows_backing: true, ..NewSizes::default() }).unwrap();
    assert_eq!((cache.state(), cache.geometry().size_bytes), (CacheState::Open, 8 << 20));
    let mut found = [0; 4];
    cache.read_at(0, &mut found).unwrap();
    assert_eq!(&found, b"kept");
}

#[test]
fn moved_backing_device_is_attached_and_detached() {
    let (place, pool) = Place::with_pool();
    let slow = place.file("slow", SLOW_BYTES);
    let cache = pool.create_cache("cache", &slow, 1 << 20).unwrap();
    cache.read_at(0, &mut [0; 4096]).unwrap();
    cache.write_at(8192, b"dirty").unwrap();
    cache.close().unwrap();
    let moved = place.folder.path().join("moved");
    std::fs::rename(&slow, &moved).unwrap();
    let cache = pool.open_cache_in_background("cache").unwrap();
    assert!(matches!(cache.wait_until_open(), Err(Error::NotOpen(_))));
    assert_eq!(cache.state(), CacheState::BackingMissing);
    cache.attach(&moved).unwrap();
    let mut left = Vec::new();
    cache.detach(|dirty_bytes| left.push(dirty_bytes)).unwrap();
    assert_eq!(left.last(), Some(&0));
    assert!(pool.volumes().is_empty());
    assert_eq!(&std::fs::read(moved).unwrap()[8192..8197], b"dirty");
}

#[test]
fn detach_keeps_acknowledged_writes_of_other_handles() {
    let (place, pool) = Place::with_pool();
    let slow = place.file("slow", SLOW_BYTES);
    let cache = pool.create_cache("cache", &slow, 1 << 20).unwrap();
    let other = cache.clone();
    let writer = std::thread::spawn(move || {
        let mut acknowledged = 0_u64;
        while other.write_at(4096, &(acknowledged + 1).to_le_bytes()).is_ok() {
            acknowledged += 1;
        }
        acknowledged
    });
    cache.detach(|_| ()).unwrap();
    let acknowledged = writer.join().unwrap();
    let bytes = std::fs::read(slow).unwrap();
    assert_eq!(bytes[4096..4104], acknowledged.to_le_bytes());
}

#[test]
fn damaged_pool_is_repaired_and_checked() {
    let (place, pool) = Place::with_pool();
    pool.create_block("disk", 1 << 20).unwrap();
    pool.close().unwrap();
    let before = std::fs::read(&place.path).unwrap();
    let (mended, repaired) = Pool::builder().repair(&place.path, true).unwrap();
    assert!(mended.is_empty(), "{mended:?}");
    assert!(repaired.is_read_only() && repaired.check().unwrap().is_clean());
    assert!(matches!(repaired.delete_damaged("disk"), Err(Error::ReadOnly { .. })));
    drop(repaired);
    assert!(std::fs::read(&place.path).unwrap() == before, "a dry run changed the file");
    let pool = place.reopened();
    let deleted = pool.delete_damaged("disk").unwrap();
    assert_eq!((deleted.damage, deleted.leaked_blocks), (None, 0));
    assert!(pool.check().unwrap().is_clean());
}

#[test]
fn failed_change_keeps_reason_of_failed_opening() {
    let (place, pool) = Place::with_pool();
    let slow = place.file("slow", SLOW_BYTES);
    pool.create_cache("cache", &slow, 1 << 20).unwrap().close().unwrap();
    std::fs::rename(&slow, place.folder.path().join("moved")).unwrap();
    let cache = pool.open_cache_in_background("cache").unwrap();
    assert!(cache.wait_until_open().is_err());
    let sizes = NewSizes { scm_bytes: Some(2 << 20), ..NewSizes::default() };
    let error = cache.resize_with(sizes, &ChangeOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Backing { .. }), "{error}");
    assert_eq!(cache.state(), CacheState::BackingMissing);
    let error = cache.wait_until_open().unwrap_err();
    assert!(error.to_string().contains("slow"), "{error}");
}

#[test]
fn refused_swap_deletion_keeps_lending() {
    let (_place, pool) = Place::with_pool();
    let swap = pool.create_swap("swap", 2 << 20).unwrap();
    pool.engine().volume("swap").unwrap().refuse_changes("the test says so");
    let error = Volume::Swap(swap.clone()).delete(false).unwrap_err();
    assert!(matches!(error, Error::Volume { .. }), "{error}");
    swap.lend(2 << 20, std::process::id()).unwrap();
}

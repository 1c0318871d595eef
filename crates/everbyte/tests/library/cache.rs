//! Caches.

use std::time::Duration;

use everbyte::cache::{CacheOptions, Mode};
use everbyte::device::DeviceError;
use everbyte::error::CacheError;
use everbyte::{BlockDevice, CacheVolume, Error, Fua, Pool, Volume};

use super::Place;

const SLOW_BYTES: usize = 4 << 20;
const SCM_BYTES: u64 = 1 << 20;

fn start(device: &impl BlockDevice) -> Vec<u8> {
    let mut found = vec![0; 3];
    device.read(0, &mut found).unwrap();
    found
}

#[test]
fn last_handle_persists_cache_dram() {
    let (place, pool) = Place::with_pool();
    let slow = place.file("slow", SLOW_BYTES);
    let cache = pool.create_cache("cache", &slow, SCM_BYTES).unwrap();
    assert_eq!(cache.geometry().size_bytes, SLOW_BYTES as u64);
    assert_eq!(start(&cache), [1; 3]);
    cache.write(0, b"new", Fua::No).unwrap();
    drop((pool, cache.clone()));
    drop(cache);
    assert_eq!(std::fs::read(&slow).unwrap()[..3], [1; 3]);
    let cache = place.reopened().open_cache("cache").unwrap();
    assert_eq!(start(&cache), b"new");
    cache.drain().unwrap();
    assert_eq!(&std::fs::read(&slow).unwrap()[..3], b"new");
}

#[test]
fn pool_close_closes_caches_first() {
    let (place, pool) = Place::with_pool();
    let slow = place.file("slow", SLOW_BYTES);
    let cache = pool.create_cache("cache", &slow, SCM_BYTES).unwrap();
    cache.write(0, b"new", Fua::No).unwrap();
    pool.close().unwrap();
    assert!(matches!(cache.write(0, b"late", Fua::No), Err(DeviceError::Gone)));
    assert!(matches!(cache.flush(), Err(DeviceError::Gone)));
    assert!(cache.stats().is_err() && cache.drain().is_err() && cache.geometry().read_only);
    cache.close().unwrap();
    assert_eq!(start(&place.reopened().open_cache("cache").unwrap()), b"new");
}

/// Makes a pool without a free block. Its cache has bytes in DRAM without room in the pool.
fn full_pool_and_unflushed_cache() -> (Place, Pool, CacheVolume) {
    let (place, pool) = Place::with_pool();
    let slow = place.file("slow", SLOW_BYTES);
    let cache = pool.create_cache("cache", &slow, SCM_BYTES).unwrap();
    let disk = pool.create_block("disk", 64 << 20).unwrap();
    let mut at = 0;
    for len in [1 << 20, 4096] {
        while disk.write(at, &vec![7; len], Fua::No).is_ok() {
            at += len as u64;
        }
    }
    disk.flush().unwrap();
    cache.write(0, &[9; 8192], Fua::No).unwrap();
    (place, pool, cache)
}

#[test]
fn close_reports_lost_cache_writes() {
    let (place, pool, cache) = full_pool_and_unflushed_cache();
    let disk = pool.open_block("disk").unwrap();
    disk.write(0, b"kept", Fua::No).unwrap();
    let again = pool.clone();
    for closed in [pool.close(), again.close()] {
        let error = closed.unwrap_err();
        assert!(matches!(&error, Error::Lost { lost } if lost[0].volume == "cache"), "{error}");
    }
    assert!(matches!(disk.write(0, b"late", Fua::No), Err(DeviceError::Gone)));
    drop((disk, cache));
    let pool = Pool::open(&place.path).unwrap();
    assert!(!pool.recovery().was_clean);
    let mut found = [0; 4];
    pool.open_block("disk").unwrap().read(0, &mut found).unwrap();
    assert_eq!(&found, b"kept");
}

#[test]
fn close_reports_loss_of_dropped_cache() {
    let (place, pool, cache) = full_pool_and_unflushed_cache();
    drop(cache.clone());
    drop(cache);
    let error = pool.close().unwrap_err();
    assert!(matches!(&error, Error::Lost { lost } if lost[0].volume == "cache"), "{error}");
    assert!(!Pool::open(&place.path).unwrap().recovery().was_clean);
}

#[test]
fn closed_cache_reopens_beside_old_handles() {
    let (place, pool) = Place::with_pool();
    let slow = place.file("slow", SLOW_BYTES);
    let cache = pool.create_cache("cache", &slow, SCM_BYTES).unwrap();
    cache.write(0, b"new", Fua::No).unwrap();
    let left = cache.clone();
    assert!(matches!(pool.open_cache("cache"), Err(Error::VolumeInUse { .. })));
    cache.close().unwrap();
    assert!(left.read(0, &mut [0]).is_err());
    let again = pool.open_cache("cache").unwrap();
    drop(left);
    assert_eq!(start(&again), b"new");
    pool.close().unwrap();
}

#[test]
fn closed_cache_refuses_all_threads() {
    let (place, pool) = Place::with_pool();
    let slow = place.file("slow", SLOW_BYTES);
    let cache = pool.create_cache("cache", &slow, SCM_BYTES).unwrap();
    let late = cache.clone();
    cache.close().unwrap();
    // More threads than the cache has locks for them.
    for _ in 0..64 {
        let refused = std::thread::scope(|scope| scope.spawn(|| late.flush()).join().unwrap());
        assert!(matches!(refused, Err(DeviceError::Gone)));
    }
}

#[test]
fn cache_reopens_without_time_limit() {
    let place = Place::new();
    let slow = place.file("slow", SLOW_BYTES);
    let builder = Pool::builder().size(super::POOL_BYTES).backing_timeout(Duration::MAX);
    let pool = builder.create(&place.path).unwrap();
    let cache = pool.create_cache("cache", &slow, SCM_BYTES).unwrap();
    cache.write(0, b"new", Fua::No).unwrap();
    cache.close().unwrap();
    let cache = pool.open_cache("cache").unwrap();
    assert_eq!(start(&cache), b"new");
    drop(cache);
    // Closing the pool closes this one.
    let _left = pool.open_cache("cache").unwrap();
    pool.close().unwrap();
}

#[test]
fn backing_device_has_one_cache() {
    let (place, pool) = Place::with_pool();
    let slow = place.file("slow", SLOW_BYTES);
    let first = pool.create_cache("first", &slow, SCM_BYTES).unwrap();
    let error = pool.create_cache("second", &slow, SCM_BYTES).unwrap_err();
    assert!(matches!(error, Error::SharedBacking { .. }), "{error}");
    drop(first);
    let error = pool.create_cache("second", &slow, SCM_BYTES).unwrap_err();
    let Error::SharedBacking { other, .. } = &error else { panic!("{error}") };
    assert_eq!(other, "first");
    assert_eq!(pool.volumes().len(), 1);
}

#[test]
fn dirty_cache_is_not_deleted() {
    let (place, pool) = Place::with_pool();
    let slow = place.file("slow", SLOW_BYTES);
    let cache = pool.create_cache("cache", &slow, SCM_BYTES).unwrap();
    cache.write(5000, b"x", Fua::Yes).unwrap();
    drop(cache);
    let error = pool.delete("cache").unwrap_err();
    assert!(matches!(error, Error::Dirty { dirty_bytes: 4096, .. }), "{error}");
    pool.open_cache("cache").unwrap().drain().unwrap();
    pool.delete("cache").unwrap();
    assert!(pool.volumes().is_empty());
    assert_eq!(std::fs::read(&slow).unwrap()[5000], b'x');
}

#[test]
fn failed_creation_leaves_no_volume() {
    let (place, pool) = Place::with_pool();
    let slow = place.file("slow", SLOW_BYTES);
    let refused = |error: Result<_, Error>, words: &str| {
        let said = error.map(|_: CacheVolume| ()).unwrap_err().to_string();
        assert!(said.contains("cache") && said.contains(words), "{said}");
        assert!(pool.volumes().is_empty());
    };
    refused(pool.create_cache("cache", "/none/such", SCM_BYTES), "/none/such");
    let uri = "nbd+unix:///x?socket=/none/such";
    refused(pool.create_cache("cache", uri, SCM_BYTES), uri);
    refused(pool.create_cache("cache", &slow, 1), "out of range");
    refused(pool.create_cache("cache", &slow, 1 << 30), "are free");
    let small = CacheOptions::new().dram_bytes(1);
    refused(pool.create_cache_with("cache", &slow, SCM_BYTES, &small), "DRAM");
}

#[test]
fn other_file_at_backing_path_is_refused() {
    let (place, pool) = Place::with_pool();
    let slow = place.file("slow", SLOW_BYTES);
    let through = CacheOptions::new().mode(Mode::WriteThrough);
    drop(pool.create_cache_with("cache", &slow, SCM_BYTES, &through).unwrap());
    std::fs::rename(&slow, place.folder.path().join("moved")).unwrap();
    assert!(matches!(pool.open_cache("cache"), Err(Error::Backing { .. })));
    place.file("slow", SLOW_BYTES);
    let error = pool.open_cache("cache").unwrap_err();
    assert!(
        matches!(error, Error::Cache { source: CacheError::OtherBacking { .. }, .. }),
        "{error}"
    );
    assert!(!error.to_string().contains("everbyte volume"), "{error}");
    let kinds: Vec<String> = pool.volumes().into_iter().map(|volume| volume.kind).collect();
    assert_eq!(kinds, ["cache"]);
}

#[test]
fn look_does_not_reserve_a_cache() {
    let (place, pool) = Place::with_pool();
    let slow = place.file("slow", SLOW_BYTES);
    pool.create_cache("cache", &slow, SCM_BYTES).unwrap().close().unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    pool.volume_status("cache").unwrap();
                    // Fails during the end of the handle.
                    drop(pool.find_backing(|_, _| false));
                }
            });
        }
        let opened: Result<Vec<()>, Error> = (0..100)
            .map(|_| {
                // Closing a cache releases its volume on another thread, so this one stays closed.
                let volume = pool.open_volume("cache")?;
                let Volume::Cache(cache) = volume else { panic!("another kind") };
                cache.close()
            })
            .collect();
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        opened.unwrap();
    });
}

#[test]
fn pool_close_during_creation_keeps_no_damage() {
    for round in 0..40 {
        let place = Place::in_memory();
        let pool = Pool::create(&place.path, super::POOL_BYTES).unwrap();
        let slow = place.file("slow", SLOW_BYTES);
        let (creator, start) = (pool.clone(), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                drop(creator.create_closed_cache("cache", slow, SCM_BYTES, &CacheOptions::new()));
            });
            start.wait();
            std::thread::sleep(Duration::from_micros(100 * round));
            pool.clone().close().unwrap();
        });
        drop((pool, creator));
        let pool = place.reopened();
        for volume in pool.volumes() {
            let status = pool.volume_status(&volume.name).unwrap();
            assert_eq!(status.damage, None, "round {round}");
        }
    }
}

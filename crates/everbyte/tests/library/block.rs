//! Pools and block volumes.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use everbyte::block::{BlockOptions, Checksum};
use everbyte::device::{AtomicWrites, DeviceError, WriteRequest, conformance};
use everbyte::media::{MediaOptions, Technology};
use everbyte::{BlockDevice, Error, Fua, Pool};

use super::{POOL_BYTES, Place};

fn read(device: &impl BlockDevice, offset: u64, len: usize) -> Vec<u8> {
    let mut found = vec![0; len];
    device.read(offset, &mut found).unwrap();
    found
}

#[test]
fn last_handle_closes_the_pool() {
    let (place, pool) = Place::with_pool();
    let disk = pool.create_block("disk", 1 << 20).unwrap();
    let clone = disk.clone();
    drop(pool);
    drop(disk);
    clone.write(0, b"not flushed", Fua::No).unwrap();
    assert!(matches!(Pool::open(&place.path), Err(Error::InUse { .. })));
    drop(clone);
    let disk = place.reopened().open_block("disk").unwrap();
    assert_eq!(read(&disk, 0, 11), b"not flushed");
}

#[test]
fn close_is_durable_and_ends_handles() {
    let (place, pool) = Place::with_pool();
    let disk = pool.create_block("disk", 1 << 20).unwrap();
    disk.write(0, b"not flushed", Fua::No).unwrap();
    let clone = pool.clone();
    pool.close().unwrap();
    assert!(matches!(disk.write(0, b"late", Fua::No), Err(DeviceError::Gone)));
    assert!(matches!(disk.flush(), Err(DeviceError::Gone)));
    assert!(matches!(clone.open_block("disk"), Err(Error::Closed { .. })));
    assert!(matches!(clone.create_block("other", 512), Err(Error::Closed { .. })));
    clone.close().unwrap();
    drop(disk);
    assert_eq!(read(&place.reopened().open_block("disk").unwrap(), 0, 11), b"not flushed");
}

#[test]
fn timer_makes_writes_durable() {
    let place = Place::new();
    let interval = Duration::from_millis(10);
    let builder = Pool::builder().size(POOL_BYTES).checkpoint_interval(interval);
    let pool = builder.create(&place.path).unwrap();
    let disk = pool.create_block("disk", 1 << 20).unwrap();
    let before = pool.volumes()[0].completed_epoch;
    disk.write(0, b"not flushed", Fua::No).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while pool.volumes()[0].completed_epoch == before {
        assert!(Instant::now() < deadline, "no checkpoint came");
        std::thread::sleep(interval);
    }
}

#[test]
fn volume_has_one_handle() {
    let (_place, pool) = Place::with_pool();
    let options = BlockOptions::new().checksum(Checksum::Crc32c);
    let disk = pool.create_block_with("disk", 4 << 20, &options).unwrap();
    assert!(matches!(pool.open_block("disk"), Err(Error::VolumeInUse { .. })));
    assert!(matches!(pool.delete("disk"), Err(Error::VolumeInUse { .. })));
    let one = |offset, data| WriteRequest { offset, data, fua: Fua::Yes };
    disk.write_atomic(&[one(0, b"both".as_slice()), one(1 << 20, b"or none")]).unwrap();
    disk.resize(2 << 20).unwrap();
    assert_eq!(disk.geometry().size_bytes, 2 << 20);
    assert_eq!((disk.name(), read(&disk, 1 << 20, 7)), ("disk", b"or none".to_vec()));
    drop(disk);
    let disk = pool.open_block("disk").unwrap();
    drop(disk);
    pool.delete("disk").unwrap();
    assert!(pool.volumes().is_empty());
    assert!(matches!(pool.open_block("disk"), Err(Error::NoSuchVolume { .. })));
}

#[test]
fn read_only_open_changes_nothing() {
    let (place, pool) = Place::with_pool();
    pool.create_block("disk", 1 << 20).unwrap().write(0, b"there", Fua::No).unwrap();
    pool.close().unwrap();
    let before = std::fs::read(&place.path).unwrap();
    {
        let look = || Pool::builder().read_only(true).open(&place.path).unwrap();
        let (pool, _other) = (look(), look());
        let disk = pool.open_block("disk").unwrap();
        assert_eq!(read(&disk, 0, 5), b"there");
        assert!(disk.geometry().read_only);
        let refused = disk.write(0, b"x", Fua::No);
        assert!(matches!(refused, Err(DeviceError::ReadOnly { .. })), "{refused:?}");
        drop(disk);
        assert!(matches!(pool.delete("disk"), Err(Error::ReadOnly { .. })));
        assert!(matches!(pool.create_block("new", 512), Err(Error::ReadOnly { .. })));
        assert!(matches!(pool.open_cache("disk"), Err(Error::ReadOnly { .. })));
        assert!(matches!(Pool::open(&place.path), Err(Error::InUse { .. })));
        let late = pool.open_block("disk").unwrap();
        pool.close().unwrap();
        assert!(matches!(late.read(0, &mut [0]), Err(DeviceError::Gone)));
    }
    assert!(std::fs::read(&place.path).unwrap() == before, "the file has changed");
}

#[test]
fn builder_options_apply() {
    let place = Place::new();
    let media = MediaOptions::new().emulate(Some(Technology::Pcm)).populate(true);
    let builder = Pool::builder().volumes_max(1).media(media.reserve_bytes(1 << 30));
    let pool = builder.clone().size(POOL_BYTES).create(&place.path).unwrap();
    assert_eq!(pool.medium().emulated, Some(Technology::Pcm));
    assert_eq!((pool.info().size_bytes, pool.info().volumes_max), (POOL_BYTES, 1));
    drop(pool);
    assert!(matches!(builder.clone().create(&place.path), Err(Error::Invalid { .. })));
    let again = builder.size(POOL_BYTES).overwrite(true).create(&place.path).unwrap();
    assert!(again.volumes().is_empty());
}

#[test]
fn volumes_pass_the_conformance_suite() {
    let place = Place::in_memory();
    let pool = Pool::create(&place.path, 256 << 20).unwrap();
    let made = Cell::new(0);
    let name = || {
        made.set(made.get() + 1);
        format!("volume{}", made.get())
    };
    conformance(&|size| Arc::new(pool.create_block(&name(), size).unwrap()));
    conformance(&|size| {
        let name = name();
        let slow = place.file(&name, 0);
        std::fs::File::create(&slow).unwrap().set_len(size).unwrap();
        Arc::new(pool.create_cache(&name, &slow, 1 << 20).unwrap())
    });
}

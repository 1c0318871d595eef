//! Tests of the schemes: the device contract here, crashes and costs in the modules.

mod costs;
mod crash;
mod planted;
mod scenario;

use std::collections::BTreeSet;
use std::sync::Arc;

use everbyte_crash::SimMedium;
use everbyte_device::{AtomicWriteError, BlockDevice, DeviceError, Fua, WriteRequest, conformance};
use everbyte_extent::Delta;
use everbyte_media::{Mapped, MediaOptions, Medium, PoolOffset};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{Kind, Scheme, build, open};

const LOG_BYTES: u64 = 256 << 10;

fn fresh(kind: Kind, device_bytes: u64, log_bytes: u64) -> Arc<dyn Scheme> {
    let bytes = kind.medium_bytes(device_bytes, log_bytes).unwrap();
    let medium = Mapped::anonymous(bytes, &MediaOptions::new().force_flush(true)).unwrap();
    build(kind, Arc::new(medium), device_bytes, log_bytes, Delta::Auto).unwrap()
}

#[test]
fn every_scheme_keeps_the_device_contract() {
    for kind in Kind::ALL {
        conformance(&|bytes| -> Arc<dyn BlockDevice> { fresh(kind, bytes, LOG_BYTES) });
    }
}

#[test]
fn names_are_unique() {
    let names: BTreeSet<_> =
        Kind::ALL.into_iter().map(|kind| fresh(kind, 1 << 20, LOG_BYTES).name()).collect();
    assert_eq!(names.len(), Kind::ALL.len());
}

#[test]
fn batch_over_one_commit_is_refused_or_split() {
    for kind in Kind::ALL {
        let device = fresh(kind, 16 << 20, LOG_BYTES);
        let data: Vec<u8> = (0..8_u32 << 20).map(|at| (at % 251) as u8).collect();
        let request = WriteRequest { offset: 5, data: &data, fua: Fua::Yes };
        let mut found = vec![1; data.len()];
        // Rollback logs a pointer for each block, and writes all of it at once.
        if kind != Kind::Rollback {
            let refused = device.write_atomic(&[request]);
            let too_large = matches!(refused, Err(AtomicWriteError::TooLarge { .. }));
            assert!(too_large, "{kind:?}: {refused:?}");
            device.read(5, &mut found).unwrap();
            assert!(found.iter().all(|&byte| byte == 0), "{kind:?}: nothing was done");
        }
        device.write(5, &data, Fua::Yes).unwrap();
        device.read(5, &mut found).unwrap();
        assert!(found == data, "{kind:?}: not what was written");
    }
}

/// The opening of another scheme's device, or of a damaged device, fails with its cause.
#[test]
fn wrong_superblocks_are_refused() {
    let bytes = Kind::None.medium_bytes(1 << 20, LOG_BYTES).unwrap();
    let medium = Arc::new(Mapped::anonymous(bytes, &MediaOptions::new()).unwrap());
    for kind in Kind::ALL {
        assert!(
            open(kind, Arc::clone(&medium), Delta::Auto).is_err(),
            "{kind:?}: nothing is there"
        );
        assert!(
            build(kind, Arc::clone(&medium), 1 << 40, LOG_BYTES, Delta::Auto).is_err(),
            "too small"
        );
    }
    build(Kind::Shadow, Arc::clone(&medium), 1 << 20, LOG_BYTES, Delta::Auto).unwrap();
    let of_another = open(Kind::None, Arc::clone(&medium), Delta::Auto).err().unwrap().to_string();
    assert!(of_another.contains("another scheme"), "{of_another}");
    medium.store_word(PoolOffset(16), 257);
    let damaged = open(Kind::Shadow, medium, Delta::Auto).err().unwrap().to_string();
    assert!(damaged.contains("checksum"), "{damaged}");
}

/// For any words of head, table and log, opening and reading end with an answer. Rollback's pools
/// are fuzzed elsewhere.
#[test]
fn damaged_devices_never_panic() {
    let (mut opened, mut refused) = (0, 0);
    for kind in Kind::ALL.into_iter().filter(|&kind| kind != Kind::Rollback) {
        let mut random = SmallRng::seed_from_u64(5);
        for _ in 0..200 {
            let bytes = kind.medium_bytes(64 << 10, 64 << 10).unwrap();
            let medium = Arc::new(Mapped::anonymous(bytes, &MediaOptions::new()).unwrap());
            let device = build(kind, Arc::clone(&medium), 64 << 10, 64 << 10, Delta::Auto).unwrap();
            for block in 0..4 {
                device.write(block * 4096 + 9, &[7; 1000], Fua::Yes).unwrap();
            }
            device.write(9, &[8; 3000], Fua::Yes).unwrap();
            drop(device);
            for _ in 0..random.random_range(1..4) {
                // Words of head, table and the log's first blocks.
                let at = PoolOffset(8 * random.random_range(512..3 * 512));
                let old = medium.load_word(at);
                let new = match random.random_range(0..3) {
                    0 => old ^ 1 << random.random_range(0..64),
                    1 => random.random_range(0..200),
                    _ => random.random(),
                };
                medium.store_word(at, new);
            }
            match open(kind, medium, Delta::Auto) {
                Ok(device) => {
                    opened += 1;
                    device.read(0, &mut [0; 64 << 10]).unwrap();
                    device.write(100, &[9; 5000], Fua::Yes).unwrap();
                }
                Err(_) => refused += 1,
            }
        }
    }
    assert!(opened > 10 && refused > 10, "{opened} opened, {refused} refused");
}

/// A line of a block fails: requests for it fail, and the others continue.
#[test]
fn media_error_fails_only_its_requests() {
    for kind in Kind::ALL.into_iter().filter(|&kind| kind != Kind::Rollback) {
        let bytes = kind.medium_bytes(64 << 10, 64 << 10).unwrap();
        let medium = Arc::new(SimMedium::new(bytes));
        let device = build(kind, Arc::clone(&medium), 64 << 10, 64 << 10, Delta::Auto).unwrap();
        device.write(0, &[7; 2 * 4096], Fua::No).unwrap();
        device.checkpoint().unwrap();
        // Opened again, no scheme has a page in its cache.
        drop(device);
        let device = open(kind, Arc::clone(&medium), Delta::Auto).unwrap();
        let image = medium.image();
        let place = image.chunks(4096).rposition(|block| block == [7; 4096]).unwrap();
        medium.inject_poison(PoolOffset(place as u64 * 4096 + 128), 64);
        let (of_first, of_second) = (read(&*device, 0), read(&*device, 4096));
        let (bad, good) = if of_first.is_err() { (0, 4096) } else { (4096, 0) };
        let sound = if bad == 0 { &of_second } else { &of_first };
        assert!(sound.as_ref().is_ok_and(|bytes| bytes == &[7; 4096]), "{kind:?}");
        // In place, nothing has to be read, and the store is lost.
        if !in_place(kind) {
            let written = device.write(bad + 100, &[8; 60], Fua::Yes);
            assert!(matches!(written, Err(DeviceError::Media { .. })), "{kind:?}: {written:?}");
        }
        device.write(good + 5, &[9; 3000], Fua::Yes).unwrap();
        device.write(good, &[6; 4096], Fua::Yes).unwrap();
        assert_eq!(read(&*device, good).unwrap(), [6; 4096], "{kind:?}");
        device.flush().unwrap();
        if in_place(kind) {
            continue;
        }
        let data = [8; 90];
        let request = |offset| WriteRequest { offset, data: &data, fua: Fua::No };
        let both = device.write_atomic(&[request(good + 5), request(bad + 100)]);
        let named = matches!(both, Err(AtomicWriteError::Device(DeviceError::Media { .. })));
        assert!(named, "{kind:?}: {both:?}");
        assert!(device.flush().is_err(), "{kind:?}: half of it must not become durable");
        drop(device);
        let device = open(kind, medium, Delta::Auto).unwrap();
        assert_eq!(read(&*device, good).unwrap(), [6; 4096], "{kind:?}: opened again");
    }
}

/// Schemes with overwrites without a read.
fn in_place(kind: Kind) -> bool {
    matches!(kind, Kind::Ramfs | Kind::None)
}

fn read(device: &dyn Scheme, at: u64) -> Result<Vec<u8>, DeviceError> {
    let mut bytes = vec![0; 4096];
    device.read(at, &mut bytes).map(|()| bytes)
}

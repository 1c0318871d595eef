//! Several writes as one: their costs, and the rollback of all if one fails.

use everbyte_block::BlockOptions;
use everbyte_device::{
    AtomicWriteError, AtomicWrites, BlockDevice, DeviceError, Fua, WriteRequest,
};

use crate::{new_pool, new_volume, pattern};

fn request(offset: u64, data: &[u8], fua: Fua) -> WriteRequest<'_> {
    WriteRequest { offset, data, fua }
}

#[test]
fn atomic_writes_cost_one_checkpoint_if_fua() {
    let pool = new_pool(1024);
    let volume = new_volume(&pool, "v", 1 << 20, &BlockOptions::default());
    volume.write(0, &pattern(1, 64 << 10), Fua::No).unwrap();
    volume.flush().unwrap();
    let (a, b) = (pattern(2, 100), pattern(3, 6000));
    let completed = || volume.volume().completed_epoch();
    let before = completed();
    volume.write_atomic(&[request(10, &a, Fua::No), request(8192, &b, Fua::No)]).unwrap();
    assert_eq!(completed(), before);
    volume.write_atomic(&[request(8192, &a, Fua::No), request(10, &b, Fua::Yes)]).unwrap();
    assert_eq!(completed(), before + 1);
    let mut back = vec![0; 6000];
    volume.read(10, &mut back).unwrap();
    assert_eq!(back, b);
}

#[test]
fn later_writes_go_over_earlier_ones() {
    let pool = new_pool(1024);
    let volume = new_volume(&pool, "v", 1 << 20, &BlockOptions::default());
    let (a, b) = (pattern(2, 8192), pattern(3, 100));
    volume.write_atomic(&[request(0, &a, Fua::No), request(4090, &b, Fua::No)]).unwrap();
    let mut back = vec![0; 8192];
    volume.read(0, &mut back).unwrap();
    let expected = [&a[..4090], &b[..], &a[4190..]].concat();
    assert_eq!(back, expected);
}

#[test]
fn impossible_atomic_write_changes_nothing() {
    let pool = new_pool(96);
    let options = BlockOptions { log_bytes: Some(32 << 10), lanes: 1, ..BlockOptions::default() };
    let volume = new_volume(&pool, "v", 1 << 20, &options);
    let old = pattern(1, 16 << 10);
    volume.write(0, &old, Fua::Yes).unwrap();
    let unchanged = |why: &str| {
        let mut back = vec![0; old.len()];
        volume.read(0, &mut back).unwrap();
        assert!(back == old, "{why}");
        assert!(pool.check().unwrap().is_clean(), "{why}");
    };
    let new = pattern(2, 1000);
    let beyond = [request(0, &new, Fua::No), request((1 << 20) - 10, &new, Fua::No)];
    let error = volume.write_atomic(&beyond).unwrap_err();
    assert!(matches!(error, AtomicWriteError::Device(DeviceError::OutOfRange { .. })), "{error}");
    unchanged("the end");

    let large = pattern(3, 800 << 10);
    let too_much = [request(0, &new, Fua::No), request(64 << 10, &large, Fua::No)];
    let error = volume.write_atomic(&too_much).unwrap_err();
    assert!(matches!(error, AtomicWriteError::Device(DeviceError::NoSpace { .. })), "{error}");
    unchanged("the pool");
    volume.write_atomic(&[request(4096, &new, Fua::No)]).unwrap();
    volume.write_atomic(&[request(4096, &old[4096..8192], Fua::Yes)]).unwrap();
}

#[test]
fn more_than_the_log_holds_is_too_large() {
    let pool = new_pool(256);
    let options = BlockOptions { log_bytes: Some(32 << 10), lanes: 1, ..BlockOptions::default() };
    let volume = new_volume(&pool, "v", 1 << 20, &options);
    let old = pattern(1, 64 << 10);
    volume.write(0, &old, Fua::Yes).unwrap();
    // Without free blocks the lines of all blocks have to be logged.
    let mut hole = 64 << 10;
    while volume.write(hole, &[1], Fua::No).is_ok() {
        hole += 4096;
    }
    let new = pattern(2, 64 << 10);
    for fua in [Fua::No, Fua::Yes] {
        let (first, second) = new.split_at(32 << 10);
        let apart = [request(0, first, fua), request(32 << 10, second, fua)];
        let over = [request(0, &new, fua), request(100, first, fua)];
        for requests in [apart, over] {
            let error = volume.write_atomic(&requests).unwrap_err();
            assert!(matches!(error, AtomicWriteError::TooLarge { .. }), "{error}");
            let mut back = vec![0; 64 << 10];
            volume.read(0, &mut back).unwrap();
            assert!(back == old);
        }
    }
}

//! Views of a block volume: their ends, and the reasons of rejections.

use everbyte_block::{BlockOptions, Checksum, ExtentError, ViewError};
use everbyte_device::{BlockDevice, Fua, Hole};
use everbyte_media::{Medium, Piece};

use crate::{new_pool, new_volume, pattern};

#[test]
fn view_is_snapshot_under_fua_writes_and_trims() {
    let pool = new_pool(2000);
    let volume = new_volume(&pool, "v", 64 << 10, &BlockOptions::default());
    let bytes = pattern(1, 64 << 10);
    volume.write(0, &bytes, Fua::Yes).unwrap();
    let view = volume.view(1000, 40_000).unwrap();
    let epoch = volume.volume().completed_epoch();
    volume.write(1000, &[1; 9], Fua::Yes).unwrap();
    assert_eq!(volume.volume().completed_epoch(), epoch, "a new block needs no checkpoint");
    volume.write(8192, &[2; 4096], Fua::Yes).unwrap();
    volume.write(20_000, &[4; 9], Fua::No).unwrap();
    volume.write(20_480, &[5; 4096], Fua::No).unwrap();
    volume.write(20_500, &[6; 7], Fua::No).unwrap();
    volume.discard(16_384, 8192, Fua::No).unwrap();
    volume.write_zeroes(12_288, 4096, Hole::Forbidden, false, Fua::Yes).unwrap();
    volume.write(12_300, &[3; 100], Fua::Yes).unwrap();
    let mut seen = vec![0; 40_000];
    assert_eq!(view.read(0, &mut seen).unwrap(), 40_000);
    assert!(seen == bytes[1000..41_000]);
    assert!(pool.check().unwrap().is_clean());
    drop(view);
    assert!(pool.check().unwrap().is_clean());
}

#[test]
fn group_roll_back_ends_its_views() {
    let pool = new_pool(2000);
    let volume = new_volume(&pool, "v", 64 << 10, &BlockOptions::default());
    volume.write(0, &[1; 8192], Fua::Yes).unwrap();
    let before = volume.view(0, 100).unwrap();
    let group = volume.begin_group().unwrap();
    group.write(10, &[2; 20]).unwrap();
    group.write(4106, &[2; 20]).unwrap();
    let mut seen = [0; 100];
    before.read(0, &mut seen).unwrap();
    assert_eq!(seen, [1; 100]);
    let during = volume.view(4096, 100).unwrap();
    group.roll_back().unwrap();
    for view in [before, during] {
        assert!(matches!(view.check(), Err(ViewError::Ended)));
    }
    volume.read(0, &mut seen).unwrap();
    assert_eq!(seen, [1; 100]);
}

#[test]
fn view_of_corrupt_block_is_refused() {
    let pool = new_pool(2000);
    let options = BlockOptions { checksum: Checksum::Crc32c, ..BlockOptions::default() };
    let volume = new_volume(&pool, "v", 64 << 10, &options);
    volume.write(0, &pattern(1, 8192), Fua::Yes).unwrap();
    let view = volume.view(4096, 4096).unwrap();
    let [Piece::Stored { at, .. }] = *view.pieces() else { panic!("{:?}", view.pieces()) };
    pool.medium().store(at.plus(9), b"flipped");
    drop(view);
    assert!(matches!(volume.view(4096, 1).map(drop), Err(ExtentError::BlockReadError(_))));
    assert!(volume.view(0, 4096).is_ok());
    assert!(matches!(volume.view(60_000, 6000).map(drop), Err(ExtentError::OutOfRange { .. })));
}

//! The life of a volume: the device contract, groups, resizing, closing and opening, deleting.

use std::sync::Arc;

use everbyte_block::{BlockOptions, BlockVolume, Checksum, Delta, GroupWriteError, kinds};
use everbyte_device::{BlockDevice, DeviceError, Fua, conformance};
use everbyte_media::{Mapped, MediaOptions};
use everbyte_pool::file::{CreateOptions, create, open_locked};
use everbyte_pool::format::VolumeKind;
use everbyte_pool::{
    Claim, Corrupt, GroupError, Kind, Kinds, OpenOptions, Pool, PoolError, VolumeView,
};

use crate::{new_pool, new_volume, open_pool, pattern};

fn read(volume: &BlockVolume<everbyte_media::Mapped>, offset: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    volume.read(offset, &mut out).unwrap();
    out
}

#[test]
fn block_volume_keeps_device_contract() {
    for (delta, checksum) in [
        (Delta::Auto, Checksum::None),
        (Delta::On, Checksum::None),
        (Delta::Off, Checksum::None),
        (Delta::On, Checksum::Crc32c),
        (Delta::Off, Checksum::Crc32c),
    ] {
        conformance(&|size_bytes| {
            let pool = new_pool(size_bytes / 4096 * 2 + 4096);
            let options = BlockOptions { delta, checksum, ..BlockOptions::default() };
            let volume: Arc<dyn BlockDevice> =
                Arc::new(new_volume(&pool, "v", size_bytes, &options));
            volume
        });
    }
}

#[test]
fn flushed_writes_survive_kill() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("pool");
    let size = CreateOptions { len_bytes: Some(8 << 20), ..CreateOptions::default() };
    create(&path, &size).unwrap();
    let open = || {
        let pool = open_locked(&path, &MediaOptions::new(), kinds(), &OpenOptions::default());
        Arc::new(pool.unwrap())
    };
    let pool = open();
    let volume = new_volume(&pool, "v", 1 << 20, &BlockOptions::default());
    volume.write(5000, &pattern(1, 100_000), Fua::No).unwrap();
    volume.flush().unwrap();
    volume.write(8192, &pattern(2, 4096), Fua::Yes).unwrap();
    volume.write(0, &[9; 64], Fua::No).unwrap();
    drop((volume, pool));
    let mut expected = pattern(1, 100_000);
    expected[8192 - 5000..8192 - 5000 + 4096].copy_from_slice(&pattern(2, 4096));
    for round in 0..2 {
        let pool = open();
        assert!(!pool.recovery().was_clean);
        let volume = BlockVolume::open(&pool, "v").unwrap();
        assert!(read(&volume, 5000, 100_000) == expected, "round {round}");
        assert_eq!(read(&volume, 0, 64), [0; 64], "round {round}");
        assert!(pool.check().unwrap().is_clean());
    }
}

#[test]
fn clean_close_keeps_data() {
    let pool = new_pool(4096);
    let volume = new_volume(&pool, "v", 8 << 20, &BlockOptions::default());
    volume.write(12345, &pattern(1, 100_000), Fua::No).unwrap();
    let free = pool.info().free_bytes;
    pool.close().unwrap();
    assert!(matches!(volume.write(0, &[1], Fua::No), Err(DeviceError::Gone)));
    let again = open_pool(Arc::clone(pool.medium()));
    assert!(again.recovery().was_clean);
    assert_eq!(again.info().free_bytes, free);
    let volume = BlockVolume::open(&again, "v").unwrap();
    assert_eq!(read(&volume, 12345, 100_000), pattern(1, 100_000));
    assert!(again.check().unwrap().is_clean());
    let third = open_pool(Arc::clone(pool.medium()));
    assert!(!third.recovery().was_clean, "the mark was cleared when the pool was opened");
}

#[test]
fn unflushed_writes_are_undone() {
    let pool = new_pool(4096);
    let volume = new_volume(&pool, "v", 8 << 20, &BlockOptions::default());
    volume.write(0, &pattern(1, 50_000), Fua::No).unwrap();
    volume.flush().unwrap();
    volume.write(100, &pattern(2, 300), Fua::No).unwrap();
    volume.write(8192, &pattern(3, 4096), Fua::No).unwrap();
    volume.write(40960, &pattern(4, 512), Fua::Yes).unwrap();
    let again = open_pool(Arc::clone(pool.medium()));
    assert!(again.recovery().records_undone > 0);
    let volume = BlockVolume::open(&again, "v").unwrap();
    let mut expected = pattern(1, 50_000);
    expected[40960..41472].copy_from_slice(&pattern(4, 512));
    assert_eq!(read(&volume, 0, 50_000), expected);
    assert!(again.check().unwrap().is_clean());
}

#[test]
fn groups_commit_or_roll_back_whole() {
    let pool = new_pool(4096);
    let volume = new_volume(&pool, "v", 8 << 20, &BlockOptions::default());
    volume.write(0, &pattern(1, 20_000), Fua::No).unwrap();
    let group = volume.begin_group().unwrap();
    group.write(10, &pattern(2, 100)).unwrap();
    group.write(4096, &pattern(3, 4096)).unwrap();
    group.write(1 << 20, &pattern(4, 9000)).unwrap();
    assert_eq!(read(&volume, 10, 100), pattern(2, 100), "readers see the group");
    group.roll_back().unwrap();
    assert_eq!(read(&volume, 0, 20_000), pattern(1, 20_000));
    assert_eq!(read(&volume, 1 << 20, 9000), vec![0; 9000]);
    volume.write(4096, &pattern(5, 4096), Fua::No).unwrap();
    let group = volume.begin_group().unwrap();
    group.write(10, &pattern(6, 100)).unwrap();
    group.commit().unwrap();
    assert!(pool.check().unwrap().is_clean());
    let again = open_pool(Arc::clone(pool.medium()));
    let volume = BlockVolume::open(&again, "v").unwrap();
    let mut expected = pattern(1, 20_000);
    expected[4096..8192].copy_from_slice(&pattern(5, 4096));
    expected[10..110].copy_from_slice(&pattern(6, 100));
    assert_eq!(read(&volume, 0, 20_000), expected);
}

#[test]
fn too_large_group_can_be_rolled_back() {
    let pool = new_pool(4096);
    let options = BlockOptions {
        log_bytes: Some(32 << 10),
        lanes: 1,
        threshold_percent: 101,
        ..BlockOptions::default()
    };
    let volume = new_volume(&pool, "v", 8 << 20, &options);
    volume.write(0, &pattern(1, 100_000), Fua::No).unwrap();
    volume.flush().unwrap();
    let group = volume.begin_group().unwrap();
    let mut block = 0;
    let error = loop {
        match group.write(block * 4096, &pattern(block + 50, 4096)) {
            Ok(()) => block += 1,
            Err(error) => break error,
        }
    };
    let too_large = GroupWriteError::Group(GroupError::TooLarge { what: "" });
    assert_eq!(std::mem::discriminant(&error), std::mem::discriminant(&too_large));
    assert!(block > 1);
    group.roll_back().unwrap();
    assert_eq!(read(&volume, 0, 100_000), pattern(1, 100_000));
    assert!(pool.check().unwrap().is_clean());
}

#[test]
fn resize_keeps_prefix_zeroes_regrown_range() {
    let pool = new_pool(8192);
    let options = BlockOptions::default();
    let volume = new_volume(&pool, "v", 1 << 20, &options);
    volume.write(0, &pattern(1, 1 << 20), Fua::No).unwrap();
    assert!(volume.write(1 << 20, &[1], Fua::No).is_err());
    volume.resize(12 << 20).unwrap();
    volume.write(10 << 20, &pattern(2, 1 << 20), Fua::No).unwrap();
    assert_eq!(read(&volume, 0, 1 << 20), pattern(1, 1 << 20));
    volume.resize(5000 / 512 * 512).unwrap();
    assert!(matches!(
        volume.read(4608, &mut [0]),
        Err(DeviceError::OutOfRange { size_bytes: 4608, .. })
    ));
    volume.resize(12 << 20).unwrap();
    assert_eq!(read(&volume, 0, 4608), pattern(1, 4608));
    assert!(read(&volume, 4608, 11 << 20).iter().all(|&byte| byte == 0));
    assert!(pool.check().unwrap().is_clean(), "{:?}", pool.check());
    let again = open_pool(Arc::clone(pool.medium()));
    let volume = BlockVolume::open(&again, "v").unwrap();
    assert_eq!(volume.geometry().size_bytes, 12 << 20);
    assert_eq!(read(&volume, 0, 4608), pattern(1, 4608));
    assert!(again.check().unwrap().is_clean());
}

#[test]
fn volumes_come_and_go_beside_others() {
    let pool = new_pool(4096);
    let keeper = new_volume(&pool, "keeper", 2 << 20, &BlockOptions::default());
    keeper.write(0, &pattern(1, 300_000), Fua::No).unwrap();
    let free = pool.info().free_bytes;
    for round in 0..5 {
        let volume = new_volume(&pool, "guest", 4 << 20, &BlockOptions::default());
        volume.write(0, &pattern(round, 1 << 20), Fua::No).unwrap();
        assert!(matches!(
            BlockVolume::create(&pool, "guest", 4096, &BlockOptions::default()),
            Err(PoolError::VolumeExists { .. })
        ));
        pool.delete_volume("guest").unwrap();
        assert!(matches!(volume.read(0, &mut [0]), Err(DeviceError::Gone)));
    }
    keeper.flush().unwrap();
    assert_eq!(pool.info().free_bytes, free);
    assert_eq!(read(&keeper, 0, 300_000), pattern(1, 300_000));
    assert!(pool.check().unwrap().is_clean());
    assert!(matches!(
        BlockVolume::create(&pool, "../x", 4096, &BlockOptions::default()),
        Err(PoolError::Invalid(_))
    ));
}

/// A second handle could unmap the leaf that the first one knows.
#[test]
fn write_after_second_open_reads_back() {
    let pool = &new_pool(4096);
    let options = BlockOptions::default();
    let first = new_volume(pool, "v", 4 << 20, &options);
    first.write(1 << 20, &pattern(1, 4096), Fua::No).unwrap();
    // From now on it knows where the leaf lies.
    assert_eq!(read(&first, 1 << 20, 4096), pattern(1, 4096));
    if let Ok(second) = BlockVolume::open(pool, "v") {
        second.discard(0, 2 << 20, Fua::No).unwrap();
        second.flush().unwrap();
    }
    first.write(3 << 19, &pattern(2, 4096), Fua::No).unwrap();
    drop(first);
    let again = BlockVolume::open(pool, "v").unwrap();
    let is_sound = read(&again, 3 << 19, 4096) == pattern(2, 4096);
    assert!(is_sound, "the write went into a leaf that the second handle had freed");
}

#[test]
fn volume_is_open_once() {
    let pool = new_pool(4096);
    let volume = new_volume(&pool, "v", 4 << 20, &BlockOptions::default());
    assert!(matches!(BlockVolume::open(&pool, "v"), Err(PoolError::InUse { name }) if name == "v"));
    volume.write(0, &pattern(1, 9000), Fua::No).unwrap();
    drop(volume);
    let again = BlockVolume::open(&pool, "v").unwrap();
    assert_eq!(read(&again, 0, 9000), pattern(1, 9000));
    let Err(PoolError::Invalid(what)) = BlockVolume::open_as(&pool, "v", VolumeKind::CACHE) else {
        panic!("it is no cache");
    };
    assert_eq!(what, "volume v is a block volume, not a cache one");
}

#[test]
fn unknown_kind_is_named_others_work() {
    let pool = new_pool(4096);
    let volume = new_volume(&pool, "v", 4 << 20, &BlockOptions::default());
    volume.write(0, &pattern(1, 9000), Fua::Yes).unwrap();
    let cache =
        BlockVolume::create_as(&pool, "c", VolumeKind::CACHE, 4096, &BlockOptions::default());
    drop((volume, cache.unwrap()));
    let medium = Arc::clone(pool.medium());
    drop(pool);
    let only_block = Kinds::new([Arc::new(OnlyBlock(kinds())) as Arc<dyn Kind<Mapped>>]);
    let pool = Arc::new(Pool::open(medium, only_block, &OpenOptions::default()).unwrap());
    let remarks = pool.recovery().remarks.join("; ");
    assert!(
        remarks.contains("volume c: it is of kind 3, which this program does not know"),
        "{remarks}"
    );
    let listed: Vec<String> =
        pool.volumes().iter().map(|volume| pool.volume_info(volume).kind).collect();
    assert_eq!(listed, ["kind 3", "block"]);
    let volume = BlockVolume::open(&pool, "v").unwrap();
    assert_eq!(read(&volume, 0, 9000), pattern(1, 9000));
    volume.write(0, &pattern(2, 9000), Fua::Yes).unwrap();
    let problems = pool.check().unwrap().problems.join("; ");
    assert!(problems.contains("kind 3") && !problems.contains("corrupt"), "{problems}");
}

/// The kind of block volumes, in a program without other kinds.
struct OnlyBlock(Kinds<Mapped>);

impl Kind<Mapped> for OnlyBlock {
    fn kind(&self) -> VolumeKind {
        VolumeKind::BLOCK
    }

    fn name(&self) -> &'static str {
        "block"
    }

    fn visit(
        &self,
        medium: &Mapped,
        view: &VolumeView<'_>,
        claim: &mut Claim<'_>,
    ) -> Result<(), Corrupt> {
        self.0.get(VolumeKind::BLOCK).unwrap().visit(medium, view, claim)
    }
}

#[test]
fn concurrent_writers_flushers_readers_agree() {
    let pool = new_pool(8192);
    let options = BlockOptions { log_bytes: Some(512 << 10), ..BlockOptions::default() };
    let volume = Arc::new(new_volume(&pool, "v", 16 << 20, &options));
    let timer = pool.start_timer(std::time::Duration::from_millis(3)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let volume = &volume;
            scope.spawn(move || {
                let base = thread * (4 << 20);
                let mut model = vec![0u8; 4 << 20];
                for round in 0..400u64 {
                    let seed = thread * 1_000_003 + round * 7919;
                    let len = 1 + usize::try_from(seed * 31 % 9000).unwrap();
                    let at = usize::try_from(seed * 65537 % ((4 << 20) - 9000)).unwrap();
                    let data = pattern(seed, len);
                    let fua = if round % 37 == 0 { Fua::Yes } else { Fua::No };
                    if round % 11 == 5 {
                        volume.discard(base + at as u64, len as u64, fua).unwrap();
                        model[at..at + len].fill(0);
                    } else {
                        volume.write(base + at as u64, &data, fua).unwrap();
                        model[at..at + len].copy_from_slice(&data);
                    }
                    if round % 50 == 0 {
                        volume.flush().unwrap();
                    }
                    assert_eq!(read(volume, base + at as u64, len), model[at..at + len]);
                }
                assert!(read(volume, base, 4 << 20) == model);
            });
        }
    });
    drop(timer);
    assert!(pool.check().unwrap().is_clean());
}

//! The device contract in every mode, restarts, refusals.

use std::sync::Arc;

use everbyte_cache::{Cache, CacheError, Identity, Mode, Settings, WritebackThread, inspect};
use everbyte_device::{BlockDevice, Fua, MemoryDevice, conformance};
use everbyte_media::Mapped;
use everbyte_pool::format::VolumeKind;

use crate::{PAGE, POLICIES, identity, medium, open, open_pool, settings};

fn conforms(of: &dyn Fn(Settings) -> Settings, backing: &dyn Fn(u64) -> Arc<dyn BlockDevice>) {
    conformance(&|size| {
        let medium = medium(2048, &of(settings(size, 16, 48)));
        Arc::new(open(&medium, backing(size)).unwrap())
    });
}

fn memory(size: u64) -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::new(size))
}

#[test]
fn conforms_in_every_mode() {
    for mode in Mode::ALL {
        conforms(&|settings| Settings { mode, ..settings }, &memory);
    }
}

#[test]
fn conforms_with_every_policy() {
    for policy in POLICIES {
        conforms(&|settings| Settings { policy, ..settings }, &memory);
    }
}

#[test]
fn conforms_over_read_only_backing() {
    conforms(&|settings| settings, &|size| {
        let device = MemoryDevice::new(size);
        device.set_read_only(true);
        Arc::new(device)
    });
}

struct Shop {
    medium: Arc<Mapped>,
    backing: Arc<MemoryDevice>,
}

impl Shop {
    fn new(settings: &Settings) -> Self {
        let backing = Arc::new(MemoryDevice::new(settings.backing_bytes));
        Self { medium: medium(1024, settings), backing }
    }

    fn open(&self) -> Cache {
        open(&self.medium, Arc::<MemoryDevice>::clone(&self.backing)).unwrap()
    }

    fn stored(&self, page: u64) -> Vec<u8> {
        let mut found = vec![0; 4096];
        self.backing.read(page * PAGE, &mut found).unwrap();
        found
    }
}

fn page_of(device: &dyn BlockDevice, page: u64) -> Vec<u8> {
    let mut found = vec![0; 4096];
    device.read(page * PAGE, &mut found).unwrap();
    found
}

#[test]
fn flush_needs_no_backing_device() {
    let shop = Shop::new(&settings(64 * PAGE, 4, 12));
    let cache = shop.open();
    for page in 0..10 {
        cache.write(page * PAGE, &[7; 4096], Fua::No).unwrap();
    }
    cache.flush().unwrap();
    cache.write(0, &[8; 4096], Fua::No).unwrap();
    assert!((0..10).all(|page| shop.stored(page) == [0; 4096]));
    // No shutdown: the pool is recovered as after a crash.
    drop(cache);
    let cache = shop.open();
    let stats = cache.stats();
    assert_eq!((stats.pages, stats.dirty_pages, stats.pending_pages), (10, 10, 0));
    assert!((1..10).all(|page| page_of(&cache, page) == [7; 4096]));
    assert!([[7; 4096], [8; 4096]].iter().any(|old_or_new| page_of(&cache, 0) == old_or_new));
    let stats = cache.stats();
    assert_eq!((stats.misses, stats.fetched_pages), (0, 0), "{stats:?}");
    cache.drain().unwrap();
    assert!((1..10).all(|page| shop.stored(page) == [7; 4096]));
    assert_eq!(cache.stats().dirty_pages, 0);
}

#[test]
fn small_writes_go_in_place_and_bytes_are_counted() {
    let shop = Shop::new(&settings(64 * PAGE, 2, 12));
    let cache = shop.open();
    for page in 0..6 {
        cache.write(page * PAGE, &[7; 4096], Fua::No).unwrap();
    }
    // Pages 0 to 3 are in SCM now.
    let before = cache.stats();
    assert_eq!(before.scm_bytes_moved, 4 * 4096, "{before:?}");
    cache.write(PAGE + 5, &[9; 3], Fua::No).unwrap();
    let after = cache.stats();
    assert_eq!(after.scm_bytes_in_place, 3);
    assert_eq!(after.hits_scm, 1);
    assert_eq!(page_of(&cache, 1)[4..9], [7, 9, 9, 9, 7]);
    // Only later changes are persisted again.
    cache.flush().unwrap();
    let shadow = cache.stats().scm_bytes_persisted;
    cache.write(5 * PAGE + 100, &[1; 50], Fua::Yes).unwrap();
    assert_eq!(cache.stats().scm_bytes_persisted, shadow + 50);
}

#[test]
fn write_through_and_around_reach_backing_directly() {
    for mode in [Mode::WriteThrough, Mode::WriteAround] {
        let shop = Shop::new(&Settings { mode, ..settings(64 * PAGE, 4, 12) });
        let cache = shop.open();
        cache.write(100, &[5; 5000], Fua::No).unwrap();
        let mut found = vec![0; 5000];
        shop.backing.read(100, &mut found).unwrap();
        assert_eq!(found, [5; 5000], "{mode}");
        assert_eq!(cache.stats().dirty_pages, 0);
        assert_eq!(cache.stats().pages, if mode == Mode::WriteAround { 0 } else { 2 });
    }
}

#[test]
fn write_around_of_cached_page_is_written_back() {
    let shop = Shop::new(&Settings { mode: Mode::WriteAround, ..settings(64 * PAGE, 4, 12) });
    let cache = shop.open();
    page_of(&cache, 3);
    cache.write(3 * PAGE, &[5; 4096], Fua::Yes).unwrap();
    assert_eq!((shop.stored(3), cache.stats().dirty_pages), (vec![0; 4096], 1));
    cache.drain().unwrap();
    assert_eq!(shop.stored(3), [5; 4096]);
}

#[test]
fn another_backing_device_is_refused() {
    let shop = Shop::new(&settings(64 * PAGE, 4, 12));
    let pool = open_pool(&shop.medium).unwrap();
    let volume = everbyte_block::BlockVolume::open_as(&pool, "c", VolumeKind::CACHE).unwrap();
    let volume = Arc::new(volume);
    let found = Identity { serial: "inode 8".into(), ..identity() };
    let backing = || Arc::new(MemoryDevice::new(64 * PAGE));
    let error = Cache::open(Arc::clone(&volume) as _, backing(), &found).unwrap_err();
    assert!(matches!(error, CacheError::OtherBacking { .. }));
    let error = error.to_string();
    assert!(error.contains("memory test,") && error.contains("inode 8"), "{error}");
    let larger = Arc::new(MemoryDevice::new(65 * PAGE));
    let error = Cache::open(volume, larger, &identity()).unwrap_err();
    assert!(matches!(error, CacheError::OtherSize { .. }), "{error}");
    // Nor is it a block volume.
    assert!(everbyte_block::BlockVolume::open(&pool, "c").is_err());
}

#[test]
fn damaged_mark_is_named() {
    let shop = Shop::new(&settings(64 * PAGE, 4, 12));
    let cache = shop.open();
    cache.write(3 * PAGE, &[1; 10], Fua::Yes).unwrap();
    drop(cache);
    let pool = open_pool(&shop.medium).unwrap();
    let volume = everbyte_block::BlockVolume::open_as(&pool, "c", VolumeKind::CACHE).unwrap();
    let found = inspect(&volume).unwrap();
    assert_eq!((found.pages, found.dirty_pages), (1, 1));
    volume.write(PAGE + 3, &[9], Fua::Yes).unwrap();
    let error = inspect(&volume).unwrap_err().to_string();
    assert!(error.contains("mark of page 3"), "{error}");
}

#[test]
fn mark_without_bytes_is_damage_and_zeroes_are_not() {
    let shop = Shop::new(&settings(64 * PAGE, 4, 12));
    shop.backing.write(3 * PAGE, &[1; 4096], Fua::No).unwrap();
    let cache = shop.open();
    cache.write(3 * PAGE, &[0; 4096], Fua::Yes).unwrap();
    drop(cache);
    let cache = shop.open();
    assert_eq!(page_of(&cache, 3), [0; 4096]);
    drop(cache);
    let pool = open_pool(&shop.medium).unwrap();
    let volume = everbyte_block::BlockVolume::open_as(&pool, "c", VolumeKind::CACHE).unwrap();
    // A page that was never cached: it would read as zeroes, with any backing device.
    volume.write(PAGE + 9, &[1], Fua::Yes).unwrap();
    drop((volume, pool));
    let backing = Arc::<MemoryDevice>::clone(&shop.backing);
    let error = open(&shop.medium, backing).unwrap_err();
    assert!(error.contains("mark of page 9") && error.contains("not there"), "{error}");
}

#[test]
fn absent_pages_are_fetched_in_one_go() {
    // A fetch has at most as many pages as may be evicted; here 40 pages.
    let shop = Shop::new(&settings(64 * PAGE, 160, 480));
    for page in 0..64 {
        shop.backing.write(page * PAGE, &[u8::try_from(page).unwrap(); 4096], Fua::No).unwrap();
    }
    let cache = shop.open();
    // In the cache, and newer than in the backing device.
    for page in [4, 5, 9] {
        cache.write(page * PAGE, &[0xcc; 4096], Fua::No).unwrap();
    }
    let mut found = vec![0; 12 * 4096];
    cache.read(PAGE, &mut found).unwrap();
    for (page, bytes) in (1..).zip(found.chunks(4096)) {
        let expected = if [4, 5, 9].contains(&page) { 0xcc } else { page };
        assert!(bytes.iter().all(|&byte| byte == expected), "page {page}");
    }
    let stats = cache.stats();
    assert_eq!((stats.fetches, stats.fetched_pages, stats.hits()), (1, 9, 3), "{stats:?}");
    // Far apart, or at the ends of the device, no fetch is in vain.
    cache.read(30 * PAGE, &mut found[..4096]).unwrap();
    cache.read(14 * PAGE, &mut [0; 18 * 4096]).unwrap();
    let stats = cache.stats();
    assert_eq!((stats.fetches, stats.fetched_pages), (3, 9 + 1 + 17), "{stats:?}");
}

#[test]
fn writeback_thread_keeps_most_pages_clean() {
    let shop = Shop::new(&settings(512 * PAGE, 16, 48));
    let cache = Arc::new(shop.open());
    let writer = WritebackThread::start(&cache).unwrap();
    for page in 0..512 {
        cache.write(page * PAGE, &[3; 4096], Fua::No).unwrap();
    }
    // It is woken by the last write at the latest; how soon it is done is the system's affair.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while cache.stats().dirty_pages > 32 && std::time::Instant::now() < deadline {
        std::thread::yield_now();
    }
    drop(writer);
    let stats = cache.stats();
    assert!(stats.dirty_pages <= 32 && stats.written_back_pages >= 480, "{stats:?}");
    assert!(stats.write_back_runs < stats.written_back_pages / 2, "{stats:?}");
    cache.drain().unwrap();
    assert!((0..512).all(|page| shop.stored(page) == [3; 4096]));
}

#[test]
fn threads_see_their_own_writes() {
    let shop = Shop::new(&settings(64 * PAGE, 4, 12));
    let cache = Arc::new(shop.open());
    let writer = WritebackThread::start(&cache).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let cache = &cache;
            scope.spawn(move || {
                let mut dice = crate::Dice(thread);
                let mut own = vec![vec![0; 4096]; 16];
                for _ in 0..600 {
                    let at = dice.below(16);
                    let page = at * 4 + thread;
                    let kept = &mut own[usize::try_from(at).unwrap()];
                    match dice.below(8) {
                        0 => cache.flush().unwrap(),
                        1 => {
                            cache.discard(page * PAGE, PAGE, Fua::No).unwrap();
                            kept.fill(0);
                        }
                        2..=4 => assert!(page_of(&**cache, page) == *kept, "page {page}"),
                        _ => {
                            let len = usize::try_from(1 + dice.below(4096)).unwrap();
                            let data = dice.bytes(len);
                            cache.write(page * PAGE, &data, Fua::No).unwrap();
                            kept[..len].copy_from_slice(&data);
                        }
                    }
                }
                for (at, kept) in (0..).zip(&own) {
                    assert!(page_of(&**cache, at * 4 + thread) == *kept);
                }
            });
        }
    });
    drop(writer);
    cache.drain().unwrap();
    assert!((0..64).all(|page| shop.stored(page) == page_of(&*cache, page)));
}

//! Failures of the backing device: clients get errors, no data is lost, and the cache continues
//! with the backing device.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use everbyte_block::{BlockOptions, BlockVolume};
use everbyte_cache::plant::Bug;
use everbyte_cache::{Cache, CacheError, Settings};
use everbyte_crash::SimMedium;
use everbyte_device::{
    BlockDevice, DeviceError, FaultDevice, Faults, Fua, MemoryDevice, Passthrough,
};
use everbyte_media::{Mapped, Medium, PoolOffset};
use everbyte_plant::plant;
use everbyte_policy::sim::Kind;
use everbyte_pool::Pool;
use everbyte_pool::format::VolumeKind;

use crate::{Dice, PAGE, format, identity, medium, open, open_pool, settings};

const PAGES: u64 = 40;

fn cache(dram_pages: u64, scm_pages: u64) -> (Cache, Arc<FaultDevice>, Arc<MemoryDevice>) {
    let memory = Arc::new(MemoryDevice::new(PAGES * PAGE));
    let backing = Arc::new(FaultDevice::new(Arc::<MemoryDevice>::clone(&memory)));
    let medium = medium(512, &settings(PAGES * PAGE, dram_pages, scm_pages));
    let cache = open(&medium, Arc::<FaultDevice>::clone(&backing)).unwrap();
    (cache, backing, memory)
}

#[test]
fn cached_pages_are_served_while_backing_fails() {
    let (cache, backing, memory) = cache(2, 6);
    for page in 0..8 {
        cache.write(page * PAGE, &[1; 4096], Fua::No).unwrap();
    }
    backing.fail(Faults::ALL);
    cache.write(0, &[2; 100], Fua::No).unwrap();
    cache.flush().unwrap();
    let mut found = [0; 100];
    cache.read(0, &mut found).unwrap();
    assert_eq!(found, [2; 100]);
    let error = cache.read(20 * PAGE, &mut found).unwrap_err();
    assert!(matches!(error, DeviceError::Media { .. }), "{error}");
    assert!(error.to_string().contains("memory test"), "{error}");
    let error = cache.drain().unwrap_err();
    assert!(matches!(error, CacheError::NotDrained { pages: 8, .. }), "{error}");
    // New pages come in as long as evicted ones have room, and not any longer.
    let refused = (8..PAGES).find(|page| cache.write(page * PAGE, &[3; 4096], Fua::No).is_err());
    let refused = refused.expect("a cache that takes everything has lost something");
    assert!(refused >= 8 + 4, "{refused}");
    let stats = cache.stats();
    assert_eq!(stats.dirty_pages, refused, "{stats:?}");
    assert!(stats.backing_errors >= 3);
    backing.fail(Faults::NONE);
    cache.drain().unwrap();
    let mut page_bytes = vec![0; 4096];
    for page in 0..refused {
        memory.read(page * PAGE, &mut page_bytes).unwrap();
        let expected = if page < 8 { 1 } else { 3 };
        assert!(page_bytes[100..].iter().all(|&byte| byte == expected), "page {page}");
    }
    memory.read(0, &mut found).unwrap();
    assert_eq!(found, [2; 100]);
}

/// Neither a flush nor a durable write needs the backing device, and both survive a crash: their
/// bytes are present although it never answered.
#[test]
fn flush_and_fua_need_no_backing_device() {
    let medium = medium(512, &settings(PAGES * PAGE, 2, 6));
    let memory = Arc::new(MemoryDevice::new(PAGES * PAGE));
    let backing = Arc::new(FaultDevice::new(Arc::<MemoryDevice>::clone(&memory)));
    let cache = open(&medium, Arc::<FaultDevice>::clone(&backing)).unwrap();
    backing.fail(Faults::ALL);
    let before = backing.requests();
    // Whole pages, which need no fetch, and a part of a cached one.
    cache.write(0, &[1; 4096], Fua::Yes).unwrap();
    cache.write(2 * PAGE, &[2; 4096], Fua::No).unwrap();
    cache.flush().unwrap();
    cache.write(100, &[3; 50], Fua::Yes).unwrap();
    assert_eq!(backing.requests(), before, "the backing device was asked");
    // No shutdown: the pool is recovered as after a crash.
    drop(cache);
    let cache = open(&medium, memory).unwrap();
    let mut found = [0; 4096];
    cache.read(0, &mut found).unwrap();
    assert!(found[..100] == [1; 100] && found[100..150] == [3; 50] && found[150..] == [1; 3946]);
    cache.read(2 * PAGE, &mut found).unwrap();
    assert_eq!(found, [2; 4096]);
}

/// A backing device with some unreadable and unwritable pages.
struct Scratched {
    backing: MemoryDevice,
    bad: Range<u64>,
}

impl Scratched {
    fn new(pages: u64, bad: Range<u64>) -> Arc<Self> {
        Arc::new(Self { backing: MemoryDevice::new(pages * PAGE), bad })
    }

    fn check(&self, offset: u64, len: usize) -> Result<(), DeviceError> {
        let len = len as u64;
        if offset < self.bad.end * PAGE && self.bad.start * PAGE < offset + len {
            return Err(DeviceError::Media { offset, len, reason: "a bad page".into() });
        }
        Ok(())
    }

    fn has(&self, page: u64, byte: u8) -> bool {
        let mut found = [0; 4096];
        self.backing.read(page * PAGE, &mut found).unwrap();
        found == [byte; 4096]
    }
}

impl everbyte_device::Decorator for Scratched {
    type Inner = MemoryDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Split;

    fn inner(&self) -> &Self::Inner {
        &self.backing
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.check(offset, out.len())?;
        self.backing.read(offset, out)
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        self.check(offset, data.len())?;
        self.backing.write(offset, data, fua)
    }
}

#[test]
fn unwritable_page_fails_no_other_request() {
    let medium = medium(512, &settings(PAGES * PAGE, 2, 6));
    let backing = Scratched::new(PAGES, 3..4);
    let cache = open(&medium, Arc::<Scratched>::clone(&backing)).unwrap();
    for page in 0..12 {
        cache.write(page * PAGE, &[1; 4096], Fua::No).unwrap();
    }
    assert_eq!(cache.stats().pending_pages, 4, "there is no room for another one");
    let mut found = [9; 4096];
    cache.read(30 * PAGE, &mut found).unwrap();
    assert_eq!(found, [0; 4096]);
    assert!((0..3).all(|page| backing.has(page, 1)), "one bad page keeps its neighbours dirty");
    let error = cache.drain().unwrap_err();
    assert!(matches!(error, CacheError::NotDrained { pages: 1, .. }), "{error}");
    assert!((0..12).all(|page| backing.has(page, 1) == (page != 3)));
    cache.read(3 * PAGE, &mut found).unwrap();
    assert_eq!(found, [1; 4096]);
}

#[test]
fn unreadable_page_fails_no_other_request() {
    let medium = medium(512, &settings(PAGES * PAGE, 2, 6));
    let cache = open(&medium, Scratched::new(PAGES, 5..6)).unwrap();
    let mut found = vec![9; 3 * 4096];
    assert!(cache.read(4 * PAGE, &mut found).is_err());
    cache.write(5 * PAGE, &[1; 4096], Fua::No).unwrap();
    cache.read(4 * PAGE, &mut found).unwrap();
    assert!(found[..4096] == [0; 4096] && found[4096..8192] == [1; 4096]);
    assert_eq!(found[8192..], [0; 4096]);
}

#[test]
fn unwritable_pages_keep_no_others_dirty() {
    const DIRTY: u64 = 600;
    for (bad, is_drained) in [(0..256, true), (0..1, false)] {
        let medium = medium(2048, &settings(700 * PAGE, 300, 400));
        let backing = Scratched::new(700, bad);
        let cache = open(&medium, Arc::<Scratched>::clone(&backing)).unwrap();
        for page in 0..DIRTY {
            cache.write(page * PAGE, &[1; 4096], Fua::No).unwrap();
        }
        if is_drained {
            assert!(cache.drain().is_err());
            assert_eq!(cache.stats().dirty_pages, 256);
            assert!((256..DIRTY).all(|page| backing.has(page, 1)));
        } else {
            // As the thread that writes back does: one batch is not enough.
            assert!(cache.write_back_due().is_err());
            let dirty_pages = cache.stats().dirty_pages;
            assert!(dirty_pages <= 700 * 45 / 100, "{dirty_pages}");
        }
    }
}

/// One failure at each request of a workload.
#[test]
fn any_backing_request_may_fail() {
    let mut nth = 0;
    loop {
        let (cache, backing, memory) = cache(2, 4);
        let mut expected = vec![0; usize::try_from(PAGES * PAGE).unwrap()];
        backing.fail_after(nth);
        let mut dice = Dice(5);
        for _ in 0..120 {
            let at = dice.below(PAGES * PAGE - 9000);
            let len = usize::try_from(1 + dice.below(9000)).unwrap();
            let here = usize::try_from(at).unwrap();
            match dice.below(10) {
                0 => drop(cache.flush()),
                1 => drop(cache.sweep()),
                2 => {
                    // After a failure either is allowed; done again it is done.
                    if cache.discard(at, len as u64, Fua::No).is_err() {
                        cache.discard(at, len as u64, Fua::No).unwrap();
                    }
                    expected[here..here + len].fill(0);
                }
                3..=5 => {
                    let mut found = vec![0; len];
                    if cache.read(at, &mut found).is_ok() {
                        assert!(found == expected[here..here + len], "failure {nth}: at {at}");
                    }
                }
                _ => {
                    let data = dice.bytes(len);
                    if cache.write(at, &data, Fua::No).is_err() {
                        cache.write(at, &data, Fua::No).unwrap();
                    }
                    expected[here..here + len].copy_from_slice(&data);
                }
            }
        }
        let requests = backing.requests();
        if cache.drain().is_err() {
            cache.drain().unwrap();
        }
        let mut found = vec![0; expected.len()];
        memory.read(0, &mut found).unwrap();
        assert!(found == expected, "failure {nth}");
        if nth >= requests {
            assert!(nth > 50, "only {nth} requests reached the backing device");
            return;
        }
        nth += 1;
    }
}

/// A client's request while the backing device is busy.
enum Comes {
    /// A write to the page of the first write.
    Write,
    /// A flush during the first flush. The flag is true if it was answered before that one. Holds
    /// its thread.
    Flush { too_early: AtomicBool, thread: Mutex<Option<JoinHandle<Result<(), DeviceError>>>> },
}

/// A backing device with another client request during its first request of a kind.
struct Meanwhile {
    backing: MemoryDevice,
    cache: OnceLock<Weak<Cache>>,
    is_done: AtomicBool,
    comes: Comes,
}

impl Meanwhile {
    fn new(comes: Comes) -> Arc<Self> {
        let backing = MemoryDevice::new(PAGES * PAGE);
        Arc::new(Self { backing, cache: OnceLock::new(), is_done: AtomicBool::new(false), comes })
    }

    /// A cache before it.
    fn behind_cache(self: &Arc<Self>) -> Arc<Cache> {
        let medium = medium(512, &settings(PAGES * PAGE, 2, 6));
        let cache = Arc::new(open(&medium, Arc::<Self>::clone(self)).unwrap());
        self.cache.set(Arc::downgrade(&cache)).unwrap();
        cache
    }

    /// The cache, at the first call.
    fn once(&self) -> Option<Arc<Cache>> {
        let cache = self.cache.get()?.upgrade()?;
        (!self.is_done.swap(true, Ordering::SeqCst)).then_some(cache)
    }
}

impl everbyte_device::Decorator for Meanwhile {
    type Inner = MemoryDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Split;

    fn inner(&self) -> &Self::Inner {
        &self.backing
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        if matches!(self.comes, Comes::Write)
            && let Some(cache) = self.once()
        {
            cache.write(offset, &[2; 10], Fua::No).unwrap();
        }
        self.backing.write(offset, data, fua)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        if let Comes::Flush { too_early, thread } = &self.comes
            && let Some(cache) = self.once()
        {
            let client = std::thread::spawn(move || cache.flush());
            // A client without a wait ends long before that.
            std::thread::sleep(Duration::from_millis(50));
            too_early.store(client.is_finished(), Ordering::SeqCst);
            *thread.lock().unwrap() = Some(client);
        }
        self.backing.flush()
    }
}

/// Returns true if the backing device has, in the end, the bytes written during a write-back.
fn keeps_what_comes_meanwhile() -> bool {
    let backing = Meanwhile::new(Comes::Write);
    let cache = backing.behind_cache();
    cache.write(3 * PAGE, &[1; 4096], Fua::No).unwrap();
    cache.sweep().unwrap();
    cache.drain().unwrap();
    let mut found = [0; 20];
    backing.read(3 * PAGE, &mut found).unwrap();
    assert_eq!(found[10..], [1; 10]);
    found[..10] == [2; 10]
}

#[test]
fn writes_during_write_back_are_written_back() {
    assert!(keeps_what_comes_meanwhile());
    let planted = plant(Bug::CleanThoughWritten);
    let is_kept = keeps_what_comes_meanwhile();
    drop(planted);
    assert!(!is_kept, "the planted mistake was not caught");
}

#[test]
fn flush_waits_for_a_covering_flush() {
    let (too_early, thread) = (AtomicBool::new(false), Mutex::default());
    let backing = Meanwhile::new(Comes::Flush { too_early, thread });
    let cache = backing.behind_cache();
    cache.discard(0, PAGE, Fua::No).unwrap();
    cache.flush().unwrap();
    let Comes::Flush { too_early, thread } = &backing.comes else { unreachable!() };
    let client = thread.lock().unwrap().take().expect("a trim bypasses the cache");
    client.join().unwrap().unwrap();
    assert!(!too_early.load(Ordering::SeqCst), "it was answered before the trim was durable");
}

#[test]
fn cached_pages_flush_if_backing_hangs() {
    for hangs in [Faults { writes: true, ..Faults::NONE }, Faults { flushes: true, ..Faults::NONE }]
    {
        let (cache, backing, memory) = cache(2, 6);
        for page in 0..6 {
            cache.write(page * PAGE, &[1; 4096], Fua::No).unwrap();
        }
        backing.hang(hangs);
        std::thread::scope(|scope| {
            let sweep = scope.spawn(|| cache.sweep());
            backing.wait_for_hanging(1);
            cache.write(PAGE, &[2; 100], Fua::Yes).unwrap();
            cache.flush().unwrap();
            let mut found = [0; 101];
            cache.read(PAGE, &mut found).unwrap();
            assert_eq!((found[99], found[100]), (2, 1));
            assert!(!sweep.is_finished());
            backing.hang(Faults::NONE);
            assert_eq!(sweep.join().unwrap().unwrap(), 6);
        });
        assert_eq!(cache.stats().dirty_pages, 1, "what was written meanwhile");
        cache.drain().unwrap();
        let mut found = [0; 101];
        memory.read(PAGE, &mut found).unwrap();
        assert_eq!((found[99], found[100]), (2, 1));
    }
}

#[test]
fn hung_backing_reads_delay_no_hits() {
    let (cache, backing, memory) = cache(2, 6);
    memory.write(20 * PAGE, &[9; 4096], Fua::No).unwrap();
    for page in 0..4 {
        cache.write(page * PAGE, &[1; 4096], Fua::No).unwrap();
    }
    backing.hang(Faults { reads: true, ..Faults::NONE });
    std::thread::scope(|scope| {
        let miss = scope.spawn(|| {
            let mut found = [0; 100];
            cache.read(20 * PAGE, &mut found).map(|()| found)
        });
        backing.wait_for_hanging(1);
        // A part of a page that is not cached needs its other bytes.
        let part = scope.spawn(|| cache.write(21 * PAGE + 7, &[5; 10], Fua::No));
        // Hits, whole pages, flushes and write-back need no read.
        cache.write(PAGE, &[2; 100], Fua::Yes).unwrap();
        cache.write(10 * PAGE, &[3; 4096], Fua::No).unwrap();
        cache.flush().unwrap();
        let mut found = [0; 101];
        cache.read(PAGE, &mut found).unwrap();
        assert_eq!((found[99], found[100]), (2, 1));
        cache.read(10 * PAGE, &mut found).unwrap();
        assert_eq!(found, [3; 101]);
        cache.sweep().unwrap();
        memory.read(PAGE, &mut found).unwrap();
        assert_eq!((found[99], found[100]), (2, 1), "write-back goes on");
        assert!(!miss.is_finished());
        backing.hang(Faults::NONE);
        assert_eq!(miss.join().unwrap().unwrap(), [9; 100]);
        part.join().unwrap().unwrap();
    });
    let mut found = [0; 10];
    cache.read(21 * PAGE + 7, &mut found).unwrap();
    assert_eq!(found, [5; 10]);
}

/// A cache in a pool filled by another volume.
struct InFullPool {
    cache: Cache,
    backing: Arc<MemoryDevice>,
    filler: BlockVolume<Mapped>,
    medium: Arc<Mapped>,
}

impl InFullPool {
    /// After `pages` pages of the cache were written, and perhaps cleaned.
    fn new(policy: Kind, pages: u64, is_clean: bool) -> Self {
        let backing = Arc::new(MemoryDevice::new(PAGES * PAGE));
        let medium = medium(512, &Settings { policy, ..settings(PAGES * PAGE, 4, 12) });
        let pool = open_pool(&medium).unwrap();
        let volume = Arc::new(BlockVolume::open_as(&pool, "c", VolumeKind::CACHE).unwrap());
        let cache = Cache::open(volume, Arc::<MemoryDevice>::clone(&backing) as _, &identity());
        let cache = cache.unwrap();
        for page in 0..pages {
            cache.write(page * PAGE, &[1; 4096], Fua::No).unwrap();
        }
        if is_clean {
            cache.drain().unwrap();
        }
        let filler = fill(&pool);
        Self { cache, backing, filler, medium }
    }
}

/// A volume with all remaining space of a pool.
fn fill(pool: &Arc<Pool<Mapped>>) -> BlockVolume<Mapped> {
    let options = BlockOptions { log_bytes: Some(65536), lanes: 1, ..BlockOptions::default() };
    let filler = BlockVolume::create(pool, "filler", 4096 * PAGE, &options).unwrap();
    let mut filled = 0;
    while filler.write(filled * PAGE, &[1; 4096], Fua::No).is_ok() {
        filled += 1;
    }
    assert!(filled > 10);
    filler
}

#[test]
fn full_pool_persists_and_writes_back() {
    for is_clean in [true, false] {
        let InFullPool { cache, backing, .. } = InFullPool::new(Kind::Hybrid, 14, is_clean);
        // The last pages are in DRAM, and SCM has no space for a copy of them.
        for page in 10..14 {
            cache.write(page * PAGE + 5, &[2; 4000], Fua::No).unwrap();
        }
        cache.flush().unwrap();
        cache.write(12 * PAGE + 5, &[3; 4000], Fua::No).unwrap();
        cache.drain().unwrap();
        for page in 0..14 {
            let mut found = vec![0; 4096];
            backing.read(page * PAGE, &mut found).unwrap();
            let expected = if page < 10 {
                1
            } else if page == 12 {
                3
            } else {
                2
            };
            assert_eq!((found[0], found[5], found[4004]), (1, expected, expected), "page {page}");
        }
    }
}

/// The policy's next victims for write-back are in DRAM, and SCM has no space for a copy of any.
#[test]
fn full_pool_delays_only_pages_that_need_space() {
    let flush: fn(&Cache) = |cache| cache.flush().unwrap();
    let sweep: fn(&Cache) = |cache| assert!(cache.sweep().unwrap() > 0);
    for request in [flush, sweep] {
        let InFullPool { cache, backing, .. } = InFullPool::new(Kind::Everbyte, 16, false);
        // The cache is full of dirty pages, and some have to go.
        cache.read(20 * PAGE, &mut [0; 10]).unwrap();
        request(&cache);
        cache.drain().unwrap();
        for page in 0..16 {
            let mut found = [0; 4096];
            backing.read(page * PAGE, &mut found).unwrap();
            assert_eq!(found, [1; 4096], "page {page}");
        }
    }
}

/// Without flushes, and without work for the backing device: clean pages give their space to pages
/// that leave DRAM.
#[test]
fn full_pool_takes_pages_while_clean_ones_exist() {
    const OLD: u64 = 300;
    let settings = settings(800 * PAGE, 4, 790);
    let medium = medium(1024, &settings);
    let pool = open_pool(&medium).unwrap();
    let volume = Arc::new(BlockVolume::open_as(&pool, "c", VolumeKind::CACHE).unwrap());
    let backing = Arc::new(MemoryDevice::new(800 * PAGE));
    let cache = Cache::open(volume, Arc::<MemoryDevice>::clone(&backing) as _, &identity());
    let cache = cache.unwrap();
    let mut found = [9; 4096];
    for page in 0..OLD {
        cache.read(page * PAGE, &mut found).unwrap();
    }
    cache.flush().unwrap();
    let _filler = fill(&pool);
    for page in OLD..2 * OLD {
        let written = cache.write(page * PAGE, &[1; 4096], Fua::No);
        written.unwrap_or_else(|error| panic!("page {page}: {error}"));
    }
    cache.read(700 * PAGE, &mut found).unwrap();
    assert_eq!(found, [0; 4096]);
    cache.drain().unwrap();
    for page in OLD..2 * OLD {
        backing.read(page * PAGE, &mut found).unwrap();
        assert_eq!(found, [1; 4096], "page {page}");
    }
}

/// A cache on memory with a bad line within SCM's bytes of page 0, and that page's bytes. For
/// `is_dirty`, the page was written before.
fn with_bad_line(is_dirty: bool) -> (Cache, [u8; 4096]) {
    let settings = settings(PAGES * PAGE, 2, 6);
    let medium = Arc::new(SimMedium::new(512 * PAGE));
    format(&medium, &settings, 2 * 65536);
    let backing = Arc::new(MemoryDevice::new(PAGES * PAGE));
    let mut bytes = [0xa5; 4096];
    backing.write(0, &bytes, Fua::No).unwrap();
    let cache = open(&medium, backing).unwrap();
    for page in 0..4 {
        cache.read(page * PAGE, &mut [0; 10]).unwrap();
    }
    if is_dirty {
        bytes[10] = 1;
        cache.write(10, &[1], Fua::No).unwrap();
    }
    cache.flush().unwrap();
    spoil(&medium);
    (cache, bytes)
}

/// Makes a line within SCM's bytes of a page of 0xa5 bad.
fn spoil(medium: &SimMedium) {
    let has_it = |block: &u64| {
        let word = |at| medium.load_word(PoolOffset(block * PAGE + at)).to_le_bytes();
        word(0) == [0xa5; 8] && word(2048) == [0xa5; 8] && word(4088) == [0xa5; 8]
    };
    let block = (0..512).find(has_it).expect("the page is not in SCM");
    medium.inject_poison(PoolOffset(block * PAGE + 2048), 1);
}

/// The backing device has the bytes of a clean page as well, and those of a dirty one it has not.
#[test]
fn unreadable_clean_page_is_refetched() {
    for is_written in [false, true] {
        let (cache, mut bytes) = with_bad_line(false);
        let fetches = cache.stats().fetches;
        if is_written {
            bytes[2050..2060].fill(3);
            cache.write(2050, &[3; 10], Fua::No).unwrap();
        }
        let mut found = [0; 4096];
        cache.read(0, &mut found).unwrap();
        assert_eq!(found, bytes);
        assert_eq!(cache.stats().fetches, fetches + 1);
        cache.drain().unwrap();
        cache.read(0, &mut found).unwrap();
        assert_eq!(found, bytes);
    }
    let (cache, bytes) = with_bad_line(true);
    let error = cache.read(0, &mut [0; 4096]).unwrap_err();
    assert!(matches!(error, DeviceError::Media { .. }), "{error}");
    let mut found = [0; 2048];
    cache.read(0, &mut found).unwrap();
    assert_eq!(found, bytes[..2048]);
}

/// A flush has put the page's bytes to SCM, and the next one has to change one of them there.
#[test]
fn dram_page_is_durable_despite_unreadable_copy() {
    let medium = Arc::new(SimMedium::new(512 * PAGE));
    format(&medium, &settings(PAGES * PAGE, 2, 6), 2 * 65536);
    let backing = Arc::new(MemoryDevice::new(PAGES * PAGE));
    let mut bytes = [0xa5; 4096];
    backing.write(0, &bytes, Fua::No).unwrap();
    let cache = open(&medium, Arc::<MemoryDevice>::clone(&backing)).unwrap();
    (bytes[20], bytes[2050]) = (1, 2);
    cache.write(20, &[1], Fua::No).unwrap();
    cache.flush().unwrap();
    spoil(&medium);
    cache.write(2050, &[2], Fua::No).unwrap();
    cache.flush().unwrap();
    drop(cache);
    let medium = Arc::new(SimMedium::from_image(medium.image()));
    let cache = open(&medium, Arc::<MemoryDevice>::clone(&backing)).unwrap();
    let mut found = [0; 4096];
    cache.read(0, &mut found).unwrap();
    assert_eq!(found, bytes);
    cache.drain().unwrap();
    backing.read(0, &mut found).unwrap();
    assert_eq!(found, bytes);
}

/// The policy has it in SCM by then, and hears of a hit of it only when it goes.
#[test]
fn failed_demotion_revives_no_trim() {
    // One of these is to be demoted.
    for page in 10..14 {
        let InFullPool { cache, backing, filler, medium } =
            InFullPool::new(Kind::Hybrid, 14, false);
        let mut found = [9; 4096];
        cache.read(20 * PAGE, &mut found).unwrap();
        cache.read(page * PAGE, &mut found).unwrap();
        assert_eq!(found, [1; 4096]);
        filler.discard(0, 4096 * PAGE, Fua::No).unwrap();
        filler.flush().unwrap();
        cache.discard(page * PAGE, PAGE, Fua::No).unwrap();
        cache.flush().unwrap();
        drop((cache, filler));
        let cache = open(&medium, backing).unwrap();
        cache.read(page * PAGE, &mut found).unwrap();
        assert!(found == [0; 4096], "page {page}: {:?}", &found[..4]);
    }
}

#[test]
fn trim_without_space_reports_its_part() {
    let InFullPool { cache, .. } = InFullPool::new(Kind::Hybrid, 0, false);
    let is_refused = |page: u64| cache.write(page * PAGE, &[1; 4096], Fua::No).is_err();
    assert!((0..PAGES - 5).any(is_refused), "evicted pages have room without end");
    // Two whole pages, and the end of the one before, which would have to be fetched.
    let error = cache.discard(37 * PAGE - 100, 100 + 2 * PAGE, Fua::No).unwrap_err();
    assert!(matches!(error, DeviceError::Media { .. }), "{error}");
    assert!(error.to_string().contains("done in part: no space"), "{error}");
    let error = cache.discard(37 * PAGE - 100, 100, Fua::No).unwrap_err();
    assert!(matches!(error, DeviceError::NoSpace { .. }), "{error}");
}

/// As closing for a change does.
#[test]
fn failed_sync_keeps_all_answered_writes() {
    let (cache, backing, memory) = cache(2, 6);
    cache.write(0, &[1; 4096], Fua::No).unwrap();
    cache.discard(5 * PAGE, PAGE, Fua::No).unwrap();
    backing.fail(Faults::ALL);
    assert!(cache.sync().is_err());
    let mut found = [0; 2];
    cache.read(0, &mut found).unwrap();
    assert_eq!(found, [1; 2]);
    backing.fail(Faults::NONE);
    cache.sync().unwrap();
    assert!(cache.flush().is_err(), "the flush that failed for nobody is told to a client");
    cache.flush().unwrap();
    cache.drain().unwrap();
    memory.read(0, &mut found).unwrap();
    assert_eq!(found, [1; 2]);
}

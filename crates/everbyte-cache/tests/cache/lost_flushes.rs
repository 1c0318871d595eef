//! Failed flushes of the backing device that lose unflushed writes, as Linux's do: the error is
//! reported once, and the next flush succeeds without the lost writes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use everbyte_cache::{Cache, Change, Mode, Settings};
use everbyte_device::{BlockDevice, DeviceError, Fua, Hole, MemoryDevice, Passthrough};
use everbyte_media::Mapped;

use crate::watched::{IN_VAIN, Moment, Other};
use crate::{PAGE, medium, open, resize, settings, watched};

const PAGES: u64 = 40;

enum Unflushed {
    Write(u64, Vec<u8>),
    Zero(u64, u64),
}

/// A backing device with a volatile cache: `durable` is the state after a power failure.
struct Forgetful {
    shown: MemoryDevice,
    durable: MemoryDevice,
    unflushed: Mutex<Vec<Unflushed>>,
    /// Flushes that will fail.
    failing: AtomicU64,
    is_flushing: AtomicBool,
    /// Flushes as a client during the next write.
    client: OnceLock<Weak<Cache>>,
}

impl Forgetful {
    /// Every page starts with the old content.
    fn new() -> Arc<Self> {
        let [shown, durable] = [(); 2].map(|()| MemoryDevice::new(PAGES * PAGE));
        for device in [&shown, &durable] {
            device.write(0, &vec![0xee; usize::try_from(PAGES * PAGE).unwrap()], Fua::No).unwrap();
        }
        Arc::new(Self {
            shown,
            durable,
            unflushed: Mutex::default(),
            failing: AtomicU64::new(0),
            is_flushing: AtomicBool::new(false),
            client: OnceLock::new(),
        })
    }

    fn fail_flushes(&self, count: u64) {
        self.failing.store(count, Ordering::SeqCst);
    }

    fn is_durable(&self, page: u64, byte: u8) -> bool {
        byte_of(&self.durable, page) == byte
    }

    /// The backing device after a power failure.
    fn cut(&self) -> Arc<MemoryDevice> {
        let mut bytes = vec![0; usize::try_from(PAGES * PAGE).unwrap()];
        self.durable.read(0, &mut bytes).unwrap();
        let left = MemoryDevice::new(PAGES * PAGE);
        left.write(0, &bytes, Fua::No).unwrap();
        Arc::new(left)
    }
}

impl everbyte_device::Decorator for Forgetful {
    type Inner = MemoryDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Split;

    fn inner(&self) -> &Self::Inner {
        &self.shown
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        self.unflushed.lock().unwrap().push(Unflushed::Write(offset, data.to_vec()));
        self.shown.write(offset, data, fua)?;
        if let Some(cache) = self.client.get().and_then(Weak::upgrade)
            && self.failing.load(Ordering::SeqCst) > 0
        {
            assert!(cache.flush().is_err());
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        assert!(!self.is_flushing.swap(true, Ordering::SeqCst), "two flushes at a time");
        // So that another one would run in between.
        std::thread::yield_now();
        let changes = std::mem::take(&mut *self.unflushed.lock().unwrap());
        let left = self.failing.load(Ordering::SeqCst);
        self.failing.store(left.saturating_sub(1), Ordering::SeqCst);
        self.is_flushing.store(false, Ordering::SeqCst);
        if left > 0 {
            let reason = "told once".to_owned();
            return Err(DeviceError::Media { offset: 0, len: 0, reason });
        }
        changes.into_iter().try_for_each(|change| match change {
            Unflushed::Write(offset, data) => self.durable.write(offset, &data, Fua::No),
            Unflushed::Zero(offset, len) => self.durable.discard(offset, len, Fua::No),
        })
    }

    fn discard(&self, offset: u64, len: u64, fua: Fua) -> Result<(), DeviceError> {
        self.unflushed.lock().unwrap().push(Unflushed::Zero(offset, len));
        self.shown.discard(offset, len, fua)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        _: Hole,
        _: bool,
        fua: Fua,
    ) -> Result<(), DeviceError> {
        BlockDevice::discard(self, offset, len, fua)
    }
}

fn byte_of(device: &dyn BlockDevice, page: u64) -> u8 {
    let mut found = vec![0; 4096];
    device.read(page * PAGE, &mut found).unwrap();
    assert!(found.iter().all(|byte| *byte == found[0]), "page {page} is torn");
    found[0]
}

fn cache(mode: Mode) -> (Arc<Cache>, Arc<Forgetful>, Arc<Mapped>) {
    let backing = Forgetful::new();
    let medium = medium(512, &Settings { mode, ..settings(PAGES * PAGE, 2, 6) });
    let cache = Arc::new(open(&medium, Arc::<Forgetful>::clone(&backing)).unwrap());
    (cache, backing, medium)
}

/// Changes page 3, bypassing the cache. Returns its bytes.
fn change_bypassing(mode: Mode, cache: &Cache) -> u8 {
    if mode == Mode::WriteAround {
        cache.write(3 * PAGE, &[7; 4096], Fua::No).unwrap();
        7
    } else {
        cache.discard(3 * PAGE, PAGE, Fua::No).unwrap();
        0
    }
}

/// A page in the cache that is dirty, in any mode.
fn dirty_page(cache: &Cache) {
    byte_of(cache, 9);
    cache.write(9 * PAGE, &[5; 4096], Fua::No).unwrap();
}

/// A cache with a failed background flush after such a change, and the bytes of page 3.
fn after_a_flush_that_failed(mode: Mode) -> (Arc<Cache>, Arc<Forgetful>, Arc<Mapped>, u8) {
    let (cache, backing, medium) = cache(mode);
    let byte = change_bypassing(mode, &cache);
    dirty_page(&cache);
    backing.fail_flushes(1);
    assert!(cache.sweep().is_err());
    (cache, backing, medium, byte)
}

const MODES: [Mode; 2] = [Mode::WriteBack, Mode::WriteAround];

/// Returns true if a client gets the error of a failed background flush, and a successful flush is
/// true.
fn tells_of_a_background_flush(mode: Mode) -> bool {
    let (cache, backing, _, byte) = after_a_flush_that_failed(mode);
    let told = cache.flush();
    cache.flush().unwrap();
    told.is_err() && backing.is_durable(3, byte)
}

#[test]
fn failed_background_flush_is_reported_and_repeated() {
    for mode in MODES {
        assert!(tells_of_a_background_flush(mode), "{mode}");
    }
}

#[test]
fn failed_flush_covers_no_other_client() {
    for mode in MODES {
        let (cache, backing, _) = cache(mode);
        let byte = change_bypassing(mode, &cache);
        backing.fail_flushes(1);
        assert!(cache.flush().is_err());
        cache.flush().unwrap();
        assert!(backing.is_durable(3, byte), "{mode}");
    }
}

#[test]
fn fua_and_drain_hold_after_a_failed_flush() {
    for mode in MODES {
        let (cache, backing, _, byte) = after_a_flush_that_failed(mode);
        let at = 3 * PAGE;
        cache.write_zeroes(at, PAGE, Hole::Allowed, false, Fua::Yes).unwrap();
        assert!(backing.is_durable(3, 0), "{mode}");
        let (cache, backing, _) = self::cache(mode);
        assert_eq!(change_bypassing(mode, &cache), byte);
        backing.fail_flushes(1);
        assert!(cache.drain().is_err());
        cache.drain().unwrap();
        assert!(backing.is_durable(3, byte), "{mode}");
    }
}

#[test]
fn page_fetched_after_failed_flush_survives_eviction() {
    for mode in MODES {
        let (cache, backing, medium, byte) = after_a_flush_that_failed(mode);
        assert_eq!(byte_of(&*cache, 3), byte);
        // It is demoted, and so kept over a restart, or evicted.
        for page in 10..30 {
            byte_of(&*cache, page);
        }
        drop(cache.flush());
        cache.flush().unwrap();
        drop(cache);
        let cache = open(&medium, backing.cut()).unwrap();
        assert_eq!(byte_of(&cache, 3), byte, "{mode}");
    }
}

#[test]
fn page_fetched_after_failed_flush_is_clean_if_kept() {
    for mode in MODES {
        let (cache, backing, medium, byte) = after_a_flush_that_failed(mode);
        // It is demoted, and no client flushes.
        for page in [3, 10, 11] {
            byte_of(&*cache, page);
        }
        cache.sweep().unwrap();
        drop(cache);
        // Clean pages are compared with the backing device.
        let cache = open(&medium, backing.cut()).unwrap();
        assert_eq!(byte_of(&cache, 3), byte, "{mode}");
    }
}

#[test]
fn repeats_overwrite_no_newer_bytes() {
    let (cache, backing, _) = cache(Mode::WriteBack);
    cache.discard(3 * PAGE, 2 * PAGE, Fua::No).unwrap();
    dirty_page(&cache);
    backing.fail_flushes(1);
    assert!(cache.sweep().is_err());
    cache.write(3 * PAGE, &[8; 4096], Fua::No).unwrap();
    cache.sweep().unwrap();
    drop(cache.flush());
    cache.flush().unwrap();
    assert!(backing.is_durable(3, 8) && backing.is_durable(4, 0));
}

#[test]
fn failed_opening_flush_is_reported() {
    let (cache, backing, medium) = cache(Mode::WriteAround);
    cache.write(3 * PAGE, &[7; 4096], Fua::No).unwrap();
    drop(cache);
    backing.fail_flushes(1);
    let cache = open(&medium, Arc::<Forgetful>::clone(&backing)).unwrap();
    assert!(cache.flush().is_err(), "nobody was told");
    let seen = byte_of(&cache, 3);
    cache.flush().unwrap();
    drop(cache);
    let cut = backing.cut();
    let cache = open(&medium, Arc::<MemoryDevice>::clone(&cut)).unwrap();
    assert_eq!(byte_of(&cache, 3), seen, "what was read and flushed became another page");
    cache.drain().unwrap();
    assert_eq!(byte_of(&*cut, 3), seen);
}

#[test]
fn resize_reports_failed_opening_flush() {
    let (cache, backing, medium) = cache(Mode::WriteAround);
    cache.write(3 * PAGE, &[7; 4096], Fua::No).unwrap();
    drop(cache);
    let shared = || Arc::<Forgetful>::clone(&backing);
    let change = Change { dram_bytes: Some(4 * PAGE), ..Change::default() };
    backing.fail_flushes(1);
    let error = resize(&medium, shared(), &change).unwrap_err();
    assert!(error.contains("told once"), "{error}");
    assert_eq!(open(&medium, shared()).unwrap().settings().dram_bytes, 2 * PAGE);
    resize(&medium, shared(), &change).unwrap();
    assert_eq!(open(&medium, shared()).unwrap().settings().dram_bytes, 4 * PAGE);
}

/// Returns true if the backing device has, in the end, a page written back during the failed flush
/// of another thread.
fn keeps_what_another_flush_lost() -> bool {
    let (cache, backing, _) = cache(Mode::WriteBack);
    cache.write(9 * PAGE, &[1; 4096], Fua::No).unwrap();
    cache.discard(8 * PAGE, PAGE, Fua::No).unwrap();
    backing.fail_flushes(1);
    backing.client.set(Arc::downgrade(&cache)).unwrap();
    let swept = cache.sweep();
    cache.drain().unwrap();
    swept.is_err() && backing.is_durable(9, 1)
}

#[test]
fn concurrent_failed_flush_keeps_dirty() {
    assert!(keeps_what_another_flush_lost());
}

/// Trims page 3 and makes `request`. Between its search for dirty pages and its flush another
/// client writes all of page 3. Returns that page's content after a power failure.
fn trimmed_and_replaced(request: fn(&Cache)) -> u8 {
    let backing = Forgetful::new();
    let medium = medium(512, &settings(PAGES * PAGE, 2, 6));
    let (cache, scm) = watched::open(&medium, Arc::<Forgetful>::clone(&backing));
    cache.discard(3 * PAGE, PAGE, Fua::No).unwrap();
    cache.write(9 * PAGE, &[5; 4096], Fua::No).unwrap();
    let other = Arc::new(Other::default());
    let (client, thread) = (Arc::clone(&cache), Arc::clone(&other));
    // Page 9 is written to SCM: which pages are dirty has been looked for.
    scm.at(Moment::BeforeStore, move || {
        thread.acts(IN_VAIN, move || client.write(3 * PAGE, &[8; 4096], Fua::No).unwrap());
    });
    request(&cache);
    other.join();
    drop((cache, scm));
    byte_of(&open(&medium, backing.cut()).unwrap(), 3)
}

#[test]
fn flush_covers_trim_overwritten_during_it() {
    let flush: fn(&Cache) = |cache| cache.flush().unwrap();
    let sync: fn(&Cache) = |cache| cache.sync().unwrap();
    let trim: fn(&Cache) = |cache| cache.discard(3 * PAGE, PAGE, Fua::Yes).unwrap();
    for (name, request) in [("flush", flush), ("sync", sync), ("trim", trim)] {
        let found = trimmed_and_replaced(request);
        assert!([0, 8].contains(&found), "{name}: {found:#x} from before the trim");
    }
}

/// The backing device asserts sequential flushes: only then the next flusher learns about a
/// failure.
#[test]
fn backing_flushes_come_one_at_a_time() {
    let (cache, backing, _) = cache(Mode::WriteBack);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (cache, backing) = (&cache, &backing);
            scope.spawn(move || {
                for round in 0..200 {
                    let page = 10 * thread + round % 10;
                    if round % 3 == 0 {
                        cache.discard(page * PAGE, PAGE, Fua::No).unwrap();
                    } else {
                        cache.write(page * PAGE, &[1; 4096], Fua::No).unwrap();
                    }
                    if round % 50 == 7 {
                        backing.fail_flushes(1);
                    }
                    drop(cache.flush());
                    drop(cache.sweep());
                }
            });
        }
    });
    backing.fail_flushes(0);
    drop(cache.flush());
    cache.drain().unwrap();
    for page in 0..PAGES {
        assert!(backing.is_durable(page, byte_of(&*cache, page)), "page {page}");
    }
}

//! Failures of SCM: its refusals lose no data, and bring back no data.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use everbyte_block::BlockVolume;
use everbyte_cache::Cache;
use everbyte_device::{
    AtomicWriteError, AtomicWrites, BlockDevice, DeviceError, Fua, MemoryDevice, Passthrough,
    WriteRequest,
};
use everbyte_media::Mapped;
use everbyte_pool::format::VolumeKind;

use crate::watched::{LONG, Other};
use crate::{PAGE, identity, medium, open, open_pool, settings};

const PAGES: u64 = 40;

/// An SCM that frees only a limited number of pages.
struct Keeping {
    volume: BlockVolume<Mapped>,
    /// Pages that it will still free.
    left: AtomicU64,
}

impl Keeping {
    fn lets_go(&self, pages: u64) {
        self.left.store(pages, Ordering::SeqCst);
    }
}

impl everbyte_device::Decorator for Keeping {
    type Inner = BlockVolume<Mapped>;
    const PASSTHROUGH: Passthrough = Passthrough::Split;

    fn inner(&self) -> &Self::Inner {
        &self.volume
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        let one_less = |left: u64| left.checked_sub(1);
        // The mark of a page is removed.
        if *data == [0]
            && self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_err()
        {
            let reason = "it was told to fail".to_owned();
            return Err(DeviceError::NoSpace { offset, len: 1, reason });
        }
        self.volume.write(offset, data, fua)
    }
}

impl AtomicWrites for Keeping {
    fn write_atomic(&self, requests: &[WriteRequest<'_>]) -> Result<(), AtomicWriteError> {
        self.volume.write_atomic(requests)
    }
}

/// Opens the cache in the pool on `medium`, with an SCM that frees all pages at first.
fn open_keeping(medium: &Arc<Mapped>, backing: &Arc<MemoryDevice>) -> (Arc<Cache>, Arc<Keeping>) {
    let volume = BlockVolume::open_as(&open_pool(medium).unwrap(), "c", VolumeKind::CACHE).unwrap();
    let scm = Arc::new(Keeping { volume, left: AtomicU64::new(u64::MAX) });
    let backing = Arc::<MemoryDevice>::clone(backing);
    let cache = Cache::open(Arc::<Keeping>::clone(&scm), backing, &identity()).unwrap();
    (Arc::new(cache), scm)
}

fn page_of(device: &dyn BlockDevice, page: u64) -> [u8; 4096] {
    let mut found = [9; 4096];
    device.read(page * PAGE, &mut found).unwrap();
    found
}

/// A cache whose SCM has page 5 as clean, durably, and did not free it at the page's promotion for
/// a write of its first `len` bytes.
fn written_over_a_kept_mark(
    len: usize,
) -> (Arc<Cache>, Arc<Keeping>, Arc<MemoryDevice>, Arc<Mapped>) {
    let medium = medium(512, &settings(PAGES * PAGE, 2, 6));
    let backing = Arc::new(MemoryDevice::new(PAGES * PAGE));
    backing.write(5 * PAGE, &[0xa5; 4096], Fua::No).unwrap();
    let cache = open(&medium, Arc::<MemoryDevice>::clone(&backing)).unwrap();
    for page in 0..8 {
        page_of(&cache, page);
    }
    cache.flush().unwrap();
    drop(cache);
    // Six pages are in SCM, and the policy believes the last ones to be in DRAM.
    let (cache, scm) = open_keeping(&medium, &backing);
    scm.lets_go(0);
    cache.write(5 * PAGE, &[1; 4096][..len], Fua::No).unwrap();
    let stats = cache.stats();
    assert_eq!((stats.scm_errors, stats.pages, stats.dirty_pages), (1, 6, 1), "{stats:?}");
    (cache, scm, backing, medium)
}

/// Trims such a page once SCM frees it. Returns its content after a crash, if the cache can be
/// opened.
fn trimmed_over_a_kept_mark(len: usize) -> Result<[u8; 4096], String> {
    let (cache, scm, backing, medium) = written_over_a_kept_mark(len);
    scm.lets_go(u64::MAX);
    cache.discard(5 * PAGE, PAGE, Fua::No).unwrap();
    // No shutdown: the pool is recovered as after a crash.
    drop((cache, scm));
    Ok(page_of(&open(&medium, backing)?, 5))
}

#[test]
fn trimmed_page_refused_by_scm_stays_gone() {
    // A part of it is written, or all.
    for len in [10, 4096] {
        assert_eq!(trimmed_over_a_kept_mark(len), Ok([0; 4096]));
    }
}

#[test]
fn trim_refused_by_scm_changes_nothing() {
    let (cache, scm, backing, _medium) = written_over_a_kept_mark(4096);
    let error = cache.discard(5 * PAGE, PAGE, Fua::No).unwrap_err();
    assert!(matches!(error, DeviceError::NoSpace { .. }), "{error}");
    assert_eq!((page_of(&*cache, 5), page_of(&*backing, 5)), ([1; 4096], [0xa5; 4096]));
    scm.lets_go(u64::MAX);
    cache.drain().unwrap();
    assert_eq!(page_of(&*backing, 5), [1; 4096]);
}

/// The zeroes are durable by then, and the pages to free after them are dirty in SCM.
#[test]
fn trim_failing_late_blocks_no_request() {
    let medium = medium(512, &settings(PAGES * PAGE, 2, 6));
    let backing = Arc::new(MemoryDevice::new(PAGES * PAGE));
    let (cache, scm) = open_keeping(&medium, &backing);
    for page in 0..6 {
        cache.write(page * PAGE, &[1; 4096], Fua::No).unwrap();
    }
    cache.drain().unwrap();
    for page in 0..6 {
        cache.write(page * PAGE, &[2; 4096], Fua::No).unwrap();
    }
    cache.flush().unwrap();
    scm.lets_go(3);
    let error = cache.discard(0, 6 * PAGE, Fua::No).unwrap_err();
    assert!(matches!(error, DeviceError::Media { .. }), "{error}");
    assert!(error.to_string().contains("done in part: no space"), "{error}");
    assert!((0..6).all(|page| page_of(&*backing, page) == [0; 4096]));
    assert_eq!(cache.stats().dirty_pages, 3);
    let (other, client) = (Other::default(), Arc::clone(&cache));
    // Absent pages, which wait until they are not busy.
    other.acts(LONG, move || assert!((0..3).all(|page| page_of(&*client, page) == [0; 4096])));
    assert!(other.has_ended(), "the trimmed pages are still busy");
    other.join();
    assert!((3..6).all(|page| page_of(&*cache, page) == [2; 4096]));
    scm.lets_go(u64::MAX);
    cache.drain().unwrap();
    let expected = |page: u64| [if page < 3 { 0_u8 } else { 2 }; 4096];
    assert!((0..6).all(|page| page_of(&*backing, page) == expected(page)));
    // Made again, it is done.
    cache.discard(0, 6 * PAGE, Fua::No).unwrap();
    cache.flush().unwrap();
    drop((cache, scm));
    let cache = open(&medium, backing).unwrap();
    assert!((0..6).all(|page| page_of(&cache, page) == [0; 4096]));
}

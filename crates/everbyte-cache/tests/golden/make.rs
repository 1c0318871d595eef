//! Makes the golden images, and derives their expected content from the writes, never from reads.
//!
//! Everything is fixed: the medium is simulated, one thread writes through one lane, a seed decides
//! the persisted lines of a crash, and constants replace random values in a pool before any log
//! record.

use std::sync::Arc;

use everbyte_block::{BlockOptions, BlockVolume};
use everbyte_cache::{Cache, Mode, Settings, volume_bytes};
use everbyte_crash::{Plan, SimMedium};
use everbyte_device::{BlockDevice, Fua};
use everbyte_policy::sim::Kind;
use everbyte_pool::Pool;
use everbyte_pool::format::VolumeKind;
use everbyte_testkit::golden::{LOG_KEY, fix_descriptors};

use crate::{
    Golden, PAGE, Range, STORAGE_BYTES, backing, identity, open_pool, open_volume, stored,
};

/// Blocks in each pool.
const POOL_BLOCKS: u64 = 96;

fn settings(policy: Kind, mode: Mode) -> Settings {
    Settings {
        backing: identity(),
        backing_bytes: STORAGE_BYTES as u64,
        dram_bytes: 4 * PAGE as u64,
        scm_bytes: 12 * PAGE as u64,
        mode,
        policy,
        small_write_bytes: 512,
    }
}

/// A cache in a pool, and its expected content.
struct Workshop {
    medium: Arc<SimMedium>,
    pool: Arc<Pool<SimMedium>>,
    volume: Arc<BlockVolume<SimMedium>>,
    cache: Cache,
    settings: Settings,
    bytes: Vec<u8>,
}

impl Workshop {
    fn new(settings: Settings) -> Self {
        let medium = Arc::new(SimMedium::new(POOL_BLOCKS * 4096));
        Pool::format(&*medium, 4, *b"golden cache, v1").unwrap();
        let pool = open_pool(&medium);
        let log_bytes = Some(2 * 16384);
        let options = BlockOptions { log_bytes, lanes: 1, ..BlockOptions::default() };
        let size_bytes = volume_bytes(settings.backing_bytes);
        BlockVolume::create_as(&pool, "cache", VolumeKind::CACHE, size_bytes, &options).unwrap();
        pool.close().unwrap();
        let medium = Arc::new(fix_descriptors(&medium, 1, LOG_KEY + 1));
        let pool = open_pool(&medium);
        let volume = open_volume(&pool);
        Cache::format(&*volume, &settings).unwrap();
        let cache = Cache::open(Arc::clone(&volume) as _, backing(), &identity()).unwrap();
        Self { medium, pool, volume, cache, settings, bytes: stored() }
    }

    fn read(&self, pages: std::ops::Range<usize>) {
        let mut bytes = vec![0; pages.len() * PAGE];
        self.cache.read((pages.start * PAGE) as u64, &mut bytes).unwrap();
    }

    /// Writes bytes that must survive a crash after a flush.
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.cache.write(offset as u64, bytes, Fua::No).unwrap();
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Clean and dirty pages in both tiers, all of it flushed.
    fn fill(&mut self) {
        self.read(4..8);
        for page in 8..12 {
            self.write(page * PAGE, &[u8::try_from(page).unwrap(); PAGE]);
        }
        self.write(5 * PAGE + 100, &[0xa5; 60]);
        self.write(23 * PAGE + 10, &[0xa6; 1000]);
        self.cache.flush().unwrap();
    }

    /// Closes the pool. Returns the image after a clean shutdown.
    fn close(&self) -> Vec<u8> {
        self.cache.flush().unwrap();
        self.pool.close().unwrap();
        self.medium.image()
    }

    /// The image and its expected content.
    fn golden(&self, name: &str, about: &str, image: &[u8], marks: (u64, u64)) -> Golden {
        let old = stored();
        let changed = |page: &usize| {
            let end = STORAGE_BYTES.min((page + 1) * PAGE);
            self.bytes[page * PAGE..end] != old[page * PAGE..end]
        };
        let range = |page: usize| {
            let (offset, end) = (page * PAGE, STORAGE_BYTES.min((page + 1) * PAGE));
            let crc32c = crc32c::crc32c(&self.bytes[offset..end]);
            Range { offset, len: end - offset, crc32c }
        };
        let pages = 0..STORAGE_BYTES.div_ceil(PAGE);
        Golden {
            name: name.to_owned(),
            about: about.to_owned(),
            size_bytes: image.len() as u64,
            crc32c: crc32c::crc32c(image),
            was_clean: true,
            open_error: None,
            settings: Some(self.settings.clone()),
            pages: marks.0,
            dirty_pages: marks.1,
            content: pages.filter(changed).map(range).collect(),
        }
    }
}

/// Every image, with its expected content.
pub(crate) fn all() -> Vec<(Golden, Vec<u8>)> {
    let mut all = vec![empty(), clean(), drained(), crashed()];
    all.extend(damaged());
    all
}

fn empty() -> (Golden, Vec<u8>) {
    let shop = Workshop::new(settings(Kind::Everbyte, Mode::WriteThrough));
    let image = shop.close();
    (shop.golden("cache-empty", "nothing was used yet, write-through", &image, (0, 0)), image)
}

fn clean() -> (Golden, Vec<u8>) {
    let mut shop = Workshop::new(settings(Kind::Hybrid, Mode::WriteBack));
    shop.fill();
    let image = shop.close();
    let about = "clean and dirty pages, dirty ones of DRAM with a durable copy; a clean shutdown";
    (shop.golden("cache-clean", about, &image, CLEAN_MARKS), image)
}

fn drained() -> (Golden, Vec<u8>) {
    let mut shop = Workshop::new(settings(Kind::Hybrid, Mode::WriteBack));
    shop.read(2..10);
    shop.bytes = stored();
    shop.cache.drain().unwrap();
    let image = shop.close();
    (shop.golden("cache-drained", "no dirty page", &image, DRAINED_MARKS), image)
}

fn crashed() -> (Golden, Vec<u8>) {
    let mut shop = Workshop::new(settings(Kind::Hybrid, Mode::WriteBack));
    shop.fill();
    // Not flushed: in place in SCM, a new page in DRAM, and one whose fill demotes others.
    for (page, len) in [(5, 40), (4, 300), (12, 4096), (13, 4096), (9, 4096)] {
        shop.cache.write((page * PAGE) as u64, &vec![0xee; len], Fua::No).unwrap();
    }
    let image = shop.medium.crash_state().boot(Plan::Seeded(11)).image();
    let about = "a crash with dirty pages; what was not flushed is undone";
    let golden = shop.golden("cache-crashed", about, &image, CLEAN_MARKS);
    (Golden { was_clean: false, ..golden }, image)
}

/// Volumes with bytes that a cache does not write there.
fn damaged() -> Vec<(Golden, Vec<u8>)> {
    let damage = |name: &str, about: &str, at: u64, bytes: &[u8], error: &str| {
        let mut shop = Workshop::new(settings(Kind::Hybrid, Mode::WriteBack));
        shop.fill();
        shop.cache.flush().unwrap();
        shop.volume.write(at, bytes, Fua::Yes).unwrap();
        let image = shop.close();
        let golden = shop.golden(name, about, &image, CLEAN_MARKS);
        (Golden { open_error: Some(error.to_owned()), settings: None, ..golden }, image)
    };
    vec![
        damage(
            "cache-header",
            "a byte of the settings is another one",
            30,
            b"?",
            "corrupt header of the cache at byte 16 of its volume: its checksum is wrong",
        ),
        damage(
            "cache-version",
            "a version that is still to come",
            8,
            &[9],
            "corrupt header of the cache at byte 8 of its volume: its version is unknown",
        ),
        damage(
            "cache-mark",
            "a mark that is none",
            4096 + 6,
            &[7],
            "corrupt mark of page 6 of the cache: 7",
        ),
        damage(
            "cache-mark-beyond",
            "a mark of a page that the backing device does not have",
            4096 + 24,
            &[1],
            "page 24 lies beyond the backing device's end",
        ),
    ]
}

/// Pages with a mark, and dirty ones, after [`Workshop::fill`]: 4 to 7, demoted, with a write to 5;
/// 8 to 11 and 23, moved or copied down as dirty pages.
const CLEAN_MARKS: (u64, u64) = (9, 6);
/// The same after eight reads: DRAM holds four pages, and they have no mark.
const DRAINED_MARKS: (u64, u64) = (4, 0);

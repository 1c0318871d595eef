//! Golden images of caches. `everbyte_testkit::golden` states the rules, and `make` makes the images.
//!
//! An image has the cache and not its backing device. `stored` describes the backing device of all images.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod make;

use std::sync::Arc;

use everbyte_block::{BlockVolume, kinds};
use everbyte_cache::{Cache, Identity, Settings, inspect};
use everbyte_crash::SimMedium;
use everbyte_device::{BlockDevice, Fua, MemoryDevice};
use everbyte_pool::format::VolumeKind;
use everbyte_pool::{OpenOptions, Pool};
use everbyte_testkit::golden;
use serde::{Deserialize, Serialize};

const PAGE: usize = 4096;
/// The backing device ends within a page.
const STORAGE_BYTES: usize = 24 * PAGE - 512;

/// Contents that every later version must find in an image.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Golden {
    name: String,
    about: String,
    size_bytes: u64,
    /// Of the whole image.
    crc32c: u32,
    was_clean: bool,
    /// Text in the error of opening the cache; nothing else is checked then.
    open_error: Option<String>,
    settings: Option<Settings>,
    /// Pages with a mark, and those of them that are dirty.
    pages: u64,
    dirty_pages: u64,
    /// Contents that the cache serves.
    content: Vec<Range>,
}

/// Bytes that differ from those of the backing device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Range {
    offset: usize,
    len: usize,
    crc32c: u32,
}

fn identity() -> Identity {
    Identity {
        kind: "file".into(),
        name: "/srv/golden.img".into(),
        serial: "inode 42".into(),
        backing: None,
    }
}

/// The backing device behind every image: each byte tells its page.
fn stored() -> Vec<u8> {
    (0..STORAGE_BYTES).map(|at| 0x40 + u8::try_from(at / PAGE).unwrap()).collect()
}

fn backing() -> Arc<MemoryDevice> {
    let backing = MemoryDevice::new(STORAGE_BYTES as u64);
    backing.write(0, &stored(), Fua::No).unwrap();
    Arc::new(backing)
}

fn open_pool(medium: &Arc<SimMedium>) -> Arc<Pool<SimMedium>> {
    let options = OpenOptions { capacity_blocks: 1024 };
    Arc::new(Pool::open(Arc::clone(medium), kinds(), &options).unwrap())
}

fn open_volume(pool: &Arc<Pool<SimMedium>>) -> Arc<BlockVolume<SimMedium>> {
    Arc::new(BlockVolume::open_as(pool, "cache", VolumeKind::CACHE).unwrap())
}

impl golden::Golden for Golden {
    const MANIFEST: &'static str = "caches.json";

    fn name(&self) -> &str {
        &self.name
    }

    fn crc32c(&self) -> u32 {
        self.crc32c
    }

    fn check(&self, image: &[u8]) {
        hold(self, image);
    }
}

/// Checks an image against its entry.
fn hold(golden: &Golden, image: &[u8]) {
    let name = &golden.name;
    assert_eq!(image.len() as u64, golden.size_bytes, "{name}");
    let pool = open_pool(&Arc::new(SimMedium::from_image(image.to_vec())));
    assert_eq!(pool.recovery().was_clean, golden.was_clean, "{name}");
    assert!(pool.check().unwrap().problems.is_empty(), "{name}");
    let volume = open_volume(&pool);
    let backing = backing();
    let opened = Cache::open(Arc::clone(&volume) as _, Arc::clone(&backing) as _, &identity());
    if let Some(text) = &golden.open_error {
        let opened = opened.unwrap_err().to_string();
        let seen = inspect(&*volume).unwrap_err().to_string();
        assert!(opened.contains(text) && seen.contains(text), "{name}: {opened}, {seen}");
        return;
    }
    let cache = opened.unwrap();
    let seen = inspect(&*volume).unwrap();
    assert_eq!(Some(&seen.settings), golden.settings.as_ref(), "{name}");
    assert_eq!((seen.pages, seen.dirty_pages), (golden.pages, golden.dirty_pages), "{name}");
    expect_content(golden, &cache, "the cache");
    cache.drain().unwrap();
    expect_content(golden, &*backing, "the backing device, drained");
}

fn expect_content(golden: &Golden, device: &dyn BlockDevice, what: &str) {
    let mut found = vec![0; STORAGE_BYTES];
    device.read(0, &mut found).unwrap();
    let mut expected = stored();
    for range in &golden.content {
        let bytes = range.offset..range.offset + range.len;
        let crc = crc32c::crc32c(&found[bytes.clone()]);
        assert_eq!(crc, range.crc32c, "{}: {what} at byte {}", golden.name, range.offset);
        expected[bytes.clone()].copy_from_slice(&found[bytes]);
    }
    assert!(found == expected, "{}: {what} differs where nothing was written", golden.name);
}

#[test]
fn golden_caches_match_their_manifest() {
    golden::check_all::<Golden>(7);
}

#[test]
fn wrong_manifest_entries_are_noticed() {
    golden::check_mismatches::<Golden>(
        "cache-crashed",
        &[
            |golden| golden.content[0].crc32c ^= 1,
            |golden| golden.dirty_pages += 1,
            |golden| golden.content.truncate(1),
        ],
    );
}

#[test]
fn packed_golden_images_are_small() {
    golden::check_sizes::<Golden>(10 << 10, 80 << 10);
}

#[test]
fn golden_images_are_made_deterministically() {
    golden::check_made::<Golden>(make::all, true);
}

#[test]
#[ignore = "writes images; see everbyte_testkit::golden"]
fn missing_golden_images_are_added() {
    golden::add_missing::<Golden>(make::all());
}

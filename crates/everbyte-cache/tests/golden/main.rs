//! Golden images of caches: pools of format version 1 with a cache in them, that every later
//! version must read as this one did.
//!
//! Owns the reader and the manifest's form; `make` makes the images. They lie beside those of block
//! volumes, in `golden/v1`, with a manifest of their own, and are never changed or made again: see
//! the golden test of `everbyte-block` for what to do when this one fails and when the format gets
//! a new version. To add an image, add it to `make` and run
//! `cargo test -p everbyte-cache --test golden -- --ignored`, which needs the program `zstd` and
//! only writes what is missing.
//!
//! An image holds the cache, not the backing device behind it; that is the one which `stored`
//! describes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod make;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use everbyte_block::{BlockVolume, kinds};
use everbyte_cache::{Cache, Identity, Settings, inspect};
use everbyte_crash::SimMedium;
use everbyte_device::{BlockDevice, Fua, MemoryDevice};
use everbyte_pool::format::VolumeKind;
use everbyte_pool::{OpenOptions, Pool};
use ruzstd::decoding::StreamingDecoder;
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

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden/v1")
}

fn manifest() -> Vec<Golden> {
    let text = fs::read_to_string(folder().join("caches.json")).unwrap_or("[]".into());
    serde_json::from_str(&text).unwrap()
}

fn read_image(name: &str) -> Vec<u8> {
    let packed = fs::read(folder().join(format!("{name}.img.zst"))).unwrap();
    let mut image = Vec::new();
    let mut decoder = StreamingDecoder::new(packed.as_slice()).unwrap();
    std::io::Read::read_to_end(&mut decoder, &mut image).unwrap();
    image
}

fn open_pool(medium: &Arc<SimMedium>) -> Arc<Pool<SimMedium>> {
    let options = OpenOptions { capacity_blocks: 1024 };
    Arc::new(Pool::open(Arc::clone(medium), kinds(), &options).unwrap())
}

fn open_volume(pool: &Arc<Pool<SimMedium>>) -> Arc<BlockVolume<SimMedium>> {
    Arc::new(BlockVolume::open_as(pool, "cache", VolumeKind::CACHE).unwrap())
}

/// Reads `image` as `golden` says.
fn hold(golden: &Golden, image: &[u8]) {
    let name = &golden.name;
    assert_eq!(image.len() as u64, golden.size_bytes, "{name}");
    assert_eq!(crc32c::crc32c(image), golden.crc32c, "{name}: the image itself was changed");
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
fn every_image_reads_as_its_manifest_says() {
    let all = manifest();
    assert!(all.len() >= 7, "images are missing");
    all.iter().for_each(|golden| hold(golden, &read_image(&golden.name)));
}

#[test]
fn a_wrong_expectation_is_noticed() {
    let all = manifest();
    let crashed = all.iter().find(|golden| golden.name == "cache-crashed").unwrap();
    let image = read_image(&crashed.name);
    let wrong: [fn(&mut Golden); 3] = [
        |golden| golden.content[0].crc32c ^= 1,
        |golden| golden.dirty_pages += 1,
        |golden| golden.content.truncate(1),
    ];
    for change in wrong {
        let mut golden = crashed.clone();
        change(&mut golden);
        let held = std::panic::catch_unwind(|| hold(&golden, &image));
        assert!(held.is_err(), "{golden:?}");
    }
}

#[test]
fn images_are_small() {
    let sizes: Vec<u64> = manifest()
        .iter()
        .map(|golden| folder().join(format!("{}.img.zst", golden.name)).metadata().unwrap().len())
        .collect();
    assert!(sizes.iter().all(|&size| size < 10 << 10), "{sizes:?}");
}

/// Compares two makings with each other, not with the images that are kept: a program that
/// allocates in another order writes the same format.
#[test]
fn making_is_deterministic() {
    for ((first, image), (second, again)) in make::all().into_iter().zip(make::all()) {
        assert_eq!(first, second);
        assert!(image == again, "{}", first.name);
        hold(&first, &image);
    }
}

/// Writes the images that are missing, and their lines of the manifest.
#[test]
#[ignore = "it writes images; see the head of this file"]
fn make_what_is_missing() {
    let mut kept = manifest();
    for (golden, image) in make::all() {
        if kept.iter().any(|known| known.name == golden.name) {
            continue;
        }
        let path = folder().join(format!("{}.img", golden.name));
        fs::write(&path, image).unwrap();
        let packed = Command::new("zstd").args(["-19", "--quiet", "--rm"]).arg(&path).status();
        assert!(packed.expect("the program zstd is needed").success());
        kept.push(golden);
    }
    let text = serde_json::to_string_pretty(&kept).unwrap();
    fs::write(folder().join("caches.json"), text + "\n").unwrap();
}

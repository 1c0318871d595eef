//! Golden images: pools of earlier versions, which every later version must read.
//!
//! Each crate has a manifest in `golden/v1` and a test that makes its images. An image is never changed or made
//! again: it stands for pools in use. If a check of an image fails, the program is wrong. A new format version
//! gets a folder `golden/v2`, and `v1` stays as long as the program supports version 1. To add an image, add it
//! to the crate's `make` function and run the crate's ignored test `missing_golden_images_are_added`. That test
//! needs the program `zstd` and writes missing images only.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]
#![allow(clippy::missing_panics_doc, reason = "a test that cannot go on should panic")]

use std::fmt::Debug;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::Command;

use everbyte_crash::SimMedium;
use everbyte_pool::format::{DESCRIPTOR_AT, Descriptor};
use ruzstd::decoding::StreamingDecoder;
use serde::Serialize;
use serde::de::DeserializeOwned;
use zerocopy::{FromBytes, IntoBytes};

/// Offset of the first volume's header in bytes.
pub const HEADER_AT: usize = 2 * 4096;
/// Constant part of the log keys of volumes with fixed descriptors.
pub const LOG_KEY: u64 = 0x4b45_5900;

/// Expected contents of an image, as written and never as read back: one entry of a manifest.
pub trait Golden: Clone + PartialEq + Debug + Serialize + DeserializeOwned {
    /// File name of the manifest.
    const MANIFEST: &'static str;

    /// Name of the image without extensions.
    fn name(&self) -> &str;

    /// CRC-32C of the whole image.
    fn crc32c(&self) -> u32;

    /// Reads the image and panics where it differs from this entry.
    fn check(&self, image: &[u8]);
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden/v1")
}

/// Returns the entries of the manifest.
#[must_use]
pub fn manifest<G: Golden>() -> Vec<G> {
    // A crate without images yet has no manifest. `check_all` notices a lost one by its minimum.
    let text = fs::read_to_string(folder().join(G::MANIFEST)).unwrap_or("[]".into());
    serde_json::from_str(&text).unwrap()
}

/// Returns the bytes of an image.
#[must_use]
pub fn image(name: &str) -> Vec<u8> {
    let packed = fs::read(folder().join(format!("{name}.img.zst"))).unwrap();
    let mut image = Vec::new();
    let mut decoder = StreamingDecoder::new(packed.as_slice()).unwrap();
    std::io::Read::read_to_end(&mut decoder, &mut image).unwrap();
    image
}

/// Checks an image against its entry.
pub fn check<G: Golden>(golden: &G, image: &[u8]) {
    // Before the contents: a changed image proves nothing about the program.
    assert_eq!(crc32c::crc32c(image), golden.crc32c(), "{}: the image has changed", golden.name());
    golden.check(image);
}

/// Checks all images of a manifest with at least `images_min` entries.
pub fn check_all<G: Golden>(images_min: usize) {
    let all = manifest::<G>();
    // A lost entry would otherwise make the test pass without its image.
    assert!(all.len() >= images_min, "images are missing");
    all.iter().for_each(|golden| check(golden, &image(golden.name())));
}

/// Checks that each change of the entry `name` makes its check fail.
pub fn check_mismatches<G: Golden>(name: &str, changes: &[fn(&mut G)]) {
    let golden = manifest::<G>().into_iter().find(|golden| golden.name() == name).unwrap();
    let image = image(name);
    for change in changes {
        let mut wrong = golden.clone();
        change(&mut wrong);
        // A change without effect would prove that the check is blind to the field.
        assert_ne!(wrong, golden, "the change has no effect");
        // Checks report by panics, because they are tests themselves.
        let checked = catch_unwind(AssertUnwindSafe(|| check(&wrong, &image)));
        assert!(checked.is_err(), "{wrong:?}");
    }
}

/// Checks the images that the current program makes. If `is_deterministic`, makes them twice and compares the
/// bytes. Kept images may differ: an allocator with another order writes the same format.
pub fn check_made<G: Golden>(make: fn() -> Vec<(G, Vec<u8>)>, is_deterministic: bool) {
    let made = make();
    made.iter().for_each(|(golden, image)| check(golden, image));
    if is_deterministic {
        // Randomness or time in an image would hide a change of the format in later comparisons.
        for ((first, image), (second, again)) in made.into_iter().zip(make()) {
            assert_eq!(first, second);
            assert!(image == again, "{}", first.name());
        }
    }
}

/// Checks the sizes of the packed images in bytes: each, and their sum.
pub fn check_sizes<G: Golden>(each_max: u64, sum_max: u64) {
    let path = |golden: &G| folder().join(format!("{}.img.zst", golden.name()));
    let sizes: Vec<u64> =
        manifest::<G>().iter().map(|golden| path(golden).metadata().unwrap().len()).collect();
    assert!(sizes.iter().all(|&size| size < each_max), "{sizes:?}");
    assert!(sizes.iter().sum::<u64>() < sum_max, "{sizes:?}");
}

/// Writes the images that the manifest lacks, and their entries.
pub fn add_missing<G: Golden>(made: Vec<(G, Vec<u8>)>) {
    let mut kept = manifest::<G>();
    for (golden, image) in made {
        // An existing image stands for pools in use and is never replaced.
        if kept.iter().any(|known| known.name() == golden.name()) {
            continue;
        }
        // The program `zstd` writes the packed image next to its input.
        let path = folder().join(format!("{}.img", golden.name()));
        fs::write(&path, image).unwrap();
        let packed = Command::new("zstd").args(["-19", "-q"]).arg(&path).status();
        assert!(packed.expect("the program zstd is needed").success());
        // The unpacked image is many times larger, and must not get into the repository.
        fs::remove_file(&path).unwrap();
        kept.push(golden);
    }
    // Written last: after a failed compression the manifest names no missing image.
    let text = serde_json::to_string_pretty(&kept).unwrap();
    fs::write(folder().join(G::MANIFEST), text + "\n").unwrap();
}

/// Returns a medium with the bytes of a closed pool, in whose first `volumes` descriptors constants replace the
/// random log keys and the creation times.
#[must_use]
pub fn fix_descriptors(closed: &SimMedium, volumes: usize, first_log_key: u64) -> SimMedium {
    let mut image = closed.image();
    for slot in 0..volumes {
        // Both copies: the pool may take either one.
        for copy in DESCRIPTOR_AT {
            let at = HEADER_AT + slot * 4096 + usize::try_from(copy).unwrap();
            let bytes = &mut image[at..at + size_of::<Descriptor>()];
            let descriptor = Descriptor::read_from_bytes(bytes).unwrap();
            let log_key = first_log_key + slot as u64;
            let fixed = Descriptor { log_key, created_s: 1_700_000_000, ..descriptor };
            // The checksum covers the replaced fields.
            bytes.copy_from_slice(fixed.sealed().as_bytes());
        }
    }
    SimMedium::from_image(image)
}

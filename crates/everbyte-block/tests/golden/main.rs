//! Golden images: pools of format version 1 that every later version must read as this one did.
//!
//! Owns the reader and the manifest's form; `make` makes the images. An image in `golden/` is never
//! changed or made again: it stands for pools that are out there. If a test here fails, the
//! program no longer reads what it once wrote, and the program is wrong. When the format gets a
//! new version, a folder `golden/v2` is added with images of its own, and `v1` stays and must read
//! the same for as long as version 1 is supported at all. To add an image, add it to `make` and run
//! `cargo test -p everbyte-block --test golden -- --ignored`, which needs the program
//! `zstd` and only writes what is missing.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod make;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use everbyte_block::{BlockVolume, kinds};
use everbyte_crash::SimMedium;
use everbyte_device::BlockDevice;
use everbyte_pool::{CheckReport, OpenOptions, Pool, PoolError, repair};
use ruzstd::decoding::StreamingDecoder;
use serde::{Deserialize, Serialize};

/// Contents that every later version must find in an image. An error or a line must contain the
/// texts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Golden {
    name: String,
    about: String,
    size_bytes: u64,
    /// Of the whole image.
    crc32c: u32,
    /// Text in the error of opening it, if it cannot be opened; nothing else is checked then.
    open_error: Option<String>,
    was_clean: bool,
    records_undone: u64,
    volumes: Vec<Kept>,
    /// Problems of a check: each line contains one of these, each of these is in some line.
    check: Vec<String>,
    /// Damage that a repair mends, in order.
    mended: Vec<String>,
    /// As `check`, after the repair.
    check_after_repair: Vec<String>,
}

/// A volume and what can be read from it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Kept {
    name: String,
    size_bytes: u64,
    read_only: Option<String>,
    ranges: Vec<Range>,
    /// Bytes at which blocks begin that cannot be read.
    lost: Vec<u64>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Range {
    offset: u64,
    len: u64,
    crc32c: u32,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden/v1")
}

fn manifest() -> Vec<Golden> {
    let text = fs::read_to_string(folder().join("manifest.json")).unwrap_or("[]".into());
    serde_json::from_str(&text).unwrap()
}

fn read_image(name: &str) -> Vec<u8> {
    let packed = fs::read(folder().join(format!("{name}.img.zst"))).unwrap();
    let mut image = Vec::new();
    let mut decoder = StreamingDecoder::new(packed.as_slice()).unwrap();
    std::io::Read::read_to_end(&mut decoder, &mut image).unwrap();
    image
}

type Sim = Arc<Pool<SimMedium>>;

fn open(medium: &Arc<SimMedium>) -> Result<Sim, PoolError> {
    Pool::open(Arc::clone(medium), kinds(), &OpenOptions { capacity_blocks: 1024 }).map(Arc::new)
}

/// Holds the problems of `report` against what was expected.
fn agree(name: &str, report: &CheckReport, expected: &[String]) {
    for problem in &report.problems {
        let known = expected.iter().any(|text| problem.contains(text));
        assert!(known, "{name}: unexpected: {problem}");
    }
    for text in expected {
        let there = report.problems.iter().any(|problem| problem.contains(text));
        assert!(there, "{name}: {text:?} is not among {:?}", report.problems);
    }
}

/// Opens the pool on `medium` and reads all of it.
fn read_all(golden: &Golden, medium: &Arc<SimMedium>, problems: &[String]) {
    let name = &golden.name;
    let pool = open(medium).unwrap();
    let names: Vec<String> = pool.volumes().iter().map(|v| v.name().to_owned()).collect();
    let expected: Vec<&String> = golden.volumes.iter().map(|kept| &kept.name).collect();
    assert_eq!(names.iter().collect::<Vec<_>>(), expected, "{name}");
    for kept in &golden.volumes {
        let volume = BlockVolume::open(&pool, &kept.name).unwrap();
        assert_eq!(volume.geometry().size_bytes, kept.size_bytes, "{name}, {}", kept.name);
        for range in &kept.ranges {
            let mut bytes = vec![0; usize::try_from(range.len).unwrap()];
            volume.read(range.offset, &mut bytes).unwrap();
            let found = crc32c::crc32c(&bytes);
            assert_eq!(found, range.crc32c, "{name}, {} at byte {}", kept.name, range.offset);
        }
        for &offset in &kept.lost {
            let mut bytes = vec![0; 4096];
            volume.read(offset, &mut bytes).expect_err(name);
        }
        let reason = volume.volume().read_only_reason();
        match (&kept.read_only, reason) {
            (Some(text), Some(reason)) => assert!(reason.contains(text), "{name}: {reason}"),
            (expected, found) => assert_eq!(expected.as_deref(), found, "{name}"),
        }
    }
    agree(name, &pool.check().unwrap(), problems);
}

/// Reads `image` as `golden` says.
fn hold(golden: &Golden, image: &[u8]) {
    let name = &golden.name;
    assert_eq!(image.len() as u64, golden.size_bytes, "{name}");
    assert_eq!(crc32c::crc32c(image), golden.crc32c, "{name}: the image itself was changed");
    let boot = || Arc::new(SimMedium::from_image(image.to_vec()));
    if let Some(text) = &golden.open_error {
        let opened = open(&boot()).err().unwrap().to_string();
        let mended = repair(&*boot(), &kinds()).unwrap_err().to_string();
        assert!(opened.contains(text) && mended.contains(text), "{name}: {opened}, {mended}");
        return;
    }
    let pool = open(&boot()).unwrap();
    assert_eq!(pool.recovery().was_clean, golden.was_clean, "{name}");
    assert_eq!(pool.recovery().records_undone, golden.records_undone, "{name}");
    drop(pool);
    read_all(golden, &boot(), &golden.check);
    let medium = boot();
    let mended = repair(&*medium, &kinds()).unwrap();
    assert_eq!(mended.len(), golden.mended.len(), "{name}: {mended:?}");
    for (line, text) in mended.iter().zip(&golden.mended) {
        assert!(line.contains(text), "{name}: {line}");
    }
    read_all(golden, &medium, &golden.check_after_repair);
}

#[test]
fn golden_images_match_manifest() {
    let all = manifest();
    assert!(all.len() >= 13, "images are missing");
    all.iter().for_each(|golden| hold(golden, &read_image(&golden.name)));
}

#[test]
fn wrong_expectation_is_detected() {
    let all = manifest();
    let crashed = all.iter().find(|golden| golden.name == "crashed").unwrap();
    let image = read_image(&crashed.name);
    let wrong: [fn(&mut Golden); 3] = [
        |golden| golden.volumes[0].ranges[0].crc32c ^= 1,
        |golden| golden.records_undone += 1,
        |golden| golden.check.push("anything".to_owned()),
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
    assert!(sizes.iter().all(|&size| size < 50 << 10), "{sizes:?}");
    assert!(sizes.iter().sum::<u64>() < 300 << 10, "{sizes:?}");
}

/// The same format gives the same bytes. This compares two makings with each other, not with the
/// images that are kept: a program that allocates in another order writes the same format.
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
    fs::write(folder().join("manifest.json"), text + "\n").unwrap();
}

//! Golden images of block volumes. `everbyte_testkit::golden` states the rules, and `make` makes the images.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod make;

use std::sync::Arc;

use everbyte_block::{BlockVolume, kinds};
use everbyte_crash::SimMedium;
use everbyte_device::BlockDevice;
use everbyte_pool::{CheckReport, OpenOptions, Pool, PoolError, repair};
use everbyte_testkit::golden;
use serde::{Deserialize, Serialize};

/// Contents that every later version must find in an image. An error or a line must contain the texts.
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
    /// Damage repaired by a repair, in order.
    mended: Vec<String>,
    /// As `check`, after the repair.
    check_after_repair: Vec<String>,
}

/// A volume and its readable contents.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Kept {
    name: String,
    size_bytes: u64,
    read_only: Option<String>,
    ranges: Vec<Range>,
    /// Start bytes of unreadable blocks.
    lost: Vec<u64>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Range {
    offset: u64,
    len: u64,
    crc32c: u32,
}

type Sim = Arc<Pool<SimMedium>>;

fn open(medium: &Arc<SimMedium>) -> Result<Sim, PoolError> {
    Pool::open(Arc::clone(medium), kinds(), &OpenOptions { capacity_blocks: 1024 }).map(Arc::new)
}

/// Compares the problems of `report` with the expected ones.
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

impl golden::Golden for Golden {
    const MANIFEST: &'static str = "manifest.json";

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
    golden::check_all::<Golden>(13);
}

#[test]
fn wrong_expectation_is_detected() {
    golden::check_mismatches::<Golden>(
        "crashed",
        &[
            |golden| golden.volumes[0].ranges[0].crc32c ^= 1,
            |golden| golden.records_undone += 1,
            |golden| golden.check.push("anything".to_owned()),
        ],
    );
}

#[test]
fn packed_golden_images_are_small() {
    golden::check_sizes::<Golden>(50 << 10, 300 << 10);
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

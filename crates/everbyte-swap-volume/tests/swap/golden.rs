//! Golden images of swap volumes. `everbyte_testkit::golden` states the rules.

use std::sync::Arc;

use everbyte_crash::{Plan, SimMedium};
use everbyte_media::BLOCK_U64;
use everbyte_pool::{OpenOptions, Pool};
use everbyte_swap_volume::{RUN_BYTES, SwapOptions, SwapVolume, kinds};
use everbyte_testkit::golden;
use serde::{Deserialize, Serialize};

use crate::test_pool::block_forks;

/// Space for four runs and for the other structures.
const BLOCKS: u64 = 5 * 512;

/// Contents of an image. Every later version must find them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Golden {
    name: String,
    about: String,
    /// Of the whole image.
    crc32c: u32,
    was_clean: bool,
    volumes: Vec<GoldenVolume>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct GoldenVolume {
    name: String,
    wipes: bool,
    /// First blocks of the runs.
    runs: Vec<u64>,
}

fn open(medium: &Arc<SimMedium>) -> Arc<Pool<SimMedium>> {
    let options = OpenOptions { capacity_blocks: BLOCKS };
    Arc::new(Pool::open(Arc::clone(medium), kinds(), &options).unwrap())
}

impl golden::Golden for Golden {
    const MANIFEST: &'static str = "swap.json";

    fn name(&self) -> &str {
        &self.name
    }

    fn crc32c(&self) -> u32 {
        self.crc32c
    }

    fn check(&self, image: &[u8]) {
        hold(self, image.to_vec());
    }
}

/// Checks an image against its entry, and changes the image.
fn hold(golden: &Golden, image: Vec<u8>) {
    let name = &golden.name;
    let medium = Arc::new(SimMedium::from_image(image));
    let pool = open(&medium);
    assert_eq!(pool.recovery().was_clean, golden.was_clean, "{name}");
    let check = pool.check().unwrap();
    assert!(check.is_clean(), "{name}: {:?}", check.problems);
    assert_eq!(pool.volumes().len(), golden.volumes.len(), "{name}");
    for expected in &golden.volumes {
        let volume = SwapVolume::open(&pool, &expected.name).unwrap();
        let runs: Vec<u64> = volume.runs().iter().map(|run| run.0).collect();
        assert_eq!((&runs, volume.wipes()), (&expected.runs, expected.wipes), "{name}");
        assert_eq!(volume.volume().size_bytes().unwrap(), runs.len() as u64 * RUN_BYTES, "{name}");
        volume.remove(&volume.runs()[1..]).unwrap();
        volume.grow(2 * RUN_BYTES).unwrap();
        assert_eq!(volume.runs().len(), 2, "{name}");
    }
    assert!(pool.check().unwrap().is_clean(), "{name}");
}

/// A pool with two volumes: one grew and lost its first run, the other wipes.
fn pool(medium: &Arc<SimMedium>) -> (Arc<Pool<SimMedium>>, Vec<GoldenVolume>) {
    Pool::format(&**medium, 3, [1; 16]).unwrap();
    let pool = open(medium);
    let volume = SwapVolume::create(&pool, "s", RUN_BYTES, SwapOptions::default()).unwrap();
    volume.grow(3 * RUN_BYTES).unwrap();
    volume.remove(&volume.runs()[..1]).unwrap();
    let wiping = SwapVolume::create(&pool, "w", RUN_BYTES, SwapOptions { wipes: true }).unwrap();
    let made = [("s", false, volume.runs()), ("w", true, wiping.runs())];
    let made = made.map(|(name, wipes, runs)| GoldenVolume {
        name: name.to_owned(),
        wipes,
        runs: runs.iter().map(|run| run.0).collect(),
    });
    (pool, made.to_vec())
}

fn entry(
    name: &str,
    about: &str,
    was_clean: bool,
    volumes: Vec<GoldenVolume>,
    image: Vec<u8>,
) -> (Golden, Vec<u8>) {
    let (name, about) = (name.to_owned(), about.to_owned());
    (Golden { name, about, crc32c: crc32c::crc32c(&image), was_clean, volumes }, image)
}

fn make() -> Vec<(Golden, Vec<u8>)> {
    let medium = Arc::new(SimMedium::new(BLOCKS * BLOCK_U64));
    let (closed, volumes) = pool(&medium);
    closed.close().unwrap();
    let clean = entry("swap-clean", "a clean shutdown", true, volumes, medium.image());
    let medium = Arc::new(SimMedium::new(BLOCKS * BLOCK_U64));
    let (_open, volumes) = pool(&medium);
    let image = medium.crash_state().boot(Plan::Seeded(7)).image();
    let crashed = entry("swap-crashed", "a crash after all changes", false, volumes, image);
    vec![clean, crashed]
}

#[test]
fn golden_swap_images_match_manifest() {
    golden::check_all::<Golden>(2);
}

#[test]
fn wrong_golden_swap_entries_are_found() {
    golden::check_mismatches::<Golden>("swap-clean", &[|golden| golden.volumes[0].runs[0] += 512]);
}

#[test]
fn current_golden_swap_images_open() {
    golden::check_made::<Golden>(make, false);
}

#[test]
#[ignore = "writes images; see everbyte_testkit::golden"]
fn missing_golden_images_are_added() {
    let _only_this = block_forks();
    golden::add_missing::<Golden>(make());
}

//! Golden images: swap volumes that every later version must read as the first one did.
//!
//! An image in `golden/` is never changed or made again: it stands for pools that are out there. To add one,
//! add it to `make` and run `cargo test -p everbyte-swap-volume --test swap golden -- --ignored`, which needs
//! the program `zstd` and only writes what is missing. The manifest says what was made, and never what was
//! read back.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use everbyte_crash::{Plan, SimMedium};
use everbyte_media::BLOCK_U64;
use everbyte_pool::{OpenOptions, Pool};
use everbyte_swap_volume::{RUN_BYTES, SwapOptions, SwapVolume, kinds};
use ruzstd::decoding::StreamingDecoder;
use serde::{Deserialize, Serialize};

use crate::house::nobody_forks;

/// Room for what is no run, and four runs.
const BLOCKS: u64 = 5 * 512;

/// Contents that every later version must find in an image.
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

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden/v1")
}

fn manifest() -> Vec<Golden> {
    let text = fs::read_to_string(folder().join("swap.json")).unwrap_or("[]".into());
    serde_json::from_str(&text).unwrap()
}

fn read_image(name: &str) -> Vec<u8> {
    let packed = fs::read(folder().join(format!("{name}.img.zst"))).unwrap();
    let mut image = Vec::new();
    let mut decoder = StreamingDecoder::new(packed.as_slice()).unwrap();
    std::io::Read::read_to_end(&mut decoder, &mut image).unwrap();
    image
}

fn open(medium: &Arc<SimMedium>) -> Arc<Pool<SimMedium>> {
    let options = OpenOptions { capacity_blocks: BLOCKS };
    Arc::new(Pool::open(Arc::clone(medium), kinds(), &options).unwrap())
}

/// Reads `image` as `golden` says, and changes it.
fn hold(golden: &Golden, image: Vec<u8>) {
    let name = &golden.name;
    assert_eq!(crc32c::crc32c(&image), golden.crc32c, "{name}: the image itself was changed");
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

/// A pool with a volume that was grown and lost its first run, and one that wipes.
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

fn golden(
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
    let clean = golden("swap-clean", "a clean shutdown", true, volumes, medium.image());
    let medium = Arc::new(SimMedium::new(BLOCKS * BLOCK_U64));
    let (_open, volumes) = pool(&medium);
    let image = medium.crash_state().boot(Plan::Seeded(7)).image();
    let crashed = golden("swap-crashed", "a crash after all changes", false, volumes, image);
    vec![clean, crashed]
}

#[test]
fn every_golden_image_of_swap_volumes_reads_as_its_manifest_says() {
    let all = manifest();
    assert!(all.len() >= 2, "images are missing");
    all.iter().for_each(|golden| hold(golden, read_image(&golden.name)));
}

#[test]
fn a_wrong_expectation_of_a_golden_image_is_noticed() {
    let mut golden = manifest().swap_remove(0);
    let image = read_image(&golden.name);
    golden.volumes[0].runs[0] += 512;
    assert!(std::panic::catch_unwind(|| hold(&golden, image)).is_err());
}

#[test]
fn swap_volumes_that_are_made_now_read_as_they_should() {
    make().into_iter().for_each(|(golden, image)| hold(&golden, image));
}

/// Writes the images that are missing, and their lines of the manifest.
#[test]
#[ignore = "it writes images; see the head of this file"]
fn make_golden_images_that_are_missing() {
    let mut kept = manifest();
    for (golden, image) in make() {
        if kept.iter().any(|known| known.name == golden.name) {
            continue;
        }
        let path = folder().join(format!("{}.img", golden.name));
        fs::write(&path, image).unwrap();
        let _only_this = nobody_forks();
        let packed = Command::new("zstd").args(["-19", "--quiet", "--rm"]).arg(&path).status();
        assert!(packed.expect("the program zstd is needed").success());
        kept.push(golden);
    }
    let text = serde_json::to_string_pretty(&kept).unwrap();
    fs::write(folder().join("swap.json"), text + "\n").unwrap();
}

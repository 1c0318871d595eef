//! Crashes at every operation of workloads over both extents: each comes back in its state at the last
//! checkpoint with the later durable writes of the fast path, every block with its checksum.

use std::sync::Arc;

use everbyte_crash::{Closures, Crash, Explorer, Log, SimMedium, Summary};
use everbyte_extent::{Delta, FuaOutcome};
use everbyte_media::BLOCK_U64;
use everbyte_plant::plant;
use everbyte_pool::plant::Bug;
use everbyte_testkit::crash_seed;

use crate::pair::{BOTH, Pair, Settings, open_pool, pattern};

const POOL_BLOCKS: u64 = 80;
/// Three blocks and a bit, and two and a bit.
const SIZES: [u64; 2] = [12_300, 8_200];

#[derive(Clone, Copy, Debug)]
enum Step {
    Write(usize, u64, usize),
    /// On the fast path if it is allowed, and else not at all.
    Fast(usize, u64, usize),
    Zero(usize, u64, u64),
    Keep(usize, u64, u64),
    Resize(usize, u64),
    Flush,
}

use Step::{Fast, Flush, Keep, Resize, Write, Zero};

type Contents = [Vec<u8>; 2];

/// Contents that a crash from now on may leave.
struct Allowed(Vec<Contents>);

fn contents(pair: &Pair<SimMedium>) -> Result<Contents, String> {
    let content = |which| pair.content(which).map_err(|error| error.to_string());
    Ok([content(0)?, content(1)?])
}

fn put(contents: &mut Contents, which: usize, at: u64, data: &[u8]) {
    let at = usize::try_from(at).unwrap();
    contents[which][at..at + data.len()].copy_from_slice(data);
}

fn run(medium: &Arc<SimMedium>, log: &Log<Allowed>, steps: &[Step]) {
    // A crash of the opening leaves the contents from before the opening.
    let copy = Arc::new(SimMedium::from_image(medium.image()));
    let mut durable = contents(&Pair::open(open_pool(&copy).unwrap())).unwrap();
    log.note(Allowed(vec![durable.clone()]));
    let pair = Pair::open(open_pool(medium).unwrap());
    for (seed, &step) in (100..).zip(steps) {
        match step {
            Write(which, at, len) => {
                pair.write(which, at, &pattern(seed, len)).unwrap();
            }
            Fast(which, at, len) => {
                let (before, data) = (durable.clone(), pattern(seed, len));
                put(&mut durable, which, at, &data);
                log.note(Allowed(vec![before.clone(), durable.clone()]));
                if pair.write_fast(which, at, &data).unwrap() == FuaOutcome::NotAllowed {
                    durable = before;
                }
            }
            Zero(which, at, len) => pair.zero(which, at, len, false).unwrap(),
            Keep(which, at, len) => pair.zero(which, at, len, true).unwrap(),
            Resize(which, size) => {
                let mut next = contents(&pair).unwrap();
                next[which].resize(usize::try_from(size).unwrap(), 0);
                log.note(Allowed(vec![durable, next.clone()]));
                pair.resize(which, size).unwrap();
                durable = next;
            }
            Flush => {
                let next = contents(&pair).unwrap();
                log.note(Allowed(vec![durable, next.clone()]));
                pair.volume().flush().unwrap();
                durable = next;
            }
        }
        log.note(Allowed(vec![durable.clone()]));
    }
}

/// How far `found` is from `allowed`, for a person to read.
fn difference(found: &Contents, allowed: &Contents) -> String {
    let of = |which: usize| {
        let pairs = || found[which].iter().zip(&allowed[which]);
        let first = pairs().position(|(found, allowed)| found != allowed)?;
        let count = pairs().filter(|(found, allowed)| found != allowed).count();
        Some(format!("extent {which} differs in {count} bytes from {first} on"))
    };
    let words: Vec<String> = (0..2).filter_map(of).collect();
    words.join(", ")
}

fn check(pair: &Pair<SimMedium>, crash: &Crash<'_, Allowed>) -> Result<(), String> {
    let mut found = contents(pair)?;
    let allowed = &crash.events.last().expect("noted before the opening").event.0;
    if !allowed.contains(&found) {
        let differences: Vec<_> =
            allowed.iter().map(|allowed| difference(&found, allowed)).collect();
        return Err(format!("the extents hold none of the states that they may: {differences:?}"));
    }
    pair.judge()?;
    // The recovered extents can be used, and their parts are not taken for free.
    for which in BOTH {
        let data = pattern(which as u64 + 7, 100);
        pair.write(which, 50, &data).map_err(|error| error.to_string())?;
        put(&mut found, which, 50, &data);
    }
    if contents(pair)? != found {
        return Err("a write after the recovery has changed something else".into());
    }
    pair.judge()
}

fn explored(explorer: &Explorer, settings: &Settings, steps: &[Step]) -> Result<Summary, String> {
    let scenario = Closures::new(
        |medium, log| run(medium, log, steps),
        |medium| Ok(Pair::open(open_pool(medium).map_err(|error| error.to_string())?)),
        |pair, crash| check(&pair, crash),
    )
    .medium_len(POOL_BLOCKS * BLOCK_U64)
    .prepared(|medium| {
        let pair = Pair::make(medium, settings);
        for which in BOTH {
            pair.write(which, 0, &pattern(which as u64, 8192)).unwrap();
        }
        pair.volume().flush().unwrap();
    });
    explorer.explore(&scenario).map_err(|failure| failure.to_string())
}

/// A few images of every crash, and crashes of few recoveries.
fn few() -> Explorer {
    Explorer {
        seed: crash_seed(),
        runs_max: 6,
        samples: 2,
        nested_images_max: 1,
        nested_points_max: 3,
        nested_runs_max: 2,
        ..Explorer::default()
    }
}

fn every_setting() -> impl Iterator<Item = Settings> {
    [false, true].into_iter().map(|checksums| Settings {
        sizes: SIZES,
        delta: if checksums { Delta::On } else { Delta::Off },
        checksums,
        ..Settings::default()
    })
}

const WORKLOADS: [&[Step]; 6] = [
    // Both extents in one epoch, logged, replaced and filled.
    &[Write(0, 100, 10), Write(1, 0, 4096), Write(0, 8000, 4000), Flush],
    // Undone writes in one extent, durable writes in the other.
    &[Write(0, 100, 10), Fast(1, 4200, 100), Fast(1, 0, 4096), Fast(0, 4096, 4096)],
    // The same block again and again, across a checkpoint.
    &[Write(0, 10, 10), Write(0, 20, 2500), Flush, Write(0, 30, 10), Fast(0, 40, 10), Flush],
    // Space freed by the one and taken by the other.
    &[Zero(0, 0, 8192), Flush, Write(1, 100, 8000), Flush, Write(0, 0, 4096)],
    // Zeroes that are kept, over data, written to and written over.
    &[Keep(0, 4000, 5000), Write(0, 4200, 50), Keep(1, 0, 4096), Flush, Fast(1, 9, 9)],
    // Smaller, larger, and the cut part stays away.
    &[Write(0, 12_000, 300), Resize(0, 5001), Resize(0, 20_000), Write(0, 4900, 9000), Flush],
];

#[test]
fn crash_leaves_whole_epoch_in_both_extents() {
    for settings in every_setting() {
        for steps in WORKLOADS {
            let summary = explored(&few(), &settings, steps)
                .unwrap_or_else(|failure| panic!("{settings:?} {steps:?}: {failure}"));
            assert!(summary.points > 20, "hardly anything was explored: {summary}");
        }
    }
}

/// Of tiny workloads every image is tried, to the last word of a line.
#[test]
fn crash_images_of_small_change_show_one_epoch() {
    let explorer =
        Explorer { subsets_max: 8, runs_max: usize::MAX, nested_depth: 0, ..Explorer::default() };
    // Records of words: one of lines has 2^16 images.
    let unmapped = [Zero(0, 0, 4096), Keep(1, 0, 4096), Flush];
    let beside = [Zero(0, 0, 4096), Fast(1, 0, 4096)];
    for steps in [&unmapped[..], &beside] {
        let begun = std::time::Instant::now();
        // Compared, the bytes beyond the ends are not stored again by every opening.
        let settings = Settings { delta: Delta::On, ..every_setting().next().unwrap() };
        let summary = explored(&explorer, &settings, steps).unwrap();
        println!("{summary} {:?}", begun.elapsed());
        assert!(summary.is_exhaustive(), "{summary}");
    }
}

/// The explorer finds errors with these workloads and this oracle.
#[test]
fn planted_omissions_are_caught() {
    let with_checksums = Settings { sizes: SIZES, checksums: true, ..Settings::default() };
    let without = Settings { checksums: false, ..with_checksums };
    const FIRST: &str = "extent 0 differs in";
    for (bug, settings, steps, words) in [
        (Bug::ReuseWithoutQuarantine, without, &[Write(0, 0, 4096), Write(1, 0, 4096)][..], FIRST),
        (Bug::LoggedTwice, without, &[Write(0, 100, 8), Write(0, 104, 8)], FIRST),
        (
            Bug::ChecksumNotLogged,
            with_checksums,
            &[Write(0, 100, 10), Write(1, 0, 1)],
            "the checksum of the block at",
        ),
        (
            Bug::FuaFastPathIgnoresRecords,
            without,
            &[Write(0, 100, 10), Fast(0, 110, 10), Flush],
            FIRST,
        ),
    ] {
        // The same explorations every night.
        let explorer = Explorer { seed: 0, ..few() };
        explored(&explorer, &settings, steps).unwrap();
        let planted = plant(bug);
        let found = explored(&explorer, &settings, steps);
        drop(planted);
        match found {
            Ok(summary) => panic!("{bug:?} was not caught: {summary}"),
            Err(failure) => assert!(failure.contains(words), "{bug:?} is caught: {failure}"),
        }
    }
}

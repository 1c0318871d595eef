//! Blocks and runs: allocated, freed, recounted, and unchanged in every crash.

use std::sync::Arc;

use everbyte_crash::{Closures, Crash, Explorer, Log, SimMedium, Summary};
use everbyte_media::BLOCK_U64;
use everbyte_testkit::crash_seed;

use crate::batches::{new_shelf, reopened};
use crate::shelf::{Contents, Shelf, ShelfError, contents_on, open_pool};

const RUN: u64 = 1 << 14;

#[test]
fn blocks_and_runs_survive_close_and_kill() {
    let shelf = new_shelf(1024);
    for place in 0..40 {
        let bytes = [64, 128, 256, 1024, 2048, RUN][usize::try_from(place % 6).unwrap()];
        shelf.put(place, bytes, u8::try_from(place).unwrap()).unwrap();
    }
    for place in (0..40).step_by(3) {
        shelf.remove(place).unwrap();
    }
    let contents = shelf.contents().unwrap();
    let shelf = reopened(shelf);
    assert!(shelf.pool.recovery().was_clean);
    assert_eq!(shelf.contents().unwrap(), contents);
    assert!(shelf.pool.check().unwrap().is_clean());
    shelf.put(0, 64, 9).unwrap();
    shelf.volume().flush().unwrap();
    let contents = shelf.contents().unwrap();
    // As after a kill: the medium stays, and the pool was not closed.
    let medium = Arc::clone(shelf.pool.medium());
    drop(shelf);
    let shelf = Shelf::open(open_pool(&medium).unwrap());
    assert!(!shelf.pool.recovery().was_clean);
    assert_eq!(shelf.contents().unwrap(), contents);
    assert!(shelf.pool.check().unwrap().is_clean());
}

#[test]
fn deleted_shelf_frees_its_blocks() {
    let shelf = new_shelf(512);
    let empty = shelf.pool.info().free_bytes;
    for round in 0..3 {
        for place in 0..200 {
            shelf.put(place, 256, round).unwrap();
        }
        shelf.volume().flush().unwrap();
        for place in 0..200 {
            shelf.remove(place).unwrap();
        }
        shelf.volume().flush().unwrap();
        assert!(shelf.pool.check().unwrap().is_clean());
        assert_eq!(shelf.pool.info().free_bytes, empty, "in round {round}");
    }
    shelf.put(3, 512, 1).unwrap();
    shelf.put(4, RUN, 1).unwrap();
    let pool = Arc::clone(&shelf.pool);
    drop(shelf);
    pool.delete_volume("s").unwrap();
    assert!(pool.check().unwrap().is_clean());
    assert!(pool.info().free_bytes > empty, "table and log are free as well");
}

/// One step of a workload.
#[derive(Clone, Copy)]
enum Step {
    Put(u64, u64, u8),
    Touch(u64, u8),
    Remove(u64),
    Flush,
}

use Step::{Flush, Put, Remove, Touch};

/// An event of a workload.
enum Event {
    /// From now on this may be durable.
    May(Contents),
    /// From now on it is.
    Is(Contents),
}

fn apply(shelf: &Shelf<SimMedium>, step: Step) -> Result<(), ShelfError> {
    match step {
        Put(place, bytes, value) => shelf.put(place, bytes, value),
        Touch(place, value) => shelf.touch(place, value),
        Remove(place) => shelf.remove(place),
        Flush => shelf.volume().flush().map_err(ShelfError::from),
    }
}

fn run(medium: &Arc<SimMedium>, log: &Log<Event>, steps: &[Step]) {
    log.note(Event::Is(contents_on(medium)));
    let shelf = Shelf::open(open_pool(medium).unwrap());
    for &step in steps {
        let contents = shelf.contents().unwrap();
        if let Flush = step {
            log.note(Event::May(contents.clone()));
        }
        apply(&shelf, step).unwrap();
        if let Flush = step {
            log.note(Event::Is(contents));
        }
    }
}

fn check(shelf: &Shelf<SimMedium>, crash: &Crash<'_, Event>) -> Result<(), String> {
    let found = shelf.contents()?;
    let mut allowed: Vec<&Contents> = Vec::new();
    for stamped in crash.events {
        match &stamped.event {
            Event::May(contents) => allowed.push(contents),
            Event::Is(contents) => allowed = vec![contents],
        }
    }
    if !allowed.contains(&&found) {
        return Err(format!("found {found:?}, not one of {allowed:?}"));
    }
    sound(shelf)?;
    // The recovered things can be used, and are not taken for free.
    for place in 100..130 {
        match shelf.put(place, 256, 0xee) {
            Err(ShelfError::NoSpace) => break,
            put => put.map_err(|error| error.to_string())?,
        }
    }
    let mut now = shelf.contents()?;
    now.retain(|&place, _| place < 100);
    if now != found {
        return Err(format!("{now:?} is left of {found:?}"));
    }
    sound(shelf)
}

pub(crate) fn sound(shelf: &Shelf<SimMedium>) -> Result<(), String> {
    let report = shelf.pool.check().map_err(|error| error.to_string())?;
    if report.is_clean() { Ok(()) } else { Err(report.problems.join("; ")) }
}

/// Explores `steps` in a pool of `blocks`, on a shelf with blocks at places 0 to 2 and a run at place 3.
fn explored(explorer: &Explorer, blocks: u64, steps: &[Step]) -> Result<Summary, String> {
    let scenario = Closures::new(
        |medium, log| run(medium, log, steps),
        |medium| Ok(Shelf::open(open_pool(medium).map_err(|error| error.to_string())?)),
        |shelf, crash| check(&shelf, crash),
    )
    .medium_len(blocks * BLOCK_U64)
    .prepared(|medium| {
        let shelf = Shelf::make(medium, 1);
        for (place, bytes) in [(0, 256), (1, 256), (2, 64), (3, RUN)] {
            shelf.put(place, bytes, u8::try_from(place).unwrap() + 1).unwrap();
        }
        shelf.volume().flush().unwrap();
    });
    explorer.explore(&scenario).map_err(|failure| failure.to_string())
}

/// A few images of every crash.
pub(crate) fn few() -> Explorer {
    Explorer { seed: crash_seed(), nested_depth: 0, runs_max: 6, ..Explorer::default() }
}

/// Blocks allocated and changed in one epoch, next to old ones.
const BESIDE: &[Step] = &[Put(4, 256, 9), Touch(0, 5), Put(5, 64, 8), Touch(4, 7), Flush];
/// A block freed and one allocated in one epoch, and in the next.
const REUSED: &[Step] = &[Remove(0), Put(4, 256, 9), Flush, Put(5, 256, 8), Touch(4, 6), Flush];
/// The same with runs, in a pool with few.
const RUNS: &[Step] = &[Remove(3), Put(4, RUN, 9), Put(5, RUN, 8), Flush, Put(6, RUN, 7), Flush];
const TIGHT: u64 = 36;
/// A thing replaced by one of another size, and two blocks freed.
const REPLACED: &[Step] =
    &[Put(0, RUN, 7), Put(3, 64, 6), Remove(2), Remove(1), Flush, Put(6, 64, 1)];

#[test]
fn crash_tears_no_block_or_run() {
    for (blocks, steps) in [(96, BESIDE), (96, REUSED), (TIGHT, RUNS), (96, REPLACED)] {
        println!("{}", explored(&few(), blocks, steps).unwrap());
    }
}

/// Of tiny workloads every image is tried, to the last word of a line.
#[test]
fn crash_images_have_blocks_of_one_epoch() {
    let explorer =
        Explorer { subsets_max: 8, runs_max: usize::MAX, nested_depth: 0, ..Explorer::default() };
    let taken = [Put(4, 64, 9), Touch(4, 7), Flush];
    let given_up = [Remove(2), Flush];
    let replaced = [Put(2, 64, 9), Flush];
    for steps in [&taken[..], &given_up, &replaced] {
        let summary = explored(&explorer, 96, steps).unwrap();
        println!("{summary}");
        assert!(summary.is_exhaustive(), "{summary}");
    }
}

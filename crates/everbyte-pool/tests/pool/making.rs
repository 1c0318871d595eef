//! Pools in creation, in growth, and in a shutdown with a free map of several blocks, crashed everywhere.

use std::sync::Arc;

use everbyte_crash::{
    Closures, Crash, Explorer, Failure, Log, Omission, Scenario, SimMedium, Summary,
};
use everbyte_media::{BLOCK, BLOCK_U64, Medium, PoolOffset};
use everbyte_pool::Pool;
use everbyte_pool::format::SUPERBLOCK_COPIES;
use everbyte_testkit::crash_seed;

use crate::shelf::{Contents, RUN_BLOCKS, Shelf, open_pool};

/// The pool made over another one.
const NEW_UID: [u8; 16] = [9; 16];
const NEW_VOLUMES_MAX: u64 = 3;
/// Blocks of a pool, and of the medium after its growth.
const SMALL: u64 = 32;
const LARGE: u64 = 56;
/// Blocks of a pool with a free map, of one bit for each, of two blocks.
const TWO_MAP_BLOCKS: u64 = 8 * BLOCK_U64 + 100;
const RUN: u64 = RUN_BLOCKS * BLOCK_U64;

fn explored(scenario: &impl Scenario) -> Summary {
    let explorer = Explorer {
        seed: crash_seed(),
        runs_max: 12,
        samples: 4,
        nested_images_max: 1,
        nested_points_max: 3,
        nested_runs_max: 3,
        ..Explorer::default()
    };
    explorer.explore(scenario).unwrap_or_else(|failure| panic!("{failure}"))
}

fn sound(pool: &Pool<SimMedium>) -> Result<(), String> {
    let report = pool.check().map_err(|error| error.to_string())?;
    // A torn copy of the superblock, repaired by opening, is not a problem.
    let mended = |problem: &&String| problem.starts_with("on opening: superblock");
    report.problems.iter().find(|problem| !mended(problem)).map_or(Ok(()), |p| Err(p.clone()))
}

/// A shelf with a durable block.
fn make_shelf(medium: &Arc<SimMedium>) -> Shelf<SimMedium> {
    let shelf = Shelf::make(medium, 1);
    shelf.put(0, 256, 1).unwrap();
    shelf.volume().flush().unwrap();
    shelf
}

/// The creation of a pool on a medium filled by `prepare`. Before the creation the old pool may be left, or
/// no pool; afterwards the new pool exists, and is empty.
fn making<'a>(
    prepare: impl Fn(&Arc<SimMedium>) + 'a,
) -> Closures<'a, (), Result<Arc<Pool<SimMedium>>, String>> {
    let new_uid: String = NEW_UID.iter().map(|byte| format!("{byte:02x}")).collect();
    Closures::new(
        |medium, log: &Log<()>| {
            Pool::format(&**medium, NEW_VOLUMES_MAX, NEW_UID).unwrap();
            log.note(());
        },
        |medium| Ok(open_pool(medium).map_err(|error| error.to_string())),
        move |opened, crash| {
            let is_made = !crash.events.is_empty();
            match opened {
                Ok(pool) if pool.info().uid == new_uid => {
                    let info = pool.info();
                    if (info.volumes, info.volumes_max) != (0, NEW_VOLUMES_MAX) {
                        return Err(format!("the new pool is not new: {info:?}"));
                    }
                    sound(&pool)
                }
                Ok(_) if is_made => Err("the old pool is there".to_owned()),
                Err(error) if is_made => Err(error),
                Ok(_) | Err(_) => Ok(()),
            }
        },
    )
    .medium_len(SMALL * BLOCK_U64)
    .prepared(prepare)
}

#[test]
fn pool_is_created_over_older_pool() {
    println!("{}", explored(&making(|medium| drop(make_shelf(medium)))));
}

/// The creation of a pool over volumes, with nothing else left of one of them. Every image is tried, with
/// `omission` left out.
fn made_over_leavings(omission: Option<Omission>) -> Result<Summary, Box<Failure>> {
    let scenario = making(|medium| {
        drop(make_shelf(medium));
        medium.store(PoolOffset(0), &[0; 2 * BLOCK]);
        medium.flush(PoolOffset(0), 2 * BLOCK_U64);
        medium.fence().unwrap();
    });
    let table = SUPERBLOCK_COPIES.len() as u64 * BLOCK_U64;
    let scenario = scenario.label(table..table + NEW_VOLUMES_MAX * BLOCK_U64, "volume table");
    let explorer =
        Explorer { subsets_max: 8, runs_max: usize::MAX, nested_depth: 0, ..Explorer::default() };
    match omission {
        Some(omission) => explorer.explore(&scenario.omit(omission)),
        None => explorer.explore(&scenario),
    }
}

#[test]
fn pool_is_created_over_remains() {
    let summary = made_over_leavings(None).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{summary}");
    assert!(summary.is_exhaustive(), "{summary}");
    // A pool that is made before the old one is gone.
    let made = made_over_leavings(Some(Omission::fence_after_stream("volume table")));
    let failure = made.expect_err("an omission");
    assert!(failure.message.contains("volume descriptor"), "{failure}");
}

/// Contents of a shelf and its pool that a crash may leave.
struct Allowed {
    contents: Vec<Contents>,
    blocks: Vec<u64>,
    /// True if the pool was shut down.
    is_clean: bool,
}

impl Allowed {
    fn new(contents: &[&Contents], blocks: &[u64]) -> Self {
        let contents = contents.iter().map(|&contents| contents.clone()).collect();
        Self { contents, blocks: blocks.to_vec(), is_clean: false }
    }

    /// The shelf on `medium`, inspected on a copy.
    fn before_opening(medium: &SimMedium) -> Self {
        let copy = Arc::new(SimMedium::from_image(medium.image()));
        let shelf = Shelf::open(open_pool(&copy).unwrap());
        let blocks = shelf.pool.info().size_bytes / BLOCK_U64;
        Self::new(&[&shelf.contents().unwrap()], &[blocks])
    }
}

fn check(shelf: &Shelf<SimMedium>, crash: &Crash<'_, Allowed>) -> Result<(), String> {
    let (found, blocks) = (shelf.contents()?, shelf.pool.info().size_bytes / BLOCK_U64);
    let allowed = &crash.events.last().expect("noted before the opening").event;
    if !allowed.contents.contains(&found) {
        return Err(format!("found {found:?}, not one of {:?}", allowed.contents));
    }
    if !allowed.blocks.contains(&blocks) {
        return Err(format!("a pool of {blocks} blocks, not one of {:?}", allowed.blocks));
    }
    if allowed.is_clean && crash.nested == 0 && !shelf.pool.recovery().was_clean {
        return Err("it was shut down, and is not clean".to_owned());
    }
    sound(&shelf.pool)?;
    // The recovered shelf can be used.
    shelf.put(100, 256, 0xee).map_err(|error| error.to_string())?;
    shelf.volume().flush().map_err(|error| error.to_string())?;
    sound(&shelf.pool)
}

/// A scenario from a shelf with a block.
fn on_a_shelf<'a>(
    blocks: u64,
    run: impl Fn(&Shelf<SimMedium>, &Log<Allowed>) + 'a,
    prepare: impl Fn(&Arc<SimMedium>) + 'a,
) -> Closures<'a, Allowed, Shelf<SimMedium>> {
    Closures::new(
        move |medium, log| {
            log.note(Allowed::before_opening(medium));
            run(&Shelf::open(open_pool(medium).unwrap()), log);
        },
        |medium| Ok(Shelf::open(open_pool(medium).map_err(|error| error.to_string())?)),
        |shelf, crash| check(&shelf, crash),
    )
    .medium_len(blocks * BLOCK_U64)
    .prepared(prepare)
}

/// A grown pool has the old or the new size, and contents beyond its old end exist once they were made
/// durable.
#[test]
fn grown_pool_uses_new_space() {
    let run = |shelf: &Shelf<SimMedium>, log: &Log<Allowed>| {
        let first = shelf.contents().unwrap();
        shelf.put(1, 256, 2).unwrap();
        log.note(Allowed::new(&[&first], &[SMALL, LARGE]));
        shelf.pool.extend().unwrap();
        log.note(Allowed::new(&[&first], &[LARGE]));
        for place in 2..7 {
            shelf.put(place, RUN, 3).unwrap();
        }
        let last = shelf.contents().unwrap();
        log.note(Allowed::new(&[&first, &last], &[LARGE]));
        shelf.volume().flush().unwrap();
        log.note(Allowed::new(&[&last], &[LARGE]));
    };
    let prepare = |medium: &Arc<SimMedium>| {
        let small = Arc::new(SimMedium::new(SMALL * BLOCK_U64));
        make_shelf(&small).pool.close().unwrap();
        medium.store(PoolOffset(0), &small.image());
        medium.flush(PoolOffset(0), SMALL * BLOCK_U64);
        medium.fence().unwrap();
    };
    println!("{}", explored(&on_a_shelf(LARGE, run, prepare)));
}

#[test]
fn two_block_free_map_is_saved_and_loaded() {
    let run = |shelf: &Shelf<SimMedium>, log: &Log<Allowed>| {
        assert!(shelf.pool.recovery().was_clean, "the saved map is used");
        let first = shelf.contents().unwrap();
        shelf.put(1, RUN, 2).unwrap();
        let last = shelf.contents().unwrap();
        log.note(Allowed::new(&[&first, &last], &[TWO_MAP_BLOCKS]));
        shelf.pool.close().unwrap();
        log.note(Allowed { is_clean: true, ..Allowed::new(&[&last], &[TWO_MAP_BLOCKS]) });
    };
    let prepare = |medium: &Arc<SimMedium>| make_shelf(medium).pool.close().unwrap();
    println!("{}", explored(&on_a_shelf(TWO_MAP_BLOCKS, run, prepare)));
}

//! Crashes during the deletion of a damaged volume, and during a repair that reclaims the blocks leaked by
//! the deletion.

use std::sync::Arc;

use everbyte_crash::{Closures, Crash, Log, SimMedium};
use everbyte_media::{BLOCK_U64, BlockNo, Medium, PoolOffset};
use everbyte_pool::{BlockRun, DeletedVolume, NewRoot, Pool, VolumeSpec, repair};

use crate::runs::few;
use crate::shelf::{Contents, PLACES, RUN_BLOCKS, SHELF, Shelf, Thing, kinds, open_pool};

const BLOCKS: u64 = 64;
const RUN: u64 = RUN_BLOCKS * BLOCK_U64;
/// A log, a table, and the things of a shelf.
const SMALL_BLOCKS: u64 = 8 + 1;
const SOUND_BLOCKS: u64 = SMALL_BLOCKS + 1 + RUN_BLOCKS;

type State = (Arc<SimMedium>, Arc<Pool<SimMedium>>);

fn contents() -> Contents {
    [(0, (64, 1, 1)), (1, (RUN, 2, 2))].into()
}

fn create(pool: &Pool<SimMedium>, name: &str) {
    let mut spec = VolumeSpec::new(name, SHELF, 4096);
    (spec.lanes, spec.log_bytes) = (1, Some(32 << 10));
    pool.create_volume(&spec, NewRoot::Zeroes { blocks: 1 }).unwrap();
}

/// Stores a pool after a shutdown, with the sound shelf "s" and the damaged shelf "d". The map of "d" leads
/// to a run of its own, to the run of "s" if `is_shared`, to a place outside the pool, and to one more run of
/// its own.
fn prepare(medium: &Arc<SimMedium>, is_shared: bool) {
    Pool::format(&**medium, 3, [1; 16]).unwrap();
    let pool = open_pool(medium).unwrap();
    ["s", "d"].into_iter().for_each(|name| create(&pool, name));
    let sound = Shelf::open(Arc::clone(&pool));
    sound.put(0, 64, 1).unwrap();
    sound.put(1, RUN, 2).unwrap();
    let damaged = Shelf::open_named(Arc::clone(&pool), "d");
    damaged.put(0, RUN, 7).unwrap();
    damaged.put(3, RUN, 7).unwrap();
    let words = [damaged.word_at(1), damaged.word_at(2)];
    let of_sound = sound.thing(1).unwrap();
    drop((sound, damaged));
    pool.close().unwrap();
    drop(pool);
    let store = |at: PoolOffset, thing: Thing| {
        medium.store_word(at, thing.encode());
        medium.flush(at, 8);
    };
    if is_shared {
        store(words[0], of_sound);
    }
    store(words[1], Thing::Run(BlockRun { start: BlockNo(BLOCKS + 8), len: RUN_BLOCKS }));
    medium.fence().unwrap();
}

fn delete(pool: &Pool<SimMedium>) -> DeletedVolume {
    pool.delete_damaged_volume("d").unwrap()
}

fn opened(medium: &Arc<SimMedium>) -> Result<State, String> {
    let pool = open_pool(medium).map_err(|error| error.to_string())?;
    Ok((Arc::clone(medium), pool))
}

/// The sound shelf has its bytes, and each block in use has one owner.
fn is_sound(pool: &Arc<Pool<SimMedium>>) -> Result<(), String> {
    let report = pool.check().map_err(|error| error.to_string())?;
    let has_more = pool.volume("u").is_ok();
    if !report.is_clean() || !has_more && report.used_blocks != SOUND_BLOCKS {
        return Err(format!("{report:?}"));
    }
    let found = Shelf::open(Arc::clone(pool)).contents()?;
    (found == contents()).then_some(()).ok_or_else(|| format!("{found:?}"))
}

fn check((medium, pool): State, crash: &Crash<'_, Vec<&'static str>>) -> Result<(), String> {
    let volumes = pool.volumes();
    let found: Vec<_> = volumes.iter().map(|volume| volume.name().to_owned()).collect();
    let allowed = &crash.events.last().expect("noted before the opening").event;
    if !allowed.contains(&found.join(" ").as_str()) {
        return Err(format!("found {found:?}, not one of {allowed:?}"));
    }
    drop(volumes);
    if found.iter().any(|name| name == "d") {
        pool.delete_damaged_volume("d").map_err(|error| error.to_string())?;
    }
    pool.close().map_err(|error| error.to_string())?;
    drop(pool);
    repair(&*medium, &kinds()).map_err(|error| error.to_string())?;
    let again = repair(&*medium, &kinds()).map_err(|error| error.to_string())?;
    if !again.is_empty() {
        return Err(format!("more to mend: {again:?}"));
    }
    is_sound(&opened(&medium)?.1)
}

/// Deletes the damaged shelf, and makes another one with all free runs.
fn deletion(is_shared: bool) -> Closures<'static, Vec<&'static str>, State> {
    Closures::new(
        |medium, log: &Log<Vec<&'static str>>| {
            log.note(vec!["d s"]);
            let pool = open_pool(medium).unwrap();
            log.note(vec!["d s", "s"]);
            assert!(delete(&pool).damage.is_some());
            log.note(vec!["s", "s u"]);
            create(&pool, "u");
            log.note(vec!["s u"]);
            let filled = Shelf::open_named(Arc::clone(&pool), "u");
            let runs = (0..PLACES).take_while(|&place| filled.put(place, RUN, 9).is_ok()).count();
            assert!(runs >= 4, "{runs}");
            drop(filled);
            pool.close().unwrap();
        },
        opened,
        check,
    )
    .medium_len(BLOCKS * BLOCK_U64)
    .prepared(move |medium| prepare(medium, is_shared))
}

#[test]
fn crashed_deletion_of_damage_can_be_repeated() {
    for is_shared in [false, true] {
        let explored = few().explore(&deletion(is_shared));
        println!("{}", explored.unwrap_or_else(|failure| panic!("{failure}")));
    }
}

#[test]
fn crashed_repair_of_leaks_can_be_repeated() {
    let scenario = Closures::new(
        |medium: &Arc<SimMedium>, _: &Log<()>| {
            assert!(!repair(&**medium, &kinds()).unwrap().is_empty());
        },
        |medium| {
            repair(&**medium, &kinds()).map_err(|error| error.to_string())?;
            opened(medium)
        },
        |(_, pool): State, _| is_sound(&pool),
    )
    .medium_len(BLOCKS * BLOCK_U64)
    .prepared(|medium| {
        prepare(medium, true);
        let pool = open_pool(medium).unwrap();
        assert!(delete(&pool).leaked_blocks > 0);
        pool.close().unwrap();
    });
    println!("{}", few().explore(&scenario).unwrap_or_else(|failure| panic!("{failure}")));
}

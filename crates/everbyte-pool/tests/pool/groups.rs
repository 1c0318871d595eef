//! Groups: several changes that are durable together, or undone while others wait.

use std::sync::Arc;
use std::thread;

use everbyte_crash::{Closures, Log, Plan, SimMedium};
use everbyte_media::{BLOCK_U64, MediaError, Medium, PoolOffset};
use everbyte_pool::{BatchOutcome, PlanConstraints, WriteError};

use crate::runs::{few, sound};
use crate::shelf::{Contents, Shelf, ShelfError, contents_on, open_pool};

const BLOCKS: u64 = 96;
const RUN: u64 = 1 << 14;

/// A shelf with runs at places 0 and 1 and a block at place 2, all durable.
fn new_shelf(lanes: u32) -> Shelf<SimMedium> {
    filled(&Arc::new(SimMedium::new(BLOCKS * BLOCK_U64)), lanes)
}

fn filled(medium: &Arc<SimMedium>, lanes: u32) -> Shelf<SimMedium> {
    let shelf = Shelf::make(medium, lanes);
    for (place, bytes) in [(0, RUN), (1, RUN), (2, 64)] {
        shelf.put(place, bytes, 1).unwrap();
    }
    shelf.volume().flush().unwrap();
    shelf
}

/// Plans and makes one change of an open group.
fn put_in_group(shelf: &Shelf<SimMedium>, place: u64, value: u8) -> BatchOutcome {
    let outcome: Result<_, ShelfError> = shelf
        .volume()
        .attempt(PlanConstraints::default(), |batch, _| shelf.plan_put(batch, place, RUN, value));
    outcome.unwrap()
}

fn touch_in_group(shelf: &Shelf<SimMedium>, place: u64, value: u8) {
    let mut batch = shelf.volume().begin_batch().unwrap();
    let line = [value; 64];
    batch.change_bytes(shelf.thing_at(place), &line);
    assert!(matches!(batch.commit(), Ok(BatchOutcome::Done(_))));
}

/// A thing replaced, one put where there was none, one changed in place, one taken away.
fn make_changes(shelf: &Shelf<SimMedium>) {
    assert!(matches!(put_in_group(shelf, 0, 5), BatchOutcome::Done(_)));
    assert!(matches!(put_in_group(shelf, 7, 6), BatchOutcome::Done(_)));
    touch_in_group(shelf, 1, 7);
    let removed: Result<_, ShelfError> =
        shelf.volume().attempt(PlanConstraints::default(), |batch, _| {
            shelf.plan_remove(batch, 2);
            Ok(())
        });
    removed.unwrap();
}

fn changed() -> Contents {
    Contents::from([(0, (RUN, 5, 5)), (1, (RUN, 7, 1)), (7, (RUN, 6, 6))])
}

fn after_power_cut(shelf: &Shelf<SimMedium>) -> Contents {
    let left = shelf.pool.medium().crash_state().boot(Plan::nothing());
    Shelf::open(open_pool(&Arc::new(left)).unwrap()).contents().unwrap()
}

#[test]
fn group_roll_back_restores_bytes_and_space() {
    for lanes in [1, 2] {
        let shelf = new_shelf(lanes);
        let (before, free) = (shelf.contents().unwrap(), shelf.pool.info().free_bytes);
        let group = shelf.volume().begin_group().unwrap();
        make_changes(&shelf);
        assert_eq!(shelf.contents().unwrap(), changed(), "readers see what is made");
        group.roll_back().unwrap();
        assert_eq!(shelf.contents().unwrap(), before);
        assert_eq!(after_power_cut(&shelf), before);
        shelf.volume().flush().unwrap();
        assert_eq!(shelf.pool.info().free_bytes, free, "on {lanes} lanes");
        sound(&shelf).unwrap();
        // Its freed things are still there, and its allocations are free for others.
        shelf.put(8, RUN, 9).unwrap();
        assert_eq!(shelf.contents().unwrap().len(), 4);
        assert_eq!(shelf.contents().unwrap()[&0], (RUN, 1, 1));
    }
}

#[test]
fn committed_group_is_durable_and_frees() {
    let shelf = new_shelf(2);
    shelf.put(9, 64, 4).unwrap();
    let (mut expected, free) = (changed(), shelf.pool.info().free_bytes);
    expected.insert(9, (64, 4, 4));
    let group = shelf.volume().begin_group().unwrap();
    assert_eq!(after_power_cut(&shelf).len(), 4, "what came before it is durable");
    make_changes(&shelf);
    assert_eq!(after_power_cut(&shelf).len(), 4, "and nothing of it is");
    group.commit().unwrap();
    assert_eq!(after_power_cut(&shelf), expected);
    assert_eq!(shelf.pool.info().free_bytes, free - RUN + BLOCK_U64, "a run for a block");
    sound(&shelf).unwrap();
}

#[test]
fn dropped_group_waits_for_checkpoint() {
    let shelf = new_shelf(1);
    let before = shelf.contents().unwrap();
    let group = shelf.volume().begin_group().unwrap();
    make_changes(&shelf);
    drop(group);
    assert_eq!((shelf.contents().unwrap(), after_power_cut(&shelf)), (changed(), before));
    shelf.volume().flush().unwrap();
    assert_eq!(after_power_cut(&shelf), changed());
    sound(&shelf).unwrap();
}

#[test]
fn full_log_limits_group_not_its_end() {
    for commits in [false, true] {
        let shelf = new_shelf(1);
        let before = shelf.contents().unwrap();
        let group = shelf.volume().begin_group().unwrap();
        let line = [8; 64];
        // Half a lane has room for 128 records of one line.
        let touch = |number: u64| {
            let mut batch = shelf.volume().begin_batch().unwrap();
            batch.change_bytes(shelf.thing_at(number / 128).plus(number % 128 * 64), &line);
            batch.commit().unwrap()
        };
        let epoch = shelf.volume().current_epoch();
        assert!((0..128).all(|number| touch(number) == BatchOutcome::Done(epoch)));
        assert_eq!(touch(128), BatchOutcome::LogFull);
        assert_eq!(
            shelf.volume().medium().load_word(shelf.thing_at(1)),
            u64::from_le_bytes([1; 8])
        );
        let left = if commits {
            group.commit().unwrap();
            [8, 8, 1]
        } else {
            group.roll_back().unwrap();
            assert_eq!(shelf.contents().unwrap(), before);
            [1, 1, 1]
        };
        // The first two lines, and the one that did not fit.
        let medium = Arc::new(shelf.pool.medium().crash_state().boot(Plan::nothing()));
        drop(open_pool(&medium).unwrap());
        let places = [shelf.thing_at(0), shelf.thing_at(0).plus(127 * 64), shelf.thing_at(1)];
        let first_bytes = places.map(|at| medium.load_word(at) & 255);
        assert_eq!(first_bytes, left, "commits: {commits}");
        sound(&shelf).unwrap();
    }
}

/// Writers, flushes, checkpoints in the background and other groups come after it.
#[test]
fn group_excludes_other_writers() {
    let shelf = new_shelf(2);
    let group = shelf.volume().begin_group().unwrap();
    assert!(matches!(put_in_group(&shelf, 0, 5), BatchOutcome::Done(_)));
    thread::scope(|scope| {
        let others = [
            scope.spawn(|| shelf.put(5, 64, 1).unwrap()),
            scope.spawn(|| shelf.volume().flush().unwrap()),
            scope.spawn(|| shelf.volume().begin_group().unwrap().commit().unwrap()),
        ];
        thread::sleep(std::time::Duration::from_millis(20));
        assert!(others.iter().all(|other| !other.is_finished()));
        assert_eq!(shelf.thing(5), None);
        group.roll_back().unwrap();
    });
    let contents = shelf.contents().unwrap();
    assert_eq!((contents[&0], contents[&5]), ((RUN, 1, 1), (64, 1, 1)));
}

#[test]
fn timer_does_not_split_group() {
    let shelf = new_shelf(2);
    let group = shelf.volume().begin_group().unwrap();
    make_changes(&shelf);
    let epoch = shelf.volume().current_epoch();
    let timer = shelf.pool.start_timer(std::time::Duration::from_millis(1)).unwrap();
    thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(shelf.volume().current_epoch(), epoch);
    drop(timer);
    group.roll_back().unwrap();
    assert_eq!(shelf.contents().unwrap().len(), 3);
}

#[test]
fn failed_group_commit_is_undone_at_open() {
    let shelf = new_shelf(1);
    let before = shelf.contents().unwrap();
    let group = shelf.volume().begin_group().unwrap();
    make_changes(&shelf);
    shelf.pool.medium().fail(MediaError::StoreLost { at: PoolOffset(5) });
    let error = group.commit().unwrap_err();
    assert!(matches!(error, WriteError::Media(MediaError::StoreLost { .. })), "{error:?}");
    assert!(shelf.volume().flush().is_err() && shelf.volume().begin_group().is_err());
    assert_eq!(after_power_cut(&shelf), before);
}

#[test]
fn crash_leaves_group_whole_or_undone() {
    for commits in [true, false] {
        let scenario = Closures::new(
            |medium, log: &Log<Vec<Contents>>| {
                let before = contents_on(medium);
                log.note(vec![before.clone()]);
                let shelf = Shelf::open(open_pool(medium).unwrap());
                let group = shelf.volume().begin_group().unwrap();
                make_changes(&shelf);
                if commits {
                    log.note(vec![before, changed()]);
                    group.commit().unwrap();
                    log.note(vec![changed()]);
                } else {
                    group.roll_back().unwrap();
                    // In the space of the rolled back changes, and durable.
                    shelf.put(8, RUN, 9).unwrap();
                    let after = shelf.contents().unwrap();
                    log.note(vec![before, after.clone()]);
                    shelf.volume().flush().unwrap();
                    log.note(vec![after]);
                }
            },
            |medium| Ok(Shelf::open(open_pool(medium).map_err(|error| error.to_string())?)),
            |shelf, crash| {
                let found = shelf.contents()?;
                let allowed = &crash.events.last().expect("noted before the opening").event;
                if !allowed.contains(&found) {
                    return Err(format!("found {found:?}, not one of {allowed:?}"));
                }
                sound(&shelf)
            },
        )
        .medium_len(40 * BLOCK_U64)
        .prepared(|medium| drop(filled(medium, 1)));
        println!("{}", few().explore(&scenario).unwrap_or_else(|failure| panic!("{failure}")));
    }
}

//! Epochs: their writers, the flushes of a checkpoint, the waits of a flush, and the reports of a failed
//! checkpoint.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use everbyte_crash::{Plan, SimMedium};
use everbyte_media::{BLOCK_U64, MediaError, Medium, PoolOffset};
use everbyte_pool::{BatchOutcome, NewRoot, PlanConstraints, PoolError, VolumeSpec, WriteError};

use crate::shelf::{Contents, SHELF, Shelf, ShelfError, open_pool};

const BLOCKS: u64 = 96;
/// Two words of a header with the durable epoch, each in a line of its own.
const MARK_LINES: u64 = 2;

fn new_shelf(lanes: u32) -> Shelf<SimMedium> {
    Shelf::make(&Arc::new(SimMedium::new(BLOCKS * BLOCK_U64)), lanes)
}

/// Returns the contents after a power failure now with the loss of everything volatile.
fn after_power_cut(shelf: &Shelf<SimMedium>) -> Contents {
    let left = shelf.pool.medium().crash_state().boot(Plan::nothing());
    Shelf::open(open_pool(&Arc::new(left)).unwrap()).contents().unwrap()
}

/// Returns true if `thread` is still at work after the time it needs when nothing holds it up.
fn is_held_up<T>(thread: &thread::ScopedJoinHandle<'_, T>) -> bool {
    let deadline = Instant::now() + Duration::from_millis(20);
    while Instant::now() < deadline && !thread.is_finished() {
        thread::yield_now();
    }
    !thread.is_finished()
}

fn lines_flushed(shelf: &Shelf<SimMedium>, run: impl FnOnce()) -> u64 {
    let before = shelf.volume().medium().counters();
    run();
    shelf.volume().medium().counters().since(&before).lines_flushed
}

#[test]
fn flush_makes_earlier_changes_durable() {
    let shelf = new_shelf(2);
    let volume = shelf.volume();
    let mut durable = Contents::new();
    for (round, bytes) in (1u8..).zip([64, 2048, 1 << 14, 512]) {
        shelf.put(u64::from(round), bytes, round).unwrap();
        assert_eq!(after_power_cut(&shelf), durable, "round {round}");
        let epoch = volume.current_epoch();
        volume.flush().unwrap();
        durable = shelf.contents().unwrap();
        assert_eq!(after_power_cut(&shelf), durable, "round {round}");
        assert_eq!((volume.completed_epoch(), volume.current_epoch()), (epoch, epoch + 1));
        assert_eq!(volume.checkpoints(), u64::from(round));
    }
    let (ops, checkpoints) = (volume.medium().ops(), volume.checkpoints());
    volume.flush().unwrap();
    volume.complete(volume.completed_epoch()).unwrap();
    assert_eq!((volume.medium().ops(), volume.checkpoints()), (ops, checkpoints), "nothing to do");
}

#[test]
fn checkpoint_flushes_each_dirty_line_once() {
    let shelf = new_shelf(1);
    for place in 0..4 {
        // A line of words has eight of them.
        shelf.put(8 * place, 64, 1).unwrap();
    }
    let flushed = lines_flushed(&shelf, || shelf.volume().flush().unwrap());
    assert_eq!(flushed, 4 + MARK_LINES, "the words; what was streamed needs no flush");
    for _ in 0..3 {
        shelf.touch(0, 2).unwrap();
        shelf.touch(8, 2).unwrap();
    }
    let guard = shelf.volume().lock_checkpoint();
    let sealed = shelf.volume().begin_checkpoint(&guard).unwrap();
    shelf.touch(16, 3).unwrap();
    shelf.touch(0, 3).unwrap();
    let flushed = lines_flushed(&shelf, || sealed.finish().unwrap());
    assert_eq!(flushed, 2 + MARK_LINES, "those of places 0 and 8");
    drop(guard);
    let flushed = lines_flushed(&shelf, || shelf.volume().flush().unwrap());
    assert_eq!(flushed, 2 + MARK_LINES, "those of places 0 and 16");
    assert_eq!(lines_flushed(&shelf, || shelf.volume().flush().unwrap()), 0);
}

#[test]
fn line_is_logged_once_per_epoch() {
    let shelf = new_shelf(1);
    shelf.put(0, 64, 1).unwrap();
    shelf.volume().flush().unwrap();
    let logged = |value| {
        let before = shelf.volume().log_bytes();
        shelf.touch(0, value).unwrap();
        shelf.volume().log_bytes() - before
    };
    assert_eq!([logged(2), logged(3), logged(4)], [128, 0, 0]);
    let guard = shelf.volume().lock_checkpoint();
    let sealed = shelf.volume().begin_checkpoint(&guard).unwrap();
    assert_eq!([logged(5), logged(6)], [128, 0], "while the one before is flushed");
    sealed.finish().unwrap();
    drop(guard);
    assert_eq!(logged(7), 0, "the end of that is not the end of this");
    shelf.volume().flush().unwrap();
    assert_eq!(logged(8), 128);
}

#[test]
fn seal_waits_for_writers() {
    let shelf = new_shelf(3);
    let volume = shelf.volume();
    let mut writers: Vec<_> = (0..3).map(|_| volume.join().unwrap()).collect();
    let epoch = writers[0].epoch();
    let item = everbyte_pool::format::WordItem {
        target: shelf.word_at(0).0,
        old: volume.medium().load_word(shelf.word_at(0)),
    };
    writers[0].log_words(&[item]).unwrap();
    writers[0].commit().unwrap();
    thread::scope(|scope| {
        let flusher = scope.spawn(|| {
            let guard = volume.lock_checkpoint();
            volume.begin_checkpoint(&guard).unwrap().finish()
        });
        while let Some(writer) = writers.pop() {
            assert!(is_held_up(&flusher), "{} writers are inside", writers.len() + 1);
            assert_eq!((volume.current_epoch(), writer.epoch()), (epoch, epoch));
        }
        flusher.join().unwrap().unwrap();
    });
    assert_eq!((volume.completed_epoch(), volume.join().unwrap().epoch()), (epoch, epoch + 1));
}

/// A flush during the flush of an older epoch does not return with that one.
#[test]
fn flush_waits_for_current_epoch() {
    let shelf = new_shelf(2);
    let volume = shelf.volume();
    shelf.put(0, 64, 1).unwrap();
    let old = volume.current_epoch();
    let second = AtomicBool::new(false);
    thread::scope(|scope| {
        let guard = volume.lock_checkpoint();
        let sealed = volume.begin_checkpoint(&guard).unwrap();
        shelf.put(1, 64, 2).unwrap();
        let of_old = scope.spawn(|| {
            volume.complete(old).unwrap();
            volume.completed_epoch()
        });
        let of_new = scope.spawn(|| {
            volume.flush().unwrap();
            assert!(second.load(Ordering::SeqCst), "it shared a checkpoint that had sealed before");
            volume.completed_epoch()
        });
        assert!(is_held_up(&of_old) && is_held_up(&of_new));
        sealed.finish().unwrap();
        second.store(true, Ordering::SeqCst);
        drop(guard);
        assert!(of_old.join().unwrap() >= old);
        assert_eq!(of_new.join().unwrap(), old + 1);
    });
    assert_eq!(volume.checkpoints(), 2, "one for each epoch, though two asked");
    assert_eq!(after_power_cut(&shelf).len(), 2);
}

#[test]
fn concurrent_flushes_cover_own_writes() {
    let shelf = new_shelf(2);
    thread::scope(|scope| {
        for thread in 0..4u8 {
            let shelf = &shelf;
            scope.spawn(move || {
                for round in 1..12 {
                    let place = u64::from(thread) * 8;
                    let epoch = shelf.volume().current_epoch();
                    shelf.put(place, 64, round).unwrap();
                    shelf.volume().flush().unwrap();
                    assert!(shelf.volume().completed_epoch() >= epoch);
                }
            });
        }
    });
    let expected: Contents = (0..4).map(|thread| (thread * 8, (64, 11, 11))).collect();
    assert_eq!(after_power_cut(&shelf), expected);
    assert!(shelf.pool.check().unwrap().is_clean());
}

/// Every caller gets the error, also callers without writes, until the pool is opened again.
#[test]
fn abandoned_checkpoint_fails_later_flushes() {
    let shelf = new_shelf(1);
    let (volume, pool) = (shelf.volume(), &shelf.pool);
    let mut spec = VolumeSpec::new("t", SHELF, 4096);
    (spec.lanes, spec.log_bytes) = (1, Some(32 << 10));
    pool.create_volume(&spec, NewRoot::Zeroes { blocks: 1 }).unwrap();
    shelf.put(0, 64, 1).unwrap();
    volume.flush().unwrap();
    shelf.put(1, 64, 2).unwrap();
    let guard = volume.lock_checkpoint();
    drop(volume.begin_checkpoint(&guard).unwrap());
    drop(guard);
    let abandoned = |result: Result<(), WriteError>| {
        assert!(matches!(result, Err(WriteError::CheckpointAbandoned)), "{result:?}");
    };
    abandoned(volume.flush());
    abandoned(volume.complete(volume.current_epoch() - 1));
    abandoned(volume.make_room());
    // Writes continue in DRAM and medium, without a promise of durability.
    shelf.put(2, 64, 3).unwrap();
    abandoned(volume.flush());
    abandoned(volume.begin_group().map(drop));
    let guard = volume.lock_checkpoint();
    abandoned(volume.begin_checkpoint(&guard).map(drop));
    drop(guard);
    let mut put = 3;
    let full = loop {
        match shelf.put(put % 500, 64, 4) {
            Ok(()) => put += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, ShelfError::Write(WriteError::CheckpointAbandoned)), "{full:?}");
    pool.volume("t").unwrap().flush().unwrap();
    let closed = pool.close().unwrap_err();
    assert!(
        matches!(&closed, PoolError::NotFlushed { volume, source: WriteError::CheckpointAbandoned } if volume == "s"),
        "{closed:?}"
    );
    assert_eq!(pool.close().unwrap_err().to_string(), closed.to_string(), "and again");
    assert_eq!(after_power_cut(&shelf), Contents::from([(0, (64, 1, 1))]));
    let again = Shelf::open(open_pool(pool.medium()).unwrap());
    assert!(!again.pool.recovery().was_clean);
    assert_eq!(again.contents().unwrap(), Contents::from([(0, (64, 1, 1))]));
    again.put(1, 64, 5).unwrap();
    again.volume().flush().unwrap();
}

/// Undo would restore the zero in its place.
#[test]
fn unreadable_word_is_not_changed() {
    let shelf = new_shelf(1);
    shelf.put(0, 64, 1).unwrap();
    shelf.volume().flush().unwrap();
    shelf.pool.medium().inject_poison(shelf.word_at(0), 8);
    let changed = shelf.change(|batch| {
        batch.change_word(shelf.word_at(0), 0);
        Ok(())
    });
    let Err(ShelfError::Write(WriteError::Media(MediaError::Poisoned { at }))) = changed else {
        panic!("{changed:?}");
    };
    assert_eq!(at, shelf.word_at(0));
    assert_eq!(after_power_cut(&shelf), Contents::from([(0, (64, 1, 1))]));
    // Words of other lines go on.
    shelf.put(8, 64, 2).unwrap();
    shelf.volume().flush().unwrap();
    assert_eq!(after_power_cut(&shelf), Contents::from([(0, (64, 1, 1)), (8, (64, 2, 2))]));
}

#[test]
fn failed_medium_fails_writes_flush_and_close() {
    let shelf = new_shelf(1);
    shelf.put(0, 64, 1).unwrap();
    shelf.volume().flush().unwrap();
    shelf.put(1, 64, 2).unwrap();
    let guard = shelf.volume().lock_checkpoint();
    let sealed = shelf.volume().begin_checkpoint(&guard).unwrap();
    shelf.pool.medium().fail(MediaError::StoreLost { at: PoolOffset(77) });
    let failed = |result: Result<(), WriteError>| {
        let is_named = |error: &WriteError| error.to_string().contains("0x4d was lost");
        assert!(result.as_ref().is_err_and(is_named), "{result:?}");
    };
    let completed = shelf.volume().completed_epoch();
    failed(sealed.finish());
    drop(guard);
    assert_eq!(shelf.volume().completed_epoch(), completed, "it is not completed");
    failed(shelf.volume().complete(completed));
    failed(shelf.volume().join().map(drop));
    let Err(ShelfError::Write(error)) = shelf.put(2, 64, 1) else { panic!("a write succeeds") };
    failed(Err(error));
    assert!(matches!(shelf.pool.close(), Err(PoolError::NotFlushed { .. })));
    assert_eq!(after_power_cut(&shelf), Contents::from([(0, (64, 1, 1))]));
}

fn wait_for(what: &str, mut is_done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_done() {
        assert!(Instant::now() < deadline, "{what} never comes");
        thread::yield_now();
    }
}

#[test]
fn timer_checkpoints_until_dropped() {
    let shelf = new_shelf(1);
    shelf.put(0, 64, 1).unwrap();
    {
        let _timer = shelf.pool.start_timer(Duration::from_millis(2)).unwrap();
        wait_for("the timer", || shelf.volume().checkpoints() == 1);
        shelf.put(1, 64, 2).unwrap();
        wait_for("the next one", || shelf.volume().checkpoints() == 2);
    }
    assert_eq!(after_power_cut(&shelf).len(), 2);
    // Its thread has ended: no thread makes checkpoints from now on.
    shelf.put(2, 64, 3).unwrap();
    thread::sleep(Duration::from_millis(10));
    assert_eq!((shelf.volume().checkpoints(), shelf.volume().is_touched()), (2, true));
}

#[test]
fn half_full_log_wakes_checkpoint_thread() {
    let shelf = new_shelf(1);
    let half = shelf.volume().log_half_bytes();
    let _timer = shelf.pool.start_timer(Duration::from_secs(3600)).unwrap();
    shelf.put(0, 1 << 14, 1).unwrap();
    shelf.volume().flush().unwrap();
    let before = (shelf.volume().checkpoints(), shelf.volume().log_bytes());
    let mut line = 0;
    while !shelf.volume().wants_checkpoint() && shelf.volume().checkpoints() == before.0 {
        // A record of two lines each.
        shelf.touch_line(0, line, 7).unwrap();
        line += 1;
    }
    wait_for("the kick", || shelf.volume().checkpoints() > before.0);
    assert_eq!(
        shelf.volume().log_bytes() - before.1,
        half / 2,
        "at half of a half, and not before"
    );
    assert!(!shelf.volume().wants_checkpoint());
}

#[test]
fn requested_checkpoint_follows_running_one() {
    let shelf = new_shelf(1);
    let _timer = shelf.pool.start_timer(Duration::from_secs(600)).unwrap();
    shelf.put(0, 1 << 14, 1).unwrap();
    shelf.volume().flush().unwrap();
    let before = shelf.volume().checkpoints();
    let guard = shelf.volume().lock_checkpoint();
    let mut line = 0;
    while !shelf.volume().wants_checkpoint() {
        shelf.touch_line(0, line, 7).unwrap();
        line += 1;
    }
    // Long enough for the thread to check; if it has not checked, the test proves nothing, and does not fail.
    thread::sleep(Duration::from_millis(50));
    assert_eq!(shelf.volume().checkpoints(), before);
    drop(guard);
    wait_for("the checkpoint", || shelf.volume().checkpoints() > before);
    assert!(!shelf.volume().wants_checkpoint());
}

/// Calls of a plan, by their constraints.
type Calls = RefCell<Vec<PlanConstraints>>;

const USUAL: PlanConstraints = PlanConstraints { pool_was_full: false, log_is_short: false };
const SHORT: PlanConstraints = PlanConstraints { log_is_short: true, ..USUAL };
const FULL: PlanConstraints = PlanConstraints { pool_was_full: true, ..USUAL };

/// Changes `lines` lines of the run at place 0.
fn change_lines(shelf: &Shelf<SimMedium>, lines: usize, calls: &Calls) -> Result<u64, ShelfError> {
    let bytes = [9; 64];
    let at = shelf.thing_at(0);
    shelf.volume().change(|batch, constraints| {
        calls.borrow_mut().push(constraints);
        for line in 0..lines {
            batch.change_bytes(at.plus(line as u64 * 64), &bytes);
        }
        Ok(())
    })
}

#[test]
fn change_is_replanned_then_refused() {
    let shelf = new_shelf(1);
    shelf.put(0, 1 << 14, 1).unwrap();
    shelf.volume().flush().unwrap();
    let room = usize::try_from(shelf.volume().log_half_bytes() / 128).unwrap();
    let calls = Calls::default();
    let epoch = shelf.volume().current_epoch();
    assert_eq!(change_lines(&shelf, room, &calls).unwrap(), epoch, "it fills the log exactly");
    assert_eq!(calls.take(), [USUAL]);
    assert_eq!(shelf.volume().join().unwrap().room_bytes(), 0);
    // Logged lines need no record, so the same change again is done immediately; another line needs room.
    change_lines(&shelf, room, &calls).unwrap();
    assert_eq!((calls.take(), shelf.volume().checkpoints()), (vec![USUAL], 1));
    assert_eq!(change_lines(&shelf, room - 1, &calls).unwrap(), epoch);
    calls.take();
    shelf.touch_line(0, room as u64, 3).unwrap();
    assert_eq!(shelf.volume().checkpoints(), 2, "it made room for itself");
    assert_eq!(change_lines(&shelf, room, &calls).unwrap(), epoch + 2);
    assert_eq!(calls.take(), [USUAL, USUAL], "no room beside the other record, but after it");
    shelf.volume().flush().unwrap();
    let (ops, log_bytes) = (shelf.volume().medium().ops(), shelf.volume().log_bytes());
    let refused = change_lines(&shelf, room + 1, &calls).unwrap_err();
    assert!(matches!(refused, ShelfError::TooLarge), "{refused:?}");
    assert_eq!(calls.take(), [USUAL, SHORT]);
    assert_eq!((shelf.volume().medium().ops(), shelf.volume().log_bytes()), (ops, log_bytes));
}

#[test]
fn no_space_replans_once_other_errors_do_not() {
    let shelf = new_shelf(1);
    let calls = Calls::default();
    let mut fails_first = 1;
    let changed: Result<u64, ShelfError> = shelf.volume().change(|_, constraints| {
        calls.borrow_mut().push(constraints);
        fails_first -= 1;
        if fails_first == 0 { Err(ShelfError::NoSpace) } else { Ok(()) }
    });
    changed.unwrap();
    assert_eq!(calls.take(), [USUAL, FULL]);
    let plan_error = |error: fn() -> ShelfError| {
        let changed: Result<u64, ShelfError> = shelf.volume().change(|_, constraints| {
            calls.borrow_mut().push(constraints);
            Err(error())
        });
        (changed.unwrap_err().to_string(), calls.take().len())
    };
    assert_eq!(plan_error(|| ShelfError::NoSpace), (ShelfError::NoSpace.to_string(), 2));
    assert_eq!(plan_error(|| ShelfError::TooLarge), (ShelfError::TooLarge.to_string(), 1));
    let gone = plan_error(|| ShelfError::Write(WriteError::Gone));
    assert_eq!(gone, (WriteError::Gone.to_string(), 1));
}

#[test]
fn batch_outcome_has_epoch_or_full_log() {
    let shelf = new_shelf(1);
    shelf.put(0, 1 << 14, 1).unwrap();
    shelf.volume().flush().unwrap();
    let volume = shelf.volume();
    let bytes = [3; 4096];
    let attempt = |from: u64, blocks: u64| {
        let mut batch = volume.begin_batch().unwrap();
        for block in from..from + blocks {
            batch.change_bytes(shelf.thing_at(0).plus(block * BLOCK_U64), &bytes);
        }
        batch.commit().unwrap()
    };
    // Half a lane has 256 lines: room for three records of 65, and not for four.
    assert_eq!(attempt(0, 4), BatchOutcome::TooLarge);
    assert_eq!(attempt(0, 2), BatchOutcome::Done(volume.current_epoch()));
    assert_eq!(attempt(1, 3), BatchOutcome::LogFull, "two of the three are new");
    assert_eq!(attempt(1, 2), BatchOutcome::Done(volume.current_epoch()));
    let empty = volume.begin_batch().unwrap().commit().unwrap();
    assert_eq!(empty, BatchOutcome::Done(volume.current_epoch()));
    drop(volume.begin_batch().unwrap());
    volume.flush().unwrap();
    assert!(!volume.is_touched());
    assert_eq!(attempt(3, 1), BatchOutcome::Done(volume.completed_epoch() + 1));
}

/// A pool with less than a tenth free is low on space; preallocated blocks of lanes are missing
/// elsewhere.
#[test]
fn low_space_reclaims_preallocated_blocks() {
    let shelf = new_shelf(2);
    let pool = &shelf.pool;
    shelf.put(0, 64, 1).unwrap();
    let preallocated = pool.info().free_bytes / BLOCK_U64 - pool.allocator().free_blocks();
    assert_eq!(preallocated, 31, "one of 32 is in use");
    shelf.volume().make_room().unwrap();
    assert_eq!(pool.allocator().free_blocks() + preallocated, pool.info().free_bytes / BLOCK_U64);
    let free = pool.allocator().free_blocks();
    let taken: Vec<_> = (5..free).map(|_| pool.take_run("a test", 1).unwrap()).collect();
    assert!(pool.allocator().is_low());
    shelf.volume().make_room().unwrap();
    assert_eq!(pool.allocator().free_blocks(), 5 + preallocated);
    taken.into_iter().for_each(|run| pool.return_run(run));
    shelf.put(1, 64, 1).unwrap();
    assert!(pool.check().unwrap().is_clean());
}

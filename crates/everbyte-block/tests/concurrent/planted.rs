//! Mistakes visible only with several threads, one of each rule. Each workload passes without its mistake.
//! `tests/mutants` has more mistakes for the workloads of `engine`.

use everbyte_crash::Omission;
use everbyte_pool::plant::Bug;

use crate::engine::{
    crashing_recoveries, direct_writes, durable_direct_writes, fua_fast_path, missing_leaf,
    replaced_in_flush, reused_under_reader, same_blocks, short_overlaps, straggler,
};
use crate::explore::{self, Tried};
use crate::mistake::Mistake;
use crate::workload::Workload;

/// The workload fails with the mistake with a message that contains `expected`; the failing order passes
/// without the mistake.
fn caught(mistake: impl Into<Mistake>, workload: &Workload, expected: &str) {
    let mistake = mistake.into();
    let mut tried = Tried::default();
    let Err(failure) = explore::all(workload, Some(&mistake), &mut tried) else {
        panic!("{mistake:?} was not caught in {} orders", tried.schedules);
    };
    println!("{mistake:?} is caught in order {}", tried.schedules);
    assert!(failure.message.contains(expected), "{mistake:?} is caught: {failure}");
    let sound = explore::one(workload, failure.schedule, None, &mut tried);
    sound.unwrap_or_else(|failure| panic!("without {mistake:?}: {failure}"));
}

/// Rule 1 of the protocol: no writer is left behind in a sealed epoch.
#[test]
fn seal_does_not_wait() {
    caught(Bug::SealDoesNotWait, &straggler(), "no cut at all");
}

/// Rule 2: no thread relies on an unfenced record.
#[test]
fn blocks_unlocked_early() {
    caught(Bug::BlocksUnlockedEarly, &same_blocks(), "another record saves the same line");
}

/// Rule 3: the checkpointer cannot fence a writer's streams, and no reader can be sure of them.
#[test]
fn fill_not_fenced() {
    // Of the failing images, one is not a cut and another a wrong one; either may come first.
    caught(Omission::fence_after_stream("data"), &missing_leaf(), " cut");
}

/// Rules 1 and 3 once more, for the streams and the entries of the direct path.
#[test]
fn direct_write_bugs() {
    caught(Omission::fence_after_stream("data"), &direct_writes(), " cut");
    caught(Bug::SealDoesNotWait, &direct_writes(), "no cut at all");
}

/// Rule 7: an epoch's dirty lines are flushed even if the next epoch has replaced the block.
#[test]
fn dirty_dropped_on_replace() {
    caught(Bug::DirtyDroppedOnReplace, &replaced_in_flush(), "no cut at all");
}

/// Rule 11: the FUA fast path avoids data that an open epoch may undo.
#[test]
fn fua_fast_path_ignores_records() {
    caught(Bug::FuaFastPathIgnoresRecords, &fua_fast_path(), "a wrong cut");
}

/// The FUA fast path once more: later bytes win, in any lane.
#[test]
fn redo_in_lane_order() {
    caught(Bug::RedoInLaneOrder, &short_overlaps(), "a wrong cut");
}

/// The same for entries: an entry names the block of the later write.
#[test]
fn redo_of_entries_in_lane_order() {
    caught(Bug::RedoInLaneOrder, &durable_direct_writes(), "cut");
}

/// Reads without locks: a copy is valid after the second check.
#[test]
fn reader_looks_once() {
    caught(Bug::ReaderLooksOnce, &reused_under_reader(), "saw what never was");
}

/// Lines that recovery restores are durable before it records its completion.
#[test]
fn recovery_without_flush() {
    caught(Omission::flush("data").in_recovery(), &crashing_recoveries(), "cut");
}

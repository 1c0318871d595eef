//! Mistakes that only several threads can show, each caught in a workload that passes without.

use everbyte_pool::plant::Bug;

use crate::engine::{
    flushing_writers, missing_leaf, one_lane, replaced_in_flush, same_blocks, short_overlaps,
    short_path, straggler,
};
use crate::explore::{self, Tried};
use crate::workload::Workload;

fn caught(bug: Bug, workload: &Workload) {
    let mut tried = Tried::default();
    match explore::all(workload, Some(bug), &mut tried) {
        Ok(()) => panic!("{bug:?} was not caught in {} orders", tried.schedules),
        Err(failure) => println!("{bug:?} is caught in order {}: {failure}", tried.schedules),
    }
}

/// Rule 1 of the protocol: no writer is left behind in a sealed epoch.
#[test]
fn seal_does_not_wait() {
    caught(Bug::SealDoesNotWait, &straggler());
}

/// Rule 2: nobody relies on a record that is not fenced.
#[test]
fn blocks_unlocked_early() {
    caught(Bug::BlocksUnlockedEarly, &same_blocks());
}

/// Rule 3: the checkpointer cannot fence what a writer streamed, and no reader can be sure of it.
#[test]
#[should_panic(expected = "that it has not fenced")]
fn fill_not_fenced() {
    caught(Bug::FillNotFenced, &missing_leaf());
}

/// Rule 4: a lane is one writer's from the first record to the fence.
#[test]
fn lane_shared() {
    caught(Bug::LaneShared, &one_lane());
}

/// Rule 5: the log's halves take turns, so that an epoch keeps its records while it is flushed.
#[test]
fn one_log_half() {
    caught(Bug::OneLogHalf, &replaced_in_flush());
}

/// Rule 7: an epoch's dirty lines are flushed even if the next epoch has replaced the block.
#[test]
fn dirty_dropped_on_replace() {
    caught(Bug::DirtyDroppedOnReplace, &replaced_in_flush());
}

/// Rule 10: a flush does not share a checkpoint that began before it.
#[test]
fn flush_shares_earlier() {
    caught(Bug::FlushSharesEarlier, &flushing_writers());
}

/// Rule 11: the short path keeps away from what an open epoch may undo.
#[test]
fn short_path_ignores_records() {
    caught(Bug::ShortPathIgnoresRecords, &short_path());
}

/// The short path once more: later bytes win, whichever lane they are in.
#[test]
fn redo_in_lane_order() {
    caught(Bug::RedoInLaneOrder, &short_overlaps());
}

/// Rule 12: nothing is taken from under a reader.
#[test]
fn reader_unlocks_early() {
    caught(Bug::ReaderUnlocksEarly, &same_blocks());
}

/// The order of locks in `volume`: only one thread at a time changes the shape of a map.
#[test]
fn branch_unlocked() {
    caught(Bug::BranchUnlocked, &missing_leaf());
}

//! Mistakes visible only with several threads, each caught in a workload that passes without.

use everbyte_crash::Omission;
use everbyte_pool::plant::Bug;

use crate::engine::{
    crashing_recoveries, damaged, durable_after_discard, flushing_writers, fua_fast_path, given_up,
    leaf_reused_under_reader, missing_leaf, one_lane, read_across, replaced_in_flush,
    reused_under_reader, same_blocks, short_overlaps, straggler,
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

/// Rule 4: a lane is one writer's from the first record to the fence.
#[test]
fn lane_shared() {
    caught(Bug::LaneShared, &one_lane(), "committed before record");
}

/// Rule 5: the log's halves take turns, so that an epoch keeps its records during its flush.
#[test]
fn one_log_half() {
    caught(Bug::OneLogHalf, &replaced_in_flush(), "a wrong cut");
}

/// Rule 7: an epoch's dirty lines are flushed even if the next epoch has replaced the block.
#[test]
fn dirty_dropped_on_replace() {
    caught(Bug::DirtyDroppedOnReplace, &replaced_in_flush(), "no cut at all");
}

/// Rule 10: a flush does not share a checkpoint that began before it.
#[test]
fn flush_shares_earlier() {
    caught(Bug::FlushSharesEarlier, &flushing_writers(), "a wrong cut");
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

/// Rule 12: nothing is taken from under a reader.
#[test]
fn reader_unlocks_early() {
    caught(Bug::ReaderUnlocksEarly, &same_blocks(), "saw what never was");
}

/// Reads without locks: the first look at the sequences comes before the first at an entry.
#[test]
fn sequence_noted_late() {
    caught(Bug::SequenceNotedLate, &read_across(), "saw what never was");
}

/// Reads without locks: a sequence moves before the first store.
#[test]
fn sequence_moved_late() {
    caught(Bug::SequenceMovedLate, &read_across(), "saw what never was");
}

/// Reads without locks: a copy is valid after the second check.
#[test]
fn reader_looks_once() {
    caught(Bug::ReaderLooksOnce, &reused_under_reader(), "saw what never was");
}

/// Reads without locks: nothing is reported before the second look either.
#[test]
fn corrupt_before_second_look() {
    caught(Bug::CorruptBeforeSecondLook, &leaf_reused_under_reader(), "map entry");
}

/// The order of locks in `volume`: only one thread at a time changes the shape of a map.
#[test]
fn branch_unlocked() {
    caught(Bug::BranchUnlocked, &missing_leaf(), "another record saves the same word");
}

/// Rule 11 once more: a record of the flushing epoch may undo the entry.
#[test]
fn fua_fast_path_ignores_sealed_words() {
    caught(Bug::FuaFastPathIgnoresSealedWords, &durable_after_discard(), "a wrong cut");
}

/// Rule 3 once more: useless streams are fenced before their blocks go to others.
#[test]
fn abandon_not_fenced() {
    caught(Bug::AbandonNotFenced, &given_up(), "that it has not fenced");
}

/// Writes answered before damage was found are durable after a flush of any thread.
#[test]
fn flush_skipped_on_damage() {
    caught(Bug::FlushSkippedOnDamage, &damaged(), "a wrong cut");
}

/// Lines that recovery restores are durable before it records its completion.
#[test]
fn recovery_without_flush() {
    caught(Omission::flush("data").in_recovery(), &crashing_recoveries(), "cut");
}

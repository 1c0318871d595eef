//! Mistakes planted in the protocol, one of each rule, with the workload that must catch it. The same workload
//! passes without the mistake. `tests/mutants` has more mistakes; `rules` has their workloads.

use std::panic::{AssertUnwindSafe, catch_unwind};

use everbyte_crash::{Explorer, Omission, ReplayError, Summary};
use everbyte_pool::plant::Bug;

use crate::direct::uncompared;
use crate::explore;
use crate::mistake::Mistake;
use crate::steps::{Case, End, Fault, HOLE, MAPPED, Step, b, w, w2};

/// Messages about the first of the mapped blocks: at any time, after a flush, once that is answered, and
/// after a checkpoint with another open epoch.
const BLOCK_4: &str = r#"volume a is none of ["block 4 differs"#;
const FLUSHED: &str = r#"flush: volume a is none of ["block 4 differs"#;
const AFTER_FLUSH: &str = r#"after flush: volume a is none of ["block 4 differs"#;
const SPLIT: &str = r#"finishing a checkpoint: volume a is none of ["block 4 differs"#;

/// Explores a case.
///
/// # Errors
/// A crash that the code does not survive, or a failure without a crash.
fn explored(explorer: &Explorer, case: &Case) -> Result<Summary, String> {
    match catch_unwind(AssertUnwindSafe(|| explorer.explore(case))) {
        Ok(Ok(summary)) => Ok(summary),
        Ok(Err(failure)) => Err(failure.message),
        Err(panic) => Err(panic.downcast_ref::<String>().cloned().unwrap_or_default()),
    }
}

/// The workload fails with the mistake as `expected` says, a part of the message, and without it
/// passes.
fn caught_case(explorer: &Explorer, mistake: impl Into<Mistake>, case: &Case, expected: &str) {
    let mistake = mistake.into();
    if let Err(failure) = explored(explorer, case) {
        panic!("{mistake:?} is not planted yet: {failure}");
    }
    let planted = mistake.plant();
    let found = explored(explorer, &Case { omission: mistake.omission(), ..case.clone() });
    drop(planted);
    match found {
        Ok(summary) => panic!("{mistake:?} was not caught: {summary}"),
        Err(failure) => assert!(failure.contains(expected), "{mistake:?} is caught: {failure}"),
    }
}

fn caught(mistake: impl Into<Mistake>, steps: Vec<Step>, expected: &str) {
    caught_case(&crashing_once(), mistake, &Case::new("planted", steps), expected);
}

/// The same explorations every night.
fn broad() -> Explorer {
    Explorer { seed: 0, ..explore::broad() }
}

/// Crashes workloads, and no recoveries.
pub(crate) fn crashing_once() -> Explorer {
    Explorer { nested_depth: 0, ..broad() }
}

pub(crate) fn write(at: u64, len: usize) -> Step {
    Step::Write(w(at, len))
}

pub(crate) fn fua(at: u64, len: usize) -> Step {
    Step::Write(w2(at, len).fua())
}

/// Two concurrent durable requests.
fn durable_batch() -> Vec<Step> {
    vec![Step::Batch(vec![w2(b(MAPPED), 4096).fua(), w2(b(MAPPED + 1), 4096).fua()])]
}

/// Data logged in place.
pub(crate) fn in_place() -> Step {
    write(b(MAPPED), 65)
}

/// A failing random workload is cut down; here two of its steps have no part in the failure.
#[test]
fn failure_is_shrunk_to_needed_steps() {
    let steps = vec![write(b(HOLE), 9), Step::Flush, in_place()];
    let case = Case::new("steps to drop", steps);
    let unfenced = Omission::fence_after_stream("log of a");
    let failing = Case { omission: Some(unfenced), ..case.clone() };
    let explorer = crashing_once();
    let failure = explore::one(&explorer, &failing).expect_err("an omission");
    let again = explorer.replay_steps(&failing, &failure.replay);
    assert_eq!(failure.kept.as_deref(), Some(&[2][..]), "{failure}");
    let Err(ReplayError::Failed(again)) = again else { panic!("{again:?}") };
    assert_eq!((again.message, again.point), (failure.message, failure.point));
    explorer.replay_steps(&case, &failure.replay).expect_err("the sound code fences");
}

/// The flushes and fences of the protocol, each left out alone.
#[test]
fn missing_flushes_and_fences() {
    let log_fence = || Omission::fence_after_stream("log of a");
    let table = [
        // COMMIT does not wait for its records, or they are not written back.
        (log_fence(), vec![in_place()], BLOCK_4),
        (Omission::flush("log of a"), vec![in_place()], BLOCK_4),
        // A FUA fast-path write is answered before its record is fenced.
        (log_fence(), vec![fua(b(MAPPED), 65)], BLOCK_4),
        // A new block's contents are not fenced before its entry is stored.
        (Omission::fence_after_stream("data"), vec![fua(b(MAPPED), 4096)], BLOCK_4),
        // The same for those of a batch, and it is answered before the entries are durable.
        (Omission::fence_after_stream("data"), durable_batch(), BLOCK_4),
        (Omission::flush("data"), durable_batch(), BLOCK_4),
        (Omission::fence_after_flush("data"), durable_batch(), BLOCK_4),
        // A checkpoint does not write dirty lines back, or stores the checkpoint record before they
        // are durable.
        (Omission::flush("data").in_workload(), vec![in_place(), Step::Flush], FLUSHED),
        (Omission::fence_after_flush("data"), vec![in_place(), Step::Flush], FLUSHED),
        // It is said to be done before the checkpoint record is durable.
        (Omission::flush("completed"), vec![in_place(), Step::Flush], BLOCK_4),
        (Omission::fence_after_flush("completed"), vec![in_place(), Step::Flush], AFTER_FLUSH),
        // A resize changes the line of a header that begins with the root.
        (Omission::flush("root of a"), vec![Step::Resize(b(40))], "after resize to 163840"),
        // An opened pool is not marked as shut down.
        (Omission::flush("superblock"), vec![in_place()], "superblock at 0x0 is corrupt"),
    ];
    for (omission, steps, expected) in table {
        caught(omission, steps, expected);
    }
}

#[test]
fn bugs_that_one_or_two_requests_show() {
    let replaced = || write(b(MAPPED), 4096);
    let split = Step::Split(vec![Step::Write(w2(b(MAPPED), 4096))]);
    let table = [
        (Bug::NoLogChecksum, vec![in_place()], BLOCK_4),
        (Bug::ReuseWithoutQuarantine, vec![replaced(), write(b(HOLE), 4096)], BLOCK_4),
        (Bug::FuaFastPathIgnoresRecords, vec![replaced(), fua(b(MAPPED), 65)], BLOCK_4),
        (Bug::DirtyDroppedOnReplace, vec![in_place(), split], SPLIT),
    ];
    for (bug, steps, expected) in table {
        caught(bug, steps, expected);
    }
}

/// The same rules for the direct path, which takes several whole blocks without comparison.
#[test]
fn bugs_of_direct_writes() {
    let direct = || write(b(MAPPED), 2 * 4096);
    let log_fence = Omission::fence_after_stream("log of a");
    let reused = vec![direct(), write(b(HOLE), 2 * 4096)];
    let table: [(Mistake, Vec<Step>, &str); 4] = [
        (log_fence.into(), vec![direct()], BLOCK_4),
        (Omission::fence_after_stream("data").into(), vec![direct()], BLOCK_4),
        (Omission::flush("data").in_workload().into(), vec![direct(), Step::Flush], FLUSHED),
        (Bug::ReuseWithoutQuarantine.into(), reused, "block 5 differs"),
    ];
    for (mistake, steps, expected) in table {
        caught_case(&crashing_once(), mistake, &uncompared("planted", steps), expected);
    }
}

/// The same for durable writes of several blocks, whose record names the new blocks.
#[test]
fn bugs_of_durable_direct_writes() {
    let direct = || fua(b(MAPPED), 2 * 4096);
    // The redone lines of block 5 reach the owner of its old place.
    let reused = vec![fua(b(MAPPED + 1), 65), direct(), fua(b(HOLE), 4096)];
    let changed = vec![write(b(MAPPED), 4096), direct()];
    let table: [(Mistake, Vec<Step>, &str); 6] = [
        (Omission::fence_after_stream("log of a").into(), vec![direct()], "differs"),
        (Omission::fence_after_stream("data").into(), vec![direct()], "differs"),
        (Omission::flush("data").in_workload().into(), vec![direct(), Step::Flush], "differs"),
        (Bug::NoLogChecksum.into(), vec![direct()], "outside the pool's data"),
        (Bug::ReuseWithoutQuarantine.into(), reused, "block 12 differs"),
        (Bug::FuaFastPathIgnoresRecords.into(), changed, "differs"),
    ];
    for (mistake, steps, expected) in table {
        caught_case(&crashing_once(), mistake, &uncompared("planted", steps), expected);
    }
}

/// A write is lost, and a write sent after its answer is not: the earlier one's line is dirty, and the later
/// one's block was streamed. Block 4, the later one's, has its expected contents.
#[test]
fn later_write_without_earlier_write() {
    let steps = vec![write(b(MAPPED + 1), 65), write(b(MAPPED), 4096), Step::Flush];
    caught(Omission::flush("data").in_workload(), steps, r#""block 5 differs in"#);
}

/// Recovery crashes, too, before its restored or recorded data is durable.
#[test]
fn missing_flushes_and_fences_of_recovery() {
    let explorer = Explorer { nested_images_max: 8, nested_points_max: 64, ..broad() };
    let case = |steps| Case::new("recovered", steps);
    let redone = case(vec![in_place(), Step::Split(vec![fua(b(MAPPED + 1), 65)])]);
    let table = [
        (Omission::flush("data"), case(vec![in_place()]), BLOCK_4),
        // Recovery fences several times; last, after the later epoch's FUA fast-path writes.
        (Omission::fence_after_flush("data"), redone, r#"volume a is none of ["block 5 differs"#),
        // The epochs after recovery have numbers that an earlier recovery's had.
        (Omission::flush("completed"), case(vec![in_place()]).probing(), "holds no generation"),
    ];
    for (omission, case, expected) in table {
        caught_case(&explorer, omission.in_recovery(), &case, expected);
    }
}

#[test]
fn delete_without_state() {
    let write = Step::On("b", Box::new(write(b(1), 9)));
    let create = Step::Create { name: "b", blocks: 8 };
    caught(
        Bug::DeleteWithoutState,
        vec![create, write, Step::Delete("b")],
        r#"volume b is none of ["exists: true, expected: false"]"#,
    );
}

#[test]
fn checksum_not_logged() {
    let case = Case::new("checksums", vec![in_place()]).checksummed();
    let expected = "the checksum of the block at";
    caught_case(&crashing_once(), Bug::ChecksumNotLogged, &case, expected);
}

#[test]
fn atomic_in_parts() {
    let writes = vec![w(b(MAPPED), 65).fua(), w(b(MAPPED + 1), 65)];
    caught(Bug::AtomicInParts, vec![Step::Atomic(writes)], "block 4 differs in 65 bytes from 0 on");
}

/// The contents of a leaf outside the map are read without a crash.
#[test]
fn unlinked_leaf_known() {
    let leaf = 512 * 4096;
    let steps = vec![write(leaf, 9), Step::Discard { at: leaf, len: leaf, fua: false }];
    let case = Case::new("an unlinked leaf", steps).setup(|setup| setup.volume_blocks = 1024);
    caught_case(&broad(), Bug::UnlinkedLeafKnown, &case, "without a crash: block 512 differs");
}

#[test]
fn leaf_of_an_undone_group_known() {
    let leaf = 512 * 4096;
    let steps = vec![
        Step::Group(vec![w(leaf, 9)], End::RollBack),
        write(b(HOLE), 4096),
        Step::Write(w2(leaf, 65)),
    ];
    let case = Case::new("an undone leaf", steps).setup(|setup| setup.volume_blocks = 1024);
    caught_case(
        &broad(),
        Bug::UnlinkedLeafKnown,
        &case,
        "RollBack: without a crash: block 512 differs",
    );
}

#[test]
fn logged_twice() {
    caught(
        Bug::LoggedTwice,
        vec![in_place(), Step::Write(w2(b(MAPPED), 9))],
        "another record saves the same line",
    );
}

/// A failed checkpoint has removed its volatile lines from the list of lines to make durable.
#[test]
fn failed_checkpoint_forgotten() {
    let steps = vec![in_place(), Step::Fault(Fault::Marks), Step::Flush, Step::Flush];
    caught(Bug::FailedCheckpointForgotten, steps, AFTER_FLUSH);
}

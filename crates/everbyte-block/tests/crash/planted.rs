//! Mistakes planted in the protocol, each with a workload in which it must be caught. The same
//! workload passes without the mistake, so it is the mistake that is caught.

use everbyte_block::Delta;
use everbyte_crash::{Explorer, ReplayError};
use everbyte_pool::plant::{Bug, plant};

use crate::explore;
use crate::steps::{Case, End, HOLE, MAPPED, Step, W, b, touch, w, w2};

/// Switches a bug on until dropped, also by a panic.
struct Planted;

impl Planted {
    fn new(bug: Bug) -> Self {
        plant(Some(bug));
        Self
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        plant(None);
    }
}

fn caught(bug: Bug, steps: Vec<Step>) {
    caught_by(&Explorer { nested_depth: 0, ..explore::broad() }, bug, steps);
}

fn caught_by(explorer: &Explorer, bug: Bug, steps: Vec<Step>) {
    caught_case(explorer, bug, &Case::new(format!("{bug:?}"), steps));
}

fn caught_case(explorer: &Explorer, bug: Bug, case: &Case) {
    if let Err(failure) = explore::one(explorer, case) {
        panic!("{bug:?} is not planted yet: {failure}");
    }
    let planted = Planted::new(bug);
    let found = explorer.explore(case);
    drop(planted);
    match found {
        Ok(summary) => panic!("{bug:?} was not caught: {summary}"),
        Err(failure) => println!("{bug:?} is caught: {failure}"),
    }
}

/// As `caught`, with checksums.
fn caught_by_checksums(bug: Bug, steps: Vec<Step>) {
    let explorer = Explorer { nested_depth: 0, ..explore::broad() };
    caught_case(&explorer, bug, &Case::new(format!("{bug:?}"), steps).checksummed());
}

fn write(at: u64, len: usize) -> Step {
    Step::Write(w(at, len))
}

fn fua(at: u64, len: usize) -> Step {
    Step::Write(w2(at, len).fua())
}

/// Data logged in place.
fn in_place() -> Step {
    write(b(MAPPED), 65)
}

/// What a random workload that fails is cut down to; here two of its steps have no part in it.
#[test]
fn failures_lose_the_steps_they_do_not_need() {
    let steps = vec![write(b(HOLE), 9), Step::Flush, in_place()];
    let case = Case::new("steps to drop", steps);
    let explorer = Explorer { nested_depth: 0, ..explore::broad() };
    let planted = Planted::new(Bug::NoLogFence);
    let failure = explore::one(&explorer, &case).expect_err("a planted bug");
    let again = explorer.replay_steps(&case, &failure.replay);
    drop(planted);
    assert_eq!(failure.kept.as_deref(), Some(&[2][..]), "{failure}");
    let Err(ReplayError::Failed(again)) = again else { panic!("{again:?}") };
    assert_eq!((again.message, again.point), (failure.message, failure.point));
    explorer.replay_steps(&case, &failure.replay).expect_err("the sound code fences");
}

#[test]
fn no_log_fence() {
    caught(Bug::NoLogFence, vec![in_place()]);
}

#[test]
fn no_log_flush() {
    caught(Bug::NoLogFlush, vec![in_place()]);
}

#[test]
fn no_log_checksum() {
    caught(Bug::NoLogChecksum, vec![in_place()]);
}

/// Records of dead epochs are undone by any opening, so the books are wrong without a crash.
#[test]
#[should_panic(expected = "it leaked")]
fn epoch_not_checked() {
    caught(Bug::EpochNotChecked, vec![in_place(), Step::Flush]);
}

#[test]
fn no_data_flush() {
    caught(Bug::NoDataFlush, vec![in_place(), Step::Flush]);
}

#[test]
fn completed_before_data() {
    caught(Bug::CompletedBeforeData, vec![in_place(), Step::Flush]);
}

#[test]
fn reuse_without_quarantine() {
    caught(Bug::ReuseWithoutQuarantine, vec![write(b(MAPPED), 4096), write(b(HOLE), 4096)]);
}

#[test]
fn recovery_without_flush() {
    let explorer = Explorer { nested_images_max: 8, nested_points_max: 64, ..explore::broad() };
    caught_by(&explorer, Bug::RecoveryWithoutFlush, vec![in_place()]);
}

#[test]
fn epoch_reused() {
    let steps = vec![
        in_place(),
        write(b(MAPPED + 1), 4096),
        Step::Kill,
        fua(b(MAPPED + 1), 4096),
        Step::Write(w2(b(MAPPED), 65)),
    ];
    caught(Bug::EpochReused, steps);
}

#[test]
fn dirty_dropped_on_replace() {
    let replaced = Step::Write(w2(b(MAPPED), 4096));
    caught(Bug::DirtyDroppedOnReplace, vec![in_place(), Step::Split(vec![replaced])]);
}

#[test]
fn fill_not_fenced() {
    caught(Bug::FillNotFenced, vec![fua(b(MAPPED), 4096)]);
}

/// Rule 8 of the protocol: what is logged in an epoch is not in the next but one.
#[test]
fn logged_forever() {
    let steps = vec![
        in_place(),
        Step::Flush,
        write(b(MAPPED + 1), 9),
        Step::Flush,
        Step::Write(w2(b(MAPPED), 65)),
    ];
    caught(Bug::LoggedForever, steps);
}

#[test]
fn redo_forgotten() {
    caught(Bug::RedoForgotten, vec![fua(b(MAPPED), 65)]);
}

#[test]
fn redo_not_fenced() {
    caught(Bug::RedoNotFenced, vec![fua(b(MAPPED), 65)]);
}

#[test]
fn recovery_keeps_new_entry() {
    caught(Bug::RecoveryKeepsNewEntry, vec![write(b(MAPPED), 4096)]);
}

#[test]
fn delete_without_state() {
    let write = Step::On("b", Box::new(write(b(1), 9)));
    let create = Step::Create { name: "b", blocks: 8, map: everbyte_block::MapKind::Radix };
    caught(Bug::DeleteWithoutState, vec![create, write, Step::Delete("b")]);
}

#[test]
fn short_path_ignores_records() {
    caught(Bug::ShortPathIgnoresRecords, vec![write(b(MAPPED), 4096), fua(b(MAPPED), 65)]);
}

#[test]
fn checksum_not_logged() {
    caught_by_checksums(Bug::ChecksumNotLogged, vec![in_place()]);
}

#[test]
fn atomic_in_parts() {
    let writes = vec![w(b(MAPPED), 65).fua(), w(b(MAPPED + 1), 65)];
    caught(Bug::AtomicInParts, vec![Step::Atomic(writes)]);
}

/// What a leaf held that is no part of the map any more is read without a crash.
#[test]
#[should_panic(expected = "without a crash: block 512 differs")]
fn unlinked_leaf_known() {
    let leaf = 512 * 4096;
    let steps = vec![write(leaf, 9), Step::Discard { at: leaf, len: leaf, fua: false }];
    let case = Case::new("an unlinked leaf", steps).setup(|setup| setup.volume_blocks = 1024);
    caught_case(&explore::broad(), Bug::UnlinkedLeafKnown, &case);
}

#[test]
#[should_panic(expected = "without a crash")]
fn leaf_of_an_undone_group_known() {
    let leaf = 512 * 4096;
    let steps = vec![
        Step::Group(vec![w(leaf, 9)], End::RollBack),
        write(b(HOLE), 4096),
        Step::Write(w2(leaf, 65)),
    ];
    let case = Case::new("an undone leaf", steps).setup(|setup| setup.volume_blocks = 1024);
    caught_case(&explore::broad(), Bug::UnlinkedLeafKnown, &case);
}

#[test]
fn older_blocks_refilled() {
    let batch =
        |of: fn(u64, usize) -> W| Step::Batch(vec![of(b(MAPPED), 4096), of(b(MAPPED + 1), 4096)]);
    let steps = vec![batch(w), Step::Split(vec![batch(w2)])];
    let case = Case::new("refilled", steps).setup(|setup| setup.options.delta = Delta::Off);
    let explorer = Explorer { nested_depth: 0, ..explore::broad() };
    caught_case(&explorer, Bug::OlderBlocksRefilled, &case);
}

/// What was logged before the checkpoint that makes room is not logged after it.
#[test]
fn stale_plan() {
    let steps = vec![
        in_place(),
        Step::Batch((1..7).map(|block| touch(b(MAPPED + block), 4096, 128)).collect()),
        Step::Batch(vec![w2(b(MAPPED), 65), touch(b(MAPPED + 7), 4096, 64)]),
    ];
    let case = Case::new("a full log", steps).setup(|setup| setup.options.threshold_percent = 101);
    let explorer = Explorer { nested_depth: 0, ..explore::broad() };
    caught_case(&explorer, Bug::StalePlan, &case);
}

#[test]
fn logged_twice() {
    caught(Bug::LoggedTwice, vec![in_place(), Step::Write(w2(b(MAPPED), 9))]);
}

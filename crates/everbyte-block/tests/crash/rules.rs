//! Workloads that need one rule of the protocol. A patch of `tests/mutants` breaks each rule.

use everbyte_block::Delta;
use everbyte_crash::Explorer;

use crate::explore;
use crate::planted::{crashing_once, fua, in_place, write};
use crate::steps::{Case, End, Fault, HOLE, MAPPED, Step, W, b, touch, w, w2};

fn survives(explorer: &Explorer, case: &Case) {
    let name = &case.name;
    explore::one(explorer, case).unwrap_or_else(|failure| panic!("{name}: {failure}"));
}

fn steps_survive(name: &str, steps: Vec<Step>) {
    survives(&crashing_once(), &Case::new(name, steps));
}

#[test]
fn fua_fast_path_write_survives_crash() {
    steps_survive("a FUA write", vec![fua(b(MAPPED), 65)]);
}

#[test]
fn replaced_block_is_undone_by_recovery() {
    steps_survive("a replaced block", vec![write(b(MAPPED), 4096)]);
}

/// If recovery undid records of dead epochs, any opening would undo them.
#[test]
fn completed_epoch_is_never_undone() {
    steps_survive("a dead epoch", vec![in_place(), Step::Flush]);
}

#[test]
fn second_crash_undoes_no_earlier_epoch() {
    let steps = vec![
        in_place(),
        write(b(MAPPED + 1), 4096),
        Step::Kill,
        fua(b(MAPPED + 1), 4096),
        Step::Write(w2(b(MAPPED), 65)),
    ];
    steps_survive("two crashes", steps);
}

/// Rule 8 of the protocol: a line logged in an epoch is logged again in the epoch after the next.
#[test]
fn line_is_logged_again_two_epochs_later() {
    let steps = vec![
        in_place(),
        Step::Flush,
        write(b(MAPPED + 1), 9),
        Step::Flush,
        Step::Write(w2(b(MAPPED), 65)),
    ];
    steps_survive("logged again", steps);
}

#[test]
fn blocks_of_sealed_epoch_are_not_refilled() {
    let batch =
        |of: fn(u64, usize) -> W| Step::Batch(vec![of(b(MAPPED), 4096), of(b(MAPPED + 1), 4096)]);
    let steps = vec![batch(w), Step::Split(vec![batch(w2)])];
    let case = Case::new("refilled", steps).setup(|setup| setup.options.delta = Delta::Off);
    survives(&crashing_once(), &case);
}

/// One write finds the log full and makes the checkpoint for room. Lines logged before that checkpoint are not
/// logged after it, and the checkpoint is durable before the answer of the write.
#[test]
fn full_log_write_survives_crash() {
    let steps = vec![
        in_place(),
        Step::Batch((1..7).map(|block| touch(b(MAPPED + block), 4096, 128)).collect()),
        Step::Batch(vec![w2(b(MAPPED), 65), touch(b(MAPPED + 7), 4096, 64)]),
    ];
    let case = Case::new("a full log", steps).setup(|setup| setup.options.threshold_percent = 101);
    survives(&crashing_once(), &case);
}

/// One volume frees a block and another volume allocates it. The first one's checkpoint knows lines of it.
#[test]
fn block_with_dirty_lines_moves_between_volumes() {
    let on_x = |step| Step::On("x", Box::new(step));
    let steps = vec![
        on_x(write(0, 9)),
        on_x(Step::Flush),
        // The epochs of both volumes are even together.
        on_x(Step::Write(w2(0, 9))),
        on_x(Step::Flush),
        write(b(HOLE), 65),
        Step::Write(w2(b(HOLE) + 9, 65)),
        Step::Discard { at: b(HOLE), len: 4096, fua: false },
        Step::Split(vec![
            on_x(write(4096, 65)),
            on_x(Step::Flush),
            on_x(Step::Write(w2(4096 + 9, 65))),
        ]),
        on_x(write(4096 + 20, 65)),
    ];
    let mut case = Case::new("another volume's block", steps).setup(|setup| {
        // Superblocks and table 6, two logs 16, two nodes, probe 4, mapped 8, reserved 2, x 1, one
        // free.
        setup.pool_blocks = 40;
        setup.others = vec![("x", 8)];
    });
    case.may_fill = true;
    survives(&crashing_once(), &case);
}

/// A group allocates a block on one lane, frees it on another lane, and is rolled back.
#[test]
fn rolled_back_group_frees_its_blocks_once() {
    let steps = vec![
        Step::Group(vec![w(b(MAPPED), 4096), w2(b(MAPPED), 4096)], End::RollBack),
        write(b(HOLE), 4096),
        write(b(HOLE + 1), 4096),
        Step::Flush,
        write(b(HOLE + 2), 4096),
        write(b(HOLE + 3), 4096),
    ];
    let case = Case::new("a group on two lanes", steps).on_two_lanes();
    survives(&crashing_once(), &case.setup(|setup| setup.options.delta = Delta::Off));
}

#[test]
fn flush_after_damage_covers_earlier_writes() {
    let steps = vec![in_place(), write(b(HOLE), 9), Step::Damage, Step::Flush];
    steps_survive("damage", steps);
}

/// The first of two volumes cannot be made durable.
#[test]
fn close_flushes_volumes_after_a_failed_one() {
    let other = Step::On("x", Box::new(write(9, 65)));
    let steps = vec![in_place(), other, Step::Fault(Fault::Marks), Step::Close];
    let mut case = Case::new("a failed shutdown", steps);
    case.setup.others = vec![("x", 8)];
    survives(&crashing_once(), &case);
}

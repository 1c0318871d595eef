//! The direct path: writes of several whole blocks without comparison, onto every kind of block, and with other
//! requests of their epoch and of the next. Durable ones need no checkpoint.

use everbyte_block::Delta;

use crate::explore;
use crate::steps::{Case, HOLE, MAPPED, Step, ZERO, b, touch, w, w2};

/// A workload without comparison.
pub(crate) fn uncompared(name: &str, steps: Vec<Step>) -> Case {
    Case::new(name, steps).setup(|setup| setup.options.delta = Delta::Off)
}

fn write(block: u64, blocks: usize) -> Step {
    Step::Write(w(b(block), blocks * 4096))
}

fn again(block: u64, blocks: usize) -> Step {
    Step::Write(w2(b(block), blocks * 4096))
}

fn discard(block: u64, blocks: u64) -> Step {
    Step::Discard { at: b(block), len: blocks * 4096, fua: false }
}

fn durable(block: u64, blocks: usize) -> Step {
    Step::Write(w(b(block), blocks * 4096).fua())
}

fn durable_again(block: u64, blocks: usize) -> Step {
    Step::Write(w2(b(block), blocks * 4096).fua())
}

/// A durable write of a part of a block.
fn part(block: u64) -> Step {
    Step::Write(w2(b(block) + 9, 65).fua())
}

#[test]
fn direct_writes_onto_every_kind_of_block() {
    let cases = [
        ("mapped blocks", vec![write(MAPPED, 3)]),
        ("holes", vec![write(HOLE, 2)]),
        ("mapped blocks and holes", vec![write(MAPPED + 6, 4)]),
        ("fresh blocks", vec![write(MAPPED, 2), again(MAPPED, 2)]),
        ("fresh blocks and others", vec![write(MAPPED + 1, 2), again(MAPPED, 4)]),
        ("fresh holes", vec![write(HOLE, 2), again(HOLE, 3)]),
        ("reserved blocks", vec![write(ZERO, 2)]),
        ("logged blocks", vec![Step::Write(touch(b(MAPPED), 8192, 256)), again(MAPPED, 3)]),
        ("blocks changed later", vec![write(MAPPED, 3), Step::Write(w2(b(MAPPED) + 60, 5000))]),
        ("discarded blocks", vec![discard(MAPPED, 2), again(MAPPED, 3)]),
        ("blocks discarded later", vec![write(MAPPED, 3), discard(MAPPED + 1, 2)]),
    ];
    explore::all(&explore::broad(), cases.map(|(name, steps)| uncompared(name, steps)));
}

#[test]
fn direct_writes_across_epochs() {
    let cases = [
        ("flushed", vec![write(MAPPED, 3), Step::Flush, again(MAPPED + 1, 3)]),
        ("around a checkpoint", vec![write(MAPPED, 2), Step::Split(vec![again(MAPPED, 3)])]),
        ("twice in the next epoch", vec![Step::Split(vec![write(MAPPED, 2), again(MAPPED, 2)])]),
        ("after two crashes", vec![write(MAPPED, 2), Step::Kill, again(MAPPED + 1, 2)]),
        ("beside a FUA write", vec![write(MAPPED, 2), Step::Write(w(b(MAPPED + 3), 4096).fua())]),
        ("closed", vec![write(MAPPED, 2), Step::Reopen, again(MAPPED, 2)]),
    ];
    explore::all(&explore::broad(), cases.map(|(name, steps)| uncompared(name, steps).probing()));
}

/// Freed blocks lie between blocks of other owners, so the new blocks of a write are not adjacent.
#[test]
fn direct_write_to_blocks_apart_in_pool() {
    let mut steps: Vec<Step> = (0..4).map(|pair| discard(MAPPED + 2 * pair, 1)).collect();
    steps.extend([Step::Flush, Step::Reopen, write(HOLE, 3), again(MAPPED + 1, 1)]);
    let mut case = uncompared("blocks apart", steps);
    // Superblocks and table 6, log 8, two nodes, probe 4, mapped 8, reserved 2, and two.
    case.setup.pool_blocks = 32;
    case.may_fill = true;
    explore::all(&explore::broad(), [case]);
}

#[test]
fn durable_direct_writes_onto_every_kind_of_block() {
    let touched = Step::Write(touch(b(MAPPED), 8192, 256));
    let cases = [
        ("mapped blocks", vec![durable(MAPPED, 3)]),
        ("holes", vec![durable(HOLE, 2)]),
        ("mapped blocks and holes", vec![durable(MAPPED + 6, 4)]),
        ("recorded entries", vec![durable(MAPPED, 2), durable_again(MAPPED + 1, 2)]),
        ("fresh blocks", vec![write(MAPPED, 2), durable_again(MAPPED, 3)]),
        ("reserved blocks", vec![durable(ZERO, 2)]),
        ("logged blocks", vec![touched, durable(MAPPED, 3)]),
        ("redone lines", vec![part(MAPPED), durable(MAPPED, 2), part(MAPPED + 1)]),
        ("discarded blocks", vec![discard(MAPPED, 2), durable(MAPPED, 2)]),
    ];
    explore::all(&explore::broad(), cases.map(|(name, steps)| uncompared(name, steps)));
}

#[test]
fn requests_after_durable_direct_writes() {
    let cases = [
        ("a block", vec![durable(MAPPED, 2), durable_again(MAPPED, 1)]),
        ("a part", vec![durable(MAPPED, 2), part(MAPPED), Step::Write(w(b(MAPPED) + 60, 9))]),
        ("blocks that can be undone", vec![durable(MAPPED, 3), again(MAPPED + 1, 2)]),
        ("lines that can be undone", vec![durable(MAPPED, 2), Step::Write(w(b(MAPPED) + 60, 65))]),
        ("unmapped blocks", vec![durable(MAPPED, 3), discard(MAPPED + 1, 1)]),
        ("unmapped and written", vec![durable(MAPPED, 2), discard(MAPPED, 2), write(MAPPED, 2)]),
        ("a reused block", vec![part(MAPPED + 1), durable(MAPPED, 2), durable(HOLE, 1)]),
        ("a kill", vec![durable(MAPPED, 2), Step::Kill, durable_again(MAPPED, 2)]),
    ];
    explore::all(&explore::broad(), cases.map(|(name, steps)| uncompared(name, steps).probing()));
}

#[test]
fn durable_direct_writes_across_epochs() {
    let flushed = || vec![durable(MAPPED, 2), Step::Flush];
    let split = |first: Vec<Step>, inside| {
        let mut steps = first;
        steps.push(Step::Split(inside));
        steps
    };
    let cases = [
        ("flushed", [flushed(), vec![durable_again(MAPPED, 2)]].concat()),
        ("in both epochs", split(vec![durable(MAPPED, 2)], vec![durable_again(MAPPED + 1, 2)])),
        (
            "a block in the next epoch",
            split(vec![durable(MAPPED, 2)], vec![durable_again(MAPPED, 1)]),
        ),
        ("undone in the next epoch", split(vec![durable(MAPPED, 2)], vec![again(MAPPED, 2)])),
        (
            "in the next epoch only",
            split(vec![write(HOLE, 2)], vec![durable(MAPPED, 2), part(MAPPED)]),
        ),
    ];
    explore::all(&explore::broad(), cases.map(|(name, steps)| uncompared(name, steps)));
}

#[test]
fn durable_direct_writes_in_batches() {
    let blocks = |block, count: usize| w(b(block), count * 4096).fua();
    let cases = [
        ("two", vec![Step::Batch(vec![blocks(MAPPED, 2), blocks(MAPPED + 3, 2)])]),
        (
            "with a part",
            vec![Step::Batch(vec![blocks(MAPPED, 2), w2(b(MAPPED + 3) + 9, 65).fua()])],
        ),
        ("with another", vec![Step::Batch(vec![blocks(MAPPED, 2), w2(b(MAPPED + 3), 4096)])]),
    ];
    explore::all(&explore::broad(), cases.map(|(name, steps)| uncompared(name, steps)));
}

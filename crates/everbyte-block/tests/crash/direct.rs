//! The direct path: writes of several whole blocks without comparison, onto every kind of block, and with other
//! requests of their epoch and of the next.

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

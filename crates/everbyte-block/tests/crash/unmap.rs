//! Discard and write-zeroes, and later writes.

use crate::explore;
use crate::steps::{Case, End, HOLE, MAPPED, Step, ZERO, b, touch, w, w2};

fn discard(at: u64, len: u64) -> Step {
    Step::Discard { at, len, fua: false }
}

fn reserve(at: u64, len: u64) -> Step {
    Step::Reserve { at, len, fua: false }
}

fn write(at: u64, len: usize) -> Step {
    Step::Write(w(at, len))
}

#[test]
fn within_a_leaf() {
    let cases = [
        ("one block", vec![discard(b(MAPPED), 4096)]),
        ("edges", vec![discard(b(MAPPED) + 100, 9000)]),
        ("inside a block", vec![discard(b(MAPPED) + 100, 9)]),
        ("and rewrite", vec![discard(b(MAPPED), 8192), write(b(MAPPED), 4097)]),
        (
            "what was logged",
            vec![Step::Write(touch(b(MAPPED), 4096, 700)), discard(b(MAPPED), 4096)],
        ),
        ("what is fresh", vec![write(b(HOLE), 5000), discard(b(HOLE), 8192), write(b(HOLE), 9)]),
        ("what is reserved", vec![discard(b(ZERO), 4096), write(b(ZERO), 9)]),
        ("twice", vec![discard(b(MAPPED), 4096), discard(b(MAPPED), 8192)]),
        ("durably", vec![write(b(HOLE), 9), Step::Discard { at: b(MAPPED), len: 4100, fua: true }]),
    ];
    explore::all(&explore::broad(), cases.map(|(name, steps)| Case::new(name, steps).probing()));
}

#[test]
fn reserving() {
    let cases = [
        ("data", vec![reserve(b(MAPPED), 8192)]),
        ("data, and rewrite", vec![reserve(b(MAPPED), 8192), write(b(MAPPED) + 9, 65)]),
        ("a hole", vec![reserve(b(HOLE), 8192), write(b(HOLE), 4097)]),
        ("edges", vec![reserve(b(MAPPED) + 64, 9000), Step::Write(w2(b(MAPPED), 64))]),
        (
            "written, reserved, written",
            vec![write(b(ZERO), 65), reserve(b(ZERO), 4096), Step::Write(w2(b(ZERO), 9))],
        ),
        ("and discard", vec![reserve(b(HOLE), 4096), discard(b(HOLE), 4096)]),
        (
            "logged, reserved, written",
            vec![write(b(MAPPED), 65), reserve(b(MAPPED), 4096), Step::Write(w2(b(MAPPED), 9))],
        ),
        ("durably", vec![Step::Reserve { at: b(HOLE), len: 4096, fua: true }]),
    ];
    explore::all(&explore::broad(), cases.map(|(name, steps)| Case::new(name, steps).probing()));
}

/// A leaf with a few blocks, durable.
fn leaf() -> Vec<Step> {
    vec![write(b(600), 4097), write(b(1023), 9), Step::Flush]
}

const LEAF: u64 = 512 * 4096;

#[test]
fn whole_leaves() {
    let cases = [
        ("unlinked", vec![discard(LEAF, LEAF)]),
        ("unlinked and rewritten", vec![discard(LEAF, LEAF), Step::Write(w2(b(600), 65))]),
        ("modified and unlinked", vec![Step::Write(w2(b(600), 65)), discard(LEAF, LEAF)]),
        ("grown and unlinked", vec![Step::Write(w2(b(700), 65)), discard(LEAF, LEAF)]),
        ("across leaves", vec![discard(LEAF - 4096, LEAF + 8192)]),
        (
            "unlinked in a split",
            vec![
                Step::Write(w2(b(600), 65)),
                Step::Split(vec![discard(LEAF, LEAF), write(b(601), 65)]),
            ],
        ),
        (
            "unlinked, and its node used by another leaf",
            vec![discard(LEAF, LEAF), Step::Flush, write(b(1100), 9), Step::Write(w2(b(600), 65))],
        ),
        (
            "grown by a group that is rolled back",
            vec![Step::Group(vec![w(b(1100), 9)], End::RollBack), Step::Write(w2(b(1100), 65))],
        ),
        (
            "cut off and grown again",
            vec![Step::Resize(b(40)), Step::Resize(b(1536)), Step::Write(w2(b(600), 65))],
        ),
        (
            "rewritten in a split",
            vec![
                discard(LEAF, LEAF),
                Step::Split(vec![write(b(601), 65), Step::Write(w2(b(600), 4096))]),
            ],
        ),
    ];
    let mut all = Vec::new();

    for (name, steps) in cases.clone() {
        let steps = leaf().into_iter().chain(steps).collect();
        all.push(Case::new(name, steps).setup(|setup| {
            setup.volume_blocks = 1536;
        }));
    }

    explore::all(&explore::broad(), all);
}

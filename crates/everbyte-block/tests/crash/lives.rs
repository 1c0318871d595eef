//! Crashes of recoveries, second crashes, clean shutdowns, and volumes created, deleted and resized.

use crate::explore;
use crate::steps::{Case, HOLE, MAPPED, Step, W, b, touch, w, w2};

fn write(at: u64, len: usize) -> Step {
    Step::Write(w(at, len))
}

fn on(name: &'static str, step: Step) -> Step {
    Step::On(name, Box::new(step))
}

#[test]
fn crashes_in_recovery() {
    let cases = [
        (
            "data and pointers",
            vec![
                write(b(MAPPED), 65),
                write(b(MAPPED + 1), 4096),
                Step::Split(vec![
                    Step::Write(w2(b(MAPPED), 9)),
                    Step::Write(w2(b(MAPPED + 1), 65)),
                ]),
            ],
        ),
        ("a FUA fast path", vec![write(b(HOLE), 65), Step::Write(w2(b(MAPPED), 9).fua())]),
    ];
    explore::all(&explore::deep(), cases.map(|(name, steps)| Case::new(name, steps).probing()));
}

#[test]
fn second_crashes() {
    let cases = [
        ("the same again", vec![write(b(MAPPED), 65), Step::Kill, Step::Write(w2(b(MAPPED), 65))]),
        (
            "less than before",
            vec![
                write(b(MAPPED), 65),
                write(b(MAPPED + 1), 4096),
                Step::Kill,
                Step::Write(w2(b(MAPPED + 1), 9)),
            ],
        ),
        (
            "after two epochs",
            vec![
                write(b(MAPPED), 65),
                Step::Kill,
                Step::Write(w2(b(MAPPED), 65)),
                Step::Flush,
                write(b(MAPPED), 9),
            ],
        ),
        (
            "and a third",
            vec![
                write(b(MAPPED), 65),
                Step::Kill,
                Step::Write(w2(b(MAPPED + 1), 4096)),
                Step::Kill,
                write(b(HOLE), 9),
            ],
        ),
        (
            "blocks used again",
            vec![
                write(b(HOLE), 8192),
                Step::Kill,
                write(b(HOLE + 2), 8192),
                Step::Flush,
                Step::Write(w2(b(HOLE + 2), 65)),
            ],
        ),
    ];
    explore::all(&explore::broad(), cases.map(|(name, steps)| Case::new(name, steps).probing()));
}

#[test]
fn clean_shutdowns() {
    let cases = [
        ("once", vec![write(b(MAPPED), 65), Step::Reopen, Step::Write(w2(b(MAPPED), 65))]),
        ("then killed", vec![write(b(HOLE), 65), Step::Reopen, write(b(HOLE), 9), Step::Kill]),
        ("twice", vec![Step::Reopen, write(b(HOLE), 65), Step::Reopen]),
    ];
    explore::all(&explore::broad(), cases.map(|(name, steps)| Case::new(name, steps)));
}

#[test]
fn resizing() {
    let cases = [
        ("a taller tree", vec![Step::Resize(b(600)), write(b(550), 4097)]),
        ("taller twice", vec![Step::Resize(b(300_000)), write(b(299_000), 9), write(b(600), 9)]),
        ("shrunk", vec![write(b(MAPPED), 65), Step::Resize(b(6)), Step::Write(w2(b(MAPPED), 65))]),
        ("shrunk and grown", vec![Step::Resize(b(6) + 512), Step::Resize(b(28)), write(b(7), 65)]),
        (
            "shrunk within a block",
            vec![write(b(5), 4096), Step::Resize(b(5) + 512), Step::Resize(b(5) + 1024)],
        ),
        (
            "grown and shrunk by a leaf",
            vec![
                Step::Resize(b(1100)),
                write(b(1050), 4097),
                Step::Resize(b(600)),
                Step::Resize(b(1100)),
            ],
        ),
    ];
    let mut all = Vec::new();

    for (name, steps) in cases.clone() {
        all.push(Case::new(name, steps));
    }

    explore::all(&explore::broad(), all);
}

#[test]
fn volumes_come_and_go() {
    let create = |name| Step::Create { name, blocks: 8 };
    let cases = [
        (
            "made and written",
            vec![
                create("b"),
                on("b", write(0, 4097)),
                on("b", Step::Flush),
                on("b", Step::Write(w2(9, 65))),
            ],
        ),
        (
            "deleted",
            vec![
                create("b"),
                on("b", write(0, 4097)),
                write(b(MAPPED), 65),
                Step::Delete("b"),
                write(b(HOLE), 8192),
            ],
        ),
        (
            "made again",
            vec![
                create("b"),
                on("b", write(0, 4097)),
                Step::Delete("b"),
                create("b"),
                on("b", Step::Write(w2(0, 65))),
            ],
        ),
        (
            "the prepared one deleted",
            vec![
                on("x", write(0, 4096)),
                on("x", Step::Flush),
                Step::Delete("x"),
                create("b"),
                on("b", write(0, 9)),
            ],
        ),
    ];
    let case = |(name, steps): (&str, Vec<Step>)| {
        Case::new(name, steps).setup(|setup| setup.others = vec![("x", 8)])
    };
    explore::all(&explore::broad(), cases.map(case));
}

/// One volume's blocks owned by another, in a pool without other blocks.
#[test]
fn blocks_change_hands() {
    let discard = Step::Discard { at: b(MAPPED), len: 8192, fua: false };
    let refill = vec![
        on("x", write(0, 24576)),
        on("x", Step::Flush),
        on("x", Step::Write(w2(9, 65))),
        Step::Delete("x"),
        Step::Create { name: "b", blocks: 8 },
        on("b", write(0, 28672)),
        on("b", Step::Flush),
        on("b", Step::Write(w2(0, 4096))),
    ];
    let quarantined = vec![
        on("x", write(0, 9)),
        discard,
        on("x", write(4096, 4096)),
        Step::Flush,
        on("x", Step::Write(w(4096, 4096).fua())),
        on("x", Step::Write(w2(8192, 65))),
    ];
    let cases = [("deleted", 17, refill), ("discarded", 10, quarantined)];
    let case = |(name, free, steps)| {
        nearly_full(name, free, steps).setup(|setup| setup.others = vec![("x", 8)])
    };
    explore::all(&explore::broad(), cases.map(case));
}

/// Freed blocks of one volume become the log and map of a new volume in the same epoch: the blocks fresh in
/// the old volume are not fresh in the new one.
#[test]
fn new_volume_in_blocks_freed_while_fresh() {
    let mut steps: Vec<Step> = (0..33).map(|i| write(b(24 + i), 4096)).collect();
    steps.push(Step::Discard { at: b(24), len: 33 * 4096, fua: true });
    steps.push(Step::Create { name: "b", blocks: 8 });
    for epoch in 0..8 {
        let seed = crate::steps::Data::Seed(5000 + epoch);
        steps.push(on("b", Step::Write(W { data: seed, ..w(0, 4096) })));
        steps.push(on("b", Step::Flush));
    }
    let case = Case::new("a new volume", steps).setup(|setup| {
        setup.volume_blocks = 64;
        setup.pool_blocks = 64;
    });
    let explorer = everbyte_crash::Explorer { nested_depth: 0, ..explore::broad() };
    explore::all(&explorer, [case]);
}

/// A pool with `free` blocks left.
fn nearly_full(name: &str, free: u64, steps: Vec<Step>) -> Case {
    // Superblocks and table 6, log 8, one node, probe 4, mapped 8, reserved 2.
    let mut case = Case::new(name, steps).setup(|setup| setup.pool_blocks = 29 + free);
    case.may_fill = true;
    case
}

#[test]
fn full_pools() {
    let cases = [
        nearly_full("overwriting", 0, vec![write(b(MAPPED), 4096), write(b(MAPPED) + 9, 4097)]),
        nearly_full(
            "FUA",
            0,
            vec![Step::Write(w(b(MAPPED), 4096).fua()), Step::Write(w2(b(MAPPED), 65).fua())],
        ),
        nearly_full(
            "FUA with one free",
            1,
            vec![Step::Write(w(b(MAPPED), 4096).fua()), Step::Write(w2(b(MAPPED + 1), 65).fua())],
        ),
        nearly_full("a hole", 0, vec![write(b(HOLE), 9), write(b(MAPPED), 9)]),
        nearly_full("two holes with one free", 1, vec![write(b(HOLE), 8192), write(b(HOLE), 9)]),
        nearly_full("the rest of a hole", 1, vec![write(b(11), 8192), write(b(11), 9)]),
        nearly_full(
            "a batch",
            1,
            vec![Step::Batch(vec![w(b(MAPPED), 65), w(b(HOLE), 8192), w(b(HOLE + 2), 9)])],
        ),
        nearly_full(
            "after a discard",
            0,
            vec![Step::Discard { at: b(MAPPED), len: 4096, fua: false }, write(b(HOLE), 4096)],
        ),
        nearly_full(
            "reserved, written, reserved, written",
            0,
            vec![
                write(b(20), 9),
                Step::Reserve { at: b(20), len: 4096, fua: false },
                Step::Write(w2(b(20), 65)),
            ],
        ),
        nearly_full(
            "a group",
            1,
            vec![
                Step::Group(vec![w(b(HOLE), 9), w(b(HOLE + 1), 9)], crate::steps::End::RollBack),
                Step::Write(touch(b(MAPPED), 4096, 128)),
            ],
        ),
    ];
    explore::all(&explore::broad(), cases);
}

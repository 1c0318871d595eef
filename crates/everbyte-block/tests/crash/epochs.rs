//! Checkpoints between and around requests, full logs, groups, and the FUA fast path.

use crate::explore;
use crate::steps::{Case, End, HOLE, MAPPED, Step, W, ZERO, b, same, touch, w, w2};

fn write(at: u64, len: usize) -> Step {
    Step::Write(w(at, len))
}

fn fua(at: u64, len: usize) -> Step {
    Step::Write(w2(at, len).fua())
}

fn discard(at: u64, len: u64) -> Step {
    Step::Discard { at, len, fua: false }
}

fn reserve(at: u64, len: u64) -> Step {
    Step::Reserve { at, len, fua: false }
}

#[test]
fn checkpoint_between_writes() {
    let seconds =
        [write(b(MAPPED), 65), Step::Write(w2(b(MAPPED), 4096)), discard(b(MAPPED), 4096)];
    let mut cases = Vec::new();
    for first in [write(b(MAPPED), 64), write(b(MAPPED), 4097), write(b(HOLE), 9)] {
        for second in &seconds {
            let steps = vec![first.clone(), Step::Flush, second.clone(), Step::Flush];
            cases.push(Case::new(format!("{first:?}, {second:?}"), steps));
        }
    }
    explore::all(&explore::broad(), cases);
}

#[test]
fn checkpoint_around_write() {
    let mut cases = Vec::new();
    let firsts = [write(b(MAPPED), 65), write(b(MAPPED), 4096), discard(b(MAPPED), 4096)];
    let seconds = [
        Step::Write(w2(b(MAPPED) + 9, 65)),
        Step::Write(w2(b(MAPPED), 4096)),
        discard(b(MAPPED), 4096),
        reserve(b(MAPPED), 4096),
    ];
    for first in &firsts {
        for second in &seconds {
            let steps = vec![first.clone(), Step::Split(vec![second.clone()])];
            cases.push(Case::new(format!("{first:?} around {second:?}"), steps));
        }
    }
    explore::all(&explore::broad(), cases);
}

#[test]
fn checkpoint_around_several_writes() {
    let cases = [
        (
            "fresh, then in place",
            vec![
                write(b(HOLE), 4097),
                Step::Split(vec![Step::Write(w2(b(HOLE), 65)), write(b(MAPPED), 9)]),
                Step::Write(w2(b(HOLE) + 5, 9)),
            ],
        ),
        (
            "reserved, written, reserved, written",
            vec![
                write(b(ZERO), 9),
                Step::Split(vec![reserve(b(ZERO), 4096), Step::Write(w2(b(ZERO), 65))]),
            ],
        ),
        (
            "a fresh leaf with reserved blocks",
            vec![
                reserve(b(600), 4096),
                write(b(600), 9),
                reserve(b(600), 4096),
                Step::Split(vec![Step::Write(w2(b(600), 65)), reserve(b(600), 4096)]),
            ],
        ),
        (
            "entries of a fresh leaf",
            vec![
                write(b(600), 9),
                Step::Split(vec![write(b(601), 65), Step::Write(w2(b(600), 4096))]),
            ],
        ),
        (
            "the FUA fast path beside it",
            vec![
                write(b(MAPPED), 65),
                Step::Split(vec![fua(b(MAPPED + 1), 4096), fua(b(MAPPED + 2) + 5, 9)]),
                Step::Write(w2(b(MAPPED + 1), 9)),
            ],
        ),
        (
            "the FUA fast path onto a hole beside it",
            vec![
                write(b(HOLE), 65),
                Step::Split(vec![fua(b(HOLE + 1), 100), write(b(HOLE + 1), 9)]),
            ],
        ),
        (
            "split after split",
            vec![
                write(b(MAPPED), 65),
                Step::Split(vec![Step::Write(w2(b(MAPPED), 9))]),
                Step::Split(vec![write(b(MAPPED), 4096)]),
                Step::Split(vec![Step::Write(w2(b(MAPPED), 9))]),
            ],
        ),
    ];
    let case = |(name, steps): (&str, Vec<Step>)| {
        Case::new(name, steps).setup(|setup| setup.volume_blocks = 1536)
    };
    explore::all(&explore::broad(), cases.map(case));
}

/// Blocks that all came to the threshold in an epoch are replaced immediately in later ones.
#[test]
fn replaced_at_once() {
    let all = 16 * 4096;
    let learn = [
        Step::Write(touch(b(MAPPED), all, 512)),
        Step::Write(touch(b(MAPPED) + 64, all - 64, 512)),
        Step::Flush,
        // The first one is a sample, which is logged.
        Step::Write(touch(b(MAPPED), 4096, 1024)),
    ];
    let cases = [
        (
            "and written again",
            vec![
                Step::Write(touch(b(MAPPED + 1), 4096, 1024)),
                write(b(MAPPED + 1) + 9, 65),
                Step::Write(touch(b(MAPPED + 2) + 9, 4096, 1024)),
            ],
        ),
        (
            "and logged in the next epoch",
            vec![
                Step::Write(touch(b(MAPPED + 1), 4096, 1024)),
                Step::Split(vec![Step::Write(w2(b(MAPPED + 1), 65)), write(b(MAPPED), 9)]),
            ],
        ),
    ];
    let case = |(name, steps): (&str, Vec<Step>)| {
        Case::new(name, learn.iter().cloned().chain(steps).collect()).setup(|setup| {
            setup.mapped = 16;
            setup.options.threshold_percent = 25;
        })
    };
    explore::all(&explore::broad(), cases.map(case));
}

#[test]
fn writes_into_full_log() {
    let whole = |block: u64| write(b(MAPPED + block), 4096);
    let never_replaced = |case: Case| case.setup(|setup| setup.options.threshold_percent = 101);
    let fill = [whole(0), whole(1), whole(2)];
    let mut cases = Vec::new();
    for (name, last) in [
        ("one block more", vec![whole(3)]),
        ("and FUA", vec![fua(b(MAPPED + 3), 9), fua(b(MAPPED), 9)]),
        ("and a batch", vec![Step::Batch(vec![w(b(MAPPED + 3), 4096), w(b(HOLE), 9).fua()])]),
        ("and a discard", vec![discard(b(MAPPED) + 9, 8192)]),
    ] {
        let steps = fill.iter().cloned().chain(last).collect();
        cases.push(never_replaced(Case::new(name, steps)));
    }
    explore::all(&explore::broad(), cases);
}

/// A request with more logged lines than the log has room for is still whole, as long as free blocks exist.
#[test]
fn requests_larger_than_the_log() {
    let larger = || Step::Write(touch(b(MAPPED) + 9, 14 * 4096, 200));
    let requests = [
        ("a write", vec![write(b(MAPPED + 7), 65), larger(), Step::Flush]),
        ("a write with FUA", vec![Step::Write(touch(b(MAPPED) + 9, 14 * 4096, 200).fua())]),
        ("onto a full log", vec![Step::Write(touch(b(MAPPED), 4 * 4096, 64)), larger()]),
        ("around a checkpoint", vec![larger(), Step::Flush, larger(), Step::Kill, larger()]),
        ("as one", vec![Step::Atomic(vec![touch(b(MAPPED), 14 * 4096, 200), w(b(HOLE + 7), 9)])]),
        ("a group", vec![Step::Group(vec![touch(b(MAPPED), 14 * 4096, 200)], End::Commit)]),
    ];
    let mut cases = Vec::new();
    for (name, steps) in requests {
        for threshold_percent in [50, 101] {
            let name = format!("{name}, threshold {threshold_percent}");
            cases.push(Case::new(name, steps.clone()).setup(|setup| {
                setup.mapped = 15;
                setup.options.threshold_percent = threshold_percent;
            }));
        }
    }
    explore::all(&explore::broad(), cases);
}

/// Without free blocks a request larger than the log is written in parts, each of them whole.
#[test]
fn requests_larger_than_log_and_pool() {
    // Superblocks and table 6, log 8, one node, probe 4, mapped 8, reserved 2.
    let mut case = Case::new(
        "a request in parts",
        vec![write(b(MAPPED + 7), 65), write(b(MAPPED), 6 * 4096 + 9), Step::Flush],
    )
    .setup(|setup| setup.pool_blocks = 29);
    case.may_fill = true;
    explore::all(&explore::broad(), [case]);
}

#[test]
fn fua_fast_path() {
    let cases = [
        ("onto a mapped block", vec![write(b(MAPPED + 1), 65), fua(b(MAPPED), 4096)]),
        ("onto part of one", vec![write(b(MAPPED + 1), 4096), fua(b(MAPPED) + 60, 9)]),
        ("onto a hole", vec![write(b(HOLE + 1), 65), fua(b(HOLE), 9)]),
        ("onto a reserved block", vec![write(b(ZERO + 1), 65), fua(b(ZERO), 9)]),
        ("onto a logged block", vec![write(b(MAPPED), 65), fua(b(MAPPED), 4096)]),
        (
            "onto another part of a logged block",
            vec![write(b(MAPPED), 65), fua(b(MAPPED) + 500, 9)],
        ),
        ("onto a replaced block", vec![write(b(MAPPED), 4096), fua(b(MAPPED), 65)]),
        ("onto a fresh block", vec![write(b(HOLE), 65), fua(b(HOLE), 4096)]),
        ("onto a discarded block", vec![discard(b(MAPPED), 4096), fua(b(MAPPED), 9)]),
        ("over two blocks", vec![write(b(HOLE), 65), fua(b(MAPPED) + 9, 4096)]),
        ("into a new leaf", vec![write(b(HOLE), 65), fua(b(600) + 9, 9)]),
        ("twice", vec![fua(b(MAPPED), 4096), Step::Write(w(b(MAPPED), 9).fua())]),
        ("and written over", vec![fua(b(MAPPED), 4096), write(b(MAPPED), 9)]),
        ("and replaced", vec![fua(b(MAPPED), 65), write(b(MAPPED), 4096), fua(b(MAPPED), 8)]),
        ("twice in place", vec![fua(b(MAPPED), 65), Step::Write(w(b(MAPPED) + 9, 65).fua())]),
        ("in place, then whole", vec![fua(b(MAPPED), 65), Step::Write(w(b(MAPPED), 4096).fua())]),
        ("whole, then in place", vec![fua(b(MAPPED), 4096), Step::Write(w(b(MAPPED), 65).fua())]),
        ("in place and written over", vec![fua(b(MAPPED), 65), write(b(MAPPED) + 9, 65)]),
        (
            "in place on both sides of a seal",
            vec![
                fua(b(MAPPED), 65),
                Step::Split(vec![Step::Write(w(b(MAPPED) + 9, 65).fua()), write(b(MAPPED), 9)]),
            ],
        ),
        ("and discarded", vec![fua(b(MAPPED), 65), discard(b(MAPPED), 4096)]),
        ("of nothing new", vec![write(b(MAPPED + 1), 9), Step::Write(same(b(MAPPED), 4096).fua())]),
        (
            "of nothing new since a plain write",
            vec![write(b(MAPPED), 65), Step::Write(w(b(MAPPED), 65).fua())],
        ),
        (
            "of nothing new since a reserved write",
            vec![write(b(ZERO), 65), Step::Write(w(b(ZERO), 65).fua())],
        ),
        (
            "and everything else",
            vec![fua(b(MAPPED), 65), fua(b(HOLE), 9), Step::Flush, fua(b(HOLE), 8)],
        ),
    ];
    let case = |(name, steps): (&str, Vec<Step>)| {
        Case::new(name, steps).probing().setup(|setup| setup.volume_blocks = 1536)
    };
    explore::all(&explore::broad(), cases.map(case));
}

#[test]
fn several_writes_as_one() {
    let mixed = vec![w(b(MAPPED), 65), w2(b(MAPPED + 1) + 9, 4096), w(b(HOLE), 8200), w(b(600), 9)];
    let over: Vec<W> = vec![w(b(MAPPED), 65), w2(b(MAPPED) + 9, 4096), w(b(MAPPED), 9)];
    let mut cases = Vec::new();
    for (name, writes) in [("apart", &mixed), ("over each other", &over)] {
        for durable in [false, true] {
            let mut writes = writes.clone();
            writes[0].fua = durable;
            let steps = vec![
                write(b(MAPPED + 2), 9),
                Step::Atomic(writes),
                Step::Write(w2(b(MAPPED), 65)),
                fua(b(HOLE), 9),
            ];
            cases.push(
                Case::new(format!("{name}, durable {durable}"), steps)
                    .setup(|setup| setup.volume_blocks = 1536),
            );
        }
    }
    let touches = |block| touch(b(MAPPED + block), 4096, 128);
    for (name, blocks) in [("beyond a full log", 0..5), ("too large", 0..8)] {
        let steps = vec![
            Step::Batch((5..8).map(touches).collect()),
            Step::Atomic(blocks.map(touches).collect()),
            write(b(MAPPED), 9),
            Step::Flush,
        ];
        cases.push(too_large_for_log_and_pool(name, steps));
    }
    explore::all(&explore::broad(), cases);
}

/// A case with a log with room for the lines of seven blocks, and a pool without other blocks.
fn too_large_for_log_and_pool(name: &str, steps: Vec<Step>) -> Case {
    let mut case = Case::new(name, steps).setup(|setup| {
        // Superblocks and table 6, log 8, one node, probe 4, mapped 8, reserved 2.
        setup.pool_blocks = 29;
        setup.options.threshold_percent = 101;
    });
    case.may_fill = true;
    case
}

#[test]
fn groups() {
    let mixed: Vec<W> = vec![w(b(MAPPED), 65), w(b(MAPPED + 1), 4096), w(b(HOLE), 4097)];
    let twice: Vec<W> = vec![w(b(MAPPED), 65), w2(b(MAPPED), 4096), w(b(MAPPED), 9)];
    let mut cases = Vec::new();
    for end in [End::Commit, End::RollBack, End::Drop] {
        for (name, writes) in [("mixed", &mixed), ("twice", &twice)] {
            let steps = vec![
                write(b(MAPPED + 2), 9),
                Step::Group(writes.clone(), end),
                Step::Write(w2(b(MAPPED), 65)),
                fua(b(HOLE), 9),
            ];
            cases.push(Case::new(format!("{name}, {end:?}"), steps));
        }
    }
    let touches = |block| touch(b(MAPPED + block), 4096, 128);
    for end in [End::Commit, End::RollBack] {
        let large = (0..8).map(touches).collect();
        let steps = vec![Step::Group(large, end), write(b(MAPPED), 9), Step::Flush];
        cases.push(too_large_for_log_and_pool(&format!("too large, {end:?}"), steps));
    }
    let again = vec![
        Step::Group(mixed.clone(), End::RollBack),
        Step::Group(twice.clone(), End::RollBack),
        Step::Group(mixed, End::Commit),
    ];
    cases.push(Case::new("one after the other", again));
    explore::all(&explore::broad(), cases);
}

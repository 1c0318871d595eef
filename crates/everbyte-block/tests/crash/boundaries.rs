//! One request at every boundary of length and alignment, onto every kind of block; and one
//! request after another in one epoch.

use everbyte_block::Delta;

use crate::explore;
use crate::steps::{Case, HOLE, MAPPED, Step, ZERO, b, same, touch, w, w2};

const LENGTHS: [usize; 12] = [7, 8, 9, 63, 64, 65, 2047, 2048, 2049, 4095, 4096, 4097];

/// Returns the offset of a request of `len` bytes in its block: the start, just beyond it, on another line,
/// and one across two blocks.
fn offset(index: usize, len: usize) -> u64 {
    [0, 1, 64 * 3 + 37, 4096 - len.min(4096) as u64 / 2 - 1][index % 4]
}

/// One request of each length onto the contents of `first` and `block`.
fn lengths(what: &str, block: u64, first: &[Step], turn: usize) -> Vec<Case> {
    let case = |(index, &len): (usize, &usize)| {
        let at = b(block) + offset(index + turn, len);
        let mut steps = first.to_vec();
        steps.push(Step::Write(w2(at, len)));
        Case::new(format!("{len} bytes at {at} onto {what}"), steps)
    };
    LENGTHS.iter().enumerate().map(case).collect()
}

#[test]
fn onto_mapped_blocks() {
    explore::all(&explore::broad(), lengths("mapped blocks", MAPPED, &[], 0));
}

#[test]
fn onto_holes() {
    explore::all(&explore::broad(), lengths("holes", HOLE, &[], 1));
}

#[test]
fn onto_reserved_blocks() {
    explore::all(&explore::broad(), lengths("reserved blocks", ZERO, &[], 2));
}

#[test]
fn onto_fresh_blocks() {
    let first = [Step::Write(w(b(HOLE), 8192))];
    explore::all(&explore::broad(), lengths("fresh blocks", HOLE, &first, 3));
}

#[test]
fn onto_logged_blocks() {
    let first = [Step::Write(touch(b(MAPPED), 8192, 256))];
    explore::all(&explore::broad(), lengths("logged blocks", MAPPED, &first, 0));
}

#[test]
fn with_every_setting() {
    let mut cases = Vec::new();

    for delta in [Delta::On, Delta::Off] {
        for threshold_percent in [0, 50, 101] {
            let steps = vec![
                Step::Write(touch(b(MAPPED), 5000, 300)),
                Step::Write(w(b(MAPPED) + 1, 2048)),
                Step::Write(w(b(HOLE) + 9, 4097)),
            ];
            let name = format!("delta {delta:?}, threshold {threshold_percent}");
            cases.push(Case::new(name, steps).probing().setup(|setup| {
                setup.options.delta = delta;
                setup.options.threshold_percent = threshold_percent;
            }));
        }
    }

    explore::all(&explore::broad(), cases);
}

#[test]
fn several_in_one_epoch() {
    let cases = [
        ("the same line twice", vec![w(b(MAPPED), 64), w2(b(MAPPED), 64)]),
        ("overlapping lines", vec![w(b(MAPPED) + 60, 9), w2(b(MAPPED) + 63, 65)]),
        ("in place, then replaced", vec![w(b(MAPPED), 64), w2(b(MAPPED), 4096)]),
        ("replaced, then in place", vec![w(b(MAPPED), 4096), w2(b(MAPPED), 64)]),
        ("replaced twice", vec![w(b(MAPPED), 4096), w2(b(MAPPED), 4096)]),
        ("fresh, then whole again", vec![w(b(HOLE), 9), w2(b(HOLE), 4096), w(b(HOLE), 9)]),
        ("nothing new", vec![same(b(MAPPED), 4097), w(b(MAPPED), 8), same(b(MAPPED), 64)]),
        ("a little of much", vec![touch(b(MAPPED), 16384, 1024), touch(b(MAPPED), 16384, 64)]),
    ];
    let case = |(name, writes): (&str, Vec<_>)| {
        Case::new(name, writes.into_iter().map(Step::Write).collect()).probing()
    };
    explore::all(&explore::broad(), cases.map(case));
}

#[test]
fn batches() {
    let cases = [
        ("three kinds", vec![w(b(MAPPED), 65), w(b(HOLE), 4097), w(b(ZERO), 9)]),
        ("overlapping", vec![w(b(MAPPED), 65), w2(b(MAPPED) + 9, 65), w(b(MAPPED) + 5, 4096)]),
        ("one with FUA", vec![w(b(MAPPED), 65), w(b(MAPPED + 1), 4096).fua(), w(b(HOLE), 9)]),
        ("FUA over the same", vec![w(b(MAPPED), 65), w2(b(MAPPED), 4096).fua()]),
        ("two FUA", vec![w(b(HOLE), 65).fua(), w2(b(MAPPED), 4096).fua()]),
        ("with new leaves", vec![w(b(MAPPED), 65), w(b(600), 9), w(b(601), 4097)]),
        ("with two new leaves", vec![w(b(1200), 4096), w(b(600), 9), w(b(511), 4097)]),
    ];
    let case = |(name, writes): (&str, Vec<_>)| {
        let setup = |setup: &mut crate::steps::Setup| setup.volume_blocks = 1536;
        Case::new(name, vec![Step::Batch(writes), Step::Write(w2(b(MAPPED), 64))]).setup(setup)
    };
    explore::all(&explore::broad(), cases.map(case));
}

/// Concurrent durable requests: each is old or new, and all are durable once they are answered.
#[test]
fn durable_batches() {
    let (rewrite, part) = (w2(b(MAPPED), 4096).fua(), w2(b(MAPPED + 1) + 9, 65).fua());
    let cases = [
        ("blocks", vec![], vec![rewrite, w2(b(MAPPED + 1), 4096).fua()]),
        ("block and part", vec![], vec![part, rewrite]),
        ("parts", vec![], vec![part, w2(b(MAPPED), 9).fua(), w2(b(MAPPED + 2), 65).fua()]),
        ("holes", vec![], vec![w(b(HOLE), 9).fua(), w(b(HOLE + 1), 4096).fua()]),
        ("with one that is not", vec![], vec![rewrite, w(b(HOLE), 9), part]),
        ("with nothing new", vec![], vec![same(b(MAPPED), 4096).fua(), part]),
        ("with two blocks", vec![], vec![part, w2(b(MAPPED + 2), 4097).fua()]),
        ("overlapping", vec![], vec![part, rewrite, w(b(MAPPED) + 60, 9).fua()]),
        ("one changed in the epoch", vec![w(b(MAPPED), 65)], vec![rewrite, part]),
    ];
    let case = |(name, before, batch): (&str, Vec<_>, Vec<_>)| {
        let mut steps: Vec<_> = before.into_iter().map(Step::Write).collect();
        steps.extend([Step::Batch(batch), Step::Write(w2(b(MAPPED), 64))]);
        let case = Case::new(name, steps);
        [case.clone(), case.checksummed()]
    };
    explore::all(&explore::broad(), cases.map(case).concat());
}

/// Several whole blocks together, without comparison: they go over fresh blocks.
#[test]
fn whole_blocks_in_batches() {
    let (first, second) = ([w(b(MAPPED), 4096), w(b(HOLE), 4096)], [b(MAPPED), b(HOLE)]);
    let batch = || Step::Batch(first.to_vec());
    let again = || Step::Batch(second.map(|at| w2(at, 4096)).to_vec());
    let cases = [
        ("twice", vec![batch(), again()]),
        ("twice as one", vec![Step::Atomic(first.to_vec()), again()]),
        ("then as one", vec![batch(), Step::Atomic(second.map(|at| w2(at, 4096)).to_vec())]),
        ("in two epochs", vec![batch(), Step::Flush, again(), batch()]),
        ("around a checkpoint", vec![batch(), Step::Split(vec![again(), batch()]), again()]),
        ("in part in between", vec![batch(), Step::Write(w2(b(MAPPED) + 9, 65)), again()]),
        (
            "reserved in between",
            vec![batch(), Step::Reserve { at: b(MAPPED), len: 4096, fua: false }, again()],
        ),
        (
            "unmapped in between",
            vec![batch(), Step::Discard { at: b(MAPPED), len: 4096, fua: false }, again()],
        ),
        ("durable in between", vec![batch(), Step::Write(w2(b(HOLE), 4096).fua()), again()]),
    ];
    let mut all = Vec::new();
    for (name, steps) in cases {
        let case = Case::new(name, steps).setup(|setup| {
            setup.options.delta = Delta::Off;
        });
        all.extend([case.clone(), case.checksummed()]);
    }
    explore::all(&explore::broad(), all);
}

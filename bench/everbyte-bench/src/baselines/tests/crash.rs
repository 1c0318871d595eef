//! Every scheme keeps its promise through every crash of these workloads.

use everbyte_crash::Explorer;
use everbyte_device::Fua;
use everbyte_extent::Delta;

use super::scenario::{BLOCK, Case, Step, W};
use crate::baselines::Kind;

/// The schemes that promise something after a crash.
fn durable() -> impl Iterator<Item = Kind> {
    Kind::ALL.into_iter().filter(|&kind| kind != Kind::Ramfs)
}

/// Every crash point, some images of each, some crashes of recoveries.
pub(super) fn broad() -> Explorer {
    Explorer {
        runs_max: 8,
        samples: 2,
        nested_images_max: 1,
        nested_points_max: 3,
        nested_runs_max: 2,
        ..Explorer::default()
    }
}

pub(super) fn write(at: usize, len: usize, fua: Fua) -> Step {
    Step::Write(W(at, len, 100 + (at + 3 * len) as u64), fua)
}

/// Another write to the same place.
pub(super) fn rewrite(at: usize, len: usize, fua: Fua) -> Step {
    Step::Write(W(at, len, 900 + (at + 3 * len) as u64), fua)
}

pub(super) const fn b(block: usize) -> usize {
    block * BLOCK
}

/// Writes of every size: of words, of lines, of more than half a block, of whole blocks, into
/// holes, and again.
fn sizes(fua: Fua) -> Vec<Step> {
    vec![
        write(b(0) + 64, 64, fua),
        write(b(0) + 72, 8, fua),
        write(b(1), BLOCK, fua),
        rewrite(b(1) + 500, 700, fua),
        write(b(2) + 10, 3000, fua),
        write(b(6), BLOCK, fua),
        write(b(7) + 3, 100, fua),
        Step::Flush,
        rewrite(b(0) + 72, 8, fua),
        rewrite(b(0) + 60, 30, fua),
        rewrite(b(7) + 50, 8, fua),
        rewrite(b(6), BLOCK, fua),
        write(b(2) + 4000, 200, fua),
        Step::Flush,
    ]
}

fn explore(kind: Kind, explorer: &Explorer, steps: Vec<Step>) {
    let case = Case::new(kind, steps);
    let summary = explorer.explore_steps(&case).unwrap_or_else(|f| panic!("{kind:?}: {f}"));
    assert!(summary.points > 10, "{kind:?}: hardly anything was explored: {summary}");
    println!("{kind:?}: {summary}");
}

#[test]
fn checkpoint_mode() {
    for kind in durable() {
        explore(kind, &broad(), sizes(Fua::No));
    }
}

#[test]
fn each_request_durable() {
    for kind in durable() {
        explore(kind, &broad(), sizes(Fua::Yes));
    }
}

/// Rollback is left out here and below where modes mix: its durable requests overtake others, so
/// its states are not of one order. `everbyte-block` has its crash tests.
#[test]
fn both_modes_and_checkpoints() {
    for kind in durable().filter(|&kind| kind != Kind::Rollback) {
        let steps = vec![
            write(b(0) + 1, 130, Fua::No),
            write(b(6), BLOCK, Fua::No),
            write(b(1), 3000, Fua::Yes),
            Step::Checkpoint,
            rewrite(b(0) + 1, 130, Fua::Yes),
            rewrite(b(6) + 90, 30, Fua::No),
            rewrite(b(1), BLOCK, Fua::No),
            Step::Checkpoint,
            write(b(1) + 8, 8, Fua::No),
        ];
        explore(kind, &broad(), steps);
    }
}

#[test]
fn several_writes_as_one() {
    for kind in durable() {
        for fua in [Fua::No, Fua::Yes] {
            let steps = vec![
                Step::Atomic(vec![W(b(0) + 8, 8, 5), W(b(2) + 100, 60, 6), W(b(3), BLOCK, 7)], fua),
                Step::Atomic(vec![W(b(6) + 20, 9, 8), W(b(1), 2 * BLOCK, 9)], fua),
                Step::Flush,
                Step::Atomic(vec![W(b(6), BLOCK, 10), W(b(0), 9, 11), W(b(7), BLOCK, 12)], fua),
                Step::Flush,
            ];
            explore(kind, &broad(), steps);
        }
    }
}

/// Blocks are freed, used again by others, and written again.
#[test]
fn discarded_blocks() {
    // With no consistency, the table itself may name a block twice.
    for kind in durable().filter(|&kind| kind != Kind::None) {
        for fua in [Fua::No, Fua::Yes] {
            let steps = vec![
                Step::Discard { at: b(1), len: b(2), fua },
                write(b(6), BLOCK, fua),
                write(b(7) + 9, 70, fua),
                Step::Flush,
                write(b(1) + 100, 200, fua),
                Step::Discard { at: b(6), len: b(1), fua },
                rewrite(b(6), 3000, fua),
                rewrite(b(0), BLOCK, fua),
                Step::Flush,
            ];
            explore(kind, &broad(), steps);
        }
    }
}

/// Writes at the end of the written bytes, beyond and across the end, and after a discard of the
/// end.
#[test]
fn appends() {
    for kind in durable().filter(|&kind| kind != Kind::None) {
        for fua in [Fua::No, Fua::Yes] {
            let steps = vec![
                write(b(4), 100, fua),
                write(b(4) + 100, 5000, fua),
                write(b(8) + 10, 20, fua),
                write(b(8) + 20, 3000, fua),
                Step::Discard { at: b(4), len: b(5), fua },
                write(b(5) + 7, 600, fua),
                Step::Flush,
            ];
            explore(kind, &broad(), steps);
        }
    }
}

/// Requests with few or no changed bytes. Each is compared.
#[test]
fn changes_detected() {
    for kind in durable() {
        let again = |at: usize, len: usize| write(at, len, Fua::No);
        let edited = Step::Write(W(b(1), BLOCK, 7), Fua::No);
        let steps = vec![
            again(b(1), BLOCK),
            again(b(1), BLOCK),
            rewrite(b(1) + 128, 64, Fua::No),
            again(b(1), BLOCK),
            edited,
            Step::Flush,
        ];
        let case = Case { delta: Delta::On, ..Case::new(kind, steps) };
        let summary = broad().explore_steps(&case).unwrap_or_else(|f| panic!("{kind:?}: {f}"));
        println!("{kind:?}: {summary}");
    }
}

/// Enough requests for each log to fill, to cause a checkpoint, and to start again.
#[test]
fn full_logs() {
    let explorer = Explorer {
        points_max: 30,
        runs_max: 4,
        samples: 2,
        nested_images_max: 1,
        nested_points_max: 3,
        nested_runs_max: 2,
        ..Explorer::default()
    };
    for kind in durable() {
        let step = |n: usize| Step::Write(W(b(n % 3) + 1000, 2000, n as u64 + 10), Fua::Yes);
        explore(kind, &explorer, (0..40).map(step).collect());
    }
}

/// Shadow paging over two levels: changes in one page, in two, and where there is none yet.
#[test]
fn shadow_tree_of_two_levels() {
    for fua in [Fua::No, Fua::Yes] {
        let steps = vec![
            Step::Atomic(vec![W(b(0), 20, 5), W(b(1), 20, 6)], fua),
            write(b(600), BLOCK, fua),
            Step::Atomic(vec![W(b(2), 20, 7), W(b(601), 20, 8)], fua),
            Step::Atomic(vec![W(b(600), 20, 9), W(b(1100), BLOCK, 10)], fua),
            Step::Discard { at: b(600), len: b(2), fua },
            Step::Flush,
        ];
        let case = Case { blocks: 1200, ..Case::new(Kind::Shadow, steps) };
        let summary = broad().explore_steps(&case).unwrap_or_else(|failure| panic!("{failure}"));
        println!("{summary}");
    }
}

//! Crashes while maps of runs change.

use everbyte_fs::BlockMapKind;
use everbyte_media::BLOCK_U64;
use everbyte_pool::plant::Bug;

use super::{Op, Workload, caught_in, explored, few, further_workloads, work, workloads, write};

/// The first block whose entry does not stand in the inode.
const FIRST: u64 = 16;
/// Blocks of a pool with room for a map of more than one node.
const POOL_BLOCKS: u64 = 320;

/// A write of so many whole blocks of `a` from block `first` on, before a workload.
fn old(first: u64, blocks: u64) -> Op {
    let len = usize::try_from(blocks * BLOCK_U64).unwrap();
    Op::Write { path: vec!["a"], offset: first * BLOCK_U64, len, byte: 3 }
}

/// The same with other bytes.
fn new(first: u64, blocks: u64) -> Op {
    write(&["a"], first * BLOCK_U64, usize::try_from(blocks * BLOCK_U64).unwrap())
}

/// Changes of the space of so many blocks of `a`.
fn space(what: char, first: u64, blocks: u64) -> Op {
    let (offset, len) = (first * BLOCK_U64, blocks * BLOCK_U64);
    Op::Allocate { path: vec!["a"], offset, len, what, keep_size: false }
}

/// So many runs of a block each, with a hole after each.
fn apart(runs: u64) -> Vec<Op> {
    (0..runs).map(|run| old(FIRST + 2 * run, 1)).collect()
}

fn of_runs(before: Vec<Op>, work: Workload) -> Workload {
    Workload { before, block_map: BlockMapKind::Runs, pool_blocks: POOL_BLOCKS, ..work }
}

/// Each way in which a map of runs changes.
fn changes() -> Vec<Workload> {
    let cut = |size| Op::Truncate(vec!["a"], size);
    let run = || vec![old(FIRST, 8)];
    let two_levels = || apart(40);
    vec![
        of_runs(vec![], work("first run", [new(FIRST, 3)])),
        of_runs(run(), work("longer run", [new(FIRST + 8, 3), new(FIRST + 11, 1)])),
        of_runs(run(), work("run in parts", [new(FIRST + 3, 1), Op::Sync, new(FIRST + 5, 2)])),
        of_runs(run(), work("punched run", [space('p', FIRST + 2, 3), new(FIRST + 3, 1)])),
        of_runs(run(), work("zeroed run", [space('z', FIRST + 1, 4), new(FIRST + 2, 1)])),
        of_runs(run(), work("kept zeroes", [space('z', FIRST, 8), Op::Sync, new(FIRST + 2, 1)])),
        of_runs(run(), work("shorter run", [cut((FIRST + 3) * BLOCK_U64 + 5), new(FIRST + 3, 1)])),
        of_runs(run(), work("no run", [cut(100), Op::Sync, new(FIRST, 2)])),
        of_runs(apart(20), work("node is replaced", [new(FIRST, 40)])),
        of_runs(apart(32), work("node is full", [new(FIRST + 21, 1), new(FIRST + 2, 1)])),
        of_runs(apart(32), work("node goes on", [new(FIRST + 64, 1), new(FIRST + 66, 1)])),
        of_runs(two_levels(), work("node is emptied", [space('p', FIRST, 50), new(FIRST, 1)])),
        of_runs(two_levels(), work("tree is emptied", [cut(0), Op::Sync, old(FIRST, 2)])),
        of_runs(
            two_levels(),
            work(
                "tree is unlinked",
                [
                    Op::Unlink(vec!["a"]),
                    Op::Unlink(vec!["second"]),
                    write(&["large"], FIRST * BLOCK_U64, 9000),
                ],
            ),
        ),
        of_runs(
            run(),
            work(
                "node beside node",
                [write(&["d", "inner"], FIRST * BLOCK_U64, 4096), new(FIRST + 6, 1)],
            ),
        ),
    ]
}

fn change(name: &str) -> Workload {
    changes().into_iter().find(|work| work.name == name).unwrap()
}

#[test]
fn no_crash_while_a_map_of_runs_changes_leaves_anything_but_a_checkpoint() {
    let of_files = ["cut", "append", "punch", "reserve", "first entries", "leaves", "copy"];
    let others = workloads().into_iter().chain(further_workloads());
    let others = others.filter(|work| of_files.contains(&work.name));
    for work in changes().into_iter().chain(others.map(|work| of_runs(vec![], work))) {
        let name = work.name;
        println!("{name}: {}", explored(&few(), &work).unwrap_or_else(|e| panic!("{name}: {e}")));
    }
}

#[test]
fn planted_bugs_of_maps_of_runs_are_caught() {
    let words =
        ["node of runs", "not one of", "map entry", "owner", "else already", "its inode says"];
    for (bug, name) in [
        (Bug::RunsUnlogged, "punched run"),
        (Bug::RunsUnlogged, "run in parts"),
        (Bug::RunsBelieved, "zeroed run"),
        (Bug::CellsFreshByBlock, "node beside node"),
    ] {
        caught_in(&change(name), bug, &words);
    }
}

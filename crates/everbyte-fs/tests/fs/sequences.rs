//! Crashes of random sequences, beyond the systematic workloads.
//!
//! `EVERBYTE_CRASH_CASES` sets the number of cases and `EVERBYTE_CRASH_SEED` the first seed. A failing case
//! prints its seed, which repeats the case.

use everbyte_crash::Explorer;
use everbyte_fs::IndexKind;
use everbyte_fs::plant::Bug;
use everbyte_plant::plant;
use everbyte_testkit::number;

use crate::crash::{RUN_POOL_BLOCKS, Workload, explored, work};
use crate::operations::{Mode, Op, Path};

const CASES: u64 = 12;
/// Number of sequences in which a planted bug must show.
const PLANTED_CASES: u64 = 60;

/// A generator with stable results by seed (SplitMix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % end as u64).unwrap()
    }

    fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    fn path(&mut self) -> Path {
        self.of(&[
            vec!["a"],
            vec!["second"],
            vec!["large"],
            vec!["d", "inner"],
            vec!["d"],
            vec!["empty"],
            vec!["link"],
            vec!["n"],
            vec!["empty", "n"],
        ])
    }

    fn op(&mut self) -> Op {
        let path = self.path();
        let offset = self.of(&[0, 63, 4095, 4096, 61_440, 65_535, 65_536, 69_632]);
        match self.below(20) {
            0 => Op::Create(path, 0o640),
            1 => Op::Mkdir(path, 0o711),
            2 => Op::Link(path, self.path()),
            3 => Op::Unlink(path),
            4 => Op::Rmdir(path),
            5 | 6 => {
                let mode = self.of(&[
                    Mode::Replace,
                    Mode::NoReplace,
                    Mode::Exchange,
                    Mode::Whiteout,
                    Mode::NewWhiteout,
                ]);
                Op::Rename(path, self.path(), mode)
            }
            7 => Op::Write { path, offset, len: self.of(&[1, 65, 4096, 9000]), byte: 7 },
            8 => Op::Truncate(path, offset),
            9 => {
                let (len, what) = (self.of(&[1, 4096, 20_000]), self.of(&['r', 'z', 'p']));
                Op::Allocate { path, offset, len, what, keep_size: self.below(2) == 0 }
            }
            10 => Op::Attribute(path, self.of(&["user.a", "user.b"]), self.of(&[0, 9, 2000])),
            11 => Op::Chmod(path, 0o705),
            12 => self.of(&[Op::Open(path, 0), Op::Close(0)]),
            13 => Op::Unnamed(self.of(&[vec!["d"], vec!["empty"]]), 0o604, 1),
            14 => Op::LinkHand(1, path),
            15 => {
                let (offsets, len) =
                    ([offset, self.of(&[0, 100, 4096])], self.of(&[50, 8192, 70_000]));
                Op::Copy { paths: [path, self.path()], offsets, len }
            }
            16 => self.of(&[Op::View(path, 0), Op::LookAtView(0)]),
            17 | 18 => Op::SyncFile(path),
            _ => Op::Sync,
        }
    }

    /// A sequence. A synced file is mostly a file of the operation before.
    fn ops(&mut self) -> Vec<Op> {
        let mut ops: Vec<Op> = Vec::new();
        for _ in 0..2 + self.below(6) {
            let op = match self.op() {
                Op::SyncFile(path) => {
                    let before = ops.last().and_then(|op| op.paths().pop());
                    Op::SyncFile(before.filter(|_| self.below(4) > 0).unwrap_or(path))
                }
                op => op,
            };
            ops.push(op);
        }
        ops
    }
}

/// The sequence of a seed, its exploration, and a description.
fn case(seed: u64) -> (Workload, Explorer, String) {
    let mut dice = Dice(seed);
    let ops = dice.ops();
    let what = format!("seed {seed}: {ops:?}");
    let mut work = work("random", ops);
    work.index = dice.of(&IndexKind::ALL);
    if work.index == IndexKind::Window {
        work.pool_blocks = RUN_POOL_BLOCKS;
    }
    work.may_fail = true;
    let explorer = Explorer {
        seed,
        points_max: 60,
        runs_max: 2,
        samples: 2,
        nested_depth: u32::from(dice.below(4) == 0),
        nested_images_max: 1,
        nested_points_max: 8,
        nested_runs_max: 1,
        ..Explorer::default()
    };
    (work, explorer, what)
}

#[test]
fn random_sequence_crash_leaves_a_checkpoint() {
    let first = number("EVERBYTE_CRASH_SEED", 1);
    for seed in first..first + number("EVERBYTE_CRASH_CASES", CASES) {
        let (work, explorer, what) = case(seed);
        let summary = explored(&explorer, &work).unwrap_or_else(|error| panic!("{what}: {error}"));
        println!("seed {seed}, {}: {summary}", work.index.name());
    }
}

/// The exploration notices a sync that does not make its file durable.
#[test]
fn planted_skipped_fsync_is_caught_in_sequences() {
    let planted = plant(Bug::FileSyncSkipped);
    let found = (1..=PLANTED_CASES).map(case).find_map(|(work, explorer, what)| {
        let explorer = Explorer { nested_depth: 0, ..explorer };
        explored(&explorer, &work).err().map(|failure| (what, failure))
    });
    drop(planted);
    let (what, failure) = found.expect("a planted bug");
    println!("noticed with {what}");
    assert!(failure.contains("not one of"), "{failure}");
}

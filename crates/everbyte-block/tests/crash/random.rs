//! Random workloads: cases outside the systematic ones.
//!
//! `EVERBYTE_CRASH_CASES` sets their number, `EVERBYTE_CRASH_SEED` the first seed; a failing case names its
//! seed, and the seed alone makes the same case again.

use everbyte_block::Delta;
use everbyte_crash::Explorer;
use everbyte_testkit::number;

use crate::explore;
use crate::steps::{Case, Data, End, Setup, Step, W, b};

const CASES: u64 = 24;
/// First blocks of random requests: mapped, holes, reserved.
const FIRST: u64 = 4;
const LAST: u64 = 24;

/// A small private generator: a seed gives the same case forever (SplitMix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[usize::try_from(self.below(choices.len() as u64)).unwrap()].clone()
    }

    fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// A place and a length near a boundary.
    fn range(&mut self) -> (u64, usize) {
        let len = self
            .of(&[1, 8, 9, 63, 64, 65, 511, 2047, 2048, 2049, 4095, 4096, 4097, 8192, 9000, 12288]);
        let offset = self.of(&[0, 0, 0, 1, 63, 64, 512, 2048, 4095]);
        (b(FIRST + self.below(LAST - FIRST)) + offset, len)
    }

    fn request(&mut self) -> W {
        let (at, len) = self.range();
        let data = match self.below(5) {
            0 => Data::Seed(crate::steps::PREPARED),
            1 => Data::Touch(self.of(&[64, 128, 200, 1000])),
            _ => Data::Seed(10 + self.below(1000)),
        };
        W { at, len, data, fua: false }
    }

    fn requests(&mut self) -> Vec<W> {
        (0..1 + self.below(3)).map(|_| self.request()).collect()
    }

    fn zeroes(&mut self, fua: bool) -> Step {
        let (at, len) = self.range();
        let len = len as u64;
        if self.once_in(2) {
            Step::Discard { at, len, fua }
        } else {
            Step::Reserve { at, len, fua }
        }
    }

    /// A step possible inside a checkpoint: it never has to wait for another.
    fn plain(&mut self) -> Step {
        if self.once_in(4) { self.zeroes(false) } else { Step::Write(self.request()) }
    }

    fn step(&mut self) -> Step {
        match self.below(16) {
            0 => Step::Flush,
            1 | 2 => Step::Split((0..1 + self.below(2)).map(|_| self.plain()).collect()),
            3 => Step::Group(self.requests(), self.of(&[End::Commit, End::RollBack, End::Drop])),
            4 => self.of(&[Step::Kill, Step::Reopen]),
            5 => self.zeroes(true),
            6 | 7 => Step::Write(self.request().fua()),
            8 if self.once_in(2) => Step::Atomic(self.requests()),
            8 => Step::Batch(self.requests()),
            9 => {
                let mut requests = self.requests();
                requests[0].fua = true;
                Step::Batch(requests)
            }
            _ => self.plain(),
        }
    }

    fn setup(&mut self) -> Setup {
        let mut setup = Setup::default();
        setup.options.delta = self.of(&[Delta::On, Delta::Off, Delta::Auto]);
        setup.options.threshold_percent = self.of(&[0, 50, 50, 101]);
        // Room enough that a request inside a checkpoint need not wait for it.
        setup.options.log_bytes = Some(2 * 65536);
        setup.pool_blocks = 128;
        setup
    }
}

fn case(seed: u64) -> Case {
    let mut dice = Dice(seed);
    let setup = dice.setup();
    let steps: Vec<Step> = (0..dice.of(&[2, 2, 3, 3, 4, 5, 7])).map(|_| dice.step()).collect();
    let mut case = Case::new(format!("seed {seed}: {setup:?} {steps:?}"), steps);
    case.setup = setup;
    case.probe = dice.once_in(2);
    if dice.once_in(2) { case.on_two_lanes() } else { case }
}

#[test]
fn random_workloads() {
    let cases = number("EVERBYTE_CRASH_CASES", CASES);
    let seed = number("EVERBYTE_CRASH_SEED", 1);
    let one = |seed| (Explorer { seed, ..explore::broad() }, case(seed));
    explore::each((seed..seed + cases).map(one));
}

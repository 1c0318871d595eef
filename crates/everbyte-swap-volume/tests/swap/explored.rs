//! Lending explored: random calls of a server, ends of programs and restarts, against a model of the
//! runs' owners.
//!
//! The calls of a lender exclude each other, so threads can produce only an order of whole calls.
//! Programs can end between calls at any moment: such an end is a step here. Every program keeps a
//! mark in each run of its lease, and must find the mark again.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;

use everbyte_plant::plant;
use everbyte_pool::lock_range;
use everbyte_swap_volume::plant::Bug;
use everbyte_swap_volume::{Lease, Lender, RUN_BYTES, SwapError};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

use crate::test_pool::{RUNS, TestPool, block_forks, runs_of};

const STEPS: u64 = 40;
const SEEDS: u64 = 60;

/// A program with memory: its lease, and its mark in each of its runs.
struct Program {
    lease: Lease,
    mark: u64,
}

impl Program {
    fn runs(&self) -> BTreeSet<u64> {
        runs_of(&self.lease.ranges)
    }

    /// Finds the mark in every run, first and last bytes.
    fn check(&self) -> Result<(), String> {
        for run in self.runs() {
            for at in [run, run + RUN_BYTES - 8] {
                let found = word(&self.lease.file, at);
                if found != self.mark {
                    return Err(format!("program {} lost its bytes at {at}", self.mark));
                }
            }
        }
        Ok(())
    }
}

fn word(file: &File, at: u64) -> u64 {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at).unwrap();
    u64::from_le_bytes(bytes)
}

/// A server, its programs, and their expected runs.
struct LenderModel {
    test_pool: TestPool,
    lender: Option<Lender>,
    programs: Vec<Program>,
    /// The second half of a run with a free first half.
    half: Option<(File, u64)>,
    marks: u64,
    wipes: bool,
}

impl LenderModel {
    fn new(wipes: bool) -> Self {
        let test_pool = TestPool::new(wipes);
        let lender = Some(test_pool.lender());
        Self { test_pool, lender, programs: Vec::new(), half: None, marks: 0, wipes }
    }

    fn lender(&self) -> &Lender {
        self.lender.as_ref().expect("a server runs")
    }

    /// Runs of the volume, by their first byte.
    fn volume(&self) -> BTreeSet<u64> {
        self.lender().volume().runs().iter().map(|run| run.0 * 4096).collect()
    }

    /// Runs in use, wholly or by half.
    fn held(&self) -> BTreeSet<u64> {
        let whole = self.programs.iter().flat_map(Program::runs);
        whole.chain(self.half.iter().map(|(_, run)| *run)).collect()
    }

    fn lend(&mut self, runs: u64) -> Result<(), String> {
        let held = self.held();
        let is_full = held.len() == self.volume().len();
        let lease = match self.lender().lend(runs, 7) {
            Ok(lease) => lease,
            Err(SwapError::Full { .. }) if is_full => return Ok(()),
            Err(error) => return Err(format!("nothing is lent though some is free: {error}")),
        };
        let got = runs_of(&lease.ranges);
        if !got.is_disjoint(&held) {
            return Err(format!("runs were lent twice: {got:?}, {held:?}"));
        }
        let left_over = got.iter().any(|run| word(&lease.file, *run) != 0);
        if self.wipes && left_over {
            return Err("a program sees what another left".into());
        }
        self.marks += 1;
        for run in &got {
            for at in [*run, run + RUN_BYTES - 8] {
                lease.file.write_all_at(&self.marks.to_le_bytes(), at).unwrap();
            }
        }
        self.programs.push(Program { lease, mark: self.marks });
        Ok(())
    }

    /// Keeps the second half of a run for a program unknown to the next server.
    fn take_half(&mut self) {
        let held = self.held();
        let Some(&run) = self.volume().iter().find(|run| !held.contains(run)) else { return };
        let file = File::options().read(true).write(true).open(self.test_pool.file.path()).unwrap();
        assert!(lock_range(&file, &(run + RUN_BYTES / 2..run + RUN_BYTES)).unwrap());
        self.half = Some((file, run));
        self.restart();
    }

    fn resize(&mut self, runs: u64) -> Result<(), String> {
        let fits = runs >= self.held().len() as u64;
        match self.lender().resize(runs * RUN_BYTES) {
            Ok(()) if fits => Ok(()),
            Err(SwapError::Lent { .. }) if !fits => Ok(()),
            outcome => Err(format!("{runs} runs, {} held: {outcome:?}", self.held().len())),
        }
    }

    fn restart(&mut self) {
        self.lender = None;
        self.lender = Some(self.test_pool.lender());
    }

    /// Requests the deletion of the volume. If it succeeds, the server ends.
    fn close(&mut self) -> Result<(), String> {
        if self.lender().close().is_err() {
            let is_held = !self.held().is_empty();
            return is_held.then_some(()).ok_or_else(|| "nobody has it, but it stays".into());
        }
        if !self.held().is_empty() {
            return Err("a volume is to be deleted though programs have some of it".into());
        }
        self.restart();
        Ok(())
    }

    fn step(&mut self, random: &mut SmallRng) -> Result<(), String> {
        match random.random_range(0..16) {
            0..6 => self.lend(random.random_range(1..=3)),
            6..10 if !self.programs.is_empty() => {
                let who = random.random_range(0..self.programs.len());
                drop(self.programs.swap_remove(who));
                Ok(())
            }
            10 | 11 => {
                self.restart();
                Ok(())
            }
            12 if self.half.is_none() => {
                self.take_half();
                Ok(())
            }
            13 => {
                self.half = None;
                Ok(())
            }
            14 => self.resize(random.random_range(1..=RUNS + 1)),
            15 => self.close(),
            _ => Ok(()),
        }
    }

    /// Checks the server's and the programs' records of the runs against each other.
    fn check(&self) -> Result<(), String> {
        self.programs.iter().try_for_each(Program::check)?;
        let (held, volume) = (self.held(), self.volume());
        if !held.is_subset(&volume) {
            return Err(format!("{held:?} are held, but the volume has {volume:?}"));
        }
        let status = self.lender().status().map_err(|error| error.to_string())?;
        if (status.runs, status.lent) != (volume.len() as u64, held.len() as u64) {
            let (runs, held) = (volume.len(), held.len());
            return Err(format!("{held} of {runs} runs are held, not {status:?}"));
        }
        Ok(())
    }
}

/// The complaint of one order of steps.
fn run_one(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let _locks_end_at_once = block_forks();
    let mut random = SmallRng::seed_from_u64(seed);
    let mut model = LenderModel::new(random.next_u32().is_multiple_of(3));
    let _planted = bug.map(plant);
    (0..STEPS).try_for_each(|step| {
        let outcome = model.step(&mut random).and_then(|()| model.check());
        outcome.map_err(|complaint| format!("seed {seed}, step {step}: {complaint}"))
    })
}

#[test]
fn run_is_leased_once_in_any_order() {
    (0..SEEDS).try_for_each(|seed| run_one(seed, None)).unwrap();
}

#[test]
fn planted_bugs_of_leases_are_caught() {
    let bugs =
        [(Bug::LentWithoutAsking, "1 of 4 runs are held, not LenderStatus { runs: 4, lent: 0")];
    for (bug, words) in bugs {
        let caught = (0..SEEDS).find_map(|seed| Some((seed, run_one(seed, Some(bug)).err()?)));
        let (seed, caught) = caught.unwrap_or_else(|| panic!("{bug:?} is not caught"));
        assert_eq!(run_one(seed, None), Ok(()), "without {bug:?}");
        assert!(caught.contains(words), "{bug:?} is caught: {caught}");
    }
}

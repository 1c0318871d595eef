//! Exploration of direct mode: the engine runs on a table of mappings, and a scheduler runs one
//! thread at a time.
//!
//! Every step lets another thread continue, also between two words of a copy. Each thread owns one
//! word of each shared chunk and some chunks alone; each load must return its last store. Not
//! covered: weak memory orders, and switches between two atomic accesses without a step.

use std::collections::HashMap;
use std::sync::Mutex;

use everbyte_crash::schedule::{Schedule, Task};
use everbyte_plant::plant;
use everbyte_testkit::number;
use everbyte_testkit::schedule::{Search, Turns, run_and_check};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::rounds::Round;
use super::*;
use crate::region::units::UnitNo;
use crate::region::units::UnitRun;

/// Threads of a run. The first one makes rounds.
const THREADS: usize = 3;
const CHUNKS: u64 = 6;
/// Chunks shared by all threads.
const SHARED: [u64; 3] = [0, 1, 2];
/// Chunks of one thread each.
const OWN: [u64; THREADS] = [3, 4, 5];
const LIMIT: u64 = 2;
/// Runs enough to keep all chunks within the limit.
const RUNS: usize = 5;
const STEPS: usize = 7;

/// A word of each thread; it lies in the unit of the thread's number.
type Words = [u64; THREADS];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mapping {
    Nothing,
    Dram(Words),
    Run(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct View {
    mapping: Mapping,
    allowed: Permission,
}

const NOTHING: View = View { mapping: Mapping::Nothing, allowed: Permission::Nothing };

/// A table of mappings and runs.
struct Table {
    views: Mutex<[View; index(CHUNKS)]>,
    runs: Mutex<[Words; RUNS]>,
    fails: AtomicBool,
    /// Every nth replacement of a mapping is refused, where this is n; none if it is 0.
    refused_each: AtomicU64,
    replacements: AtomicU64,
    turns: Turns<THREADS>,
}

impl Table {
    fn new() -> Self {
        Self {
            views: Mutex::new([NOTHING; index(CHUNKS)]),
            runs: Mutex::new([[u64::MAX; THREADS]; RUNS]),
            fails: AtomicBool::new(false),
            refused_each: AtomicU64::new(0),
            replacements: AtomicU64::new(0),
            turns: Turns::new(),
        }
    }

    fn view(&self, at: ChunkNo) -> View {
        self.views.lock().unwrap()[index(at.0)]
    }

    fn set(&self, at: ChunkNo, mapping: Mapping, allowed: Permission) {
        self.views.lock().unwrap()[index(at.0)] = View { mapping, allowed };
    }

    /// Makes an access, if the mapping allows it.
    fn access<T>(
        &self,
        at: ChunkNo,
        needs: Permission,
        act: impl FnOnce(&mut Words) -> T,
    ) -> Option<T> {
        let mut views = self.views.lock().unwrap();
        let view = &mut views[index(at.0)];
        let is_allowed = match view.allowed {
            Permission::Nothing => false,
            Permission::Loads => needs == Permission::Loads,
            Permission::Everything => true,
        };
        is_allowed.then(|| match &mut view.mapping {
            Mapping::Nothing => panic!("chunk {at:?} is accessible, and there is nothing"),
            Mapping::Dram(words) => act(words),
            Mapping::Run(run) => act(&mut self.runs.lock().unwrap()[*run]),
        })
    }

    /// Begins to replace a mapping.
    fn replace(&self) -> Result<(), ChunkError> {
        self.step();
        let nth = self.replacements.fetch_add(1, SeqCst) + 1;
        let each = self.refused_each.load(SeqCst);
        if each > 0 && nth.is_multiple_of(each) { Err(ChunkError::Refused) } else { Ok(()) }
    }

    fn check(&self) -> Result<(), ChunkError> {
        if self.fails.load(SeqCst) { Err(ChunkError::StoreFailed) } else { Ok(()) }
    }
}

impl ChunkMemory for Table {
    fn open(&self, at: ChunkNo) -> Result<(), ChunkError> {
        if self.view(at).mapping == Mapping::Nothing {
            self.set(at, Mapping::Dram([0; THREADS]), Permission::Everything);
        }
        self.allow(at, Permission::Everything)
    }

    fn close(&self, at: ChunkNo, _run: Option<RunNo>) -> Result<(), ChunkError> {
        self.set(at, Mapping::Nothing, Permission::Nothing);
        Ok(())
    }

    fn allow(&self, at: ChunkNo, allowed: Permission) -> Result<(), ChunkError> {
        self.set(at, self.view(at).mapping, allowed);
        Ok(())
    }

    fn zero_run(&self, run: RunNo) -> Result<(), ChunkError> {
        for word in 0..THREADS {
            self.step();
            self.runs.lock().unwrap()[index(run.0)][word] = 0;
        }
        self.check()
    }

    fn copy_out(&self, at: ChunkNo, run: RunNo) -> Result<(), ChunkError> {
        for word in 0..THREADS {
            self.step();
            let value = self.access(at, Permission::Loads, |words| words[word]);
            self.runs.lock().unwrap()[index(run.0)][word] = value.expect("it may be loaded");
        }
        self.check()
    }

    fn map_run(&self, at: ChunkNo, run: RunNo) -> Result<(), ChunkError> {
        self.replace()?;
        self.set(at, Mapping::Run(index(run.0)), Permission::Everything);
        Ok(())
    }

    fn move_in(&self, at: ChunkNo, run: RunNo) -> Result<(), ChunkError> {
        let mut copy = [0; THREADS];
        for (word, to) in copy.iter_mut().enumerate() {
            self.step();
            *to = self.runs.lock().unwrap()[index(run.0)][word];
        }
        self.replace()?;
        self.set(at, Mapping::Dram(copy), Permission::Everything);
        Ok(())
    }

    fn zero(&self, at: ChunkNo, units: std::ops::Range<u64>) {
        for word in (0..THREADS).filter(|word| units.contains(&(*word as u64))) {
            self.access(at, Permission::Everything, |words| words[word] = 0)
                .expect("it is accessible");
        }
    }

    fn now_ns(&self) -> u64 {
        self.turns.count()
    }

    fn pause(&self, tries: u32) {
        self.turns.pause(tries);
    }

    fn step(&self) {
        self.turns.step();
    }
}

type Sim = Chunks<Table>;

fn sim_with(free_runs: usize, limit: u64, bound: u64) -> Sim {
    let slots = SlotMap::new(RUNS as u64 * CHUNK_UNITS);
    slots.free_run(SlotNo(0), free_runs as u64 * CHUNK_UNITS);
    let settings = DirectSettings { units: CHUNKS * CHUNK_UNITS, limit, slot_hint: SlotNo(0) };
    Chunks::new(Table::new(), Arc::new(slots), Budget::new(bound, || Some(0)), &settings)
}

fn sim(free_runs: usize) -> Sim {
    sim_with(free_runs, LIMIT, 1 << 40)
}

/// Makes an access as the processor does: again after each fault.
fn access<T>(chunks: &Sim, at: u64, needs: Permission, act: impl Fn(&mut Words) -> T) -> T {
    for _ in 0..10_000 {
        chunks.memory.step();
        if let Some(done) = chunks.memory.access(ChunkNo(at), needs, &act) {
            return done;
        }
        chunks.fault(ChunkNo(at), needs == Permission::Everything).expect("nothing fails here");
    }
    panic!("chunk {at} faults for ever: {:?}", chunks.table.load(ChunkNo(at)));
}

/// A thread and the last store to its word of each chunk.
struct Program<'a> {
    chunks: &'a Sim,
    me: usize,
    stored: Mutex<HashMap<u64, u64>>,
}

impl<'a> Program<'a> {
    fn new(chunks: &'a Sim, me: usize) -> Self {
        Self { chunks, me, stored: Mutex::default() }
    }

    fn load(&self, at: u64) {
        let found = access(self.chunks, at, Permission::Loads, |words| words[self.me]);
        let stored = self.stored.lock().unwrap().get(&at).copied().unwrap_or(0);
        assert_eq!(found, stored, "chunk {at} for thread {}", self.me);
    }

    fn store(&self, at: u64, value: u64) {
        access(self.chunks, at, Permission::Everything, |words| words[self.me] = value);
        self.stored.lock().unwrap().insert(at, value);
    }

    /// Pins a chunk while other threads continue.
    fn pin(&self, at: u64) {
        let run = UnitRun { first: UnitNo(at * CHUNK_UNITS + 7), units: 1 };
        self.chunks.pin(run).expect("it can be pinned");
        let place = |view: View| match view.mapping {
            Mapping::Run(run) => Some(run),
            _ => None,
        };
        let before = self.chunks.memory.view(ChunkNo(at));
        for _ in 0..4 {
            self.chunks.memory.step();
            let now = self.chunks.memory.view(ChunkNo(at));
            assert_eq!(now.allowed, Permission::Everything, "pinned chunk {at} is not accessible");
            assert_eq!(place(now), place(before), "pinned chunk {at} was moved");
        }
        self.chunks.unpin(run).expect("it is pinned");
    }

    /// Discards the thread's own chunk or its own word.
    fn discard(&self, is_whole: bool) {
        let own = OWN[self.me];
        let first = own * CHUNK_UNITS;
        let run = match is_whole {
            true => UnitRun { first: UnitNo(first), units: CHUNK_UNITS },
            false => UnitRun { first: UnitNo(first + self.me as u64), units: 1 },
        };
        self.chunks.discard(run).expect("nobody else uses it");
        self.stored.lock().unwrap().remove(&own);
    }

    fn run(&self, seed: u64) {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut round = Round::new(seed);
        for step in 1..=STEPS {
            let any = [SHARED[0], SHARED[1], SHARED[2], OWN[self.me]];
            let at = any[random.random_range(0..any.len())];
            if self.me == 0 && step == STEPS / 2 && seed % 16 == 7 {
                self.chunks.memory.fails.store(true, SeqCst);
            }
            match random.random_range(0..11) {
                0..3 => self.load(at),
                3..6 => self.store(at, step as u64),
                6 => drop(self.chunks.demote(ChunkNo(at))),
                7 => drop(self.chunks.promote(ChunkNo(at))),
                8 => self.pin(at),
                9 if self.me == 0 => {
                    if self.chunks.begin_round(&mut round) {
                        self.load(at);
                        self.chunks.end_round(&mut round, 1000);
                    }
                }
                9 => self.discard(false),
                _ => self.discard(true),
            }
        }
        self.chunks.memory.step();
    }
}

/// Checks that all state agrees when no operation is in progress.
fn check_settled(chunks: &Sim, runs_all: usize) {
    let mut runs = Vec::new();
    let mut in_dram = 0;
    for at in (0..CHUNKS).map(ChunkNo) {
        let (chunk, view) = (chunks.table.load(at), chunks.memory.view(at));
        assert_eq!(chunk.pins(), 0);
        let expected = match chunk.phase() {
            ChunkPhase::Empty => NOTHING,
            ChunkPhase::Dram => View { allowed: Permission::Everything, ..view },
            ChunkPhase::Direct => {
                let run = chunk.run().map_or(RUNS, |run| index(run.0));
                View { mapping: Mapping::Run(run), allowed: Permission::Everything }
            }
            phase => panic!("{at:?} is {phase:?}"),
        };
        assert_eq!(view, expected, "{at:?} is {chunk:?}");
        let is_dram = matches!(view.mapping, Mapping::Dram(_));
        assert_eq!(is_dram, chunk.is_dram(), "{at:?} is {chunk:?}");
        in_dram += u64::from(is_dram);
        runs.extend(chunk.run());
    }
    assert_eq!(chunks.dram.load(SeqCst), in_dram, "chunks in DRAM");
    let named = runs.len();
    runs.sort_unstable();
    runs.dedup();
    assert_eq!(runs.len(), named, "a run has two chunks");
    assert_eq!(chunks.slots.free_count(), (runs_all - named) as u64 * CHUNK_UNITS, "free slots");
}

/// One run of all threads. In some runs moves are refused or the store fails. Returns the first
/// complaint of a thread.
fn run_one(seed: u64, schedule: &Schedule, bug: Option<Bug>) -> Result<(), String> {
    // In some runs there are too few, and every run is soon another chunk's.
    let runs = if seed.is_multiple_of(3) { RUNS - 2 } else { RUNS };
    let chunks = sim(runs);
    // In some the system refuses moves.
    chunks.memory.refused_each.store([0, 0, 2, 3][index(seed % 4)], SeqCst);
    let programs: Vec<_> = (0..THREADS).map(|me| Program::new(&chunks, me)).collect();
    let task = |program: &'_ Program<'_>| {
        let _planted = bug.map(plant);
        program.run(seed ^ (program.me as u64) << 32);
    };
    let tasks = programs.iter().map(|program| -> Task<'_> { Box::new(move || task(program)) });
    let state = || {
        let words: Vec<_> = (0..CHUNKS).map(|at| chunks.table.load(ChunkNo(at))).collect();
        format!("{words:?}, {:?}", chunks.statistics())
    };
    run_and_check(schedule, tasks.collect(), state, || {
        check_settled(&chunks, runs);
        for program in &programs {
            SHARED.iter().chain([&OWN[program.me]]).for_each(|&at| program.load(at));
        }
        check_settled(&chunks, runs);
    })
}

const SEARCH: Search<Bug> = Search { threads: THREADS, delays_max: [151, 211], run: run_one };

#[test]
fn no_order_of_steps_loses_a_chunk() {
    let seeds = number("EVERBYTE_SCHEDULES", 500);
    assert_eq!(SEARCH.find(seeds, None), None);
}

#[test]
fn planted_bugs_of_chunk_moves_are_caught() {
    let bugs =
        [(Bug::CopiedBeforeFrozen, "chunk 0 for thread"), (Bug::RunFreedBeforeMoved, "free slots")];
    bugs.into_iter().for_each(|(bug, words)| SEARCH.assert_caught(bug, words));
}

#[test]
fn new_chunks_take_dram_then_runs() {
    let chunks = sim(RUNS);
    let program = Program::new(&chunks, 0);
    (0..CHUNKS).for_each(|at| program.store(at, at + 1));
    let statistics = chunks.statistics();
    assert_eq!(statistics.units_resident, LIMIT * CHUNK_UNITS);
    assert_eq!(statistics.units_direct, (CHUNKS - LIMIT) * CHUNK_UNITS);
    assert_eq!(statistics.units_over_limit, 0);
    (0..CHUNKS).for_each(|at| program.load(at));
    check_settled(&chunks, RUNS);
}

#[test]
fn full_store_costs_dram_but_no_chunk() {
    let chunks = sim(1);
    let program = Program::new(&chunks, 0);
    (0..CHUNKS).for_each(|at| program.store(at, at + 1));
    assert!(chunks.is_full());
    let statistics = chunks.statistics();
    assert_eq!(statistics.units_over_limit, (CHUNKS - LIMIT - 1) * CHUNK_UNITS);
    assert_eq!(chunks.demote(ChunkNo(0)), Ok(false), "there is no run");
    (0..CHUNKS).for_each(|at| program.load(at));
    check_settled(&chunks, 1);
}

#[test]
fn failed_store_gets_no_more_chunks() {
    let chunks = sim(RUNS);
    let program = Program::new(&chunks, 0);
    (0..=LIMIT).for_each(|at| program.store(at, at + 1));
    chunks.memory.fails.store(true, SeqCst);
    assert_eq!(chunks.demote(ChunkNo(0)), Err(ChunkError::StoreFailed));
    assert!(chunks.has_failed());
    (LIMIT + 1..CHUNKS).for_each(|at| program.store(at, at + 1));
    assert_eq!(chunks.statistics().units_direct, CHUNK_UNITS, "what was there before stays");
    (0..CHUNKS).for_each(|at| program.load(at));
    check_settled(&chunks, RUNS);
}

#[test]
fn chunk_with_refused_move_stays() {
    let chunks = sim(RUNS);
    let program = Program::new(&chunks, 0);
    (0..=LIMIT).for_each(|at| program.store(at, at + 1));
    chunks.limit.store(CHUNKS, SeqCst);
    chunks.memory.refused_each.store(1, SeqCst);
    let before =
        [0, LIMIT].map(|at| (chunks.table.load(ChunkNo(at)), chunks.memory.view(ChunkNo(at))));
    assert_eq!(chunks.demote(ChunkNo(0)), Err(ChunkError::Refused));
    assert_eq!(chunks.promote(ChunkNo(LIMIT)), Err(ChunkError::Refused));
    let after =
        [0, LIMIT].map(|at| (chunks.table.load(ChunkNo(at)), chunks.memory.view(ChunkNo(at))));
    assert_eq!(after, before);
    let statistics = chunks.statistics();
    assert_eq!((statistics.units_in, statistics.units_out), (0, 0));
    check_settled(&chunks, RUNS);
    chunks.memory.refused_each.store(0, SeqCst);
    assert_eq!((chunks.demote(ChunkNo(0)), chunks.promote(ChunkNo(LIMIT))), (Ok(true), Ok(true)));
    (0..=LIMIT).for_each(|at| program.load(at));
    check_settled(&chunks, RUNS);
}

#[test]
fn no_chunk_moves_at_mapping_bound() {
    let chunks = sim_with(RUNS, LIMIT, 0);
    let program = Program::new(&chunks, 0);
    (0..CHUNKS).for_each(|at| program.store(at, at + 1));
    assert!(!chunks.begin_round(&mut Round::new(1)));
    chunks.set_limit(0);
    assert_eq!(chunks.statistics().units_resident, LIMIT * CHUNK_UNITS);
    chunks.set_limit(CHUNKS);
    let all = UnitRun { first: UnitNo(0), units: CHUNKS * CHUNK_UNITS };
    assert_eq!(chunks.prefetch(all), Ok(LIMIT * CHUNK_UNITS));
    assert!(chunks.statistics().moves_refused >= 3);
    check_settled(&chunks, RUNS);
}

#[test]
fn lower_limit_demotes_and_prefetch_promotes() {
    let chunks = sim(RUNS);
    let program = Program::new(&chunks, 0);
    (0..CHUNKS - 1).for_each(|at| program.store(at, at + 1));
    let all = UnitRun { first: UnitNo(3), units: CHUNKS * CHUNK_UNITS - 3 };
    chunks.pin(UnitRun { first: UnitNo(0), units: 1 }).unwrap();
    chunks.set_limit(0);
    assert_eq!(chunks.statistics().units_resident, CHUNK_UNITS, "what is pinned stays");
    assert_eq!(chunks.units_direct(all), (CHUNKS - 2) * CHUNK_UNITS);
    chunks.unpin(UnitRun { first: UnitNo(0), units: 1 }).unwrap();
    chunks.set_limit(4);
    assert_eq!(chunks.prefetch(all), Ok(4 * CHUNK_UNITS - 3));
    (0..CHUNKS - 1).for_each(|at| program.load(at));
    check_settled(&chunks, RUNS);
}

#[test]
fn hot_chunk_replaces_untouched_chunk() {
    let chunks = sim(RUNS);
    let program = Program::new(&chunks, 0);
    (0..CHUNKS).for_each(|at| program.store(at, at + 1));
    let mut round = Round::new(3);
    for _ in 0..64 {
        assert!(chunks.begin_round(&mut round));
        program.load(CHUNKS - 1);
        chunks.end_round(&mut round, 1 << 40);
    }
    let statistics = chunks.statistics();
    assert!(chunks.table.load(ChunkNo(CHUNKS - 1)).is_dram(), "{statistics:?}");
    assert_eq!(statistics.units_in, CHUNK_UNITS, "and nothing else moves: {statistics:?}");
    assert_eq!(statistics.units_out, CHUNK_UNITS);
    assert_eq!(statistics.chunks_touched, statistics.faults_load, "{statistics:?}");
    (0..CHUNKS).for_each(|at| program.load(at));
    check_settled(&chunks, RUNS);
}

#[test]
fn no_watch_without_possible_exchange() {
    let chunks = sim(RUNS);
    let program = Program::new(&chunks, 0);
    (0..LIMIT).for_each(|at| program.store(at, 1));
    assert!(!chunks.begin_round(&mut Round::new(1)), "everything is in DRAM");
    let chunks = sim_with(RUNS, 0, 1 << 40);
    Program::new(&chunks, 0).store(0, 1);
    assert!(!chunks.begin_round(&mut Round::new(1)), "there is no DRAM");
    assert_eq!(chunks.statistics().chunks_watched, 0);
}

#[test]
fn pin_keeps_whole_chunks() {
    let chunks = sim(RUNS);
    let program = Program::new(&chunks, 0);
    program.store(0, 1);
    let (first, rest) = (
        UnitRun { first: UnitNo(0), units: 1 },
        UnitRun { first: UnitNo(2), units: 2 * CHUNK_UNITS },
    );
    assert_eq!(chunks.unpin(first), Err(RangeError::BadPin(ChunkNo(0))));
    chunks.pin(rest).unwrap();
    assert_eq!(chunks.demote(ChunkNo(0)), Ok(false));
    assert!(!chunks.watch(ChunkNo(0), 0));
    assert_eq!(chunks.discard(first), Err(RangeError::Pinned(UnitNo(0))));
    assert_eq!(chunks.statistics().units_pinned, 2 * CHUNK_UNITS);
    let more = UnitRun { first: UnitNo(0), units: CHUNKS * CHUNK_UNITS };
    assert_eq!(chunks.unpin(more), Err(RangeError::BadPin(ChunkNo(3))), "and none is unpinned");
    chunks.unpin(rest).unwrap();
    assert_eq!(chunks.demote(ChunkNo(0)), Ok(true));
    program.load(0);
    chunks.discard(more).unwrap();
    assert_eq!((chunks.statistics().units_resident, chunks.statistics().units_direct), (0, 0));
}

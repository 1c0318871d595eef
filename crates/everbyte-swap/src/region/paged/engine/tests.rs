//! Exploration of the pager: its code runs on a table, and a scheduler runs one thread at a time.
//!
//! Every step of the pager lets another thread continue. Each thread owns one word of each shared
//! unit and some units alone; each load must return its last store. Not covered: weak memory
//! orders, and switches between two atomic accesses without a step.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use everbyte_crash::schedule::{self, Schedule, Task};
use everbyte_plant::plant;
use everbyte_testkit::number;
use everbyte_testkit::schedule::{Search, Turns, run_and_check};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::plant::Bug;
use crate::region::paged::memory::{Memory, MemoryError};
use crate::region::paged::unit::Phase;
use crate::region::units::UnitRun;

/// Threads of a run.
const THREADS: usize = 3;
const UNITS: u64 = 40;
const SLOTS: u64 = 6;
const LIMIT: u64 = 4;
/// Units shared by all threads, in two windows.
const SHARED: [u64; 4] = [0, 1, 17, 18];
/// Units of one thread each.
const OWN: [u64; THREADS] = [2, 3, 33];
const STEPS: usize = 7;

type Words = [u64; THREADS];

#[derive(Clone, Copy)]
struct Page {
    words: Words,
    protected: bool,
}

/// A table of pages and slots.
struct Table {
    pages: Mutex<HashMap<u64, Page>>,
    slots: Mutex<[Words; index(SLOTS)]>,
    turns: Turns<THREADS>,
    zaps: AtomicU64,
    /// Each so-many-th zap takes its first run away and fails.
    failing_zaps: Mutex<Option<(u64, MemoryError)>>,
    /// No unit gets a page, for this reason.
    refuses_pages: Mutex<Option<MemoryError>>,
}

impl Table {
    fn new() -> Self {
        let garbage = [[u64::MAX; THREADS]; index(SLOTS)];
        Self {
            pages: Mutex::new(HashMap::new()),
            slots: Mutex::new(garbage),
            turns: Turns::new(),
            zaps: AtomicU64::new(0),
            failing_zaps: Mutex::new(None),
            refuses_pages: Mutex::new(None),
        }
    }

    fn set_protected(&self, run: UnitRun, protected: bool) {
        let mut pages = self.pages.lock().unwrap();
        for at in run.first.0..run.first.0 + run.units {
            if let Some(page) = pages.get_mut(&at) {
                page.protected = protected;
            }
        }
    }

    fn put(&self, at: u64, page: Page) -> Result<(), MemoryError> {
        if let Some(reason) = *self.refuses_pages.lock().unwrap() {
            return Err(reason);
        }
        let mut pages = self.pages.lock().unwrap();
        if pages.contains_key(&at) {
            return Err(MemoryError::AlreadyThere);
        }
        pages.insert(at, page);
        Ok(())
    }

    /// One thread's word of a page, because copying a page takes several steps.
    fn word(&self, at: UnitNo, word: usize) -> u64 {
        self.pages.lock().unwrap().get(&at.0).map_or(0, |page| page.words[word])
    }
}

impl Memory for Table {
    fn copy_in(
        &self,
        at: UnitNo,
        slot: SlotNo,
        units: u64,
        protected: bool,
    ) -> Result<u64, MemoryError> {
        for nth in 0..units {
            self.step();
            let words = self.slots.lock().unwrap()[index(slot.0 + nth)];
            self.put(at.0 + nth, Page { words, protected })?;
        }
        Ok(units)
    }

    fn zero_in(&self, at: UnitNo, units: u64, _is_store: bool) -> Result<u64, MemoryError> {
        for nth in 0..units {
            self.step();
            self.put(at.0 + nth, Page { words: [0; THREADS], protected: false })?;
        }
        Ok(units)
    }

    fn protect(&self, run: UnitRun) -> Result<(), MemoryError> {
        self.set_protected(run, true);
        Ok(())
    }

    fn unprotect(&self, run: UnitRun) -> Result<(), MemoryError> {
        self.set_protected(run, false);
        Ok(())
    }

    fn zap(&self, runs: &[UnitRun]) -> Result<(), MemoryError> {
        let nth = self.zaps.fetch_add(1, SeqCst) + 1;
        let failing = *self.failing_zaps.lock().unwrap();
        let failing = failing.filter(|(each, _)| nth.is_multiple_of(*each));
        for run in runs {
            self.step();
            let mut pages = self.pages.lock().unwrap();
            for at in run.first.0..run.first.0 + run.units {
                pages.remove(&at);
            }
            if let Some((_, error)) = failing {
                return Err(error);
            }
        }
        Ok(())
    }

    fn is_zero(&self, at: UnitNo) -> bool {
        (0..THREADS).all(|word| {
            self.step();
            self.word(at, word) == 0
        })
    }

    fn copy_out(&self, at: UnitNo, slot: SlotNo) {
        for word in 0..THREADS {
            self.step();
            self.slots.lock().unwrap()[index(slot.0)][word] = self.word(at, word);
        }
    }

    fn check_copied(&self) -> Result<(), MemoryError> {
        Ok(())
    }

    fn pause(&self, tries: u32) {
        self.turns.pause(tries);
    }

    fn step(&self) {
        self.turns.step();
    }
}

type Sim = Pager<Table>;

fn sim(tracks_stores: bool, free_slots: u64) -> Sim {
    sim_with(tracks_stores, free_slots, false)
}

fn sim_with(tracks_stores: bool, free_slots: u64, grows: bool) -> Sim {
    let slots = SlotMap::new(SLOTS);
    slots.free_run(SlotNo(0), free_slots);
    let options =
        PagerOptions { limit: LIMIT, slot_hint: SlotNo(0), read_ahead: 4, tracks_stores, grows };
    Pager::new(Table::new(), UNITS, Arc::new(slots), &options).expect("there is memory")
}

/// Makes an access as the processor does: again after each fault.
fn access<T>(pager: &Sim, at: u64, is_store: bool, mut act: impl FnMut(&mut Page) -> T) -> T {
    for _ in 0..10_000 {
        pager.memory.step();
        let mut pages = pager.memory.pages.lock().unwrap();
        let is_present = match pages.get_mut(&at) {
            Some(page) if !(is_store && page.protected) => return act(page),
            found => found.is_some(),
        };
        drop(pages);
        pager.fault(UnitNo(at), Access { is_store, is_present }).expect("nothing fails here");
    }
    panic!("unit {at} faults for ever: {:?}", pager.units.load(UnitNo(at)));
}

/// A thread and the last store to its word of each unit.
struct Program<'a> {
    pager: &'a Sim,
    me: usize,
    stored: Mutex<HashMap<u64, u64>>,
}

impl Program<'_> {
    fn load(&self, at: u64) {
        let found = access(self.pager, at, false, |page| page.words[self.me]);
        let stored = self.stored.lock().unwrap().get(&at).copied().unwrap_or(0);
        assert_eq!(found, stored, "unit {at} for thread {}", self.me);
    }

    fn store(&self, at: u64, value: u64) {
        access(self.pager, at, true, |page| page.words[self.me] = value);
        self.stored.lock().unwrap().insert(at, value);
    }

    /// Pins a unit while other threads continue.
    fn pin(&self, at: u64) {
        let run = UnitRun { first: UnitNo(at), units: 1 };
        if self.pager.pin(run).is_err() {
            return;
        }
        for _ in 0..4 {
            self.pager.memory.step();
            let pages = self.pager.memory.pages.lock().unwrap();
            let page = pages.get(&at).copied();
            drop(pages);
            assert!(page.is_some_and(|page| !page.protected), "pinned unit {at} is gone");
        }
        self.pager.unpin(run).expect("it is pinned");
    }

    fn discard(&self) {
        let own = OWN[self.me];
        let run = UnitRun { first: UnitNo(own), units: 1 };
        match self.pager.discard(run) {
            Ok(()) => drop(self.stored.lock().unwrap().remove(&own)),
            // The unit may still hold its old contents.
            Err(RangeError::Zap(..)) => self.store(own, 0),
            Err(error) => panic!("nobody else uses it: {error:?}"),
        }
    }

    /// Closes a unit while other threads fault there, and opens it again.
    fn close(&self) {
        let own = OWN[self.me];
        let run = UnitRun { first: UnitNo(own), units: 1 };
        let is_closed = self.pager.close(run).is_ok();
        for _ in 0..4 {
            self.pager.memory.step();
            let is_visible = self.pager.memory.pages.lock().unwrap().contains_key(&own);
            assert!(!(is_closed && is_visible), "unit {own} is visible while closed");
        }
        self.pager.open(run);
        if is_closed {
            self.stored.lock().unwrap().remove(&own);
        } else {
            self.store(own, 0);
        }
    }

    /// A fault at another thread's unit, closed or not.
    fn fault_elsewhere(&self) {
        let other = OWN[(self.me + 1) % THREADS];
        self.pager.fault(UnitNo(other), Access::LOAD).expect("nothing fails here");
    }

    fn run(&self, seed: u64) {
        let mut random = SmallRng::seed_from_u64(seed);
        for step in 1..=STEPS {
            let any = [SHARED[0], SHARED[1], SHARED[2], SHARED[3], OWN[self.me]];
            let at = any[random.random_range(0..any.len())];
            match random.random_range(0..12) {
                0..3 => self.load(at),
                3..6 => self.store(at, step as u64),
                6 => self.store(at, 0),
                7 => drop(self.pager.try_evict()),
                8 => self.pin(at),
                9 => self.discard(),
                10 => self.close(),
                _ => self.fault_elsewhere(),
            }
        }
        self.pager.memory.step();
    }
}

/// Checks that all state agrees when no operation is in progress.
fn check_settled(pager: &Sim, slots_all: u64) {
    let pages = pager.memory.pages.lock().unwrap();
    let mut slots = Vec::new();
    for at in (0..UNITS).map(UnitNo) {
        let unit = pager.units.load(at);
        assert!(!matches!(unit.phase(), Phase::Busy | Phase::WritingBack), "{at:?} is {unit:?}");
        assert_eq!(unit.pins(), 0);
        assert_eq!(unit.is_resident(), pages.contains_key(&at.0), "{at:?} is {unit:?}");
        let is_visited = !unit.is_resident() || pager.windows.is_free(at.0 / WINDOW);
        assert!(is_visited, "the evictor does not know of {at:?}, {unit:?}");
        if let Some(page) = pages.get(&at.0) {
            assert_eq!(page.protected, unit.phase() == Phase::Clean, "{at:?} is {unit:?}");
        }
        slots.extend(unit.slot());
    }
    assert_eq!(pager.resident.load(SeqCst), pages.len() as u64, "resident units");
    let phases = (0..UNITS).map(|at| pager.units.load(UnitNo(at)).phase());
    let used = phases.filter(|phase| !matches!(phase, Phase::Empty | Phase::Closed)).count();
    assert_eq!(pager.units_used(), used as u64, "used units");
    let named = slots.len() as u64;
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots.len() as u64, named, "a slot has two units");
    assert_eq!(pager.slots.free_count(), slots_all - named, "free slots");
}

/// One run of all threads. Returns the first complaint of a thread.
fn run_one(seed: u64, schedule: &Schedule, bug: Option<Bug>) -> Result<(), String> {
    // In some runs there are too few, and every slot is soon another unit's.
    let slots = if seed.is_multiple_of(3) { SLOTS / 2 } else { SLOTS };
    let pager = sim(!seed.is_multiple_of(4), slots);
    // This mistake ignores the outcome, so a failure would hide it.
    if seed % 16 == 15 && bug != Some(Bug::StoredBeforeZapped) {
        *pager.memory.failing_zaps.lock().unwrap() = Some((2, MemoryError::Again));
    }
    let programs: Vec<_> =
        (0..THREADS).map(|me| Program { pager: &pager, me, stored: Mutex::default() }).collect();
    let task = |program: &'_ Program<'_>| {
        let _planted = bug.map(plant);
        program.run(seed ^ (program.me as u64) << 32);
    };
    let tasks = programs.iter().map(|program| -> Task<'_> { Box::new(move || task(program)) });
    let state = || {
        let units: Vec<_> = (0..UNITS).map(|at| (at, pager.units.load(UnitNo(at)))).collect();
        let used = units.iter().filter(|(_, unit)| *unit != Unit::EMPTY).collect::<Vec<_>>();
        format!("{used:?}, {:?}", pager.statistics())
    };
    run_and_check(schedule, tasks.collect(), state, || {
        check_settled(&pager, slots);
        for program in &programs {
            SHARED.iter().chain([&OWN[program.me]]).for_each(|&at| program.load(at));
        }
        check_settled(&pager, slots);
    })
}

const SEARCH: Search<Bug> = Search { threads: THREADS, delays_max: [211, 307], run: run_one };

#[test]
fn no_order_of_steps_loses_a_page() {
    let seeds = number("EVERBYTE_SCHEDULES", 1000);
    assert_eq!(SEARCH.find(seeds, None), None);
}

#[test]
fn every_planted_bug_is_caught() {
    let bugs = [
        (Bug::SlotFreedBeforeFill, "unit 1 for thread"),
        (Bug::TwoFillers, "nothing fails here: DescriptorLost"),
        (Bug::CopiedBeforeProtected, "pinned unit 0 is gone"),
        (Bug::StoredBeforeZapped, "nothing fails here: DescriptorLost"),
        (Bug::FilledWhileClosed, "is visible while closed"),
    ];
    bugs.into_iter().for_each(|(bug, words)| SEARCH.assert_caught(bug, words));
}

/// If one thread pins a unit while another discards it, the unit stays, or it was discarded before.
#[test]
fn unit_pinned_during_discard_stays() {
    for seed in 0..200 {
        let pager = sim(true, SLOTS);
        let program = Program { pager: &pager, me: 0, stored: Mutex::default() };
        program.store(0, 1);
        let give_up = || match pager.discard(UnitRun { first: UnitNo(0), units: 1 }) {
            Ok(()) | Err(RangeError::Pinned(UnitNo(0))) => {}
            Err(error) => panic!("nothing else is in the way: {error:?}"),
        };
        let tasks: Vec<Task<'_>> = vec![Box::new(|| program.pin(0)), Box::new(give_up)];
        let run = schedule::run(&Schedule::Seeded(seed), tasks);
        assert_eq!(run.trouble, None, "seed {seed}");
        assert_eq!(pager.statistics().units_pinned, 0, "seed {seed}");
        check_settled(&pager, SLOTS);
    }
}

/// A region with enough slots never finds its store full, for any order of loads and stores: clean
/// units hold slots too, and their eviction frees them.
#[test]
fn slots_needed_suffice_for_eviction() {
    let units = (1..=UNITS).rfind(|&units| slots_needed(units, LIMIT) <= SLOTS).unwrap();
    for seed in 0..200 {
        let pager = sim(true, slots_needed(units, LIMIT));
        let program = Program { pager: &pager, me: 0, stored: Mutex::default() };
        (0..units).for_each(|at| program.store(at, at + 1));
        let mut random = SmallRng::seed_from_u64(seed);
        for step in 0..200 {
            let at = random.random_range(0..units);
            match random.random_range(0..8) {
                0 => program.store(at, step + 1),
                1 => program.store(at, 0),
                2 => drop(pager.try_evict()),
                _ => program.load(at),
            }
            let Statistics { units_resident, units_over_limit, slots_free, .. } =
                pager.statistics();
            assert!(
                !pager.is_full(),
                "{units_resident} resident, {slots_free} free at step {step}"
            );
            assert_eq!(units_over_limit, 0, "{slots_free} free at step {step} of seed {seed}");
        }
    }
}

/// All pages removed before the failure are restored, even if the system has no page at that
/// moment.
#[test]
fn zap_failing_half_way_loses_no_page() {
    // Far apart, so each is a separate run; one holds zeroes.
    let values = [(0, 1), (2, 2), (17, 3), (33, 0)];
    for error in [MemoryError::Locked, MemoryError::Again] {
        for (refuses_pages, pins) in [(false, false), (true, false), (true, true)] {
            let pager = sim(true, SLOTS);
            let program = Program { pager: &pager, me: 0, stored: Mutex::default() };
            values.iter().for_each(|&(at, value)| program.store(at, value));
            *pager.memory.failing_zaps.lock().unwrap() = Some((1, error));
            let refused = refuses_pages.then_some(MemoryError::Again);
            *pager.memory.refuses_pages.lock().unwrap() = refused;
            assert!(matches!(pager.try_evict(), Progress::Evicted(0)));
            *pager.memory.refuses_pages.lock().unwrap() = None;
            let failure = (error == MemoryError::Locked).then_some(PagingFailure::Locked);
            assert_eq!((pager.failure(), pager.is_doubtful()), (failure, refuses_pages));
            if pins {
                values.iter().filter(|(_, value)| *value > 0).for_each(|&(at, _)| program.pin(at));
            }
            values.iter().for_each(|&(at, _)| program.load(at));
            values.iter().for_each(|&(at, _)| program.store(at, at + 9));
            *pager.memory.failing_zaps.lock().unwrap() = None;
            // The first time some count as used.
            let evicted = (0..2).filter(|_| matches!(pager.try_evict(), Progress::Evicted(1..)));
            assert_eq!(evicted.count() > 0, failure.is_none());
            values.iter().for_each(|&(at, _)| program.load(at));
            check_settled(&pager, SLOTS);
        }
    }
}

/// A fault without system memory can be repeated: the unit loses no bytes.
#[test]
fn fault_without_memory_succeeds_later() {
    let pager = sim(true, SLOTS);
    let program = Program { pager: &pager, me: 0, stored: Mutex::default() };
    program.store(0, 1);
    assert!(matches!(pager.try_evict(), Progress::Evicted(1)));
    *pager.memory.refuses_pages.lock().unwrap() = Some(MemoryError::Again);
    let is_over = AtomicBool::new(false);
    let fault = || {
        let error = pager.fault(UnitNo(0), Access::LOAD).unwrap_err();
        assert!(error == FaultError::NoMemory && !error.is_final());
        is_over.store(true, SeqCst);
    };
    // The waiting thread needs another thread to run.
    let step = || (0..).take_while(|_| !is_over.load(SeqCst)).for_each(|_| pager.memory.step());
    let tasks: Vec<Task<'_>> = vec![Box::new(fault), Box::new(step)];
    assert_eq!(schedule::run(&Schedule::Seeded(1), tasks).trouble, None);
    *pager.memory.refuses_pages.lock().unwrap() = Some(MemoryError::Unreadable);
    let error = pager.fault(UnitNo(0), Access::LOAD).unwrap_err();
    assert!(error == FaultError::Unreadable && error.is_final());
    *pager.memory.refuses_pages.lock().unwrap() = None;
    program.load(0);
    check_settled(&pager, SLOTS);
}

/// If a unit with a missing page cannot be pinned, the error is the reason of the failed
/// restoration.
#[test]
fn pin_of_unreadable_unit_is_error() {
    let pager = sim(true, SLOTS);
    let program = Program { pager: &pager, me: 0, stored: Mutex::default() };
    program.store(0, 1);
    *pager.memory.failing_zaps.lock().unwrap() = Some((1, MemoryError::Again));
    *pager.memory.refuses_pages.lock().unwrap() = Some(MemoryError::Unreadable);
    assert!(matches!(pager.try_evict(), Progress::Evicted(0)));
    let pinned = pager.pin(UnitRun { first: UnitNo(0), units: 1 });
    let expected = RangeError::Fault { at: UnitNo(0), error: FaultError::Unreadable };
    assert_eq!(pinned, Err(expected));
    assert_eq!((pager.failure(), pager.statistics().units_pinned), (None, 0));
    *pager.memory.refuses_pages.lock().unwrap() = None;
    program.pin(0);
    program.load(0);
}

#[test]
fn full_store_costs_dram_but_no_page() {
    let pager = sim(true, 2);
    let program = Program { pager: &pager, me: 0, stored: Mutex::default() };
    (0..UNITS).for_each(|at| program.store(at, at + 1));
    let statistics = pager.statistics();
    assert!(pager.is_full());
    assert_eq!((statistics.units_resident, statistics.slots_free), (UNITS - 2, 0));
    assert!(statistics.units_over_limit > 0);
    (0..UNITS).for_each(|at| program.load(at));
    // Room in the store is used as soon as there is some.
    pager.slots.free_run(SlotNo(2), SLOTS - 2);
    while !matches!(pager.try_evict(), Progress::Evicted(0)) {}
    assert_eq!(pager.statistics().slots_free, 0);
    (0..UNITS).for_each(|at| program.load(at));
}

/// A fault without a slot waits for growth, stays within the limit, and loses no page.
#[test]
fn fault_without_slot_waits_for_growth() {
    let units = (1..=UNITS).rfind(|&units| slots_needed(units, LIMIT) <= SLOTS).unwrap();
    for seed in 0..50 {
        let pager = sim_with(true, 0, true);
        let program = Program { pager: &pager, me: 0, stored: Mutex::default() };
        let is_over = AtomicBool::new(false);
        let fill = || {
            (0..units).for_each(|at| program.store(at, at + 1));
            (0..units).for_each(|at| program.load(at));
            is_over.store(true, SeqCst);
        };
        let grow = || {
            let mut slots = 0;
            while !is_over.load(SeqCst) {
                pager.memory.step();
                if let Some(Shortage::Now) = pager.shortage(u32::MAX) {
                    assert!(slots < SLOTS, "more slots are wanted than the units need");
                    pager.slots.free_run(SlotNo(slots), 1);
                    slots += 1;
                    pager.note_growth(Shortage::Now, true);
                }
            }
        };
        let tasks: Vec<Task<'_>> = vec![Box::new(fill), Box::new(grow)];
        assert_eq!(schedule::run(&Schedule::Seeded(seed), tasks).trouble, None, "seed {seed}");
        assert_eq!(pager.statistics().units_over_limit, 0);
        assert_eq!(pager.units_used(), units);
    }
}

/// A refusal ends the wait: the unit exceeds the limit.
#[test]
fn refused_growth_costs_dram_but_no_page() {
    let pager = sim_with(true, 0, true);
    let program = Program { pager: &pager, me: 0, stored: Mutex::default() };
    let is_over = AtomicBool::new(false);
    let fill = || {
        (0..UNITS).for_each(|at| program.store(at, at + 1));
        is_over.store(true, SeqCst);
    };
    let refuse = || {
        while !is_over.load(SeqCst) {
            pager.memory.step();
            if let Some(shortage) = pager.shortage(u32::MAX) {
                pager.note_growth(shortage, false);
            }
        }
    };
    let tasks: Vec<Task<'_>> = vec![Box::new(fill), Box::new(refuse)];
    assert_eq!(schedule::run(&Schedule::Seeded(1), tasks).trouble, None);
    assert_eq!(pager.statistics().units_resident, UNITS);
    (0..UNITS).for_each(|at| program.load(at));
}

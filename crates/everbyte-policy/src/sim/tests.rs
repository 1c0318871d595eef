//! The simulator's counts against a slow, obvious count: the actions of each access become a list
//! of single steps of memory and of the backing device, and every figure is a walk over that list.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::access::{Access, Op, PAGE_BYTES, PageAddress, PageNo, PageTrace};
use crate::policy::{
    Action, AddressedPages, Arc, Belady, CleanVictims, Clock, ClockDwf, ClockMigration, Dense,
    Everbyte, FourQueue, Hybrid, HybridConfig, Lru, MClock, Pdram, Policy, S3Fifo, Sieve, Spitfire,
    SpitfireConfig, Tier, WTinyLfu,
};

const PAGES: u32 = 60;

/// One step of memory or of the backing device.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Step {
    /// A request is served from memory: an operation of it.
    Served(Op, Tier, u64),
    /// The bytes of a whole page come from or go to DRAM, for something else.
    DramRead,
    DramWrite,
    /// The same of SCM, which is an operation.
    ScmRead,
    ScmWrite(Why),
    StorageRead(PageAddress),
    StorageWrite(PageAddress),
    FetchSaved,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Why {
    Filled,
    Lowered,
}

/// Steps, and the bytes written to each frame of SCM.
struct Log {
    steps: Vec<Step>,
    found: Vec<(Op, Option<Tier>)>,
    actions: BTreeMap<(&'static str, &'static str), u64>,
    frame_bytes: Vec<u64>,
    free: Vec<usize>,
    frame_of: BTreeMap<u32, usize>,
    /// Dirty pages, and all pages that have a copy in DRAM.
    dirty: BTreeSet<u32>,
    in_dram: BTreeSet<u32>,
}

impl Log {
    fn of<P: Policy>(mut policy: P, scm_frames: usize, trace: &PageTrace) -> Self {
        let mut log = Self {
            steps: Vec::new(),
            found: Vec::new(),
            actions: BTreeMap::new(),
            frame_bytes: vec![0; scm_frames],
            free: (0..scm_frames).rev().collect(),
            frame_of: BTreeMap::new(),
            dirty: BTreeSet::new(),
            in_dram: BTreeSet::new(),
        };
        for &access in &trace.accesses {
            let mut actions = Vec::new();
            policy.access(access, &mut actions);
            for action in actions {
                log.take(access, action, trace);
            }
        }
        log
    }

    fn wear(&mut self, page: PageNo, bytes: u64) {
        self.frame_bytes[self.frame_of[&page.0]] += bytes;
    }

    fn enter_scm(&mut self, page: PageNo) {
        let frame = self.free.pop().expect("a frame is free");
        assert_eq!(self.frame_of.insert(page.0, frame), None);
    }

    fn leave(&mut self, page: PageNo, from: Tier) {
        match from {
            Tier::Dram => assert!(self.in_dram.remove(&page.0)),
            Tier::Scm => {
                let frame = self.frame_of.remove(&page.0).expect("it was in SCM");
                self.free.push(frame);
            }
        }
    }

    fn lower(&mut self, page: PageNo) {
        self.steps.extend([Step::DramRead, Step::ScmWrite(Why::Lowered)]);
        self.wear(page, 4096);
    }

    fn served(&mut self, access: Access, tier: Tier) {
        let bytes = u64::from(access.len);
        self.steps.push(Step::Served(access.op, tier, bytes));
        if access.op == Op::Write && tier == Tier::Scm {
            self.wear(access.page, bytes);
        }
    }

    fn take(&mut self, access: Access, action: Action, trace: &PageTrace) {
        let mut count = |action, why: crate::policy::Reason| {
            *self.actions.entry((action, why.name())).or_default() += 1;
        };
        let name = by_tier::<&'static str>;
        match action {
            Action::Hit { found, served } => {
                self.found.push((access.op, Some(found)));
                self.served(access, served);
            }
            Action::Fill { page, tier, why } => {
                count(name(tier, "fill_dram", "fill_scm"), why);
                self.found.push((access.op, None));
                let whole = access.op == Op::Write && u32::from(access.len) == PAGE_BYTES;
                let address = trace.addresses[page.0 as usize];
                self.steps.push(if whole { Step::FetchSaved } else { Step::StorageRead(address) });
                // The access itself is part of filling.
                match tier {
                    Tier::Dram => {
                        self.in_dram.insert(page.0);
                        self.steps.push(Step::DramWrite);
                    }
                    Tier::Scm => {
                        self.enter_scm(page);
                        self.steps.push(Step::ScmWrite(Why::Filled));
                        self.wear(page, 4096);
                    }
                }
            }
            Action::Move { page, to, why, .. } => {
                count(name(to, "to_dram", "to_scm"), why);
                if to == Tier::Scm {
                    self.leave(page, Tier::Dram);
                    self.enter_scm(page);
                    self.lower(page);
                } else {
                    self.leave(page, Tier::Scm);
                    self.in_dram.insert(page.0);
                    self.steps.extend([Step::ScmRead, Step::DramWrite]);
                }
            }
            Action::Copy { page, why } => {
                count("copy_to_dram", why);
                self.in_dram.insert(page.0);
                self.steps.extend([Step::ScmRead, Step::DramWrite]);
            }
            Action::Update { page, why, .. } => {
                count("update_scm", why);
                self.lower(page);
            }
            Action::Drop { page, from, why } => {
                count(name(from, "drop_dram", "drop_scm"), why);
                self.leave(page, from);
            }
            Action::Evict { page, from, why } => {
                count(name(from, "evict_dram", "evict_scm"), why);
                self.leave(page, from);
                self.dirty.remove(&page.0);
                self.steps.push(by_tier(from, Step::DramRead, Step::ScmRead));
                self.steps.push(Step::StorageWrite(trace.addresses[page.0 as usize]));
            }
        }
        if matches!(action, Action::Hit { .. } | Action::Fill { .. }) && access.op == Op::Write {
            self.dirty.insert(access.page.0);
        }
    }

    fn found(&self, op: Op, at: Option<Tier>) -> u64 {
        self.found.iter().filter(|found| **found == (op, at)).count() as u64
    }

    fn hits(&self, op: Op) -> Hits {
        Hits {
            dram: self.found(op, Some(Tier::Dram)),
            scm: self.found(op, Some(Tier::Scm)),
            missed: self.found(op, None),
        }
    }

    /// The sizes of those steps to which `bytes` gives one.
    fn sizes(&self, bytes: impl Fn(&Step) -> Option<u64>) -> Vec<u64> {
        self.steps.iter().filter_map(bytes).collect()
    }

    fn written_to_scm(&self) -> ScmWrites {
        let in_place = self.sizes(|step| match step {
            Step::Served(Op::Write, Tier::Scm, bytes) => Some(*bytes),
            _ => None,
        });
        let pages = |wanted| self.sizes(|step| (*step == Step::ScmWrite(wanted)).then_some(4096));
        let (filled, lowered) = (pages(Why::Filled), pages(Why::Lowered));
        let all = [in_place.clone(), filled.clone(), lowered.clone()].concat();
        let reads = self.sizes(|step| match step {
            Step::Served(Op::Read, Tier::Scm, bytes) => Some(*bytes),
            Step::ScmRead => Some(4096),
            _ => None,
        });
        ScmWrites {
            writes: all.len() as u64,
            writes_up_to_512_bytes: all.iter().filter(|bytes| **bytes <= 512).count() as u64,
            bytes: all.iter().sum(),
            bytes_in_place: in_place.iter().sum(),
            bytes_filled: filled.iter().sum(),
            bytes_moved: lowered.iter().sum(),
            reads: reads.len() as u64,
            bytes_read: reads.iter().sum(),
        }
    }

    fn backing(&self) -> BackingSteps {
        let addresses = |wanted: fn(&Step) -> Option<PageAddress>| -> Vec<PageAddress> {
            self.steps.iter().filter_map(wanted).collect()
        };
        let read = addresses(|step| match step {
            Step::StorageRead(address) => Some(*address),
            _ => None,
        });
        let written = addresses(|step| match step {
            Step::StorageWrite(address) => Some(*address),
            _ => None,
        });
        BackingSteps {
            pages_read: read.len() as u64,
            read_jumps: jumps(&read),
            pages_written: written.len() as u64,
            write_jumps: jumps(&written),
            fetches_saved: self.steps.iter().filter(|step| **step == Step::FetchSaved).count()
                as u64,
            dirty_at_end: self.dirty.len() as u64,
        }
    }

    fn drain(&self, trace: &PageTrace) -> Drain {
        let addresses: Vec<_> =
            self.dirty.iter().map(|page| trace.addresses[*page as usize]).collect();
        Drain {
            pages: self.dirty.len() as u64,
            pages_from_scm: self.dirty.difference(&self.in_dram).count() as u64,
            write_jumps: jumps(&addresses),
        }
    }

    /// Returns the time step by step. A step without a separate operation costs only its lines.
    fn elapsed(&self, costs: &Costs) -> f64 {
        let lines = |bytes: u64| real(bytes) / 64.0;
        let serve = |op, memory: &MemoryCosts, bytes| {
            let line = if op == Op::Read { memory.read_line_ns } else { memory.write_line_ns };
            memory.operation_ns + lines(bytes) * line
        };
        let backing = &costs.backing;
        let (mut read, mut written) = (None, None);
        let mut time = 0.0;
        for step in &self.steps {
            time += match *step {
                Step::Served(op, Tier::Dram, bytes) => serve(op, &costs.dram, bytes),
                Step::Served(op, Tier::Scm, bytes) => serve(op, &costs.scm, bytes),
                Step::DramRead => lines(4096) * costs.dram.read_line_ns,
                Step::DramWrite => lines(4096) * costs.dram.write_line_ns,
                Step::ScmRead => serve(Op::Read, &costs.scm, 4096),
                Step::ScmWrite(_) => serve(Op::Write, &costs.scm, 4096),
                Step::FetchSaved => 0.0,
                Step::StorageRead(here) => {
                    let jump = is_jump(read.replace(here), here);
                    backing.read_page_ns + if jump { backing.read_jump_ns } else { 0.0 }
                }
                Step::StorageWrite(here) => {
                    let jump = is_jump(written.replace(here), here);
                    let turn = backing.turn_ns / f64::from(backing.batch_writes);
                    backing.write_page_ns + turn + if jump { backing.write_jump_ns } else { 0.0 }
                }
            };
        }
        time
    }

    fn drain_time(&self, costs: &Costs, trace: &PageTrace) -> f64 {
        let mut before = None;
        let mut time = if self.dirty.is_empty() { 0.0 } else { costs.backing.turn_ns };
        for page in &self.dirty {
            let here = trace.addresses[*page as usize];
            time += costs.backing.write_page_ns;
            if is_jump(before.replace(here), here) {
                time += costs.backing.write_jump_ns;
            }
            time += if self.in_dram.contains(page) {
                64.0 * costs.dram.read_line_ns
            } else {
                costs.scm.operation_ns + 64.0 * costs.scm.read_line_ns
            };
        }
        time
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts of small traces")]
fn real(count: u64) -> f64 {
    count as f64
}

fn by_tier<T>(tier: Tier, dram: T, scm: T) -> T {
    if tier == Tier::Dram { dram } else { scm }
}

/// Returns true if a step is not 1 to 8 pages after the one before, on the same device.
fn is_jump(before: Option<PageAddress>, here: PageAddress) -> bool {
    let goes_on = |before: PageAddress| {
        before.device == here.device && (1..=8).any(|gap| before.page + gap == here.page)
    };
    !before.is_some_and(goes_on)
}

fn jumps(addresses: &[PageAddress]) -> u64 {
    let before = |at: usize| at.checked_sub(1).map(|before| addresses[before]);
    (0..addresses.len()).filter(|&at| is_jump(before(at), addresses[at])).count() as u64
}

fn log(kind: Kind, spec: &Spec, trace: &PageTrace) -> Log {
    let (storage, capacity) = (Dense { pages: PAGES }, spec.capacity());
    let frames = capacity.scm as usize;
    match kind {
        Kind::Everbyte => {
            let storage = AddressedPages(&trace.addresses);
            let policy = Everbyte::new(storage, capacity, spec.small_write_bytes, spec.costs);
            Log::of(policy, frames, trace)
        }
        Kind::Hybrid => Log::of(Hybrid::new(storage, capacity, spec.hybrid()), frames, trace),
        Kind::HybridDrop => {
            let config = HybridConfig { clean_victims: CleanVictims::Drop, ..spec.hybrid() };
            Log::of(Hybrid::new(storage, capacity, config), frames, trace)
        }
        Kind::HybridDropUnused => {
            let config = HybridConfig { clean_victims: CleanVictims::DropUnused, ..spec.hybrid() };
            Log::of(Hybrid::new(storage, capacity, config), frames, trace)
        }
        Kind::Belady => Log::of(Belady::new(storage, capacity, &trace.accesses), frames, trace),
        Kind::ClockMigration => Log::of(ClockMigration::new(storage, capacity), frames, trace),
        Kind::ClockDwf => Log::of(ClockDwf::new(storage, capacity), frames, trace),
        Kind::MClock => Log::of(MClock::new(storage, capacity), frames, trace),
        Kind::FourQueue => Log::of(FourQueue::new(storage, capacity), frames, trace),
        Kind::Pdram => Log::of(Pdram::new(storage, capacity), frames, trace),
        Kind::Spitfire => {
            Log::of(Spitfire::new(storage, capacity, SpitfireConfig::default()), frames, trace)
        }
        Kind::Lru => Log::of(Lru::new(storage, capacity), frames, trace),
        Kind::Clock => Log::of(Clock::new(storage, capacity), frames, trace),
        Kind::Sieve => Log::of(Sieve::new(storage, capacity), frames, trace),
        Kind::S3Fifo => Log::of(S3Fifo::new(storage, capacity), frames, trace),
        Kind::Arc => Log::of(Arc::new(storage, capacity), frames, trace),
        Kind::WTinyLfu => Log::of(WTinyLfu::new(storage, capacity), frames, trace),
    }
}

fn trace() -> impl Strategy<Value = PageTrace> {
    let length = prop_oneof![Just(4096_u16), 500..530_u16, 1..4096_u16];
    let page = prop_oneof![0..PAGES, 0..PAGES / 4];
    let access =
        (page, length, any::<u16>(), any::<bool>()).prop_map(|(page, len, start, write)| Access {
            page: PageNo(page),
            start: start % (4097 - len),
            len,
            op: if write { Op::Write } else { Op::Read },
        });
    // Gaps about as wide as the widest without a jump, on up to three devices.
    let place = (0..3_u32, prop_oneof![4 => 1..3_u64, 1 => 7..11_u64]);
    let places = proptest::collection::vec(place, PAGES as usize);
    (proptest::collection::vec(access, 1..600), places).prop_map(|(accesses, mut places)| {
        places.sort_by_key(|place| place.0);
        let mut at = 0;
        let addresses = places.into_iter().map(|(device, gap)| {
            at += gap;
            PageAddress { device, page: at }
        });
        let requests = accesses.len() as u64;
        PageTrace { accesses, addresses: addresses.collect(), requests }
    })
}

fn spec() -> impl Strategy<Value = Spec> {
    let backing =
        prop_oneof![Just(BackingCosts::HDD), Just(BackingCosts::SD_CARD), Just(BackingCosts::SSD),];
    (2..50_u32, 1..4_u32, 1..4_u32, 0..1000_u16, backing).prop_map(
        |(pages, dram_parts, scm_parts, small_write_bytes, backing)| Spec {
            dram_parts,
            scm_parts,
            small_write_bytes,
            costs: Costs::with_backing(backing),
            ..Spec::new(pages).expect("two pages are enough")
        },
    )
}

fn is_close(ours: f64, theirs: f64) -> bool {
    (ours - theirs).abs() <= 1e-9 * theirs.abs()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_count_is_the_slow_count(trace in trace(), spec in spec()) {
        for kind in Kind::ALL {
            let outcome = run(kind, &spec, &trace);
            let log = log(kind, &spec, &trace);
            prop_assert_eq!(outcome.reads, log.hits(Op::Read), "{}", kind);
            prop_assert_eq!(outcome.writes, log.hits(Op::Write), "{}", kind);
            prop_assert_eq!(outcome.scm, log.written_to_scm(), "{}", kind);
            prop_assert_eq!(outcome.backing, log.backing(), "{}", kind);
            prop_assert_eq!(outcome.drain, log.drain(&trace), "{}", kind);
            let counted = outcome.actions.iter().map(|count| {
                ((count.action.as_str(), count.reason.as_str()), count.count)
            });
            let slow = log.actions.iter().map(|(name, count)| (*name, *count));
            prop_assert_eq!(
                counted.collect::<BTreeMap<_, _>>(), slow.collect::<BTreeMap<_, _>>(), "{}", kind
            );
            let elapsed = log.elapsed(&spec.costs);
            prop_assert!(is_close(outcome.elapsed_ns, elapsed), "{}: {}", kind, elapsed);
            let drained = elapsed + log.drain_time(&spec.costs, &trace);
            prop_assert!(is_close(outcome.elapsed_with_drain_ns, drained), "{}: {}", kind, drained);
        }
    }

    #[test]
    fn wear_is_the_bytes_of_each_frame(trace in trace(), spec in spec()) {
        for kind in Kind::ALL {
            let outcome = run(kind, &spec, &trace);
            let bytes = log(kind, &spec, &trace).frame_bytes;
            let frames = if kind.has_two_tiers() { bytes.len() } else { 0 };
            let wear = &outcome.wear;
            prop_assert_eq!(wear.bytes_max, bytes.iter().copied().max().unwrap_or(0));
            prop_assert_eq!(bytes.iter().sum::<u64>(), outcome.scm.bytes);
            if frames > 0 {
                let mean = real(outcome.scm.bytes) / real(frames as u64);
                prop_assert!(is_close(wear.bytes_mean, mean));
                prop_assert_eq!(wear.frames, frames as u64);
                for (class, &count) in wear.histogram.iter().enumerate() {
                    let range = if class == 0 { 0..1 } else { 1_u64 << (class - 1)..1 << class };
                    let those = bytes.iter().filter(|bytes| range.contains(*bytes)).count();
                    prop_assert_eq!(count, those as u64, "{}, class {}", kind, class);
                }
                prop_assert_eq!(wear.histogram.iter().sum::<u64>(), frames as u64);
            }
        }
    }
}

/// The ratios that the paper measured on a board with PRAM.
#[test]
fn small_scm_writes_are_2_to_32_times_cheaper() {
    let scm = Costs::default().scm;
    let write = |bytes: f64| scm.operation_ns + bytes / 64.0 * scm.write_line_ns;
    let times = |bytes: f64| write(4096.0) / write(bytes);
    assert!((31.5..32.5).contains(&times(2.0)), "{}", times(2.0));
    assert!((1.9..2.1).contains(&times(2048.0)), "{}", times(2048.0));
}

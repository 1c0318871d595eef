//! Counts what a policy asks for.
//!
//! Invariant: a page in PRAM has a frame of its own; a frame that became free last is used next.

use super::costs::{Costs, follows};
use super::drain::Drain;
use super::kind::Kind;
use super::outcome::{ActionCount, Hits, Outcome, PramWrites, StorageSteps, Wear};
use super::spec::Spec;
use crate::access::{Access, Op, PAGE_BYTES, PageAddress, PageNo, PageTrace};
use crate::policy::{Action, Actions, Reason, Tier};

const ACTION_NAMES: [&str; 10] = [
    "fill_dram",
    "fill_pram",
    "to_pram",
    "to_dram",
    "copy_to_dram",
    "drop_dram",
    "drop_pram",
    "evict_dram",
    "evict_pram",
    "update_pram",
];
const PAGE: u64 = PAGE_BYTES as u64;
const READ: usize = Op::Read as usize;
const WRITTEN: usize = Op::Write as usize;

/// Counts of one run, while it goes on.
pub(super) struct Recorder<'a> {
    addresses: &'a [PageAddress],
    access: Access,
    /// Accesses that found their page, by operation and tier.
    hits: [[u64; 2]; 2],
    /// Accesses that did not, by operation.
    missed: [u64; 2],
    pram: PramWrites,
    /// Bytes read from and written to DRAM.
    dram_bytes: [u64; 2],
    /// Accesses that found their page in PRAM and were served in DRAM.
    taken_up: u64,
    storage: StorageSteps,
    last_read: Option<PageNo>,
    last_written: Option<PageNo>,
    actions: [[u64; Reason::ALL.len()]; ACTION_NAMES.len()],
    frames: Frames,
}

struct Frames {
    frame_of: Vec<u32>,
    free: Vec<u32>,
    bytes: Vec<u64>,
}

impl Frames {
    fn wear(&mut self, page: PageNo, bytes: u64) {
        self.bytes[self.frame_of[page.0 as usize] as usize] += bytes;
    }

    fn take(&mut self, page: PageNo) {
        self.frame_of[page.0 as usize] = self.free.pop().expect("PRAM is never over its capacity");
    }

    fn give_back(&mut self, page: PageNo) {
        self.free.push(self.frame_of[page.0 as usize]);
    }
}

impl<'a> Recorder<'a> {
    pub(super) fn new(trace: &'a PageTrace, pram_frames: u32) -> Self {
        Self {
            addresses: &trace.addresses,
            access: Access { page: PageNo(0), start: 0, len: 1, op: Op::Read },
            hits: [[0; 2]; 2],
            missed: [0; 2],
            pram: PramWrites::default(),
            dram_bytes: [0; 2],
            taken_up: 0,
            storage: StorageSteps::default(),
            last_read: None,
            last_written: None,
            actions: [[0; Reason::ALL.len()]; ACTION_NAMES.len()],
            frames: Frames {
                frame_of: vec![0; trace.pages()],
                free: (0..pram_frames).rev().collect(),
                bytes: vec![0; pram_frames as usize],
            },
        }
    }

    /// The access that the next actions belong to.
    #[inline]
    pub(super) fn begin(&mut self, access: Access) {
        self.access = access;
    }

    #[inline]
    fn hit(&mut self, found: Tier, served: Tier) {
        self.hits[self.access.op as usize][found as usize] += 1;
        let bytes = u64::from(self.access.len);
        match (served, self.access.op) {
            (Tier::Dram, op) => self.dram_bytes[op as usize] += bytes,
            (Tier::Pram, Op::Read) => self.read_pram(bytes),
            (Tier::Pram, Op::Write) => {
                self.pram.bytes_in_place += bytes;
                self.write_pram(self.access.page, bytes);
            }
        }
        self.taken_up += u64::from(found != served);
    }

    fn read_pram(&mut self, bytes: u64) {
        self.pram.reads += 1;
        self.pram.bytes_read += bytes;
    }

    fn write_pram(&mut self, page: PageNo, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.pram.writes += 1;
        self.pram.writes_up_to_512_bytes += u64::from(bytes <= 512);
        self.pram.bytes += bytes;
        self.frames.wear(page, bytes);
    }

    fn fill(&mut self, page: PageNo, tier: Tier) {
        self.missed[self.access.op as usize] += 1;
        if self.access.op == Op::Write && u32::from(self.access.len) == PAGE_BYTES {
            self.storage.fetches_saved += 1;
        } else {
            self.storage.pages_read += 1;
            self.storage.read_jumps += u64::from(!follows(self.addresses, self.last_read, page));
            self.last_read = Some(page);
        }
        match tier {
            Tier::Dram => self.dram_bytes[WRITTEN] += PAGE,
            Tier::Pram => {
                self.frames.take(page);
                self.pram.bytes_filled += PAGE;
                self.write_pram(page, PAGE);
            }
        }
    }

    fn moved(&mut self, page: PageNo, to: Tier, bytes: u64) {
        match to {
            Tier::Pram => {
                self.frames.take(page);
                self.lowered(page, bytes);
            }
            Tier::Dram => {
                self.frames.give_back(page);
                self.copied_up(bytes);
            }
        }
    }

    fn lowered(&mut self, page: PageNo, bytes: u64) {
        self.dram_bytes[READ] += bytes;
        self.pram.bytes_moved += bytes;
        self.write_pram(page, bytes);
    }

    fn copied_up(&mut self, bytes: u64) {
        self.read_pram(bytes);
        self.dram_bytes[WRITTEN] += bytes;
    }

    fn evict(&mut self, page: PageNo, from: Tier) {
        self.storage.pages_written += 1;
        self.storage.write_jumps += u64::from(!follows(self.addresses, self.last_written, page));
        self.last_written = Some(page);
        match from {
            Tier::Dram => self.dram_bytes[READ] += PAGE,
            Tier::Pram => {
                self.frames.give_back(page);
                self.read_pram(PAGE);
            }
        }
    }

    fn count(&mut self, action: usize, why: Reason) {
        self.actions[action][why as usize] += 1;
    }

    /// The counts, once the trace is over.
    pub(super) fn finish(
        self,
        policy: Kind,
        spec: &Spec,
        trace: &PageTrace,
        drain: &Drain,
    ) -> Outcome {
        let hits = |op: Op| {
            let [dram, pram] = self.hits[op as usize];
            Hits { dram, pram, missed: self.missed[op as usize] }
        };
        let mut outcome = Outcome {
            version: Outcome::VERSION,
            policy,
            spec: *spec,
            requests: trace.requests,
            footprint_pages: trace.pages() as u64,
            reads: hits(Op::Read),
            writes: hits(Op::Write),
            pram: self.pram,
            dram_bytes_read: self.dram_bytes[READ],
            dram_bytes_written: self.dram_bytes[WRITTEN],
            dram_accesses: self.hits[READ][0] + self.hits[WRITTEN][0] + self.taken_up,
            storage: StorageSteps { dirty_at_end: drain.pages, ..self.storage },
            actions: named(&self.actions),
            wear: wear(&self.frames.bytes),
            drain: *drain,
            elapsed_ns: 0.0,
            elapsed_with_drain_ns: 0.0,
        };
        outcome.elapsed_ns = Costs::elapsed_ns(&spec.costs, &outcome);
        outcome.elapsed_with_drain_ns = outcome.elapsed_ns + spec.costs.drain_ns(drain);
        outcome
    }
}

impl Actions for Recorder<'_> {
    /// Inlined always: policies know what they ask for, which leaves one arm.
    #[inline(always)]
    fn act(&mut self, action: Action) {
        match action {
            Action::Hit { found, served } => self.hit(found, served),
            Action::Fill { page, tier, why } => {
                self.count(usize::from(tier == Tier::Pram), why);
                self.fill(page, tier);
            }
            Action::Move { page, to, lines, why, .. } => {
                self.count(2 + usize::from(to == Tier::Dram), why);
                self.moved(page, to, u64::from(lines.bytes()));
            }
            Action::Copy { why, .. } => {
                self.count(4, why);
                self.copied_up(PAGE);
            }
            Action::Update { page, lines, why, .. } => {
                self.count(9, why);
                self.lowered(page, u64::from(lines.bytes()));
            }
            Action::Drop { page, from, why } => {
                self.count(5 + usize::from(from == Tier::Pram), why);
                if from == Tier::Pram {
                    self.frames.give_back(page);
                }
            }
            Action::Evict { page, from, why } => {
                self.count(7 + usize::from(from == Tier::Pram), why);
                self.evict(page, from);
            }
        }
    }
}

fn named(counts: &[[u64; Reason::ALL.len()]; ACTION_NAMES.len()]) -> Vec<ActionCount> {
    let rows = ACTION_NAMES.iter().zip(counts);
    rows.flat_map(|(action, counts)| {
        Reason::ALL.iter().zip(counts).map(|(reason, &count)| ActionCount {
            action: (*action).to_owned(),
            reason: reason.name().to_owned(),
            count,
        })
    })
    .filter(|row| row.count > 0)
    .collect()
}

#[allow(clippy::cast_precision_loss, reason = "an average")]
fn wear(bytes: &[u64]) -> Wear {
    let mut histogram = vec![0; 1];
    for &bytes in bytes {
        let class = (u64::BITS - bytes.leading_zeros()) as usize;
        if class >= histogram.len() {
            histogram.resize(class + 1, 0);
        }
        histogram[class] += 1;
    }
    Wear {
        frames: bytes.len() as u64,
        bytes_max: bytes.iter().copied().max().unwrap_or(0),
        bytes_mean: bytes.iter().sum::<u64>() as f64 / bytes.len().max(1) as f64,
        histogram,
    }
}

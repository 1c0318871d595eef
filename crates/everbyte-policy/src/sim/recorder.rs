//! Counts a policy's actions.
//!
//! Invariants: a page in SCM has a frame. The most recently freed frame is used next, and before
//! unused ones. Memory grows with the pages of the trace, not with the frames.

use super::drain::Drain;
use super::outcome::{BackingSteps, Hits, Outcome, ScmWrites, Wear};
use super::spec::Spec;
use crate::access::{Access, Op, PAGE_BYTES, PageAddress, PageNo};
use crate::costs::{Costs, follows};
use crate::policy::{Action, ActionCounts, Actions, Tier};

const PAGE: u64 = PAGE_BYTES as u64;
const READ: usize = Op::Read as usize;
const WRITTEN: usize = Op::Write as usize;

/// Counts of a running simulation.
pub(super) struct Recorder<'a> {
    addresses: &'a [PageAddress],
    access: Access,
    /// Accesses that found their page, by operation and tier.
    hits: [[u64; 2]; 2],
    /// Accesses that did not, by operation.
    missed: [u64; 2],
    scm: ScmWrites,
    /// Bytes read from and written to DRAM.
    dram_bytes: [u64; 2],
    /// Accesses that found their page in SCM and were served in DRAM.
    promoted: u64,
    backing: BackingSteps,
    last_read: Option<PageNo>,
    last_written: Option<PageNo>,
    actions: ActionCounts,
    frames: Frames,
}

struct Frames {
    count: u32,
    frame_of: Vec<u32>,
    /// Freed frames among the used ones.
    free: Vec<u32>,
    /// Bytes written to each used frame. The used frames are the first ones.
    bytes: Vec<u64>,
}

impl Frames {
    fn new(count: u32, pages: usize) -> Self {
        Self { count, frame_of: vec![0; pages], free: Vec::new(), bytes: Vec::new() }
    }

    fn wear(&mut self, page: PageNo, bytes: u64) {
        self.bytes[self.frame_of[page.0 as usize] as usize] += bytes;
    }

    fn take(&mut self, page: PageNo) {
        self.frame_of[page.0 as usize] = self.free.pop().unwrap_or_else(|| self.next());
    }

    /// Returns the first frame that was never used.
    fn next(&mut self) -> u32 {
        let frame = u32::try_from(self.bytes.len()).ok().filter(|frame| *frame < self.count);
        // Counted by frame, not by page: wear belongs to the memory.
        self.bytes.push(0);
        frame.expect("SCM is never over its capacity")
    }

    fn give_back(&mut self, page: PageNo) {
        self.free.push(self.frame_of[page.0 as usize]);
    }
}

impl<'a> Recorder<'a> {
    pub(super) fn new(addresses: &'a [PageAddress], scm_frames: u32) -> Self {
        Self {
            addresses,
            access: Access { page: PageNo(0), start: 0, len: 1, op: Op::Read },
            hits: [[0; 2]; 2],
            missed: [0; 2],
            scm: ScmWrites::default(),
            dram_bytes: [0; 2],
            promoted: 0,
            backing: BackingSteps::default(),
            last_read: None,
            last_written: None,
            actions: ActionCounts::default(),
            frames: Frames::new(scm_frames, addresses.len()),
        }
    }

    /// Begins the access that the next actions belong to.
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
            (Tier::Scm, Op::Read) => self.read_scm(bytes),
            (Tier::Scm, Op::Write) => {
                self.scm.bytes_in_place += bytes;
                self.write_scm(self.access.page, bytes);
            }
        }
        // Served in DRAM although found in SCM: one more access of DRAM than the hits there.
        self.promoted += u64::from(found != served);
    }

    fn read_scm(&mut self, bytes: u64) {
        self.scm.reads += 1;
        self.scm.bytes_read += bytes;
    }

    fn write_scm(&mut self, page: PageNo, bytes: u64) {
        // A write of no bytes touches no line, and must not count as a small write.
        if bytes == 0 {
            return;
        }
        self.scm.writes += 1;
        self.scm.writes_up_to_512_bytes += u64::from(bytes <= 512);
        self.scm.bytes += bytes;
        self.frames.wear(page, bytes);
    }

    fn fill(&mut self, page: PageNo, tier: Tier) {
        self.missed[self.access.op as usize] += 1;
        // A write of the whole page replaces all bytes, so nothing is fetched.
        if self.access.op == Op::Write && u32::from(self.access.len) == PAGE_BYTES {
            self.backing.fetches_saved += 1;
        } else {
            self.backing.pages_read += 1;
            self.backing.read_jumps += u64::from(!follows(self.addresses, self.last_read, page));
            self.last_read = Some(page);
        }
        match tier {
            // Filling writes the whole page to its tier, whatever the access writes.
            Tier::Dram => self.dram_bytes[WRITTEN] += PAGE,
            Tier::Scm => {
                self.frames.take(page);
                self.scm.bytes_filled += PAGE;
                self.write_scm(page, PAGE);
            }
        }
    }

    fn moved(&mut self, page: PageNo, to: Tier) {
        match to {
            Tier::Scm => {
                // Before the write, which wears this frame.
                self.frames.take(page);
                self.lowered(page);
            }
            Tier::Dram => {
                self.frames.give_back(page);
                self.copied_up();
            }
        }
    }

    fn lowered(&mut self, page: PageNo) {
        self.dram_bytes[READ] += PAGE;
        self.scm.bytes_moved += PAGE;
        self.write_scm(page, PAGE);
    }

    fn copied_up(&mut self) {
        self.read_scm(PAGE);
        self.dram_bytes[WRITTEN] += PAGE;
    }

    fn evict(&mut self, page: PageNo, from: Tier) {
        self.backing.pages_written += 1;
        self.backing.write_jumps += u64::from(!follows(self.addresses, self.last_written, page));
        // Writes have a place of their own: reads in between do not make the next write a jump.
        self.last_written = Some(page);
        match from {
            Tier::Dram => self.dram_bytes[READ] += PAGE,
            Tier::Scm => {
                self.frames.give_back(page);
                self.read_scm(PAGE);
            }
        }
    }

    /// Returns the counts, once the trace is over.
    pub(super) fn finish(self, policy: &str, spec: &Spec, requests: u64, drain: &Drain) -> Outcome {
        let hits = |op: Op| {
            let [dram, scm] = self.hits[op as usize];
            Hits { dram, scm, missed: self.missed[op as usize] }
        };
        let mut outcome = Outcome {
            version: Outcome::VERSION,
            policy: policy.to_owned(),
            spec: *spec,
            requests,
            footprint_pages: self.addresses.len() as u64,
            reads: hits(Op::Read),
            writes: hits(Op::Write),
            scm: self.scm,
            dram_bytes_read: self.dram_bytes[READ],
            dram_bytes_written: self.dram_bytes[WRITTEN],
            dram_accesses: self.hits[READ][0] + self.hits[WRITTEN][0] + self.promoted,
            backing: BackingSteps { dirty_at_end: drain.pages, ..self.backing },
            actions: self.actions.named(),
            wear: wear(self.frames.count, &self.frames.bytes),
            drain: *drain,
            elapsed_ns: 0.0,
            elapsed_with_drain_ns: 0.0,
            backing_with_drain_ns: 0.0,
        };
        outcome.elapsed_ns = Costs::elapsed_ns(&spec.costs, &outcome);
        outcome.elapsed_with_drain_ns = outcome.elapsed_ns + spec.costs.drain_ns(drain);
        outcome.backing_with_drain_ns =
            spec.costs.backing_ns(&outcome) + spec.costs.backing_drain_ns(drain);
        outcome
    }
}

impl Actions for Recorder<'_> {
    /// Inlined always: a policy names the kind of each action, which leaves one arm.
    #[inline(always)]
    fn act(&mut self, action: Action) {
        self.actions.count(&action);
        match action {
            Action::Hit { found, served } => self.hit(found, served),
            Action::Fill { page, tier, .. } => self.fill(page, tier),
            Action::Move { page, to, .. } => self.moved(page, to),
            Action::Copy { .. } => self.copied_up(),
            Action::Update { page, .. } => self.lowered(page),
            Action::Drop { page, from: Tier::Scm, .. } => self.frames.give_back(page),
            Action::Drop { .. } => {}
            Action::Evict { page, from, .. } => self.evict(page, from),
        }
    }
}

/// Returns the wear of `frames` frames, of which the first have been written `bytes`, and the others nothing.
#[allow(clippy::cast_precision_loss, reason = "an average")]
fn wear(frames: u32, bytes: &[u64]) -> Wear {
    let frames = u64::from(frames);
    let mut histogram = vec![frames - bytes.len() as u64];
    for &bytes in bytes {
        let class = (u64::BITS - bytes.leading_zeros()) as usize;
        if class >= histogram.len() {
            histogram.resize(class + 1, 0);
        }
        histogram[class] += 1;
    }
    Wear {
        frames,
        bytes_max: bytes.iter().copied().max().unwrap_or(0),
        bytes_mean: bytes.iter().sum::<u64>() as f64 / frames.max(1) as f64,
        histogram,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_grows_with_pages_not_with_frames() {
        let mut frames = Frames::new(u32::MAX, 3);
        let place = |frames: &Frames| frames.frame_of.clone();
        (0..3).for_each(|page| frames.take(PageNo(page)));
        assert_eq!(place(&frames), [0, 1, 2]);
        (0..2).for_each(|page| frames.give_back(PageNo(page)));
        [0, 1].into_iter().for_each(|page| frames.take(PageNo(page)));
        assert_eq!(place(&frames), [1, 0, 2], "the last freed one is used first");
        frames.wear(PageNo(2), 5);
        assert!(frames.bytes.capacity() + frames.free.capacity() < 100);
        let wear = wear(frames.count, &frames.bytes);
        assert_eq!((wear.frames, wear.bytes_max), (u64::from(u32::MAX), 5));
        assert_eq!(wear.histogram, [u64::from(u32::MAX) - 1, 0, 0, 1]);
    }
}

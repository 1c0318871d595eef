//! Actions of the policy, carried out.
//!
//! A decision of the policy is final, so nothing here fails: an error of SCM is noted, and the page
//! stays and is served where it is.

use everbyte_device::DeviceError;
use everbyte_policy::policy::{Action, Tier};
use everbyte_policy::{Access, Op, PageNo};

use crate::frame::{Frame, Span};
use crate::layout::{PAGE, PAGE_U64, Page, Part};
use crate::scm::Mark;
use crate::state::State;

/// The operation of a request on a part of a page.
pub(crate) enum Wanted<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
}

/// Bytes of a page that was not in the cache.
struct Arrival {
    bytes: Box<[u8]>,
    /// Bytes that are newer than those of the backing device.
    written: Span,
}

fn access_of(part: Part, op: Op) -> Access {
    let short = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
    Access { page: PageNo(part.page), start: short(part.start), len: short(part.len), op }
}

impl State {
    /// Serves a part of a page that has a frame.
    pub(crate) fn serve(&mut self, part: Part, wanted: Wanted<'_>) -> Result<(), DeviceError> {
        let op = match wanted {
            Wanted::Read(_) => Op::Read,
            Wanted::Write(_) => Op::Write,
        };
        self.decide(access_of(part, op), None);
        match wanted {
            Wanted::Read(out) => self.read(part.page, part.start, out),
            Wanted::Write(data) => self.write(part.page, part.start, data),
        }
    }

    /// Serves a part of a page that has no frame and whose bytes are `bytes`. A write of the whole
    /// page may pass any bytes.
    pub(crate) fn admit(&mut self, part: Part, mut bytes: Box<[u8]>, wanted: Wanted<'_>) {
        let end = part.start + part.len;
        let is_suspect = self.bypassed.is_suspect(part.page);
        let (op, written) = match wanted {
            Wanted::Read(out) => {
                out.copy_from_slice(&bytes[part.start..end]);
                // The backing device may lose these bytes, so they are written there again.
                (Op::Read, if is_suspect { Span::WHOLE } else { Span::default() })
            }
            Wanted::Write(data) => {
                bytes[part.start..end].copy_from_slice(data);
                (Op::Write, Span { start: part.start, end })
            }
        };
        if op == Op::Write {
            // The cache has its newest bytes now, and writes them back.
            self.bypassed.superseded(u64::from(part.page) * PAGE_U64, PAGE_U64);
        }
        self.decide(access_of(part, op), Some(Arrival { bytes, written }));
    }

    fn decide(&mut self, access: Access, mut arrival: Option<Arrival>) {
        let mut actions = Vec::new();
        self.policy.access(access, &mut actions);
        for action in actions {
            self.counts.count(action);
            self.carry_out(access.page.0, action, &mut arrival);
        }
    }

    fn carry_out(&mut self, accessed: Page, action: Action, arrival: &mut Option<Arrival>) {
        match action {
            Action::Hit { served, .. } => self.settle(accessed, served),
            Action::Fill { page, tier, .. } => {
                if let Some(arrival) = arrival.take() {
                    self.arrive(page.0, arrival);
                } else if let Some(frame) = self.frames.get_mut(&page.0) {
                    frame.pending_writeback = false;
                    self.pending_writeback.remove(&page.0);
                }
                self.settle(page.0, tier);
            }
            Action::Move { page, to, .. } => self.settle(page.0, to),
            Action::Update { page, .. } => self.settle(page.0, Tier::Scm),
            Action::Copy { page, .. } => self.settle(page.0, Tier::Dram),
            Action::Drop { page, .. } | Action::Evict { page, .. } => self.evict(page.0),
        }
    }

    fn arrive(&mut self, page: Page, arrival: Arrival) {
        self.frames.insert(page, Frame::fetched(arrival.bytes));
        if arrival.written.is_empty() {
            return;
        }
        if let Some(frame) = self.frames.get_mut(&page) {
            frame.dram_dirty = arrival.written;
            self.dram_dirty.insert(page);
        }
        self.mark_dirty(page);
    }

    /// Puts a page where the policy wants it.
    fn settle(&mut self, page: Page, tier: Tier) {
        match tier {
            Tier::Dram => {
                self.demotion_failed.remove(&page);
                self.promote(page);
            }
            Tier::Scm if self.frames.get(&page).is_some_and(|frame| frame.dram.is_some()) => {
                self.demote(page);
            }
            Tier::Scm => {}
        }
    }

    /// Tells the policy of the pages found in SCM, in the order of sectors. No page is moved: one
    /// that the policy believes to be in DRAM is promoted when it is next used.
    pub(crate) fn restore(&mut self, found: Vec<(Page, Mark)>) {
        for &(page, mark) in &found {
            self.frames.insert(page, Frame::found(mark));
            self.pending_writeback.insert(page);
            if mark == Mark::Dirty {
                self.dirty.insert(page);
            }
        }
        let mut actions = Vec::new();
        for (page, mark) in found {
            let whole = Part { page, start: 0, len: PAGE, at: 0 };
            let access = match mark {
                Mark::Clean => access_of(whole, Op::Read),
                Mark::Dirty => access_of(Part { len: 64, ..whole }, Op::Write),
            };
            self.policy.access(access, &mut actions);
            for action in actions.drain(..) {
                match action {
                    Action::Fill { page, .. } => {
                        if let Some(frame) = self.frames.get_mut(&page.0) {
                            frame.pending_writeback = false;
                        }
                        self.pending_writeback.remove(&page.0);
                    }
                    Action::Drop { page, .. } | Action::Evict { page, .. } => self.evict(page.0),
                    Action::Hit { .. }
                    | Action::Move { .. }
                    | Action::Copy { .. }
                    | Action::Update { .. } => {}
                }
            }
        }
    }
}

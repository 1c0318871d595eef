//! Actions of the policy, carried out.
//!
//! A decision of the policy is final, so nothing here fails: an error of SCM is noted, and the page
//! stays and is served where it is.

use everbyte_device::DeviceError;
use everbyte_plant::planted;
use everbyte_policy::policy::{Action, Tier};
use everbyte_policy::{Access, Op, PageNo};

use crate::frame::{Bytes, Frame, InDram, Span};
use crate::layout::{PAGE, PAGE_U64, Page, Part};
use crate::plant::Bug;
use crate::references::Reference;
use crate::scm::Mark;
use crate::state::State;

/// The operation of a request on a part of a page.
pub(crate) enum Wanted<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
}

/// Bytes of a page that was not in the cache.
struct Arrival {
    bytes: Bytes,
    /// Bytes that are newer than those of the backing device.
    written: Span,
}

/// Returns what the policy hears of an operation on a part of a page.
pub(crate) fn access_of(part: Part, op: Op) -> Access {
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
    pub(crate) fn admit(&mut self, part: Part, mut bytes: Bytes, wanted: Wanted<'_>) {
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
                (Op::Write, Span::of(part.start, part.len))
            }
        };
        if op == Op::Write {
            // The cache has its newest bytes now, and writes them back.
            self.bypassed.superseded(u64::from(part.page) * PAGE_U64, PAGE_U64);
        }
        self.decide(access_of(part, op), Some(Arrival { bytes, written }));
    }

    fn decide(&mut self, access: Access, mut arrival: Option<Arrival>) {
        if !planted(Bug::DecidedBeforeTold) {
            self.tell_hits();
        }
        let mut actions = std::mem::take(&mut self.actions);
        self.untold_policy.access(access, &mut actions);
        for action in actions.drain(..) {
            self.counts.count(action);
            self.carry_out(access.page.0, action, &mut arrival);
        }
        self.actions = actions;
    }

    /// Tells the policy of the hits that were noted, in the order of each thread. A page that has left the
    /// cache since is none that the policy could still hear of.
    pub(crate) fn tell_hits(&mut self) {
        let mut taken = std::mem::take(&mut self.taken);
        let untold = self.references.take(&mut taken);
        self.counts.stats.hits_dram += untold.dram;
        self.counts.stats.hits_scm += untold.scm;
        self.counts.stats.hits_untold += untold.dram + untold.scm;
        for reference in taken.drain(..) {
            self.tell(reference);
        }
        self.taken = taken;
    }

    fn tell(&mut self, Reference { access, found }: Reference) {
        let page = access.page.0;
        if self.untold_policy.tier_of(page).is_none() && !planted(Bug::GonePageTold) {
            return self.counts.count(Action::Hit { found, served: found });
        }
        let mut actions = std::mem::take(&mut self.actions);
        self.untold_policy.access(access, &mut actions);
        for action in actions.drain(..) {
            self.counts.count(action);
            // A page is where the policy wants it, mostly.
            let is_settled = matches!(action, Action::Hit { served, .. } if served == found);
            if !is_settled || !self.demotion_failed.is_empty() {
                self.carry_out(page, action, &mut None);
            }
        }
        self.actions = actions;
        if access.op == Op::Write && self.frames.look(page, Frame::is_dirty) == Some(false) {
            // It was written back before the policy heard of the write.
            self.untold_policy.cleaned(page);
        }
    }

    fn carry_out(&mut self, accessed: Page, action: Action, arrival: &mut Option<Arrival>) {
        match action {
            Action::Hit { served, .. } => self.settle(accessed, served),
            Action::Fill { page, tier, .. } => {
                if let Some(arrival) = arrival.take() {
                    let Arrival { bytes, written: newer } = arrival;
                    let frame = Frame::fetched(!newer.is_empty());
                    self.insert(page.0, frame, Some(InDram { bytes, newer }));
                } else {
                    self.keep(page.0);
                }
                self.settle(page.0, tier);
            }
            Action::Move { page, to, .. } => self.settle(page.0, to),
            Action::Update { page, .. } => self.settle(page.0, Tier::Scm),
            Action::Copy { page, .. } => self.settle(page.0, Tier::Dram),
            Action::Drop { page, .. } | Action::Evict { page, .. } => self.evict(page.0),
        }
    }

    /// Puts a page where the policy wants it.
    fn settle(&mut self, page: Page, tier: Tier) {
        match tier {
            Tier::Dram => {
                self.demotion_failed.remove(&page);
                self.promote(page);
            }
            Tier::Scm if self.frames.look(page, |frame| frame.in_dram) == Some(true) => {
                self.demote(page);
            }
            Tier::Scm => {}
        }
    }

    /// Tells the policy of the pages found in SCM, in the order of sectors. No page is moved: one
    /// that the policy believes to be in DRAM is promoted when it is next used.
    pub(crate) fn restore(&mut self, found: Vec<(Page, Mark)>) {
        for &(page, mark) in &found {
            self.insert(page, Frame::found(mark), None);
        }
        let mut actions = Vec::new();
        for (page, mark) in found {
            let whole = Part { page, start: 0, len: PAGE, at: 0 };
            let access = match mark {
                Mark::Clean => access_of(whole, Op::Read),
                Mark::Dirty => access_of(Part { len: 64, ..whole }, Op::Write),
            };
            self.untold_policy.access(access, &mut actions);
            for action in actions.drain(..) {
                match action {
                    Action::Fill { page, .. } => self.keep(page.0),
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

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

/// Bytes that an access has for its page, until the page has them.
enum Incoming<'a> {
    /// None; or the page has them.
    Nothing,
    /// All of a page that was not in the cache.
    Absent {
        bytes: Bytes,
        /// Those that are newer than the backing device's.
        written: Span,
    },
    /// The whole of what a page that is in the cache is to become.
    Whole(&'a [u8]),
}

/// Returns what the policy hears of an operation on a part of a page.
pub(crate) fn access_of(part: Part, op: Op) -> Access {
    let short = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
    Access { page: PageNo(part.page), start: short(part.start), len: short(part.len), op }
}

impl State {
    /// Serves a part of a page that has a frame.
    pub(crate) fn serve(&mut self, part: Part, wanted: Wanted<'_>) -> Result<(), DeviceError> {
        match wanted {
            Wanted::Read(out) => {
                self.decide(access_of(part, Op::Read), Incoming::Nothing);
                self.read(part.page, part.start, out)
            }
            Wanted::Write(data) => {
                let whole =
                    if data.len() == PAGE { Incoming::Whole(data) } else { Incoming::Nothing };
                match self.decide(access_of(part, Op::Write), whole) {
                    Incoming::Nothing if data.len() == PAGE => Ok(()),
                    _ => self.write(part.page, part.start, data),
                }
            }
        }
    }

    /// As [`State::serve`], but invalidates a clean page whose bytes SCM cannot read, which the backing device has as
    /// well. Returns false then: nothing was served, and the page is absent.
    pub(crate) fn serve_or_forget(
        &mut self,
        part: Part,
        wanted: Wanted<'_>,
    ) -> Result<bool, DeviceError> {
        match self.serve(part, wanted) {
            Err(error @ DeviceError::Media { .. }) => {
                if self.frames.look(part.page, Frame::is_dirty) != Some(false) {
                    return Err(error);
                }
                self.note(part.page, error);
                self.invalidate(part.page)?;
                Ok(false)
            }
            served => served.map(|()| true),
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
        self.decide(access_of(part, op), Incoming::Absent { bytes, written });
    }

    /// Has the policy decide, and carries out what it decides. Returns what has not become a page's bytes.
    fn decide<'a>(&mut self, access: Access, mut incoming: Incoming<'a>) -> Incoming<'a> {
        if !planted(Bug::DecidedBeforeTold) {
            self.tell_hits();
        }
        let mut actions = std::mem::take(&mut self.actions);
        self.untold_policy.access(access, &mut actions);
        for action in actions.drain(..) {
            self.counts.count(action);
            self.carry_out(access.page.0, action, &mut incoming);
        }
        self.actions = actions;
        incoming
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
                self.carry_out(page, action, &mut Incoming::Nothing);
            }
        }
        self.actions = actions;
        if access.op == Op::Write && self.frames.look(page, Frame::is_dirty) == Some(false) {
            // It was written back before the policy heard of the write.
            self.untold_policy.cleaned(page);
        }
    }

    fn carry_out(&mut self, accessed: Page, action: Action, incoming: &mut Incoming<'_>) {
        match action {
            Action::Hit { served, .. } => self.settle(accessed, served, incoming),
            Action::Fill { page, tier, .. } => {
                match std::mem::replace(incoming, Incoming::Nothing) {
                    Incoming::Absent { bytes, written: newer } => {
                        let frame = Frame::fetched(!newer.is_empty());
                        self.insert(page.0, frame, Some(InDram { bytes, newer }));
                    }
                    present => {
                        *incoming = present;
                        self.keep(page.0);
                    }
                }
                self.settle(page.0, tier, incoming);
            }
            Action::Move { page, to, .. } if page.0 == accessed => {
                self.settle(accessed, to, incoming);
            }
            Action::Move { page, to, .. } => self.settle(page.0, to, &mut Incoming::Nothing),
            Action::Update { page, .. } => {
                self.settle(page.0, Tier::Scm, &mut Incoming::Nothing);
            }
            Action::Copy { page, .. } => {
                self.settle(page.0, Tier::Dram, &mut Incoming::Nothing);
            }
            Action::Drop { page, .. } | Action::Evict { page, .. } => self.evict(page.0),
        }
    }

    /// Puts a page where the policy wants it. All of its bytes may come from the access instead.
    fn settle(&mut self, page: Page, tier: Tier, incoming: &mut Incoming<'_>) {
        match (tier, &*incoming) {
            (Tier::Dram, Incoming::Whole(bytes)) => {
                self.demotion_failed.remove(page);
                if self.replace(page, bytes) {
                    *incoming = Incoming::Nothing;
                }
            }
            (Tier::Dram, _) => {
                self.demotion_failed.remove(page);
                self.promote(page);
            }
            (Tier::Scm, _) if self.frames.look(page, |frame| frame.in_dram) == Some(true) => {
                self.demote(page);
            }
            (Tier::Scm, _) => {}
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

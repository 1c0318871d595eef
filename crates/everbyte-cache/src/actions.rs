//! Actions of the policy, carried out.
//!
//! A decision of the policy is final, so nothing here fails: an error of SCM is noted, and the page
//! stays and is served where it is.

use everbyte_device::DeviceError;
use everbyte_policy::policy::{Action, Tier};
use everbyte_policy::{Access, Op, PageNo};

use crate::frame::{Bytes, DramCopy, Frame, Span};
use crate::hit_log::PendingHit;
use crate::layout::{PAGE, PAGE_U64, Page, Part};
use crate::scm::Mark;
use crate::state::State;

/// The operation of a request on a part of a page.
pub(crate) enum PageOp<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
}

/// Bytes of an access for its page, until the page has them.
enum IncomingBytes<'a> {
    /// None; or the page has them.
    Nothing,
    /// All of a page that was absent.
    Absent {
        bytes: Bytes,
        /// The bytes that are newer than the backing device's.
        written: Span,
    },
    /// The new content of a cached page, as a whole.
    Whole(&'a [u8]),
}

/// Returns the access for the policy of an operation on a part of a page.
pub(crate) fn access_of(part: Part, op: Op) -> Access {
    let short = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
    Access { page: PageNo(part.page), start: short(part.start), len: short(part.len), op }
}

impl State {
    /// Serves a part of a page that has a frame.
    pub(crate) fn serve(&mut self, part: Part, wanted: PageOp<'_>) -> Result<(), DeviceError> {
        match wanted {
            PageOp::Read(out) => {
                self.decide(access_of(part, Op::Read), IncomingBytes::Nothing);
                self.read(part.page, part.start, out)
            }
            PageOp::Write(data) => {
                let whole = if data.len() == PAGE {
                    IncomingBytes::Whole(data)
                } else {
                    IncomingBytes::Nothing
                };
                match self.decide(access_of(part, Op::Write), whole) {
                    // The policy's move to DRAM has taken the bytes already.
                    IncomingBytes::Nothing if data.len() == PAGE => Ok(()),
                    _ => self.write(part.page, part.start, data),
                }
            }
        }
    }

    /// As [`State::serve`], but invalidates a clean page if SCM cannot read its bytes, because the
    /// backing device has them as well. Then it returns false: nothing was served, and the page is
    /// absent.
    pub(crate) fn serve_or_forget(
        &mut self,
        part: Part,
        wanted: PageOp<'_>,
    ) -> Result<bool, DeviceError> {
        match self.serve(part, wanted) {
            Err(error @ DeviceError::Media { .. }) => {
                // SCM may have the only copy of a dirty page, so its error goes to the client.
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

    /// Serves a part of a page without a frame from `bytes`. A write of the whole page may pass any
    /// bytes.
    pub(crate) fn admit(&mut self, part: Part, mut bytes: Bytes, wanted: PageOp<'_>) {
        let end = part.start + part.len;
        let is_suspect = self.bypassed.is_suspect(part.page);
        let (op, written) = match wanted {
            PageOp::Read(out) => {
                out.copy_from_slice(&bytes[part.start..end]);
                // The backing device may lose these bytes, so they are written there again.
                (Op::Read, if is_suspect { Span::WHOLE } else { Span::default() })
            }
            PageOp::Write(data) => {
                bytes[part.start..end].copy_from_slice(data);
                (Op::Write, Span::of(part.start, part.len))
            }
        };
        if op == Op::Write {
            // The cache has its newest bytes now, and writes them back.
            self.bypassed.superseded(u64::from(part.page) * PAGE_U64, PAGE_U64);
        }
        self.decide(access_of(part, op), IncomingBytes::Absent { bytes, written });
    }

    /// Lets the policy decide, and executes its actions. Returns the bytes that no page has taken.
    fn decide<'a>(&mut self, access: Access, mut incoming: IncomingBytes<'a>) -> IncomingBytes<'a> {
        // The policy decides by the order of accesses, so earlier hits come first.
        self.tell_hits();
        let mut actions = std::mem::take(&mut self.actions);
        self.lagging_policy.access(access, &mut actions);
        for action in actions.drain(..) {
            self.counts.count(action);
            self.carry_out(access.page.0, action, &mut incoming);
        }
        self.actions = actions;
        incoming
    }

    /// Reports the noted hits to the policy, in the order of each thread. Skips pages that have
    /// left the cache since.
    pub(crate) fn tell_hits(&mut self) {
        let mut taken = std::mem::take(&mut self.taken);
        let dropped = self.hit_log.take(&mut taken);
        self.counts.stats.hits_dram += dropped.dram;
        self.counts.stats.hits_scm += dropped.scm;
        self.counts.stats.hits_dropped += dropped.dram + dropped.scm;
        for reference in taken.drain(..) {
            self.tell(reference);
        }
        self.taken = taken;
    }

    fn tell(&mut self, PendingHit { access, found }: PendingHit) {
        let page = access.page.0;
        // An access would admit the page again, without a frame and without its bytes.
        if self.lagging_policy.tier_of(page).is_none() {
            return self.counts.count(Action::Hit { found, served: found });
        }
        let mut actions = std::mem::take(&mut self.actions);
        self.lagging_policy.access(access, &mut actions);
        for action in actions.drain(..) {
            self.counts.count(action);
            // A page is where the policy wants it, mostly.
            let is_settled = matches!(action, Action::Hit { served, .. } if served == found);
            if !is_settled || !self.demotion_failed.is_empty() {
                self.carry_out(page, action, &mut IncomingBytes::Nothing);
            }
        }
        self.actions = actions;
        if access.op == Op::Write && self.frames.look(page, Frame::is_dirty) == Some(false) {
            // It was written back before the policy heard of the write.
            self.lagging_policy.cleaned(page);
        }
    }

    fn carry_out(&mut self, accessed: Page, action: Action, incoming: &mut IncomingBytes<'_>) {
        match action {
            Action::Hit { served, .. } => self.settle(accessed, served, incoming),
            Action::Fill { page, tier, .. } => {
                match std::mem::replace(incoming, IncomingBytes::Nothing) {
                    IncomingBytes::Absent { bytes, written: newer } => {
                        let frame = Frame::fetched(!newer.is_empty());
                        self.insert(page.0, frame, Some(DramCopy { bytes, newer }));
                    }
                    present => {
                        *incoming = present;
                        // The page waited for its write-back, so it still has a frame with the
                        // newest bytes.
                        self.keep(page.0);
                    }
                }
                self.settle(page.0, tier, incoming);
            }
            Action::Move { page, to, .. } if page.0 == accessed => {
                self.settle(accessed, to, incoming);
            }
            // The bytes of the access belong to the accessed page alone.
            Action::Move { page, to, .. } => self.settle(page.0, to, &mut IncomingBytes::Nothing),
            Action::Update { page, .. } => {
                self.settle(page.0, Tier::Scm, &mut IncomingBytes::Nothing);
            }
            Action::Copy { page, .. } => {
                self.settle(page.0, Tier::Dram, &mut IncomingBytes::Nothing);
            }
            Action::Drop { page, .. } | Action::Evict { page, .. } => self.evict(page.0),
        }
    }

    /// Puts a page where the policy wants it. All of its bytes may come from the access instead.
    fn settle(&mut self, page: Page, tier: Tier, incoming: &mut IncomingBytes<'_>) {
        match (tier, &*incoming) {
            (Tier::Dram, IncomingBytes::Whole(bytes)) => {
                self.demotion_failed.remove(page);
                // Whole new bytes spare the read of the old ones from SCM.
                if self.replace(page, bytes) {
                    *incoming = IncomingBytes::Nothing;
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

    /// Reports the pages found in SCM to the policy, in the order of sectors. No page is moved: a
    /// page that the policy places in DRAM is promoted at its next use.
    pub(crate) fn restore(&mut self, found: Vec<(Page, Mark)>) {
        for &(page, mark) in &found {
            self.insert(page, Frame::found(mark), None);
        }
        let mut actions = Vec::new();
        for (page, mark) in found {
            let whole = Part { page, start: 0, len: PAGE, at: 0 };
            let access = match mark {
                Mark::Clean => access_of(whole, Op::Read),
                // As a short write: a long one can make a policy promote the page, and nothing
                // moves here.
                Mark::Dirty => access_of(Part { len: 64, ..whole }, Op::Write),
            };
            self.lagging_policy.access(access, &mut actions);
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

//! The paper's policy, run beside ours on the same accesses without any pages of its own, to know
//! at every moment what it would have cost and what it would hold.
//!
//! Invariants: `lost` and `misplaced` hold exactly the pages of our tiers that they describe;
//! `owed` counts the pages that the paper's policy has in PRAM and we do not. All three are kept
//! by [`Shadow::settle`], which is told of every page whose place changes, ours or the shadow's.

use super::super::Policy;
use super::super::action::{Action, Actions, Tier};
use super::super::hybrid::{Hybrid, HybridConfig};
use super::super::residents::Capacity;
use super::super::space::{PageSet, Space, Table};
use crate::access::{Access, Op, PAGE_BYTES, PageNo};

/// How far behind the paper's policy we may fall in hits, as a share of all accesses: a fifth of a
/// percentage point, so that half a point is kept with what still comes after the decision.
const HITS_BEHIND: f64 = 0.002;
/// How far we may be ahead of the paper's policy in bytes written to PRAM, as a share of its own,
const BYTES_AHEAD: f64 = 0.003;
/// and in bytes besides, so that the first pages decide nothing.
const BYTES_AHEAD_MIN: f64 = 65536.0;
/// The share of the pages that the paper's policy has in PRAM, and we do not, that we shall have
/// to write as well once we follow.
const OWED_SHARE: f64 = 0.25;

/// What both policies did up to now.
#[derive(Default)]
struct Ledger {
    hits: u64,
    pram_bytes: u64,
    /// Bytes of the access, if it writes.
    written: u64,
    /// Pages whose place changed in the current access.
    changed: Vec<u32>,
}

impl Actions for Ledger {
    fn act(&mut self, action: Action) {
        match action {
            Action::Hit { served, .. } => {
                self.hits += 1;
                if served == Tier::Pram {
                    self.pram_bytes += self.written;
                }
            }
            Action::Move { page, to, lines, .. } => {
                self.changed.push(page.0);
                if to == Tier::Pram {
                    self.pram_bytes += u64::from(lines.bytes());
                }
            }
            Action::Drop { page, .. } | Action::Evict { page, .. } => self.changed.push(page.0),
            Action::Fill { .. } | Action::Copy { .. } | Action::Update { .. } => {}
        }
    }
}

/// The paper's policy beside ours.
pub(super) struct Shadow<S: Space> {
    paper: Hybrid<S>,
    theirs: Ledger,
    /// What we did.
    pub(super) ours: Counts,
    /// Our pages that the paper's policy would not have, by tier.
    lost: [S::Set; 2],
    /// Pages that we have in DRAM and the paper's policy in PRAM.
    misplaced: S::Set,
    /// Whether a page counts as owed.
    owes: S::Table<bool>,
    owed: u64,
    following: bool,
    /// Accesses since we began or ended to follow.
    since: u64,
    /// Accesses that must pass before we stop following.
    patience: u64,
}

/// Our side of the ledger.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) accesses: u64,
    pub(super) hits: u64,
    pub(super) pram_bytes: u64,
}

impl<S: Space> Shadow<S> {
    pub(super) fn new(space: S, capacity: Capacity, config: HybridConfig) -> Self {
        Self {
            paper: Hybrid::new(space, capacity, config),
            theirs: Ledger::default(),
            ours: Counts::default(),
            lost: [space.set(), space.set()],
            misplaced: space.set(),
            owes: space.table(),
            owed: 0,
            following: false,
            since: 0,
            patience: u64::from(capacity.dram),
        }
    }

    /// Whether we had better do as the paper's policy does.
    #[inline]
    pub(super) fn is_followed(&self) -> bool {
        self.following
    }

    /// Where the paper's policy would have the page.
    #[inline]
    pub(super) fn tier(&self, page: u32) -> Option<Tier> {
        self.paper.residents().tier(PageNo(page))
    }

    /// The next page of our tier that the paper's policy would not have there.
    pub(super) fn next_astray(&self, tier: Tier, from: u32) -> Option<u32> {
        match tier {
            Tier::Dram => {
                let lost = self.lost[0].next_around(from);
                lost.or_else(|| self.misplaced.next_around(from))
            }
            Tier::Pram => self.lost[1].next_around(from),
        }
    }

    /// Whether we use fewer PRAM bytes than the paper's policy by 3% or more.
    pub(super) fn saves_bytes(&self) -> bool {
        real(self.ours.pram_bytes) < 0.97 * real(self.theirs.pram_bytes)
    }

    /// Lets the paper's policy have the access. `place` tells where we have a page.
    pub(super) fn access(&mut self, access: Access, place: impl Fn(u32) -> Option<Tier>) {
        self.ours.accesses += 1;
        self.theirs.written = if access.op == Op::Write { u64::from(access.len) } else { 0 };
        self.paper.access(access, &mut self.theirs);
        self.settle_changed(&place);
        self.settle(access.page.0, place(access.page.0));
        self.steer();
    }

    /// Gives the paper's policy another size as well.
    pub(super) fn resize(&mut self, capacity: Capacity, place: impl Fn(u32) -> Option<Tier>) {
        self.paper.resize(capacity, &mut self.theirs);
        self.settle_changed(&place);
    }

    /// A page is gone from both.
    pub(super) fn remove(&mut self, page: u32) {
        self.paper.remove(PageNo(page));
        self.settle(page, None);
    }

    pub(super) fn cleaned(&mut self, page: u32) {
        self.paper.cleaned(PageNo(page));
    }

    /// A whole page came to our PRAM.
    pub(super) fn count_move(&mut self) {
        self.ours.pram_bytes += u64::from(PAGE_BYTES);
    }

    fn settle_changed(&mut self, place: &impl Fn(u32) -> Option<Tier>) {
        while let Some(page) = self.theirs.changed.pop() {
            self.settle(page, place(page));
        }
    }

    /// Notes where a page is, in our cache and in the paper's.
    pub(super) fn settle(&mut self, page: u32, ours: Option<Tier>) {
        let theirs = self.tier(page);
        put(&mut self.lost[0], page, ours == Some(Tier::Dram) && theirs.is_none());
        put(&mut self.lost[1], page, ours == Some(Tier::Pram) && theirs.is_none());
        put(&mut self.misplaced, page, ours == Some(Tier::Dram) && theirs == Some(Tier::Pram));
        let owes = theirs == Some(Tier::Pram) && ours != Some(Tier::Pram);
        if owes != self.owes.get(page) {
            self.owes.set(page, owes);
            self.owed = if owes { self.owed + 1 } else { self.owed - 1 };
        }
    }

    fn steer(&mut self) {
        self.since += 1;
        let behind = real(self.theirs.hits) - real(self.ours.hits);
        let behind_max = HITS_BEHIND * real(self.ours.accesses) + 1.0;
        let ahead = real(self.ours.pram_bytes) - real(self.theirs.pram_bytes);
        if self.following {
            if behind < behind_max / 2.0 && ahead < 0.0 && self.since > self.patience {
                self.following = false;
                self.since = 0;
            }
            return;
        }
        let owed = OWED_SHARE * f64::from(PAGE_BYTES) * real(self.owed);
        let ahead_max = BYTES_AHEAD * real(self.theirs.pram_bytes) + BYTES_AHEAD_MIN;
        if behind > behind_max || ahead + owed > ahead_max {
            self.grow_patience();
            self.following = true;
            self.since = 0;
        }
    }

    /// Each time that going our own way fails soon, the next try has to wait longer.
    fn grow_patience(&mut self) {
        if self.since < self.patience {
            self.patience = (self.patience * 2).min(1 << 40);
        } else if self.since > self.patience * 8 {
            self.patience = (self.patience / 2).max(1);
        }
    }
}

fn put(set: &mut impl PageSet, page: u32, belongs: bool) {
    if belongs {
        set.insert(page);
    } else {
        set.remove(page);
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts are compared in parts of a thousand")]
fn real(count: u64) -> f64 {
    count as f64
}

//! The policy `everbyte`: caches the pages that the paper's policy would cache, but for a few clean
//! ones, and places each in the tier where it costs least.
//!
//! The paper's policy runs beside this one without any pages. Dirty pages follow it exactly: the
//! same pages are dirty and are written back in the same order, whatever the trace. Clean pages may
//! go sooner or stay longer. The paper's policy writes to SCM by demotions and by writes in place.
//! To write less:
//!
//! - **Clean pages that will hardly be used are dropped from DRAM.** Each clean page that the hand
//!   finds is watched until it is used, or until the paper's policy evicts it. Pages of classes that
//!   are seldom used (see `reuse.rs`) are dropped instead of demoted, and fetched again if that was
//!   wrong.
//! - **Their frames keep pages that the paper's policy evicts.** Such an extra page stays, if it is
//!   clean, until its frame is needed. Its hits pay for pages that were dropped in error.
//! - **DRAM keeps pages that are about to be evicted.** The hands of the paper's policy tell which
//!   pages it evicts next. Such a page stays in DRAM until then and never costs SCM anything;
//!   a page that is likely to stay in the cache is demoted in its stead.
//! - **DRAM keeps pages that are written.** A hand in the order of sectors looks for the victim. It
//!   spares a page that was used since the hand last passed, and one more round for each recent
//!   write, two for a large one. A page of SCM that took many bytes in place is promoted. The
//!   threshold adapts: it is doubled when a promoted page was demoted or evicted before it took a
//!   page's worth of writes, else halved.
//! - **A page is demoted late**: only when DRAM has no frame, and the page that the paper's policy
//!   evicts is in SCM.
//!
//! A budget bounds what this policy may lose against the paper's: its misses and its bytes written
//! to SCM, on any trace. `docs/simulation.md` has the bounds and their proof, lemmas 1 to 7; the
//! code cites them by number.
//!
//! The budget also makes the policy slow to begin: few pages may be misplaced at first, and the
//! savings from those pay for more. On traces that fill the cache once or twice only, it saves
//! little.
//!
//! Not for work that is mostly whole pages written once: they are dirty, and nearly all are
//! demoted. It keeps two directories, and an access costs about three times what it does in
//! `hybrid`.

mod budget;
mod eviction;
mod misses;
mod paper;
mod reuse;

use self::budget::Budget;
use self::paper::Paper;
use self::reuse::{Class, ReuseEstimator};
use super::Policy;
use super::action::{Action, Actions, LineMask, Reason, Tier};
use super::directory::{Capacity, Directory, State};
use super::hybrid::HybridConfig;
use super::storage::{PageSet, Storage, Table};
use crate::access::{Access, Op, PAGE_BYTES, PageNo};

const PAGE: u64 = PAGE_BYTES as u64;
/// Most rounds of the hand that writes spare a page.
const HEAT_MAX: u8 = 3;
/// Lines written in place after which a page is promoted: at first and at least, and at most.
const PROMOTE_LINES_MIN: u16 = 128;
const PROMOTE_LINES_MAX: u16 = 1 << 15;

/// Record of a page that this cache, or the paper's policy, has.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct History {
    /// In DRAM: rounds of the hand that its writes spare it.
    heat: u8,
    /// In DRAM: it was promoted from SCM.
    promoted: bool,
    /// Lines written since it came to its tier.
    lines: u16,
    /// In DRAM: hits since it came, up to [`Class::HITS_MAX`].
    hits: u8,
    /// In DRAM: it was missed right after the page before it.
    sequential: bool,
    /// It was used again when it was watched.
    returned: bool,
    /// Its class when the hand found it, until it is used or evicted.
    watched: Option<Class>,
    /// The paper's policy has it, and this one dropped it.
    dropped: bool,
}

/// The paper's policy with clean pages placed where they cost least, and dropped where they are not
/// worth it.
pub struct Everbyte<S: Storage> {
    pages: Directory<S>,
    dram: S::Set,
    /// Pages that are in DRAM here and in SCM in the paper's policy; and the other way round.
    misplaced: [S::Set; 2],
    /// Clean pages of each tier that the paper's policy evicted.
    extra: [S::Set; 2],
    extra_hands: [u32; 2],
    history: S::Table<History>,
    reuse: ReuseEstimator,
    paper: Paper<S>,
    budget: Budget,
    last_missed: Option<u32>,
    hand: u32,
    promote_lines: u16,
    small_write_bytes: u16,
}

impl<S: Storage> Everbyte<S> {
    /// Makes an empty cache of two tiers. The settings are those of the paper's policy.
    #[must_use]
    pub fn new(storage: S, capacity: Capacity, config: HybridConfig) -> Self {
        Self {
            pages: Directory::new(storage, capacity),
            dram: storage.set(),
            misplaced: [storage.set(), storage.set()],
            extra: [storage.set(), storage.set()],
            extra_hands: [0; 2],
            history: storage.table(),
            reuse: ReuseEstimator::new(),
            paper: Paper::new(storage, capacity, config),
            budget: Budget::default(),
            last_missed: None,
            hand: 0,
            promote_lines: PROMOTE_LINES_MIN,
            small_write_bytes: config.small_write_bytes,
        }
    }

    fn is_over_budget(&self) -> bool {
        self.budget.is_over_budget(&self.paper)
    }

    /// Notes the tiers of a page, here and in the paper's policy.
    fn settle(&mut self, page: u32) {
        let (ours, theirs) = (self.pages.state(page).tier(), self.paper.tier(page));
        let is_misplaced = |tier| ours == Some(tier) && theirs.is_some() && theirs != ours;
        let is_counted = is_misplaced(Tier::Dram);
        if is_counted != self.misplaced[0].contains(page) {
            let count = &mut self.budget.misplaced_pages;
            *count = if is_counted { *count + 1 } else { *count - 1 };
        }
        put(&mut self.misplaced[0], page, is_counted);
        put(&mut self.misplaced[1], page, is_misplaced(Tier::Scm));
    }

    /// Follows the actions of the paper's policy. A page that it evicted is evicted here, unless it
    /// is clean: then it stays as an extra page until its frame is needed.
    fn follow(&mut self, actions: &mut impl Actions) {
        while let Some(page) = self.paper.take_moved() {
            self.settle(page);
        }
        while let Some(page) = self.paper.take_evicted() {
            self.learn(page, false);
            let state = self.pages.state(page);
            match state.tier() {
                None => {
                    self.forget_dropped(page);
                }
                Some(tier) if !state.is_dirty() && !self.budget.jumps_too_often(&self.paper) => {
                    self.extra[tier as usize].insert(page);
                }
                Some(_) => self.evict(page, Reason::Victim, actions),
            }
            self.settle(page);
        }
    }

    fn hit(&mut self, access: Access, found: Tier, actions: &mut impl Actions) {
        let page = access.page.0;
        if self.paper.has_missed() {
            self.extra[found as usize].remove(page);
            self.settle(page);
        }
        self.learn(page, true);
        let served = match (found, access.op) {
            (Tier::Dram, _) => self.hit_in_dram(access),
            (Tier::Scm, Op::Read) => Tier::Scm,
            (Tier::Scm, Op::Write) => self.write_in_scm(access, actions),
        };
        if access.op == Op::Write {
            let state = self.pages.state(page);
            let state = self.pages.mark_dirty(page, state);
            self.pages.set_state(page, state);
        }
        actions.act(Action::Hit { found, served });
    }

    fn hit_in_dram(&mut self, access: Access) -> Tier {
        let page = access.page.0;
        let state = self.pages.state(page);
        if !state.has(State::REFERENCED) {
            self.pages.set_state(page, state.with(State::REFERENCED));
        }
        let before = self.history.get(page);
        let mut history = History { hits: (before.hits + 1).min(Class::HITS_MAX), ..before };
        if access.op == Op::Write {
            let heat = if access.len > self.small_write_bytes { 2 } else { 1 };
            history.heat = (history.heat + heat).min(HEAT_MAX);
            history.lines = history.lines.saturating_add(lines(access));
        }
        if history != before {
            self.history.set(page, history);
        }
        Tier::Dram
    }

    /// Serves a write to a page of SCM. Returns the tier where it is done.
    fn write_in_scm(&mut self, access: Access, actions: &mut impl Actions) -> Tier {
        let page = access.page.0;
        let mut history = self.history.get(page);
        history.lines = history.lines.saturating_add(lines(access));
        let promotes = if self.is_over_budget() {
            self.misplaced[1].contains(page)
        } else {
            history.lines >= self.promote_lines
        };
        if promotes {
            self.promote(page, Reason::WriteHot, actions);
            return Tier::Dram;
        }
        self.history.set(page, history);
        self.budget.scm_bytes += u64::from(access.len);
        Tier::Scm
    }

    fn promote(&mut self, page: u32, why: Reason, actions: &mut impl Actions) {
        let dirty = self.pages.remove(page).is_dirty();
        let (to, lines) = (Tier::Dram, LineMask::ALL);
        actions.act(Action::Move { page: PageNo(page), to, lines, dirty, why });
        if self.pages.is_full(Tier::Dram) {
            self.make_room(Reason::Swapped, actions);
        }
        self.pages.insert(page, Tier::Dram, State::default().with_if(dirty, State::DIRTY));
        self.dram.insert(page);
        let came = History { heat: HEAT_MAX, promoted: true, ..History::default() };
        self.history.set(page, History { hits: Class::HITS_MAX, returned: true, ..came });
        self.settle(page);
    }

    fn miss(&mut self, access: Access, actions: &mut impl Actions) {
        let page = access.page.0;
        self.budget.misses.add(access);
        let sequential = self.last_missed.is_some_and(|last| last + 1 == page);
        self.last_missed = Some(page);
        let tier = self.make_room_for_missed(actions);
        self.learn(page, true);
        let returned = self.forget_dropped(page);
        let written = access.op == Op::Write;
        let bits = State::default().with_if(written, State::DIRTY.with(State::REFERENCED));
        self.pages.insert(page, tier, bits);
        match tier {
            Tier::Dram => self.dram.insert(page),
            Tier::Scm => self.budget.scm_bytes += PAGE,
        }
        self.history.set(page, History { sequential, returned, ..History::default() });
        self.settle(page);
        let why = if returned { Reason::GhostHit } else { Reason::of_miss(access.op) };
        actions.act(Action::Fill { page: access.page, tier, why });
    }

    /// Frees a frame for the page that was missed. The frame is in SCM only beyond the budget with
    /// no misplaced page: then the paper's policy has the page in SCM, too (lemma 4).
    fn make_room_for_missed(&mut self, actions: &mut impl Actions) -> Tier {
        if !self.pages.is_full(Tier::Dram) || self.drop_extra(Tier::Dram, actions) {
            return Tier::Dram;
        }
        let over_budget = self.is_over_budget();
        if over_budget && self.misplaced[0].next(0).is_none() {
            self.free_frame_of_scm(actions);
            return Tier::Scm;
        }
        self.make_room(if over_budget { Reason::Victim } else { Reason::LongToLive }, actions);
        Tier::Dram
    }

    /// Evens out tiers of which one has too many pages, after a resize.
    fn even_out(&mut self, actions: &mut impl Actions) {
        for tier in [Tier::Dram, Tier::Scm] {
            while self.is_over(tier) && self.drop_extra(tier, actions) {}
        }
        while self.is_over(Tier::Dram) {
            self.make_room(Reason::Shrunk, actions);
        }
        while self.is_over(Tier::Scm) {
            let page = self.misplaced[1].next(0).expect("the paper's policy has them in DRAM");
            self.promote(page, Reason::Shrunk, actions);
        }
    }

    fn is_over(&self, tier: Tier) -> bool {
        self.pages.used().of(tier) > self.pages.capacity().of(tier)
    }
}

fn put(set: &mut impl PageSet, page: u32, belongs: bool) {
    if belongs {
        set.insert(page);
    } else {
        set.remove(page);
    }
}

/// Lines that the bytes of a write fill, at least one.
fn lines(access: Access) -> u16 {
    access.len / 64 + 1
}

impl<S: Storage> Policy for Everbyte<S> {
    type Storage = S;

    fn directory(&self) -> &Directory<S> {
        &self.pages
    }

    fn directory_mut(&mut self) -> &mut Directory<S> {
        &mut self.pages
    }

    fn access(&mut self, access: Access, actions: &mut impl Actions) {
        self.budget.accesses += 1;
        self.paper.access(access);
        self.follow(actions);
        match self.pages.state(access.page.0).tier() {
            Some(found) => self.hit(access, found, actions),
            None => self.miss(access, actions),
        }
    }

    fn remove(&mut self, page: PageNo) {
        self.paper.remove(page.0);
        self.pages.remove(page.0);
        self.dram.remove(page.0);
        self.extra.iter_mut().for_each(|pages| pages.remove(page.0));
        self.forget_dropped(page.0);
        self.history.set(page.0, History::default());
        self.settle(page.0);
    }

    fn cleaned(&mut self, page: PageNo) {
        self.pages.clean(page.0);
        self.paper.cleaned(page.0);
    }

    fn reclaim(&mut self, tier: Tier, actions: &mut impl Actions) {
        let before = self.pages.used().of(tier);
        while self.pages.used().of(tier) == before && !self.drop_extra(tier, actions) {
            self.paper.evict_page();
            self.follow(actions);
        }
    }

    fn resize(&mut self, capacity: Capacity, actions: &mut impl Actions) {
        self.paper.resize(capacity);
        self.pages.capacity = capacity;
        self.follow(actions);
        self.even_out(actions);
    }
}

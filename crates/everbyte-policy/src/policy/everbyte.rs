//! Our own policy: what the paper's does, with evidence asked for before PRAM is written to.
//!
//! PRAM bytes are pages that move there from DRAM and writes in place. To write fewer:
//!
//! - **Admission.** A page that leaves DRAM moves to PRAM only if pages like it are used again more
//!   often than those that PRAM gives up for it; chances are learned by class of page, from hits in
//!   PRAM and from misses of pages that are remembered. Else a clean page is dropped for nothing,
//!   and a dirty one written to storage, which the dirty page that it would have displaced
//!   needed as well. While PRAM has free frames or unreferenced clean pages, dirty pages move, for
//!   that puts a write to storage off; and while it has free frames, few clean ones are refused,
//!   for hits that are lost later cannot be won back.
//! - **Write heat.** DRAM keeps a page for another round of the hand for each recent write, two for
//!   a large one. A page of PRAM that took many bytes in place moves up. How many, adapts: doubled
//!   when a page that moved up left before it took four pages' worth of writes, else halved.
//! - **A shadow.** The paper's policy runs beside ours, without pages. If we fall behind it in hits,
//!   or ahead of it in PRAM bytes, we follow it: our victims are what it does not hold, until we
//!   have made good what we lost, and each time that this is soon needed again we follow for
//!   longer. So on a workload that ours is no good for, it is at its worst about as good as the
//!   paper's.
//!
//! Hands go in the order of sectors as in the paper's policy, and unreferenced clean pages of PRAM
//! go first. The idea of asking for evidence is TinyLFU's (Einziger, Friedman and Manes, ACM
//! Trans. Storage 13(4), 2017), that of ghosts ARC's, that of a policy which follows the best of
//! several ACME's (Ari et al., WDAS 2002).
//!
//! Not for where memory for tables is scarce: it keeps two directories and as many ghosts as
//! pages. It costs an access several times what `hybrid` does.

mod odds;
mod shadow;

use self::odds::{FROM_PRAM, Odds, Traits};
use self::shadow::Shadow;
use super::Policy;
use super::action::{Action, Actions, LineMask, Reason, Tier};
use super::hybrid::HybridConfig;
use super::residents::{Capacity, Residents, State};
use super::space::{PageSet, Space, Table};
use crate::access::{Access, Op, PAGE_BYTES, PageNo};

/// The reuse of this page was counted.
const COUNTED: State = State::MARK_A;
/// The page was remembered when it came, or came up from PRAM.
const RETURNED: State = State::MARK_B;
/// How much likelier a clean page has to be used again than what it displaces.
const CLEAN_MARGIN: f32 = 0.1;
/// Clean pages that may be refused while PRAM has free frames, as a share of accesses.
const REFUSED_SHARE: f64 = 0.003;
const HEAT_MAX: u8 = 3;
/// Lines written in place after which a page moves up: at first and at least, and at most.
const UP_LINES_MIN: u32 = 256;
const UP_LINES_MAX: u32 = 1 << 15;
/// Lines that a page that moved up should take before it leaves.
const WORTHWHILE_LINES: u16 = 256;
/// How many times as many lines it takes to move up when we do not save bytes.
const RELUCTANCE: u32 = 8;

/// What is remembered of a page while it is in the cache.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct History {
    /// In PRAM: what it was when it left DRAM.
    class: u8,
    /// In DRAM: hits.
    hits: u8,
    /// In DRAM: rounds of the hand that it is spared for its writes.
    heat: u8,
    sequential: bool,
    whole: bool,
    moved_up: bool,
    /// Lines written since it came to its tier.
    lines: u16,
}

/// The paper's policy with evidence.
pub struct Everbyte<S: Space> {
    pages: Residents<S>,
    dram: S::Set,
    pram: S::Set,
    /// Pages of PRAM that are clean and unreferenced.
    spare: S::Set,
    history: S::Table<History>,
    odds: Odds<S>,
    shadow: Shadow<S>,
    dram_hand: u32,
    pram_hand: u32,
    last_missed: u32,
    up_lines: u32,
    small_write_bytes: u16,
}

impl<S: Space> Everbyte<S> {
    /// An empty cache of two tiers. The settings are those of the paper's policy.
    #[must_use]
    pub fn new(space: S, capacity: Capacity, config: HybridConfig) -> Self {
        Self {
            pages: Residents::new(space, capacity),
            dram: space.set(),
            pram: space.set(),
            spare: space.set(),
            history: space.table(),
            odds: Odds::new(space),
            shadow: Shadow::new(space, capacity, config),
            dram_hand: 0,
            pram_hand: 0,
            last_missed: 0,
            up_lines: UP_LINES_MIN,
            small_write_bytes: config.small_write_bytes,
        }
    }

    fn settle(&mut self, page: u32) {
        self.shadow.settle(page, self.pages.state(page).tier());
    }

    fn remember(&mut self, page: u32, class: u8) {
        let Capacity { dram, pram } = self.pages.capacity;
        self.odds.remember(page, class, dram.saturating_add(pram));
    }

    fn hit_in_dram(&mut self, access: Access, state: State) {
        let page = access.page.0;
        let mut bits = state.with(State::REFERENCED);
        let mut history = self.history.get(page);
        history.hits = history.hits.saturating_add(1);
        if access.op == Op::Write {
            history.lines = history.lines.saturating_add(lines(access));
            let heat = if access.len > self.small_write_bytes { 2 } else { 1 };
            history.heat = (history.heat + heat).min(HEAT_MAX);
            bits = self.pages.soil(page, bits);
        }
        self.history.set(page, history);
        self.pages.set_state(page, bits);
    }

    /// A hit in PRAM. Returns where it is served.
    fn hit_in_pram(&mut self, access: Access, state: State, actions: &mut impl Actions) -> Tier {
        let page = access.page.0;
        let mut history = self.history.get(page);
        if !state.has(COUNTED) {
            self.odds.saw_reuse(history.class);
        }
        self.spare.remove(page);
        let bits = state.with(State::REFERENCED).with(COUNTED);
        self.pages.set_state(page, bits);
        if access.op == Op::Read {
            return Tier::Pram;
        }
        history.lines = history.lines.saturating_add(lines(access));
        if self.should_move_up(access, history) {
            self.move_up(page, actions);
            return Tier::Dram;
        }
        self.history.set(page, history);
        let bits = self.pages.soil(page, bits);
        self.pages.set_state(page, bits);
        self.shadow.ours.pram_bytes += u64::from(access.len);
        Tier::Pram
    }

    fn should_move_up(&self, access: Access, history: History) -> bool {
        if self.shadow.is_followed() {
            return self.shadow.tier(access.page.0) == Some(Tier::Dram)
                && access.len > self.small_write_bytes
                && self.shadow.next_astray(Tier::Dram, 0).is_some();
        }
        let reluctance = if self.shadow.saves_bytes() { 1 } else { RELUCTANCE };
        u32::from(history.lines) >= self.up_lines * reluctance
    }

    /// Takes a page of PRAM up for the write that it is about to get.
    fn move_up(&mut self, page: u32, actions: &mut impl Actions) {
        self.pram.remove(page);
        let dirty = self.pages.leave(page).is_dirty();
        let (to, lines, why) = (Tier::Dram, LineMask::ALL, Reason::WriteHot);
        actions.act(Action::Move { page: PageNo(page), to, lines, dirty, why });
        if self.pages.is_full(Tier::Dram) {
            self.make_room_in_dram(actions);
        }
        let bits = State::REFERENCED.with(RETURNED).with(State::DIRTY);
        self.pages.enter(page, Tier::Dram, bits);
        self.dram.insert(page);
        let (hits, heat) = (u8::MAX, HEAT_MAX);
        self.history.set(page, History { hits, heat, moved_up: true, ..History::default() });
        self.settle(page);
    }

    fn dram_victim(&mut self) -> u32 {
        if self.shadow.is_followed()
            && let Some(page) = self.shadow.next_astray(Tier::Dram, self.dram_hand)
        {
            self.dram_hand = page + 1;
            return page;
        }
        loop {
            let page = self.dram.next_around(self.dram_hand).expect("a full tier has a page");
            self.dram_hand = page + 1;
            let state = self.pages.state(page);
            if state.has(State::REFERENCED) {
                self.pages.set_state(page, state.without(State::REFERENCED));
                continue;
            }
            let history = self.history.get(page);
            if history.heat == 0 {
                return page;
            }
            self.history.set(page, History { heat: history.heat - 1, ..history });
        }
    }

    fn pram_victim(&mut self) -> u32 {
        if self.shadow.is_followed()
            && let Some(page) = self.shadow.next_astray(Tier::Pram, self.pram_hand)
        {
            return page;
        }
        if let Some(page) = self.spare.next_around(self.pram_hand) {
            return page;
        }
        loop {
            let page = self.pram.next_around(self.pram_hand).expect("a full tier has a page");
            let state = self.pages.state(page);
            if !state.has(State::REFERENCED) {
                return page;
            }
            self.pram_hand = page + 1;
            let state = state.without(State::REFERENCED);
            self.pages.set_state(page, state);
            if !state.is_dirty() {
                self.spare.insert(page);
            }
        }
    }

    fn evict_from_pram(&mut self, actions: &mut impl Actions) {
        let victim = self.pram_victim();
        self.pram_hand = victim + 1;
        self.pram.remove(victim);
        self.spare.remove(victim);
        self.pages.expel(victim, Reason::Victim, actions);
        self.settle(victim);
        self.history.set(victim, History::default());
        self.odds.saw(FROM_PRAM);
        self.remember(victim, FROM_PRAM);
    }

    /// Why a page that leaves DRAM should move to PRAM, if it should.
    fn reason_to_move(&self, page: u32, class: u8) -> Option<Reason> {
        let dirty = self.pages.state(page).is_dirty();
        let has_room = !self.pages.is_full(Tier::Pram);
        let has_spare = self.spare.next(0).is_some();
        if self.shadow.is_followed() {
            let like_paper = (dirty || has_room || has_spare).then_some(Reason::DirtyVictim);
            return match self.shadow.tier(page) {
                None => None,
                Some(Tier::Pram) => Some(Reason::Reused),
                Some(Tier::Dram) => like_paper,
            };
        }
        let chance = self.odds.of(class);
        if has_room {
            let moves = dirty || chance >= CLEAN_MARGIN || !self.may_refuse();
            return moves.then_some(Reason::FreeFrame);
        }
        let margin = if dirty { 0.0 } else { CLEAN_MARGIN };
        let is_likelier = chance - self.odds.of(FROM_PRAM) >= margin;
        match (dirty, has_spare) {
            (true, true) => Some(Reason::ColderPage),
            _ => is_likelier.then_some(Reason::Reused),
        }
    }

    /// Whether one more page can be refused though there is room for it.
    #[allow(clippy::cast_precision_loss, reason = "counts are compared in parts of a thousand")]
    fn may_refuse(&self) -> bool {
        f64::from(self.odds.rejected()) < REFUSED_SHARE * self.shadow.ours.accesses as f64
    }

    fn class(&self, page: u32) -> u8 {
        let (state, history) = (self.pages.state(page), self.history.get(page));
        Traits {
            hits: history.hits,
            dirty: state.is_dirty(),
            returned: state.has(RETURNED),
            sequential: history.sequential,
            whole: history.whole,
        }
        .class()
    }

    fn make_room_in_dram(&mut self, actions: &mut impl Actions) {
        let page = self.dram_victim();
        self.dram.remove(page);
        self.judge_move_up(page);
        let class = self.class(page);
        let why = self.reason_to_move(page, class);
        self.odds.saw(class);
        match why {
            Some(why) => self.move_down(page, class, why, actions),
            None => {
                self.pages.expel(page, Reason::NoEvidence, actions);
                self.history.set(page, History::default());
                self.settle(page);
                self.remember(page, class);
            }
        }
    }

    /// Whether it was worth its while to move the page up, if it was.
    fn judge_move_up(&mut self, page: u32) {
        let history = self.history.get(page);
        if history.moved_up {
            self.up_lines = if history.lines < WORTHWHILE_LINES {
                (self.up_lines * 2).min(UP_LINES_MAX)
            } else {
                (self.up_lines / 2).max(UP_LINES_MIN)
            };
        }
    }

    fn move_down(&mut self, page: u32, class: u8, why: Reason, actions: &mut impl Actions) {
        if self.pages.is_full(Tier::Pram) {
            self.evict_from_pram(actions);
        }
        let dirty = self.pages.leave(page).is_dirty();
        let bits = State::default().with_if(dirty, State::DIRTY.with(State::REFERENCED));
        self.pages.enter(page, Tier::Pram, bits);
        self.history.set(page, History { class, ..History::default() });
        self.pram.insert(page);
        if !dirty {
            self.spare.insert(page);
        }
        self.settle(page);
        self.shadow.count_move();
        let (page, to, lines) = (PageNo(page), Tier::Pram, LineMask::ALL);
        actions.act(Action::Move { page, to, lines, dirty, why });
    }

    fn miss(&mut self, access: Access, actions: &mut impl Actions) {
        let page = access.page.0;
        let returned = self.odds.recall(page);
        let sequential = page == self.last_missed.wrapping_add(1);
        self.last_missed = page;
        if self.pages.is_full(Tier::Dram) {
            self.make_room_in_dram(actions);
        }
        let written = access.op == Op::Write;
        let bits = State::default()
            .with_if(written, State::DIRTY.with(State::REFERENCED))
            .with_if(returned, RETURNED);
        self.pages.enter(page, Tier::Dram, bits);
        let whole = u32::from(access.len) == PAGE_BYTES;
        self.history.set(page, History { sequential, whole, ..History::default() });
        self.dram.insert(page);
        self.settle(page);
        let why = if returned { Reason::GhostHit } else { Reason::of_miss(access.op) };
        actions.act(Action::Fill { page: access.page, tier: Tier::Dram, why });
    }
}

/// Lines that the bytes of a write fill, at least one.
fn lines(access: Access) -> u16 {
    access.len / 64 + 1
}

impl<S: Space> Policy for Everbyte<S> {
    type Space = S;

    fn residents(&self) -> &Residents<S> {
        &self.pages
    }

    fn residents_mut(&mut self) -> &mut Residents<S> {
        &mut self.pages
    }

    fn access(&mut self, access: Access, actions: &mut impl Actions) {
        let pages = &self.pages;
        self.shadow.access(access, |page| pages.state(page).tier());
        let state = self.pages.state(access.page.0);
        let Some(found) = state.tier() else {
            self.miss(access, actions);
            return;
        };
        self.shadow.ours.hits += 1;
        let served = match found {
            Tier::Dram => {
                self.hit_in_dram(access, state);
                found
            }
            Tier::Pram => self.hit_in_pram(access, state, actions),
        };
        actions.act(Action::Hit { found, served });
    }

    fn remove(&mut self, page: PageNo) {
        self.pages.leave(page.0);
        for set in [&mut self.dram, &mut self.pram, &mut self.spare] {
            set.remove(page.0);
        }
        self.history.set(page.0, History::default());
        self.odds.forget(page.0);
        self.shadow.remove(page.0);
    }

    fn cleaned(&mut self, page: PageNo) {
        self.pages.clean(page.0);
        self.shadow.cleaned(page.0);
        let state = self.pages.state(page.0);
        if state.has(State::PRAM) && !state.has(State::REFERENCED) {
            self.spare.insert(page.0);
        }
    }

    fn reclaim(&mut self, tier: Tier, actions: &mut impl Actions) {
        match tier {
            Tier::Dram => self.make_room_in_dram(actions),
            Tier::Pram => self.evict_from_pram(actions),
        }
    }

    fn resize(&mut self, capacity: Capacity, actions: &mut impl Actions) {
        let pages = &self.pages;
        self.shadow.resize(capacity, |page| pages.state(page).tier());
        super::resize(self, capacity, actions);
    }
}

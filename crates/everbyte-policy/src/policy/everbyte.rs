//! Our own policy: in the cache is what the paper's policy would have there; in which tier, is
//! decided by what it costs.
//!
//! The paper's policy runs beside ours without any pages and is followed in what comes and goes. So
//! hits, fetches and write-backs are the same, one by one and in the same order, whatever the
//! trace. What it writes to PRAM are pages that move there from DRAM, and writes in place. To write
//! less:
//!
//! - **DRAM keeps what is about to go.** Where each hand of the paper's policy is tells which pages
//!   it gives up next. Such a page stays in DRAM until then and never costs PRAM anything; another
//!   page moves down in its stead, one that is likely to stay.
//! - **DRAM keeps what is written.** A hand in the order of sectors looks for the page that moves. It
//!   spares a page that was used since it came by, and one more round for each recent write, two
//!   for a large one. A page of PRAM that took many bytes in place moves up; how many, adapts:
//!   doubled when a page that moved up left before it took four pages' worth of writes, else halved.
//! - **A page moves late.** It moves only when DRAM has no frame, and the page that the paper's
//!   policy gives up is in PRAM.
//!
//! # Why it is never much worse
//!
//! Our *debt* is the PRAM bytes that we wrote, less the paper's, plus a page for each that the
//! paper's policy has in PRAM and we in DRAM: what we would have written in the end if we went over
//! to its order of things now. While the debt is within [`DEBT_SHARE`] and [`DEBT_MIN`] we do as
//! above. Beyond it, only pages that the paper's policy has in PRAM move down, and those that it has
//! in DRAM move up before they are written to. Then the debt does not grow: a page that moves
//! down costs a page and is one fewer to be counted; one that moves up makes such a page do so; a write
//! in place is one of the paper's as well; and for what the paper's policy moves down we count a
//! page as it pays one. A page that may move down there always is: DRAM is full, has as many frames
//! as the paper's, and lacks a page that the paper's has. A step within the bounds adds two
//! pages at most. So, while the cache keeps its size, our PRAM bytes are at most 1.008 times the
//! paper's and 24 KiB, whatever the trace.
//!
//! The debt also makes this slow to begin: little may be owed at first, and what that saves pays for
//! more. On traces that fill the cache once or twice only, little is saved.
//!
//! To change over to another algorithm at a cost that is bounded and counted is how algorithms are
//! combined in Blum and Burch, "On-line Learning and the Metrical Task System Problem", Machine
//! Learning 39(1), 2000; the bound here is by the argument above, not theirs.
//!
//! Not for where the paper's policy caches the wrong pages: ours does as well. It keeps two
//! directories, and an access costs two to three times what it does in `hybrid`.

mod paper;

use self::paper::Paper;
use super::Policy;
use super::action::{Action, Actions, LineMask, Reason, Tier};
use super::hybrid::HybridConfig;
use super::residents::{Capacity, Residents, State};
use super::space::{PageSet, Space, Table};
use crate::access::{Access, Op, PAGE_BYTES, PageNo};

const PAGE: u64 = PAGE_BYTES as u64;
/// Debt that we may have, as a part of the bytes that the paper's policy writes: one in so many,
const DEBT_SHARE: u64 = 125;
/// and in bytes besides, so that the first pages decide nothing.
const DEBT_MIN: u64 = 4 * PAGE;
/// Pages that the hand passes because they will go within a turn, before it takes the one of them
/// that goes last.
const PASSED_MAX: u32 = 32;
/// Rounds of the hand that writes spare a page.
const HEAT_MAX: u8 = 3;
/// Lines written in place after which a page moves up: at first and at least, and at most.
const UP_LINES_MIN: u16 = 256;
const UP_LINES_MAX: u16 = 1 << 15;
/// Lines that a page that moved up should take before it leaves.
const WORTHWHILE_LINES: u16 = 256;

/// What is remembered of a page of the cache.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct History {
    /// In DRAM: rounds of the hand that it is spared for its writes.
    heat: u8,
    /// In DRAM: it came from PRAM.
    moved_up: bool,
    /// Lines written since it came to its tier.
    lines: u16,
}

/// The paper's policy, with pages where they cost least.
pub struct Everbyte<S: Space> {
    pages: Residents<S>,
    dram: S::Set,
    /// Pages that we have in DRAM and the paper's policy in PRAM; and the other way round.
    astray: [S::Set; 2],
    /// How many those of DRAM are.
    owed_pages: u64,
    history: S::Table<History>,
    paper: Paper<S>,
    pram_bytes: u64,
    hand: u32,
    up_lines: u16,
    small_write_bytes: u16,
}

impl<S: Space> Everbyte<S> {
    /// An empty cache of two tiers. The settings are those of the paper's policy.
    #[must_use]
    pub fn new(space: S, capacity: Capacity, config: HybridConfig) -> Self {
        Self {
            pages: Residents::new(space, capacity),
            dram: space.set(),
            astray: [space.set(), space.set()],
            owed_pages: 0,
            history: space.table(),
            paper: Paper::new(space, capacity, config),
            pram_bytes: 0,
            hand: 0,
            up_lines: UP_LINES_MIN,
            small_write_bytes: config.small_write_bytes,
        }
    }

    /// Whether we had better not write more to PRAM than the paper's policy does.
    fn is_in_debt(&self) -> bool {
        let theirs = self.paper.pram_bytes();
        let may = theirs + theirs / DEBT_SHARE + DEBT_MIN;
        self.pram_bytes + self.owed_pages * PAGE > may
    }

    /// Notes where a page is, for us and for the paper's policy.
    fn settle(&mut self, page: u32) {
        let (ours, theirs) = (self.pages.state(page).tier(), self.paper.tier(page));
        let is_astray = |tier| ours == Some(tier) && theirs.is_some() && theirs != ours;
        let is_owed = is_astray(Tier::Dram);
        if is_owed != self.astray[0].contains(page) {
            self.owed_pages = if is_owed { self.owed_pages + 1 } else { self.owed_pages - 1 };
        }
        put(&mut self.astray[0], page, is_owed);
        put(&mut self.astray[1], page, is_astray(Tier::Pram));
    }

    /// Does what the paper's policy did: what it gave up goes.
    fn follow(&mut self, actions: &mut impl Actions) {
        while let Some(page) = self.paper.take_moved() {
            self.settle(page);
        }
        while let Some(page) = self.paper.take_given_up() {
            self.judge_move_up(page);
            self.dram.remove(page);
            self.history.set(page, History::default());
            self.pages.expel(page, Reason::Victim, actions);
            self.settle(page);
        }
    }

    fn hit(&mut self, access: Access, found: Tier, actions: &mut impl Actions) {
        let page = access.page.0;
        let served = match (found, access.op) {
            (Tier::Dram, _) => self.hit_in_dram(access),
            (Tier::Pram, Op::Read) => Tier::Pram,
            (Tier::Pram, Op::Write) => self.write_in_pram(access, actions),
        };
        if access.op == Op::Write {
            let state = self.pages.state(page);
            let state = self.pages.soil(page, state);
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
        if access.op == Op::Write {
            let mut history = self.history.get(page);
            let heat = if access.len > self.small_write_bytes { 2 } else { 1 };
            history.heat = (history.heat + heat).min(HEAT_MAX);
            history.lines = history.lines.saturating_add(lines(access));
            self.history.set(page, history);
        }
        Tier::Dram
    }

    /// A write to a page of PRAM. Returns where it is done.
    fn write_in_pram(&mut self, access: Access, actions: &mut impl Actions) -> Tier {
        let page = access.page.0;
        let mut history = self.history.get(page);
        history.lines = history.lines.saturating_add(lines(access));
        let moves_up = if self.is_in_debt() {
            self.astray[1].contains(page)
        } else {
            history.lines >= self.up_lines
        };
        if moves_up {
            self.move_up(page, Reason::WriteHot, actions);
            return Tier::Dram;
        }
        self.history.set(page, history);
        self.pram_bytes += u64::from(access.len);
        Tier::Pram
    }

    fn move_up(&mut self, page: u32, why: Reason, actions: &mut impl Actions) {
        let dirty = self.pages.leave(page).is_dirty();
        let (to, lines) = (Tier::Dram, LineMask::ALL);
        actions.act(Action::Move { page: PageNo(page), to, lines, dirty, why });
        if self.pages.is_full(Tier::Dram) {
            self.move_down(Reason::Swapped, actions);
        }
        self.pages.enter(page, Tier::Dram, State::default().with_if(dirty, State::DIRTY));
        self.dram.insert(page);
        let history = History { heat: HEAT_MAX, moved_up: true, lines: 0 };
        self.history.set(page, history);
        self.settle(page);
    }

    /// Moves a page of DRAM, which has one, to PRAM, which has a frame.
    fn move_down(&mut self, why: Reason, actions: &mut impl Actions) {
        let page = self.choose_page();
        self.judge_move_up(page);
        self.dram.remove(page);
        let dirty = self.pages.leave(page).is_dirty();
        self.pages.enter(page, Tier::Pram, State::default().with_if(dirty, State::DIRTY));
        self.history.set(page, History::default());
        self.settle(page);
        self.pram_bytes += PAGE;
        let (page, to, lines) = (PageNo(page), Tier::Pram, LineMask::ALL);
        actions.act(Action::Move { page, to, lines, dirty, why });
    }

    /// The page of DRAM that moves down: of all pages, or in debt of those owed, one that will be
    /// long in the cache. So what is still owed is what soon goes and is then owed no more.
    fn choose_page(&mut self) -> u32 {
        let in_debt = self.is_in_debt();
        let (mut passed, mut best, mut best_life) = (0, 0, 0);
        loop {
            let owed = if in_debt { self.astray[0].next_around(self.hand) } else { None };
            let page = owed.unwrap_or_else(|| self.next_unspared());
            self.hand = page + 1;
            let life = self.paper.life(page);
            if life >= self.paper.turn() {
                return page;
            }
            if passed == 0 || life > best_life {
                (best, best_life) = (page, life);
            }
            passed += 1;
            if passed == PASSED_MAX {
                return best;
            }
        }
    }

    /// Moves the hand behind the next page of DRAM that neither use nor writes spare.
    fn next_unspared(&mut self) -> u32 {
        loop {
            let page = self.dram.next_around(self.hand).expect("a page moves from where pages are");
            self.hand = page + 1;
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

    /// Whether it was worth its while to move the page up, if it was.
    fn judge_move_up(&mut self, page: u32) {
        let history = self.history.get(page);
        if history.moved_up {
            self.up_lines = if history.lines < WORTHWHILE_LINES {
                (self.up_lines.saturating_mul(2)).min(UP_LINES_MAX)
            } else {
                (self.up_lines / 2).max(UP_LINES_MIN)
            };
        }
    }

    fn miss(&mut self, access: Access, actions: &mut impl Actions) {
        if self.pages.is_full(Tier::Dram) {
            let why = if self.is_in_debt() { Reason::Victim } else { Reason::LongToLive };
            self.move_down(why, actions);
        }
        let written = access.op == Op::Write;
        let bits = State::default().with_if(written, State::DIRTY.with(State::REFERENCED));
        self.pages.enter(access.page.0, Tier::Dram, bits);
        self.dram.insert(access.page.0);
        let why = Reason::of_miss(access.op);
        actions.act(Action::Fill { page: access.page, tier: Tier::Dram, why });
    }

    /// Moves pages from a tier that has too many to the other, which has frames for them.
    fn even_out(&mut self, actions: &mut impl Actions) {
        while self.is_over(Tier::Dram) {
            self.move_down(Reason::Shrunk, actions);
        }
        while self.is_over(Tier::Pram) {
            let page = self.astray[1].next(0).expect("the paper's policy has them in DRAM");
            self.move_up(page, Reason::Shrunk, actions);
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

impl<S: Space> Policy for Everbyte<S> {
    type Space = S;

    fn residents(&self) -> &Residents<S> {
        &self.pages
    }

    fn residents_mut(&mut self) -> &mut Residents<S> {
        &mut self.pages
    }

    fn access(&mut self, access: Access, actions: &mut impl Actions) {
        self.paper.access(access);
        self.follow(actions);
        match self.pages.state(access.page.0).tier() {
            Some(found) => self.hit(access, found, actions),
            None => self.miss(access, actions),
        }
    }

    fn remove(&mut self, page: PageNo) {
        self.paper.remove(page.0);
        self.pages.leave(page.0);
        self.dram.remove(page.0);
        self.history.set(page.0, History::default());
        self.settle(page.0);
    }

    fn cleaned(&mut self, page: PageNo) {
        self.pages.clean(page.0);
        self.paper.cleaned(page.0);
    }

    fn reclaim(&mut self, tier: Tier, actions: &mut impl Actions) {
        let before = self.pages.used().of(tier);
        while self.pages.used().of(tier) == before {
            self.paper.give_up_page();
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

//! What leaves DRAM, and for where; and what leaves the cache before its frame is needed otherwise.
//!
//! Invariant: a page that the paper's policy has and we have not is marked as dropped, and counted.

use super::odds::Class;
use super::{Everbyte, History, PAGE, UP_LINES_MAX, UP_LINES_MIN};
use crate::access::PageNo;
use crate::policy::action::{Action, Actions, LineMask, Reason, Tier};
use crate::policy::residents::State;
use crate::policy::space::{PageSet, Space, Table};

/// Lines that a page that moved up should take before it leaves.
const WORTHWHILE_LINES: u16 = 64;
/// Pages that the hand passes because they will go within a turn, before it takes the one of them
/// that goes last.
const PASSED_MAX: u32 = 32;

/// What becomes of a page of DRAM.
enum Leaving {
    Drop(u32),
    MoveDown(u32),
}

impl<S: Space> Everbyte<S> {
    /// Frees a frame of DRAM, which has a page.
    pub(super) fn make_room(&mut self, why: Reason, actions: &mut impl Actions) {
        if self.drop_extra(Tier::Dram, actions) {
            return;
        }
        match self.choose_page() {
            Leaving::Drop(page) => self.drop_early(page, actions),
            Leaving::MoveDown(page) => self.move_down(page, why, actions),
        }
    }

    fn move_down(&mut self, page: u32, why: Reason, actions: &mut impl Actions) {
        self.free_frame_of_pram(actions);
        self.judge_move_up(page);
        self.dram.remove(page);
        let dirty = self.pages.leave(page).is_dirty();
        self.pages.enter(page, Tier::Pram, State::default().with_if(dirty, State::DIRTY));
        let watched = self.history.get(page).watched;
        self.history.set(page, History { watched, ..History::default() });
        self.settle(page);
        self.ledger.pram_bytes += PAGE;
        let (page, to, lines) = (PageNo(page), Tier::Pram, LineMask::ALL);
        actions.act(Action::Move { page, to, lines, dirty, why });
    }

    /// Frees a frame of PRAM for a page of the paper's policy. DRAM is full of such pages, and the
    /// paper's policy has no more of them than frames: so if PRAM is full, it has a page besides.
    pub(super) fn free_frame_of_pram(&mut self, actions: &mut impl Actions) {
        if self.pages.is_full(Tier::Pram) {
            let freed = self.drop_extra(Tier::Pram, actions);
            debug_assert!(freed, "the paper's policy has more pages than frames");
        }
    }

    /// What leaves DRAM: a page that will hardly be used again, if we may; else one that will be
    /// long in the cache, of all pages, or in debt of those owed. So what is still owed is what
    /// soon goes and is then owed no more.
    fn choose_page(&mut self) -> Leaving {
        let in_debt = self.is_in_debt();
        let (mut best, mut best_life) = (None, 0);
        for _ in 0..PASSED_MAX {
            let owed = if in_debt { self.astray[0].next_around(self.hand) } else { None };
            let page = owed.unwrap_or_else(|| self.next_unspared());
            self.hand = page + 1;
            let class = self.watch(page);
            if !in_debt && class.is_some_and(|class| self.may_drop(class)) {
                return Leaving::Drop(page);
            }
            let life = self.paper.life(page);
            if life >= self.paper.turn() {
                return Leaving::MoveDown(page);
            }
            if best.is_none() || life > best_life {
                (best, best_life) = (Some(page), life);
            }
        }
        Leaving::MoveDown(best.expect("pages were passed"))
    }

    fn may_drop(&self, class: Class) -> bool {
        self.odds.is_seldom_used(class) && self.ledger.may_miss(&self.paper)
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
    pub(super) fn judge_move_up(&mut self, page: u32) {
        let history = self.history.get(page);
        if history.moved_up {
            self.up_lines = if history.lines < WORTHWHILE_LINES {
                (self.up_lines.saturating_mul(2)).min(UP_LINES_MAX)
            } else {
                (self.up_lines / 2).max(UP_LINES_MIN)
            };
        }
    }

    /// Drops a clean page of DRAM that the paper's policy has.
    fn drop_early(&mut self, page: u32, actions: &mut impl Actions) {
        let watched = self.history.get(page).watched;
        self.expel(page, Reason::NoEvidence, actions);
        self.history.set(page, History { watched, dropped: true, ..History::default() });
        self.ledger.dropped_pages += 1;
        self.settle(page);
    }

    /// Drops a page of a tier that the paper's policy does not have. Returns whether there was one.
    pub(super) fn drop_extra(&mut self, tier: Tier, actions: &mut impl Actions) -> bool {
        let hand = &mut self.extra_hands[tier as usize];
        let Some(page) = self.extra[tier as usize].next_around(*hand) else {
            return false;
        };
        *hand = page + 1;
        self.expel(page, Reason::Victim, actions);
        true
    }

    /// The page leaves, in the tables as well.
    pub(super) fn expel(&mut self, page: u32, why: Reason, actions: &mut impl Actions) {
        self.judge_move_up(page);
        self.dram.remove(page);
        self.extra.iter_mut().for_each(|pages| pages.remove(page));
        self.history.set(page, History::default());
        self.pages.expel(page, why, actions);
    }

    /// Has an eye on what becomes of a page of DRAM, if it is clean. Returns its class.
    fn watch(&mut self, page: u32) -> Option<Class> {
        if self.pages.state(page).is_dirty() {
            return None;
        }
        let history = self.history.get(page);
        let class = Class::new(history.hits, history.sequential, history.returned);
        let watched = history.watched.or(Some(class));
        self.history.set(page, History { watched, ..history });
        Some(class)
    }

    /// Something became of a page, which tells of its class if it was watched.
    pub(super) fn learn(&mut self, page: u32, used: bool) {
        let history = self.history.get(page);
        if let Some(class) = history.watched {
            self.odds.learn(class, used);
            let returned = history.returned | used;
            self.history.set(page, History { watched: None, returned, ..history });
        }
    }

    /// Forgets a page that was dropped, if it was. Returns whether it was.
    pub(super) fn forget_dropped(&mut self, page: u32) -> bool {
        let was_dropped = self.history.get(page).dropped;
        if was_dropped {
            self.ledger.dropped_pages -= 1;
            self.history.set(page, History::default());
        }
        was_dropped
    }
}

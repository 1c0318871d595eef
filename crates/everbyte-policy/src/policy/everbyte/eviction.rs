//! DRAM's victims: the choice between drop and demotion. Also the pages that the cache drops before
//! it needs their frames.
//!
//! Invariant: a page that the paper's policy has and we have not is marked as dropped, and counted.

use super::reuse::Class;
use super::{Everbyte, History, PAGE, PROMOTE_LINES_MAX, PROMOTE_LINES_MIN};
use crate::access::PageNo;
use crate::policy::action::{Action, Actions, LineMask, Reason, Tier};
use crate::policy::directory::State;
use crate::policy::storage::{PageSet, Storage, Table};

/// Lines that a promoted page should take before it is demoted.
const WORTHWHILE_LINES: u16 = 64;
/// Candidates that the hand passes because the paper's policy will evict them within a turn, before
/// it takes the one of them that it evicts last.
const PASSED_MAX: u32 = 32;

/// DRAM's victim, and its destination.
enum DramVictim {
    Drop(u32),
    Demote(u32),
}

impl<S: Storage> Everbyte<S> {
    /// Frees a frame of DRAM, which has a page.
    pub(super) fn make_room(&mut self, why: Reason, actions: &mut impl Actions) {
        if self.drop_extra(Tier::Dram, actions) {
            return;
        }
        match self.choose_page() {
            DramVictim::Drop(page) => self.drop_early(page, actions),
            DramVictim::Demote(page) => self.demote(page, why, actions),
        }
    }

    fn demote(&mut self, page: u32, why: Reason, actions: &mut impl Actions) {
        self.free_frame_of_scm(actions);
        self.judge_promotion(page);
        self.dram.remove(page);
        let dirty = self.pages.remove(page).is_dirty();
        self.pages.insert(page, Tier::Scm, State::default().with_if(dirty, State::DIRTY));
        let watched = self.history.get(page).watched;
        self.history.set(page, History { watched, ..History::default() });
        self.settle(page);
        self.budget.scm_bytes += PAGE;
        let (page, to, lines) = (PageNo(page), Tier::Scm, LineMask::ALL);
        actions.act(Action::Move { page, to, lines, dirty, why });
    }

    /// Frees a frame of SCM for a page of the paper's policy. A full SCM has an extra page then:
    /// lemma 5 of `docs/simulation.md`.
    pub(super) fn free_frame_of_scm(&mut self, actions: &mut impl Actions) {
        if self.pages.is_full(Tier::Scm) {
            let freed = self.drop_extra(Tier::Scm, actions);
            debug_assert!(freed, "the paper's policy has more pages than frames");
        }
    }

    /// Chooses DRAM's victim: within the budget, a page that will hardly be used again, to be
    /// dropped if the budget of misses allows it, else a page that will stay in the cache for long;
    /// beyond the budget, a misplaced page only, so that those that stay misplaced are evicted
    /// soon.
    fn choose_page(&mut self) -> DramVictim {
        let over_budget = self.is_over_budget();
        let (mut best, mut best_life) = (None, 0);
        for _ in 0..PASSED_MAX {
            let misplaced =
                if over_budget { self.misplaced[0].next_around(self.hand) } else { None };
            let page = misplaced.unwrap_or_else(|| self.next_unspared());
            self.hand = page + 1;
            let class = self.watch(page);
            if !over_budget && class.is_some_and(|class| self.may_drop(class)) {
                return DramVictim::Drop(page);
            }
            let life = self.paper.life(page);
            if life >= self.paper.turn() {
                return DramVictim::Demote(page);
            }
            if best.is_none() || life > best_life {
                (best, best_life) = (Some(page), life);
            }
        }
        DramVictim::Demote(best.expect("pages were passed"))
    }

    fn may_drop(&self, class: Class) -> bool {
        self.reuse.is_seldom_used(class) && self.budget.may_miss(&self.paper)
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

    /// Adapts the threshold of promotions to whether the page, if it was promoted, was worth it.
    pub(super) fn judge_promotion(&mut self, page: u32) {
        let history = self.history.get(page);
        if history.promoted {
            self.promote_lines = if history.lines < WORTHWHILE_LINES {
                (self.promote_lines.saturating_mul(2)).min(PROMOTE_LINES_MAX)
            } else {
                (self.promote_lines / 2).max(PROMOTE_LINES_MIN)
            };
        }
    }

    /// Drops a clean page of DRAM that the paper's policy has.
    fn drop_early(&mut self, page: u32, actions: &mut impl Actions) {
        let watched = self.history.get(page).watched;
        self.evict(page, Reason::NoEvidence, actions);
        self.history.set(page, History { watched, dropped: true, ..History::default() });
        self.budget.dropped_pages += 1;
        self.settle(page);
    }

    /// Drops an extra page of a tier: one that the paper's policy does not have. Returns true if
    /// there was one.
    pub(super) fn drop_extra(&mut self, tier: Tier, actions: &mut impl Actions) -> bool {
        let hand = &mut self.extra_hands[tier as usize];
        let Some(page) = self.extra[tier as usize].next_around(*hand) else {
            return false;
        };
        *hand = page + 1;
        self.evict(page, Reason::Victim, actions);
        true
    }

    /// Evicts the page, and clears its tables.
    pub(super) fn evict(&mut self, page: u32, why: Reason, actions: &mut impl Actions) {
        self.judge_promotion(page);
        self.dram.remove(page);
        self.extra.iter_mut().for_each(|pages| pages.remove(page));
        self.history.set(page, History::default());
        self.pages.evict(page, why, actions);
    }

    /// Watches a page of DRAM, if it is clean, until it is used or evicted. Returns its class.
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

    /// Counts the use or eviction of a page for its class, if it was watched.
    pub(super) fn learn(&mut self, page: u32, used: bool) {
        let history = self.history.get(page);
        if let Some(class) = history.watched {
            self.reuse.learn(class, used);
            let returned = history.returned | used;
            self.history.set(page, History { watched: None, returned, ..history });
        }
    }

    /// Forgets that a page was dropped. Returns true if it was.
    pub(super) fn forget_dropped(&mut self, page: u32) -> bool {
        let was_dropped = self.history.get(page).dropped;
        if was_dropped {
            self.budget.dropped_pages -= 1;
            self.history.set(page, History::default());
        }
        was_dropped
    }
}

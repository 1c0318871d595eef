//! M-CLOCK-like: two CLOCKs; a page of PRAM moves up at its second write, not its first; among the
//! pages that DRAM could give up, clean ones go first.
//!
//! After Lee, Kang, Kim and Eom, "M-CLOCK: Migration-Optimized Page Replacement Algorithm for Hybrid
//! DRAM and PCM Memory Architecture", SAC 2015, of which we had no full text, hence "-like". From
//! what is told of it: two CLOCKs, the lazy move (the first write sets a bit, the next moves the
//! page), and clean cold victims first. Ours: what is read comes to PRAM, what is written to DRAM; the
//! hand looks at up to 64 pages for one that is clean and unreferenced, clearing reference
//! bits, then takes the first unreferenced one; what leaves DRAM moves to PRAM.
//!
//! Not for small writes that repeat: every second one moves two pages.

use super::Policy;
use super::action::{Action, Actions, LineMask, Reason, Tier};
use super::residents::{Capacity, Residents, State};
use super::ring::{Ring, sweep};
use super::space::Space;
use crate::access::{Access, Op, PageNo};

/// The page was written once since it came to PRAM.
const WRITTEN_ONCE: State = State::MARK_A;
/// Pages of DRAM that the hand looks at for a clean one.
const LOOK_MAX: u32 = 64;

/// Two CLOCKs with lazy moves.
pub struct MClock<S: Space> {
    pages: Residents<S>,
    dram: Ring<S>,
    pram: Ring<S>,
}

impl<S: Space> MClock<S> {
    /// An empty cache of two tiers.
    #[must_use]
    pub fn new(space: S, capacity: Capacity) -> Self {
        let pages = Residents::new(space, capacity);
        Self { pages, dram: Ring::new(space), pram: Ring::new(space) }
    }

    fn dram_victim(&mut self) -> u32 {
        for _ in 0..self.pages.used().dram.min(LOOK_MAX) {
            let page = self.dram.advance();
            let state = self.pages.state(page);
            if !state.has(State::REFERENCED.with(State::DIRTY)) {
                return page;
            }
            self.pages.set_state(page, state.without(State::REFERENCED));
        }
        sweep(&mut self.dram, &mut self.pages)
    }

    fn evict(&mut self, actions: &mut impl Actions) {
        let victim = sweep(&mut self.pram, &mut self.pages);
        self.pram.remove(victim);
        self.pages.expel(victim, Reason::Victim, actions);
    }

    fn demote(&mut self, why: Reason, actions: &mut impl Actions) {
        if self.pages.is_full(Tier::Pram) {
            self.evict(actions);
        }
        let page = self.dram_victim();
        self.dram.remove(page);
        let dirty = self.pages.leave(page).is_dirty();
        self.pages.enter(page, Tier::Pram, State::default().with_if(dirty, State::DIRTY));
        self.pram.insert(page);
        let (page, to, lines) = (PageNo(page), Tier::Pram, LineMask::ALL);
        actions.act(Action::Move { page, to, lines, dirty, why });
    }

    fn promote(&mut self, page: u32, actions: &mut impl Actions) {
        self.pram.remove(page);
        let dirty = self.pages.leave(page).is_dirty();
        let (to, lines, why) = (Tier::Dram, LineMask::ALL, Reason::WriteHot);
        actions.act(Action::Move { page: PageNo(page), to, lines, dirty, why });
        if self.pages.is_full(Tier::Dram) {
            self.demote(Reason::Swapped, actions);
        }
        self.pages.enter(page, Tier::Dram, State::REFERENCED.with(State::DIRTY));
        self.dram.insert(page);
    }

    fn hit(&mut self, access: Access, state: State, found: Tier, actions: &mut impl Actions) {
        let page = access.page.0;
        let mut bits = state.with(State::REFERENCED);
        let mut served = found;
        if access.op == Op::Write && found == Tier::Pram && state.has(WRITTEN_ONCE) {
            self.promote(page, actions);
            served = Tier::Dram;
        } else {
            if access.op == Op::Write {
                bits = self.pages.soil(page, bits).with_if(found == Tier::Pram, WRITTEN_ONCE);
            }
            self.pages.set_state(page, bits);
        }
        actions.act(Action::Hit { found, served });
    }
}

impl<S: Space> Policy for MClock<S> {
    type Space = S;

    fn residents(&self) -> &Residents<S> {
        &self.pages
    }

    fn residents_mut(&mut self) -> &mut Residents<S> {
        &mut self.pages
    }

    fn access(&mut self, access: Access, actions: &mut impl Actions) {
        let page = access.page.0;
        let state = self.pages.state(page);
        if let Some(tier) = state.tier() {
            self.hit(access, state, tier, actions);
            return;
        }
        let tier = match access.op {
            Op::Read => Tier::Pram,
            Op::Write => Tier::Dram,
        };
        if self.pages.is_full(tier) {
            match tier {
                Tier::Dram => self.demote(Reason::Victim, actions),
                Tier::Pram => self.evict(actions),
            }
        }
        let bits = State::default().with_if(access.op == Op::Write, State::DIRTY);
        self.pages.enter(page, tier, bits);
        match tier {
            Tier::Dram => self.dram.insert(page),
            Tier::Pram => self.pram.insert(page),
        }
        let why = Reason::of_miss(access.op);
        actions.act(Action::Fill { page: access.page, tier, why });
    }

    fn remove(&mut self, page: PageNo) {
        match self.pages.leave(page.0).tier() {
            Some(Tier::Dram) => self.dram.remove(page.0),
            Some(Tier::Pram) => self.pram.remove(page.0),
            None => {}
        }
    }

    fn reclaim(&mut self, tier: Tier, actions: &mut impl Actions) {
        match tier {
            Tier::Dram => self.demote(Reason::Shrunk, actions),
            Tier::Pram => self.evict(actions),
        }
    }
}

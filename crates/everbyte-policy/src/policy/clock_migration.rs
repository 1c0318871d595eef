//! CLOCK with migration: what comes goes to DRAM; the page that DRAM has not used for longest
//! moves to PRAM; the page that PRAM has not used for longest goes.
//!
//! The baseline of the paper on the hybrid buffer cache. It says no more than "CLOCK with
//! migration of the DRAM page not used for longest". We fill in: each tier has a CLOCK of its own
//! whose pages come with the reference bit clear; hits set it; a hit in PRAM is served in place
//! and nothing moves up. Every page that leaves DRAM costs PRAM a whole page, and that is the
//! reason not to use it.

use super::Policy;
use super::action::{Action, Actions, LineMask, Reason, Tier};
use super::residents::{Capacity, Residents, State};
use super::ring::{Ring, sweep};
use super::space::Space;
use crate::access::{Access, Op, PageNo};

/// Two CLOCKs in a row.
pub struct ClockMigration<S: Space> {
    pages: Residents<S>,
    dram: Ring<S>,
    pram: Ring<S>,
}

impl<S: Space> ClockMigration<S> {
    /// An empty cache of two tiers.
    #[must_use]
    pub fn new(space: S, capacity: Capacity) -> Self {
        let pages = Residents::new(space, capacity);
        Self { pages, dram: Ring::new(space), pram: Ring::new(space) }
    }

    fn ring(&mut self, tier: Tier) -> &mut Ring<S> {
        match tier {
            Tier::Dram => &mut self.dram,
            Tier::Pram => &mut self.pram,
        }
    }

    fn evict(&mut self, actions: &mut impl Actions) {
        let victim = sweep(&mut self.pram, &mut self.pages);
        self.pram.remove(victim);
        self.pages.expel(victim, Reason::Victim, actions);
    }

    fn demote(&mut self, actions: &mut impl Actions) {
        if self.pages.is_full(Tier::Pram) {
            self.evict(actions);
        }
        let page = sweep(&mut self.dram, &mut self.pages);
        self.dram.remove(page);
        let dirty = self.pages.leave(page).is_dirty();
        self.pages.enter(page, Tier::Pram, State::default().with_if(dirty, State::DIRTY));
        self.pram.insert(page);
        let why = Reason::Victim;
        let (page, to, lines) = (PageNo(page), Tier::Pram, LineMask::ALL);
        actions.act(Action::Move { page, to, lines, dirty, why });
    }
}

impl<S: Space> Policy for ClockMigration<S> {
    type Space = S;

    fn residents(&self) -> &Residents<S> {
        &self.pages
    }

    fn residents_mut(&mut self) -> &mut Residents<S> {
        &mut self.pages
    }

    #[inline]
    fn access(&mut self, access: Access, actions: &mut impl Actions) {
        let page = access.page.0;
        let state = self.pages.state(page);
        if let Some(tier) = state.tier() {
            let mut bits = state.with(State::REFERENCED);
            if access.op == Op::Write {
                bits = self.pages.soil(page, bits);
            }
            self.pages.set_state(page, bits);
            actions.act(Action::Hit { found: tier, served: tier });
            return;
        }
        if self.pages.is_full(Tier::Dram) {
            self.demote(actions);
        }
        let bits = State::default().with_if(access.op == Op::Write, State::DIRTY);
        self.pages.enter(page, Tier::Dram, bits);
        self.dram.insert(page);
        let why = Reason::of_miss(access.op);
        actions.act(Action::Fill { page: access.page, tier: Tier::Dram, why });
    }

    fn remove(&mut self, page: PageNo) {
        if let Some(tier) = self.pages.tier(page) {
            self.pages.leave(page.0);
            self.ring(tier).remove(page.0);
        }
    }

    fn reclaim(&mut self, tier: Tier, actions: &mut impl Actions) {
        match tier {
            Tier::Dram => self.demote(actions),
            Tier::Pram => self.evict(actions),
        }
    }
}

//! CLOCK: a ring of pages with a reference bit each, and a hand that takes the first page whose
//! bit is not set and clears bits on its way.
//!
//! F. J. Corbató, "A Paging Experiment with the Multics System", 1968. A page comes with its bit
//! clear, so one that is used once gets no second round. One tier. As good as LRU at a fraction
//! of the cost of a hit; no better than LRU against scans.

use super::Policy;
use super::action::{Action, Actions, Reason, Tier};
use super::residents::{Capacity, Residents, State};
use super::ring::{Ring, sweep};
use super::space::Space;
use crate::access::{Access, Op, PageNo};

/// CLOCK, also called second chance.
pub struct Clock<S: Space> {
    pages: Residents<S>,
    ring: Ring<S>,
}

impl<S: Space> Clock<S> {
    /// An empty cache of one tier.
    #[must_use]
    pub fn new(space: S, capacity: Capacity) -> Self {
        Self { pages: Residents::new(space, capacity.in_one_tier()), ring: Ring::new(space) }
    }
}

impl<S: Space> Policy for Clock<S> {
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
        if state.has(State::DRAM) {
            let mut bits = state.with(State::REFERENCED);
            if access.op == Op::Write {
                bits = self.pages.soil(page, bits);
            }
            if bits != state {
                self.pages.set_state(page, bits);
            }
            actions.act(Action::Hit { found: Tier::Dram, served: Tier::Dram });
            return;
        }
        if self.pages.is_full(Tier::Dram) {
            self.reclaim(Tier::Dram, actions);
        }
        let bits = State::default().with_if(access.op == Op::Write, State::DIRTY);
        self.pages.enter(page, Tier::Dram, bits);
        self.ring.insert(page);
        let why = Reason::of_miss(access.op);
        actions.act(Action::Fill { page: access.page, tier: Tier::Dram, why });
    }

    fn remove(&mut self, page: PageNo) {
        if self.pages.tier(page).is_some() {
            self.pages.leave(page.0);
            self.ring.remove(page.0);
        }
    }

    fn reclaim(&mut self, _: Tier, actions: &mut impl Actions) {
        let victim = sweep(&mut self.ring, &mut self.pages);
        self.ring.remove(victim);
        self.pages.expel(victim, Reason::Victim, actions);
    }
}

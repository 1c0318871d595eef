//! CLOCK with migration: every page comes to DRAM; DRAM's victim is demoted to SCM; SCM's victim is
//! evicted.
//!
//! The baseline of the paper on the hybrid buffer cache. The paper only says "CLOCK with migration
//! of the DRAM page not used for longest". Our additions: each tier has a CLOCK, and pages enter
//! with a clear reference bit. Hits set it. A hit in SCM is served in place and promotes nothing.
//! Every page evicted from DRAM costs SCM a whole page, the reason not to use this policy.

use super::Policy;
use super::action::{Action, Actions, Reason, Tier};
use super::directory::{Capacity, Directory, State};
use super::ring::{Ring, sweep};
use super::storage::Storage;
use crate::access::{Access, PageNo};

/// Two CLOCKs in a row.
pub struct ClockMigration<S: Storage> {
    pages: Directory<S>,
    dram: Ring<S>,
    scm: Ring<S>,
}

impl<S: Storage> ClockMigration<S> {
    /// Makes an empty cache of two tiers.
    #[must_use]
    pub fn new(storage: S, capacity: Capacity) -> Self {
        let pages = Directory::new(storage, capacity);
        Self { pages, dram: Ring::new(storage), scm: Ring::new(storage) }
    }

    fn ring(&mut self, tier: Tier) -> &mut Ring<S> {
        match tier {
            Tier::Dram => &mut self.dram,
            Tier::Scm => &mut self.scm,
        }
    }

    fn evict(&mut self, actions: &mut impl Actions) {
        let victim = sweep(&mut self.scm, &mut self.pages);
        self.scm.remove(victim);
        self.pages.evict(victim, Reason::Victim, actions);
    }

    fn demote(&mut self, actions: &mut impl Actions) {
        // SCM's victim leaves first: the demoted page needs its frame.
        if self.pages.is_full(Tier::Scm) {
            self.evict(actions);
        }
        let page = sweep(&mut self.dram, &mut self.pages);
        self.dram.remove(page);
        let dirty = self.pages.remove(page).is_dirty();
        // Unreferenced, or each page would pass SCM's hand once without a hit there.
        self.pages.insert(page, Tier::Scm, State::default().with_if(dirty, State::DIRTY));
        self.scm.insert(page);
        let why = Reason::Victim;
        actions.act(Action::Move { page: PageNo(page), to: Tier::Scm, dirty, why });
    }
}

impl<S: Storage> Policy for ClockMigration<S> {
    type Storage = S;

    fn directory(&self) -> &Directory<S> {
        &self.pages
    }

    fn directory_mut(&mut self) -> &mut Directory<S> {
        &mut self.pages
    }

    #[inline]
    fn access(&mut self, access: Access, actions: &mut impl Actions) {
        let page = access.page.0;
        let state = self.pages.state(page);
        if let Some(tier) = state.tier() {
            self.pages.touch(page, state, state.with(State::REFERENCED), access.op);
            actions.act(Action::Hit { found: tier, served: tier });
            return;
        }
        if self.pages.is_full(Tier::Dram) {
            // Every miss enters DRAM and so demotes a page: two page copies for each miss of a full
            // cache.
            self.demote(actions);
        }
        self.pages.fill(access, Tier::Dram, actions);
        self.dram.insert(page);
    }

    fn remove(&mut self, page: PageNo) {
        if let Some(tier) = self.pages.tier(page) {
            self.pages.remove(page.0);
            self.ring(tier).remove(page.0);
        }
    }

    fn reclaim(&mut self, tier: Tier, actions: &mut impl Actions) {
        match tier {
            Tier::Dram => self.demote(actions),
            Tier::Scm => self.evict(actions),
        }
    }
}

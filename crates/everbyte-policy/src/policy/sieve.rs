//! SIEVE: a queue in the order of arrival with a bit for used pages, and a hand from old to new. It
//! takes the first page with a clear bit and clears bits on its way.
//!
//! Zhang et al., "SIEVE is Simpler than LRU", NSDI 2024. Unlike CLOCK's, a page that is spared
//! keeps its place, so new pages are tried soon. One tier. Not for loops longer than the cache, and
//! no scan resistance to speak of on blocks, as its authors say.

use super::Policy;
use super::action::{Action, Actions, Reason, Tier};
use super::directory::{Capacity, Directory, State};
use super::lists::Lists;
use super::storage::Storage;
use crate::access::{Access, PageNo};

/// SIEVE.
pub struct Sieve<S: Storage> {
    pages: Directory<S>,
    queue: Lists<S, 1>,
    /// The page that the hand looks at next; the oldest if there is none.
    hand: Option<u32>,
}

impl<S: Storage> Sieve<S> {
    /// Makes an empty cache of one tier.
    #[must_use]
    pub fn new(storage: S, capacity: Capacity) -> Self {
        let pages = Directory::new(storage, capacity.in_one_tier());
        Self { pages, queue: Lists::new(storage), hand: None }
    }

    fn take(&mut self, page: u32) {
        // The hand goes on with the next newer page. A reset to the oldest would test spared pages
        // twice.
        if self.hand == Some(page) {
            self.hand = self.queue.newer(page);
        }
        self.queue.remove(0, page);
    }
}

impl<S: Storage> Policy for Sieve<S> {
    type Storage = S;

    fn directory(&self) -> &Directory<S> {
        &self.pages
    }

    fn directory_mut(&mut self) -> &mut Directory<S> {
        &mut self.pages
    }

    fn access(&mut self, access: Access, actions: &mut impl Actions) {
        let page = access.page.0;
        let state = self.pages.state(page);
        if state.has(State::DRAM) {
            self.pages.touch(page, state, state.with(State::REFERENCED), access.op);
            actions.act(Action::Hit { found: Tier::Dram, served: Tier::Dram });
            return;
        }
        if self.pages.is_full(Tier::Dram) {
            self.reclaim(Tier::Dram, actions);
        }
        self.pages.fill(access, Tier::Dram, actions);
        // At the newest end and unreferenced, whatever the hand's place: SIEVE's quick demotion of
        // new pages.
        self.queue.push_front(0, page);
    }

    fn remove(&mut self, page: PageNo) {
        if self.pages.tier(page).is_some() {
            self.pages.remove(page.0);
            self.take(page.0);
        }
    }

    fn reclaim(&mut self, _: Tier, actions: &mut impl Actions) {
        loop {
            // Past the newest page the hand wraps to the oldest.
            let page = self.hand.or_else(|| self.queue.back(0)).expect("a full tier has a page");
            let state = self.pages.state(page);
            if !state.has(State::REFERENCED) {
                // So that `take` moves the hand on from the victim.
                self.hand = Some(page);
                self.take(page);
                self.pages.evict(page, Reason::Victim, actions);
                return;
            }
            // Unlike CLOCK, a spared page keeps its place: only the hand moves.
            self.pages.set_state(page, state.without(State::REFERENCED));
            self.hand = self.queue.newer(page);
        }
    }
}

//! LRU: evicts the page that has not been used for longest.
//!
//! The yardstick of every paper on caches; one tier. Not for use on block storage: every hit
//! writes to a shared order, and one scan longer than the cache empties it.

use super::Policy;
use super::action::{Action, Actions, Reason, Tier};
use super::directory::{Capacity, Directory, State};
use super::recency::Recency;
use super::storage::Storage;
use crate::access::{Access, PageNo};

/// Least recently used.
pub struct Lru<S: Storage> {
    pages: Directory<S>,
    order: Recency<S>,
}

impl<S: Storage> Lru<S> {
    /// Makes an empty cache of one tier.
    #[must_use]
    pub fn new(storage: S, capacity: Capacity) -> Self {
        let pages = Directory::new(storage, capacity.in_one_tier());
        Self { pages, order: Recency::new(storage) }
    }
}

impl<S: Storage> Policy for Lru<S> {
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
        if state.has(State::DRAM) {
            // Reads and writes count alike: recency knows no cost of a write-back.
            self.order.touch(page);
            self.pages.touch(page, state, state, access.op);
            actions.act(Action::Hit { found: Tier::Dram, served: Tier::Dram });
            return;
        }
        if self.pages.is_full(Tier::Dram) {
            self.reclaim(Tier::Dram, actions);
        }
        self.pages.fill(access, Tier::Dram, actions);
        self.order.touch(page);
    }

    fn remove(&mut self, page: PageNo) {
        if self.pages.tier(page).is_some() {
            self.pages.remove(page.0);
            self.order.remove(page.0);
        }
    }

    fn reclaim(&mut self, _: Tier, actions: &mut impl Actions) {
        if let Some(victim) = self.order.pop_oldest() {
            self.pages.evict(victim, Reason::Victim, actions);
        }
    }
}

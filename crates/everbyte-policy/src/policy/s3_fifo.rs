//! S3-FIFO: a small queue for new pages, a main queue for pages used in it, and a queue of ghosts,
//! whose pages return straight to the main queue.
//!
//! Yang et al., "FIFO Queues are All You Need for Cache Eviction", SOSP 2023: a tenth of the cache
//! is the small queue; counters end at 3; a page moves to the main queue after two uses in the
//! small one; the number of ghosts is the main queue's number of frames. In the paper, EVICTS calls
//! EVICTM when a page moves to a full main queue. Here it does not: it evicts only pages of the
//! small queue, and the main queue may exceed its share. One tier. Unsuitable for pages with one
//! further use shortly after the small queue's time: it fetches them twice.

use std::collections::VecDeque;

use super::Policy;
use super::action::{Action, Actions, Reason, Tier};
use super::directory::{Capacity, Directory, State};
use super::lists::Lists;
use super::storage::{Storage, Table};
use crate::access::{Access, Op, PageNo};

const SMALL: usize = 0;
const MAIN: usize = 1;
const USES_MAX: u8 = 3;

#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Uses {
    count: u8,
    in_main: bool,
}

/// S3-FIFO.
pub struct S3Fifo<S: Storage> {
    pages: Directory<S>,
    queues: Lists<S, 2>,
    uses: S::Table<Uses>,
    /// The number of a page's eviction from the small queue; 0 without a ghost.
    ghosts: S::Table<u32>,
    ghost_order: VecDeque<(u32, u32)>,
    evictions: u32,
}

impl<S: Storage> S3Fifo<S> {
    /// Makes an empty cache of one tier.
    #[must_use]
    pub fn new(storage: S, capacity: Capacity) -> Self {
        Self {
            pages: Directory::new(storage, capacity.in_one_tier()),
            queues: Lists::new(storage),
            uses: storage.table(),
            ghosts: storage.table(),
            ghost_order: VecDeque::new(),
            evictions: 0,
        }
    }

    fn small_max(&self) -> u32 {
        (self.pages.capacity.dram / 10).max(1)
    }

    fn haunt(&mut self, page: u32) {
        // 0 means no ghost, so the counter skips it when it wraps.
        self.evictions = self.evictions.wrapping_add(1).max(1);
        self.ghosts.set(page, self.evictions);
        self.ghost_order.push_back((page, self.evictions));
        // The paper's ghost queue has as many entries as the main queue has frames.
        let ghosts_max = self.pages.capacity.dram - self.small_max().min(self.pages.capacity.dram);
        while self.ghost_order.len() > ghosts_max as usize {
            // A page that returned and left again has a later entry. Its older entry must not
            // remove that ghost.
            if let Some((page, eviction)) = self.ghost_order.pop_front()
                && self.ghosts.get(page) == eviction
            {
                self.ghosts.set(page, 0);
            }
        }
    }

    fn evict(&mut self, page: u32, why: Reason, actions: &mut impl Actions) {
        self.uses.set(page, Uses::default());
        self.pages.evict(page, why, actions);
    }

    /// Sorts the oldest pages of the small queue until one is evicted. Returns true if one was.
    fn evict_small(&mut self, actions: &mut impl Actions) -> bool {
        while let Some(page) = self.queues.pop_back(SMALL) {
            // One use is not enough: most pages of the small queue are used once more at most (the
            // paper's one-hit wonders).
            if self.uses.get(page).count < 2 {
                self.evict(page, Reason::NoEvidence, actions);
                // Only the small queue leaves ghosts: they show that it was too short for this
                // page.
                self.haunt(page);
                return true;
            }
            // The count starts again, so that the uses in the small queue do not protect the page
            // in the main one.
            self.uses.set(page, Uses { count: 0, in_main: true });
            self.queues.push_front(MAIN, page);
        }
        false
    }

    fn evict_main(&mut self, actions: &mut impl Actions) {
        while let Some(page) = self.queues.pop_back(MAIN) {
            let uses = self.uses.get(page);
            if uses.count == 0 {
                self.evict(page, Reason::Victim, actions);
                return;
            }
            // A page re-enters at most three times without a use, so the loop ends.
            self.uses.set(page, Uses { count: uses.count - 1, in_main: true });
            self.queues.push_front(MAIN, page);
        }
    }
}

impl<S: Storage> Policy for S3Fifo<S> {
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
            let uses = self.uses.get(page);
            // Two bits in the paper: without a bound a formerly popular page would pass the main
            // queue for long.
            if uses.count < USES_MAX {
                self.uses.set(page, Uses { count: uses.count + 1, ..uses });
            }
            self.pages.touch(page, state, state, access.op);
            actions.act(Action::Hit { found: Tier::Dram, served: Tier::Dram });
            return;
        }
        // Before the eviction, which can push this very ghost out of its queue.
        let returned = self.ghosts.get(page) != 0;
        if self.pages.is_full(Tier::Dram) {
            self.reclaim(Tier::Dram, actions);
        }
        self.ghosts.set(page, 0);
        let bits = State::default().with_if(access.op == Op::Write, State::DIRTY);
        self.pages.insert(page, Tier::Dram, bits);
        self.uses.set(page, Uses { count: 0, in_main: returned });
        self.queues.push_front(if returned { MAIN } else { SMALL }, page);
        let why = if returned { Reason::GhostHit } else { Reason::of_miss(access.op) };
        actions.act(Action::Fill { page: access.page, tier: Tier::Dram, why });
    }

    fn remove(&mut self, page: PageNo) {
        if self.pages.tier(page).is_some() {
            self.pages.remove(page.0);
            let queue = if self.uses.get(page.0).in_main { MAIN } else { SMALL };
            self.queues.remove(queue, page.0);
            self.uses.set(page.0, Uses::default());
        }
    }

    fn reclaim(&mut self, _: Tier, actions: &mut impl Actions) {
        // The main queue gives a frame while the small one is below its tenth: new pages need that
        // time to be used again.
        let small_is_full = self.queues.len(SMALL) >= self.small_max();
        if !(small_is_full && self.evict_small(actions)) {
            // Without a page in the main queue the sweep below finds no victim, although the small
            // queue has pages.
            if self.queues.len(MAIN) == 0 {
                self.queues_move_all();
            }
            self.evict_main(actions);
        }
    }
}

impl<S: Storage> S3Fifo<S> {
    /// With an empty main queue the oldest new page is evicted, used or not.
    fn queues_move_all(&mut self) {
        if let Some(page) = self.queues.pop_back(SMALL) {
            self.uses.set(page, Uses { count: 0, in_main: true });
            self.queues.push_front(MAIN, page);
        }
    }
}

//! Belady's MIN: evicts the page whose next use is farthest away. No policy can have more hits.
//!
//! L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems
//! Journal 5(2), 1966. One tier; knows the future, so it is for simulations only. It takes every
//! page that misses, and does not weigh write-backs.

use std::collections::BinaryHeap;

use super::Policy;
use super::action::{Action, Actions, Reason, Tier};
use super::directory::{Capacity, Directory, State};
use super::storage::{Storage, Table};
use crate::access::{Access, Op, PageNo};

/// No further use.
const NEVER: u32 = u32::MAX;

/// The offline optimum.
pub struct Belady<S: Storage> {
    pages: Directory<S>,
    /// For each access the number of the next access to its page.
    future: Vec<u32>,
    now: usize,
    next_use: S::Table<u32>,
    /// Pages by next use; entries whose use has passed are skipped.
    farthest: BinaryHeap<(u32, u32)>,
}

/// The number of the next access to the page of each access.
pub struct Future<S: Storage> {
    next: Vec<u32>,
    /// 1 more than the number of the latest access to each page.
    latest: S::Table<u32>,
}

impl<S: Storage> Future<S> {
    /// Makes the future of no accesses.
    #[must_use]
    pub fn new(storage: S) -> Self {
        Self { next: Vec::new(), latest: storage.table() }
    }

    /// Adds an access behind the others.
    ///
    /// # Panics
    /// With 2^32 accesses or more.
    pub fn push(&mut self, access: &Access) {
        let number = u32::try_from(self.next.len()).expect("access numbers are 32 bits wide");
        let before = self.latest.get(access.page.0);
        if let Some(before) = before.checked_sub(1) {
            self.next[before as usize] = number;
        }
        self.latest.set(access.page.0, number.saturating_add(1));
        self.next.push(NEVER);
    }
}

impl<S: Storage> Belady<S> {
    /// Makes an empty cache of one tier, for exactly these accesses in this order.
    ///
    /// # Panics
    /// With 2^32 accesses or more.
    #[must_use]
    pub fn new(storage: S, capacity: Capacity, accesses: &[Access]) -> Self {
        let mut future = Future::new(storage);
        accesses.iter().for_each(|access| future.push(access));
        Self::with_future(storage, capacity, future)
    }

    /// Makes an empty cache of one tier, for exactly the accesses of `future` in their order.
    #[must_use]
    pub fn with_future(storage: S, capacity: Capacity, future: Future<S>) -> Self {
        Self {
            pages: Directory::new(storage, capacity.in_one_tier()),
            future: future.next,
            now: 0,
            next_use: storage.table(),
            farthest: BinaryHeap::new(),
        }
    }

    fn note_use(&mut self, page: u32) {
        let next = self.future.as_slice().get(self.now).copied().unwrap_or(NEVER);
        self.now += 1;
        self.next_use.set(page, next);
        self.farthest.push((next, page));
    }
}

impl<S: Storage> Policy for Belady<S> {
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
            if access.op == Op::Write {
                let state = self.pages.mark_dirty(page, state);
                self.pages.set_state(page, state);
            }
            self.note_use(page);
            actions.act(Action::Hit { found: Tier::Dram, served: Tier::Dram });
            return;
        }
        if self.pages.is_full(Tier::Dram) {
            self.reclaim(Tier::Dram, actions);
        }
        let bits = State::default().with_if(access.op == Op::Write, State::DIRTY);
        self.pages.insert(page, Tier::Dram, bits);
        self.note_use(page);
        let why = Reason::of_miss(access.op);
        actions.act(Action::Fill { page: access.page, tier: Tier::Dram, why });
    }

    fn remove(&mut self, page: PageNo) {
        self.pages.remove(page.0);
    }

    fn reclaim(&mut self, _: Tier, actions: &mut impl Actions) {
        while let Some((next, page)) = self.farthest.pop() {
            if self.pages.state(page).has(State::DRAM) && self.next_use.get(page) == next {
                self.pages.evict(page, Reason::Victim, actions);
                return;
            }
        }
    }
}

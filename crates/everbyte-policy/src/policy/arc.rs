//! ARC: one LRU of pages used once and one of pages used again, with ghosts of both that move the
//! border between them.
//!
//! Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003. The step by
//! which the border moves (the paper's delta) is the quotient of the ghosts' lists and at least 1, so the
//! border is a fraction. One tier. Not for many threads: every hit moves a page
//! between lists.

use super::action::{Action, Actions, Reason, Tier};
use super::directory::{Capacity, Directory, State};
use super::lists::Lists;
use super::storage::{Storage, Table};
use super::{Policy, resize};
use crate::access::{Access, Op, PageNo};

const T1: usize = 0;
const T2: usize = 1;
const B1: usize = 2;
const B2: usize = 3;

/// The adaptive replacement cache.
pub struct Arc<S: Storage> {
    pages: Directory<S>,
    lists: Lists<S, 4>,
    /// The number of the page's list, plus 1; 0 for none.
    places: S::Table<u8>,
    /// Size that the list of pages used once should have.
    target: f64,
}

impl<S: Storage> Arc<S> {
    /// Makes an empty cache of one tier.
    #[must_use]
    pub fn new(storage: S, capacity: Capacity) -> Self {
        let pages = Directory::new(storage, capacity.in_one_tier());
        Self { pages, lists: Lists::new(storage), places: storage.table(), target: 0.0 }
    }

    fn place(&self, page: u32) -> Option<usize> {
        usize::from(self.places.get(page)).checked_sub(1)
    }

    fn take(&mut self, page: u32) {
        if let Some(list) = self.place(page) {
            self.lists.remove(list, page);
            self.places.set(page, 0);
        }
    }

    fn put(&mut self, list: usize, page: u32) {
        self.lists.push_front(list, page);
        self.places.set(page, [1, 2, 3, 4][list]);
    }

    /// Turns the oldest page of one of the lists into a ghost: the paper's REPLACE.
    fn replace(&mut self, came_from_b2: bool, actions: &mut impl Actions) {
        let once = f64::from(self.lists.len(T1));
        // The paper's tie-break: with T1 exactly at its target, a hit in B2 shrinks T1, because
        // that hit is evidence for pages used again.
        let over = if came_from_b2 { once >= self.target } else { once > self.target };
        let (from, to) =
            // REPLACE assumes that the chosen list has a page. Removals can empty T2, so T1 then
            // gives the page.
            if once > 0.0 && (over || self.lists.len(T2) == 0) { (T1, B1) } else { (T2, B2) };
        if let Some(page) = self.lists.back(from) {
            // The ghost keeps the page's place in the order, so a later hit tells which list was
            // too small.
            self.take(page);
            self.put(to, page);
            self.pages.evict(page, Reason::Victim, actions);
        }
    }

    /// Moves the border towards the list whose ghost came back.
    fn adapt(&mut self, ghost_of: usize) {
        // An empty ghost list counts as 1: the quotient is then the other list's length, not
        // infinite.
        let length = |list| f64::from(self.lists.len(list).max(1));
        let (ones, twos) = (length(B1), length(B2));
        // A ghost of a short list is rarer, so its return moves the border farther: at least by one
        // frame, as the paper's delta.
        self.target = if ghost_of == B1 {
            (self.target + (twos / ones).max(1.0)).min(f64::from(self.pages.capacity.dram))
        } else {
            (self.target - (ones / twos).max(1.0)).max(0.0)
        };
    }

    /// Makes room for a page that is in no list.
    fn admit_stranger(&mut self, actions: &mut impl Actions) {
        let size = self.pages.capacity.dram;
        let (once, ghosts_once) = (self.lists.len(T1), self.lists.len(B1));
        let known = once + ghosts_once + self.lists.len(T2) + self.lists.len(B2);
        // Case IV of the paper: T1 and B1 together know at most as many pages as the cache has
        // frames.
        if once + ghosts_once >= size {
            if once < size {
                self.drop_ghost(B1);
                // Pages may have been removed.
                if self.pages.is_full(Tier::Dram) {
                    self.replace(false, actions);
                }
            // T1 fills the cache alone. The paper evicts its oldest page without a ghost, because
            // B1 must stay empty here.
            } else if let Some(page) = self.lists.back(T1) {
                self.take(page);
                self.pages.evict(page, Reason::NoEvidence, actions);
            }
        } else if known >= size {
            // All four lists know at most twice the frames. T1 and B1 are below their share, so B2
            // has the surplus.
            if known >= size.saturating_mul(2) {
                self.drop_ghost(B2);
            }
            if self.pages.is_full(Tier::Dram) {
                self.replace(false, actions);
            }
        }
    }

    fn drop_ghost(&mut self, list: usize) {
        if let Some(page) = self.lists.back(list) {
            self.take(page);
        }
    }

    /// Forgets the ghosts that a cache of this size would not have: it knows as many pages used once as it
    /// has frames, and twice as many pages in all.
    fn drop_surplus_ghosts(&mut self) {
        let size = self.pages.capacity.dram;
        // B1 first: its bound depends on T1 alone, and ghosts dropped here count for the second
        // bound too.
        while self.lists.len(T1) + self.lists.len(B1) > size && self.lists.len(B1) > 0 {
            self.drop_ghost(B1);
        }
        let all: u64 = (T1..=B2).map(|list| u64::from(self.lists.len(list))).sum();
        // More pages than this exist before all evictions are done, regardless of forgotten ones.
        let surplus = all.saturating_sub(u64::from(size) * 2);
        for _ in 0..surplus.min(u64::from(self.lists.len(B2))) {
            self.drop_ghost(B2);
        }
    }
}

impl<S: Storage> Policy for Arc<S> {
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
            // Every hit leads to T2, from either list: a second use is the whole evidence that ARC
            // needs.
            self.take(page);
            self.put(T2, page);
            self.pages.touch(page, state, state, access.op);
            actions.act(Action::Hit { found: Tier::Dram, served: Tier::Dram });
            return;
        }
        let ghost = self.place(page);
        if let Some(list) = ghost {
            // Before REPLACE, as in the paper: the victim is chosen with the new border.
            self.adapt(list);
            if self.pages.is_full(Tier::Dram) {
                self.replace(list == B2, actions);
            }
            self.take(page);
        } else {
            self.admit_stranger(actions);
        }
        // A ghost's page was used twice in the time that the lists remember, so it does not start
        // in T1.
        self.put(if ghost.is_some() { T2 } else { T1 }, page);
        let bits = State::default().with_if(access.op == Op::Write, State::DIRTY);
        self.pages.insert(page, Tier::Dram, bits);
        let why = if ghost.is_some() { Reason::GhostHit } else { Reason::of_miss(access.op) };
        actions.act(Action::Fill { page: access.page, tier: Tier::Dram, why });
    }

    fn remove(&mut self, page: PageNo) {
        self.pages.remove(page.0);
        self.take(page.0);
    }

    fn reclaim(&mut self, _: Tier, actions: &mut impl Actions) {
        // Before the eviction: a target beyond the smaller cache would spare T1 throughout.
        self.target = self.target.min(f64::from(self.pages.capacity.dram));
        self.replace(false, actions);
        self.drop_surplus_ghosts();
    }

    fn resize(&mut self, capacity: Capacity, actions: &mut impl Actions) {
        resize(self, capacity, actions);
        // No page may have had to go.
        self.target = self.target.min(f64::from(self.pages.capacity.dram));
        self.drop_surplus_ghosts();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Dense;

    fn cache(dram: u32) -> Arc<Dense> {
        Arc::new(Dense { pages: 100 }, Capacity { dram, scm: 0 })
    }

    fn read(policy: &mut Arc<Dense>, page: u32) -> Vec<Action> {
        let mut actions = Vec::new();
        let access = Access { page: PageNo(page), start: 0, len: 1, op: Op::Read };
        policy.access(access, &mut actions);
        actions
    }

    fn known(policy: &Arc<Dense>) -> u32 {
        (T1..=B2).map(|list| policy.lists.len(list)).sum()
    }

    #[test]
    fn shrunk_cache_remembers_as_one_of_its_size() {
        for is_emptied in [false, true] {
            let mut policy = cache(16);
            for page in 0..40 {
                (0..=page % 2).for_each(|_| drop(read(&mut policy, page)));
            }
            for page in (0..40).map(PageNo) {
                if is_emptied && policy.pages.tier(page).is_some() {
                    policy.remove(page);
                }
            }
            assert!(known(&policy) > 8);
            policy.resize(Capacity { dram: 4, scm: 0 }, &mut Vec::new());
            assert!(policy.lists.len(T1) + policy.lists.len(B1) <= 4);
            assert!(known(&policy) <= 8, "{}", known(&policy));
            assert!(policy.target <= 4.0);
        }
    }

    #[test]
    fn border_moves_by_the_quotient_of_the_ghosts() {
        let mut policy = cache(16);
        (0..2).for_each(|page| policy.put(B1, page));
        (2..7).for_each(|page| policy.put(B2, page));
        let mut borders = Vec::new();
        for list in [B1, B1, B2, B2, B2, B2, B2] {
            policy.adapt(list);
            borders.push(policy.target);
        }
        assert_eq!(borders, [2.5, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0]);
        (7..20).for_each(|page| policy.put(B1, page));
        policy.target = 8.0;
        policy.adapt(B2);
        assert_eq!(policy.target, 5.0);
    }

    #[test]
    fn free_frame_prevents_eviction() {
        let mut policy = cache(4);
        for page in [0, 0, 1, 1, 2, 3, 4, 5] {
            read(&mut policy, page);
        }
        assert_eq!(policy.lists.len(T1) + policy.lists.len(B1), 4);
        policy.remove(PageNo(0));
        let why = Reason::of_miss(Op::Read);
        let fill = Action::Fill { page: PageNo(6), tier: Tier::Dram, why };
        assert_eq!(read(&mut policy, 6), [fill]);
    }
}

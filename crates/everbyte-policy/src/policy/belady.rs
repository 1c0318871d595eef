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
use crate::access::{Access, PageNo};

/// No further use.
const NEVER: u32 = u32::MAX;
/// Entries of the heap that there may be however few pages the cache has.
const ENTRIES_MIN: usize = 1024;
/// Additional entries for each page of the cache.
const ENTRIES_PER_PAGE: usize = 4;

/// The offline optimum.
pub struct Belady<S: Storage> {
    pages: Directory<S>,
    /// For each access the number of the next access to its page.
    future: Vec<u32>,
    now: usize,
    next_use: S::Table<u32>,
    /// Pages by next use; entries whose use has passed are skipped, and removed when they are many.
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
        // Only now is the next use of the page's former access known.
        if let Some(before) = before.checked_sub(1) {
            self.next[before as usize] = number;
        }
        self.latest.set(access.page.0, number.saturating_add(1));
        // Until a later access of the page proves otherwise.
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
        // The former entry stays in the heap, stale: `is_due` recognizes it by its next use.
        self.farthest.push((next, page));
        let used = self.pages.used().dram as usize;
        // Bounds the heap by the cache's pages, not by the trace's length.
        if self.farthest.len() > ENTRIES_PER_PAGE * used + ENTRIES_MIN {
            self.remove_passed();
        }
    }

    /// Removes the entries that eviction would skip: all but one for each page of the cache.
    #[cold]
    fn remove_passed(&mut self) {
        let (pages, next_use) = (&self.pages, &self.next_use);
        self.farthest.retain(|&(next, page)| is_due(pages, next_use, next, page));
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
            self.pages.touch(page, state, state, access.op);
            self.note_use(page);
            actions.act(Action::Hit { found: Tier::Dram, served: Tier::Dram });
            return;
        }
        if self.pages.is_full(Tier::Dram) {
            self.reclaim(Tier::Dram, actions);
        }
        // Without a bypass: MIN for caches that must take every page has the fewest misses among
        // such policies.
        self.pages.fill(access, Tier::Dram, actions);
        self.note_use(page);
    }

    fn remove(&mut self, page: PageNo) {
        // Its heap entry stays. `is_due` skips it, because the page is not in the cache.
        self.pages.remove(page.0);
    }

    fn reclaim(&mut self, _: Tier, actions: &mut impl Actions) {
        while let Some((next, page)) = self.farthest.pop() {
            if is_due(&self.pages, &self.next_use, next, page) {
                self.pages.evict(page, Reason::Victim, actions);
                return;
            }
        }
    }
}

/// Returns true if the page is in the cache and used again at `next`, not before.
fn is_due<S: Storage>(
    pages: &Directory<S>,
    next_use: &S::Table<u32>,
    next: u32,
    page: u32,
) -> bool {
    pages.state(page).has(State::DRAM) && next_use.get(page) == next
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Op;
    use crate::policy::Dense;

    /// Pages of the test's cache.
    const FRAMES: usize = 8;
    const STORAGE: Dense = Dense { pages: 16 };

    /// Mostly hits, and sometimes a page that leaves immediately.
    fn accesses() -> Vec<Access> {
        let page = |n: u32| if n.is_multiple_of(101) { 9 + n % 7 } else { n % 7 };
        let access = |page| Access { page: PageNo(page), start: 0, len: 1, op: Op::Read };
        (0..50_000).map(page).map(access).collect()
    }

    /// Misses of MIN with a look at every page of the cache.
    fn misses(accesses: &[Access]) -> usize {
        let mut future = Future::new(STORAGE);
        accesses.iter().for_each(|access| future.push(access));
        let (mut cache, mut misses) = (Vec::new(), 0);
        for (&next, access) in future.next.iter().zip(accesses) {
            let page = access.page.0;
            match cache.iter().position(|&(_, cached)| cached == page) {
                Some(at) => _ = cache.swap_remove(at),
                None => {
                    misses += 1;
                    if cache.len() == FRAMES {
                        cache.sort_unstable();
                        cache.pop();
                    }
                }
            }
            cache.push((next, page));
        }
        misses
    }

    #[test]
    fn memory_does_not_grow_with_hits() {
        let accesses = accesses();
        let capacity = Capacity { dram: 8, scm: 0 };
        let mut policy = Belady::new(STORAGE, capacity, &accesses);
        let mut fills = 0;
        for &access in &accesses {
            let mut actions = Vec::new();
            policy.access(access, &mut actions);
            fills += actions.iter().filter(|action| matches!(action, Action::Fill { .. })).count();
            let entries = policy.farthest.len();
            assert!(entries <= ENTRIES_PER_PAGE * FRAMES + ENTRIES_MIN, "{entries}");
        }
        assert_eq!(fills, misses(&accesses));
    }
}

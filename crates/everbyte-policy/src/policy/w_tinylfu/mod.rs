//! W-TinyLFU: a small window for new pages. A page that leaves the window enters the main part only
//! if it was used more often than the page that it would displace there.
//!
//! Einziger, Friedman and Manes, "TinyLFU: A Highly Efficient Cache Admission Policy", ACM Trans.
//! Storage 13(4), 2017. The window is an LRU of 1% of the frames. The main part is a segmented LRU
//! with 80% protected: pages enter on probation, a hit there protects them, and pages that lose
//! protection return to probation. Uses are counted by an aging [`Sketch`]. The paper's doorkeeper,
//! a Bloom filter for pages seen once, is omitted: the sketch has room for them, as in the authors'
//! own Caffeine.
//!
//! One tier. Unsuitable for workloads whose popular pages change soon: frequency outlives them by
//! up to a sample of ten uses a frame, and the window of 1% is too small for new pages.

pub(super) mod sketch;

use self::sketch::Sketch;
use super::action::{Action, Actions, Reason, Tier};
use super::directory::{Capacity, Directory, State};
use super::lists::Lists;
use super::storage::Storage;
use super::{Policy, resize};
use crate::access::{Access, PageNo};

const WINDOW: usize = 0;
const PROBATION: usize = 1;
const PROTECTED: usize = 2;
/// A page on probation, and a protected one; the window's have neither.
const ON_PROBATION: State = State::MARK_A;
const IS_PROTECTED: State = State::MARK_B;

/// W-TinyLFU.
pub struct WTinyLfu<S: Storage> {
    pages: Directory<S>,
    lists: Lists<S, 3>,
    sketch: Sketch,
}

/// Returns the frames of the window, at least one.
pub(super) fn window_max(frames: u32) -> u32 {
    (frames / 100).max(1)
}

/// Returns the frames of the main part that are protected.
pub(super) fn protected_max(frames: u32) -> u32 {
    let main = u64::from(frames.saturating_sub(window_max(frames)));
    u32::try_from(main * 4 / 5).unwrap_or(u32::MAX)
}

fn list_of(state: State) -> usize {
    // Pages of the window have neither mark: most are gone before they get one.
    if state.has(ON_PROBATION) {
        PROBATION
    } else if state.has(IS_PROTECTED) {
        PROTECTED
    } else {
        WINDOW
    }
}

impl<S: Storage> WTinyLfu<S> {
    /// Makes an empty cache of one tier.
    #[must_use]
    pub fn new(storage: S, capacity: Capacity) -> Self {
        let capacity = capacity.in_one_tier();
        Self {
            pages: Directory::new(storage, capacity),
            lists: Lists::new(storage),
            sketch: Sketch::new(capacity.dram),
        }
    }

    /// Puts a page that is in no list to the front of one of the main part's.
    fn put(&mut self, page: u32, list: usize) {
        let mark = if list == PROBATION { ON_PROBATION } else { IS_PROTECTED };
        let state = self.pages.state(page).without(ON_PROBATION.with(IS_PROTECTED));
        self.pages.set_state(page, state.with(mark));
        self.lists.push_front(list, page);
    }

    fn touch(&mut self, page: u32, list: usize) {
        if list != PROBATION {
            self.lists.touch(list, page);
            return;
        }
        // A hit on probation is the second use that the segmented LRU asks for.
        self.lists.remove(PROBATION, page);
        self.put(page, PROTECTED);
        let protected_max = protected_max(self.pages.capacity.dram);
        // The oldest protected pages get another time on probation instead of leaving the cache.
        while self.lists.len(PROTECTED) > protected_max {
            let Some(oldest) = self.lists.pop_back(PROTECTED) else { return };
            self.put(oldest, PROBATION);
        }
    }

    fn evict(&mut self, page: u32, list: usize, why: Reason, actions: &mut impl Actions) {
        self.lists.remove(list, page);
        self.pages.evict(page, why, actions);
    }

    /// Moves pages out of the window until one more fits; the cache has room for them.
    fn pass_on(&mut self) {
        // The cache is not full, so no candidate has to compete.
        let window_max = window_max(self.pages.capacity.dram);
        while self.lists.len(WINDOW) >= window_max {
            let Some(page) = self.lists.pop_back(WINDOW) else { return };
            self.put(page, PROBATION);
        }
    }
}

impl<S: Storage> Policy for WTinyLfu<S> {
    type Storage = S;

    fn directory(&self) -> &Directory<S> {
        &self.pages
    }

    fn directory_mut(&mut self) -> &mut Directory<S> {
        &mut self.pages
    }

    fn access(&mut self, access: Access, actions: &mut impl Actions) {
        let page = access.page.0;
        // Misses count as well: frequency must be known before a page is admitted.
        self.sketch.note(page);
        let state = self.pages.state(page);
        if state.has(State::DRAM) {
            self.pages.touch(page, state, state, access.op);
            self.touch(page, list_of(state));
            actions.act(Action::Hit { found: Tier::Dram, served: Tier::Dram });
            return;
        }
        if self.pages.is_full(Tier::Dram) {
            self.reclaim(Tier::Dram, actions);
        }
        self.pass_on();
        self.pages.fill(access, Tier::Dram, actions);
        self.lists.push_front(WINDOW, page);
    }

    fn remove(&mut self, page: PageNo) {
        if self.pages.tier(page).is_some() {
            let state = self.pages.remove(page.0);
            self.lists.remove(list_of(state), page.0);
        }
    }

    fn reclaim(&mut self, _: Tier, actions: &mut impl Actions) {
        let main = if self.lists.len(PROBATION) > 0 { PROBATION } else { PROTECTED };
        // Below its share the window grows at the cost of the main part, and nothing competes.
        let window_is_full = self.lists.len(WINDOW) >= window_max(self.pages.capacity.dram);
        let newcomer = self.lists.back(WINDOW).filter(|_| window_is_full);
        match (self.lists.back(main), newcomer) {
            (Some(victim), Some(newcomer)) => {
                // TinyLFU admits only a more popular page. A tie keeps the old one and spares a move.
                if self.sketch.estimate(newcomer) > self.sketch.estimate(victim) {
                    self.evict(victim, main, Reason::Victim, actions);
                    self.lists.remove(WINDOW, newcomer);
                    self.put(newcomer, PROBATION);
                } else {
                    self.evict(newcomer, WINDOW, Reason::NoEvidence, actions);
                }
            }
            (Some(victim), None) => self.evict(victim, main, Reason::Victim, actions),
            (None, _) => {
                if let Some(page) = self.lists.back(WINDOW) {
                    self.evict(page, WINDOW, Reason::Victim, actions);
                }
            }
        }
    }

    fn resize(&mut self, capacity: Capacity, actions: &mut impl Actions) {
        resize(self, capacity, actions);
        // Counters have no meaning in rows of another width, so counting restarts.
        self.sketch = Sketch::new(capacity.dram);
    }
}

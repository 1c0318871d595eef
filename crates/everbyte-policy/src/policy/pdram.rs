//! PDRAM-like: a page enters any memory with a free frame. A frequently written page of SCM swaps
//! places with a page of DRAM.
//!
//! After Dhiman, Ayoub and Rosing, "PDRAM: A Hybrid PRAM and DRAM Main Memory System", DAC 2009. We
//! had no full text, hence "-like". From reports of it: allocation in either memory, a count of
//! writes for each page of SCM, a promotion at a threshold. Ours: DRAM's free frames first. One LRU
//! over both tiers chooses the victim, and the new page takes its frame. A promoted page swaps
//! places with DRAM's least recently used page. The threshold is 8 writes. The original's list of
//! worn frames is missing, because a policy does not see frames.
//!
//! Not for small writes: it counts writes, not bytes.

use super::Policy;
use super::action::{Action, Actions, Reason, Tier};
use super::directory::{Capacity, Directory, State};
use super::lists::Lists;
use super::storage::{Storage, Table};
use crate::access::{Access, Op, PageNo};

const WRITES_MAX: u8 = 8;

/// Two memories under one LRU.
pub struct Pdram<S: Storage> {
    pages: Directory<S>,
    all: Lists<S, 1>,
    in_dram: Lists<S, 1>,
    /// Writes to each page of SCM since it came there.
    writes: S::Table<u8>,
}

impl<S: Storage> Pdram<S> {
    /// Makes an empty cache of two tiers.
    #[must_use]
    pub fn new(storage: S, capacity: Capacity) -> Self {
        Self {
            pages: Directory::new(storage, capacity),
            all: Lists::new(storage),
            in_dram: Lists::new(storage),
            writes: storage.table(),
        }
    }

    fn evict(&mut self, page: u32, why: Reason, actions: &mut impl Actions) -> Tier {
        self.all.remove(0, page);
        // A page that returns has a new count: the threshold is for one stay in SCM.
        self.writes.set(page, 0);
        if self.pages.evict(page, why, actions).has(State::DRAM) {
            self.in_dram.remove(0, page);
            Tier::Dram
        } else {
            Tier::Scm
        }
    }

    /// Returns a tier with a free frame, evicting a page if there is none.
    fn free_tier(&mut self, actions: &mut impl Actions) -> Tier {
        // DRAM first: while it has frames, no page wears SCM.
        if !self.pages.is_full(Tier::Dram) {
            Tier::Dram
        } else if !self.pages.is_full(Tier::Scm) {
            Tier::Scm
        } else {
            let oldest = self.all.back(0).expect("a full cache has a page");
            // The victim's frame decides the tier, so a miss moves no other page.
            self.evict(oldest, Reason::Victim, actions)
        }
    }

    fn move_page(&mut self, page: u32, to: Tier, why: Reason, actions: &mut impl Actions) {
        let dirty = self.pages.remove(page).is_dirty();
        // PDRAM has no reference bits: recency alone orders the pages.
        self.pages.insert(page, to, State::default().with_if(dirty, State::DIRTY));
        actions.act(Action::Move { page: PageNo(page), to, dirty, why });
    }

    fn change_places(&mut self, page: u32, actions: &mut impl Actions) {
        let was_full = self.pages.is_full(Tier::Dram);
        self.writes.set(page, 0);
        // DRAM exceeds its capacity until the exchange below. The contract of `Actions` allows one
        // page.
        self.move_page(page, Tier::Dram, Reason::WriteHot, actions);
        if was_full && let Some(oldest) = self.in_dram.pop_back(0) {
            self.move_page(oldest, Tier::Scm, Reason::Swapped, actions);
        }
        // After the exchange, or the page would be its own partner in a DRAM of one frame.
        self.in_dram.push_front(0, page);
    }

    /// Counts a write to a page of SCM. Returns the page's tier since.
    fn count_write(&mut self, page: u32, actions: &mut impl Actions) -> Tier {
        let writes = self.writes.get(page) + 1;
        self.writes.set(page, writes);
        if writes < WRITES_MAX {
            return Tier::Scm;
        }
        self.change_places(page, actions);
        Tier::Dram
    }
}

impl<S: Storage> Policy for Pdram<S> {
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
        let written = access.op == Op::Write;
        let Some(found) = state.tier() else {
            let tier = self.free_tier(actions);
            self.pages.fill(access, tier, actions);
            self.all.push_front(0, page);
            if tier == Tier::Dram {
                self.in_dram.push_front(0, page);
            }
            return;
        };
        // One recency over both memories: the tier says nothing about a page's age.
        self.all.touch(0, page);
        if found == Tier::Dram {
            self.in_dram.touch(0, page);
        }
        let mut served = found;
        if written {
            if found == Tier::Scm {
                served = self.count_write(page, actions);
            }
            // After the promotion, which replaces the page's bits.
            let bits = self.pages.mark_dirty(page, self.pages.state(page));
            self.pages.set_state(page, bits);
        }
        actions.act(Action::Hit { found, served });
    }

    fn remove(&mut self, page: PageNo) {
        if let Some(tier) = self.pages.remove(page.0).tier() {
            self.all.remove(0, page.0);
            self.writes.set(page.0, 0);
            if tier == Tier::Dram {
                self.in_dram.remove(0, page.0);
            }
        }
    }

    fn reclaim(&mut self, tier: Tier, actions: &mut impl Actions) {
        let mut page = self.all.back(0);
        // The common order has both tiers' pages. A shrinking tier must lose one of its own.
        while let Some(candidate) = page {
            if self.pages.state(candidate).tier() == Some(tier) {
                self.evict(candidate, Reason::Shrunk, actions);
                return;
            }
            page = self.all.newer(candidate);
        }
    }
}

//! PDRAM-like: pages come to whichever memory has a frame; a page of PRAM that is written often
//! changes places with a page of DRAM.
//!
//! After Dhiman, Ayoub and Rosing, "PDRAM: A Hybrid PRAM and DRAM Main Memory System", DAC 2009, of
//! which we had no full text, hence "-like". From what is told of it: allocation in either, a
//! count of writes for each page of PRAM, a move to DRAM at a threshold. Ours: DRAM's free frames
//! first; one LRU over both tiers chooses what goes, and the newcomer takes its frame; a page
//! that moves up changes places with the page of DRAM that was not used for longest; the threshold
//! is 8 writes. The original's list of worn frames is not here, as a policy does not see frames.
//!
//! Not for small writes: it counts writes, not bytes.

use super::Policy;
use super::action::{Action, Actions, LineMask, Reason, Tier};
use super::lists::Lists;
use super::residents::{Capacity, Residents, State};
use super::space::{Space, Table};
use crate::access::{Access, Op, PageNo};

const WRITES_MAX: u8 = 8;

/// Two memories under one LRU.
pub struct Pdram<S: Space> {
    pages: Residents<S>,
    all: Lists<S, 1>,
    in_dram: Lists<S, 1>,
    /// Writes to each page of PRAM since it came there.
    writes: S::Table<u8>,
}

impl<S: Space> Pdram<S> {
    /// An empty cache of two tiers.
    #[must_use]
    pub fn new(space: S, capacity: Capacity) -> Self {
        Self {
            pages: Residents::new(space, capacity),
            all: Lists::new(space),
            in_dram: Lists::new(space),
            writes: space.table(),
        }
    }

    fn expel(&mut self, page: u32, why: Reason, actions: &mut impl Actions) -> Tier {
        self.all.remove(0, page);
        self.writes.set(page, 0);
        if self.pages.expel(page, why, actions).has(State::DRAM) {
            self.in_dram.remove(0, page);
            Tier::Dram
        } else {
            Tier::Pram
        }
    }

    /// A tier with a free frame, which is made if there is none.
    fn free_tier(&mut self, actions: &mut impl Actions) -> Tier {
        if !self.pages.is_full(Tier::Dram) {
            Tier::Dram
        } else if !self.pages.is_full(Tier::Pram) {
            Tier::Pram
        } else {
            let oldest = self.all.back(0).expect("a full cache has a page");
            self.expel(oldest, Reason::Victim, actions)
        }
    }

    fn move_page(&mut self, page: u32, to: Tier, why: Reason, actions: &mut impl Actions) {
        let dirty = self.pages.leave(page).is_dirty();
        self.pages.enter(page, to, State::default().with_if(dirty, State::DIRTY));
        let (page, lines) = (PageNo(page), LineMask::ALL);
        actions.act(Action::Move { page, to, lines, dirty, why });
    }

    fn change_places(&mut self, page: u32, actions: &mut impl Actions) {
        let was_full = self.pages.is_full(Tier::Dram);
        self.writes.set(page, 0);
        self.move_page(page, Tier::Dram, Reason::WriteHot, actions);
        if was_full && let Some(oldest) = self.in_dram.pop_back(0) {
            self.move_page(oldest, Tier::Pram, Reason::Swapped, actions);
        }
        self.in_dram.push_front(0, page);
    }

    /// Counts a write to a page of PRAM. Returns where the page is since.
    fn count_write(&mut self, page: u32, actions: &mut impl Actions) -> Tier {
        let writes = self.writes.get(page) + 1;
        self.writes.set(page, writes);
        if writes < WRITES_MAX {
            return Tier::Pram;
        }
        self.change_places(page, actions);
        Tier::Dram
    }
}

impl<S: Space> Policy for Pdram<S> {
    type Space = S;

    fn residents(&self) -> &Residents<S> {
        &self.pages
    }

    fn residents_mut(&mut self) -> &mut Residents<S> {
        &mut self.pages
    }

    fn access(&mut self, access: Access, actions: &mut impl Actions) {
        let page = access.page.0;
        let state = self.pages.state(page);
        let written = access.op == Op::Write;
        let Some(found) = state.tier() else {
            let tier = self.free_tier(actions);
            self.pages.enter(page, tier, State::default().with_if(written, State::DIRTY));
            self.all.push_front(0, page);
            if tier == Tier::Dram {
                self.in_dram.push_front(0, page);
            }
            let why = Reason::of_miss(access.op);
            actions.act(Action::Fill { page: access.page, tier, why });
            return;
        };
        self.all.touch(0, page);
        if found == Tier::Dram {
            self.in_dram.touch(0, page);
        }
        let mut served = found;
        if written {
            if found == Tier::Pram {
                served = self.count_write(page, actions);
            }
            let bits = self.pages.soil(page, self.pages.state(page));
            self.pages.set_state(page, bits);
        }
        actions.act(Action::Hit { found, served });
    }

    fn remove(&mut self, page: PageNo) {
        if let Some(tier) = self.pages.leave(page.0).tier() {
            self.all.remove(0, page.0);
            self.writes.set(page.0, 0);
            if tier == Tier::Dram {
                self.in_dram.remove(0, page.0);
            }
        }
    }

    fn reclaim(&mut self, tier: Tier, actions: &mut impl Actions) {
        let mut page = self.all.back(0);
        while let Some(candidate) = page {
            if self.pages.state(candidate).tier() == Some(tier) {
                self.expel(candidate, Reason::Shrunk, actions);
                return;
            }
            page = self.all.newer(candidate);
        }
    }
}

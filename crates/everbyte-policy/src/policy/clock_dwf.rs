//! CLOCK-DWF: read pages go to SCM, written ones to DRAM. A write to a page of SCM promotes it
//! immediately, and DRAM keeps the most frequently written pages.
//!
//! Lee, Bahn and Noh, "CLOCK-DWF: A Write-History-Aware Page Replacement Algorithm for Hybrid PCM
//! and DRAM Memory Architectures", IEEE Trans. Computers 63(9), 2014. The hand over DRAM: a page
//! written since the hand's last pass has its frequency incremented and stays. Otherwise a page
//! with a frequency above the mean stays up to 8 rounds. Other pages are demoted to SCM. A promoted
//! page leaves its frame to the demoted one. Our answers to open questions: counts start at 0 with
//! each stay in DRAM, and the mean is over the pages in DRAM.
//!
//! Not for small writes: each promotes a whole page and demotes another.

use super::Policy;
use super::action::{Action, Actions, Reason, Tier};
use super::directory::{Capacity, Directory, State};
use super::ring::{Ring, sweep};
use super::storage::{Storage, Table};
use crate::access::{Access, Op, PageNo};

/// The page was written since the hand last passed.
const WRITTEN: State = State::MARK_A;
const ROUNDS_MAX: u8 = 8;

#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct WriteHistory {
    frequency: u32,
    rounds: u8,
}

/// CLOCK with dirty bits and write frequency.
pub struct ClockDwf<S: Storage> {
    pages: Directory<S>,
    dram: Ring<S>,
    scm: Ring<S>,
    history: S::Table<WriteHistory>,
    /// Sum of the frequencies of the pages in DRAM.
    frequencies: u64,
}

impl<S: Storage> ClockDwf<S> {
    /// Makes an empty cache of two tiers.
    #[must_use]
    pub fn new(storage: S, capacity: Capacity) -> Self {
        Self {
            pages: Directory::new(storage, capacity),
            dram: Ring::new(storage),
            scm: Ring::new(storage),
            history: storage.table(),
            frequencies: 0,
        }
    }

    fn is_hot(&self, frequency: u32) -> bool {
        // Above the mean, without a division: the sum is over the pages now in DRAM.
        u64::from(frequency) * u64::from(self.pages.used().dram) > self.frequencies
    }

    fn forget_history(&mut self, page: u32) {
        // The mean must not include pages that left DRAM, or it would only grow.
        self.frequencies -= u64::from(self.history.get(page).frequency);
        self.history.set(page, WriteHistory::default());
    }

    fn dram_victim(&mut self) -> u32 {
        loop {
            let page = self.dram.advance();
            let state = self.pages.state(page);
            let history = self.history.get(page);
            if state.has(WRITTEN) {
                self.pages.set_state(page, state.without(WRITTEN));
                let frequency = history.frequency + 1;
                self.frequencies += 1;
                // A written page starts its rounds again: it lately proved its frequency.
                self.history.set(page, WriteHistory { frequency, rounds: 0 });
            // A frequently written page stays without a recent write, but at most 8 rounds. This
            // bound ends the loop.
            } else if self.is_hot(history.frequency) && history.rounds < ROUNDS_MAX {
                self.history.set(page, WriteHistory { rounds: history.rounds + 1, ..history });
            } else {
                return page;
            }
        }
    }

    fn evict(&mut self, actions: &mut impl Actions) {
        let victim = sweep(&mut self.scm, &mut self.pages);
        self.scm.remove(victim);
        self.pages.evict(victim, Reason::Victim, actions);
    }

    fn demote(&mut self, why: Reason, actions: &mut impl Actions) {
        // SCM's victim leaves first: the demoted page needs its frame.
        if self.pages.is_full(Tier::Scm) {
            self.evict(actions);
        }
        let page = self.dram_victim();
        self.dram.remove(page);
        self.forget_history(page);
        let dirty = self.pages.remove(page).is_dirty();
        // Unreferenced: SCM's CLOCK counts reads since the arrival there.
        self.pages.insert(page, Tier::Scm, State::default().with_if(dirty, State::DIRTY));
        self.scm.insert(page);
        actions.act(Action::Move { page: PageNo(page), to: Tier::Scm, dirty, why });
    }

    fn promote(&mut self, page: u32, actions: &mut impl Actions) {
        self.scm.remove(page);
        let dirty = self.pages.remove(page).is_dirty();
        let (to, why) = (Tier::Dram, Reason::WriteHot);
        // Before the demotion, which needs the SCM frame of this page: the contract of `Actions`
        // lets DRAM exceed its capacity by this page.
        actions.act(Action::Move { page: PageNo(page), to, dirty, why });
        if self.pages.is_full(Tier::Dram) {
            self.demote(Reason::Swapped, actions);
        }
        // After the demotion: the sweep must not choose the page that is just promoted.
        self.pages.insert(page, Tier::Dram, WRITTEN.with(State::DIRTY));
        self.dram.insert(page);
    }

    fn miss(&mut self, access: Access, actions: &mut impl Actions) {
        let page = access.page.0;
        // SCM writes cost energy and wear, so a page starts where its first operation is cheap.
        let tier = match access.op {
            Op::Read => Tier::Scm,
            Op::Write => Tier::Dram,
        };
        if self.pages.is_full(tier) {
            match tier {
                Tier::Dram => self.demote(Reason::Victim, actions),
                Tier::Scm => self.evict(actions),
            }
        }
        if tier == Tier::Dram {
            self.pages.insert(page, tier, WRITTEN.with(State::DIRTY));
            self.dram.insert(page);
        } else {
            self.pages.insert(page, tier, State::default());
            self.scm.insert(page);
        }
        let why = Reason::of_miss(access.op);
        actions.act(Action::Fill { page: access.page, tier, why });
    }
}

impl<S: Storage> Policy for ClockDwf<S> {
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
        match (state.tier(), access.op) {
            (None, _) => self.miss(access, actions),
            (Some(Tier::Dram), op) => {
                if op == Op::Write {
                    let bits = self.pages.mark_dirty(page, state.with(WRITTEN));
                    self.pages.set_state(page, bits);
                }
                actions.act(Action::Hit { found: Tier::Dram, served: Tier::Dram });
            }
            (Some(Tier::Scm), Op::Read) => {
                self.pages.set_state(page, state.with(State::REFERENCED));
                actions.act(Action::Hit { found: Tier::Scm, served: Tier::Scm });
            }
            (Some(Tier::Scm), Op::Write) => {
                // The first write promotes: under CLOCK-DWF no write of a client reaches SCM.
                self.promote(page, actions);
                actions.act(Action::Hit { found: Tier::Scm, served: Tier::Dram });
            }
        }
    }

    fn remove(&mut self, page: PageNo) {
        match self.pages.remove(page.0).tier() {
            Some(Tier::Dram) => {
                self.dram.remove(page.0);
                self.forget_history(page.0);
            }
            Some(Tier::Scm) => self.scm.remove(page.0),
            None => {}
        }
    }

    fn reclaim(&mut self, tier: Tier, actions: &mut impl Actions) {
        match tier {
            Tier::Dram => self.demote(Reason::Shrunk, actions),
            Tier::Scm => self.evict(actions),
        }
    }
}

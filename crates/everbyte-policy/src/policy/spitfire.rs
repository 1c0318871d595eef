//! Spitfire: both tiers may have a page. Chance decides when a page of SCM is copied to DRAM, which
//! tier a fetched page enters, and whether DRAM's victim is admitted to SCM.
//!
//! Zhou, Arulraj, Pavlo and Cohen, "Spitfire: A Three-Tier Buffer Manager for Volatile and
//! Non-Volatile Memory", SIGMOD 2021, with pages moved whole. Each tier has a CLOCK. A hit in DRAM
//! is served there; a hit in SCM is served in place, or with the chance D_r (reads) or D_w (writes)
//! after a copy to DRAM. A miss goes to DRAM with the chance D_r or D_w, else to SCM with the
//! chance N_r, else to DRAM. DRAM's victim, if it was written to, updates its copy in SCM; without
//! one there, a dirty page is demoted with the chance N_w, else written back; a clean page is
//! dropped. The authors' "lazy" setting is the default.
//!
//! Our additions: a page in both tiers leaves SCM without a write-back, because DRAM has its newest
//! bytes. Pages enter with a clear reference bit, and a page in SCM has a separate bit. Random
//! numbers come from a seed, one for each decision.
//!
//! Invariant: a page in both tiers has its newest bytes in DRAM, and SCM has the same unless the
//! page is [`AHEAD`]. It holds a frame of each tier. Not for small caches: frames that hold a page
//! twice hold no other.

use super::Policy;
use super::action::{Action, Actions, Reason, Tier};
use super::directory::{Capacity, Directory, State};
use super::ring::{Ring, sweep};
use super::storage::{Storage, spread};
use crate::access::{Access, Op, PageNo};

/// The reference bit of a page in SCM; [`State::REFERENCED`] is DRAM's.
const USED_IN_SCM: State = State::MARK_A;
/// DRAM has newer bytes than SCM.
const AHEAD: State = State::MARK_B;

/// Chances, in percent, `0 ..= 100`, and the seed of chance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpitfireConfig {
    /// D_r: a read takes a page to DRAM.
    pub dram_for_reads: u8,
    /// D_w: a write takes a page to DRAM.
    pub dram_for_writes: u8,
    /// N_r: a page from the backing device goes to SCM.
    pub scm_from_backing: u8,
    /// N_w: a dirty page from DRAM goes to SCM.
    pub scm_from_dram: u8,
    /// The same seed makes the same decisions.
    pub seed: u64,
}

impl Default for SpitfireConfig {
    fn default() -> Self {
        Self {
            dram_for_reads: 1,
            dram_for_writes: 1,
            scm_from_backing: 20,
            scm_from_dram: 100,
            seed: 1,
        }
    }
}

/// A sequence of random numbers.
pub(super) struct Draws {
    seed: u64,
    number: u64,
}

impl Draws {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, number: 0 }
    }

    /// Draws: returns true with a chance of `percent` in 100.
    pub(super) fn met(&mut self, percent: u8) -> bool {
        self.number += 1;
        spread(spread(self.seed) ^ self.number) % 100 < u64::from(percent)
    }
}

/// Spitfire.
pub struct Spitfire<S: Storage> {
    pages: Directory<S>,
    dram: Ring<S>,
    scm: Ring<S>,
    draws: Draws,
    config: SpitfireConfig,
}

impl<S: Storage> Spitfire<S> {
    /// Makes an empty cache of two tiers.
    #[must_use]
    pub fn new(storage: S, capacity: Capacity, config: SpitfireConfig) -> Self {
        Self {
            pages: Directory::new(storage, capacity),
            dram: Ring::new(storage),
            scm: Ring::new(storage),
            draws: Draws::new(config.seed),
            config,
        }
    }

    fn dram_chance(&self, op: Op) -> u8 {
        match op {
            Op::Read => self.config.dram_for_reads,
            Op::Write => self.config.dram_for_writes,
        }
    }

    fn scm_victim(&mut self) -> u32 {
        loop {
            let page = self.scm.advance();
            let state = self.pages.state(page);
            if !state.has(USED_IN_SCM) {
                return page;
            }
            // SCM's bit alone. DRAM's bit of a page in both tiers belongs to DRAM's hand.
            self.pages.set_state(page, state.without(USED_IN_SCM));
        }
    }

    fn evict_from_scm(&mut self, actions: &mut impl Actions) {
        let page = self.scm_victim();
        self.scm.remove(page);
        let state = self.pages.state(page);
        // The only copy leaves the cache, with a write-back if it is dirty.
        if !state.has(State::DRAM) {
            self.pages.evict(page, Reason::Victim, actions);
            return;
        }
        // DRAM keeps the newest bytes and the dirty bit, so nothing is written back here. AHEAD
        // compares with SCM and ends.
        self.pages.set_state(page, state.without(State::SCM.with(AHEAD)));
        // By hand: `remove` would count one tier only, and would forget the page.
        *self.pages.used_mut(Tier::Scm) -= 1;
        let (from, why) = (Tier::Scm, Reason::Duplicate);
        actions.act(Action::Drop { page: PageNo(page), from, why });
    }

    fn evict_from_dram(&mut self, actions: &mut impl Actions) {
        let page = sweep(&mut self.dram, &mut self.pages);
        self.dram.remove(page);
        let state = self.pages.state(page);
        // A page in both tiers returns to its SCM frame. It needs neither a draw nor a free frame.
        if state.has(State::SCM) {
            self.merge(page, state, actions);
        // Clean pages are never demoted: the backing device has their bytes, and a demotion wears
        // SCM. They take no draw.
        } else if state.is_dirty() && self.draws.met(self.config.scm_from_dram) {
            if self.pages.is_full(Tier::Scm) {
                self.evict_from_scm(actions);
            }
            self.pages.remove(page);
            // With a clear bit in SCM: a hit there must prove that the page is used.
            self.pages.insert(page, Tier::Scm, State::DIRTY);
            self.scm.insert(page);
            let (to, why) = (Tier::Scm, Reason::DirtyVictim);
            actions.act(Action::Move { page: PageNo(page), to, dirty: true, why });
        } else {
            self.pages.evict(page, Reason::Victim, actions);
        }
    }

    /// Removes from DRAM a page that is in both tiers.
    fn merge(&mut self, page: u32, state: State, actions: &mut impl Actions) {
        // Otherwise SCM has the same bytes, and a drop suffices.
        if state.has(AHEAD) {
            let (dirty, why) = (state.is_dirty(), Reason::Victim);
            // Before the drop: the executor copies from the DRAM frame that the drop frees.
            actions.act(Action::Update { page: PageNo(page), dirty, why });
        }
        let gone = State::DRAM.with(State::REFERENCED).with(AHEAD);
        self.pages.set_state(page, state.without(gone));
        *self.pages.used_mut(Tier::Dram) -= 1;
        let (from, why) = (Tier::Dram, Reason::Duplicate);
        actions.act(Action::Drop { page: PageNo(page), from, why });
    }

    /// Copies a page of SCM to DRAM.
    fn copy_to_dram(&mut self, access: Access, actions: &mut impl Actions) {
        let page = access.page.0;
        let why = match access.op {
            Op::Read => Reason::ReadHot,
            Op::Write => Reason::WriteHot,
        };
        // Before the copy is counted. DRAM then exceeds its frames until the eviction below.
        let was_full = self.pages.is_full(Tier::Dram);
        *self.pages.used_mut(Tier::Dram) += 1;
        self.pages.set_state(page, self.pages.state(page).with(State::DRAM));
        actions.act(Action::Copy { page: access.page, why });
        if was_full {
            // The page is not in the ring yet, so the sweep cannot choose it.
            self.evict_from_dram(actions);
        }
        self.dram.insert(page);
        self.write_in_dram(access);
    }

    /// Applies an access that is served in DRAM to the page's bits.
    fn write_in_dram(&mut self, access: Access) {
        if access.op == Op::Write {
            let page = access.page.0;
            let state = self.pages.mark_dirty(page, self.pages.state(page));
            // Without a copy in SCM there is nothing to be ahead of.
            let ahead = state.has(State::SCM);
            self.pages.set_state(page, state.with_if(ahead, AHEAD));
        }
    }

    fn hit_in_scm(&mut self, access: Access, state: State, actions: &mut impl Actions) {
        let page = access.page.0;
        // Before the copy: its eviction may sweep SCM, and this page was just used.
        self.pages.set_state(page, state.with(USED_IN_SCM));
        let chance = self.dram_chance(access.op);
        let served = if self.draws.met(chance) {
            self.copy_to_dram(access, actions);
            Tier::Dram
        } else {
            if access.op == Op::Write {
                let state = self.pages.mark_dirty(page, state.with(USED_IN_SCM));
                self.pages.set_state(page, state);
            }
            Tier::Scm
        };
        actions.act(Action::Hit { found: Tier::Scm, served });
    }

    fn miss(&mut self, access: Access, actions: &mut impl Actions) {
        let chance = self.dram_chance(access.op);
        // `&&` draws the second number only if the first fails. The sequence of draws is part of
        // the outcome of a seed.
        let to_scm = !self.draws.met(chance) && self.draws.met(self.config.scm_from_backing);
        let tier = if to_scm { Tier::Scm } else { Tier::Dram };
        if self.pages.is_full(tier) {
            self.reclaim(tier, actions);
        }
        self.pages.fill(access, tier, actions);
        match tier {
            Tier::Dram => self.dram.insert(access.page.0),
            Tier::Scm => self.scm.insert(access.page.0),
        }
    }
}

impl<S: Storage> Policy for Spitfire<S> {
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
            self.pages.set_state(page, state.with(State::REFERENCED));
            self.write_in_dram(access);
            actions.act(Action::Hit { found: Tier::Dram, served: Tier::Dram });
        } else if state.has(State::SCM) {
            self.hit_in_scm(access, state, actions);
        } else {
            self.miss(access, actions);
        }
    }

    fn remove(&mut self, page: PageNo) {
        let state = self.pages.remove(page.0);
        if state.has(State::DRAM) {
            self.dram.remove(page.0);
        }
        if state.has(State::SCM) {
            self.scm.remove(page.0);
            if state.has(State::DRAM) {
                // One frame is free by leaving; it was in two.
                *self.pages.used_mut(Tier::Scm) -= 1;
            }
        }
    }

    fn reclaim(&mut self, tier: Tier, actions: &mut impl Actions) {
        match tier {
            Tier::Dram => self.evict_from_dram(actions),
            Tier::Scm => self.evict_from_scm(actions),
        }
    }
}

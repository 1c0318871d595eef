//! Spitfire: both tiers may have a page; chance decides when a page is copied up, where a page from
//! storage goes, and whether what leaves DRAM is admitted to PRAM.
//!
//! Zhou, Arulraj, Pavlo and Cohen, "Spitfire: A Three-Tier Buffer Manager for Volatile and
//! Non-Volatile Memory", SIGMOD 2021, with pages moved whole. Each tier has a CLOCK. A hit in DRAM is
//! served there; a hit in PRAM is served in place, or with the chance D_r (reads) or D_w (writes)
//! after a copy to DRAM. A miss goes to DRAM with the chance D_r or D_w, else to PRAM with the chance
//! N_r, else to DRAM. A copy in DRAM that was written to updates the one in PRAM when it leaves;
//! without one there, a dirty page moves down with the chance N_w, else goes to storage; a clean
//! page is dropped. The authors' "lazy" setting is the default.
//!
//! Ours, where the paper says less: a page in both tiers leaves PRAM without being written back, for
//! DRAM has its newest bytes and answers for them; pages come with the reference bit clear, and the
//! bit of a page in PRAM is its own. Random numbers come from a seed, one for each decision.
//!
//! Invariant: a page in both tiers has its newest bytes in DRAM, and PRAM has the same unless the
//! page is [`AHEAD`]. It holds a frame of each tier. Not for small caches: frames that hold a page
//! twice hold no other.

use super::Policy;
use super::action::{Action, Actions, LineMask, Reason, Tier};
use super::residents::{Capacity, Residents, State};
use super::ring::{Ring, sweep};
use super::space::{Space, spread};
use crate::access::{Access, Op, PageNo};

/// The reference bit of a page in PRAM; [`State::REFERENCED`] is DRAM's.
const USED_IN_PRAM: State = State::MARK_A;
/// DRAM has newer bytes than PRAM.
const AHEAD: State = State::MARK_B;

/// Chances, in percent, `0 ..= 100`, and where chance begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpitfireConfig {
    /// D_r: a read takes a page to DRAM.
    pub dram_for_reads: u8,
    /// D_w: a write takes a page to DRAM.
    pub dram_for_writes: u8,
    /// N_r: a page from storage goes to PRAM.
    pub pram_from_storage: u8,
    /// N_w: a dirty page from DRAM goes to PRAM.
    pub pram_from_dram: u8,
    /// The same seed makes the same decisions.
    pub seed: u64,
}

impl Default for SpitfireConfig {
    fn default() -> Self {
        Self {
            dram_for_reads: 1,
            dram_for_writes: 1,
            pram_from_storage: 20,
            pram_from_dram: 100,
            seed: 1,
        }
    }
}

/// Random numbers, one after the other.
pub(super) struct Draws {
    seed: u64,
    number: u64,
}

impl Draws {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, number: 0 }
    }

    /// Whether a chance in percent is met this time.
    pub(super) fn met(&mut self, percent: u8) -> bool {
        self.number += 1;
        spread(spread(self.seed) ^ self.number) % 100 < u64::from(percent)
    }
}

/// Spitfire.
pub struct Spitfire<S: Space> {
    pages: Residents<S>,
    dram: Ring<S>,
    pram: Ring<S>,
    draws: Draws,
    config: SpitfireConfig,
}

impl<S: Space> Spitfire<S> {
    /// An empty cache of two tiers.
    #[must_use]
    pub fn new(space: S, capacity: Capacity, config: SpitfireConfig) -> Self {
        Self {
            pages: Residents::new(space, capacity),
            dram: Ring::new(space),
            pram: Ring::new(space),
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

    fn pram_victim(&mut self) -> u32 {
        loop {
            let page = self.pram.advance();
            let state = self.pages.state(page);
            if !state.has(USED_IN_PRAM) {
                return page;
            }
            self.pages.set_state(page, state.without(USED_IN_PRAM));
        }
    }

    fn evict_from_pram(&mut self, actions: &mut impl Actions) {
        let page = self.pram_victim();
        self.pram.remove(page);
        let state = self.pages.state(page);
        if !state.has(State::DRAM) {
            self.pages.expel(page, Reason::Victim, actions);
            return;
        }
        self.pages.set_state(page, state.without(State::PRAM.with(AHEAD)));
        *self.pages.used_mut(Tier::Pram) -= 1;
        let (from, why) = (Tier::Pram, Reason::Duplicate);
        actions.act(Action::Drop { page: PageNo(page), from, why });
    }

    fn evict_from_dram(&mut self, actions: &mut impl Actions) {
        let page = sweep(&mut self.dram, &mut self.pages);
        self.dram.remove(page);
        let state = self.pages.state(page);
        if state.has(State::PRAM) {
            self.merge(page, state, actions);
        } else if state.is_dirty() && self.draws.met(self.config.pram_from_dram) {
            if self.pages.is_full(Tier::Pram) {
                self.evict_from_pram(actions);
            }
            self.pages.leave(page);
            self.pages.enter(page, Tier::Pram, State::DIRTY);
            self.pram.insert(page);
            let (to, lines, why) = (Tier::Pram, LineMask::ALL, Reason::DirtyVictim);
            actions.act(Action::Move { page: PageNo(page), to, lines, dirty: true, why });
        } else {
            self.pages.expel(page, Reason::Victim, actions);
        }
    }

    /// A page that is in both tiers leaves DRAM.
    fn merge(&mut self, page: u32, state: State, actions: &mut impl Actions) {
        if state.has(AHEAD) {
            let (dirty, lines, why) = (state.is_dirty(), LineMask::ALL, Reason::Victim);
            actions.act(Action::Update { page: PageNo(page), lines, dirty, why });
        }
        let gone = State::DRAM.with(State::REFERENCED).with(AHEAD);
        self.pages.set_state(page, state.without(gone));
        *self.pages.used_mut(Tier::Dram) -= 1;
        let (from, why) = (Tier::Dram, Reason::Duplicate);
        actions.act(Action::Drop { page: PageNo(page), from, why });
    }

    /// A page of PRAM gets a copy in DRAM.
    fn copy_up(&mut self, access: Access, actions: &mut impl Actions) {
        let page = access.page.0;
        let why = match access.op {
            Op::Read => Reason::ReadHot,
            Op::Write => Reason::WriteHot,
        };
        let was_full = self.pages.is_full(Tier::Dram);
        *self.pages.used_mut(Tier::Dram) += 1;
        self.pages.set_state(page, self.pages.state(page).with(State::DRAM));
        actions.act(Action::Copy { page: access.page, why });
        if was_full {
            self.evict_from_dram(actions);
        }
        self.dram.insert(page);
        self.write_in_dram(access);
    }

    /// What an access that is served in DRAM makes of the page's bits.
    fn write_in_dram(&mut self, access: Access) {
        if access.op == Op::Write {
            let page = access.page.0;
            let state = self.pages.soil(page, self.pages.state(page));
            let ahead = state.has(State::PRAM);
            self.pages.set_state(page, state.with_if(ahead, AHEAD));
        }
    }

    fn hit_in_pram(&mut self, access: Access, state: State, actions: &mut impl Actions) {
        let page = access.page.0;
        self.pages.set_state(page, state.with(USED_IN_PRAM));
        let chance = self.dram_chance(access.op);
        let served = if self.draws.met(chance) {
            self.copy_up(access, actions);
            Tier::Dram
        } else {
            if access.op == Op::Write {
                let state = self.pages.soil(page, state.with(USED_IN_PRAM));
                self.pages.set_state(page, state);
            }
            Tier::Pram
        };
        actions.act(Action::Hit { found: Tier::Pram, served });
    }

    fn miss(&mut self, access: Access, actions: &mut impl Actions) {
        let chance = self.dram_chance(access.op);
        let to_pram = !self.draws.met(chance) && self.draws.met(self.config.pram_from_storage);
        let tier = if to_pram { Tier::Pram } else { Tier::Dram };
        if self.pages.is_full(tier) {
            self.reclaim(tier, actions);
        }
        let page = access.page.0;
        let bits = State::default().with_if(access.op == Op::Write, State::DIRTY);
        self.pages.enter(page, tier, bits);
        match tier {
            Tier::Dram => self.dram.insert(page),
            Tier::Pram => self.pram.insert(page),
        }
        let why = Reason::of_miss(access.op);
        actions.act(Action::Fill { page: access.page, tier, why });
    }
}

impl<S: Space> Policy for Spitfire<S> {
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
        if state.has(State::DRAM) {
            self.pages.set_state(page, state.with(State::REFERENCED));
            self.write_in_dram(access);
            actions.act(Action::Hit { found: Tier::Dram, served: Tier::Dram });
        } else if state.has(State::PRAM) {
            self.hit_in_pram(access, state, actions);
        } else {
            self.miss(access, actions);
        }
    }

    fn remove(&mut self, page: PageNo) {
        let state = self.pages.leave(page.0);
        if state.has(State::DRAM) {
            self.dram.remove(page.0);
        }
        if state.has(State::PRAM) {
            self.pram.remove(page.0);
            if state.has(State::DRAM) {
                // One frame is free by leaving; it was in two.
                *self.pages.used_mut(Tier::Pram) -= 1;
            }
        }
    }

    fn reclaim(&mut self, tier: Tier, actions: &mut impl Actions) {
        match tier {
            Tier::Dram => self.evict_from_dram(actions),
            Tier::Pram => self.evict_from_pram(actions),
        }
    }
}

//! The paper's policy: pages with small writes live in SCM, pages with large writes in DRAM, each
//! tier a CLOCK whose pages are in the order of their sectors.
//!
//! Source: "A buffer cache over DRAM + PRAM", the paper on the hybrid cache. A missed page enters
//! DRAM. In DRAM reads and large writes set the reference bit, in SCM reads and small writes do, so
//! each tier keeps its suitable pages. Hands advance in the order of sectors, so that write-backs
//! are in that order; a hand is the next number in a set.
//!
//! The text of the paper and its pseudo-code differ; [`HybridConfig::dirty_victims`] chooses:
//! - text (default): a dirty page that leaves DRAM always moves to SCM. In DRAM a page comes
//!   referenced if a write brought it.
//! - pseudo-code: any page that leaves DRAM moves only if SCM has a free frame or a clean page,
//!   and an access sets the reference bit if the page is clean or the update is large (DRAM),
//!   small (SCM), at the arrival in DRAM as at a hit; a read is an update of no bytes. A page
//!   that arrives in SCM comes with no update, so there the text holds: referenced if dirty.
//!
//! Open in both, and filled by us: "unreferenced clean pages go first" takes the next one after the
//! hand and moves the hand there, without clearing bits on the way; if there is none, the hand goes
//! round as in CLOCK. An update of exactly the threshold is small. In the pseudo-code's form "a
//! clean page exists" means one that is unreferenced, else the CLOCK would take a dirty page.
//!
//! Not for read-mostly work: each page that passes through DRAM costs SCM a page while SCM has free
//! frames or unreferenced clean pages, used again or not.

use super::Policy;
use super::action::{Action, Actions, Reason, Tier};
use super::directory::{Capacity, Directory, State};
use super::storage::{PageSet, Storage};
use crate::access::{Access, Op, PageNo};

/// Hit in DRAM since it came there.
const HIT_IN_DRAM: State = State::MARK_A;

/// The rule for dirty pages that DRAM evicts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DirtyVictims {
    /// They always move to SCM: the paper's text.
    AlwaysMove,
    /// They move under the same conditions as clean ones: the paper's pseudo-code.
    MoveLikeClean,
}

/// The rule for clean pages that DRAM evicts while SCM is full.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CleanVictims {
    /// They move if SCM has an unreferenced clean page: the paper's selective migration.
    Move,
    /// They are dropped.
    Drop,
    /// They are dropped unless they were hit while they were in DRAM.
    DropUnused,
}

/// Settings of [`Hybrid`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HybridConfig {
    /// Writes of at most this many bytes are small. The paper's figures use 512.
    pub small_write_bytes: u16,
    /// The form of the paper.
    pub dirty_victims: DirtyVictims,
    /// [`CleanVictims::Move`] is the paper's; the others change one line of it, and write less to
    /// SCM.
    pub clean_victims: CleanVictims,
}

impl Default for HybridConfig {
    fn default() -> Self {
        Self {
            small_write_bytes: 512,
            dirty_victims: DirtyVictims::AlwaysMove,
            clean_victims: CleanVictims::Move,
        }
    }
}

/// The sector-ordered dual CLOCK.
pub struct Hybrid<S: Storage> {
    pages: Directory<S>,
    dram: S::Set,
    scm: S::Set,
    /// Pages of SCM that are clean and unreferenced.
    spare: S::Set,
    dram_hand: u32,
    scm_hand: u32,
    config: HybridConfig,
}

impl<S: Storage> Hybrid<S> {
    /// Makes an empty cache of two tiers.
    #[must_use]
    pub fn new(storage: S, capacity: Capacity, config: HybridConfig) -> Self {
        Self {
            pages: Directory::new(storage, capacity),
            dram: storage.set(),
            scm: storage.set(),
            spare: storage.set(),
            dram_hand: 0,
            scm_hand: 0,
            config,
        }
    }

    /// Returns true if an access that finds the page in `state` sets its reference bit in `tier`.
    #[inline]
    fn references(&self, access: Access, state: State, tier: Tier) -> bool {
        let small = access.len <= self.config.small_write_bytes;
        let update_suits = match tier {
            Tier::Dram => !small,
            Tier::Scm => small,
        };
        match (self.config.dirty_victims, access.op) {
            // `|` because operations are hard to predict.
            (DirtyVictims::AlwaysMove, op) => update_suits | (op == Op::Read),
            (DirtyVictims::MoveLikeClean, Op::Read) => !state.is_dirty() || tier == Tier::Scm,
            (DirtyVictims::MoveLikeClean, Op::Write) => !state.is_dirty() || update_suits,
        }
    }

    #[inline]
    fn hit(&mut self, access: Access, state: State, tier: Tier) {
        let page = access.page.0;
        let references = self.references(access, state, tier);
        let bits = state.with_if(references, State::REFERENCED);
        // For `CleanVictims::DropUnused` only. The paper's forms ignore the mark.
        let bits = bits.with_if(tier == Tier::Dram, HIT_IN_DRAM);
        let bits = self.pages.touch(page, state, bits, access.op);
        // `spare` has exactly the clean unreferenced pages of SCM, so a new bit of either kind ends
        // it.
        if tier == Tier::Scm && is_spare(state) && bits != state {
            self.spare.remove(page);
        }
    }

    fn enters_referenced(&self, access: Access) -> bool {
        match self.config.dirty_victims {
            DirtyVictims::AlwaysMove => access.op == Op::Write,
            DirtyVictims::MoveLikeClean => {
                access.op == Op::Read || access.len > self.config.small_write_bytes
            }
        }
    }

    /// Returns the next page of DRAM without a reference bit.
    fn dram_victim(&mut self) -> u32 {
        loop {
            let page = self.dram.next_around(self.dram_hand).expect("a full tier has a page");
            // The hand follows the sectors, so demotions and later write-backs come in their order.
            self.dram_hand = page + 1;
            let state = self.pages.state(page);
            if !state.has(State::REFERENCED) {
                return page;
            }
            // The second chance. A page without a bit is found in the second round at the latest.
            self.pages.set_state(page, state.without(State::REFERENCED));
        }
    }

    fn scm_victim(&mut self) -> u32 {
        // Clean pages go first: they cost the backing device nothing. No bit is cleared on the way.
        if let Some(page) = self.spare.next_around(self.scm_hand) {
            self.scm_hand = page + 1;
            return page;
        }
        loop {
            let page = self.scm.next_around(self.scm_hand).expect("a full tier has a page");
            self.scm_hand = page + 1;
            let state = self.pages.state(page);
            if !state.has(State::REFERENCED) {
                return page;
            }
            let state = state.without(State::REFERENCED);
            self.pages.set_state(page, state);
            // It has lost its bit just now. The next eviction can take it directly.
            if !state.is_dirty() {
                self.spare.insert(page);
            }
        }
    }

    fn evict_from_scm(&mut self, actions: &mut impl Actions) {
        let victim = self.scm_victim();
        self.scm.remove(victim);
        // A dirty victim is not in the set, and the removal has no effect.
        self.spare.remove(victim);
        self.pages.evict(victim, Reason::Victim, actions);
    }

    /// Returns the reason to demote a page that DRAM evicts, if there is one.
    fn reason_to_move(&self, state: State) -> Option<Reason> {
        let dirty = state.is_dirty();
        let drops = match self.config.clean_victims {
            CleanVictims::Move => false,
            CleanVictims::Drop => !dirty,
            CleanVictims::DropUnused => !dirty && !state.has(HIT_IN_DRAM),
        };
        // The order is the paper's: its text moves dirty pages before it asks about space.
        if dirty && self.config.dirty_victims == DirtyVictims::AlwaysMove {
            Some(Reason::DirtyVictim)
        } else if !self.pages.is_full(Tier::Scm) {
            Some(Reason::FreeFrame)
        // SCM is full: the page displaces one that is clean and unreferenced, or leaves the cache.
        } else if !drops && self.spare.next(0).is_some() {
            Some(Reason::ColderPage)
        } else {
            None
        }
    }

    fn make_room_in_dram(&mut self, actions: &mut impl Actions) {
        let page = self.dram_victim();
        self.dram.remove(page);
        let state = self.pages.state(page);
        let dirty = state.is_dirty();
        let Some(why) = self.reason_to_move(state) else {
            self.pages.evict(page, Reason::NoRoomBelow, actions);
            return;
        };
        // Before the demotion: it needs the frame of SCM's victim.
        if self.pages.is_full(Tier::Scm) {
            self.evict_from_scm(actions);
        }
        self.pages.remove(page);
        // The paper's rule: dirty pages arrive referenced. They stay a round longer, which delays
        // their write-back.
        let bits = State::default().with_if(dirty, State::DIRTY.with(State::REFERENCED));
        self.pages.insert(page, Tier::Scm, bits);
        self.scm.insert(page);
        if !dirty {
            self.spare.insert(page);
        }
        actions.act(Action::Move { page: PageNo(page), to: Tier::Scm, dirty, why });
    }
}

fn is_spare(state: State) -> bool {
    !state.has(State::DIRTY.with(State::REFERENCED))
}

impl<S: Storage> Policy for Hybrid<S> {
    type Storage = S;

    fn directory(&self) -> &Directory<S> {
        &self.pages
    }

    fn directory_mut(&mut self) -> &mut Directory<S> {
        &mut self.pages
    }

    #[inline]
    fn access(&mut self, access: Access, actions: &mut impl Actions) {
        let page = access.page.0;
        let state = self.pages.state(page);
        if let Some(tier) = state.tier() {
            self.hit(access, state, tier);
            actions.act(Action::Hit { found: tier, served: tier });
            return;
        }
        if self.pages.is_full(Tier::Dram) {
            // Every miss enters DRAM, a small write too: the paper separates pages at their
            // departure.
            self.make_room_in_dram(actions);
        }
        let bits = State::default()
            .with_if(access.op == Op::Write, State::DIRTY)
            .with_if(self.enters_referenced(access), State::REFERENCED);
        self.pages.insert(page, Tier::Dram, bits);
        self.dram.insert(page);
        let why = Reason::of_miss(access.op);
        actions.act(Action::Fill { page: access.page, tier: Tier::Dram, why });
    }

    fn remove(&mut self, page: PageNo) {
        match self.pages.remove(page.0).tier() {
            Some(Tier::Dram) => self.dram.remove(page.0),
            Some(Tier::Scm) => {
                self.scm.remove(page.0);
                self.spare.remove(page.0);
            }
            None => {}
        }
    }

    fn cleaned(&mut self, page: PageNo) {
        // A cleaned page can become spare. The write-back thread so feeds the set.
        self.pages.clean(page.0);
        let state = self.pages.state(page.0);
        if state.has(State::SCM) && is_spare(state) {
            self.spare.insert(page.0);
        }
    }

    fn reclaim(&mut self, tier: Tier, actions: &mut impl Actions) {
        match tier {
            Tier::Dram => self.make_room_in_dram(actions),
            Tier::Scm => self.evict_from_scm(actions),
        }
    }
}

//! Which pages are in the cache, where, and which of them are dirty.
//!
//! Invariants: a page is in one tier at most (only Spitfire's is in two); a page that is in none
//! is not dirty; `dirty` has exactly the pages that are.

use super::action::{Action, Actions, Reason, Tier};
use super::space::{PageSet, Space, Table};
use crate::access::{Op, PageNo};

/// Frames of each tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// Pages that DRAM can hold.
    pub dram: u32,
    /// Pages that PRAM can hold.
    pub pram: u32,
}

impl Capacity {
    /// All of it in DRAM: what policies of one tier get.
    #[must_use]
    pub fn in_one_tier(self) -> Self {
        Self { dram: self.dram.saturating_add(self.pram), pram: 0 }
    }

    /// Frames of a tier.
    #[must_use]
    pub fn of(self, tier: Tier) -> u32 {
        match tier {
            Tier::Dram => self.dram,
            Tier::Pram => self.pram,
        }
    }
}

/// What is known of a page, as bits.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct State(pub(super) u8);

impl State {
    pub(super) const DRAM: Self = Self(1);
    pub(super) const PRAM: Self = Self(2);
    pub(super) const DIRTY: Self = Self(4);
    /// The reference bit of a CLOCK.
    pub(super) const REFERENCED: Self = Self(8);
    /// Two bits for what only one policy has.
    pub(super) const MARK_A: Self = Self(16);
    pub(super) const MARK_B: Self = Self(32);

    #[inline]
    pub(super) fn has(self, bits: Self) -> bool {
        self.0 & bits.0 != 0
    }

    #[inline]
    pub(super) fn with(self, bits: Self) -> Self {
        Self(self.0 | bits.0)
    }

    #[inline]
    pub(super) fn with_if(self, condition: bool, bits: Self) -> Self {
        // No branch: what accesses do is hard to predict.
        Self(self.0 | (bits.0 * u8::from(condition)))
    }

    #[inline]
    pub(super) fn without(self, bits: Self) -> Self {
        Self(self.0 & !bits.0)
    }

    pub(super) fn of(tier: Tier) -> Self {
        match tier {
            Tier::Dram => Self::DRAM,
            Tier::Pram => Self::PRAM,
        }
    }

    #[inline]
    pub(super) fn tier(self) -> Option<Tier> {
        if self.has(Self::DRAM) {
            Some(Tier::Dram)
        } else if self.has(Self::PRAM) {
            Some(Tier::Pram)
        } else {
            None
        }
    }

    pub(super) fn is_dirty(self) -> bool {
        self.has(Self::DIRTY)
    }
}

/// The pages in the cache.
pub struct Residents<S: Space> {
    states: S::Table<State>,
    dirty: S::Set,
    used: Capacity,
    pub(super) capacity: Capacity,
}

impl<S: Space> Residents<S> {
    pub(super) fn new(space: S, capacity: Capacity) -> Self {
        let used = Capacity { dram: 0, pram: 0 };
        Self { states: space.table(), dirty: space.set(), used, capacity }
    }

    /// Frames in use.
    #[must_use]
    pub fn used(&self) -> Capacity {
        self.used
    }

    /// Frames that there are.
    #[must_use]
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Where the page is.
    #[must_use]
    pub fn tier(&self, page: PageNo) -> Option<Tier> {
        self.states.get(page.0).tier()
    }

    /// Whether storage has older bytes of the page.
    #[must_use]
    pub fn is_dirty(&self, page: PageNo) -> bool {
        self.states.get(page.0).is_dirty()
    }

    /// The first dirty page that is not before `from`, in the order of sectors.
    #[must_use]
    pub fn next_dirty(&self, from: PageNo) -> Option<PageNo> {
        self.dirty.next(from.0).map(PageNo)
    }

    #[inline]
    pub(super) fn state(&self, page: u32) -> State {
        self.states.get(page)
    }

    /// Sets the bits of a page of the cache other than tier and dirt.
    #[inline]
    pub(super) fn set_state(&mut self, page: u32, state: State) {
        self.states.set(page, state);
    }

    pub(super) fn is_full(&self, tier: Tier) -> bool {
        self.used.of(tier) >= self.capacity.of(tier)
    }

    /// A page comes to a tier, with these bits besides the tier's.
    pub(super) fn enter(&mut self, page: u32, tier: Tier, bits: State) {
        *self.used_mut(tier) += 1;
        self.states.set(page, State::of(tier).with(bits));
        if bits.is_dirty() {
            self.dirty.insert(page);
        }
    }

    /// A page leaves the tier it is in, for the other one or for good. Returns what it was.
    pub(super) fn leave(&mut self, page: u32) -> State {
        let state = self.states.get(page);
        if let Some(tier) = state.tier() {
            *self.used_mut(tier) -= 1;
        }
        self.states.set(page, State::default());
        if state.is_dirty() {
            self.dirty.remove(page);
        }
        state
    }

    /// A page leaves the cache, which is told as an eviction or a drop.
    #[inline]
    pub(super) fn expel(&mut self, page: u32, why: Reason, actions: &mut impl Actions) -> State {
        let state = self.leave(page);
        let from = state.tier().expect("only a page of the cache can be expelled");
        let page = PageNo(page);
        if state.is_dirty() {
            actions.act(Action::Evict { page, from, why });
        } else {
            actions.act(Action::Drop { page, from, why });
        }
        state
    }

    /// An access of kind `op` reached a page of the cache whose bits are `state` and become
    /// `bits`, besides dirty if it is a write. Returns its bits since.
    #[inline]
    pub(super) fn touch(&mut self, page: u32, state: State, bits: State, op: Op) -> State {
        let bits = bits.with_if(op == Op::Write, State::DIRTY);
        if bits != state {
            self.states.set(page, bits);
            if bits.is_dirty() && !state.is_dirty() {
                self.dirty.insert(page);
            }
        }
        bits
    }

    /// A write reached a page of the cache whose bits are `state`. Returns its bits since.
    #[inline]
    pub(super) fn soil(&mut self, page: u32, state: State) -> State {
        if !state.is_dirty() {
            self.dirty.insert(page);
        }
        state.with(State::DIRTY)
    }

    /// Storage has the bytes of the page.
    pub(super) fn clean(&mut self, page: u32) {
        let state = self.states.get(page);
        if state.is_dirty() {
            self.states.set(page, state.without(State::DIRTY));
            self.dirty.remove(page);
        }
    }

    /// For Spitfire, whose pages can be in both tiers.
    pub(super) fn used_mut(&mut self, tier: Tier) -> &mut u32 {
        match tier {
            Tier::Dram => &mut self.used.dram,
            Tier::Pram => &mut self.used.pram,
        }
    }
}

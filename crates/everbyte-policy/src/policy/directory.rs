//! The directory of a cache: the tier of each page, and the set of dirty pages.
//!
//! Invariants: a page is in one tier at most (only Spitfire's is in two); a page that is in no tier
//! is not dirty; `dirty` has exactly the dirty pages.

use super::action::{Action, Actions, Reason, Tier};
use super::storage::{PageSet, Storage, Table};
use crate::access::{Access, Op, PageNo};

/// Frames of each tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// Pages that DRAM can hold.
    pub dram: u32,
    /// Pages that SCM can hold.
    pub scm: u32,
}

impl Capacity {
    /// Returns the capacity of a policy of one tier: all of it in DRAM.
    #[must_use]
    pub fn in_one_tier(self) -> Self {
        Self { dram: self.dram.saturating_add(self.scm), scm: 0 }
    }

    /// Returns the frames of a tier.
    #[must_use]
    pub fn of(self, tier: Tier) -> u32 {
        match tier {
            Tier::Dram => self.dram,
            Tier::Scm => self.scm,
        }
    }
}

/// A page's tier, dirty bit and reference bits, and a byte that the policy gives a meaning.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct State(pub(super) u16);

/// The policy's byte is above the others' bits: a separate table would cost more than twice the
/// memory.
const NOTE_SHIFT: u32 = 8;

impl State {
    pub(super) const DRAM: Self = Self(1);
    pub(super) const SCM: Self = Self(2);
    pub(super) const DIRTY: Self = Self(4);
    /// The reference bit of a CLOCK.
    pub(super) const REFERENCED: Self = Self(8);
    /// Two bits that one policy each gives a meaning.
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
        // No branch: accesses are hard to predict.
        Self(self.0 | (bits.0 * u16::from(condition)))
    }

    #[inline]
    pub(super) fn without(self, bits: Self) -> Self {
        Self(self.0 & !bits.0)
    }

    /// Returns the policy's byte.
    #[inline]
    pub(super) fn note(self) -> u8 {
        self.0.to_le_bytes()[1]
    }

    #[inline]
    pub(super) fn with_note(self, note: u8) -> Self {
        Self(self.0 & ((1 << NOTE_SHIFT) - 1) | u16::from(note) << NOTE_SHIFT)
    }

    pub(super) fn of(tier: Tier) -> Self {
        match tier {
            Tier::Dram => Self::DRAM,
            Tier::Scm => Self::SCM,
        }
    }

    #[inline]
    pub(super) fn tier(self) -> Option<Tier> {
        if self.has(Self::DRAM) {
            Some(Tier::Dram)
        } else if self.has(Self::SCM) {
            Some(Tier::Scm)
        } else {
            None
        }
    }

    pub(super) fn is_dirty(self) -> bool {
        self.has(Self::DIRTY)
    }
}

/// The pages of the cache: the common state of every policy, and the source of the actions of the
/// usual steps.
///
/// A policy has in addition its own order of the pages; see `examples/own_policy.rs` for one that
/// needs only these methods.
pub struct Directory<S: Storage> {
    states: S::Table<State>,
    dirty: S::Set,
    dirty_pages: u32,
    used: Capacity,
    pub(super) capacity: Capacity,
}

impl<S: Storage> Directory<S> {
    /// Makes the directory of an empty cache.
    #[must_use]
    pub fn new(storage: S, capacity: Capacity) -> Self {
        let used = Capacity { dram: 0, scm: 0 };
        Self { states: storage.table(), dirty: storage.set(), dirty_pages: 0, used, capacity }
    }

    /// Returns the frames in use.
    #[must_use]
    pub fn used(&self) -> Capacity {
        self.used
    }

    /// Returns the frames that there are.
    #[must_use]
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Returns the page's tier; DRAM if it is in both.
    #[must_use]
    pub fn tier(&self, page: PageNo) -> Option<Tier> {
        self.states.get(page.0).tier()
    }

    /// Returns true if the backing device has older bytes of the page.
    #[must_use]
    pub fn is_dirty(&self, page: PageNo) -> bool {
        self.states.get(page.0).is_dirty()
    }

    /// Returns the first dirty page that is not before `from`, in the order of sectors.
    #[must_use]
    pub fn next_dirty(&self, from: PageNo) -> Option<PageNo> {
        self.dirty.next(from.0).map(PageNo)
    }

    /// Returns the number of dirty pages.
    #[must_use]
    pub fn dirty_pages(&self) -> u32 {
        self.dirty_pages
    }

    /// Serves a hit where the page is, with [`Action::Hit`]: a write makes the page dirty. Returns
    /// false, and does nothing, if the page is not in the cache.
    #[inline]
    pub fn hit(&mut self, access: Access, actions: &mut impl Actions) -> bool {
        let state = self.states.get(access.page.0);
        let Some(found) = state.tier() else { return false };
        self.touch(access.page.0, state, state, access.op);
        actions.act(Action::Hit { found, served: found });
        true
    }

    /// Brings the page of a miss into a tier, with [`Action::Fill`]; dirty if it is written to. The
    /// page must not be in the cache, and the tier must have a free frame.
    #[inline]
    pub fn fill(&mut self, access: Access, tier: Tier, actions: &mut impl Actions) {
        let bits = State::default().with_if(access.op == Op::Write, State::DIRTY);
        self.insert(access.page.0, tier, bits);
        let why = Reason::of_miss(access.op);
        actions.act(Action::Fill { page: access.page, tier, why });
    }

    /// Promotes or demotes a page, with [`Action::Move`].
    ///
    /// # Panics
    /// If the page is not in the cache.
    pub fn relocate(&mut self, page: PageNo, to: Tier, why: Reason, actions: &mut impl Actions) {
        let dirty = self.move_to(page.0, to).is_dirty();
        actions.act(Action::Move { page, to, dirty, why });
    }

    /// Removes a page from the cache, with [`Action::Evict`] if it is dirty, else with
    /// [`Action::Drop`].
    ///
    /// # Panics
    /// If the page is not in the cache.
    pub fn expel(&mut self, page: PageNo, why: Reason, actions: &mut impl Actions) {
        self.evict(page.0, why, actions);
    }

    /// Removes a page and the bytes written to it, without an action. Returns its tier before.
    pub fn forget(&mut self, page: PageNo) -> Option<Tier> {
        self.remove(page.0).tier()
    }

    /// Returns the table of the pages' bits, for policies that keep more there. They change neither the tier
    /// nor, but with [`Self::insert_dirty`], the dirty bit.
    #[inline]
    pub(super) fn states_mut(&mut self) -> &mut S::Table<State> {
        &mut self.states
    }

    /// Adds a page that became dirty to the dirty pages.
    pub(super) fn insert_dirty(&mut self, page: u32) {
        self.dirty.insert(page);
        self.dirty_pages += 1;
    }

    fn remove_dirty(&mut self, page: u32) {
        self.dirty.remove(page);
        self.dirty_pages -= 1;
    }

    #[inline]
    pub(super) fn state(&self, page: u32) -> State {
        self.states.get(page)
    }

    /// Sets the bits of a page of the cache other than those of tier and dirty.
    #[inline]
    pub(super) fn set_state(&mut self, page: u32, state: State) {
        self.states.set(page, state);
    }

    /// Returns true if the tier has no free frame.
    #[must_use]
    pub fn is_full(&self, tier: Tier) -> bool {
        self.used.of(tier) >= self.capacity.of(tier)
    }

    /// Inserts a page into a tier, with these bits in addition to the tier's.
    pub(super) fn insert(&mut self, page: u32, tier: Tier, bits: State) {
        *self.used_mut(tier) += 1;
        self.states.set(page, State::of(tier).with(bits));
        if bits.is_dirty() {
            self.insert_dirty(page);
        }
    }

    /// Removes a page from its tier, because it moves or is evicted. Returns its bits before.
    pub(super) fn remove(&mut self, page: u32) -> State {
        let state = self.states.get(page);
        // A page in both tiers gives its DRAM frame here. Spitfire counts the other one.
        if let Some(tier) = state.tier() {
            *self.used_mut(tier) -= 1;
        }
        // The default value takes no entry in a sparse table: memory follows the cached pages.
        self.states.set(page, State::default());
        if state.is_dirty() {
            self.remove_dirty(page);
        }
        state
    }

    /// Moves a page of the cache to the other tier. Returns its bits there.
    pub(super) fn move_to(&mut self, page: u32, to: Tier) -> State {
        let state = self.states.get(page);
        let from = state.tier().expect("only a page of the cache can move");
        if from != to {
            self.count_move(to);
        }
        // The dirty bit, marks and note stay. A policy resets them where they mean one tier.
        let state = state.without(State::of(from)).with(State::of(to));
        self.states.set(page, state);
        state
    }

    /// Counts a page that moves to a tier from the other one.
    pub(super) fn count_move(&mut self, to: Tier) {
        let (from, to) = match to {
            Tier::Dram => (&mut self.used.scm, &mut self.used.dram),
            Tier::Scm => (&mut self.used.dram, &mut self.used.scm),
        };
        *from -= 1;
        *to += 1;
    }

    /// Removes a page from the cache, with an eviction if it is dirty, else with a drop. Returns
    /// its bits before.
    #[inline]
    pub(super) fn evict(&mut self, page: u32, why: Reason, actions: &mut impl Actions) -> State {
        let state = self.remove(page);
        let from = state.tier().expect("only a page of the cache can be evicted");
        let page = PageNo(page);
        // `remove` has cleared the stored bits, so the copy decides between write-back and drop.
        if state.is_dirty() {
            actions.act(Action::Evict { page, from, why });
        } else {
            actions.act(Action::Drop { page, from, why });
        }
        state
    }

    /// Applies an access of kind `op` to a page of the cache with the bits `state`. They become
    /// `bits`, and dirty for a write. Returns the new bits.
    #[inline]
    pub(super) fn touch(&mut self, page: u32, state: State, bits: State, op: Op) -> State {
        let bits = bits.with_if(op == Op::Write, State::DIRTY);
        // Repeated hits change nothing. The comparison spares a store of the hottest path.
        if bits != state {
            self.states.set(page, bits);
            if bits.is_dirty() && !state.is_dirty() {
                self.insert_dirty(page);
            }
        }
        bits
    }

    /// Returns the bits of a page whose bits are `state` after a write, and adds it to the dirty
    /// pages.
    #[inline]
    pub(super) fn mark_dirty(&mut self, page: u32, state: State) -> State {
        if !state.is_dirty() {
            self.insert_dirty(page);
        }
        state.with(State::DIRTY)
    }

    /// Marks the page clean, because the backing device has its bytes.
    pub(super) fn clean(&mut self, page: u32) {
        let state = self.states.get(page);
        if state.is_dirty() {
            self.states.set(page, state.without(State::DIRTY));
            self.remove_dirty(page);
        }
    }

    /// Returns the count of a tier's frames in use. For Spitfire, whose pages can be in both tiers.
    pub(super) fn used_mut(&mut self, tier: Tier) -> &mut u32 {
        match tier {
            Tier::Dram => &mut self.used.dram,
            Tier::Scm => &mut self.used.scm,
        }
    }
}

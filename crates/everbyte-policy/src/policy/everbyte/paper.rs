//! The paper's policy as the master of what is in the cache: it is given every access, and what it
//! asks for is not done but noted.
//!
//! Invariant: nothing is noted but what the last call changed; whoever calls takes all of it.

use super::super::Policy;
use super::super::action::{Action, Actions, Tier};
use super::super::hybrid::{Hybrid, HybridConfig};
use super::super::residents::{Capacity, Residents, State};
use super::super::space::Space;
use super::misses::Misses;
use crate::access::{Access, Op, PageNo};

/// What the paper's policy did.
#[derive(Default)]
struct Notes {
    pram_bytes: u64,
    /// Bytes of the access, if it writes.
    written: u64,
    moved: Vec<u32>,
    given_up: Vec<u32>,
    missed: bool,
}

impl Actions for Notes {
    #[inline]
    fn act(&mut self, action: Action) {
        match action {
            Action::Hit { served: Tier::Pram, .. } => self.pram_bytes += self.written,
            Action::Move { page, lines, .. } => {
                self.pram_bytes += u64::from(lines.bytes());
                self.moved.push(page.0);
            }
            Action::Drop { page, .. } | Action::Evict { page, .. } => self.given_up.push(page.0),
            Action::Fill { .. } => self.missed = true,
            Action::Hit { .. } => {}
            Action::Copy { .. } | Action::Update { .. } => {
                unreachable!("a page of the paper's policy is in one tier")
            }
        }
    }
}

/// The paper's policy, given every access, and what it asked for in the last call.
pub(super) struct Paper<S: Space> {
    hybrid: Hybrid<S>,
    notes: Notes,
    misses: Misses,
    /// One more than the highest page seen: what a turn of a hand passes.
    turn: u32,
}

impl<S: Space> Paper<S> {
    pub(super) fn new(space: S, capacity: Capacity, config: HybridConfig) -> Self {
        let hybrid = Hybrid::new(space, capacity, config);
        Self { hybrid, notes: Notes::default(), misses: Misses::default(), turn: 1 }
    }

    pub(super) fn access(&mut self, access: Access) {
        self.turn = self.turn.max(access.page.0 + 1);
        self.notes.written = if access.op == Op::Write { u64::from(access.len) } else { 0 };
        self.notes.missed = false;
        self.hybrid.access(access, &mut self.notes);
        if self.notes.missed {
            self.misses.add(access);
        }
    }

    /// Whether the paper's policy did not have the page of the last access.
    #[inline]
    pub(super) fn has_missed(&self) -> bool {
        self.notes.missed
    }

    pub(super) fn misses(&self) -> &Misses {
        &self.misses
    }

    pub(super) fn resize(&mut self, capacity: Capacity) {
        self.hybrid.resize(capacity, &mut self.notes);
    }

    /// Gives up a page, of PRAM if there is one. There must be a page.
    pub(super) fn give_up_page(&mut self) {
        while self.notes.given_up.is_empty() {
            let in_pram = self.residents().used().pram > 0;
            self.hybrid.reclaim(if in_pram { Tier::Pram } else { Tier::Dram }, &mut self.notes);
        }
    }

    pub(super) fn remove(&mut self, page: u32) {
        self.hybrid.remove(PageNo(page));
    }

    pub(super) fn cleaned(&mut self, page: u32) {
        self.hybrid.cleaned(PageNo(page));
    }

    /// A page that went down to PRAM, if there is one that was not taken yet.
    #[inline]
    pub(super) fn take_moved(&mut self) -> Option<u32> {
        self.notes.moved.pop()
    }

    /// A page that left the cache, if there is one that was not taken yet.
    #[inline]
    pub(super) fn take_given_up(&mut self) -> Option<u32> {
        self.notes.given_up.pop()
    }

    /// Bytes that the paper's policy would have written to PRAM up to now.
    pub(super) fn pram_bytes(&self) -> u64 {
        self.notes.pram_bytes
    }

    #[inline]
    pub(super) fn tier(&self, page: u32) -> Option<Tier> {
        self.state(page).tier()
    }

    fn state(&self, page: u32) -> State {
        self.residents().state(page)
    }

    fn residents(&self) -> &Residents<S> {
        self.hybrid.residents()
    }

    /// Pages that a hand passes in a turn.
    pub(super) fn turn(&self) -> u64 {
        u64::from(self.turn)
    }

    /// How many pages the hand over PRAM has to pass until the cache is likely to give up the page,
    /// if nobody uses it. 0 if it goes from DRAM.
    pub(super) fn life(&self, page: u32) -> u64 {
        if !self.residents().is_full(Tier::Pram) {
            return 2 * self.turn();
        }
        let (state, spare_goes) = (self.state(page), self.hybrid.has_spare());
        let hand = self.hybrid.pram_hand();
        let ahead = if page >= hand { page - hand } else { page + (self.turn - hand) };
        let (ahead, referenced) = (u64::from(ahead), state.has(State::REFERENCED));
        let spared = match (state.tier(), spare_goes) {
            (Some(Tier::Pram), true) if referenced || state.is_dirty() => return 2 * self.turn(),
            (Some(Tier::Pram), _) => referenced,
            (_, false) if !state.is_dirty() => return 0,
            _ => referenced || state.is_dirty(),
        };
        ahead + if spared { self.turn() } else { 0 }
    }
}

//! The paper's policy as the reference for the pages to cache: it gets every access, and its
//! actions are recorded and not carried out.
//!
//! Invariant: the record has only the changes of the last call; the caller takes all of them.

use super::super::Policy;
use super::super::action::{Action, Actions, Tier};
use super::super::directory::{Capacity, Directory, State};
use super::super::hybrid::{Hybrid, HybridConfig};
use super::super::storage::Storage;
use super::misses::Misses;
use crate::access::{Access, Op, PageNo};

/// Record of the actions of the paper's policy.
#[derive(Default)]
struct Notes {
    scm_bytes: u64,
    /// Bytes of the access, if it writes.
    written: u64,
    moved: Vec<u32>,
    evicted: Vec<u32>,
    missed: bool,
}

impl Actions for Notes {
    #[inline]
    fn act(&mut self, action: Action) {
        match action {
            Action::Hit { served: Tier::Scm, .. } => self.scm_bytes += self.written,
            Action::Move { page, lines, .. } => {
                self.scm_bytes += u64::from(lines.bytes());
                self.moved.push(page.0);
            }
            Action::Drop { page, .. } | Action::Evict { page, .. } => self.evicted.push(page.0),
            Action::Fill { .. } => self.missed = true,
            Action::Hit { .. } => {}
            Action::Copy { .. } | Action::Update { .. } => {
                unreachable!("a page of the paper's policy is in one tier")
            }
        }
    }
}

/// The paper's policy, given every access, and its actions of the last call.
pub(super) struct Paper<S: Storage> {
    hybrid: Hybrid<S>,
    notes: Notes,
    misses: Misses,
    /// One more than the highest page seen: the pages that a hand passes in a turn.
    turn: u32,
}

impl<S: Storage> Paper<S> {
    pub(super) fn new(storage: S, capacity: Capacity, config: HybridConfig) -> Self {
        let hybrid = Hybrid::new(storage, capacity, config);
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

    /// Returns true if the paper's policy did not have the page of the last access.
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

    /// Evicts a page, of SCM if there is one. There must be a page.
    pub(super) fn evict_page(&mut self) {
        while self.notes.evicted.is_empty() {
            let in_scm = self.directory().used().scm > 0;
            self.hybrid.reclaim(if in_scm { Tier::Scm } else { Tier::Dram }, &mut self.notes);
        }
    }

    pub(super) fn remove(&mut self, page: u32) {
        self.hybrid.remove(PageNo(page));
    }

    pub(super) fn cleaned(&mut self, page: u32) {
        self.hybrid.cleaned(PageNo(page));
    }

    /// Takes a page that was demoted to SCM, if there is one that was not taken yet.
    #[inline]
    pub(super) fn take_moved(&mut self) -> Option<u32> {
        self.notes.moved.pop()
    }

    /// Takes a page that was evicted, if there is one that was not taken yet.
    #[inline]
    pub(super) fn take_evicted(&mut self) -> Option<u32> {
        self.notes.evicted.pop()
    }

    /// Returns the bytes that the paper's policy would have written to SCM up to now.
    pub(super) fn scm_bytes(&self) -> u64 {
        self.notes.scm_bytes
    }

    #[inline]
    pub(super) fn tier(&self, page: u32) -> Option<Tier> {
        self.state(page).tier()
    }

    fn state(&self, page: u32) -> State {
        self.directory().state(page)
    }

    fn directory(&self) -> &Directory<S> {
        self.hybrid.directory()
    }

    /// Returns the pages that a hand passes in a turn.
    pub(super) fn turn(&self) -> u64 {
        u64::from(self.turn)
    }

    /// Returns the pages that the hand over SCM has to pass until the paper's policy is likely to
    /// evict the page, if nobody uses it; 0 if it is evicted from DRAM.
    pub(super) fn life(&self, page: u32) -> u64 {
        if !self.directory().is_full(Tier::Scm) {
            return 2 * self.turn();
        }
        let (state, spare_goes) = (self.state(page), self.hybrid.has_spare());
        let hand = self.hybrid.scm_hand();
        let ahead = if page >= hand { page - hand } else { page + (self.turn - hand) };
        let (ahead, referenced) = (u64::from(ahead), state.has(State::REFERENCED));
        let spared = match (state.tier(), spare_goes) {
            (Some(Tier::Scm), true) if referenced || state.is_dirty() => return 2 * self.turn(),
            (Some(Tier::Scm), _) => referenced,
            (_, false) if !state.is_dirty() => return 0,
            _ => referenced || state.is_dirty(),
        };
        ahead + if spared { self.turn() } else { 0 }
    }
}

//! Growth of the space on demand: a region borrows slots as its pages leave DRAM.
//!
//! Only the background evictor asks the owner of the space, because the answer can take long.
//! Invariant: it holds no lock and no unit meanwhile, so the owner may fault and take locks.

use std::sync::atomic::Ordering::SeqCst;

use super::{Pager, PagingFailure};
use crate::region::paged::memory::Memory;

/// Free slots below which the evictor asks for more: two batches.
const FREE_MIN: u64 = 256;
/// Batches without an eviction before a lack of slots is certain.
const IDLE_MIN: u32 = 2;
/// Part of the space that one request adds at least,
const STEP_PART: u64 = 16;
/// within these bounds in slots.
const STEP_MIN: u64 = 512;
const STEP_MAX: u64 = 8192;

/// A lack of slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shortage {
    /// The next batches of the evictor need slots.
    Soon,
    /// A fault waits, and no unit can leave DRAM without a slot.
    Now,
}

impl<M: Memory> Pager<M> {
    /// True if a fault has to wait for the growth of the space. It wakes the evictor for that.
    pub(super) fn starves(&self) -> bool {
        let is_starving = self.may_grow() && self.is_full() && self.failure().is_none();
        if is_starving {
            self.is_starving.store(true, SeqCst);
            self.wake_evictor();
        }
        is_starving
    }

    /// True if a full store is a state between a request for slots and its answer.
    pub(crate) fn may_grow(&self) -> bool {
        self.grows && !self.is_refused.load(SeqCst)
    }

    /// True if a fault waits for a slot.
    pub(crate) fn is_starving(&self) -> bool {
        self.is_starving.load(SeqCst)
    }

    /// The lack of slots at this moment, after `idle` batches of the evictor without an eviction.
    pub(crate) fn shortage(&self, idle: u32) -> Option<Shortage> {
        if !self.grows || self.failure().is_some_and(|failure| failure != PagingFailure::Locked) {
            return None;
        }
        let is_starving = self.is_starving.swap(false, SeqCst);
        // The fault may have found room since, and one batch alone can meet referenced units only.
        let has_room = self.resident.load(SeqCst) < self.limit.load(SeqCst);
        if is_starving && self.is_full() && !has_room && idle >= IDLE_MIN {
            return Some(Shortage::Now);
        }
        (self.slots.free_count() < FREE_MIN).then_some(Shortage::Soon)
    }

    /// Number of slots to ask for, for a space of `slots` slots.
    pub(crate) fn slots_wanted(slots: u64) -> u64 {
        (slots / STEP_PART).clamp(STEP_MIN, STEP_MAX)
    }

    /// Records the owner's answer. A refusal of slots for a waiting fault lets the fault exceed the
    /// limit.
    pub(crate) fn note_growth(&self, shortage: Shortage, has_grown: bool) {
        if has_grown {
            self.full.store(false, SeqCst);
            self.is_refused.store(false, SeqCst);
        } else if shortage == Shortage::Now {
            self.is_refused.store(true, SeqCst);
        }
    }
}

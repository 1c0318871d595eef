//! The pager of a region: the units in DRAM and their moves in and out.
//!
//! Owns the words of all units, the set of windows due for a visit by the evictor, and the count of
//! resident units. Moves bytes only through [`Memory`], so tests can explore it on a table instead
//! of memory.
//! P1 to P7 of `docs/proofs.md` argue that no page is lost.
//!
//! Invariants:
//! - A unit counts as resident from before its page is made until after it is taken away.
//! - A window with a resident unit is in `windows`, except while the evictor has it or before the
//!   thread that made the unit resident has added it. That thread sets the unit's word, *then* adds
//!   the window; the evictor removes the window, *then* reads the words.
//! - The pager does not allocate, sleep on a lock, or access the region's pages except through
//!   `Memory`, so all of it can run in a signal handler.

mod evict;
mod fault;
mod fork_hold;
mod growth;
mod protect_policy;
mod range_ops;
mod stream;

#[cfg(test)]
mod tests;

use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};

use everbyte_slots::SlotTree;

use crate::region::paged::memory::{Memory, MemoryError};
use crate::region::paged::unit::{Unit, UnitTable};
use crate::region::stats::{Counters, Statistics};
use crate::region::units::UnitNo;
use crate::slots::index;
use crate::slots::{SlotMap, SlotNo};
use evict::Batch;
use protect_policy::ProtectPolicy;
use stream::Streams;

pub(crate) use evict::Progress;
pub(crate) use fault::{Access, FaultError};
pub(crate) use growth::Shortage;
pub(crate) use range_ops::RangeError;

/// Units of a window: the step of the evictor's hand, and the maximum read-ahead.
pub(crate) const WINDOW: u64 = 16;
/// The smallest limit on resident units.
pub(crate) const LIMIT_MIN: u64 = 64;

/// The reason for the end of all evictions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum PagingFailure {
    /// The descriptor for moving pages is closed.
    DescriptorLost = 1,
    /// The store lost copied bytes.
    StoreFailed = 2,
    /// The system does not take pages away.
    Locked = 3,
}

/// Settings of a pager.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PagerOptions {
    /// Maximum number of resident units.
    pub(crate) limit: u64,
    /// Start of the search for the first slot.
    pub(crate) slot_hint: SlotNo,
    /// Units filled together for a stream, 1 to [`WINDOW`].
    pub(crate) read_ahead: u64,
    /// Fills pages write-protected for loads while enough of them never see a store: the evictor
    /// removes these without a copy.
    pub(crate) tracks_stores: bool,
    /// The space can get more slots at any time.
    pub(crate) grows: bool,
}

/// The pager of a region.
pub(crate) struct Pager<M> {
    pub(crate) memory: M,
    units: UnitTable,
    windows: SlotTree,
    slots: std::sync::Arc<SlotMap>,
    resident: AtomicU64,
    /// Units neither empty nor closed, including units on their way.
    used: AtomicU64,
    pinned: AtomicU64,
    limit: AtomicU64,
    tracks_stores: bool,
    protect_policy: ProtectPolicy,
    /// Completed turns of the evictor's hand.
    turn: AtomicU64,
    evictor: Mutex<Batch>,
    /// Faults on absent units.
    streams: Streams,
    /// Faults on protected pages.
    store_streams: Streams,
    pub(crate) counters: Counters,
    failure: AtomicU8,
    /// Pages may be missing from units that should have them: a zap failed, and so did the
    /// restoration.
    is_doubtful: AtomicBool,
    /// A unit has a mark that ends accesses in SIGBUS. The mark stays until its address is zapped.
    has_poisoned: AtomicBool,
    /// Evictions are forbidden, and any number of units may become resident.
    is_held: AtomicBool,
    full: AtomicBool,
    /// A fault waits for a slot until the owner of the space refuses more.
    grows: bool,
    is_refused: AtomicBool,
    /// A fault found neither room nor a slot since the evictor's last inspection.
    is_starving: AtomicBool,
    /// 1 while the background evictor should work, for it to sleep on.
    pub(crate) wanted: AtomicU32,
}

impl<M: Memory> Pager<M> {
    /// A pager of `units` units, all empty; `None` without memory for their words.
    pub(crate) fn new(
        memory: M,
        units: u64,
        slots: std::sync::Arc<SlotMap>,
        options: &PagerOptions,
    ) -> Option<Self> {
        Some(Self {
            memory,
            units: UnitTable::new(index(units))?,
            windows: SlotTree::new(units.div_ceil(WINDOW)),
            slots,
            resident: AtomicU64::new(0),
            used: AtomicU64::new(0),
            pinned: AtomicU64::new(0),
            limit: AtomicU64::new(options.limit),
            tracks_stores: options.tracks_stores,
            protect_policy: ProtectPolicy::default(),
            turn: AtomicU64::new(0),
            evictor: Mutex::new(Batch::new(options.slot_hint)),
            streams: Streams::new(options.read_ahead.min(WINDOW)),
            store_streams: Streams::new(options.read_ahead.min(WINDOW)),
            counters: Counters::default(),
            failure: AtomicU8::new(0),
            is_doubtful: AtomicBool::new(false),
            has_poisoned: AtomicBool::new(false),
            is_held: AtomicBool::new(false),
            full: AtomicBool::new(false),
            grows: options.grows,
            is_refused: AtomicBool::new(false),
            is_starving: AtomicBool::new(false),
            wanted: AtomicU32::new(0),
        })
    }

    /// Units of the region.
    pub(crate) fn len(&self) -> u64 {
        self.units.len()
    }

    pub(crate) fn statistics(&self) -> Statistics {
        Statistics {
            units_resident: self.resident.load(SeqCst),
            units_used: self.units_used(),
            units_limit: self.limit.load(SeqCst),
            units_pinned: self.pinned.load(SeqCst),
            slots_free: self.slots.free_count(),
            ..self.counters.read()
        }
    }

    /// Units with contents.
    pub(crate) fn units_used(&self) -> u64 {
        self.used.load(SeqCst)
    }

    /// The reason for the end of all evictions, if they ended.
    pub(crate) fn failure(&self) -> Option<PagingFailure> {
        match self.failure.load(SeqCst) {
            0 => None,
            1 => Some(PagingFailure::DescriptorLost),
            2 => Some(PagingFailure::StoreFailed),
            _ => Some(PagingFailure::Locked),
        }
    }

    /// True if the last eviction had no unit to evict without a slot, and no slot.
    pub(crate) fn is_full(&self) -> bool {
        self.full.load(SeqCst)
    }

    /// Records the first reason for the end of all evictions.
    fn note_failure(&self, error: MemoryError) {
        let failure = match error {
            MemoryError::DescriptorLost => PagingFailure::DescriptorLost,
            MemoryError::StoreFailed => PagingFailure::StoreFailed,
            MemoryError::Locked => PagingFailure::Locked,
            MemoryError::AlreadyThere | MemoryError::Unreadable | MemoryError::Again => return,
        };
        // Only the first reason is kept. The evictor reports it, because its thread may allocate.
        if self.failure.compare_exchange(0, failure as u8, SeqCst, SeqCst).is_ok() {
            self.wake_evictor();
        }
    }

    /// Fills the missing page of a claimed unit: with the bytes of its slot, write-protected, or
    /// with zeroes. A present page stays.
    fn restore(&self, at: UnitNo, unit: Unit) -> Result<(), MemoryError> {
        let there = match unit.slot() {
            Some(slot) => self.memory.copy_in(at, slot, 1, true),
            None => self.memory.zero_in(at, 1, false),
        };
        match there {
            Ok(_) | Err(MemoryError::AlreadyThere) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// As [`restore`](Self::restore), after a failed zap: it may have removed the page. If the
    /// restoration fails, every page is in doubt from now on.
    fn restore_or_doubt(&self, at: UnitNo, unit: Unit) {
        if self.restore(at, unit).is_err() {
            self.is_doubtful.store(true, SeqCst);
        }
    }

    /// True if the page of a resident unit may be missing.
    fn is_doubtful(&self) -> bool {
        self.is_doubtful.load(SeqCst)
    }

    /// Marks a unit with a present page as dirty. Requires: before any other call on the unit.
    pub(crate) fn adopt(&self, at: UnitNo) {
        self.resident.fetch_add(1, SeqCst);
        self.used.fetch_add(1, SeqCst);
        self.settle(at, Unit::DIRTY);
    }

    /// Ends the caller's claim to a unit and sets its new state to `unit`.
    fn settle(&self, at: UnitNo, unit: Unit) {
        self.memory.step();
        // The word before the window: the evictor removes a window before it reads the words (P6).
        self.units.set(at, unit);
        if unit.is_resident() {
            self.add_window(at.0 / WINDOW);
        }
        self.memory.step();
    }

    /// Has the evictor visit a window.
    fn add_window(&self, window: u64) {
        if !self.windows.is_free(window) {
            // Another thread may add it at the same time.
            let _added = self.windows.free(window);
        }
    }

    /// True if the background evictor should work.
    pub(crate) fn wants_eviction(&self) -> bool {
        let limit = self.limit.load(SeqCst);
        !self.is_held.load(SeqCst) && self.resident.load(SeqCst) > limit - reserve(limit)
    }

    /// True once the background evictor has made room enough.
    pub(crate) fn has_room(&self) -> bool {
        // A second reserve below the start of evictions: the evictor works in long turns, not at
        // every fault.
        let limit = self.limit.load(SeqCst);
        self.is_held.load(SeqCst) || self.resident.load(SeqCst) <= limit - 2 * reserve(limit)
    }

    /// Frees every slot of the region. Requires: the region is unused from now on.
    pub(crate) fn free_slots(&self) {
        for at in (0..self.units.len()).map(UnitNo) {
            if let Some(slot) = self.units.load(at).slot() {
                self.slots.free(slot);
                self.units.set(at, Unit::EMPTY);
            }
        }
    }

    fn free_slot(&self, slot: SlotNo) {
        self.memory.step();
        self.slots.free(slot);
        self.full.store(false, SeqCst);
    }
}

/// Free units below the limit at the start of the background evictor.
fn reserve(limit: u64) -> u64 {
    (limit / 16).clamp(1, 4096)
}

/// Number of units with contents that page with `slots` slots. If no slot is free, the dirty units
/// leave a reserve of the limit, so a region at its limit has clean units to evict.
pub(crate) fn units_paged_by(slots: u64, limit: u64) -> u64 {
    slots + limit - reserve(limit)
}

/// Number of slots that guarantees a free slot to a region of `units` units, including a batch of
/// the evictor.
pub(crate) fn slots_needed(units: u64, limit: u64) -> u64 {
    units.saturating_sub(limit - 3 * reserve(limit))
}

//! Faults: bringing a unit in, and letting a store through to a protected page.

use std::sync::atomic::Ordering::SeqCst;

use everbyte_plant::planted;

use super::evict::Progress;
use super::stream::ReadAhead;
use super::{Pager, WINDOW};
use crate::plant::Bug;
use crate::region::paged::memory::{Memory, MemoryError};
use crate::region::paged::unit::{Phase, Unit};
use crate::region::stats::{add, count};
use crate::region::units::UnitNo;
use crate::region::units::UnitRun;
use crate::slots::SlotNo;
use crate::slots::index;

/// Passes over all windows without an eviction before a fault exceeds the limit.
const PASSES_MAX: u32 = 3;
/// Refusals of a page by the system before a fault fails.
pub(super) const FAILURES_MAX: u32 = 10_000;

/// A faulting access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Access {
    pub(crate) is_store: bool,
    /// The page was there, but write-protected.
    pub(crate) is_present: bool,
}

impl Access {
    pub(crate) const STORE: Self = Self { is_store: true, is_present: false };
    pub(crate) const LOAD: Self = Self { is_store: false, is_present: false };
}

/// An unresolved fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FaultError {
    /// The unit's slot is unreadable.
    Unreadable,
    /// The descriptor for moving pages is closed.
    DescriptorLost,
    /// The system has no memory.
    NoMemory,
}

impl FaultError {
    /// False if the unit is sound, and may be had later.
    pub(crate) fn is_final(self) -> bool {
        self != Self::NoMemory
    }
}

/// Adjacent units claimed by the caller, to be filled.
struct ClaimedUnits {
    first: UnitNo,
    seen: [Unit; index(WINDOW)],
    units: u64,
}

impl<M: Memory> Pager<M> {
    /// Resolves a fault: afterwards the access can be made again. It may then fault once more.
    pub(crate) fn fault(&self, at: UnitNo, access: Access) -> Result<(), FaultError> {
        let counter = match access {
            Access { is_present: true, .. } => &self.counters.faults_protected,
            Access { is_store: true, .. } => &self.counters.faults_store,
            Access { is_store: false, .. } => &self.counters.faults_load,
        };
        count(counter);
        self.bring_in(at, access, true)
    }

    /// As [`fault`](Self::fault), without counting one; follows streams if `is_fault`.
    pub(super) fn bring_in(
        &self,
        at: UnitNo,
        access: Access,
        is_fault: bool,
    ) -> Result<(), FaultError> {
        let (mut waits, mut failures) = (0, 0);
        loop {
            self.memory.step();
            let seen = self.units.load(at);
            let done = match seen.phase() {
                Phase::Busy => Ok(false),
                // The fault began before the close. Repeated, the access meets the new access rights.
                Phase::Closed if !planted(Bug::FilledWhileClosed) => return Ok(()),
                Phase::Empty | Phase::Stored | Phase::Closed => {
                    self.fill(at, seen, access, is_fault)
                }
                Phase::Clean | Phase::Dirty if !access.is_present => self.confirm(at, seen),
                Phase::Clean | Phase::Dirty | Phase::WritingBack => {
                    self.store_to_protected(at, seen, is_fault)
                }
            };
            match done {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                // The unit is unchanged, and the system may have memory later.
                Err(MemoryError::Again) if failures < FAILURES_MAX => failures += 1,
                Err(error) => return Err(self.failed(error)),
            }
            if waits == 0 {
                count(&self.counters.faults_waited);
            }
            self.memory.pause(waits);
            waits = waits.saturating_add(1);
        }
    }

    /// The fault error for a failed step.
    pub(super) fn failed(&self, error: MemoryError) -> FaultError {
        self.note_failure(error);
        match error {
            MemoryError::Unreadable => FaultError::Unreadable,
            MemoryError::Again => FaultError::NoMemory,
            _ => FaultError::DescriptorLost,
        }
    }

    /// Fills an absent unit, and more if a stream wants it. False if another thread was there
    /// first.
    fn fill(
        &self,
        at: UnitNo,
        seen: Unit,
        access: Access,
        is_fault: bool,
    ) -> Result<bool, MemoryError> {
        // Before the claim: the owner of a unit must not wait for the evictor (P5).
        self.admit();
        self.memory.step();
        if !self.units.claim(at, seen) {
            self.resident.fetch_sub(1, SeqCst);
            return Ok(false);
        }
        let ahead = if is_fault { self.streams.note(at) } else { ReadAhead::NONE };
        let mut claimed = ClaimedUnits { first: at, seen: [seen; index(WINDOW)], units: 1 };
        if ahead.stride == 1 {
            self.claim_ahead(&mut claimed, ahead.units);
        }
        self.fill_claimed(&claimed, access)?;
        if ahead.stride > 1 {
            for step in 1..=ahead.units {
                self.read_ahead(UnitNo(at.0 + step * ahead.stride), access);
            }
        }
        Ok(true)
    }

    /// Claims units behind the faulting one while they are in the same phase and their slots are
    /// adjacent in the store.
    fn claim_ahead(&self, claimed: &mut ClaimedUnits, units: u64) {
        let slot = claimed.seen[0].slot();
        while claimed.units <= units {
            let at = UnitNo(claimed.first.0 + claimed.units);
            // Read-ahead takes free room only and evicts no unit.
            if at.0 >= self.units.len() || !self.try_admit() {
                return;
            }
            let seen = self.units.load(at);
            let expected = slot.map(|slot| SlotNo(slot.0 + claimed.units));
            let is_like = seen.slot() == expected
                && matches!(seen.phase(), Phase::Empty | Phase::Stored)
                && self.units.claim(at, seen);
            if !is_like {
                self.resident.fetch_sub(1, SeqCst);
                return;
            }
            claimed.seen[index(claimed.units)] = seen;
            claimed.units += 1;
        }
    }

    /// Fills one stored unit for a stream of such accesses, if the limit has room.
    fn read_ahead(&self, at: UnitNo, access: Access) {
        if at.0 >= self.units.len() {
            return;
        }
        let seen = self.units.load(at);
        if seen.phase() != Phase::Stored || !self.try_admit() {
            return;
        }
        if !self.units.claim(at, seen) {
            self.resident.fetch_sub(1, SeqCst);
            return;
        }
        let claimed = ClaimedUnits { first: at, seen: [seen; index(WINDOW)], units: 1 };
        if self.fill_claimed(&claimed, access).is_ok() {
            count(&self.counters.units_read_ahead);
        }
    }

    /// Fills claimed units. On failure the units are unchanged.
    fn fill_claimed(&self, claimed: &ClaimedUnits, access: Access) -> Result<(), MemoryError> {
        let (first, units) = (claimed.first, claimed.units);
        let slot = claimed.seen[0].slot();
        let writable = slot.is_none()
            || access.is_store
            || !self.tracks_stores
            || self.protect_policy.are_likely();
        let early = planted(Bug::SlotFreedBeforeFill) && writable;
        if let Some(slot) = slot
            && early
        {
            self.free_slot(slot);
        }
        self.memory.step();
        let filled = match slot {
            None => self.memory.zero_in(first, units, access.is_store),
            Some(slot) => self.memory.copy_in(first, slot, units, !writable),
        };
        let done = filled.as_ref().map_or(0, |done| *done);
        match slot {
            None => add(&self.counters.units_zeroed, done),
            Some(_) => add(&self.counters.units_in, done),
        }
        add(&self.counters.units_read_ahead, done.saturating_sub(1));
        // The kernel may have filled only the first units. The rest return to their old state.
        for nth in 0..units {
            let (at, seen) = (UnitNo(first.0 + nth), claimed.seen[index(nth)]);
            if nth >= done {
                self.resident.fetch_sub(1, SeqCst);
                self.settle(at, seen);
                continue;
            }
            if seen.slot().is_none() {
                self.used.fetch_add(1, SeqCst);
            }
            let next = match seen.slot() {
                Some(slot) if !writable => Unit::clean(slot),
                slot => {
                    // After the fill: until then the slot has the only copy of the bytes (P1).
                    if let (Some(slot), false) = (slot, early) {
                        self.free_slot(slot);
                    }
                    Unit::DIRTY
                }
            };
            self.settle(at, next.referenced(self.came_back(seen)));
        }
        filled.map(|_| ())
    }

    /// True if a filled unit was evicted recently.
    fn came_back(&self, seen: Unit) -> bool {
        let is_ghost = seen.is_ghost(self.turn.load(SeqCst));
        if is_ghost {
            count(&self.counters.ghost_hits);
        }
        is_ghost
    }

    /// Allows a store to a protected page, and to the pages behind it if the stores form a stream.
    fn store_to_protected(
        &self,
        at: UnitNo,
        seen: Unit,
        is_fault: bool,
    ) -> Result<bool, MemoryError> {
        let is_clean = seen.phase() == Phase::Clean;
        if is_clean {
            self.protect_policy.note_store();
        }
        let ahead =
            if is_fault && is_clean { self.store_streams.note(at) } else { ReadAhead::NONE };
        self.make_dirty(at, seen, if ahead.stride == 1 { ahead.units } else { 0 })
    }

    /// Makes a resident unit's page writable, and the pages of up to `ahead` clean units behind it.
    /// False if another thread owns or changed the unit.
    pub(super) fn make_dirty(
        &self,
        at: UnitNo,
        seen: Unit,
        ahead: u64,
    ) -> Result<bool, MemoryError> {
        if !self.units.claim(at, seen) {
            return Ok(false);
        }
        let mut claimed = ClaimedUnits { first: at, seen: [seen; index(WINDOW)], units: 1 };
        while claimed.units <= ahead {
            let next = UnitNo(at.0 + claimed.units);
            let is_clean = next.0 < self.units.len() && {
                let seen = self.units.load(next);
                claimed.seen[index(claimed.units)] = seen;
                seen.phase() == Phase::Clean && self.units.claim(next, seen)
            };
            if !is_clean {
                break;
            }
            claimed.units += 1;
        }
        self.memory.step();
        // After a failed zap a page may be missing, and its slot must live until it is restored
        // (P1).
        let there = if self.is_doubtful() { self.restore_claimed(&mut claimed) } else { Ok(()) };
        let run = UnitRun { first: at, units: claimed.units };
        let done = there.and_then(|()| self.memory.unprotect(run));
        for nth in 0..claimed.units {
            let (at, seen) = (UnitNo(at.0 + nth), claimed.seen[index(nth)]);
            match done {
                Ok(()) => self.became_dirty(at, seen, nth == 0),
                Err(_) => self.settle(at, seen),
            }
        }
        done?;
        add(&self.counters.units_unprotected_ahead, claimed.units - 1);
        Ok(true)
    }

    /// Ensures pages for claimed units before they lose their slots. Releases all units from the
    /// first unit without a page on, but never the very first unit.
    fn restore_claimed(&self, claimed: &mut ClaimedUnits) -> Result<(), MemoryError> {
        let unit = |nth: u64| (UnitNo(claimed.first.0 + nth), claimed.seen[index(nth)]);
        let failed = (0..claimed.units).find_map(|nth| {
            let (at, seen) = unit(nth);
            self.restore(at, seen).err().map(|error| (nth, error))
        });
        match failed {
            None => Ok(()),
            Some((0, error)) => Err(error),
            Some((nth, _)) => {
                (nth..claimed.units).map(unit).for_each(|(at, seen)| self.settle(at, seen));
                claimed.units = nth;
                Ok(())
            }
        }
    }

    /// Ends the claim to a unit whose page became writable.
    fn became_dirty(&self, at: UnitNo, seen: Unit, is_used: bool) {
        let is_referenced = is_used || seen.is_referenced();
        let next = Unit::DIRTY.with_pins(seen.pins()).referenced(is_referenced);
        match seen.slot() {
            // The page is present and writable, so the copy in the slot is stale.
            Some(slot) => self.free_slot(slot),
            None if seen.phase() == Phase::WritingBack => count(&self.counters.units_redirtied),
            None => {}
        }
        self.settle(at, next);
    }

    /// Handles a fault on a missing page of a unit recorded with a page. Usually another thread has
    /// filled it since. After a zap that failed half way the page can be missing: it is restored
    /// from the unit's slot, which this function never frees. Without a slot the page held zeroes,
    /// or the program removed it (`madvise`). Not for units in write-back, because the evictor must
    /// find them unchanged, or dirty.
    fn confirm(&self, at: UnitNo, seen: Unit) -> Result<bool, MemoryError> {
        if !self.units.claim(at, seen) {
            return Ok(false);
        }
        self.memory.step();
        let restored = self.restore(at, seen);
        self.settle(at, seen);
        match restored {
            // The page is present, so the slot's bytes are not needed.
            Err(MemoryError::Unreadable) if !self.is_doubtful() => Ok(true),
            restored => restored.map(|()| true),
        }
    }

    /// Counts a unit as resident and evicts others if the limit is reached. If no unit can be
    /// evicted, the unit exceeds the limit, because the program's contents matter more.
    fn admit(&self) {
        let mut passes = 0;
        let mut tries = 0;
        while !self.try_admit() {
            self.memory.step();
            match self.try_evict() {
                // The evictor's thread asks for slots: this thread may be in a signal handler.
                Progress::Evicted(0) if self.starves() => {
                    self.memory.pause(tries);
                    tries += 1;
                }
                Progress::Evicted(0) => passes += 1,
                Progress::Evicted(_) => count(&self.counters.direct_evictions),
                Progress::Another => {
                    self.memory.pause(tries);
                    tries += 1;
                }
            }
            if passes == PASSES_MAX {
                self.resident.fetch_add(1, SeqCst);
                count(&self.counters.units_over_limit);
                return;
            }
        }
        // Woken below the limit, so later faults find room and need not evict.
        if self.wants_eviction() {
            self.wake_evictor();
        }
    }

    /// Counts a unit as resident if there is room.
    fn try_admit(&self) -> bool {
        // Counted first and taken back: concurrent faults cannot exceed the limit together.
        let is_below = self.resident.fetch_add(1, SeqCst) < self.limit.load(SeqCst);
        if is_below || self.is_held.load(SeqCst) {
            return true;
        }
        self.resident.fetch_sub(1, SeqCst);
        false
    }

    /// Wakes the background evictor from its sleep: to make room, or to report a failure.
    pub(crate) fn wake_evictor(&self) {
        if self.wanted.swap(1, SeqCst) == 0 {
            let flags = rustix::thread::futex::Flags::PRIVATE;
            // A missing sleeper is not an error.
            let _woken = rustix::thread::futex::wake(&self.wanted, flags, 1);
        }
    }
}

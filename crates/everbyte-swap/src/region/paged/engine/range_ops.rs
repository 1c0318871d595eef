//! Requests of a program: prefetch, pin, unpin and discard units.

use std::sync::atomic::Ordering::SeqCst;

use super::fault::{Access, FAILURES_MAX, FaultError};
use super::{LIMIT_MIN, Pager, WINDOW, reserve};
use crate::region::paged::memory::{Memory, MemoryError};
use crate::region::paged::unit::{PINS_MAX, Phase, Unit};
use crate::region::units::UnitNo;
use crate::region::units::UnitRun;

/// A refused or failed request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RangeError {
    /// A unit could not be brought in.
    Fault { at: UnitNo, error: FaultError },
    /// So many units would be pinned; so many may be.
    TooManyPinned { pinned: u64, most: u64 },
    /// This unit is pinned.
    Pinned(UnitNo),
    /// This unit is not pinned, or cannot be pinned once more.
    BadPin(UnitNo),
    /// The limit is below this number of units.
    LimitTooLow(u64),
    /// The pages from this unit on could not be removed.
    Zap(UnitNo, MemoryError),
}

impl<M: Memory> Pager<M> {
    /// Brings units in, as far as the limit has room for them. Returns how many are in.
    pub(crate) fn prefetch(&self, run: UnitRun) -> Result<u64, RangeError> {
        let limit = self.limit.load(SeqCst);
        // For more units the evictor would remove the first ones again.
        let most = limit - 2 * reserve(limit);
        let units = run.units.min(most.saturating_sub(self.pinned.load(SeqCst)));
        for at in (run.first.0..run.first.0 + units).map(UnitNo) {
            if matches!(self.units.load(at).phase(), Phase::Empty | Phase::Stored) {
                let brought = self.bring_in(at, Access::LOAD, false);
                brought.map_err(|error| RangeError::Fault { at, error })?;
            }
        }
        Ok(units)
    }

    /// Maximum number of pinned units under a limit.
    fn pins_most(limit: u64) -> u64 {
        limit - limit / 4
    }

    /// Pins units: they are resident and writable until they are unpinned as often.
    pub(crate) fn pin(&self, run: UnitRun) -> Result<(), RangeError> {
        // Counted first, so concurrent calls cannot exceed the bound together.
        let pinned = self.pinned.fetch_add(run.units, SeqCst) + run.units;
        let most = Self::pins_most(self.limit.load(SeqCst));
        if pinned > most {
            self.pinned.fetch_sub(run.units, SeqCst);
            return Err(RangeError::TooManyPinned { pinned, most });
        }
        for at in (run.first.0..run.first.0 + run.units).map(UnitNo) {
            if let Err(error) = self.pin_unit(at) {
                for at in (run.first.0..at.0).map(UnitNo) {
                    self.unpin_unit(at);
                }
                self.pinned.fetch_sub(run.units, SeqCst);
                return Err(error);
            }
        }
        Ok(())
    }

    fn pin_unit(&self, at: UnitNo) -> Result<(), RangeError> {
        let (mut tries, mut failures) = (0, 0);
        loop {
            self.memory.step();
            let seen = self.units.load(at);
            let done = match seen.phase() {
                Phase::Empty | Phase::Stored => self.bring_in(at, Access::STORE, false),
                // A pinned unit is writable, so it must be dirty before the pin.
                Phase::Clean | Phase::WritingBack => match self.make_dirty(at, seen, 0) {
                    Ok(_) => Ok(()),
                    Err(MemoryError::Again) if failures < FAILURES_MAX => {
                        self.memory.pause(failures);
                        failures += 1;
                        Ok(())
                    }
                    Err(error) => Err(self.failed(error)),
                },
                Phase::Closed => return Err(RangeError::BadPin(at)),
                Phase::Dirty if seen.pins() == PINS_MAX => return Err(RangeError::BadPin(at)),
                Phase::Dirty => {
                    if self.units.replace(at, seen, seen.with_pins(seen.pins() + 1)) {
                        return Ok(());
                    }
                    Ok(())
                }
                Phase::Busy => {
                    self.memory.pause(tries);
                    tries += 1;
                    Ok(())
                }
            };
            done.map_err(|error| RangeError::Fault { at, error })?;
        }
    }

    /// Takes one pin off each unit; all of them, or none.
    pub(crate) fn unpin(&self, run: UnitRun) -> Result<(), RangeError> {
        let units = (run.first.0..run.first.0 + run.units).map(UnitNo);
        for at in units.clone() {
            if !self.unpin_unit(at) {
                for at in (run.first.0..at.0).map(UnitNo) {
                    // A unit unpinned a moment ago can be pinned, unless it was discarded since.
                    let _again = self.pin_unit(at);
                }
                return Err(RangeError::BadPin(at));
            }
        }
        self.pinned.fetch_sub(run.units, SeqCst);
        Ok(())
    }

    fn unpin_unit(&self, at: UnitNo) -> bool {
        let mut tries = 0;
        loop {
            let seen = self.units.load(at);
            if seen.phase() == Phase::Busy {
                self.memory.pause(tries);
                tries += 1;
            } else if seen.pins() == 0 {
                return false;
            } else if self.units.replace(at, seen, seen.with_pins(seen.pins() - 1)) {
                return true;
            }
        }
    }

    /// Makes units hold zeroes, without their pages or slots. Pinned ones are refused. Closed ones
    /// stay closed.
    pub(crate) fn discard(&self, run: UnitRun) -> Result<(), RangeError> {
        self.empty(run, Unit::EMPTY)
    }

    /// As [`discard`](Self::discard), and no fault fills the units until they are
    /// [open](Self::open).
    pub(crate) fn close(&self, run: UnitRun) -> Result<(), RangeError> {
        self.empty(run, Unit::CLOSED)
    }

    /// Makes closed units empty ones.
    pub(crate) fn open(&self, run: UnitRun) {
        for at in (run.first.0..run.first.0 + run.units).map(UnitNo) {
            // Only the opener changes a closed unit, except for short claims of a discard.
            while matches!(self.units.load(at).phase(), Phase::Closed | Phase::Busy) {
                if self.units.replace(at, Unit::CLOSED, Unit::EMPTY) {
                    break;
                }
                self.memory.pause(0);
            }
        }
    }

    /// Discards units and leaves them as `next`.
    fn empty(&self, run: UnitRun, next: Unit) -> Result<(), RangeError> {
        let end = run.first.0 + run.units;
        // Before any change: a refused call leaves every unit as it is.
        let pinned = (run.first.0..end).map(UnitNo).find(|&at| self.units.load(at).pins() > 0);
        if let Some(at) = pinned {
            return Err(RangeError::Pinned(at));
        }
        let mut from = run.first.0;
        while from < end {
            let to = ((from / WINDOW + 1) * WINDOW).min(end);
            self.empty_in_window(from, to, next)?;
            from = to;
        }
        Ok(())
    }

    /// Claims the units of (a part of) a window, empties them and leaves them as `next`.
    fn empty_in_window(&self, from: u64, to: u64, next: Unit) -> Result<(), RangeError> {
        // The evictor reads pages that it does not own: this call must not remove them during a
        // read.
        let _no_eviction = self.hold_evictor();
        let mut seen = [Unit::EMPTY; crate::slots::index(WINDOW)];
        let mut has_pages = false;
        // Claimed first: only the owner of a unit poisons it.
        for (at, seen) in (from..to).map(UnitNo).zip(&mut seen) {
            *seen = self.claim_in_any_phase(at);
            has_pages |= seen.is_resident();
        }
        // Other threads may have pinned units since the last inspection.
        let is_pinned = |(_, seen): &(UnitNo, Unit)| seen.pins() > 0;
        if let Some((at, _)) = (from..to).map(UnitNo).zip(seen).find(is_pinned) {
            (from..to).map(UnitNo).zip(seen).for_each(|(at, seen)| self.settle(at, seen));
            return Err(RangeError::Pinned(at));
        }
        // Only a zap removes the mark of a poisoned unit.
        has_pages |= self.has_poisoned.load(SeqCst);
        let run = UnitRun { first: UnitNo(from), units: to - from };
        let zapped = if has_pages { self.memory.zap(&[run]) } else { Ok(()) };
        for (at, seen) in (from..to).map(UnitNo).zip(seen) {
            if zapped.is_err() {
                if seen.is_resident() {
                    self.restore_or_doubt(at, seen);
                }
                self.settle(at, seen);
                continue;
            }
            // After the zap, because a failed one needs the slot to restore the page.
            if let Some(slot) = seen.slot() {
                self.free_slot(slot);
            }
            self.settle(at, if seen == Unit::CLOSED { seen } else { next });
            if seen.is_resident() {
                self.resident.fetch_sub(1, SeqCst);
            }
            if !matches!(seen.phase(), Phase::Empty | Phase::Closed) {
                self.used.fetch_sub(1, SeqCst);
            }
        }
        zapped.map_err(|error| {
            self.note_failure(error);
            RangeError::Zap(UnitNo(from), error)
        })
    }

    /// Calls `poison`, which ends later accesses to an unfillable unit in SIGBUS until the unit is
    /// discarded. Returns the result of `poison`; `None` if the unit has a page by now.
    pub(crate) fn poison<T>(&self, at: UnitNo, poison: impl FnOnce() -> T) -> Option<T> {
        let mut tries = 0;
        loop {
            self.memory.step();
            let seen = self.units.load(at);
            // A failed zap may have removed a clean or dirty unit's page.
            let has_page = seen.is_resident() && !self.is_doubtful();
            if has_page || matches!(seen.phase(), Phase::WritingBack | Phase::Closed) {
                return None;
            }
            if seen.phase() != Phase::Busy && self.units.claim(at, seen) {
                self.has_poisoned.store(true, SeqCst);
                let done = poison();
                self.settle(at, seen);
                return Some(done);
            }
            self.memory.pause(tries);
            tries += 1;
        }
    }

    fn claim_in_any_phase(&self, at: UnitNo) -> Unit {
        let mut tries = 0;
        loop {
            self.memory.step();
            let seen = self.units.load(at);
            if seen.phase() != Phase::Busy && self.units.claim(at, seen) {
                return seen;
            }
            self.memory.pause(tries);
            tries += 1;
        }
    }

    /// Changes the limit, and has the evictor come down to it.
    pub(crate) fn set_limit(&self, units: u64) -> Result<(), RangeError> {
        let pinned = self.pinned.load(SeqCst);
        if units < LIMIT_MIN || pinned > Self::pins_most(units) {
            return Err(RangeError::LimitTooLow(LIMIT_MIN.max(pinned + pinned.div_ceil(3))));
        }
        self.limit.store(units, SeqCst);
        if self.wants_eviction() {
            self.wake_evictor();
        }
        Ok(())
    }
}

//! Keeps all units resident for a time, so a fork copies all of them.
//!
//! A child has no pager, so units in slots read as zeroes there. Invariant: from the return of
//! [`Pager::hold_resident`] to [`Pager::resume_evictions`] no unit is evicted, and no unit of the run is only in
//! a slot.

use std::sync::atomic::Ordering::SeqCst;

use super::fault::{Access, FaultError};
use super::{Pager, RangeError};
use crate::region::paged::memory::Memory;
use crate::region::paged::unit::Phase;
use crate::region::units::UnitNo;
use crate::region::units::UnitRun;

impl<M: Memory> Pager<M> {
    /// Units of `run` with their bytes only in slots.
    pub(crate) fn units_stored(&self, run: UnitRun) -> u64 {
        let units = (run.first.0..run.first.0 + run.units).map(UnitNo);
        units.filter(|&at| self.units.load(at).phase() == Phase::Stored).count() as u64
    }

    /// Blocks evictions until [`resume_evictions`](Self::resume_evictions). Requires: before any use of the pager.
    pub(crate) fn hold(&self) {
        self.is_held.store(true, SeqCst);
    }

    /// Blocks evictions and brings in every stored unit of `run`, also above the limit. One thread
    /// at a time. The hold lasts until [`resume_evictions`](Self::resume_evictions), even after an error.
    pub(crate) fn hold_resident(&self, run: UnitRun) -> Result<(), RangeError> {
        self.is_held.store(true, SeqCst);
        // A thread that is evicting ends its batch; every later one sees the flag.
        drop(self.hold_evictor());
        for at in (run.first.0..run.first.0 + run.units).map(UnitNo) {
            let brought = self.bring_in_stored(at);
            brought.map_err(|error| RangeError::Fault { at, error })?;
        }
        Ok(())
    }

    fn bring_in_stored(&self, at: UnitNo) -> Result<(), FaultError> {
        let mut tries = 0;
        loop {
            match self.units.load(at).phase() {
                Phase::Stored => self.bring_in(at, Access::LOAD, false)?,
                Phase::Busy => {
                    self.memory.pause(tries);
                    tries += 1;
                }
                Phase::Empty | Phase::Closed | Phase::Clean | Phase::Dirty | Phase::WritingBack => {
                    return Ok(());
                }
            }
        }
    }

    /// Evicts again, down to the limit.
    pub(crate) fn resume_evictions(&self) {
        self.is_held.store(false, SeqCst);
        if self.wants_eviction() {
            self.wake_evictor();
        }
    }
}

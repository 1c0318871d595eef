//! Keeping everything resident for a while, so that a fork copies all of it.
//!
//! A child has no pager, so what the parent has in slots would be zeroes to it. Invariant: from the
//! return of [`Pager::hold_whole`] to [`Pager::let_go`] nothing is evicted, and no unit of the run is
//! in a slot alone.

use std::sync::atomic::Ordering::SeqCst;

use super::fault::{Access, FaultError};
use super::{Pager, RangeError};
use crate::region::paged::memory::Memory;
use crate::region::paged::unit::Phase;
use crate::region::units::UnitNo;
use crate::region::units::UnitRun;

impl<M: Memory> Pager<M> {
    /// Units of `run` whose bytes are in slots alone.
    pub(crate) fn units_stored(&self, run: UnitRun) -> u64 {
        let units = (run.first.0..run.first.0 + run.units).map(UnitNo);
        units.filter(|&at| self.units.load(at).phase() == Phase::Stored).count() as u64
    }

    /// Evicts nothing before [`let_go`](Self::let_go). Only before the pager is used.
    pub(crate) fn hold(&self) {
        self.is_held.store(true, SeqCst);
    }

    /// Stops evicting, and brings every unit of `run` in that is in a slot, whatever the limit. One
    /// thread at a time. What is held stays so until [`let_go`](Self::let_go), also if it fails.
    pub(crate) fn hold_whole(&self, run: UnitRun) -> Result<(), RangeError> {
        self.is_held.store(true, SeqCst);
        // Who is evicting finishes its batch; who comes later sees the flag.
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
                Phase::Empty | Phase::Clean | Phase::Dirty | Phase::WritingBack => return Ok(()),
            }
        }
    }

    /// Evicts again, down to the limit.
    pub(crate) fn let_go(&self) {
        self.is_held.store(false, SeqCst);
        if self.wants_eviction() {
            self.wake_evictor();
        }
    }
}

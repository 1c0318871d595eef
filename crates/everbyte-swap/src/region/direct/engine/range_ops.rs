//! Requests of a program: prefetch, pin, unpin and discard chunks, and change the limit.

use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;

use super::Chunks;
use super::budget::MOVE_MAPPINGS;
use crate::region::direct::chunk::{CHUNK_PINS_MAX, CHUNK_UNITS, Chunk, ChunkNo, ChunkPhase};
use crate::region::direct::memory::{ChunkError, ChunkMemory, Permission};
use crate::region::stats::{add, count};
use crate::region::units::UnitNo;
use crate::region::units::UnitRun;
use crate::slots::index;

/// A refused or failed request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RangeError {
    /// A chunk could not be made or made accessible.
    Chunk(ChunkNo, ChunkError),
    /// This unit is in a pinned chunk.
    Pinned(UnitNo),
    /// This chunk is not pinned, or cannot be pinned once more.
    BadPin(ChunkNo),
}

/// The chunks of a run of units, rounded out.
fn chunks_of(run: UnitRun) -> impl Iterator<Item = ChunkNo> + Clone {
    let end = if run.units == 0 { 0 } else { (run.first.0 + run.units).div_ceil(CHUNK_UNITS) };
    (run.first.0 / CHUNK_UNITS..end).map(ChunkNo)
}

impl<M: ChunkMemory> Chunks<M> {
    /// Moves chunks to DRAM in ascending order, as far as the DRAM limit and the mapping budget
    /// allow. Returns the number of the run's units in DRAM.
    pub(crate) fn prefetch(&self, run: UnitRun) -> Result<u64, RangeError> {
        for at in chunks_of(run) {
            let failed = |error| RangeError::Chunk(at, error);
            if self.table.load(at).phase() == ChunkPhase::Empty {
                self.fault(at, false).map_err(failed)?;
            }
            let is_run = self.table.load(at).run().is_some();
            if is_run && self.may_move() {
                self.promote(at).map_err(failed)?;
            }
            if self.table.load(at).run().is_some() {
                // This chunk found no room, and later ones would find none.
                return Ok((at.0 * CHUNK_UNITS).saturating_sub(run.first.0));
            }
        }
        Ok(run.units)
    }

    /// True if the bound on mappings leaves room for a move.
    pub(super) fn may_move(&self) -> bool {
        let may = self.budget.take(MOVE_MAPPINGS);
        if !may {
            count(&self.counters.moves_refused);
        }
        may
    }

    /// Keeps chunks where they are, accessible, until they are unpinned as often.
    pub(crate) fn pin(&self, run: UnitRun) -> Result<(), RangeError> {
        for at in chunks_of(run) {
            if let Err(error) = self.pin_chunk(at) {
                chunks_of(run).take_while(|before| *before != at).for_each(|at| {
                    self.unpin_chunk(at);
                });
                return Err(error);
            }
        }
        self.pinned.fetch_add(run.units, SeqCst);
        Ok(())
    }

    fn pin_chunk(&self, at: ChunkNo) -> Result<(), RangeError> {
        let mut tries = 0;
        loop {
            self.memory.step();
            let seen = self.table.load(at);
            match seen.phase() {
                ChunkPhase::Dram | ChunkPhase::Direct if seen.pins() == CHUNK_PINS_MAX => {
                    return Err(RangeError::BadPin(at));
                }
                ChunkPhase::Dram | ChunkPhase::Direct => {
                    if self.table.replace(at, seen, seen.with_pins(seen.pins() + 1)) {
                        return Ok(());
                    }
                }
                ChunkPhase::Busy => {
                    self.memory.pause(tries);
                    tries += 1;
                }
                ChunkPhase::Empty | ChunkPhase::DramWatched | ChunkPhase::DirectWatched => {
                    self.fault(at, true).map_err(|error| RangeError::Chunk(at, error))?;
                }
            }
        }
    }

    /// Takes one pin off each chunk; all of them, or none.
    pub(crate) fn unpin(&self, run: UnitRun) -> Result<(), RangeError> {
        for at in chunks_of(run) {
            if !self.unpin_chunk(at) {
                for at in chunks_of(run).take_while(|before| *before != at) {
                    // A chunk unpinned a moment ago can be pinned, unless it was discarded since.
                    let _again = self.pin_chunk(at);
                }
                return Err(RangeError::BadPin(at));
            }
        }
        self.pinned.fetch_sub(run.units, SeqCst);
        Ok(())
    }

    fn unpin_chunk(&self, at: ChunkNo) -> bool {
        let mut tries = 0;
        loop {
            let seen = self.table.load(at);
            if seen.phase() == ChunkPhase::Busy {
                self.memory.pause(tries);
                tries += 1;
            } else if seen.pins() == 0 {
                return false;
            } else if self.table.replace(at, seen, seen.with_pins(seen.pins() - 1)) {
                return true;
            }
        }
    }

    /// Sets units to zero. A chunk without remaining units frees its DRAM or run. Pinned chunks are
    /// refused.
    pub(crate) fn discard(&self, run: UnitRun) -> Result<(), RangeError> {
        // Before any change: a refused call leaves every chunk as it is.
        if let Some(at) = chunks_of(run).find(|&at| self.table.load(at).pins() > 0) {
            return Err(RangeError::Pinned(UnitNo((at.0 * CHUNK_UNITS).max(run.first.0))));
        }
        chunks_of(run).try_for_each(|at| self.discard_in_chunk(at, run))
    }

    /// Sets the units of `run` within a chunk to zero.
    fn discard_in_chunk(&self, at: ChunkNo, run: UnitRun) -> Result<(), RangeError> {
        let first = at.0 * CHUNK_UNITS;
        let from = run.first.0.max(first) - first;
        let end = self.units_of(at).min(run.first.0 + run.units - first);
        let seen = self.claim_in_any_phase(at);
        // Another thread may have pinned the chunk since the first check.
        if seen.pins() > 0 {
            self.settle(at, seen);
            return Err(RangeError::Pinned(UnitNo(first + from)));
        }
        let done = if seen.phase() == ChunkPhase::Empty {
            self.settle(at, seen);
            Ok(())
        } else if from == 0 && end == self.units_of(at) {
            self.empty(at, seen)
        } else {
            self.zero(at, seen, from..end)
        };
        done.map_err(|error| RangeError::Chunk(at, error))
    }

    /// Sets units of a claimed chunk to zero and releases the chunk.
    fn zero(&self, at: ChunkNo, seen: Chunk, units: Range<u64>) -> Result<(), ChunkError> {
        // A watched chunk is inaccessible.
        let allowed = self.memory.allow(at, Permission::Everything);
        if allowed.is_ok() {
            self.memory.zero(at, units);
        }
        self.settle(at, if allowed.is_ok() { seen.unwatched() } else { seen });
        allowed
    }

    /// Empties a chunk claimed by the caller.
    fn empty(&self, at: ChunkNo, seen: Chunk) -> Result<(), ChunkError> {
        if let Err(error) = self.memory.close(at, seen.run()) {
            self.settle(at, seen);
            return Err(error);
        }
        self.settle(at, Chunk::EMPTY);
        // After the mapping is gone: no free run is mapped (D2).
        match seen.run() {
            Some(run) => self.free_run(run),
            None => {
                self.dram.fetch_sub(1, SeqCst);
            }
        }
        Ok(())
    }

    fn claim_in_any_phase(&self, at: ChunkNo) -> Chunk {
        let mut tries = 0;
        loop {
            self.memory.step();
            let seen = self.table.load(at);
            if self.table.claim(at, seen) {
                return seen;
            }
            self.memory.pause(tries);
            tries += 1;
        }
    }

    /// Changes the limit and moves the coldest chunks out of DRAM until the limit holds, as far as
    /// runs are free. Pinned chunks stay.
    pub(crate) fn set_limit(&self, chunks: u64) {
        self.limit.store(chunks, SeqCst);
        // Passes with rising heat instead of a sorted list, because the engine does not allocate.
        for heat in (0..=u8::MAX).step_by(15) {
            for at in (0..self.len()).map(ChunkNo) {
                if self.dram.load(SeqCst) <= chunks {
                    return;
                }
                let is_cold = self.heat[index(at.0)].load(SeqCst) <= heat;
                if is_cold && self.table.load(at).is_dram() {
                    if !self.may_move() {
                        return;
                    }
                    // A chunk without a run stays in DRAM; `is_full` and `has_failed` report the
                    // reason.
                    let _moved = self.demote(at);
                }
            }
        }
    }

    /// Units of `run` in runs. Waits for chunks in a move or under watch.
    pub(crate) fn units_direct(&self, run: UnitRun) -> u64 {
        let end = run.first.0 + run.units;
        let direct = chunks_of(run).filter(|&at| self.settled(at).run().is_some());
        let units = direct.map(|at| {
            let first = at.0 * CHUNK_UNITS;
            (first + CHUNK_UNITS).min(end) - first.max(run.first.0)
        });
        units.sum()
    }

    /// The state of a chunk outside any change.
    fn settled(&self, at: ChunkNo) -> Chunk {
        let mut tries = 0;
        loop {
            let seen = self.table.load(at);
            if seen.phase() != ChunkPhase::Busy {
                return seen;
            }
            self.memory.pause(tries);
            tries += 1;
        }
    }

    /// Counts failed moves.
    pub(super) fn note_failed(&self, moved: &Result<bool, ChunkError>) {
        if moved.is_err() {
            add(&self.counters.moves_failed, 1);
        }
    }
}

//! Direct mode: chunks of 2 MiB, mapped from runs of a byte-addressable store or in DRAM.
//!
//! Owns the words of all chunks and the count of chunks in DRAM. Changes mappings and moves bytes
//! only through [`ChunkMemory`], so tests can explore it on a table instead of memory.
//!
//! The order of steps of a move:
//! 1. The mover claims the chunk: no other thread moves it, pins it or makes it accessible.
//! 2. It makes the chunk read-only. From here on its bytes cannot change: a store faults and blocks
//!    until the move ends.
//! 3. It is copied.
//! 4. It replaces the mapping atomically: loads read the same bytes before and after.
//! 5. Only then it releases the chunk and frees the old run.
//!
//! D1 to D5 of `docs/proofs.md` argue from these steps that no store is lost.
//!
//! Invariants:
//! - A chunk counts as in DRAM from before the creation of its memory until after its removal.
//! - The engine does not allocate, sleep on a lock, or access the region's bytes except through
//!   `ChunkMemory`: a signal handler can resolve faults.

pub(crate) mod budget;
mod heat;
mod range_ops;
pub(crate) mod rounds;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};

use everbyte_plant::planted;

use crate::plant::Bug;
use crate::region::direct::chunk::{
    CHUNK_UNITS, Chunk, ChunkNo, ChunkPhase, ChunkTable, RunNo, WATCHES,
};
use crate::region::direct::memory::{ChunkError, ChunkMemory, Permission};
use crate::region::stats::{Counters, Statistics, add, count};
use crate::slots::index;
use crate::slots::{SlotMap, SlotNo};
use budget::Budget;

pub(crate) use range_ops::RangeError;

/// Refusals by the system before a fault fails.
const REFUSALS_MAX: u32 = 200;

/// Settings of a region in direct mode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectSettings {
    /// Units of the region. The last chunk may have fewer than the others.
    pub(crate) units: u64,
    /// Maximum number of chunks in DRAM.
    pub(crate) limit: u64,
    /// Start of the search for the first run.
    pub(crate) slot_hint: SlotNo,
}

/// The chunks of a region in direct mode.
pub(crate) struct Chunks<M> {
    pub(crate) memory: M,
    table: ChunkTable,
    units: u64,
    slots: Arc<SlotMap>,
    /// Start of the search for the first chunk's run.
    home: SlotNo,
    /// Chunks in DRAM.
    dram: AtomicU64,
    limit: AtomicU64,
    pinned: AtomicU64,
    budget: Budget,
    /// Times of the first accesses to the chunks of a round; 0 without an access.
    touched: [AtomicU64; WATCHES],
    /// How hot each chunk was when it was watched last; see [`heat`].
    heat: Box<[AtomicU8]>,
    pub(crate) counters: Counters,
    full: AtomicBool,
    store_failed: AtomicBool,
}

impl<M: ChunkMemory> Chunks<M> {
    /// Chunks, all empty.
    pub(crate) fn new(
        memory: M,
        slots: Arc<SlotMap>,
        budget: Budget,
        settings: &DirectSettings,
    ) -> Self {
        let chunks = index(settings.units.div_ceil(CHUNK_UNITS));
        Self {
            memory,
            table: ChunkTable::new(chunks),
            units: settings.units,
            slots,
            home: settings.slot_hint,
            dram: AtomicU64::new(0),
            limit: AtomicU64::new(settings.limit),
            pinned: AtomicU64::new(0),
            budget,
            touched: [const { AtomicU64::new(0) }; WATCHES],
            heat: (0..chunks).map(|_| AtomicU8::new(0)).collect(),
            counters: Counters::default(),
            full: AtomicBool::new(false),
            store_failed: AtomicBool::new(false),
        }
    }

    /// Chunks of the region.
    pub(crate) fn len(&self) -> u64 {
        self.table.len()
    }

    /// Units of the region in a chunk.
    fn units_of(&self, at: ChunkNo) -> u64 {
        CHUNK_UNITS.min(self.units - at.0 * CHUNK_UNITS)
    }

    pub(crate) fn statistics(&self) -> Statistics {
        let chunks = (0..self.len()).map(ChunkNo);
        let direct = chunks.filter(|&at| self.table.load(at).run().is_some()).count() as u64;
        Statistics {
            units_resident: self.dram.load(SeqCst) * CHUNK_UNITS,
            units_limit: self.limit.load(SeqCst) * CHUNK_UNITS,
            units_pinned: self.pinned.load(SeqCst),
            units_direct: direct * CHUNK_UNITS,
            slots_free: self.slots.free_count(),
            ..self.counters.read()
        }
    }

    /// True if the store lost copied bytes. No chunk moves there afterwards.
    pub(crate) fn has_failed(&self) -> bool {
        self.store_failed.load(SeqCst)
    }

    /// True if the last search for a run found none.
    pub(crate) fn is_full(&self) -> bool {
        self.full.load(SeqCst)
    }

    /// Resolves a fault: afterwards the access can be made again. It may then fault once more.
    pub(crate) fn fault(&self, at: ChunkNo, is_store: bool) -> Result<(), ChunkError> {
        count(if is_store { &self.counters.faults_store } else { &self.counters.faults_load });
        let (mut waits, mut refusals) = (0, 0);
        loop {
            self.memory.step();
            let seen = self.table.load(at);
            let done = match seen.phase() {
                ChunkPhase::Busy => Ok(false),
                ChunkPhase::Empty => self.make(at, seen),
                // As a rule another thread was first.
                _ => self.make_accessible(at, seen, true),
            };
            match done {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(ChunkError::Refused) if refusals < REFUSALS_MAX => refusals += 1,
                Err(error) => return Err(error),
            }
            if waits == 0 {
                count(&self.counters.faults_waited);
            }
            self.memory.pause(waits);
            waits = waits.saturating_add(1);
        }
    }

    /// Ends the caller's claim to a chunk and sets its new state to `chunk`.
    fn settle(&self, at: ChunkNo, chunk: Chunk) {
        self.memory.step();
        self.table.set(at, chunk);
        self.memory.step();
    }

    /// Makes a chunk accessible unless it is empty. False if another thread owns or changed it.
    fn make_accessible(&self, at: ChunkNo, seen: Chunk, is_used: bool) -> Result<bool, ChunkError> {
        if !self.table.claim(at, seen) {
            return Ok(false);
        }
        self.memory.step();
        let done = self.memory.allow(at, Permission::Everything);
        if done.is_err() {
            self.settle(at, seen);
        } else {
            if seen.is_watched() && is_used {
                self.touched[seen.watch()].store(self.memory.now_ns().max(1), SeqCst);
            }
            self.settle(at, seen.unwatched());
        }
        done.map(|()| true)
    }

    /// Gives an empty chunk DRAM if the limit allows it, else a run. Without a free run the chunk
    /// takes DRAM above the limit, because the program's contents matter more. False if another
    /// thread owns the chunk.
    fn make(&self, at: ChunkNo, seen: Chunk) -> Result<bool, ChunkError> {
        if !self.table.claim(at, seen) {
            return Ok(false);
        }
        self.memory.step();
        let has_room = self.try_admit();
        if !has_room && let Some(run) = self.make_direct(at) {
            add(&self.counters.units_zeroed, self.units_of(at));
            self.settle(at, Chunk::direct(run));
            return Ok(true);
        }
        if !has_room {
            self.dram.fetch_add(1, SeqCst);
        }
        let opened = self.memory.open(at);
        if opened.is_err() {
            self.dram.fetch_sub(1, SeqCst);
            self.settle(at, seen);
        } else {
            if !has_room {
                add(&self.counters.units_over_limit, self.units_of(at));
            }
            add(&self.counters.units_zeroed, self.units_of(at));
            self.settle(at, Chunk::DRAM);
        }
        opened.map(|()| true)
    }

    /// Counts a chunk as in DRAM if there is room.
    fn try_admit(&self) -> bool {
        if self.dram.fetch_add(1, SeqCst) < self.limit.load(SeqCst) {
            return true;
        }
        self.dram.fetch_sub(1, SeqCst);
        false
    }

    /// Maps a run of zeroes for an empty chunk claimed by the caller.
    fn make_direct(&self, at: ChunkNo) -> Option<RunNo> {
        let run = self.take_run(at)?;
        // Before it is mapped: the run may hold the bytes of another chunk (D3).
        let zeroed = self.memory.zero_run(run);
        match zeroed.and_then(|()| self.memory.map_run(at, run)) {
            Ok(()) => Some(run),
            Err(error) => {
                self.note(error);
                self.free_run(run);
                None
            }
        }
    }

    /// Allocates a run for a chunk, if one is free and the store has not failed. Adjacent chunks
    /// get adjacent runs if possible, because they share one mapping.
    fn take_run(&self, at: ChunkNo) -> Option<RunNo> {
        if self.has_failed() {
            return None;
        }
        let hint = SlotNo((self.home.0 + at.0 * CHUNK_UNITS) % self.slots.capacity().max(1));
        let Some(first) = self.slots.alloc_run(CHUNK_UNITS, hint) else {
            self.full.store(true, SeqCst);
            return None;
        };
        Some(RunNo(first.0 / CHUNK_UNITS))
    }

    fn free_run(&self, run: RunNo) {
        self.memory.step();
        self.slots.free_run(SlotNo(run.0 * CHUNK_UNITS), CHUNK_UNITS);
        self.full.store(false, SeqCst);
    }

    fn note(&self, error: ChunkError) {
        if error == ChunkError::StoreFailed {
            self.store_failed.store(true, SeqCst);
        }
    }

    /// True if a chunk may be moved or watched.
    fn is_movable(seen: Chunk) -> bool {
        let is_there = seen.is_dram() || seen.run().is_some();
        is_there && seen.pins() == 0
    }

    /// Moves a chunk from its run to DRAM, if there is room. False if there is none, or the chunk is not a run,
    /// is pinned or another's. On failure it stays where it is.
    pub(crate) fn promote(&self, at: ChunkNo) -> Result<bool, ChunkError> {
        let seen = self.table.load(at);
        let Some(run) = seen.run().filter(|_| Self::is_movable(seen)) else { return Ok(false) };
        // Counted before its memory exists, so concurrent moves cannot exceed the limit together.
        if !self.try_admit() {
            return Ok(false);
        }
        if !self.table.claim(at, seen) {
            self.dram.fetch_sub(1, SeqCst);
            return Ok(false);
        }
        self.memory.step();
        if planted(Bug::RunFreedBeforeMoved) {
            self.free_run(run);
        }
        let moved = self.freeze(at).and_then(|()| self.memory.move_in(at, run));
        if moved.is_err() {
            self.dram.fetch_sub(1, SeqCst);
            self.thaw(at, seen);
        } else {
            add(&self.counters.units_in, self.units_of(at));
            self.settle(at, Chunk::DRAM);
            // After the mapping is replaced and the word is stored: no free run is mapped (D2).
            if !planted(Bug::RunFreedBeforeMoved) {
                self.free_run(run);
            }
        }
        moved.map(|()| true)
    }

    /// Moves a chunk from DRAM to a run. False if no run is free, or the chunk is not in DRAM, is
    /// pinned or owned by another thread. On failure it stays in place.
    pub(crate) fn demote(&self, at: ChunkNo) -> Result<bool, ChunkError> {
        let seen = self.table.load(at);
        if !seen.is_dram() || !Self::is_movable(seen) {
            return Ok(false);
        }
        // Before the claim, so no fault waits for the search.
        let Some(run) = self.take_run(at) else { return Ok(false) };
        if !self.table.claim(at, seen) {
            self.free_run(run);
            return Ok(false);
        }
        self.memory.step();
        let frozen = if planted(Bug::CopiedBeforeFrozen) { Ok(()) } else { self.freeze(at) };
        let copied = frozen.and_then(|()| self.memory.copy_out(at, run));
        let moved = copied.and_then(|()| self.memory.map_run(at, run));
        if let Err(error) = moved {
            self.note(error);
            self.thaw(at, seen);
            self.free_run(run);
        } else {
            add(&self.counters.units_out, self.units_of(at));
            self.settle(at, Chunk::direct(run));
            // After its memory is gone, so the count never falls below the chunks in DRAM.
            self.dram.fetch_sub(1, SeqCst);
        }
        moved.map(|()| true)
    }

    /// Forbids stores to a chunk claimed by the caller.
    fn freeze(&self, at: ChunkNo) -> Result<(), ChunkError> {
        let frozen = self.memory.allow(at, Permission::Loads);
        self.memory.step();
        frozen
    }

    /// Ends a failed move. If the system refuses access to the chunk, the next access faults.
    fn thaw(&self, at: ChunkNo, seen: Chunk) {
        let _or_by_the_next_fault = self.memory.allow(at, Permission::Everything);
        self.settle(at, seen.unwatched());
    }

    /// Makes a chunk inaccessible until the next access, as chunk `watch` of a round. False if it
    /// is empty, watched, pinned or owned by another thread.
    pub(crate) fn watch(&self, at: ChunkNo, watch: usize) -> bool {
        let seen = self.table.load(at);
        let is_free = !seen.is_watched() && Self::is_movable(seen) && self.table.claim(at, seen);
        if !is_free {
            return false;
        }
        self.memory.step();
        let done = self.memory.allow(at, Permission::Nothing);
        self.settle(at, if done.is_ok() { seen.watched(watch) } else { seen });
        done.is_ok()
    }

    /// Ends the watch of a chunk without an access.
    pub(crate) fn unwatch(&self, at: ChunkNo) {
        let mut tries = 0;
        loop {
            let seen = self.table.load(at);
            let is_over = match seen.phase() {
                ChunkPhase::DramWatched | ChunkPhase::DirectWatched => {
                    // If the system refused access, the next access to the chunk tries again.
                    self.make_accessible(at, seen, false).unwrap_or(true)
                }
                ChunkPhase::Busy => false,
                _ => true,
            };
            if is_over {
                return;
            }
            self.memory.pause(tries);
            tries += 1;
        }
    }

    /// Frees every run of the region. Requires: the region is unmapped.
    pub(crate) fn free_runs(&self) {
        for at in (0..self.len()).map(ChunkNo) {
            if let Some(run) = self.table.load(at).run() {
                self.free_run(run);
                self.table.set(at, Chunk::EMPTY);
            }
        }
    }
}

//! Eviction: a clock hand visits the windows and evicts units in batches.
//!
//! The order of steps, for the units of a batch:
//! 1. Units are claimed.
//! 2. It write-protects the pages of dirty units, many by one call, and claims units without a page
//!    in between for the duration of the call. Only then are the units `WritingBack`. From here on
//!    the bytes of a unit that remains `WritingBack` cannot change.
//! 3. It notes pages of zeroes and copies the others to new slots.
//! 4. It claims units still `WritingBack`. A store to a unit since step 2 has faulted and made the
//!    unit `Dirty`: the evictor frees its new slot, and the unit stays.
//! 5. It removes the pages of the claimed units by one call, and only then
//! 6. sets the units to `Stored` or `Empty`. If the call fails, any of the pages may be missing:
//!    the evictor restores all of them, and the units are `Clean`, or `Dirty` if they held zeroes.
//!
//! Invariants:
//! - One thread evicts at a time: a unit left and found `WritingBack` had no store in between.
//! - A batch has no more dirty units than slots are free. If no slot is free, a region with enough
//!   slots has clean units, and their eviction needs no slot: so the store is not full.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::{MutexGuard, TryLockError};

use everbyte_plant::planted;

use super::{Pager, WINDOW};
use crate::plant::Bug;
use crate::region::paged::memory::Memory;
use crate::region::paged::unit::{Phase, Unit};
use crate::region::stats::add;
use crate::region::units::UnitNo;
use crate::region::units::UnitRun;
use crate::slots::SlotNo;

/// Units of a batch, give or take a window.
const BATCH: usize = 128;
/// Units bridged in one run, give or take a window.
const BRIDGE_MAX: usize = 256;
/// Clean units in a batch above which the evictor skips dirty ones.
const CLEAN_ENOUGH: usize = BATCH / 2;

/// The outcome of an attempt to evict.
pub(crate) enum Progress {
    /// Number of evicted units.
    Evicted(u64),
    /// Another thread is evicting.
    Another,
}

/// A unit on its way out.
#[derive(Clone, Copy)]
struct EvictionCandidate {
    at: UnitNo,
    /// Its word when it was chosen.
    seen: Unit,
    step: Step,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Claimed, and still to be protected.
    Writable,
    /// Protected, and still to be copied.
    WritingBack,
    /// Copied to this slot, or all zeroes.
    Copied(Option<SlotNo>),
    /// Claimed, with its bytes in this slot, or all zeroes.
    Claimed(Option<SlotNo>),
    /// It stays.
    Kept,
}

/// The units in eviction and the position of the hand.
pub(super) struct Batch {
    leaving: Vec<EvictionCandidate>,
    runs: Vec<UnitRun>,
    /// Units claimed only during the protection of their neighbours.
    bridge: Vec<(UnitNo, Unit)>,
    clean: usize,
    /// Free slots not assigned to a unit of the batch.
    room: u64,
    /// A dirty unit was passed over for want of a slot.
    is_short: bool,
    /// The evictor skipped a unit whose eviction needs no slot or frees one.
    is_hopeful: bool,
    hand: u64,
    slot_hint: SlotNo,
}

impl Batch {
    /// An empty batch with capacity for its maximum number of units.
    pub(super) fn new(slot_hint: SlotNo) -> Self {
        let room = BATCH + crate::slots::index(WINDOW);
        Self {
            leaving: Vec::with_capacity(room),
            runs: Vec::with_capacity(room),
            bridge: Vec::with_capacity(BRIDGE_MAX + crate::slots::index(WINDOW)),
            clean: 0,
            room: 0,
            is_short: false,
            is_hopeful: false,
            hand: 0,
            slot_hint,
        }
    }

    /// The index behind the neighbours of `from` in the same kind of step.
    fn run_end(&self, from: usize, is_in: impl Fn(Step) -> bool) -> usize {
        let mut end = from + 1;
        while let Some(next) = self.leaving.get(end)
            && next.at.0 == self.leaving[end - 1].at.0 + 1
            && is_in(next.step)
        {
            end += 1;
        }
        end
    }
}

impl<M: Memory> Pager<M> {
    /// Evicts a batch, unless another thread is at it.
    pub(crate) fn try_evict(&self) -> Progress {
        // After a failure the store or the descriptor cannot be trusted with another page.
        if self.failure().is_some() {
            return Progress::Evicted(0);
        }
        match self.evictor.try_lock() {
            Ok(mut batch) => Progress::Evicted(self.evict(&mut batch)),
            Err(TryLockError::Poisoned(batch)) => {
                Progress::Evicted(self.evict(&mut batch.into_inner()))
            }
            Err(TryLockError::WouldBlock) => Progress::Another,
        }
    }

    /// Blocks evictions by every thread while the caller holds the guard. Not for faults.
    pub(super) fn hold_evictor(&self) -> MutexGuard<'_, Batch> {
        let mut tries = 0;
        loop {
            match self.evictor.try_lock() {
                Ok(batch) => return batch,
                Err(TryLockError::Poisoned(batch)) => return batch.into_inner(),
                Err(TryLockError::WouldBlock) => self.memory.pause(tries),
            }
            tries = tries.saturating_add(1);
        }
    }

    fn evict(&self, batch: &mut Batch) -> u64 {
        if self.is_held.load(SeqCst) {
            return 0;
        }
        self.choose(batch);
        // Full only if no skipped unit could leave without a slot or free one.
        let is_stuck = batch.leaving.is_empty() && batch.is_short && !batch.is_hopeful;
        self.full.store(is_stuck && !self.has_room(), SeqCst);
        self.protect(batch);
        self.copy_out(batch);
        self.claim_copied(batch);
        self.zap(batch)
    }

    /// Step 1, window by window.
    fn choose(&self, batch: &mut Batch) {
        batch.leaving.clear();
        batch.clean = 0;
        batch.room = self.slots.free_count();
        (batch.is_short, batch.is_hopeful) = (false, false);
        for _ in 0..self.windows.free_count() {
            if batch.leaving.len() >= BATCH {
                return;
            }
            self.memory.step();
            // Removed before its words are read: a unit made resident later adds the window again
            // (P6).
            let Some(window) = self.windows.alloc(batch.hand) else { return };
            // The hand has passed the end. Ghosts age by turns.
            if window < batch.hand {
                self.turn.fetch_add(1, SeqCst);
            }
            batch.hand = window + 1;
            if self.choose_in(window, batch) {
                self.add_window(window);
            }
        }
    }

    /// Chooses units of a window. True if some stay in it.
    fn choose_in(&self, window: u64, batch: &mut Batch) -> bool {
        let mut stays = false;
        for at in (window * WINDOW..((window + 1) * WINDOW).min(self.units.len())).map(UnitNo) {
            self.memory.step();
            let seen = self.units.load(at);
            if matches!(seen.phase(), Phase::Empty | Phase::Stored | Phase::Closed) {
                continue;
            }
            let step = self.choose_unit(at, seen, batch);
            if step == Step::Kept {
                stays = true;
            } else {
                batch.leaving.push(EvictionCandidate { at, seen, step });
            }
        }
        stays
    }

    fn choose_unit(&self, at: UnitNo, seen: Unit, batch: &mut Batch) -> Step {
        let is_pinned = seen.pins() > 0;
        match seen.phase() {
            Phase::Clean | Phase::Dirty if seen.is_referenced() => {
                // If the word changed since, the unit is in use.
                let _cleared = self.units.replace(at, seen, seen.referenced(false));
            }
            // A clean unit has no pins, and it leaves without a copy.
            Phase::Clean if self.units.claim(at, seen) => {
                batch.clean += 1;
                return Step::Claimed(seen.slot());
            }
            Phase::Dirty
                if batch.clean < CLEAN_ENOUGH && !is_pinned && self.units.claim(at, seen) =>
            {
                return self.choose_dirty(at, seen, batch);
            }
            _ => {}
        }
        batch.is_hopeful |= seen.phase() != Phase::Dirty;
        Step::Kept
    }

    /// A claimed unit leaves if there is a slot for it, or if it seems to need none.
    fn choose_dirty(&self, at: UnitNo, seen: Unit, batch: &mut Batch) -> Step {
        // With a free slot the page is not inspected yet: it can change until it is protected.
        if batch.room > 0 {
            batch.room -= 1;
        } else if self.is_doubtful() || !self.memory.is_zero(at) {
            // The owner of a unit cannot inspect a missing page.
            batch.is_short = true;
            self.settle(at, seen);
            return Step::Kept;
        }
        Step::Writable
    }

    /// Step 2.
    fn protect(&self, batch: &mut Batch) {
        let mut from = 0;
        while from < batch.leaving.len() {
            if batch.leaving[from].step != Step::Writable {
                from += 1;
                continue;
            }
            let end = self.bridge(batch, from);
            let (first, last) = (batch.leaving[from].at, batch.leaving[end - 1].at);
            let run = UnitRun { first, units: last.0 - first.0 + 1 };
            self.memory.step();
            let is_late = planted(Bug::CopiedBeforeProtected);
            let protected = if is_late { Ok(()) } else { self.memory.protect(run) };
            // Released right after the call, because faults on these units wait for it.
            for (at, seen) in batch.bridge.drain(..) {
                self.settle(at, seen);
            }
            for leaving in &mut batch.leaving[from..end] {
                if leaving.step == Step::Writable {
                    leaving.step = Step::WritingBack;
                    self.settle(leaving.at, leaving.seen.with_phase(Phase::WritingBack));
                    // Without protection a store during the copy would be lost (P2).
                    if protected.is_err() {
                        self.keep(leaving, None);
                    }
                }
            }
            if let Err(error) = protected {
                self.note_failure(error);
            }
            from = end;
        }
    }

    /// Claims the units between the writable one at `from` and later ones if they have no page or a
    /// protected one. One call can then protect all of them and interrupts other processors once.
    /// Returns the index behind the last protectable unit.
    fn bridge(&self, batch: &mut Batch, from: usize) -> usize {
        batch.bridge.clear();
        let mut end = from + 1;
        for next in from + 1..batch.leaving.len() {
            let gap = batch.leaving[next - 1].at.0 + 1..batch.leaving[next].at.0;
            let is_ahead = batch.leaving[next].at > batch.leaving[next - 1].at;
            // A wide gap needs more claims than the saved call is worth.
            if !is_ahead || gap.end - gap.start > WINDOW || batch.bridge.len() >= BRIDGE_MAX {
                break;
            }
            if !gap.clone().map(UnitNo).all(|at| self.claim_for_bridge(at, &mut batch.bridge)) {
                break;
            }
            if batch.leaving[next].step == Step::Writable {
                end = next + 1;
            }
        }
        end
    }

    fn claim_for_bridge(&self, at: UnitNo, bridge: &mut Vec<(UnitNo, Unit)>) -> bool {
        self.memory.step();
        let seen = self.units.load(at);
        // A dirty page must stay writable, so a dirty unit ends the run. So does a closed one: the
        // kernel has another mapping there.
        let is_harmless = matches!(seen.phase(), Phase::Empty | Phase::Stored | Phase::Clean);
        let claimed = is_harmless && self.units.claim(at, seen);
        if claimed {
            bridge.push((at, seen));
        }
        claimed
    }

    /// Step 3.
    fn copy_out(&self, batch: &mut Batch) {
        let mut from = 0;
        let window = crate::slots::index(WINDOW);
        while from < batch.leaving.len() {
            if batch.leaving[from].step != Step::WritingBack {
                from += 1;
                continue;
            }
            let end = batch.run_end(from, |step| step == Step::WritingBack).min(from + window);
            // A whole window gets adjacent slots: read-ahead can fill it again by one copy.
            let run = (end - from == window)
                .then(|| self.slots.alloc_run(WINDOW, batch.slot_hint))
                .flatten();
            for nth in from..end {
                let slot = run.map(|run| SlotNo(run.0 + (nth - from) as u64));
                self.copy_unit(&mut batch.leaving[nth], slot, &mut batch.slot_hint);
            }
            from = end;
        }
        // Before a unit leaves: only a copy confirmed by the store replaces its page (P1).
        if let Err(error) = self.memory.check_copied() {
            self.note_failure(error);
            for leaving in &mut batch.leaving {
                if let Step::Copied(slot) = leaving.step {
                    self.keep(leaving, slot);
                }
            }
        }
    }

    /// Copies a protected page to `slot`, or to another free slot. Frees `slot` if it is not
    /// needed.
    fn copy_unit(&self, leaving: &mut EvictionCandidate, slot: Option<SlotNo>, hint: &mut SlotNo) {
        self.memory.step();
        let at = leaving.at;
        let is_zero = self.memory.is_zero(at);
        if is_zero {
            slot.into_iter().for_each(|slot| self.slots.free(slot));
            leaving.step = Step::Copied(None);
            return;
        }
        let Some(slot) = slot.or_else(|| self.slots.alloc(*hint)) else {
            // Another region was faster, or it seemed to be zeroes.
            self.keep(leaving, None);
            return;
        };
        *hint = SlotNo(slot.0 + 1);
        self.memory.copy_out(at, slot);
        if planted(Bug::CopiedBeforeProtected) {
            self.memory.step();
            let _protected = self.memory.protect(UnitRun { first: at, units: 1 });
        }
        leaving.step = Step::Copied(Some(slot));
    }

    /// Step 4.
    fn claim_copied(&self, batch: &mut Batch) {
        for leaving in &mut batch.leaving {
            let Step::Copied(slot) = leaving.step else { continue };
            self.memory.step();
            let writing_back = leaving.seen.with_phase(Phase::WritingBack);
            // The claim fails if a store made the unit dirty since step 2 (P2).
            if self.units.claim(leaving.at, writing_back) {
                leaving.step = Step::Claimed(slot);
            } else {
                leaving.step = Step::Kept;
                if let Some(slot) = slot {
                    self.free_slot(slot);
                }
            }
        }
    }

    /// Keeps a unit from a write-back: it is dirty again, unless a store made it dirty before.
    fn keep(&self, leaving: &mut EvictionCandidate, slot: Option<SlotNo>) {
        leaving.step = Step::Kept;
        if let Some(slot) = slot {
            self.free_slot(slot);
        }
        let writing_back = leaving.seen.with_phase(Phase::WritingBack);
        if self.units.claim(leaving.at, writing_back) {
            // If it stays protected, the next store to it faults and tries again.
            let _tried = self.memory.unprotect(UnitRun { first: leaving.at, units: 1 });
            self.settle(leaving.at, leaving.seen);
        }
    }

    /// Steps 5 and 6. Returns the number of evicted units.
    fn zap(&self, batch: &mut Batch) -> u64 {
        batch.runs.clear();
        let mut from = 0;
        while from < batch.leaving.len() {
            if !matches!(batch.leaving[from].step, Step::Claimed(_)) {
                from += 1;
                continue;
            }
            let end = batch.run_end(from, |step| matches!(step, Step::Claimed(_)));
            let run = UnitRun { first: batch.leaving[from].at, units: (end - from) as u64 };
            batch.runs.push(run);
            from = end;
        }
        if batch.runs.is_empty() {
            return 0;
        }
        self.memory.step();
        if planted(Bug::StoredBeforeZapped) {
            self.finish(batch);
            let _zapped = self.memory.zap(&batch.runs);
            return batch.leaving.len() as u64;
        }
        if let Err(error) = self.memory.zap(&batch.runs) {
            self.note_failure(error);
            self.put_back(batch);
            return 0;
        }
        self.finish(batch)
    }

    /// Step 6.
    fn finish(&self, batch: &Batch) -> u64 {
        let turn = self.turn.load(SeqCst);
        let (mut gone, mut clean, mut zero) = (0, 0, 0);
        for leaving in &batch.leaving {
            let Step::Claimed(slot) = leaving.step else { continue };
            gone += 1;
            zero += u64::from(slot.is_none());
            clean += u64::from(leaving.seen.phase() == Phase::Clean);
            let unit = slot.map_or(Unit::EMPTY, Unit::stored);
            self.settle(leaving.at, unit.evicted_in(turn));
        }
        // Counted out after the pages are gone, so the count never falls below the pages in DRAM.
        self.resident.fetch_sub(gone, SeqCst);
        self.used.fetch_sub(zero, SeqCst);
        self.protect_policy.note_clean(clean);
        add(&self.counters.units_evicted, gone);
        add(&self.counters.units_evicted_clean, clean);
        add(&self.counters.units_evicted_zero, zero);
        add(&self.counters.units_out, gone - clean - zero);
        gone
    }

    /// Recovers from a failed step 5, which may have removed any of the pages: every page is
    /// present afterwards. Copied units are clean, units of zeroes dirty.
    fn put_back(&self, batch: &mut Batch) {
        for leaving in &mut batch.leaving {
            let Step::Claimed(slot) = leaving.step else { continue };
            leaving.step = Step::Kept;
            let unit = slot.map_or(Unit::DIRTY, Unit::clean);
            // Before the word is stored: no word may state a page that is missing (P1).
            self.restore_or_doubt(leaving.at, unit);
            if slot.is_none() {
                // If it stays protected, the next store to it faults and tries again.
                let _tried = self.memory.unprotect(UnitRun { first: leaving.at, units: 1 });
            }
            self.settle(leaving.at, unit);
        }
    }
}

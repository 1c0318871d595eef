//! The state of a unit: 4 KiB of a region, in one atomic word.
//!
//! ```text
//!            first touch              program stores
//!   Empty ------------> Dirty <----------------------- Clean
//!     ^                 ^   \                          ^   \
//!     | only            |    \ evictor claims          |    \ evictor claims
//!     | zeroes          |     v                        |     v
//!     |        stores   +-- WritingBack     loads      |    (Busy)
//!     |        meanwhile          \         fill       |     |
//!     +----------- (Busy) <--------+                   |     |
//!                    |  copied out                     |     |
//!                    +----------> Stored --------------+ <---+
//! ```
//! Every arrow passes through `Busy`: one thread owns the unit, and all others wait. A close turns a
//! unit of any phase into `Closed`, and an open turns it into `Empty`.
//!
//! Invariants:
//! - A slot belongs to a unit exactly while it holds the unit's bytes: in `Stored` and `Clean`.
//! - The page of a `Clean` or `WritingBack` unit is write-protected. The page of a `Dirty` unit is
//!   writable, unless the system refused. A unit in any other phase except `Busy` has no page.
//! - A pinned unit is `Dirty`, or `Busy` for a moment.
//! - Only the thread that made a unit `Busy` stores to its word; all other changes are
//!   compare-and-swap.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use everbyte_plant::planted;

use crate::plant::Bug;
use crate::region::units::UnitNo;
use crate::slots::{SLOTS_MAX, SlotNo, index};

/// The phase of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// It holds zeroes and takes neither DRAM nor a slot.
    Empty,
    /// Its bytes are in a slot alone.
    Stored,
    /// Its bytes are in a page, write-protected, and in a slot.
    Clean,
    /// Its bytes are in a page alone.
    Dirty,
    /// The evictor copies its page to a slot; the program may still store to the page.
    WritingBack,
    /// A thread is moving it.
    Busy,
    /// It has neither a page nor a slot, and no fault fills it: it is outside the program's memory.
    Closed,
}

const PHASE: u64 = 7;
/// It was used since the evictor last came by.
const REFERENCED: u64 = 1 << 3;
/// It was evicted before, in the recorded turn.
const GHOST: u64 = 1 << 4;
const TURN_SHIFT: u32 = 8;
const TURN: u64 = 0xff;
const PINS_SHIFT: u32 = 16;
/// Maximum number of simultaneous pins of a unit.
pub(crate) const PINS_MAX: u64 = 0xfff;
const SLOT_SHIFT: u32 = 28;
const _: () = assert!(SLOTS_MAX == 1 << (64 - SLOT_SHIFT));

/// Snapshot of a unit's word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unit(u64);

impl Unit {
    pub(crate) const EMPTY: Self = Self(Phase::Empty as u64);
    pub(crate) const CLOSED: Self = Self(Phase::Closed as u64);
    pub(crate) const DIRTY: Self = Self(Phase::Dirty as u64);

    pub(crate) fn clean(slot: SlotNo) -> Self {
        Self(Phase::Clean as u64 | slot.0 << SLOT_SHIFT)
    }

    pub(crate) fn stored(slot: SlotNo) -> Self {
        Self(Phase::Stored as u64 | slot.0 << SLOT_SHIFT)
    }

    pub(crate) fn phase(self) -> Phase {
        match self.0 & PHASE {
            0 => Phase::Empty,
            1 => Phase::Stored,
            2 => Phase::Clean,
            3 => Phase::Dirty,
            4 => Phase::WritingBack,
            6 => Phase::Closed,
            _ => Phase::Busy,
        }
    }

    /// The same in another phase.
    pub(crate) fn with_phase(self, phase: Phase) -> Self {
        Self(self.0 & !PHASE | phase as u64)
    }

    /// The slot with the unit's bytes.
    pub(crate) fn slot(self) -> Option<SlotNo> {
        let has_slot = matches!(self.phase(), Phase::Stored | Phase::Clean);
        has_slot.then_some(SlotNo(self.0 >> SLOT_SHIFT))
    }

    pub(crate) fn is_resident(self) -> bool {
        matches!(self.phase(), Phase::Clean | Phase::Dirty | Phase::WritingBack)
    }

    pub(crate) fn is_referenced(self) -> bool {
        self.0 & REFERENCED != 0
    }

    pub(crate) fn referenced(self, referenced: bool) -> Self {
        Self(if referenced { self.0 | REFERENCED } else { self.0 & !REFERENCED })
    }

    pub(crate) fn pins(self) -> u64 {
        self.0 >> PINS_SHIFT & PINS_MAX
    }

    /// The same, pinned `pins` times, at most [`PINS_MAX`].
    pub(crate) fn with_pins(self, pins: u64) -> Self {
        Self(self.0 & !(PINS_MAX << PINS_SHIFT) | pins << PINS_SHIFT)
    }

    /// The same, evicted in a turn of the hand.
    pub(crate) fn evicted_in(self, turn: u64) -> Self {
        Self(self.0 | GHOST | (turn & TURN) << TURN_SHIFT)
    }

    /// True if it was evicted less than two turns before `turn`. Turns count modulo 256, so an
    /// eviction long ago is sometimes counted too.
    pub(crate) fn is_ghost(self, turn: u64) -> bool {
        let age = turn.wrapping_sub(self.0 >> TURN_SHIFT) & TURN;
        self.0 & GHOST != 0 && age <= 1
    }
}

impl std::fmt::Debug for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.phase())?;
        if let Some(slot) = self.slot() {
            write!(f, " in slot {}", slot.0)?;
        }
        if self.pins() > 0 {
            write!(f, ", pinned {} times", self.pins())?;
        }
        Ok(())
    }
}

/// The words of all units of a region.
pub(crate) struct UnitTable {
    words: Box<[AtomicU64]>,
}

impl UnitTable {
    /// `units` units, all empty. Words take memory at their first access. `None` if the system
    /// cannot promise the memory.
    pub(crate) fn new(units: usize) -> Option<Self> {
        Some(Self { words: bytemuck::try_zeroed_slice_box(units).ok()? })
    }

    pub(crate) fn len(&self) -> u64 {
        self.words.len() as u64
    }

    fn word(&self, at: UnitNo) -> &AtomicU64 {
        &self.words[index(at.0)]
    }

    pub(crate) fn load(&self, at: UnitNo) -> Unit {
        Unit(self.word(at).load(SeqCst))
    }

    /// Replaces `seen`; false if the word is something else by now.
    pub(crate) fn replace(&self, at: UnitNo, seen: Unit, new: Unit) -> bool {
        self.word(at).compare_exchange(seen.0, new.0, SeqCst, SeqCst).is_ok()
    }

    /// Makes a unit the caller's to move; false if it is not as `seen` by now.
    pub(crate) fn claim(&self, at: UnitNo, seen: Unit) -> bool {
        if planted(Bug::TwoFillers) && matches!(seen.phase(), Phase::Empty | Phase::Stored) {
            return true;
        }
        self.replace(at, seen, seen.with_phase(Phase::Busy))
    }

    /// Ends the claim begun by [`claim`](Self::claim).
    pub(crate) fn set(&self, at: UnitNo, unit: Unit) {
        self.word(at).store(unit.0, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_fields_are_independent() {
        let slot = SlotNo(SLOTS_MAX - 2);
        let unit = Unit::clean(slot).referenced(true);
        assert_eq!((unit.phase(), unit.slot()), (Phase::Clean, Some(slot)));
        assert_eq!(unit.with_phase(Phase::Busy).slot(), None);
        let pinned = Unit::DIRTY.with_pins(PINS_MAX).referenced(true);
        assert_eq!((pinned.pins(), pinned.phase(), pinned.slot()), (PINS_MAX, Phase::Dirty, None));
        assert_eq!(pinned.with_pins(0), Unit::DIRTY.referenced(true));
    }

    #[test]
    fn ghost_lasts_two_turns() {
        assert!(!Unit::EMPTY.is_ghost(0), "it was never evicted");
        let ghost = Unit::stored(SlotNo(3)).evicted_in(255);
        assert!(ghost.is_ghost(255) && ghost.is_ghost(256));
        assert!(!ghost.is_ghost(257) && !ghost.is_ghost(254));
        assert_eq!(ghost.slot(), Some(SlotNo(3)));
    }
}

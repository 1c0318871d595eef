//! The state of a part: 2 MiB of a region in direct mode, in one atomic word.
//!
//! ```text
//!              first touch, room               hot
//!   Empty ----------------------> Dram <----------------- Direct
//!     \                            ^  \  ----------------> ^  ^
//!      \                           |   \     cold          |  |
//!       \ first touch, no room     v    \                  |  v
//!        \                     DramWatched \               | DirectWatched
//!         +-------------------------------------------------+
//! ```
//! Every arrow passes through `Busy`, in which one thread owns the part and everybody else waits.
//!
//! Invariants:
//! - A run belongs to a part exactly while it is `Direct` or `DirectWatched`.
//! - A part that is `Dram` or `Direct` may be loaded and stored. One that is `Empty` or watched is inaccessible,
//!   so whoever touches it faults.
//! - A part that is pinned is `Dram` or `Direct`, or `Busy` for a moment.
//! - Only who made a part `Busy` stores to its word; all else is compare-and-swap.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use everbyte_plant::planted;

use crate::plant::Bug;
use crate::slots::index;
use crate::store::{RUN_SLOTS, UNIT};

/// Units of a part, and slots of a run.
pub(crate) const PART_UNITS: u64 = RUN_SLOTS;
/// Bytes of a part, and of a run.
pub(crate) const PART: u64 = PART_UNITS * UNIT as u64;
/// Parts that can be watched at once.
pub(crate) const WATCHES: usize = 16;

/// The number of a part in its region.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct PartNo(pub(crate) u64);

/// The number of a run, an aligned group of 512 slots, in its store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct RunNo(pub(crate) u64);

/// The phase of a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PartPhase {
    /// It holds zeroes and takes neither DRAM nor a run.
    Empty,
    /// It is in DRAM.
    Dram,
    /// It is a run of the store.
    Direct,
    /// It is in DRAM, and inaccessible until somebody touches it.
    DramWatched,
    /// It is a run, and inaccessible until somebody touches it.
    DirectWatched,
    /// A thread is moving it.
    Busy,
}

const PHASE: u64 = 7;
const WATCH_SHIFT: u32 = 8;
const WATCH: u64 = 0xff;
const PINS_SHIFT: u32 = 16;
/// Times that a part can be pinned at once.
pub(crate) const PART_PINS_MAX: u64 = 0xfff;
const RUN_SHIFT: u32 = 32;

/// A part's word as it was at some moment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part(u64);

impl Part {
    pub(crate) const EMPTY: Self = Self(PartPhase::Empty as u64);
    pub(crate) const DRAM: Self = Self(PartPhase::Dram as u64);

    /// A part that is `run`.
    pub(crate) fn direct(run: RunNo) -> Self {
        Self(PartPhase::Direct as u64 | run.0 << RUN_SHIFT)
    }

    pub(crate) fn phase(self) -> PartPhase {
        match self.0 & PHASE {
            0 => PartPhase::Empty,
            1 => PartPhase::Dram,
            2 => PartPhase::Direct,
            3 => PartPhase::DramWatched,
            4 => PartPhase::DirectWatched,
            _ => PartPhase::Busy,
        }
    }

    /// The run that it is, if it is one.
    pub(crate) fn run(self) -> Option<RunNo> {
        let is_run = matches!(self.phase(), PartPhase::Direct | PartPhase::DirectWatched);
        is_run.then_some(RunNo(self.0 >> RUN_SHIFT))
    }

    pub(crate) fn is_dram(self) -> bool {
        matches!(self.phase(), PartPhase::Dram | PartPhase::DramWatched)
    }

    pub(crate) fn is_watched(self) -> bool {
        matches!(self.phase(), PartPhase::DramWatched | PartPhase::DirectWatched)
    }

    /// The same, inaccessible, as the `watch`th of a round; as it is if it is neither in DRAM nor a run.
    pub(crate) fn watched(self, watch: usize) -> Self {
        let phase = match self.phase() {
            PartPhase::Dram => PartPhase::DramWatched,
            PartPhase::Direct => PartPhase::DirectWatched,
            _ => return self,
        };
        let kept = self.0 & !PHASE & !(WATCH << WATCH_SHIFT);
        Self(kept | phase as u64 | (watch as u64 & WATCH) << WATCH_SHIFT)
    }

    /// The same, accessible.
    pub(crate) fn unwatched(self) -> Self {
        let phase = match self.phase() {
            PartPhase::DramWatched => PartPhase::Dram,
            PartPhase::DirectWatched => PartPhase::Direct,
            _ => return self,
        };
        Self(self.0 & !PHASE & !(WATCH << WATCH_SHIFT) | phase as u64)
    }

    /// The place in the round that watches it.
    pub(crate) fn watch(self) -> usize {
        index(self.0 >> WATCH_SHIFT & WATCH)
    }

    pub(crate) fn pins(self) -> u64 {
        self.0 >> PINS_SHIFT & PART_PINS_MAX
    }

    /// The same, pinned `pins` times, at most [`PART_PINS_MAX`].
    pub(crate) fn with_pins(self, pins: u64) -> Self {
        Self(self.0 & !(PART_PINS_MAX << PINS_SHIFT) | pins << PINS_SHIFT)
    }
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.phase())?;
        if let Some(run) = self.run() {
            write!(f, " run {}", run.0)?;
        }
        if self.pins() > 0 {
            write!(f, ", pinned {} times", self.pins())?;
        }
        Ok(())
    }
}

/// The words of all parts of a region.
pub(crate) struct PartTable {
    words: Box<[AtomicU64]>,
}

impl PartTable {
    /// `parts` parts, all empty.
    pub(crate) fn new(parts: usize) -> Self {
        Self { words: bytemuck::zeroed_slice_box(parts) }
    }

    pub(crate) fn len(&self) -> u64 {
        self.words.len() as u64
    }

    fn word(&self, at: PartNo) -> &AtomicU64 {
        &self.words[index(at.0)]
    }

    pub(crate) fn load(&self, at: PartNo) -> Part {
        Part(self.word(at).load(SeqCst))
    }

    /// Replaces `seen`; false if the word is something else by now.
    pub(crate) fn replace(&self, at: PartNo, seen: Part, new: Part) -> bool {
        self.word(at).compare_exchange(seen.0, new.0, SeqCst, SeqCst).is_ok()
    }

    /// Makes a part the caller's to move; false if it is not as `seen` by now, or another's.
    pub(crate) fn claim(&self, at: PartNo, seen: Part) -> bool {
        if seen.phase() == PartPhase::Busy {
            return false;
        }
        if planted(Bug::TwoMakers) && seen.phase() == PartPhase::Empty {
            return true;
        }
        self.replace(at, seen, Part(seen.0 | PHASE))
    }

    /// Ends what [`claim`](Self::claim) began.
    pub(crate) fn set(&self, at: PartNo, part: Part) {
        self.word(at).store(part.0, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_keeps_its_fields_apart() {
        let run = RunNo((1 << 32) - 1);
        let part = Part::direct(run).with_pins(PART_PINS_MAX);
        assert_eq!((part.phase(), part.run()), (PartPhase::Direct, Some(run)));
        assert_eq!(part.pins(), PART_PINS_MAX);
        let watched = Part::direct(run).watched(WATCHES - 1);
        assert_eq!((watched.phase(), watched.watch()), (PartPhase::DirectWatched, WATCHES - 1));
        assert_eq!(watched.unwatched(), Part::direct(run));
        assert_eq!(Part::DRAM.watched(3).unwatched(), Part::DRAM);
        assert_eq!(Part::DRAM.watched(3).run(), None);
        assert_eq!(Part::EMPTY.watched(3), Part::EMPTY, "there is nothing to watch");
    }

    #[test]
    fn a_part_has_one_owner() {
        let table = PartTable::new(1);
        let (at, seen) = (PartNo(0), Part::EMPTY);
        assert!(table.claim(at, seen) && !table.claim(at, seen));
        assert!(!table.claim(at, table.load(at)), "it is another's");
        table.set(at, Part::DRAM);
        assert_eq!(table.load(at), Part::DRAM);
    }
}

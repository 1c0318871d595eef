//! The state of a chunk: 2 MiB of a region in direct mode, in one atomic word.
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
//! Every arrow passes through `Busy`: one thread owns the chunk, and all others wait.
//!
//! Invariants:
//! - A run belongs to a chunk exactly while it is `Direct` or `DirectWatched`.
//! - Loads and stores access a `Dram` or `Direct` chunk. An `Empty` or watched chunk is
//!   inaccessible, so an access faults.
//! - A pinned chunk is `Dram` or `Direct`, or `Busy` for a moment.
//! - Only the thread that made a chunk `Busy` stores to its word; all other changes are
//!   compare-and-swap.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use crate::slots::index;
use crate::store::{RUN_SLOTS, UNIT};

/// Units of a chunk, and slots of a run.
pub(crate) const CHUNK_UNITS: u64 = RUN_SLOTS;
/// Bytes of a chunk, and of a run.
pub(crate) const CHUNK: u64 = CHUNK_UNITS * UNIT as u64;
/// Maximum number of chunks watched together.
pub(crate) const WATCHES: usize = 16;

/// The number of a chunk in its region.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct ChunkNo(pub(crate) u64);

/// The number of a run, an aligned group of 512 slots, in its store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct RunNo(pub(crate) u64);

/// The phase of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ChunkPhase {
    /// It holds zeroes and takes neither DRAM nor a run.
    Empty,
    /// It is in DRAM.
    Dram,
    /// It is a run of the store.
    Direct,
    /// In DRAM, and inaccessible until the next access.
    DramWatched,
    /// Direct, and inaccessible until the next access.
    DirectWatched,
    /// A thread is moving it.
    Busy,
}

const PHASE: u64 = 7;
const WATCH_SHIFT: u32 = 8;
const WATCH: u64 = 0xff;
const PINS_SHIFT: u32 = 16;
/// Maximum number of simultaneous pins of a chunk.
pub(crate) const CHUNK_PINS_MAX: u64 = 0xfff;
const RUN_SHIFT: u32 = 32;

/// Snapshot of a chunk's word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunk(u64);

impl Chunk {
    pub(crate) const EMPTY: Self = Self(ChunkPhase::Empty as u64);
    pub(crate) const DRAM: Self = Self(ChunkPhase::Dram as u64);

    /// A chunk mapped from `run`.
    pub(crate) fn direct(run: RunNo) -> Self {
        Self(ChunkPhase::Direct as u64 | run.0 << RUN_SHIFT)
    }

    pub(crate) fn phase(self) -> ChunkPhase {
        match self.0 & PHASE {
            0 => ChunkPhase::Empty,
            1 => ChunkPhase::Dram,
            2 => ChunkPhase::Direct,
            3 => ChunkPhase::DramWatched,
            4 => ChunkPhase::DirectWatched,
            _ => ChunkPhase::Busy,
        }
    }

    /// The run of a direct chunk.
    pub(crate) fn run(self) -> Option<RunNo> {
        let is_run = matches!(self.phase(), ChunkPhase::Direct | ChunkPhase::DirectWatched);
        is_run.then_some(RunNo(self.0 >> RUN_SHIFT))
    }

    pub(crate) fn is_dram(self) -> bool {
        matches!(self.phase(), ChunkPhase::Dram | ChunkPhase::DramWatched)
    }

    pub(crate) fn is_watched(self) -> bool {
        matches!(self.phase(), ChunkPhase::DramWatched | ChunkPhase::DirectWatched)
    }

    /// The same, inaccessible, as the `watch`th of a round; as it is if it is neither in DRAM nor a run.
    pub(crate) fn watched(self, watch: usize) -> Self {
        let phase = match self.phase() {
            ChunkPhase::Dram => ChunkPhase::DramWatched,
            ChunkPhase::Direct => ChunkPhase::DirectWatched,
            _ => return self,
        };
        let kept = self.0 & !PHASE & !(WATCH << WATCH_SHIFT);
        Self(kept | phase as u64 | (watch as u64 & WATCH) << WATCH_SHIFT)
    }

    /// The same, accessible.
    pub(crate) fn unwatched(self) -> Self {
        let phase = match self.phase() {
            ChunkPhase::DramWatched => ChunkPhase::Dram,
            ChunkPhase::DirectWatched => ChunkPhase::Direct,
            _ => return self,
        };
        Self(self.0 & !PHASE & !(WATCH << WATCH_SHIFT) | phase as u64)
    }

    /// The chunk's index in its round.
    pub(crate) fn watch(self) -> usize {
        index(self.0 >> WATCH_SHIFT & WATCH)
    }

    pub(crate) fn pins(self) -> u64 {
        self.0 >> PINS_SHIFT & CHUNK_PINS_MAX
    }

    /// The same, pinned `pins` times, at most [`CHUNK_PINS_MAX`].
    pub(crate) fn with_pins(self, pins: u64) -> Self {
        Self(self.0 & !(CHUNK_PINS_MAX << PINS_SHIFT) | pins << PINS_SHIFT)
    }
}

impl std::fmt::Debug for Chunk {
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

/// The words of all chunks of a region.
pub(crate) struct ChunkTable {
    words: Box<[AtomicU64]>,
}

impl ChunkTable {
    /// `chunks` chunks, all empty.
    pub(crate) fn new(chunks: usize) -> Self {
        Self { words: bytemuck::zeroed_slice_box(chunks) }
    }

    pub(crate) fn len(&self) -> u64 {
        self.words.len() as u64
    }

    fn word(&self, at: ChunkNo) -> &AtomicU64 {
        &self.words[index(at.0)]
    }

    pub(crate) fn load(&self, at: ChunkNo) -> Chunk {
        Chunk(self.word(at).load(SeqCst))
    }

    /// Replaces `seen`; false if the word is something else by now.
    pub(crate) fn replace(&self, at: ChunkNo, seen: Chunk, new: Chunk) -> bool {
        self.word(at).compare_exchange(seen.0, new.0, SeqCst, SeqCst).is_ok()
    }

    /// Makes a chunk the caller's to move; false if it is not as `seen` by now, or another's.
    pub(crate) fn claim(&self, at: ChunkNo, seen: Chunk) -> bool {
        if seen.phase() == ChunkPhase::Busy {
            return false;
        }
        self.replace(at, seen, Chunk(seen.0 | PHASE))
    }

    /// Ends the claim begun by [`claim`](Self::claim).
    pub(crate) fn set(&self, at: ChunkNo, chunk: Chunk) {
        self.word(at).store(chunk.0, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_fields_are_independent() {
        let run = RunNo((1 << 32) - 1);
        let chunk = Chunk::direct(run).with_pins(CHUNK_PINS_MAX);
        assert_eq!((chunk.phase(), chunk.run()), (ChunkPhase::Direct, Some(run)));
        assert_eq!(chunk.pins(), CHUNK_PINS_MAX);
        let watched = Chunk::direct(run).watched(WATCHES - 1);
        assert_eq!((watched.phase(), watched.watch()), (ChunkPhase::DirectWatched, WATCHES - 1));
        assert_eq!(watched.unwatched(), Chunk::direct(run));
        assert_eq!(Chunk::DRAM.watched(3).unwatched(), Chunk::DRAM);
        assert_eq!(Chunk::DRAM.watched(3).run(), None);
        assert_eq!(Chunk::EMPTY.watched(3), Chunk::EMPTY, "there is nothing to watch");
    }

    #[test]
    fn chunk_has_one_owner() {
        let table = ChunkTable::new(1);
        let (at, seen) = (ChunkNo(0), Chunk::EMPTY);
        assert!(table.claim(at, seen) && !table.claim(at, seen));
        assert!(!table.claim(at, table.load(at)), "it is another's");
        table.set(at, Chunk::DRAM);
        assert_eq!(table.load(at), Chunk::DRAM);
    }
}

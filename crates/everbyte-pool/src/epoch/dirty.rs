//! The dirty lines of an epoch: which blocks have some, and how many there are.
//!
//! Invariants: each lane has a list of its own, changed by who holds the lane alone; a volume's count
//! is what its lanes have told of in portions, so that it is no line that every request writes. It
//! lacks less than a portion for each lane. Both are emptied when the epoch is sealed, with all lanes
//! held.

use std::sync::atomic::{AtomicU64, Ordering};

use everbyte_media::{BlockNo, LineMask};

use super::block_state::BlockState;

/// Portions that all lanes together tell of until a checkpoint is due.
const PORTIONS: u64 = 16;

/// What a lane's writers have made dirty in the current epoch.
#[derive(Default)]
pub(crate) struct DirtyList {
    blocks: Vec<BlockNo>,
    lines: u64,
    /// Those of `lines` that the volume was told of.
    told: u64,
}

impl DirtyList {
    /// Notes that `lines` of `block`, whose state is `state`, are dirty.
    pub(crate) fn note(
        &mut self,
        state: BlockState<'_>,
        epoch: u64,
        block: BlockNo,
        lines: LineMask,
    ) {
        if let Some(before) = state.add_dirty(epoch, lines) {
            if before.is_empty() {
                self.blocks.push(block);
            }
            self.lines += u64::from(lines.without(before).count());
        }
    }

    /// Notes a block of which something is marked that the checkpoint must forget, though no line may
    /// be dirty.
    pub(crate) fn note_marked(&mut self, block: BlockNo) {
        if self.blocks.last() != Some(&block) {
            self.blocks.push(block);
        }
    }

    /// Empties the list into `blocks`.
    pub(crate) fn seal_into(&mut self, blocks: &mut Vec<BlockNo>) {
        blocks.append(&mut self.blocks);
        (self.lines, self.told) = (0, 0);
    }
}

/// The dirty lines of a volume's current epoch, and how many there may be.
pub(crate) struct DirtyLines {
    count: AtomicU64,
    checkpoint_lines: u64,
    portion: u64,
}

impl DirtyLines {
    /// None yet, of a volume with so many lanes of which a checkpoint is due at `checkpoint_lines`.
    pub(crate) fn new(checkpoint_lines: u64, lanes: u64) -> Self {
        let portion = (checkpoint_lines / PORTIONS / lanes.max(1)).max(1);
        Self { count: AtomicU64::new(0), checkpoint_lines, portion }
    }

    /// At how many of them a checkpoint is due.
    pub(crate) fn checkpoint_lines(&self) -> u64 {
        self.checkpoint_lines
    }

    /// Counts what a lane has not told of, if that is a portion. Says whether a checkpoint is due.
    pub(crate) fn add(&self, list: &mut DirtyList) -> bool {
        let new = list.lines - list.told;
        if new < self.portion {
            return false;
        }
        list.told = list.lines;
        self.count.fetch_add(new, Ordering::Relaxed) + new >= self.checkpoint_lines
    }

    /// Starts at nothing again.
    pub(crate) fn clear(&self) {
        self.count.store(0, Ordering::Relaxed);
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether there are so many that writers are to wait for a checkpoint.
    pub(crate) fn are_too_many(&self) -> bool {
        self.count() >= 2 * self.checkpoint_lines
    }
}

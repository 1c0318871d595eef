//! Allocation: the free blocks of the pool.
//!
//! Owns the slot tree over the pool's blocks. Invariant: the state is derived; it is rebuilt from the
//! volumes' blocks, or loaded from the map of a clean shutdown, and never consulted by recovery. Knows
//! nothing of quarantine: a block passed to `free` may be allocated immediately.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use everbyte_media::BlockNo;
use everbyte_slots::{RunTree, SlotError};

/// A run of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockRun {
    /// The first block.
    pub start: BlockNo,
    /// Number of blocks.
    pub len: u64,
}

impl BlockRun {
    /// Its blocks, ascending.
    pub fn blocks(self) -> impl Iterator<Item = BlockNo> {
        (self.start.0..self.start.0 + self.len).map(BlockNo)
    }

    /// Returns true if `block` is one of them.
    #[must_use]
    pub fn contains(self, block: BlockNo) -> bool {
        (self.start.0..self.start.0 + self.len).contains(&block.0)
    }
}

/// Free share of the pool, in percent; a smaller share logs a warning.
const LOW_SPACE_PERCENT: u64 = 10;

/// The pool's free blocks.
pub struct Allocator {
    tree: RunTree,
    total_blocks: AtomicU64,
    warned: AtomicBool,
}

impl Allocator {
    /// An allocator without blocks; it can come to own blocks below `capacity`.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self {
            tree: RunTree::new(capacity),
            total_blocks: AtomicU64::new(0),
            warned: AtomicBool::new(false),
        }
    }

    /// Number of addressable blocks.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.tree.slots().capacity()
    }

    /// Gives the allocator new, free blocks.
    ///
    /// # Errors
    /// If one of them was free already.
    pub fn add(&self, run: BlockRun) -> Result<(), SlotError> {
        self.free_run(run)?;
        self.total_blocks.fetch_add(run.len, Ordering::Relaxed);
        Ok(())
    }

    /// Says how many blocks the allocator governs, free or used, when it is filled by `free_run`.
    pub(crate) fn set_total_blocks(&self, blocks: u64) {
        self.total_blocks.store(blocks, Ordering::Relaxed);
    }

    /// Marks particular free blocks used.
    ///
    /// # Errors
    /// If one of them was used already: it has two owners.
    pub fn take(&self, run: BlockRun) -> Result<(), SlotError> {
        if run.len == 1 {
            self.tree.take(run.start.0)
        } else {
            self.tree.take_run(run.start.0, run.len)
        }
    }

    /// Takes up to `want` blocks near `hint` and appends them to `out`; returns how many.
    pub fn alloc_batch(&self, hint: u64, want: usize, out: &mut Vec<u64>) -> usize {
        let got = self.tree.alloc_batch(hint, want, out);
        if got < want || self.is_low() {
            self.warn_once();
        }
        got
    }

    /// Takes `len` adjacent blocks.
    #[must_use]
    pub fn alloc_run(&self, len: u64) -> Option<BlockRun> {
        self.tree.alloc_run(len, 0).map(|start| BlockRun { start: BlockNo(start), len })
    }

    /// Takes `len` adjacent blocks at a multiple of `len`, a power of two up to 512: near `hint`, or from a
    /// free 2 MiB run. The time does not grow with the pool.
    #[must_use]
    pub fn alloc_aligned(&self, len: u64, hint: u64) -> Option<BlockRun> {
        let start = self.tree.alloc_aligned(len, hint)?;
        Some(BlockRun { start: BlockNo(start), len })
    }

    /// Takes one block.
    #[must_use]
    pub fn alloc(&self) -> Option<BlockNo> {
        self.tree.alloc(0).map(BlockNo)
    }

    /// Gives a used block back.
    ///
    /// # Errors
    /// If it was free already.
    pub fn free(&self, block: BlockNo) -> Result<(), SlotError> {
        self.tree.free(block.0)
    }

    /// Gives used blocks back.
    ///
    /// # Errors
    /// If one of them was free already.
    pub fn free_run(&self, run: BlockRun) -> Result<(), SlotError> {
        self.tree.free_run(run.start.0, run.len)
    }

    /// The free blocks, in runs as long as they can be, ascending.
    pub(crate) fn free_runs(&self) -> impl Iterator<Item = BlockRun> + '_ {
        let words = self.tree.slots().words().zip(0u64..).filter(|&(word, _)| word != 0);
        let mut blocks = words
            .flat_map(|(word, number)| {
                let bits = (0..64).filter(move |bit| word >> bit & 1 == 1);
                bits.map(move |bit| number * 64 + bit)
            })
            .peekable();
        std::iter::from_fn(move || {
            let start = blocks.next()?;
            let mut len = 1;
            while blocks.next_if_eq(&(start + len)).is_some() {
                len += 1;
            }
            Some(BlockRun { start: BlockNo(start), len })
        })
    }

    /// Returns true if `block` is free.
    #[must_use]
    pub fn is_free(&self, block: BlockNo) -> bool {
        self.tree.slots().is_free(block.0)
    }

    /// Free blocks; exact while no thread allocates.
    #[must_use]
    pub fn free_blocks(&self) -> u64 {
        self.tree.slots().free_count()
    }

    /// Blocks of the allocator, free or used.
    #[must_use]
    pub fn total_blocks(&self) -> u64 {
        self.total_blocks.load(Ordering::Relaxed)
    }

    /// Returns true if less than a tenth of the pool is free.
    #[must_use]
    pub fn is_low(&self) -> bool {
        self.free_blocks() * 100 < self.total_blocks() * LOW_SPACE_PERCENT
    }

    fn warn_once(&self) {
        // Once: in a full pool every allocation comes here.
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                free_blocks = self.free_blocks(),
                total_blocks = self.total_blocks(),
                "the pool is running out of space"
            );
        }
    }

    /// Loads a saved map of the blocks from 0 on into an allocator without blocks.
    pub(crate) fn load_words(&mut self, words: &[u64]) -> Result<(), SlotError> {
        // A new tree has no free slots, so words of 0 need no store.
        for (number, &word) in words.iter().enumerate().filter(|&(_, &word)| word != 0) {
            self.tree.set_word(number as u64, word)?;
        }
        Ok(())
    }

    /// The free map as words, bit set = free, for saving.
    pub fn words(&self) -> impl Iterator<Item = u64> + '_ {
        self.tree.slots().words()
    }
}

#[cfg(test)]
mod tests;

//! Words in runs of blocks allocated at the creation of a file system: one for each possible table of a
//! direct index, or region of a window.
//!
//! Words of the superblock name the runs, all of one size. They never change, so DRAM keeps them.

use everbyte_media::{BLOCK, BLOCK_U64, BlockNo, Medium, PoolOffset};
use everbyte_pool::format::Entry;
use everbyte_pool::{Batch, BlockRun, BlockUse, Claim, Corrupt, UsedExtent};

use crate::error::FsError;
use crate::format::reader::Reader;
use crate::format::{INDEX_WORDS, INDEX_WORDS_AT};

const WORDS: u64 = BLOCK_U64 / 8;
/// Limit of a run's blocks: 2 MiB.
const RUN_BLOCKS_MAX: u64 = 512;
/// Limit of the words.
pub(super) const ENTRIES_MAX: u64 = INDEX_WORDS * RUN_BLOCKS_MAX * WORDS;

/// The runs of words of an index.
pub(super) struct EntryRuns {
    /// Name of the index in errors.
    pub(super) structure: &'static str,
    /// The runs, in order, with the addresses of the words that name them.
    runs: Vec<(PoolOffset, PoolOffset)>,
    run_blocks: u64,
    /// Words of a run, as the exponent of a power of two.
    run_bits: u32,
    pub(super) entries_max: u64,
}

/// Blocks of each run for so many words.
pub(super) fn run_blocks(entries_max: u64) -> u64 {
    entries_max.div_ceil(WORDS).next_power_of_two().min(RUN_BLOCKS_MAX)
}

/// Number of runs.
fn runs(entries_max: u64) -> u64 {
    entries_max.div_ceil(run_blocks(entries_max) * WORDS)
}

impl EntryRuns {
    /// Opens the runs of `structure` in the file system with its superblock at `at`.
    ///
    /// # Errors
    /// A word of the superblock without a run.
    pub(super) fn open<M: Medium>(
        structure: &'static str,
        entries_max: u64,
        at: PoolOffset,
        reader: Reader<'_, M>,
    ) -> Result<Self, Corrupt> {
        let run_blocks = run_blocks(entries_max);
        let run_bits = (run_blocks * WORDS).ilog2();
        let mut open = Self { structure, runs: Vec::new(), run_blocks, run_bits, entries_max };
        for run in 0..runs(entries_max) {
            let named_at = at.plus(INDEX_WORDS_AT + 8 * run);
            let named = reader.entry(structure, named_at)?.map(|entry| entry.block);
            let whole =
                named.filter(|start| reader.data.contains(BlockNo(start.0 + run_blocks - 1)));
            let start = whole.ok_or_else(|| {
                Corrupt::new(structure, named_at, "the word names no run of the index")
            })?;
            open.runs.push((start.offset(), named_at));
        }
        Ok(open)
    }

    /// Plans runs with `first` in the first word and 0 in the others.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn plan_create<M: Medium>(
        entries_max: u64,
        at: PoolOffset,
        batch: &mut Batch<'_, '_, M>,
        first: BlockNo,
    ) -> Result<(), FsError> {
        let blocks = run_blocks(entries_max);
        for index in 0..runs(entries_max) {
            let run = batch.alloc_run(blocks).ok_or(FsError::NoSpace)?;
            for block in run.blocks() {
                batch.stream(block.offset(), &[0; BLOCK]);
            }
            if index == 0 {
                batch.change_word(run.start.offset(), Entry::data(first).encode());
            }
            let named_at = at.plus(INDEX_WORDS_AT + 8 * index);
            batch.change_word(named_at, Entry::data(run.start).encode());
        }
        Ok(())
    }

    /// The address of word number `entry`, if it exists.
    #[inline]
    pub(super) fn word_at(&self, entry: u64) -> Option<PoolOffset> {
        let run = usize::try_from(entry >> self.run_bits).ok()?;
        let place = entry & ((1 << self.run_bits) - 1);
        (entry < self.entries_max).then(|| self.runs[run].0.plus(8 * place))
    }

    /// The block in word number `entry`, if the word is not 0.
    ///
    /// # Errors
    /// A damaged word.
    #[inline]
    pub(super) fn find<M: Medium>(
        &self,
        reader: Reader<'_, M>,
        entry: u64,
    ) -> Result<Option<BlockNo>, Corrupt> {
        let Some(at) = self.word_at(entry) else { return Ok(None) };
        Ok(reader.entry(self.structure, at)?.map(|entry| entry.block))
    }

    /// Claims the runs.
    ///
    /// # Errors
    /// `claim`'s.
    pub(super) fn visit(&self, claim: &mut Claim<'_>) -> Result<(), Corrupt> {
        for &(start, named_at) in &self.runs {
            let run = BlockRun { start: start.block(), len: self.run_blocks };
            claim(UsedExtent { run, named_at, holds: BlockUse::Map })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_count_fits_the_tables() {
        for tables in [1, 512, 513, 5000, 1 << 18, (1 << 18) + 1, ENTRIES_MAX] {
            let words = run_blocks(tables) * WORDS;
            assert!(runs(tables) * words >= tables, "{tables}");
            assert!((runs(tables) - 1) * words < tables, "{tables}");
            assert!(runs(tables) <= INDEX_WORDS, "{tables}");
        }
    }
}

//! The direct index: a word for every inode table that there can be, in runs of blocks that are taken
//! when the file system is made. A look-up is one load.
//!
//! Words of the superblock name the runs, all of one size. They never change, so they are kept in DRAM.

use everbyte_media::{BLOCK, BLOCK_U64, BlockNo, Medium, PoolOffset};
use everbyte_pool::format::Entry;
use everbyte_pool::{Batch, BlockRun, BlockUse, Claim, Corrupt, Part, UsedExtent};

use super::TableIndex;
use crate::error::FsError;
use crate::format::{FsSuperblock, INDEX_WORDS, INDEX_WORDS_AT};
use crate::reader::Reader;

const WORDS: u64 = BLOCK_U64 / 8;
/// Most blocks of a run: 2 MiB.
const RUN_BLOCKS_MAX: u64 = 512;

/// A direct index that is open.
pub(super) struct DirectIndex {
    /// The runs, in order, and the words that name them.
    runs: Vec<(PoolOffset, PoolOffset)>,
    run_blocks: u64,
    tables_max: u64,
}

/// Blocks of each run of an index for so many tables.
fn run_blocks(tables_max: u64) -> u64 {
    tables_max.div_ceil(WORDS).next_power_of_two().min(RUN_BLOCKS_MAX)
}

/// How many runs there are.
fn runs(tables_max: u64) -> u64 {
    tables_max.div_ceil(run_blocks(tables_max) * WORDS)
}

/// Most tables that a direct index has words for.
pub(super) const DIRECT_TABLES_MAX: u64 = INDEX_WORDS * RUN_BLOCKS_MAX * WORDS;

impl DirectIndex {
    /// Opens the index of the file system whose superblock is at `at`.
    pub(super) fn open<M: Medium>(
        superblock: &FsSuperblock,
        at: PoolOffset,
        reader: Reader<'_, M>,
    ) -> Result<Self, Corrupt> {
        let tables_max = superblock.tables_max;
        let run_blocks = run_blocks(tables_max);
        let mut open = Self { runs: Vec::new(), run_blocks, tables_max };
        for run in 0..runs(tables_max) {
            let named_at = at.plus(INDEX_WORDS_AT + 8 * run);
            let named = reader.entry("direct index", named_at)?.map(|entry| entry.block);
            let whole =
                named.filter(|start| reader.data.contains(BlockNo(start.0 + run_blocks - 1)));
            let start = whole.ok_or_else(|| {
                Corrupt::new("direct index", named_at, "the word names no run of the index")
            })?;
            open.runs.push((start.offset(), named_at));
        }
        Ok(open)
    }

    /// Plans an index with one table.
    pub(super) fn plan_create<M: Medium>(
        superblock: &FsSuperblock,
        at: PoolOffset,
        batch: &mut Batch<'_, '_, M>,
        first: BlockNo,
    ) -> Result<(), FsError> {
        let blocks = run_blocks(superblock.tables_max);
        for index in 0..runs(superblock.tables_max) {
            let run = batch.take_run(blocks).ok_or(FsError::NoSpace)?;
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

    /// The address of the word of `table`.
    fn word_at(&self, table: u64) -> Option<PoolOffset> {
        let words = self.run_blocks * WORDS;
        let run = usize::try_from(table / words).ok()?;
        (table < self.tables_max).then(|| self.runs[run].0.plus(8 * (table % words)))
    }
}

impl<M: Medium> TableIndex<M> for DirectIndex {
    fn find(&self, reader: Reader<'_, M>, table: u64) -> Result<Option<PoolOffset>, Corrupt> {
        let Some(at) = self.word_at(table) else { return Ok(None) };
        let entry = reader.entry("direct index", at)?;
        Ok(entry.map(|entry| entry.block.offset()))
    }

    fn plan_insert(
        &self,
        batch: &mut Batch<'_, '_, M>,
        table: u64,
        block: BlockNo,
    ) -> Result<(), FsError> {
        let at = self.word_at(table).ok_or(FsError::NoInodes { max: self.tables_max })?;
        batch.change_word(at, Entry::data(block).encode());
        Ok(())
    }

    fn visit(&self, _reader: Reader<'_, M>, claim: &mut Claim<'_>) -> Result<(), Corrupt> {
        for &(start, named_at) in &self.runs {
            let run = BlockRun { start: start.block(), len: self.run_blocks };
            claim(UsedExtent { part: Part::Blocks(run), named_at, holds: BlockUse::Map })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_have_words_for_all_tables_and_no_more_than_must_be() {
        for tables in [1, 512, 513, 5000, 1 << 18, (1 << 18) + 1, DIRECT_TABLES_MAX] {
            let words = run_blocks(tables) * WORDS;
            assert!(runs(tables) * words >= tables, "{tables}");
            assert!((runs(tables) - 1) * words < tables, "{tables}");
            assert!(runs(tables) <= INDEX_WORDS, "{tables}");
        }
    }
}

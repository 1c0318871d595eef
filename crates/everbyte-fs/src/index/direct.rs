//! The direct index: a word for every possible inode table. A lookup is one load.

use everbyte_media::{BlockNo, Medium, PoolOffset};
use everbyte_pool::format::Entry;
use everbyte_pool::{Batch, Claim, Corrupt};

use super::TableIndex;
use super::entry_runs::EntryRuns;
use crate::error::FsError;
use crate::format::FsSuperblock;
use crate::format::reader::Reader;

/// An open direct index.
pub(super) struct DirectIndex(EntryRuns);

impl DirectIndex {
    /// Opens the index of the file system with its superblock at `at`.
    ///
    /// # Errors
    /// A damaged index.
    pub(super) fn open<M: Medium>(
        superblock: &FsSuperblock,
        at: PoolOffset,
        reader: Reader<'_, M>,
    ) -> Result<Self, Corrupt> {
        EntryRuns::open("direct index", superblock.tables_max, at, reader).map(Self)
    }
}

impl<M: Medium> TableIndex<M> for DirectIndex {
    fn find(&self, reader: Reader<'_, M>, table: u64) -> Result<Option<PoolOffset>, Corrupt> {
        Ok(self.0.find(reader, table)?.map(BlockNo::offset))
    }

    fn plan_insert(
        &self,
        batch: &mut Batch<'_, '_, M>,
        table: u64,
        block: BlockNo,
    ) -> Result<(), FsError> {
        let at = self.0.word_at(table).ok_or(FsError::NoInodes { max: self.0.entries_max })?;
        batch.change_word(at, Entry::data(block).encode());
        Ok(())
    }

    fn visit(&self, _reader: Reader<'_, M>, claim: &mut Claim<'_>) -> Result<(), Corrupt> {
        self.0.visit(claim)
    }
}

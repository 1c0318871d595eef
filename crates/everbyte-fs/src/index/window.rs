//! The window: inodes at consecutive addresses, as an array of all tables.
//!
//! Tables lie in adjacent regions of 2 MiB. The window of the medium maps the regions in their order, so one
//! addition finds an inode. Only the address of a region is persistent: one word, stored with the first of
//! its tables.
//!
//! Invariants: words of regions are stored in ascending order and never change, so the mapping stays correct.
//! A table after the last one was never reachable, so its head is filled without a record.
//!
//! A region needs a run of 2 MiB, so a pool with fragmented free space cannot add one.

use everbyte_media::{BLOCK, BLOCK_U64, BlockNo, Medium, PoolOffset, WINDOW_REGION_BYTES, Window};
use everbyte_pool::format::Entry;
use everbyte_pool::sync::Mutex;
use everbyte_pool::{Batch, BlockRun, BlockUse, Claim, Corrupt, UsedExtent};

use super::arena::reader_of;
use super::entry_runs::EntryRuns;
use super::{TableIndex, Tables};
use crate::error::FsError;
use crate::format::reader::Reader;
use crate::format::{FsSuperblock, TableGeometry};

const STRUCTURE: &str = "window index";
const REGION_BLOCKS: u64 = WINDOW_REGION_BYTES / BLOCK_U64;
/// Limit of regions: 2 TiB of inodes. The opening of the volume reserves their address space.
const REGIONS_MAX: u64 = 1 << 20;

/// Limit of tables with this geometry in a window.
pub(super) fn tables_max(geometry: TableGeometry) -> u64 {
    REGIONS_MAX * tables_of_region(geometry)
}

fn tables_of_region(geometry: TableGeometry) -> u64 {
    REGION_BLOCKS / geometry.blocks()
}

fn regions_max(superblock: &FsSuperblock) -> u64 {
    superblock.tables_max.div_ceil(tables_of_region(superblock.geometry()))
}

/// An open window index.
pub(super) struct WindowIndex {
    regions: EntryRuns,
    window: Window,
    /// Held while a region is mapped.
    showing: Mutex<()>,
    geometry: TableGeometry,
}

impl WindowIndex {
    /// Opens the index of the file system with its superblock at `at`.
    ///
    /// # Errors
    /// A damaged index.
    pub(super) fn open<M: Medium>(
        superblock: &FsSuperblock,
        at: PoolOffset,
        reader: Reader<'_, M>,
    ) -> Result<Self, Corrupt> {
        let regions_max = regions_max(superblock);
        Ok(Self {
            regions: EntryRuns::open(STRUCTURE, regions_max, at, reader)?,
            window: reader.medium.window(regions_max),
            showing: Mutex::new(()),
            geometry: superblock.geometry(),
        })
    }

    /// Plans an index with one table, and returns the table's block.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn plan_create<M: Medium>(
        superblock: &FsSuperblock,
        at: PoolOffset,
        batch: &mut Batch<'_, '_, M>,
    ) -> Result<BlockNo, FsError> {
        let region = batch.alloc_run(REGION_BLOCKS).ok_or(FsError::NoSpace)?;
        EntryRuns::plan_create(regions_max(superblock), at, batch, region.start)?;
        Ok(region.start)
    }

    /// The run of region number `region`, if it has a word.
    ///
    /// # Errors
    /// A damaged word.
    fn region<M: Medium>(
        &self,
        reader: Reader<'_, M>,
        region: u64,
    ) -> Result<Option<BlockRun>, Corrupt> {
        let Some(start) = self.regions.find(reader, region)? else { return Ok(None) };
        let last = BlockNo(start.0 + REGION_BLOCKS - 1);
        if start.0.is_multiple_of(REGION_BLOCKS) && reader.data.contains(last) {
            return Ok(Some(BlockRun { start, len: REGION_BLOCKS }));
        }
        Err(self.corrupt(region, "no region can begin where it leads"))
    }

    fn corrupt(&self, region: u64, what: impl Into<String>) -> Corrupt {
        let at = self.regions.word_at(region).unwrap_or_default();
        Corrupt::new(STRUCTURE, at, what)
    }

    /// Maps the regions up to number `last`, as far as they have words.
    #[cold]
    fn show<M: Medium>(&self, reader: Reader<'_, M>, last: u64) -> Result<(), Corrupt> {
        // The window maps regions in ascending order, without gaps.
        let _one_at_a_time = self.showing.lock();
        while self.window.regions() <= last {
            // A region without a word has no table yet.
            let Some(run) = self.region(reader, self.window.regions())? else { break };
            reader.medium.extend_window(&self.window, run.start.offset());
        }
        Ok(())
    }

    /// The offset of `table` in the window.
    fn place(&self, table: u64) -> Option<u64> {
        table.checked_mul(self.geometry.blocks() * BLOCK_U64)
    }

    fn region_of(&self, table: u64) -> u64 {
        table / tables_of_region(self.geometry)
    }

    fn begins_region(&self, table: u64) -> bool {
        table.is_multiple_of(tables_of_region(self.geometry))
    }
}

impl<M: Medium> TableIndex<M> for WindowIndex {
    #[inline]
    fn find(&self, reader: Reader<'_, M>, table: u64) -> Result<Option<PoolOffset>, Corrupt> {
        let Some(place) = self.place(table) else { return Ok(None) };
        if let Some(at) = self.window.offset(place) {
            return Ok(Some(at));
        }
        self.show(reader, self.region_of(table))?;
        Ok(self.window.offset(place))
    }

    fn window(&self) -> Option<&Window> {
        Some(&self.window)
    }

    fn take_table(
        &self,
        batch: &mut Batch<'_, '_, M>,
        table: u64,
        blocks: u64,
    ) -> Result<BlockNo, FsError> {
        if self.begins_region(table) {
            // The first table of a region allocates the whole region.
            return batch.alloc_run(REGION_BLOCKS).map(|run| run.start).ok_or(FsError::NoSpace);
        }
        let (region, reader) = (self.region_of(table), reader_of(batch));
        let run = self.region(reader, region)?;
        let run = run.ok_or_else(|| self.corrupt(region, "it leads to no region"))?;
        let start = BlockNo(run.start.0 + table * blocks % REGION_BLOCKS);
        // The table was unreachable in every epoch, so its head needs no undo record.
        batch.claim_lines(start.offset(), BLOCK);
        Ok(start)
    }

    fn plan_insert(
        &self,
        batch: &mut Batch<'_, '_, M>,
        table: u64,
        block: BlockNo,
    ) -> Result<(), FsError> {
        // The word of the region already covers the table.
        if !self.begins_region(table) {
            return Ok(());
        }
        let at = self.regions.word_at(self.region_of(table));
        let tables = tables_of_region(self.geometry);
        let at = at.ok_or(FsError::NoInodes { max: tables * self.regions.entries_max })?;
        let word = Entry::data(block).encode();
        batch.change_word(at, word);
        Ok(())
    }

    fn visit(&self, _reader: Reader<'_, M>, claim: &mut Claim<'_>) -> Result<(), Corrupt> {
        self.regions.visit(claim)
    }

    /// Claims the regions, including the part without tables.
    fn visit_tables(
        &self,
        reader: Reader<'_, M>,
        tables: Tables,
        claim: &mut Claim<'_>,
    ) -> Result<(), Corrupt> {
        let used = tables.count.div_ceil(tables_of_region(self.geometry));
        for region in 0..self.regions.entries_max {
            let run = self.region(reader, region)?;
            // A region exists from its first table on, and never before.
            if run.is_some() != (region < used) {
                let there = if run.is_some() { "a region without tables" } else { "no region" };
                return Err(self.corrupt(region, format!("it leads to {there}")));
            }
            if let (Some(run), Some(named_at)) = (run, self.regions.word_at(region)) {
                claim(UsedExtent { run, named_at, holds: BlockUse::Map })?;
            }
        }
        Ok(())
    }
}

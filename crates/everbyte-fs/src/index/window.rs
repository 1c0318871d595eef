//! The window: inodes at consecutive addresses, as if all tables were one array.
//!
//! Tables lie in regions of 2 MiB, one after the other, and the window of the medium shows the regions one
//! after the other, too. So an inode is found by one addition. Only the place of a region is persistent: one
//! word, from the first of its tables on.
//!
//! Invariants: regions are named in ascending order, and a word never changes again; so what the window
//! shows of them stays right until it is closed. A table behind the last one has never been reachable, so
//! its head is filled without a record.
//!
//! It needs runs of 2 MiB: in a pool whose free space lies scattered, no region can be added.

use everbyte_media::{BLOCK, BLOCK_U64, BlockNo, Medium, PoolOffset, WINDOW_REGION_BYTES, Window};
use everbyte_plant::planted;
use everbyte_pool::format::Entry;
use everbyte_pool::sync::Mutex;
use everbyte_pool::{Batch, BlockRun, BlockUse, Claim, Corrupt, Part, UsedExtent};

use super::arena::reader_of;
use super::entry_runs::EntryRuns;
use super::{TableIndex, Tables};
use crate::error::FsError;
use crate::format::reader::Reader;
use crate::format::{FsSuperblock, TableGeometry};
use crate::plant::Bug;

const STRUCTURE: &str = "window index";
const REGION_BLOCKS: u64 = WINDOW_REGION_BYTES / BLOCK_U64;
/// Most regions: 2 TiB of inodes, of which the address space is reserved when the volume is opened.
const REGIONS_MAX: u64 = 1 << 20;

/// Most tables of such a shape that a window can have.
pub(super) fn tables_max(geometry: TableGeometry) -> u64 {
    REGIONS_MAX * tables_of_region(geometry)
}

fn tables_of_region(geometry: TableGeometry) -> u64 {
    REGION_BLOCKS / geometry.blocks()
}

fn regions_max(superblock: &FsSuperblock) -> u64 {
    superblock.tables_max.div_ceil(tables_of_region(superblock.geometry()))
}

/// A window index that is open.
pub(super) struct WindowIndex {
    regions: EntryRuns,
    window: Window,
    /// Whoever shows one more region.
    showing: Mutex<()>,
    geometry: TableGeometry,
}

impl WindowIndex {
    /// Opens the index of the file system whose superblock is at `at`.
    ///
    /// # Errors
    /// It cannot be right.
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

    /// Plans an index with one table, and returns its place.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn plan_create<M: Medium>(
        superblock: &FsSuperblock,
        at: PoolOffset,
        batch: &mut Batch<'_, '_, M>,
    ) -> Result<BlockNo, FsError> {
        let region = batch.take_run(REGION_BLOCKS).ok_or(FsError::NoSpace)?;
        EntryRuns::plan_create(regions_max(superblock), at, batch, region.start)?;
        Ok(region.start)
    }

    /// The run of region number `region`, if it is named.
    ///
    /// # Errors
    /// The word cannot be right.
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

    /// Shows the regions up to number `last` as far as they are named.
    #[cold]
    fn show<M: Medium>(&self, reader: Reader<'_, M>, last: u64) -> Result<(), Corrupt> {
        let _one_at_a_time = self.showing.lock();
        while self.window.regions() <= last {
            let Some(run) = self.region(reader, self.window.regions())? else { break };
            reader.medium.extend_window(&self.window, run.start.offset());
        }
        Ok(())
    }

    /// The place of `table` in the window.
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
            return batch.take_run(REGION_BLOCKS).map(|run| run.start).ok_or(FsError::NoSpace);
        }
        let (region, reader) = (self.region_of(table), reader_of(batch));
        let run = self.region(reader, region)?;
        let run = run.ok_or_else(|| self.corrupt(region, "it leads to no region"))?;
        let start = BlockNo(run.start.0 + table * blocks % REGION_BLOCKS);
        batch.claim_lines(start.offset(), BLOCK);
        Ok(start)
    }

    fn plan_insert(
        &self,
        batch: &mut Batch<'_, '_, M>,
        table: u64,
        block: BlockNo,
    ) -> Result<(), FsError> {
        if !self.begins_region(table) {
            return Ok(());
        }
        let at = self.regions.word_at(self.region_of(table));
        let tables = tables_of_region(self.geometry);
        let at = at.ok_or(FsError::NoInodes { max: tables * self.regions.entries_max })?;
        let word = Entry::data(block).encode();
        if planted(Bug::RegionNamedEarly) {
            batch.fill_word(at, word);
        } else {
            batch.change_word(at, word);
        }
        Ok(())
    }

    fn visit(&self, _reader: Reader<'_, M>, claim: &mut Claim<'_>) -> Result<(), Corrupt> {
        self.regions.visit(claim)
    }

    /// Claims the regions, with whatever of them has no table yet.
    fn visit_tables(
        &self,
        reader: Reader<'_, M>,
        tables: Tables,
        claim: &mut Claim<'_>,
    ) -> Result<(), Corrupt> {
        let used = tables.count.div_ceil(tables_of_region(self.geometry));
        for region in 0..self.regions.entries_max {
            let run = self.region(reader, region)?;
            if run.is_some() != (region < used) {
                let there = if run.is_some() { "a region without tables" } else { "no region" };
                return Err(self.corrupt(region, format!("it leads to {there}")));
            }
            if let (Some(run), Some(named_at)) = (run, self.regions.word_at(region)) {
                claim(UsedExtent { part: Part::Blocks(run), named_at, holds: BlockUse::Map })?;
            }
        }
        Ok(())
    }
}

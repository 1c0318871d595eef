//! Indexes over inode tables: from the number of a table to its address.
//!
//! Tables are numbered from 0 on without gaps, and are never removed. Each index has a file.
//!
//! Invariant: lookups take no lock, while at most one table is added at a time. The words of a batch are
//! stored one by one in their planned order. Every older table must be found after each of these stores.
//!
//! Source: the study of index structures for file systems on storage-class memory. The direct table did best
//! there.

mod arena;
mod bplus;
mod csb_plus;
mod direct;
mod entry_runs;
mod link;
mod page_cache_radix;
mod pmfs_radix;
mod radix;
mod sorted;
#[cfg(test)]
mod tests;
mod tree;
mod window;

use everbyte_media::{BLOCK_U64, BlockNo, Medium, PoolOffset, WINDOW_REGION_BYTES, Window};
use everbyte_pool::{Batch, BlockRun, BlockUse, Claim, Corrupt, UsedExtent};

use direct::DirectIndex;
use entry_runs::{ENTRIES_MAX, EntryRuns};
use sorted::SortedIndex;
use window::WindowIndex;

use crate::error::FsError;
use crate::format::reader::Reader;
use crate::format::{FsSuperblock, TABLES_MAX, TableGeometry};

/// An open index.
pub(crate) trait TableIndex<M: Medium>: Send + Sync {
    /// The address of table number `table`, if known. Undefined for a table that was not added.
    ///
    /// # Errors
    /// The first damaged structure on the path.
    fn find(&self, reader: Reader<'_, M>, table: u64) -> Result<Option<PoolOffset>, Corrupt>;

    /// A window with adjacent tables, if the index has one. It contains each table that `find` has found.
    fn window(&self) -> Option<&Window> {
        None
    }

    /// Allocates `blocks` blocks for table number `table`, the next one, at an address that the index
    /// supports.
    ///
    /// # Errors
    /// `NoSpace`, `NoInodes`, or a damaged structure.
    fn take_table(
        &self,
        batch: &mut Batch<'_, '_, M>,
        _table: u64,
        blocks: u64,
    ) -> Result<BlockNo, FsError> {
        batch.alloc_run(blocks).map(|run| run.start).ok_or(FsError::NoSpace)
    }

    /// Plans the address `block` of table number `table`, the next one. At most once in a batch. The caller
    /// excludes others until the batch has ended.
    ///
    /// # Errors
    /// `NoSpace`, `NoInodes`, or a damaged structure.
    fn plan_insert(
        &self,
        batch: &mut Batch<'_, '_, M>,
        table: u64,
        block: BlockNo,
    ) -> Result<(), FsError>;

    /// Claims the blocks of the index, without the tables.
    ///
    /// # Errors
    /// The first damaged structure, or `claim`'s.
    fn visit(&self, reader: Reader<'_, M>, claim: &mut Claim<'_>) -> Result<(), Corrupt>;

    /// Claims the tables.
    ///
    /// # Errors
    /// As [`TableIndex::visit`].
    fn visit_tables(
        &self,
        reader: Reader<'_, M>,
        tables: Tables,
        claim: &mut Claim<'_>,
    ) -> Result<(), Corrupt> {
        for table in 0..tables.count {
            let at = self.find(reader, table)?.ok_or_else(|| tables.missing(table))?;
            check_place(reader, at, tables.blocks)?;
            let run = BlockRun { start: at.block(), len: tables.blocks };
            let named_at = tables.counted_at;
            claim(UsedExtent { run, named_at, holds: BlockUse::Map })?;
        }
        Ok(())
    }
}

/// Checks the address of a table of so many blocks, a power of two: an index checks its first block only.
///
/// # Errors
/// A table cannot be at this address.
#[inline]
pub(crate) fn check_place<M: Medium>(
    reader: Reader<'_, M>,
    at: PoolOffset,
    blocks: u64,
) -> Result<(), Corrupt> {
    let last = BlockNo(at.block().0 + blocks - 1);
    if at.0 & (blocks * BLOCK_U64 - 1) == 0 && reader.data.contains(last) {
        return Ok(());
    }
    Err(Corrupt::new("inode table", at, "no table can begin here"))
}

/// The tables of a file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tables {
    /// Their number.
    pub(crate) count: u64,
    /// The address of the word with the number.
    pub(crate) counted_at: PoolOffset,
    /// Blocks of each.
    pub(crate) blocks: u64,
}

impl Tables {
    /// An error for a table that the index lacks.
    pub(crate) fn missing(&self, table: u64) -> Corrupt {
        let what = format!("it has no table {table}");
        Corrupt::new("index of inode tables", self.counted_at, what)
    }
}

/// The kinds of indexes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IndexKind {
    /// A table with a word for every possible inode table.
    #[default]
    Direct,
    /// The radix tree of PMFS.
    PmfsRadix,
    /// The radix tree of Linux's page cache.
    PageCacheRadix,
    /// A B+ tree.
    BPlus,
    /// A B+ tree with adjacent children of a node.
    CsbPlus,
    /// Tables at consecutive addresses. The medium stores only the address of each 2 MiB.
    Window,
}

/// Valid sizes of a tree's node in bytes: powers of two.
const NODE_BYTES: std::ops::RangeInclusive<u32> = 64..=4096;

impl IndexKind {
    /// Every kind.
    pub const ALL: [Self; 6] = [
        Self::Direct,
        Self::PmfsRadix,
        Self::PageCacheRadix,
        Self::BPlus,
        Self::CsbPlus,
        Self::Window,
    ];

    /// Returns true for a tree of nodes.
    #[must_use]
    pub fn is_tree(self) -> bool {
        !matches!(self, Self::Direct | Self::Window)
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::PmfsRadix => "pmfs-radix",
            Self::PageCacheRadix => "page-cache-radix",
            Self::BPlus => "b+",
            Self::CsbPlus => "csb+",
            Self::Window => "window",
        }
    }

    /// The kind with this name; `None` for an unknown name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The number in a superblock.
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::Direct => 0,
            Self::PmfsRadix => 1,
            Self::PageCacheRadix => 2,
            Self::BPlus => 3,
            Self::CsbPlus => 4,
            Self::Window => 5,
        }
    }

    fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// Limit of inode tables with this geometry.
    pub(crate) fn tables_max(self, geometry: TableGeometry) -> u64 {
        match self {
            Self::Direct => ENTRIES_MAX,
            Self::Window => window::tables_max(geometry),
            _ => TABLES_MAX - 1,
        }
    }

    /// Bytes of a node: the requested number, or the default. 0 for an index without nodes.
    ///
    /// # Errors
    /// The reason against such nodes.
    pub(crate) fn node_bytes(self, asked: Option<u32>) -> Result<u32, String> {
        let best = match self {
            Self::Direct | Self::Window => {
                let none =
                    format!("a {} index has no nodes, so they can have no size", self.name());
                return if asked.is_none() { Ok(0) } else { Err(none) };
            }
            Self::PmfsRadix => pmfs_radix::NODE_BYTES,
            Self::PageCacheRadix => page_cache_radix::NODE_BYTES,
            Self::BPlus => bplus::NODE_BYTES,
            Self::CsbPlus => csb_plus::NODE_BYTES,
        };
        let bytes = asked.unwrap_or(best);
        if !bytes.is_power_of_two() || !NODE_BYTES.contains(&bytes) {
            return Err(format!(
                "nodes of a {} index have a power of two from {} to {} bytes, not {bytes}",
                self.name(),
                NODE_BYTES.start(),
                NODE_BYTES.end()
            ));
        }
        Ok(bytes)
    }

    /// The kind in `superblock`, at `at`, after a check of its settings.
    fn of(superblock: &FsSuperblock, at: PoolOffset) -> Result<Self, Corrupt> {
        let wrong = |what| Corrupt::new("superblock of the file system", at, what);
        let kind = Self::from_code(superblock.index).ok_or_else(|| {
            wrong(format!("index {} is unknown to this program", superblock.index))
        })?;
        let asked = Some(superblock.index_node_bytes).filter(|&bytes| bytes > 0);
        let node_bytes = kind.node_bytes(asked).map_err(wrong)?;
        let tables_max = kind.tables_max(superblock.geometry());
        if node_bytes != superblock.index_node_bytes || superblock.tables_max > tables_max {
            let what = format!("it cannot be that of a {} index", kind.name());
            return Err(wrong(what));
        }
        Ok(kind)
    }
}

/// Opens the index of `superblock`, at `at`.
///
/// # Errors
/// An unknown or damaged index.
pub(crate) fn open<M: Medium>(
    superblock: &FsSuperblock,
    at: PoolOffset,
    reader: Reader<'_, M>,
) -> Result<Box<dyn TableIndex<M>>, Corrupt> {
    Ok(match IndexKind::of(superblock, at)? {
        IndexKind::Direct => Box::new(DirectIndex::open(superblock, at, reader)?),
        IndexKind::PmfsRadix => Box::new(pmfs_radix::new(superblock, at)),
        IndexKind::PageCacheRadix => Box::new(page_cache_radix::new(superblock, at)),
        IndexKind::BPlus => Box::new(SortedIndex(bplus::BPlusIndex::new(superblock, at))),
        IndexKind::CsbPlus => Box::new(SortedIndex(csb_plus::CsbPlusIndex::new(superblock, at))),
        IndexKind::Window => Box::new(WindowIndex::open(superblock, at, reader)?),
    })
}

/// Adjacent blocks for a new file system, for its index or its first table.
pub(crate) fn adjacent_blocks(superblock: &FsSuperblock) -> u64 {
    let table_blocks = superblock.geometry().blocks();
    match IndexKind::from_code(superblock.index) {
        Some(IndexKind::Direct) => entry_runs::run_blocks(superblock.tables_max).max(table_blocks),
        Some(IndexKind::Window) => WINDOW_REGION_BYTES / BLOCK_U64,
        _ => table_blocks,
    }
}

/// Plans the index of a new file system, with its superblock at `at` and a first table. Returns the table's
/// block.
///
/// # Errors
/// `NoSpace`, or an unknown index.
pub(crate) fn plan_create<M: Medium>(
    superblock: &FsSuperblock,
    at: PoolOffset,
    batch: &mut Batch<'_, '_, M>,
) -> Result<BlockNo, FsError> {
    let kind = IndexKind::of(superblock, at)?;
    if kind == IndexKind::Window {
        return WindowIndex::plan_create(superblock, at, batch);
    }
    let table = batch.alloc_run(superblock.geometry().blocks()).ok_or(FsError::NoSpace)?;
    let first = table.start;
    match kind {
        IndexKind::Direct => EntryRuns::plan_create(superblock.tables_max, at, batch, first)?,
        IndexKind::PmfsRadix => pmfs_radix::new(superblock, at).plan_create(batch, first)?,
        IndexKind::PageCacheRadix => {
            page_cache_radix::new(superblock, at).plan_create(batch, first)?;
        }
        IndexKind::BPlus => bplus::BPlusIndex::new(superblock, at).plan_create(batch, first)?,
        IndexKind::CsbPlus => {
            csb_plus::CsbPlusIndex::new(superblock, at).plan_create(batch, first)?;
        }
        IndexKind::Window => unreachable!("it says itself where its tables lie"),
    }
    Ok(first)
}

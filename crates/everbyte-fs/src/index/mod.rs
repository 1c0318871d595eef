//! Indexes over inode tables: from the number of a table to where it lies.
//!
//! Owns the trait and which indexes there are. Each has a file of its own. Tables are numbered from 0
//! on without gaps, and are never removed.
//!
//! Source: the study of index structures for file systems on storage-class memory; the direct table is
//! the one that did best there.

mod direct;

use everbyte_media::{BlockNo, Medium, PoolOffset};
use everbyte_pool::{Batch, Claim, Corrupt};

pub(crate) use direct::DirectIndex;

use crate::error::FsError;
use crate::format::Superblock;
use crate::reader::Reader;

/// An index that is open.
pub(crate) trait TableIndex<M: Medium>: Send + Sync {
    /// The address of table number `table`, if there is such a one.
    ///
    /// # Errors
    /// The first structure on the way that cannot be right.
    fn find(&self, reader: Reader<'_, M>, table: u64) -> Result<Option<PoolOffset>, Corrupt>;

    /// Plans that table number `table`, the next one, lies at `block`. The caller keeps others from
    /// doing the same.
    ///
    /// # Errors
    /// `NoSpace`, `NoInodes`, or a structure that cannot be right.
    fn plan_insert(
        &self,
        batch: &mut Batch<'_, '_, M>,
        table: u64,
        block: BlockNo,
    ) -> Result<(), FsError>;

    /// Claims what the index owns, the tables not.
    ///
    /// # Errors
    /// The first structure that cannot be right, or `claim`'s.
    fn visit(&self, reader: Reader<'_, M>, claim: &mut Claim<'_>) -> Result<(), Corrupt>;
}

/// The kinds of indexes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IndexKind {
    /// A table with a word for every inode table that there can be.
    #[default]
    Direct,
}

impl IndexKind {
    /// The number in a superblock.
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::Direct => 0,
        }
    }
}

/// Opens the index that `superblock`, at `at`, says.
///
/// # Errors
/// There is no such index, or it cannot be right.
pub(crate) fn open<M: Medium>(
    superblock: &Superblock,
    at: PoolOffset,
    reader: Reader<'_, M>,
) -> Result<Box<dyn TableIndex<M>>, Corrupt> {
    match superblock.index {
        0 => Ok(Box::new(DirectIndex::open(superblock, at, reader)?)),
        other => {
            let what = format!("index {other} is unknown to this program");
            Err(Corrupt::new("superblock of the file system", at, what))
        }
    }
}

/// Plans the index of a new file system, whose superblock is at `at` and whose first table at `first`.
///
/// # Errors
/// `NoSpace`.
pub(crate) fn plan_create<M: Medium>(
    superblock: &Superblock,
    at: PoolOffset,
    batch: &mut Batch<'_, '_, M>,
    first: BlockNo,
) -> Result<(), FsError> {
    DirectIndex::plan_create(superblock, at, batch, first)
}

//! The first entries of a map may stand next to its root word: small extents then need no node.
//!
//! Invariant: blocks with an entry here have none below the root word.

use std::ops::Range;

use everbyte_media::{Medium, PoolOffset};
use everbyte_pool::{BlockRun, Claim, Corrupt, DataArea, UsedExtent};

use super::{EntryReader, data_use};
use crate::address::LogicalBlock;

/// Entries of a map next to its root word, for the blocks from 0 on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FirstEntries {
    /// Address of the entry of block 0.
    pub at: PoolOffset,
    /// Number of entries, at most 512.
    pub count: u64,
}

impl FirstEntries {
    /// The address of the entry of `block`, if it is one of these.
    #[inline]
    pub(crate) fn entry(self, block: LogicalBlock) -> Option<PoolOffset> {
        (block.0 < self.count).then(|| self.at.plus(8 * block.0))
    }
}

/// Claims the blocks in `first`, in a pool with maps that may name the blocks of `data`.
///
/// # Errors
/// The first invalid word, or the claim's error.
pub fn visit_first_entries<M: Medium>(
    medium: &M,
    first: FirstEntries,
    data: &Range<u64>,
    claim: &mut Claim<'_>,
) -> Result<(), Corrupt> {
    let data = DataArea::new(data.clone());
    let entries = EntryReader::new(medium, &data);
    for block in (0..first.count).map(LogicalBlock) {
        let named_at = first.at.plus(8 * block.0);
        let Some(entry) = entries.load(named_at)? else { continue };
        let run = BlockRun { start: entry.block, len: 1 };
        let holds = data_use(entry, block);
        claim(UsedExtent { run, named_at, holds })?;
    }
    Ok(())
}

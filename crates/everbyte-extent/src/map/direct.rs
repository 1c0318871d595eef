//! The direct table: one entry for every block of the volume, in adjacent blocks.
//!
//! Invariants: the root word names the first block of the table; the table's length follows from
//! the volume's size; entries beyond the size are holes.

use everbyte_media::{BLOCK, BLOCK_U64, BlockNo, Medium};
use everbyte_pool::{Batch, BlockRun, BlockUse, Claim, Corrupt, Part, UsedExtent, check_readable};

use super::{ENTRIES, EntryReader, MapView, data_use, slot_at};
use crate::address::LogicalBlock;

/// Blocks of the table for an extent of `size_bytes`.
#[must_use]
pub fn table_blocks(size_bytes: u64) -> u64 {
    size_bytes.div_ceil(BLOCK_U64).div_ceil(ENTRIES)
}

/// Streams `blocks` blocks of the old table, then zeroes, into the `new` run.
///
/// # Errors
/// The old table cannot be read; the new one is of no use then.
pub(crate) fn copy_table<M: Medium>(
    batch: &mut Batch<'_, '_, M>,
    old: BlockRun,
    new: BlockRun,
) -> Result<(), Corrupt> {
    let medium = batch.volume().medium();
    let mut buffer = vec![0; BLOCK];
    for index in 0..new.len {
        if index < old.len {
            medium.read(BlockNo(old.start.0 + index).offset(), &mut buffer);
        } else {
            buffer.fill(0);
        }
        batch.stream(BlockNo(new.start.0 + index).offset(), &buffer);
    }
    check_readable(medium, "map table", old.start.offset(), old.len * BLOCK_U64)
}

/// The table, which lies in the pool's data as a whole.
///
/// # Errors
/// There is none, or it does not fit.
pub(super) fn table<M: Medium>(
    entries: &EntryReader<'_, M>,
    view: &MapView,
) -> Result<BlockRun, Corrupt> {
    let Some(root) = entries.load(view.root_at)? else {
        return Err(Corrupt::new("volume root", view.root_at, "a direct map has no table"));
    };
    let table = BlockRun { start: root.block, len: table_blocks(view.size_bytes) };
    if table.start.0 + table.len > view.data.end {
        return Err(Corrupt::new("volume root", view.root_at, "the table leaves the pool's data"));
    }
    Ok(table)
}

pub(super) fn visit<M: Medium>(
    entries: &EntryReader<'_, M>,
    view: &MapView,
    claim: &mut Claim<'_>,
) -> Result<(), Corrupt> {
    let table = table(entries, view)?;
    claim(UsedExtent { part: Part::Blocks(table), named_at: view.root_at, holds: BlockUse::Map })?;
    let blocks = view.size_bytes.div_ceil(BLOCK_U64);
    for index in 0..table.len * ENTRIES {
        let at = slot_at(table.start, index);
        if let Some(entry) = entries.load(at)? {
            if index >= blocks {
                // Growing the volume would bring it to light.
                return Err(Corrupt::new("map entry", at, "it lies beyond the volume's end"));
            }
            let run = BlockRun { start: entry.block, len: 1 };
            claim(UsedExtent {
                part: Part::Blocks(run),
                named_at: at,
                holds: data_use(entry, LogicalBlock(index)),
            })?;
        }
    }
    Ok(())
}

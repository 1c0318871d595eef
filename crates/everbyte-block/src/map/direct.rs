//! The direct table: one entry for every block of the volume, in adjacent blocks.
//!
//! Invariants: the root word names the first block of the table; the table's length follows from
//! the volume's size; entries beyond the size are holes.

use everbyte_media::{BLOCK, BLOCK_U64, BlockNo, Medium};
use everbyte_pool::{BlockRun, Claim, Corrupt, VolumeView, Writer};

use super::{ENTRIES, in_bounds, load_entry, slot_at};

/// Blocks of the table for a volume of `size_bytes`.
pub(crate) fn table_blocks(size_bytes: u64) -> u64 {
    size_bytes.div_ceil(BLOCK_U64).div_ceil(ENTRIES)
}

/// Streams `blocks` blocks of the old table, then zeroes, into the `new` run.
pub(crate) fn copy_table<M: Medium>(
    medium: &M,
    writer: &mut Writer<'_, M>,
    old: BlockRun,
    new: BlockRun,
) {
    let mut buffer = vec![0; BLOCK];
    for index in 0..new.len {
        if index < old.len {
            medium.read(BlockNo(old.start.0 + index).offset(), &mut buffer);
        } else {
            buffer.fill(0);
        }
        writer.fill(BlockNo(new.start.0 + index).offset(), &buffer);
    }
}

pub(super) fn visit<M: Medium>(
    medium: &M,
    view: &VolumeView<'_>,
    claim: &mut Claim<'_>,
) -> Result<(), Corrupt> {
    let blocks = view.size_bytes.div_ceil(BLOCK_U64);
    let Some(root) = load_entry(medium, view.root_at)? else {
        return Err(Corrupt::new("volume root", view.root_at, "a direct map has no table"));
    };
    let root = in_bounds(view, root, view.root_at)?;
    let table = BlockRun { start: root.block, len: table_blocks(view.size_bytes) };
    if table.start.0 + table.len > view.data_end {
        return Err(Corrupt::new("volume root", view.root_at, "the table leaves the pool's data"));
    }
    claim(table, view.root_at)?;
    for index in 0..blocks {
        let at = slot_at(root.block, index);
        if let Some(entry) = load_entry(medium, at)? {
            let entry = in_bounds(view, entry, at)?;
            claim(BlockRun { start: entry.block, len: 1 }, at)?;
        }
    }
    Ok(())
}

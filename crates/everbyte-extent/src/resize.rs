//! The table of an extent that is resized. Other maps need nothing: they grow by what is written.

use everbyte_media::{BLOCK_U64, BlockNo, Medium};
use everbyte_pool::format::Entry;
use everbyte_pool::{Batch, BlockRun, Corrupt};

use crate::extent::Extent;
use crate::map::{self, ENTRIES, MapKind, table_blocks};

impl<M: Medium> Extent<M> {
    /// Adjacent blocks that a map for `new` bytes needs anew; 0 if the present one will do.
    #[must_use]
    pub fn table_blocks_for(&self, new: u64) -> u64 {
        let needed = table_blocks(new);
        let grows = self.map_kind() == MapKind::Direct && needed > table_blocks(self.size_bytes());
        if grows { needed } else { 0 }
    }

    /// Plans what becomes of the map when the extent has `new` bytes: a copy of its table in
    /// `fresh`, if it needs a larger one, and no entries beyond the end. The caller holds the locks
    /// of all blocks.
    ///
    /// # Errors
    /// The map is corrupt.
    pub fn plan_resize(
        &self,
        batch: &mut Batch<'_, '_, M>,
        new: u64,
        fresh: Option<BlockRun>,
    ) -> Result<(), Corrupt> {
        if self.map_kind() != MapKind::Direct {
            return Ok(());
        }
        let (root_at, old) = (self.root_at(), self.size_bytes());
        let root = self
            .entries()
            .load(root_at)?
            .ok_or_else(|| Corrupt::new("volume root", root_at, "a direct map has no table"))?;
        let table = BlockRun { start: root.block, len: table_blocks(old) };
        if let Some(fresh) = fresh {
            map::copy_table(batch, table, fresh)?;
            batch.change_word_once(root_at, root.encode(), Entry::data(fresh.start).encode());
            blocks_of(table).for_each(|block| batch.give(block));
        }
        if new < old {
            self.plan_shorter_table(batch, table, new)?;
        }
        Ok(())
    }

    /// Plans to free what entries beyond `new` bytes name, and table blocks beyond its table.
    fn plan_shorter_table(
        &self,
        batch: &mut Batch<'_, '_, M>,
        table: BlockRun,
        new: u64,
    ) -> Result<(), Corrupt> {
        let kept_blocks = table_blocks(new);
        for index in new.div_ceil(BLOCK_U64)..self.size_blocks() {
            let at = map::slot_at(table.start, index);
            let Some(entry) = self.entries().load(at)? else { continue };
            batch.give(entry.block);
            if index / ENTRIES < kept_blocks {
                batch.change_word_once(at, entry.encode(), 0);
            }
        }
        let dropped =
            BlockRun { start: BlockNo(table.start.0 + kept_blocks), len: table.len - kept_blocks };
        blocks_of(dropped).for_each(|block| batch.give(block));
        Ok(())
    }
}

fn blocks_of(run: BlockRun) -> impl Iterator<Item = BlockNo> {
    (run.start.0..run.start.0 + run.len).map(BlockNo)
}

//! Resizing while the volume is in use.
//!
//! Invariants: the size word is the truth; beyond it nothing is mapped that a reader could see
//! again after a later growth. Growing clears what lies beyond the old end before the size
//! changes; shrinking changes the size durably before it unmaps. A crash in between is mended by
//! `trim_tail` when the volume is opened.

use everbyte_media::{BLOCK_U64, BlockNo, Medium};
use everbyte_pool::format::{Entry, encode_word};
use everbyte_pool::{BlockRun, Corrupt, PoolError, WriteError};

use crate::map::{self, MapKind};
use crate::plan::{Approach, Fate, Plan};
use crate::volume::BlockVolume;

impl<M: Medium> BlockVolume<M> {
    /// Makes the volume `size_bytes` large, a positive multiple of 512. Durable when it returns.
    /// Bytes beyond a smaller size are lost; bytes gained read as zeroes.
    ///
    /// # Errors
    /// The size is impossible, the volume read-only, the pool too full for a larger direct table,
    /// or the medium's.
    pub fn resize(&self, size_bytes: u64) -> Result<(), PoolError> {
        self.pool().check_volume_size(size_bytes)?;
        if self.is_read_only() {
            let reason = self.volume().read_only_reason().unwrap_or("it was opened so");
            return Err(WriteError::ReadOnly { reason: reason.to_owned() }.into());
        }
        let _gate = self.volume().enter();
        let _blocks = self.locks.write_all();
        let old = self.size_bytes();
        if size_bytes == old {
            return Ok(());
        }
        if size_bytes > old {
            self.trim_tail()?;
        }
        let fresh = self.new_table(old, size_bytes)?;
        // A direct map may lie elsewhere then.
        self.leaves.forget_all();
        let changed = self.change_size(old, size_bytes, fresh);
        if let (Err(_), Some(table)) = (&changed, fresh) {
            self.pool().return_run(table);
        }
        let epoch = changed?;
        self.set_size_bytes(size_bytes);
        self.volume().complete(epoch)?;
        if size_bytes < old {
            self.trim_tail()?;
        }
        Ok(())
    }

    /// A larger table, if the volume needs one.
    fn new_table(&self, old: u64, new: u64) -> Result<Option<BlockRun>, PoolError> {
        let needed = map::table_blocks(new);
        if self.map_kind() == MapKind::Radix || needed <= map::table_blocks(old) {
            return Ok(None);
        }
        self.pool().take_run("the volume's larger map", needed).map(Some)
    }

    /// Changes size and table in one commit; returns its epoch. If it fails, nothing names the `fresh`
    /// table, and nothing is on its way there.
    fn change_size(&self, old: u64, new: u64, fresh: Option<BlockRun>) -> Result<u64, PoolError> {
        loop {
            let mut writer = self.volume().join()?;
            let mut plan = Plan::new(Approach::AT_ONCE);
            if self.map_kind() == MapKind::Direct {
                let root_at = self.volume().root_at();
                let root = map::load_entry(self.medium(), root_at)?.ok_or_else(|| {
                    Corrupt::new("volume root", root_at, "a direct map has no table")
                })?;
                let table = BlockRun { start: root.block, len: map::table_blocks(old) };
                if let Some(fresh) = fresh {
                    if let Err(corrupt) = map::copy_table(self.medium(), &mut writer, table, fresh)
                    {
                        plan.abandon(&mut writer);
                        return Err(corrupt.into());
                    }
                    let (from, to) = (root.encode(), Entry::data(fresh.start).encode());
                    plan.change_word(&writer, root_at, from, to);
                    blocks_of(table).for_each(|block| plan.retire(block));
                }
                if new < old {
                    self.plan_shorter_table(&mut plan, &writer, table, old, new)?;
                }
            }
            let size_at = self.volume().size_at();
            let now = self.medium().load_word(size_at);
            plan.change_word(&writer, size_at, now, encode_word(new / 512));
            // At most one block of words is logged, which any log has room for.
            match plan.carry_out(self, writer)? {
                Fate::Done(epoch) => return Ok(epoch),
                Fate::LogFull | Fate::TooLarge => self.volume().make_room()?,
            }
        }
    }

    /// Plans to give up what entries beyond `new` bytes name, and table blocks beyond its table.
    fn plan_shorter_table(
        &self,
        plan: &mut Plan<'_, '_>,
        writer: &everbyte_pool::Writer<'_, M>,
        table: BlockRun,
        old: u64,
        new: u64,
    ) -> Result<(), Corrupt> {
        let kept_blocks = map::table_blocks(new);
        for index in new.div_ceil(BLOCK_U64)..old.div_ceil(BLOCK_U64) {
            let at = map::slot_at(table.start, index);
            let Some(entry) = map::load_entry(self.medium(), at)? else { continue };
            plan.retire(entry.block);
            if index / map::ENTRIES < kept_blocks {
                plan.change_word(writer, at, entry.encode(), 0);
            }
        }
        let dropped =
            BlockRun { start: BlockNo(table.start.0 + kept_blocks), len: table.len - kept_blocks };
        blocks_of(dropped).for_each(|block| plan.retire(block));
        Ok(())
    }
}

fn blocks_of(run: BlockRun) -> impl Iterator<Item = BlockNo> {
    (run.start.0..run.start.0 + run.len).map(BlockNo)
}

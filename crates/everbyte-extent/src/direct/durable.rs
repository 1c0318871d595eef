//! The durable direct path: a write of several whole blocks that is durable without a checkpoint.
//!
//! The path fences the streamed blocks, and then a redo record of all new entries. A crash leaves all blocks old
//! or all new, if undo cannot touch an entry: the conditions of the FUA fast path hold for each. The proof is in
//! `docs/crash-model.md`.

use everbyte_media::{Medium, PoolOffset};
use everbyte_pool::format::{Entry, WordItem};
use everbyte_pool::{WriteError, Writer};
use smallvec::SmallVec;

use super::{Target, Targets, cancel, stream};
use crate::address::DeviceOffset;
use crate::extent::Extent;
use crate::fua::FuaOutcome;

impl<M: Medium> Extent<M> {
    /// Writes `data`, several whole blocks, at `offset` durably if this needs no checkpoint. The caller is in
    /// the volume's quiesce lock and holds the locks of the blocks.
    ///
    /// # Errors
    /// Nothing was written, unless the medium failed: then the bytes may be written.
    pub fn write_blocks_durably(
        &self,
        offset: DeviceOffset,
        data: &[u8],
    ) -> Result<FuaOutcome, WriteError> {
        let mut targets = Targets::new();
        if !self.find_targets(offset, data, &mut targets) || !self.may_redo(&targets) {
            return Ok(FuaOutcome::NotAllowed);
        }
        let mut writer = self.volume().join()?;
        if !self.admit(&mut writer, &mut targets) || !redo_entries(&mut writer, &targets, data)? {
            return Ok(FuaOutcome::NotAllowed);
        }
        self.volume().count_write();
        // A store to memory that has just failed is lost. Only the medium knows it.
        self.medium().check()?;
        Ok(FuaOutcome::Durable)
    }

    /// Returns true if undo of no open epoch can touch an entry, its node, or the block it names.
    fn may_redo(&self, targets: &[Target]) -> bool {
        let volume = self.volume();
        for old in targets.iter().filter_map(|target| target.old) {
            volume.prefetch_store(old.offset(), 0);
        }
        targets.iter().all(|target| volume.fua_fast_path_allowed(target.entry_at, target.old))
    }
}

/// Streams the bytes of `targets`, makes the redo record of the new entries durable, and stores the entries.
/// Returns false and frees the new blocks if the medium got a poisoned range.
fn redo_entries<M: Medium>(
    writer: &mut Writer<'_, M>,
    targets: &[Target],
    data: &[u8],
) -> Result<bool, WriteError> {
    stream(writer, targets, data, false);
    // The first fence: recovery follows a whole record, so the named blocks must be durable before it.
    writer.commit()?;
    if writer.volume().medium().has_poison() {
        cancel(writer, targets);
        return Ok(false);
    }
    let words = |target: &Target| (target.entry_at, Entry::data(target.to).encode());
    let items: SmallVec<[WordItem; 32]> = targets
        .iter()
        .map(words)
        .map(|(PoolOffset(target), new)| WordItem { target, old: new })
        .collect();
    writer.log_redo_words(&items);
    // The second fence: the write is durable. Before it, a crash could leave a part of the entries.
    let mut committed = writer.commit()?;
    for target in targets {
        // Before the entry names it: undo does not free this block, so later writes must log it.
        committed.mark_reachable(target.to);
        let (at, new) = words(target);
        committed.store_redone_word(at, new);
        // An earlier redo record may name the old block, so it waits for the checkpoint.
        if let Some(old) = target.old {
            committed.defer_free(old);
        }
    }
    Ok(true)
}

//! The short path: a write of one block, or of a part of one, without a plan.
//!
//! For what is common: the entry is known without a walk of the map; the block is a hole or holds
//! data that has no checksum; log and pool have room. All else is the
//! planner's, and is noticed before anything is done. What is decided, recorded and stored, and in
//! which order, is what the planner and a batch would do, so recovery knows no difference.

use everbyte_media::{BLOCK, BlockNo, LineMask, Medium, PoolOffset};
use everbyte_pool::format::{Entry, WordItem};
use everbyte_pool::{WriteError, Writer};

use crate::address::{BlockPiece, BlockRange, DeviceOffset, LogicalBlock};
use crate::extent::Extent;

/// Outcome of an attempt at the short path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShortOutcome {
    /// The bytes are written, in the epoch.
    Done,
    /// The path is not for this write, and nothing was done: plan it.
    NotForIt,
}

/// The entry of a block that is written.
#[derive(Clone, Copy)]
struct Target {
    entry_at: PoolOffset,
    /// The word of the entry.
    word: u64,
    /// The block that it names, which holds data.
    block: Option<BlockNo>,
}

impl<M: Medium> Extent<M> {
    /// Fetches what a write of `block` will look at first. The caller needs no lock yet, and so does not
    /// wait for it after those that it will take.
    pub fn prefetch_write(&self, block: LogicalBlock) {
        if let Some(entry_at) = self.known_entry(block) {
            self.volume().prefetch_store(entry_at, 8);
        }
    }

    /// Writes `data`, which lies in one block, at `offset` in the current epoch, if the short path
    /// is for it. The caller is in the volume's quiesce lock, and holds the lock of the block.
    ///
    /// # Errors
    /// The medium's: nothing was written, or what was will never be durable.
    pub fn write_short(
        &self,
        offset: DeviceOffset,
        data: &[u8],
    ) -> Result<ShortOutcome, WriteError> {
        debug_assert!(BlockRange::of_bytes(offset, data.len() as u64).count <= 1);
        if data.is_empty() || !self.has_short_path() {
            return Ok(ShortOutcome::NotForIt);
        }
        let piece = BlockPiece { block: offset.block(), start: offset.in_block(), data };
        // Unknown beside media errors.
        let Some(entry_at) = self.known_entry(piece.block) else {
            return Ok(ShortOutcome::NotForIt);
        };
        let compares = self.compares();
        let is_done = if data.len() == BLOCK && !compares && self.threshold().replaces_whole() {
            self.write_whole(entry_at, piece)?
        } else {
            self.write_part(entry_at, piece, compares)?
        };
        if !is_done {
            return Ok(ShortOutcome::NotForIt);
        }
        self.medium().check()?;
        Ok(ShortOutcome::Done)
    }

    /// Returns true if the short path may be for writes of one block.
    #[inline]
    #[must_use]
    pub fn has_short_path(&self) -> bool {
        !self.has_checksums()
    }

    /// The target that the entry at `entry_at` names, if the path is for such.
    fn short_target(&self, entry_at: PoolOffset) -> Option<Target> {
        let word = self.medium().load_word(entry_at);
        let entry = self.entries().decode(word, entry_at).ok()?;
        let is_data = entry.is_none_or(|entry| !entry.flags.zero);
        is_data.then(|| Target { entry_at, word, block: entry.map(|entry| entry.block) })
    }

    /// Writes a whole block, to another one. The bytes are on their way while the entry is looked
    /// at and recorded.
    fn write_whole(&self, entry_at: PoolOffset, piece: BlockPiece<'_>) -> Result<bool, WriteError> {
        let mut writer = self.volume().join()?;
        let Some(to) = alloc_to_name(&mut writer) else { return Ok(false) };
        writer.fill(to.offset(), piece.data);
        match self.short_target(entry_at) {
            Some(target) => {
                if let Some(old) = target.block {
                    self.volume().prefetch_free(old);
                }
                name_instead(&mut writer, target, to)
            }
            None => abandon(&mut writer, to),
        }
    }

    /// Writes a part of a block, or all of one that is compared: what differs in place, or everything to
    /// another one. If nothing differs there is nothing to do: what the bytes were written by is in this
    /// epoch or an earlier one, so whatever makes later writes durable makes these so.
    fn write_part(
        &self,
        entry_at: PoolOffset,
        piece: BlockPiece<'_>,
        compares: bool,
    ) -> Result<bool, WriteError> {
        let Some(target) = self.short_target(entry_at) else { return Ok(false) };
        let Some(block) = target.block else {
            return replace(&mut self.volume().join()?, target, piece);
        };
        let at = block.offset().plus(piece.start as u64);
        self.volume().prefetch_store(at, piece.data.len());
        // Compared before it joins the epoch: the caller's lock keeps the bytes as they are, and a checkpoint in
        // between changes none. What depends on the epoch is asked after that.
        let changed = if compares {
            let changed = self.delta().changed(self.medium(), block, piece.start, piece.data);
            if self.medium().has_poison() {
                // Perhaps zeroes stood for what was compared.
                return Ok(false);
            }
            changed
        } else {
            piece.lines()
        };
        if changed.is_empty() {
            return Ok(true);
        }
        let mut writer = self.volume().join()?;
        if self.volume().is_pinned(block) {
            return replace(&mut writer, target, piece);
        }
        if writer.is_fresh(block) {
            if piece.data.len() == BLOCK && changed == LineMask::FULL {
                writer.fill(at, piece.data);
                writer.commit()?;
                return Ok(true);
            }
        } else {
            let logged = writer.logged(block);
            if self.threshold().replaces_in(writer.epoch(), changed, logged) {
                return replace(&mut writer, target, piece);
            }
            let to_log = changed.without(logged);
            if !to_log.is_empty()
                && (Writer::<M>::lines_bytes(to_log) > writer.room_bytes()
                    || writer.log_lines(block, to_log).is_err())
            {
                return Ok(false);
            }
        }
        store_changed(&mut writer, block, piece, changed)?;
        Ok(true)
    }
}

/// Fences, and stores what of `piece` lies in the lines `changed` of `block`, which are logged or fresh.
fn store_changed<M: Medium>(
    writer: &mut Writer<'_, M>,
    block: BlockNo,
    piece: BlockPiece<'_>,
    changed: LineMask,
) -> Result<(), WriteError> {
    let mut committed = writer.commit()?;
    if changed == piece.lines() {
        committed.store(block.offset().plus(piece.start as u64), piece.data);
        return Ok(());
    }
    for (at, data) in piece.parts_in(block, changed) {
        committed.store(at, data);
    }
    Ok(())
}

/// Fills a new block with `piece` over what the old one holds, or zeroes, and names it instead.
fn replace<M: Medium>(
    writer: &mut Writer<'_, M>,
    target: Target,
    piece: BlockPiece<'_>,
) -> Result<bool, WriteError> {
    let Some(to) = alloc_to_name(writer) else { return Ok(false) };
    writer.fill_block(to, target.block, piece.start, piece.data);
    if writer.volume().medium().has_poison() {
        // Perhaps the bytes around the piece could not be read.
        return abandon(writer, to);
    }
    name_instead(writer, target, to)
}

/// A new block, if there is one, and room for the record that naming it takes.
fn alloc_to_name<M: Medium>(writer: &mut Writer<'_, M>) -> Option<BlockNo> {
    if Writer::<M>::words_bytes(1) > writer.room_bytes() { None } else { writer.alloc() }
}

/// Records the entry, fences, and makes the entry name `to`. False if the entry has turned out to be bad: `to`
/// is given back then.
fn name_instead<M: Medium>(
    writer: &mut Writer<'_, M>,
    target: Target,
    to: BlockNo,
) -> Result<bool, WriteError> {
    let item = WordItem { target: target.entry_at.0, old: target.word };
    if !writer.word_is_covered(target.entry_at) && writer.log_words(&[item]).is_err() {
        return abandon(writer, to);
    }
    let mut committed = writer.commit()?;
    committed.store_word(target.entry_at, Entry::data(to).encode());
    if let Some(old) = target.block {
        committed.defer_free(old);
    }
    Ok(true)
}

/// Gives `to` back. What was streamed there must be fenced before the block is anyone's.
fn abandon<M: Medium>(writer: &mut Writer<'_, M>, to: BlockNo) -> Result<bool, WriteError> {
    writer.commit()?;
    writer.unalloc(to);
    Ok(false)
}

//! The short path: a write of one block, or of a part of one, without a plan.
//!
//! For what is common: the entry is known without a walk of the map; the block is a hole or holds
//! data that is not compared and has no checksum; log and pool have room. All else is the
//! planner's, and is noticed before anything is done. What is decided, recorded and stored, and in
//! which order, is what the planner and a batch would do, so recovery knows no difference.

use everbyte_media::{BLOCK, BlockNo, Medium, PoolOffset};
use everbyte_pool::format::{Entry, WordItem};
use everbyte_pool::{WriteError, Writer};

use crate::address::{BlockPiece, BlockRange, DeviceOffset, LogicalBlock, pieces};
use crate::extent::Extent;

/// Longest write that is compared before it joins an epoch. Of longer ones the comparison is most of
/// what they take, so those that do change something would pay for it twice.
const HELD_BYTES_MAX: usize = 512;

/// The end of an attempt at the short path.
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
        let Some(piece) = pieces(offset, data).next() else { return Ok(ShortOutcome::NotForIt) };
        let Some(entry_at) = self.short_entry(piece) else { return Ok(ShortOutcome::NotForIt) };
        let is_done = match piece.data.len() {
            BLOCK => self.write_whole(entry_at, piece)?,
            _ => self.write_part(entry_at, piece)?,
        };
        if !is_done {
            return Ok(ShortOutcome::NotForIt);
        }
        self.medium().check()?;
        Ok(ShortOutcome::Done)
    }

    /// Returns true if the short path may be for the next write, if that has `len` bytes of one
    /// block.
    #[must_use]
    pub fn has_short_path(&self, len: usize) -> bool {
        !self.has_checksums()
            && (len < BLOCK || self.threshold().replaces_whole())
            && !self.will_compare()
    }

    /// Returns true if a short write is to be compared and the volume holds its bytes already. Then
    /// nothing is left to do: what they were written by is in this epoch or an earlier one, so
    /// whatever makes later writes durable makes these so. Otherwise nothing was done or counted.
    ///
    /// The caller is in the volume's quiesce lock, and holds the locks of the blocks.
    #[must_use]
    pub fn holds(&self, offset: DeviceOffset, data: &[u8]) -> bool {
        if data.len() > HELD_BYTES_MAX || self.has_checksums() || !self.will_compare() {
            return false;
        }
        let mut found = pieces(offset, data);
        let (Some(piece), None) = (found.next(), found.next()) else { return false };
        let Some(entry_at) = self.known_entry(piece.block) else { return false };
        let Some(block) = self.short_target(entry_at).and_then(|target| target.block) else {
            return false;
        };
        let (medium, delta) = (self.medium(), self.delta());
        let is_held = medium.changed_lines(block, piece.start, piece.data).is_empty()
            && !medium.has_poison()
            && medium.check().is_ok();
        if is_held {
            self.compares();
            delta.learn_unchanged(piece.lines());
        }
        is_held
    }

    /// The address of the entry for `piece`, if the path may be for it.
    fn short_entry(&self, piece: BlockPiece<'_>) -> Option<PoolOffset> {
        // Unknown beside media errors.
        let known = self.known_entry(piece.block);
        let entry_at = known.filter(|_| self.has_short_path(piece.data.len()))?;
        self.compares();
        Some(entry_at)
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
                name_instead(&mut writer, target, to)?;
                Ok(true)
            }
            None => abandon(&mut writer, to),
        }
    }

    /// Writes a part of a block: in place, or to another one.
    fn write_part(&self, entry_at: PoolOffset, piece: BlockPiece<'_>) -> Result<bool, WriteError> {
        let Some(target) = self.short_target(entry_at) else { return Ok(false) };
        let Some(block) = target.block else {
            return replace(&mut self.volume().join()?, target, piece);
        };
        let (at, lines) = (block.offset().plus(piece.start as u64), piece.lines());
        self.volume().prefetch_store(at, piece.data.len());
        let mut writer = self.volume().join()?;
        if self.volume().is_pinned(block) {
            return replace(&mut writer, target, piece);
        }
        if !writer.is_fresh(block) {
            let logged = writer.logged(block);
            if self.threshold().replaces_in(writer.epoch(), lines, logged) {
                return replace(&mut writer, target, piece);
            }
            let to_log = lines.without(logged);
            if Writer::<M>::lines_bytes(to_log) > writer.room_bytes()
                || writer.log_lines(block, to_log).is_err()
            {
                return Ok(false);
            }
        }
        writer.commit()?.store(at, piece.data);
        Ok(true)
    }
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
    name_instead(writer, target, to)?;
    Ok(true)
}

/// A new block, if there is one, and room for the record that naming it takes.
fn alloc_to_name<M: Medium>(writer: &mut Writer<'_, M>) -> Option<BlockNo> {
    if Writer::<M>::words_bytes(1) > writer.room_bytes() { None } else { writer.alloc() }
}

/// Records the entry, fences, and makes the entry name `to`.
fn name_instead<M: Medium>(
    writer: &mut Writer<'_, M>,
    target: Target,
    to: BlockNo,
) -> Result<(), WriteError> {
    if !writer.word_is_covered(target.entry_at) {
        writer.log_words(&[WordItem { target: target.entry_at.0, old: target.word }]);
    }
    let mut committed = writer.commit()?;
    committed.store_word(target.entry_at, Entry::data(to).encode());
    if let Some(old) = target.block {
        committed.defer_free(old);
    }
    Ok(())
}

/// Gives `to` back. What was streamed there must be fenced before the block is anyone's.
fn abandon<M: Medium>(writer: &mut Writer<'_, M>, to: BlockNo) -> Result<bool, WriteError> {
    writer.commit()?;
    writer.unalloc(to);
    Ok(false)
}

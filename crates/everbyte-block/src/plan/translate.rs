//! What becomes of each piece of a request, by what its block is now.
//!
//! Invariants: as in the module above; nothing is stored here but by streams into new blocks.

use everbyte_media::{BLOCK, BlockNo, LineMask, Medium, PoolOffset};
use everbyte_pool::Writer;
use everbyte_pool::format::Entry;
use everbyte_pool::plant::{Bug, planted};

use super::piece::{BlockPiece, pieces};
use super::{
    Fill, PlacedStore, Plan, PlanError, RETIRED_WORTH, Translation, WhenFull, WordChange, ZEROES,
};
use crate::checksum;
use crate::map::{self, Path};
use crate::volume::BlockVolume;

/// What the slot of a block's checksum is to those who undo.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SlotUse {
    /// Nothing: undo leaves nobody who would read it.
    Meaningless,
    /// A word to be put back with the block's bytes.
    Undone,
}

impl<'v, 'd> Plan<'v, 'd> {
    /// Plans a whole request, or nothing of it.
    pub(crate) fn add_request<M: Medium>(
        &mut self,
        volume: &'v BlockVolume<M>,
        writer: &mut Writer<'_, M>,
        offset: u64,
        data: &'d [u8],
    ) -> Result<(), PlanError> {
        let mark = self.mark();
        for piece in pieces(offset, data) {
            if let Err(error) = self.add_piece(volume, writer, piece) {
                self.reset(mark, writer);
                return Err(error);
            }
        }
        Ok(())
    }

    fn add_piece<M: Medium>(
        &mut self,
        volume: &'v BlockVolume<M>,
        writer: &mut Writer<'_, M>,
        piece: BlockPiece<'d>,
    ) -> Result<(), PlanError> {
        let compare = volume.delta().compares();
        let replaces = !compare && piece.data.len() == BLOCK && volume.threshold().replaces_whole();
        if replaces
            && !self.expects
            && let Some(to) = self.alloc_data(volume, writer)?
        {
            return self.add_replacement(volume, writer, piece, to);
        }
        let entry_at = self.entry_for_write(volume, writer, piece.block)?;
        let word = volume.medium().load_word(entry_at);
        match map::decode(volume.medium(), word, entry_at)? {
            None => {
                let to = self.alloc_data(volume, writer)?.ok_or(PlanError::NoSpace)?;
                self.add_fill(volume, writer, Fill { to, around: None, piece })?;
                self.change_word(writer, entry_at, word, Entry::data(to).encode());
            }
            Some(entry) if entry.flags.zero => {
                self.add_over_zero(volume, writer, piece, (entry_at, word), entry.block)?;
            }
            Some(entry)
                if replaces
                    && self.add_whole(volume, writer, piece, (entry_at, word), entry.block)? => {}
            Some(entry) => {
                self.add_over_data(volume, writer, piece, compare, (entry_at, word), entry.block)?;
            }
        }
        Ok(())
    }

    /// A write of all of `block`, if it is done without looking at what the block holds: over a fresh
    /// one, which needs no record and no other block, or to a new one. Says whether it is.
    fn add_whole<M: Medium>(
        &mut self,
        volume: &'v BlockVolume<M>,
        writer: &mut Writer<'_, M>,
        piece: BlockPiece<'d>,
        (entry_at, old): (PoolOffset, u64),
        block: BlockNo,
    ) -> Result<bool, PlanError> {
        if volume.is_bad(block) {
            return Ok(false);
        }
        let is_older = || planted(Bug::OlderBlocksRefilled) && !volume.volume().is_settled(block);
        if writer.is_fresh(block) || is_older() {
            self.add_fill(volume, writer, Fill { to: block, around: Some(block), piece })?;
            return Ok(true);
        }
        let Some(to) = self.alloc_data(volume, writer)? else { return Ok(false) };
        self.send_whole(volume, writer, piece, to)?;
        self.change_word(writer, entry_at, old, Entry::data(to).encode());
        self.retire(block);
        Ok(true)
    }

    /// A write of a whole block, to `to`, whatever lies there now. The bytes are sent on their
    /// way first, so that finding the entry and logging it costs no time of its own.
    fn add_replacement<M: Medium>(
        &mut self,
        volume: &'v BlockVolume<M>,
        writer: &mut Writer<'_, M>,
        piece: BlockPiece<'d>,
        to: BlockNo,
    ) -> Result<(), PlanError> {
        self.send_whole(volume, writer, piece, to)?;
        let entry_at = self.entry_for_write(volume, writer, piece.block)?;
        let word = volume.medium().load_word(entry_at);
        if let Some(old) = map::decode(volume.medium(), word, entry_at)? {
            volume.volume().expect_retire(old.block);
            self.retire(old.block);
        }
        self.change_word(writer, entry_at, word, Entry::data(to).encode());
        Ok(())
    }

    /// Sends a whole block to `to`, which is new, while the rest is planned.
    fn send_whole<M: Medium>(
        &mut self,
        volume: &'v BlockVolume<M>,
        writer: &mut Writer<'_, M>,
        piece: BlockPiece<'d>,
        to: BlockNo,
    ) -> Result<(), PlanError> {
        writer.fill(to.offset(), piece.data);
        self.add_sum(volume, writer, Fill { to, around: None, piece }, SlotUse::Meaningless)
    }

    /// A write over a block that is reserved and reads as zeroes. Its contents mean nothing, and
    /// can be overwritten unlogged, unless undoing an open epoch would make them mean something
    /// again.
    fn add_over_zero<M: Medium>(
        &mut self,
        volume: &'v BlockVolume<M>,
        writer: &mut Writer<'_, M>,
        piece: BlockPiece<'d>,
        (entry_at, old): (PoolOffset, u64),
        block: BlockNo,
    ) -> Result<(), PlanError> {
        let meaningless = writer.is_fresh(block) || !volume.volume().word_logged_in_open(entry_at);
        let to = match meaningless && !volume.is_bad(block) {
            true => Some(block),
            false => self.alloc_data(volume, writer)?,
        };
        if let Some(to) = to {
            self.add_fill(volume, writer, Fill { to, around: None, piece })?;
            self.change_word(writer, entry_at, old, Entry::data(to).encode());
            if to != block {
                self.retire(block);
            }
            return Ok(());
        }
        let unlogged = LineMask::FULL.without(writer.logged(block));
        if !unlogged.is_empty() {
            self.logged_lines.push((block, unlogged));
        }
        self.store_over_zeroes(piece, block);
        self.change_word(writer, entry_at, old, Entry::data(block).encode());
        self.add_sum(volume, writer, Fill { to: block, around: None, piece }, SlotUse::Undone)
    }

    /// Stores zeroes and the piece over all of `block`, after the commit.
    fn store_over_zeroes(&mut self, piece: BlockPiece<'d>, block: BlockNo) {
        let end = piece.start + piece.data.len();
        let at = block.offset();
        self.stores.push(PlacedStore { at, data: &ZEROES[..piece.start] });
        self.stores.push(PlacedStore { at: at.plus(piece.start as u64), data: piece.data });
        self.stores.push(PlacedStore { at: at.plus(end as u64), data: &ZEROES[end..] });
    }

    fn add_over_data<M: Medium>(
        &mut self,
        volume: &'v BlockVolume<M>,
        writer: &mut Writer<'_, M>,
        piece: BlockPiece<'d>,
        compare: bool,
        (entry_at, old): (PoolOffset, u64),
        block: BlockNo,
    ) -> Result<(), PlanError> {
        volume.volume().expect(block.offset().plus(piece.start as u64), piece.data.len());
        let changed = if compare {
            volume.delta().changed(volume.medium(), block, piece.start, piece.data)
        } else {
            piece.lines()
        };
        if volume.is_bad(block) {
            return self.add_over_bad(volume, writer, piece, (entry_at, old), block);
        }
        let changed = volume.changed_or_unsound(changed, block, piece);
        if changed.is_empty() {
            return Ok(());
        }
        let in_place = Fill { to: block, around: Some(block), piece };
        if writer.is_fresh(block) {
            self.add_sum(volume, writer, in_place, SlotUse::Meaningless)?;
            if piece.data.len() == BLOCK && changed == LineMask::FULL {
                self.fills.push(in_place);
            } else {
                self.store_lines(piece, block, changed);
            }
            return Ok(());
        }
        let logged = writer.logged(block);
        let to_log = changed.without(logged);
        if self.replaces(volume, writer.epoch(), changed, logged) {
            if let Some(to) = self.alloc_data(volume, writer)? {
                let fill = Fill { to, around: Some(block), piece };
                return self.add_new_block(volume, writer, fill, (entry_at, old), block);
            }
            let is_worth_it = writer.retired_blocks() >= RETIRED_WORTH;
            if self.approach.when_full == WhenFull::Checkpoint && (is_worth_it || self.saves_log())
            {
                return Err(PlanError::NoSpace);
            }
        }
        if !to_log.is_empty() {
            if volume.turns_out_bad(block, piece) {
                return self.add_over_bad(volume, writer, piece, (entry_at, old), block);
            }
            self.logged_lines.push((block, to_log));
        }
        self.store_lines(piece, block, changed);
        self.add_sum(volume, writer, in_place, SlotUse::Undone)
    }

    /// Whether a block of which `changed` are to change is to be replaced.
    fn replaces<M: Medium>(
        &self,
        volume: &BlockVolume<M>,
        epoch: u64,
        changed: LineMask,
        logged: LineMask,
    ) -> bool {
        if self.saves_log() {
            return !changed.without(logged).is_empty();
        }
        volume.threshold().replaces_in(epoch, changed, logged)
    }

    fn saves_log(&self) -> bool {
        self.approach.translation == Translation::LeastLog
    }

    /// A write over a block in bad memory: the block is replaced if all of it is written. It goes to
    /// nobody else once it is retired, and undo brings back no more than an entry that leads to it.
    fn add_over_bad<M: Medium>(
        &mut self,
        volume: &'v BlockVolume<M>,
        writer: &mut Writer<'_, M>,
        piece: BlockPiece<'d>,
        (entry_at, old): (PoolOffset, u64),
        block: BlockNo,
    ) -> Result<(), PlanError> {
        let to = self.alloc_data(volume, writer)?.ok_or(PlanError::NoSpace)?;
        self.add_new_block(volume, writer, Fill { to, around: None, piece }, (entry_at, old), block)
    }

    /// Plans to fill a new block and to name it instead of `block`, if that lies in sound memory or
    /// all of it is written.
    fn add_new_block<M: Medium>(
        &mut self,
        volume: &'v BlockVolume<M>,
        writer: &mut Writer<'_, M>,
        fill: Fill<'d>,
        (entry_at, old): (PoolOffset, u64),
        block: BlockNo,
    ) -> Result<(), PlanError> {
        volume.check_replaceable(block, fill.piece).map_err(PlanError::Lost)?;
        self.add_fill(volume, writer, fill)?;
        self.change_word(writer, entry_at, old, Entry::data(fill.to).encode());
        self.retire(block);
        Ok(())
    }

    /// A new block for data, with a slot for its checksum if it will ever have one, so that the
    /// first write over reserved zeroes needs no space either. `None` if the pool is full.
    fn alloc_data<M: Medium>(
        &mut self,
        volume: &'v BlockVolume<M>,
        writer: &mut Writer<'_, M>,
    ) -> Result<Option<BlockNo>, PlanError> {
        let mark = volume.has_checksums().then(|| self.mark());
        let Some(to) = self.alloc(writer) else { return Ok(None) };
        if let Some(mark) = mark {
            match self.slot_for_write(volume, writer, to) {
                Ok(_) => {}
                Err(PlanError::NoSpace) => {
                    self.reset(mark, writer);
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some(to))
    }

    /// Plans to fill a block that undo does not rely on.
    fn add_fill<M: Medium>(
        &mut self,
        volume: &'v BlockVolume<M>,
        writer: &mut Writer<'_, M>,
        fill: Fill<'d>,
    ) -> Result<(), PlanError> {
        self.fills.push(fill);
        self.add_sum(volume, writer, fill, SlotUse::Meaningless)
    }

    /// Plans the checksum that a block has once `fill` is done.
    fn add_sum<M: Medium>(
        &mut self,
        volume: &'v BlockVolume<M>,
        writer: &mut Writer<'_, M>,
        fill: Fill<'d>,
        slot: SlotUse,
    ) -> Result<(), PlanError> {
        if !volume.has_checksums() {
            return Ok(());
        }
        let crc = volume.checksum_over(fill.around, fill.piece).map_err(PlanError::Lost)?;
        let at = self.slot_for_write(volume, writer, fill.to)?;
        if slot == SlotUse::Meaningless || planted(Bug::ChecksumNotLogged) {
            self.sums.push(WordChange { at, new: checksum::encode(crc) });
        } else {
            self.change_word(writer, at, volume.medium().load_word(at), checksum::encode(crc));
        }
        Ok(())
    }

    /// Stores those bytes of the piece that lie in `lines`, after the commit.
    fn store_lines(&mut self, piece: BlockPiece<'d>, block: BlockNo, lines: LineMask) {
        self.stores.extend(piece.parts_in(block, lines).map(|(at, data)| PlacedStore { at, data }));
    }

    /// Plans that `block` is unmapped, or with `reserve` that it reads as zeroes from space that
    /// stays its own.
    pub(crate) fn add_zero_block<M: Medium>(
        &mut self,
        volume: &'v BlockVolume<M>,
        writer: &mut Writer<'_, M>,
        block: u64,
        reserve: bool,
    ) -> Result<(), PlanError> {
        let entry_at = match (self.walk(volume, block)?, reserve) {
            (Path::Entry(at), _) => at,
            (Path::Missing(_), false) => return Ok(()),
            (Path::Missing(_), true) => self.entry_for_write(volume, writer, block)?,
        };
        let word = volume.medium().load_word(entry_at);
        match (map::decode(volume.medium(), word, entry_at)?, reserve) {
            (None, false) => {}
            (None, true) => {
                let to = self.alloc_data(volume, writer)?.ok_or(PlanError::NoSpace)?;
                self.change_word(writer, entry_at, word, Entry::zero(to).encode());
            }
            (Some(entry), true) if entry.flags.zero => {}
            (Some(entry), true) => {
                self.change_word(writer, entry_at, word, Entry::zero(entry.block).encode());
            }
            (Some(entry), false) => {
                self.change_word(writer, entry_at, word, 0);
                self.retire(entry.block);
            }
        }
        Ok(())
    }
}

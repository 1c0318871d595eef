//! The FUA fast path: a durable write of one block, without a checkpoint.
//!
//! In one of two ways: a new block and its entry, or a redo record of the lines that change. A
//! crash leaves the old bytes or the new ones if undo cannot touch them: no open epoch has a
//! record of the entry or of a line of the block, and neither the block nor the node that has the entry is
//! fresh. `docs/crash-model.md` argues it.

use everbyte_media::{BlockNo, LineMask, Medium, PoolOffset};
use everbyte_pool::format::Entry;
use everbyte_pool::{Corrupt, WriteError, Writer};

use crate::address::{BlockPiece, BlockRange, DeviceOffset, pieces};
use crate::checksum;
use crate::error::ExtentError;
use crate::extent::Extent;
use crate::map::{Path, Spot};

/// The end of an attempt at the FUA fast path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FuaOutcome {
    /// The bytes are durable.
    Durable,
    /// The path is not allowed here, and nothing was done: write in the epoch and complete it.
    NotAllowed,
}

impl<M: Medium> Extent<M> {
    /// Writes `data` at `offset` durably if that can be done without a checkpoint. The caller is
    /// in the volume's quiesce lock, and holds the locks of the blocks.
    ///
    /// # Errors
    /// Nothing was written, or with an error of the medium's perhaps everything.
    pub fn write_durably(
        &self,
        offset: DeviceOffset,
        data: &[u8],
    ) -> Result<FuaOutcome, ExtentError> {
        if BlockRange::of_bytes(offset, data.len() as u64).count > 1 {
            return Ok(FuaOutcome::NotAllowed);
        }
        let Some(piece) = pieces(offset, data).next() else { return Ok(FuaOutcome::Durable) };
        match self.fua_target(piece)? {
            Some((spot, old)) => self.write_piece_durably(spot, old, piece),
            None => Ok(FuaOutcome::NotAllowed),
        }
    }

    /// The entry for `piece` and its place, if its block may be changed without a checkpoint.
    fn fua_target(&self, piece: BlockPiece<'_>) -> Result<Option<(Spot, Option<Entry>)>, Corrupt> {
        let (at, spot, entry) = match self.look_up(piece.block)? {
            Path::Entry(at) => (at, Spot::Word(at), self.entries().load(at)?),
            Path::Run(run) => match run.pair_at {
                Some(at) if self.is_settled_pair(at) => (at.plus(8), Spot::Run(run), run.entry),
                _ => return Ok(None),
            },
            Path::Missing(_) => return Ok(None),
        };
        let named = entry.map(|entry| entry.block);
        if let Some(block) = named {
            // What replaces the block leaves its bytes alone.
            let in_place = !self.threshold().replaces(piece.lines());
            let len = if in_place { piece.data.len() } else { 0 };
            self.volume().prefetch_store(block.offset().plus(piece.start as u64), len);
        }
        Ok(self.volume().fua_fast_path_allowed(at, named).then_some((spot, entry)))
    }

    /// Writes `piece` over `old`, durably.
    fn write_piece_durably(
        &self,
        spot: Spot,
        old: Option<Entry>,
        piece: BlockPiece<'_>,
    ) -> Result<FuaOutcome, ExtentError> {
        let data = old.filter(|entry| !entry.flags.zero).map(|entry| entry.block);
        if let Some(block) = data {
            let changed = if self.compares() {
                self.delta().changed(self.medium(), block, piece.start, piece.data)
            } else {
                piece.lines()
            };
            let changed = self.changed_or_unreadable(changed, block, piece);
            if changed.is_empty() && !self.is_poisoned(block) {
                // What is stored is durable, since no open epoch has a record of it.
                self.medium().check().map_err(WriteError::from)?;
                return Ok(FuaOutcome::Durable);
            }
            // A record of lines could not redo the checksum of their block.
            if !self.threshold().replaces(changed)
                && !self.has_checksums()
                && !self.volume().is_pinned(block)
                && !self.turns_out_bad(block, piece)
            {
                return Ok(self.redo_durably(block, changed, piece)?);
            }
            self.check_replaceable(block, piece)?;
        }
        // One word says where a block lies, or this is no place to change it.
        match spot {
            Spot::Word(entry_at) => self.replace_durably(entry_at, old, data, piece),
            Spot::Run(_) => Ok(FuaOutcome::NotAllowed),
        }
    }

    /// Fills a new block with `piece` over what `around` holds, and names it instead of `old`.
    fn replace_durably(
        &self,
        entry_at: PoolOffset,
        old: Option<Entry>,
        around: Option<BlockNo>,
        piece: BlockPiece<'_>,
    ) -> Result<FuaOutcome, ExtentError> {
        let mut writer = self.volume().join()?;
        let Some(to) = writer.alloc() else { return Ok(FuaOutcome::NotAllowed) };
        if !self.fill_durably(&mut writer, to, around, piece)? {
            return Ok(FuaOutcome::NotAllowed);
        }
        let mut committed = writer.commit().map_err(WriteError::from)?;
        committed.settle(to);
        let stored = committed.store_word_durably(entry_at, Entry::data(to).encode());
        stored.map_err(WriteError::from)?;
        if let Some(old) = old {
            committed.defer_free(old.block);
        }
        drop(writer);
        self.medium().check().map_err(WriteError::from)?;
        Ok(FuaOutcome::Durable)
    }

    /// Changes `lines` of `block` in place, durably by a record of their new bytes.
    fn redo_durably(
        &self,
        block: BlockNo,
        lines: LineMask,
        piece: BlockPiece<'_>,
    ) -> Result<FuaOutcome, WriteError> {
        let mut writer = self.volume().join()?;
        if Writer::<M>::lines_bytes(lines) > writer.room_bytes() {
            return Ok(FuaOutcome::NotAllowed);
        }
        // What the lines hold beside the piece is read for the record. If that fails there is none:
        // torn, it would hide later records of the lane, and whole, it would redo zeroes.
        writer.log_redo(block, lines, piece.start, piece.data)?;
        let mut committed = writer.commit()?;
        for (at, data) in piece.parts_in(block, lines) {
            committed.store(at, data);
        }
        drop(writer);
        self.medium().check()?;
        Ok(FuaOutcome::Durable)
    }

    /// Fills `to`, and its checksum if it has one, to be durable with the commit. Says whether that
    /// is possible here; if not, or if the bytes around the piece cannot be read, `to` is given back.
    fn fill_durably(
        &self,
        writer: &mut Writer<'_, M>,
        to: BlockNo,
        around: Option<BlockNo>,
        piece: BlockPiece<'_>,
    ) -> Result<bool, ExtentError> {
        let mut slot = None;
        if let Some(root_at) = self.checksum_root_at() {
            let found = self.settled_slot(root_at, to).map_err(ExtentError::from);
            let sum = self.checksum_over(around, piece).map_err(ExtentError::from);
            match (found, sum) {
                (Ok(Some(at)), Ok(crc)) => slot = Some((at, checksum::encode(crc))),
                (found, sum) => {
                    writer.unalloc(to);
                    return found.and(sum).map(|_| false);
                }
            }
        }
        writer.fill_block(to, around, piece.start, piece.data);
        if let Some(block) = around
            && let Err(unreadable) = self.check_replaceable(block, piece)
        {
            // What was streamed must be fenced before the block is anyone's.
            let _ = writer.commit();
            writer.unalloc(to);
            return Err(unreadable.into());
        }
        if let Some((at, word)) = slot {
            writer.fill(at, &word.to_le_bytes());
        }
        Ok(true)
    }
}

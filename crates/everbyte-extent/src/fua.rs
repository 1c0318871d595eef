//! The FUA fast path: a durable write of one block without a checkpoint.
//!
//! The path makes a new block and its entry durable, or a redo record of the changed lines. A crash leaves
//! the old or the new bytes if undo cannot touch them: no open epoch has a record of the entry or of a line
//! of the block, and neither the block nor the node with the entry is fresh. Concurrent writes share the
//! fences. The proof is in `docs/crash-model.md`.

use everbyte_media::{BlockNo, LineMask, Medium, PoolOffset};
use everbyte_pool::format::{Entry, WordItem};
use everbyte_pool::{Corrupt, WriteError, Writer};
use smallvec::SmallVec;

use crate::address::{BlockPiece, DeviceOffset, pieces};
use crate::checksum;
use crate::error::ExtentError;
use crate::extent::Extent;
use crate::map::MapSlot;

/// Outcome of an attempt at the FUA fast path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FuaOutcome {
    /// The bytes are durable.
    Durable,
    /// Nothing was written: write in the epoch and complete the epoch.
    NotAllowed,
}

/// A durable write to one block, with its outcome.
pub struct DurableWrite<'d> {
    piece: BlockPiece<'d>,
    state: Result<State, ExtentError>,
}

/// Progress of a durable write.
#[derive(Clone, Copy)]
enum State {
    /// Nothing was written.
    NotAllowed,
    /// The block already holds the bytes.
    Unchanged,
    /// A redo record has the bytes of `lines`. They are not yet stored in place.
    Recorded { block: BlockNo, lines: LineMask },
    /// `to` has the bytes. The entry at `entry_at` still names `old`.
    Filled { entry_at: PoolOffset, to: BlockNo, old: Option<BlockNo> },
}

impl<'d> DurableWrite<'d> {
    /// Creates a write of `piece`.
    #[must_use]
    pub fn of(piece: BlockPiece<'d>) -> Self {
        Self { piece, state: Ok(State::NotAllowed) }
    }

    /// Returns the outcome.
    ///
    /// # Errors
    /// Nothing was written, unless the medium failed: then the bytes may be written.
    pub fn outcome(self) -> Result<FuaOutcome, ExtentError> {
        Ok(match self.state? {
            State::NotAllowed => FuaOutcome::NotAllowed,
            State::Unchanged | State::Recorded { .. } | State::Filled { .. } => FuaOutcome::Durable,
        })
    }
}

/// Appends a redo record of the new bytes of `lines` of `block`, if the log has room for it and `reserved_bytes`
/// more.
fn record<M: Medium>(
    writer: &mut Writer<'_, M>,
    reserved_bytes: u64,
    (block, lines): (BlockNo, LineMask),
    piece: BlockPiece<'_>,
) -> Result<State, WriteError> {
    // Without room the write goes into the epoch. The checkpoint of the epoch empties the lane.
    if Writer::<M>::lines_bytes(lines) + reserved_bytes > writer.room_bytes() {
        return Ok(State::NotAllowed);
    }
    // The record also has the bytes of the lines around the piece. If they cannot be read, no record is made: a torn
    // record would hide later records of the lane, and a whole record would redo zeroes.
    writer.log_redo(block, lines, piece.start, piece.data)?;
    Ok(State::Recorded { block, lines })
}

/// Fences the prepared writes. Then stores the redone lines in place and the filled blocks in their entries, and
/// fences again. With `is_recorded` a redo record makes the entries durable.
fn finish_durably<M: Medium>(
    mut writer: Writer<'_, M>,
    writes: &[DurableWrite<'_>],
    is_recorded: bool,
) -> Result<(), WriteError> {
    let filled = writes.iter().filter_map(|write| match write.state {
        Ok(State::Filled { entry_at, to, .. }) => Some((entry_at, Entry::data(to).encode())),
        _ => None,
    });
    let words: SmallVec<[(PoolOffset, u64); 1]> = filled.collect();
    // One fence for all fills and records of the call.
    let mut committed = writer.commit()?;
    for DurableWrite { piece, state } in writes {
        match *state {
            Ok(State::Recorded { block, lines }) => {
                // Ordinary stores: the redo record is durable, and the checkpoint flushes the lines.
                for (at, data) in piece.parts_in(block, lines) {
                    committed.store(at, data);
                }
            }
            // Before the entry names it: undo does not free this block, so later writes must log it.
            Ok(State::Filled { to, .. }) => committed.mark_reachable(to),
            _ => {}
        }
    }
    if is_recorded && !words.is_empty() {
        let item = |&(PoolOffset(target), old): &(PoolOffset, u64)| WordItem { target, old };
        writer.log_redo_words(&words.iter().map(item).collect::<SmallVec<[WordItem; 1]>>());
        committed = writer.commit()?;
        for &(at, word) in &words {
            committed.store_redone_word(at, word);
        }
    } else {
        committed.store_words_durably(&words)?;
    }
    // After the entries are durable: before, a crash would find the old blocks in use.
    for write in writes {
        if let Ok(State::Filled { old: Some(old), .. }) = write.state {
            committed.defer_free(old);
        }
    }
    Ok(())
}

impl<M: Medium> Extent<M> {
    /// Writes `data` at `offset` durably if this needs no checkpoint. The caller is in the volume's quiesce
    /// lock and holds the locks of the blocks.
    ///
    /// # Errors
    /// Nothing was written, unless the medium failed: then the bytes may be written.
    pub fn write_durably(
        &self,
        offset: DeviceOffset,
        data: &[u8],
    ) -> Result<FuaOutcome, ExtentError> {
        let mut all = pieces(offset, data);
        match (all.next(), all.next()) {
            (None, _) => Ok(FuaOutcome::Durable),
            (Some(piece), None) => {
                let mut writes = [DurableWrite::of(piece)];
                self.write_all_durably(&mut writes);
                let [write] = writes;
                write.outcome()
            }
            // Entries of several blocks could not change atomically.
            (Some(_), Some(_)) => Ok(FuaOutcome::NotAllowed),
        }
    }

    /// Writes parts of different blocks durably. Each is atomic separately, and all share two fences.
    pub fn write_all_durably(&self, writes: &mut [DurableWrite<'_>]) {
        // All targets first, so that their memory accesses overlap.
        let mut targets: SmallVec<[_; 1]> =
            writes.iter().map(|write| self.fua_target(write.piece)).collect();
        // Without an entry in the log that recovery could put over a new one, the entries need no record.
        let reserved_bytes = match self.volume().may_redo_words() {
            true => Writer::<M>::words_bytes(writes.len()),
            false => 0,
        };
        let mut writer = None;
        for (write, target) in writes.iter_mut().zip(targets.drain(..)) {
            write.state = target.map_err(ExtentError::from).and_then(|target| match target {
                Some(target) => {
                    self.prepare_durably(&mut writer, reserved_bytes, target, write.piece)
                }
                None => Ok(State::NotAllowed),
            });
        }
        let is_recorded = reserved_bytes > 0;
        let ended = writer.map_or(Ok(()), |writer| finish_durably(writer, writes, is_recorded));
        // The fences are shared, so no write of the call is known to be durable.
        if let Err(error) = ended.and_then(|()| self.medium().check().map_err(WriteError::from)) {
            for write in writes {
                if !matches!(write.state, Ok(State::NotAllowed) | Err(_)) {
                    write.state = Err(error.clone().into());
                }
            }
        }
    }

    /// The entry for `piece` and its address, if its block may be changed without a checkpoint.
    fn fua_target(
        &self,
        piece: BlockPiece<'_>,
    ) -> Result<Option<(PoolOffset, Option<Entry>)>, Corrupt> {
        // A new node would be fresh. Its undo would remove the durable entry.
        let MapSlot::At(at) = self.look_up(piece.block)? else { return Ok(None) };
        let entry = self.entries().load(at)?;
        let named = entry.map(|entry| entry.block);
        if let Some(block) = named {
            // A replacement does not read the replaced bytes.
            let in_place = !self.threshold().replaces(piece.lines());
            let len = if in_place { piece.data.len() } else { 0 };
            self.volume().prefetch_store(block.offset().plus(piece.start as u64), len);
        }
        Ok(self.volume().fua_fast_path_allowed(at, named).then_some((at, entry)))
    }

    /// Takes the steps of a durable write of `piece` over `old` up to the first fence. Leaves room for
    /// `reserved_bytes` in the log.
    fn prepare_durably<'v>(
        &'v self,
        writer: &mut Option<Writer<'v, M>>,
        reserved_bytes: u64,
        (entry_at, old): (PoolOffset, Option<Entry>),
        piece: BlockPiece<'_>,
    ) -> Result<State, ExtentError> {
        let data = old.filter(|entry| !entry.flags.zero).map(|entry| entry.block);
        if let Some(block) = data {
            let changed = if self.compares() {
                self.delta().changed(self.medium(), block, piece.start, piece.data)
            } else {
                piece.lines()
            };
            let changed = self.changed_or_unreadable(changed, block, piece);
            if changed.is_empty() && !self.is_poisoned(block) {
                // The stored bytes are durable, because no open epoch has a record of them.
                return Ok(State::Unchanged);
            }
            // A record of lines could not redo the checksum of their block.
            if !self.threshold().replaces(changed)
                && !self.has_checksums()
                && !self.volume().is_pinned(block)
                && !self.became_poisoned(block, piece)
            {
                let writer = self.joined(writer)?;
                return Ok(record(writer, reserved_bytes, (block, changed), piece)?);
            }
            self.check_replaceable(block, piece)?;
        }
        let writer = self.joined(writer)?;
        if reserved_bytes > writer.room_bytes() {
            return Ok(State::NotAllowed);
        }
        let Some(to) = writer.alloc() else { return Ok(State::NotAllowed) };
        if !self.fill_durably(writer, to, data, piece)? {
            return Ok(State::NotAllowed);
        }
        Ok(State::Filled { entry_at, to, old: old.map(|entry| entry.block) })
    }

    /// Returns the writer. It joins the epoch at the first write in need of it.
    fn joined<'w, 'v>(
        &'v self,
        writer: &'w mut Option<Writer<'v, M>>,
    ) -> Result<&'w mut Writer<'v, M>, WriteError> {
        match writer {
            Some(writer) => Ok(writer),
            None => Ok(writer.insert(self.volume().join()?)),
        }
    }

    /// Fills `to` and its checksum, if the extent has checksums. The commit makes both durable. Returns false and
    /// frees `to` if this is impossible here. Frees `to` too if the bytes around the piece cannot be read.
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
                    // Nothing was streamed to the block yet, so no fence comes first.
                    writer.cancel_alloc(to);
                    return found.and(sum).map(|_| false);
                }
            }
        }
        writer.fill_block(to, around, piece.start, piece.data);
        // After the copy, whose read may be the first to hit the bad memory.
        if let Some(block) = around
            && let Err(unreadable) = self.check_replaceable(block, piece)
        {
            // The fence comes before the free: another thread can allocate the block and cannot fence this stream.
            let _ = writer.commit();
            writer.cancel_alloc(to);
            return Err(unreadable.into());
        }
        // The same fence covers the slot. No durable entry leads to it before.
        if let Some((at, word)) = slot {
            writer.fill(at, &word.to_le_bytes());
        }
        Ok(true)
    }
}

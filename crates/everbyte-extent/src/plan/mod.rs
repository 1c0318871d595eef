//! Plans of writes: the translation of a write into steps of a batch.
//!
//! Each piece of a write within one block becomes nothing (no byte changed), a fill of a new block (holes and
//! pointer logging), or stores in place (data logging and fresh blocks). Whole blocks are streamed during the
//! plan. No entry names them before the batch is carried out.
//!
//! Invariants: the caller holds the locks of the blocks, and a batch names a block of an extent
//! once. A write is planned whole or not at all.

mod classify;
mod data;
mod prefetch;
mod run;
mod zero;

use everbyte_media::{BLOCK, BLOCK_U64, BlockNo, LineMask, Medium, PoolOffset};
use everbyte_plant::planted;
use everbyte_pool::format::Entry;
use everbyte_pool::plant::Bug;
use everbyte_pool::{Batch, Fill, PlanConstraints, Savepoint};

use crate::address::{BlockPiece, DeviceOffset, LogicalBlock, pieces};
use crate::checksum;
use crate::error::ExtentError;
use crate::extent::Extent;
pub(crate) use classify::{Change, classify};
use prefetch::PrefetchedEntry;
use run::LeafRun;

/// The part of a batch under construction for one extent.
pub struct Planner<'p, 'v, 'd, M: Medium> {
    extent: &'v Extent<M>,
    batch: &'p mut Batch<'v, 'd, M>,
    constraints: PlanConstraints,
    /// True if the bytes loaded by the plan were prefetched.
    is_prefetched: bool,
    run: Option<LeafRun>,
    /// Prefetched entries, in the order of their use.
    found: Vec<PrefetchedEntry>,
    /// Number of used prefetched entries.
    passed: usize,
    /// Low-space mode: update mapped blocks in place; keep free blocks for holes.
    in_place_only: bool,
}

/// The entry of a written block, and its target block.
#[derive(Clone, Copy)]
struct Target<'t> {
    entry: &'t EntryWord,
    /// The block in the entry.
    block: BlockNo,
}

/// The word of an entry.
struct EntryWord {
    at: PoolOffset,
    /// Present value of the word.
    word: u64,
}

/// The treatment of a block's checksum slot by undo.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SlotUse {
    /// None: after undo no entry leads to the slot.
    Meaningless,
    /// Undo restores the slot together with the block's bytes.
    Undone,
}

impl<'p, 'v, 'd, M: Medium> Planner<'p, 'v, 'd, M> {
    /// Creates a planner for `extent` in `batch` under `constraints`.
    pub fn new(
        extent: &'v Extent<M>,
        batch: &'p mut Batch<'v, 'd, M>,
        constraints: PlanConstraints,
    ) -> Self {
        Self {
            extent,
            batch,
            constraints,
            is_prefetched: false,
            run: None,
            found: Vec::new(),
            passed: 0,
            in_place_only: false,
        }
    }

    /// Plans a write of `data` at `offset` as a whole, or nothing.
    ///
    /// # Errors
    /// The pool is full, the map is corrupt, or bytes to keep cannot be read. The plan is then unchanged.
    pub fn write(&mut self, offset: DeviceOffset, data: &'d [u8]) -> Result<(), ExtentError> {
        self.planned(|own| own.write_pieces(offset, data))
    }

    /// Plans the steps of `plan`, or nothing.
    fn planned(
        &mut self,
        plan: impl Fn(&mut Self) -> Result<(), ExtentError>,
    ) -> Result<(), ExtentError> {
        let savepoint = self.batch.savepoint();
        let mut planned = plan(self);
        // If the pool was not full before, a checkpoint comes first.
        let may_stay = self.constraints.pool_was_full;
        if matches!(planned, Err(ExtentError::NoSpace)) && may_stay && !self.in_place_only {
            // Perhaps a block that could have stayed took the last block, and one without space needed it.
            self.give_up(savepoint);
            self.in_place_only = true;
            planned = plan(self);
            self.in_place_only = false;
        }
        // The batch may continue without this write, so none of its steps stays.
        planned.inspect_err(|_| self.give_up(savepoint))
    }

    /// Drops the plan since `savepoint`, and from now on plans in low-space mode. For plans of several writes in
    /// a full pool: an early write may have taken a block for a replacement, and a later write needs the block for
    /// a hole.
    pub fn replan_in_place(&mut self, savepoint: Savepoint) {
        self.give_up(savepoint);
        // The new plan uses the prefetched entries from the first on.
        self.passed = 0;
        self.in_place_only = true;
    }

    /// Drops the plan since `savepoint`.
    fn give_up(&mut self, savepoint: Savepoint) {
        self.batch.roll_back(savepoint);
        // After the roll-back the run is no longer part of the plan.
        self.run = None;
    }

    fn write_pieces(&mut self, offset: DeviceOffset, data: &'d [u8]) -> Result<(), ExtentError> {
        let end = offset.0 + data.len() as u64;
        for piece in pieces(offset, data) {
            self.take_leaf_run(piece.block, end / BLOCK_U64)?;
            self.write_piece(piece)?;
        }
        Ok(())
    }

    fn write_piece(&mut self, piece: BlockPiece<'d>) -> Result<(), ExtentError> {
        let extent = self.extent;
        let compares = extent.compares();
        let is_sent = !compares && piece.data.len() == BLOCK && extent.threshold().replaces_whole();
        if is_sent
            && !self.is_prefetched
            && !self.in_place_only
            && let Some(to) = self.take_data(piece.block)?
        {
            return self.replace_without_compare(piece, to);
        }
        let (word, entry) = self.entry_word(piece.block)?;
        let Some(entry) = entry else {
            // A hole has no block to change in place, so it gets one even if blocks are short.
            let to = self.take_data(piece.block)?.ok_or(ExtentError::NoSpace)?;
            self.fill_new(to, None, piece)?;
            self.name(&word, Some(Entry::data(to)));
            return Ok(());
        };
        let target = Target { entry: &word, block: entry.block };
        if entry.flags.zero {
            return self.write_over_zeroes(piece, target);
        }
        if is_sent && self.send_over(piece, target)? {
            return Ok(());
        }
        self.write_over_data(piece, target, compares)
    }

    /// Allocates a block for the data of `block`, with a slot for its checksum if the extent has checksums.
    /// `None` if the pool is full.
    #[inline(always)]
    fn take_data(&mut self, block: LogicalBlock) -> Result<Option<BlockNo>, ExtentError> {
        if let Some(to) = self.run.and_then(|run| run.block_of(block)) {
            return Ok(Some(to));
        }
        let Some(root_at) = self.extent.checksum_root_at() else { return Ok(self.batch.alloc()) };
        let savepoint = self.batch.savepoint();
        let Some(to) = self.batch.alloc() else { return Ok(None) };
        // A block without space for its checksum's slot must not be used.
        match self.extent.slot_for_write(self.batch, root_at, to) {
            Ok(_) => Ok(Some(to)),
            Err(ExtentError::NoSpace) => {
                self.batch.roll_back(savepoint);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Allocates a block for a mapped block that can also change in place. `None` in low-space mode.
    #[inline(always)]
    fn take_other(&mut self, block: LogicalBlock) -> Result<Option<BlockNo>, ExtentError> {
        if self.in_place_only { Ok(None) } else { self.take_data(block) }
    }

    /// Plans to fill `to` with `piece` over the content of `around`. Undo does not rely on `to`.
    fn fill(
        &mut self,
        to: BlockNo,
        around: Option<BlockNo>,
        piece: BlockPiece<'d>,
    ) -> Result<(), ExtentError> {
        self.batch.fill(Fill { to, around, start: piece.start, data: piece.data });
        self.sum(to, around, piece, SlotUse::Meaningless)
    }

    /// Fills the new block `to` with `piece` over the content of `around`.
    fn fill_new(
        &mut self,
        to: BlockNo,
        around: Option<BlockNo>,
        piece: BlockPiece<'d>,
    ) -> Result<(), ExtentError> {
        match piece.data.len() {
            BLOCK => self.send_whole(to, piece),
            _ => self.fill(to, around, piece),
        }
    }

    /// Streams a whole block to the new block `to` during the plan.
    ///
    /// During the stream, a processor stalls at a wide load of a value stored in parts. Such values are
    /// results of functions without inlining, and copies of an [`EntryWord`]: they took up to a quarter of
    /// the time of 64 KiB, so the functions around here are inlined, and entries are borrowed.
    fn send_whole(&mut self, to: BlockNo, piece: BlockPiece<'d>) -> Result<(), ExtentError> {
        self.batch.stream(to.offset(), piece.data);
        self.sum(to, None, piece, SlotUse::Meaningless)
    }

    /// Plans to remap the entry of `target` to `to`.
    fn remap(&mut self, target: Target<'_>, to: BlockNo) {
        self.name(target.entry, Some(Entry::data(to)));
        // A block that read as zeroes stays, and only loses the flag.
        if to != target.block {
            self.batch.free(target.block);
        }
    }

    /// Plans to change the entry in `word` to `entry`, or to none.
    #[inline(always)]
    fn name(&mut self, word: &EntryWord, entry: Option<Entry>) {
        self.batch.change_word_once(word.at, word.word, entry.map_or(0, Entry::encode));
    }

    /// The word of the entry of `block`, and the decoded entry. Plans the branch to the word if it is missing.
    #[inline(always)]
    fn entry_word(
        &mut self,
        block: LogicalBlock,
    ) -> Result<(EntryWord, Option<Entry>), ExtentError> {
        let at = self.entry_for(block)?;
        let word = self.extent.medium().load_word(at);
        Ok((EntryWord { at, word }, self.extent.entries().decode(word, at)?))
    }

    /// Plans the checksum of block `to` with `piece` over the content of `around`.
    fn sum(
        &mut self,
        to: BlockNo,
        around: Option<BlockNo>,
        piece: BlockPiece<'d>,
        slot: SlotUse,
    ) -> Result<(), ExtentError> {
        let extent = self.extent;
        let Some(root_at) = extent.checksum_root_at() else { return Ok(()) };
        let crc = extent.checksum_over(around, piece)?;
        let at = extent.slot_for_write(self.batch, root_at, to)?;
        // Undo leaves no entry of a meaningless block, so nothing reads its old slot.
        if slot == SlotUse::Meaningless || planted(Bug::ChecksumNotLogged) {
            self.batch.fill_word(at, checksum::encode(crc));
        } else {
            let old = extent.medium().load_word(at);
            self.batch.change_word_once(at, old, checksum::encode(crc));
        }
        Ok(())
    }

    /// Plans to store the bytes of `piece` in `lines` of `block`.
    fn store_lines(&mut self, piece: BlockPiece<'d>, block: BlockNo, lines: LineMask) {
        for (at, data) in piece.parts_in(block, lines) {
            self.batch.store(at, data);
        }
    }
}

impl<'d> BlockPiece<'d> {
    /// Lines touched by the piece.
    #[inline]
    pub(crate) fn lines(&self) -> LineMask {
        LineMask::covering(self.start, self.data.len())
    }

    /// Bytes of the piece in `lines`, with their places in `block`.
    pub(crate) fn parts_in(
        self,
        block: BlockNo,
        lines: LineMask,
    ) -> impl Iterator<Item = (PoolOffset, &'d [u8])> {
        lines.runs().filter_map(move |(start, len)| {
            let from = start.max(self.start);
            let to = (start + len).min(self.start + self.data.len());
            let at = block.offset().plus(from as u64);
            (from < to).then(|| (at, &self.data[from - self.start..to - self.start]))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns offset and bytes of each part of `data` from `start` on.
    fn parts(start: usize, data: &[u8], lines: LineMask) -> Vec<(u64, Vec<u8>)> {
        let piece = BlockPiece { block: LogicalBlock(5), start, data };
        let parts = piece.parts_in(BlockNo(3), lines);
        parts.map(|(at, data)| (at.0 - 3 * 4096, data.to_vec())).collect()
    }

    #[test]
    fn piece_lines_span_first_to_last_byte() {
        let lines = |start, len| BlockPiece { block: LogicalBlock(0), start, data: &ZERO[..len] };
        assert_eq!(lines(63, 2).lines(), LineMask(0b11));
        assert_eq!(lines(64, 64).lines(), LineMask(0b10));
        assert_eq!(lines(0, BLOCK).lines(), LineMask::FULL);
    }

    const ZERO: [u8; BLOCK] = [0; BLOCK];

    #[test]
    fn parts_are_piece_bytes_in_lines() {
        let data: Vec<u8> = (0..200).collect();
        assert_eq!(parts(60, &data, LineMask::FULL), [(60, data.clone())]);
        assert_eq!(parts(60, &data, LineMask(1)), [(60, data[..4].to_vec())], "the line's end");
        assert_eq!(
            parts(60, &data, LineMask(0b10110)),
            [(64, data[4..132].to_vec()), (256, data[196..].to_vec())],
            "neighbours are one part, and the last ends with the piece"
        );
        assert_eq!(parts(60, &data, LineMask(1 << 9)), [], "a line beyond it");
    }
}

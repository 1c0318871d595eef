//! Planning writes: what a batch will log, fill and store, decided before anything is stored.
//!
//! Owns the translation of block requests into byte-granular stores. Each piece of a request that
//! lies in one block becomes one of: nothing (no byte changed), a fill of a new block (holes, and
//! pointer logging), or stores in place (data logging, and blocks that are fresh). Nothing that is
//! planned here is visible or reachable until `execute` has committed; a plan can be dropped.
//!
//! Invariants: a plan names a logical block once; the writer's log room covers `log_bytes` when
//! it is executed; a plan that changed the shape of the map holds the structure lock.

use everbyte_media::{BLOCK, BLOCK_U64, BlockNo, LineMask, MediaError, Medium, PoolOffset};
use everbyte_pool::format::{Entry, WordItem};
use everbyte_pool::plant::{Bug, planted};
use everbyte_pool::sync::MutexGuard;
use everbyte_pool::{Corrupt, WriteError, Writer};
use smallvec::SmallVec;

use crate::checksum::{self, Unsound};
use crate::map::{self, MapKind, Path, Pending};
use crate::volume::BlockVolume;

/// A part of a request that lies in one block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockPiece<'a> {
    /// Logical block.
    pub(crate) block: u64,
    /// First byte in the block.
    pub(crate) start: usize,
    /// The new bytes.
    pub(crate) data: &'a [u8],
}

impl BlockPiece<'_> {
    /// First byte in the device.
    pub(crate) fn offset(&self) -> u64 {
        self.block * everbyte_media::BLOCK_U64 + self.start as u64
    }

    /// The lines it touches.
    pub(crate) fn lines(&self) -> LineMask {
        LineMask::covering(self.start, self.data.len())
    }
}

impl<'d> BlockPiece<'d> {
    /// Those bytes of the piece that lie in `lines`, and where they go in `block`.
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

/// Splits a request into its blocks.
pub(crate) fn pieces(offset: u64, data: &[u8]) -> impl Iterator<Item = BlockPiece<'_>> {
    let mut at = PoolOffset(offset);
    let mut rest = data;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let start = at.in_block();
        let (now, later) = rest.split_at(rest.len().min(BLOCK - start));
        let piece = BlockPiece { block: at.block().0, start, data: now };
        at = at.plus(now.len() as u64);
        rest = later;
        Some(piece)
    })
}

/// Why a plan could not be made.
#[derive(Debug)]
pub(crate) enum PlanError {
    /// The pool is full, and a hole or a new node needs a block.
    NoSpace,
    /// The map cannot be right.
    Corrupt(Corrupt),
    /// Bytes that the block must keep cannot be read, or are not what was stored.
    Lost(Unsound),
    /// The volume cannot be written.
    Write(WriteError),
}

impl From<Corrupt> for PlanError {
    fn from(corrupt: Corrupt) -> Self {
        Self::Corrupt(corrupt)
    }
}

impl From<WriteError> for PlanError {
    fn from(error: WriteError) -> Self {
        Self::Write(error)
    }
}

/// A word that changes.
#[derive(Clone, Copy, Debug)]
struct WordChange {
    at: PoolOffset,
    new: u64,
}

/// Bytes that are stored in place after the commit.
#[derive(Clone, Copy, Debug)]
struct PlacedStore<'a> {
    at: PoolOffset,
    data: &'a [u8],
}

/// A whole block that is filled before the commit: what it held, with a piece over it.
#[derive(Clone, Copy, Debug)]
struct Fill<'a> {
    to: BlockNo,
    /// Where the bytes around the piece come from; `None` for zeroes.
    around: Option<BlockNo>,
    piece: BlockPiece<'a>,
}

impl Fill<'_> {
    /// Whether it is a fresh block that is filled once more: not before it is certain that the
    /// plan will be carried out.
    fn is_in_place(&self) -> bool {
        self.around == Some(self.to)
    }
}

/// Room for what one request of one block needs, so that such a request allocates nothing.
type Few<T> = SmallVec<[T; 2]>;

/// What a batch will do. See the module's head.
pub(crate) struct Plan<'v, 'd> {
    words: Few<WordChange>,
    /// Words that change the shape of the map, which later requests of the plan rely on.
    links: Few<WordChange>,
    logged_words: Few<WordItem>,
    logged_lines: Few<(BlockNo, LineMask)>,
    fills: Few<Fill<'d>>,
    /// Checksums that are stored before the commit, because undo does not rely on their slots.
    sums: Few<WordChange>,
    stores: SmallVec<[PlacedStore<'d>; 4]>,
    retired: Few<BlockNo>,
    allocated: Few<BlockNo>,
    structure: Option<MutexGuard<'v, ()>>,
    when_full: WhenFull,
}

impl Pending for Few<WordChange> {
    fn value(&self, at: PoolOffset) -> Option<u64> {
        self.iter().rev().find(|change| change.at == at).map(|change| change.new)
    }
}

/// What the slot of a block's checksum is to those who undo.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SlotUse {
    /// Nothing: undo leaves nobody who would read it.
    Meaningless,
    /// A word to be put back with the block's bytes.
    Undone,
}

/// What a plan does where a block is better replaced, and the pool has none for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WhenFull {
    /// Asks for a checkpoint, if that frees enough to be worth it.
    Checkpoint,
    /// Logs the lines.
    Log,
}

/// Blocks that wait for a checkpoint to be free, from which on it is worth its two fences to replace
/// blocks instead of logging them.
const RETIRED_WORTH: usize = 64;

/// What became of a plan.
pub(crate) enum Fate {
    /// Done, in this epoch.
    Done(u64),
    /// Given up: the log has no room now, but has after a checkpoint.
    LogFull,
    /// Given up: the log never has room for so much at once.
    TooLarge,
}

/// Where a plan stood, so that a request that fails can be taken out again.
#[derive(Clone, Copy)]
struct Mark([usize; 9]);

impl<'v, 'd> Plan<'v, 'd> {
    pub(crate) fn new(when_full: WhenFull) -> Self {
        Self {
            words: Few::new(),
            links: Few::new(),
            logged_words: Few::new(),
            logged_lines: Few::new(),
            fills: Few::new(),
            sums: Few::new(),
            stores: SmallVec::new(),
            retired: Few::new(),
            allocated: Few::new(),
            structure: None,
            when_full,
        }
    }

    /// Bytes of log that the plan takes.
    fn log_bytes<M: Medium>(&self) -> u64 {
        let words = match self.logged_words.len() {
            0 => 0,
            count => Writer::<M>::words_bytes(count),
        };
        let lines = self.logged_lines.iter().map(|&(_, lines)| Writer::<M>::lines_bytes(lines));
        words + lines.sum::<u64>()
    }

    /// Gives back every block that the plan took.
    pub(crate) fn abandon<M: Medium>(&mut self, writer: &mut Writer<'_, M>) {
        // New nodes were streamed, and their blocks may go to other threads now, which cannot
        // fence our streams. Nor can they fence our records, which would hide theirs if torn. A
        // medium that fails here fails whatever comes next.
        let _ = writer.commit();
        self.allocated.drain(..).for_each(|block| writer.unalloc(block));
    }

    fn mark(&self) -> Mark {
        Mark([
            self.words.len(),
            self.links.len(),
            self.logged_words.len(),
            self.logged_lines.len(),
            self.fills.len(),
            self.sums.len(),
            self.stores.len(),
            self.retired.len(),
            self.allocated.len(),
        ])
    }

    fn reset<M: Medium>(&mut self, mark: Mark, writer: &mut Writer<'_, M>) {
        let Mark([words, links, logged_words, logged_lines, fills, sums, stores, retired, taken]) =
            mark;
        self.words.truncate(words);
        self.links.truncate(links);
        self.logged_words.truncate(logged_words);
        self.logged_lines.truncate(logged_lines);
        self.fills.truncate(fills);
        self.sums.truncate(sums);
        self.stores.truncate(stores);
        self.retired.truncate(retired);
        self.allocated.drain(taken..).for_each(|block| writer.unalloc(block));
    }

    fn alloc<M: Medium>(&mut self, writer: &mut Writer<'_, M>) -> Option<BlockNo> {
        let block = writer.alloc()?;
        self.allocated.push(block);
        Some(block)
    }

    /// Plans that the word at `at`, which is `old` now, becomes `new`. A plan changes a word once.
    pub(crate) fn change_word<M: Medium>(
        &mut self,
        writer: &Writer<'_, M>,
        at: PoolOffset,
        old: u64,
        new: u64,
    ) {
        if !writer.word_is_covered(at) {
            self.logged_words.push(WordItem { target: at.0, old });
        }
        self.words.push(WordChange { at, new });
    }

    /// The same for a word that changes the shape of the map, which a plan may do repeatedly. The
    /// plan walks the map as it will be then.
    pub(crate) fn change_link<M: Medium>(
        &mut self,
        writer: &Writer<'_, M>,
        at: PoolOffset,
        old: u64,
        new: u64,
    ) {
        if self.links.value(at).is_none() && !writer.word_is_covered(at) {
            self.logged_words.push(WordItem { target: at.0, old });
        }
        self.links.push(WordChange { at, new });
    }

    /// Keeps others from changing the shape of the map until the plan is done.
    pub(crate) fn hold_structure<M: Medium>(&mut self, volume: &'v BlockVolume<M>) {
        if self.structure.is_none() {
            self.structure = Some(volume.lock_structure());
        }
    }

    /// Plans to give up `block` once nothing durable names it.
    pub(crate) fn retire(&mut self, block: BlockNo) {
        self.retired.push(block);
    }

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
        if !compare
            && piece.data.len() == BLOCK
            && volume.threshold().replaces_whole()
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
            Some(entry) => {
                self.add_over_data(volume, writer, piece, compare, (entry_at, word), entry.block)?;
            }
        }
        Ok(())
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
        writer.fill(to.offset(), piece.data);
        self.add_sum(volume, writer, Fill { to, around: None, piece }, SlotUse::Meaningless)?;
        let entry_at = self.entry_for_write(volume, writer, piece.block)?;
        let word = volume.medium().load_word(entry_at);
        if let Some(old) = map::decode(volume.medium(), word, entry_at)? {
            volume.volume().expect(old.block.offset(), 0);
            self.retire(old.block);
        }
        self.change_word(writer, entry_at, word, Entry::data(to).encode());
        Ok(())
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
        if volume.threshold().replaces_in(writer.epoch(), changed, logged) {
            if let Some(to) = self.alloc_data(volume, writer)? {
                volume.check_replaceable(block, piece).map_err(PlanError::Lost)?;
                self.add_fill(volume, writer, Fill { to, around: Some(block), piece })?;
                self.change_word(writer, entry_at, old, Entry::data(to).encode());
                self.retire(block);
                return Ok(());
            }
            if self.when_full == WhenFull::Checkpoint && writer.retired_blocks() >= RETIRED_WORTH {
                return Err(PlanError::NoSpace);
            }
        }
        let to_log = changed.without(logged);
        if !to_log.is_empty() {
            if volume.turns_out_bad(block, piece) {
                return self.add_over_bad(volume, writer, piece, (entry_at, old), block);
            }
            self.logged_lines.push((block, to_log));
        }
        self.store_lines(piece, block, changed);
        self.add_sum(volume, writer, in_place, SlotUse::Undone)
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
        volume.check_replaceable(block, piece).map_err(PlanError::Lost)?;
        let to = self.alloc_data(volume, writer)?.ok_or(PlanError::NoSpace)?;
        self.add_fill(volume, writer, Fill { to, around: None, piece })?;
        self.change_word(writer, entry_at, old, Entry::data(to).encode());
        self.retire(block);
        Ok(())
    }

    /// A new block for data, with a slot for its checksum if it will have one. `None` if the pool
    /// is full.
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
                let to = self.alloc(writer).ok_or(PlanError::NoSpace)?;
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

    fn walk<M: Medium>(&self, volume: &BlockVolume<M>, block: u64) -> Result<Path, Corrupt> {
        volume.walk(block, self.pending())
    }

    fn pending(&self) -> Option<&dyn Pending> {
        if self.links.is_empty() { None } else { Some(&self.links) }
    }

    /// The address of the entry for `block`, with the branch that leads to it planned if it is
    /// missing.
    fn entry_for_write<M: Medium>(
        &mut self,
        volume: &'v BlockVolume<M>,
        writer: &mut Writer<'_, M>,
        block: u64,
    ) -> Result<PoolOffset, PlanError> {
        self.word_for_write(volume, writer, block, Self::walk)
    }

    /// The same for the slot of the checksum of `block`.
    fn slot_for_write<M: Medium>(
        &mut self,
        volume: &'v BlockVolume<M>,
        writer: &mut Writer<'_, M>,
        block: BlockNo,
    ) -> Result<PoolOffset, PlanError> {
        let at = self.word_for_write(volume, writer, block.0, |plan, volume, block| {
            volume.walk_slots(BlockNo(block), plan.pending(), |_| {})
        })?;
        volume.check_slot(at)?;
        Ok(at)
    }

    /// The address of the word to which `walk` leads for `block`, in either tree.
    fn word_for_write<M: Medium>(
        &mut self,
        volume: &'v BlockVolume<M>,
        writer: &mut Writer<'_, M>,
        block: u64,
        walk: impl Fn(&Self, &BlockVolume<M>, u64) -> Result<Path, Corrupt>,
    ) -> Result<PoolOffset, PlanError> {
        loop {
            let attach = match walk(self, volume, block)? {
                Path::Entry(at) => return Ok(at),
                Path::Missing(attach) => attach,
            };
            if self.structure.is_none() && !planted(Bug::BranchUnlocked) {
                // Somebody may have built the branch before we got the lock: look again.
                self.hold_structure(volume);
                continue;
            }
            let mut nodes: SmallVec<[BlockNo; 4]> = SmallVec::new();
            for _ in 0..attach.nodes_needed() {
                nodes.push(self.alloc(writer).ok_or(PlanError::NoSpace)?);
            }
            let new = map::build_branch(writer, &attach, block, &nodes);
            let old = volume.medium().load_word(attach.at);
            self.change_link(writer, attach.at, old, new);
        }
    }

    /// Does what was planned if the log has room for it, and leaves the epoch.
    pub(crate) fn carry_out<M: Medium>(
        &mut self,
        volume: &BlockVolume<M>,
        mut writer: Writer<'_, M>,
    ) -> Result<Fate, WriteError> {
        let needed = self.log_bytes::<M>();
        if needed > writer.room_bytes() {
            self.abandon(&mut writer);
            let fits_when_empty = needed <= volume.volume().log_half_bytes();
            return Ok(if fits_when_empty { Fate::LogFull } else { Fate::TooLarge });
        }
        let epoch = writer.epoch();
        if let Err(error) = self.execute(volume.medium(), &mut writer) {
            self.abandon(&mut writer);
            return Err(error);
        }
        drop(writer);
        volume.medium().check()?;
        Ok(Fate::Done(epoch))
    }

    /// Does what was planned: fills and records, one fence, then the stores. The fills come
    /// first, so that they are on their way to the medium while the records are made.
    fn execute<M: Medium>(&self, medium: &M, writer: &mut Writer<'_, M>) -> Result<(), WriteError> {
        for fill in self.fills.iter().filter(|fill| !fill.is_in_place()) {
            fill_block(medium, writer, fill);
        }
        self.log(medium, writer)?;
        for fill in self.fills.iter().filter(|fill| fill.is_in_place()) {
            fill_block(medium, writer, fill);
        }
        for sum in &self.sums {
            writer.fill(sum.at, &sum.new.to_le_bytes());
        }
        let mut committed = writer.commit()?;
        for store in self.stores.iter().filter(|store| !store.data.is_empty()) {
            committed.store(store.at, store.data);
        }
        for change in self.words.iter().chain(&self.links) {
            committed.store_word(change.at, change.new);
        }
        for &block in &self.retired {
            committed.retire(block);
        }
        Ok(())
    }
}

static ZEROES: [u8; BLOCK] = [0; BLOCK];

impl Plan<'_, '_> {
    /// Makes the records, and checks that what fills took from old blocks is what was stored there.
    fn log<M: Medium>(&self, medium: &M, writer: &mut Writer<'_, M>) -> Result<(), MediaError> {
        for &(block, lines) in &self.logged_lines {
            writer.log_lines(block, lines)?;
        }
        writer.log_words(&self.logged_words);
        if !medium.has_bad() {
            return Ok(());
        }
        let mut around = self.fills.iter().filter_map(|fill| fill.around);
        around.try_for_each(|block| medium.check_range(block.offset(), BLOCK_U64))
    }
}

/// Streams a whole block: the piece, and around it what the old block held, or zeroes.
pub(crate) fn fill_block_from<M: Medium>(
    medium: &M,
    writer: &mut Writer<'_, M>,
    to: BlockNo,
    around: Option<BlockNo>,
    piece: BlockPiece<'_>,
) {
    fill_block(medium, writer, &Fill { to, around, piece });
}

fn fill_block<M: Medium>(medium: &M, writer: &mut Writer<'_, M>, fill: &Fill<'_>) {
    let piece = fill.piece;
    if piece.data.len() == BLOCK {
        writer.fill(fill.to.offset(), piece.data);
        return;
    }
    let mut image = [0; BLOCK];
    let end = piece.start + piece.data.len();
    if let Some(around) = fill.around {
        medium.read(around.offset(), &mut image[..piece.start]);
        medium.read(around.offset().plus(end as u64), &mut image[end..]);
    }
    image[piece.start..end].copy_from_slice(piece.data);
    writer.fill(fill.to.offset(), &image);
}

impl<M: Medium> BlockVolume<M> {
    /// Walks to the entry of logical block `block`.
    pub(crate) fn walk(&self, block: u64, pending: Option<&dyn Pending>) -> Result<Path, Corrupt> {
        self.walk_seeing(block, pending, |_| {})
    }

    /// The same, with every node passed shown to `on_node`.
    pub(crate) fn walk_seeing(
        &self,
        block: u64,
        pending: Option<&dyn Pending>,
        on_node: impl FnMut(BlockNo),
    ) -> Result<Path, Corrupt> {
        let root_at = self.volume().root_at();
        match self.map_kind() {
            MapKind::Radix => {
                map::walk(self.medium(), root_at, block, self.size_blocks(), pending, on_node)
            }
            MapKind::Direct => {
                let root = map::load_entry(self.medium(), root_at)?.ok_or_else(|| {
                    Corrupt::new("volume root", root_at, "a direct map has no table")
                })?;
                Ok(Path::Entry(map::slot_at(root.block, block)))
            }
        }
    }
}

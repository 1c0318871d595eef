//! Planning writes: what a batch will log, fill and store, decided before anything is stored.
//!
//! Owns the translation of block requests into byte-granular stores. Each piece of a request that
//! lies in one block becomes one of: nothing (no byte changed), a fill of a new block (holes, and
//! pointer logging), or stores in place (data logging, and blocks that are fresh). Nothing that is
//! planned here is visible or reachable until `execute` has committed; a plan can be dropped.
//!
//! Invariants: a plan names a logical block once; the writer's log room covers `log_bytes` when
//! it is executed; a plan that changed the shape of the map holds the structure lock.

mod piece;
mod translate;
mod way;

pub(crate) use piece::{BlockPiece, pieces};

use everbyte_media::{BLOCK, BLOCK_U64, BlockNo, LineMask, MediaError, Medium, PoolOffset};
use everbyte_pool::format::WordItem;
use everbyte_pool::sync::MutexGuard;
use everbyte_pool::{Corrupt, WriteError, Writer};
use smallvec::SmallVec;

use crate::checksum::Unsound;
use crate::map::Pending;
use crate::volume::BlockVolume;

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

/// Room for what requests of a few blocks need, so that they allocate nothing.
type Few<T> = SmallVec<[T; 16]>;

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
    stores: Few<PlacedStore<'d>>,
    retired: Few<BlockNo>,
    allocated: Few<BlockNo>,
    structure: Option<MutexGuard<'v, ()>>,
    approach: Approach,
    /// Whether what it looks at was fetched, so that it may look before bytes are on their way.
    expects: bool,
}

impl Pending for Few<WordChange> {
    fn value(&self, at: PoolOffset) -> Option<u64> {
        self.iter().rev().find(|change| change.at == at).map(|change| change.new)
    }
}

/// How a plan is made. The default is what is tried first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Approach {
    pub(crate) when_full: WhenFull,
    pub(crate) translation: Translation,
}

impl Approach {
    /// For a caller that cannot wait for a checkpoint, or has waited for one.
    pub(crate) const AT_ONCE: Self =
        Self { when_full: WhenFull::Log, translation: Translation::Cheapest };

    /// The same with as little log as there can be. `None` if it is that already.
    pub(crate) fn with_less_log(self) -> Option<Self> {
        let less = Self { translation: Translation::LeastLog, ..self };
        (self.translation == Translation::Cheapest).then_some(less)
    }
}

/// How a plan changes bytes of a block that must outlive an undo.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Translation {
    /// Logs lines or replaces the block, whichever the threshold says.
    #[default]
    Cheapest,
    /// Replaces every block that it would have to log lines of, so that a block takes one word of
    /// the log.
    LeastLog,
}

/// What a plan does where a block is better replaced, and the pool has none for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum WhenFull {
    /// Asks for a checkpoint, if that frees enough to be worth it, or the log has no room for lines.
    #[default]
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
    pub(crate) fn new(approach: Approach) -> Self {
        Self {
            words: Few::new(),
            links: Few::new(),
            logged_words: Few::new(),
            logged_lines: Few::new(),
            fills: Few::new(),
            sums: Few::new(),
            stores: Few::new(),
            retired: Few::new(),
            allocated: Few::new(),
            structure: None,
            approach,
            expects: false,
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

    fn alloc_node<M: Medium>(&mut self, writer: &mut Writer<'_, M>) -> Option<BlockNo> {
        let block = writer.alloc_node()?;
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

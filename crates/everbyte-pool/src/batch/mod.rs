//! Batches: the one way to change persistent structures.
//!
//! A batch joins the epoch, and then collects steps: words and bytes to change, blocks to fill, to allocate
//! and to free. No planned change is reachable before [`Batch::commit`]. The commit makes the records, fences
//! once, and stores. A dropped batch changes nothing.
//!
//! Invariants:
//! - Steps stand in one list, in the order of planning; a savepoint is a length of it.
//! - A word or line has at most one record in a batch, with its contents from before the batch.
//! - Streams and appended records are fenced before the lane is released, also when the batch is abandoned:
//!   other threads cannot fence them, and a torn record hides later ones.
//! - The caller holds the locks of everything the batch names, from before it begins until it ends.
//!
//! Does not know the meaning of the bytes, nor the choice between a record and a new block.

mod carry_out;
mod retry;

pub use retry::{ChangeError, PlanConstraints};

use everbyte_media::{BLOCK, BlockNo, LineMask, Medium, PoolOffset};
use smallvec::SmallVec;

use crate::alloc::BlockRun;
use crate::sync::{Mutex, MutexGuard};
use crate::volume::{Volume, WriteError, Writer};

/// A step of a batch.
#[derive(Clone, Copy, Debug)]
enum Step<'d> {
    /// A word changes; `record` says whether its old value must be logged.
    Word { at: PoolOffset, old: u64, new: u64, record: bool },
    /// The old bytes of lines are logged.
    LogLines { block: BlockNo, lines: LineMask },
    /// Stores bytes of logged or fresh lines in place, after the fence.
    Store { at: PoolOffset, data: &'d [u8] },
    /// A block is filled as a whole, before the fence.
    Fill(Fill<'d>),
    /// Stores a word without reliance of undo on it, before the fence.
    FillWord { at: PoolOffset, new: u64 },
    /// A block was allocated.
    Alloc(BlockNo),
    /// A run of blocks was allocated.
    AllocRun(BlockRun),
    /// A block is freed once nothing durable names it.
    Free(BlockNo),
    /// A run of blocks is freed once nothing durable names it.
    FreeRun(BlockRun),
}

/// A fill of a whole block: the content of another block, or zeroes, with new bytes over it.
#[derive(Clone, Copy, Debug)]
pub struct Fill<'d> {
    /// The filled block. It is fresh, or no durable word leads to it.
    pub to: BlockNo,
    /// Source of the bytes around `data`; `None` for zeroes.
    pub around: Option<BlockNo>,
    /// First byte of `data` in the block, below 4096.
    pub start: usize,
    /// The new bytes. They end within the block.
    pub data: &'d [u8],
}

impl Fill<'_> {
    /// Returns true if the fill is over the block's own old bytes. Such a fill waits until no step of the batch
    /// can fail.
    fn is_in_place(&self) -> bool {
        self.around == Some(self.to)
    }
}

/// A point in a batch for a roll-back of its plan.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Savepoint(usize);

/// Outcome of an attempt to carry out a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BatchOutcome {
    /// Carried out, in this epoch.
    Done(u64),
    /// Abandoned: the log has no room now, and will have room after a checkpoint.
    LogFull,
    /// Abandoned: the records never fit in the log.
    TooLarge,
}

/// An atomic change of persistent structures.
///
/// Its life: [`Volume::begin_batch`], any number of steps, [`Batch::commit`]. Until its end the thread must not wait
/// for a socket, a checkpoint or space, because the open batch prevents the seal of the epoch.
pub struct Batch<'v, 'd, M: Medium> {
    writer: Writer<'v, M>,
    steps: SmallVec<[Step<'d>; 24]>,
    /// Places of the steps with changes visible to the plan, ascending.
    visible: SmallVec<[u32; 4]>,
    /// Locks held until the end of the batch. The batch changes the guarded structures.
    held: SmallVec<[Held<'v>; 1]>,
}

/// A lock held by a batch.
struct Held<'v> {
    lock: &'v Mutex<()>,
    _guard: MutexGuard<'v, ()>,
}

/// Blocks of the longest run.
const RUN_BLOCKS_MAX: u64 = 512;

impl<M: Medium> Volume<M> {
    /// Joins the current epoch with an empty batch.
    ///
    /// # Errors
    /// As [`Volume::join`].
    pub fn begin_batch<'d>(&self) -> Result<Batch<'_, 'd, M>, WriteError> {
        Ok(Batch::new(self.join()?))
    }
}

impl<'v, 'd, M: Medium> Batch<'v, 'd, M> {
    #[inline(always)]
    fn new(writer: Writer<'v, M>) -> Self {
        Self { writer, steps: SmallVec::new(), visible: SmallVec::new(), held: SmallVec::new() }
    }

    /// The thread's writer in the epoch, for tests of fresh blocks and logged lines.
    #[must_use]
    pub fn writer(&self) -> &Writer<'v, M> {
        &self.writer
    }

    /// The changed volume.
    #[must_use]
    pub fn volume(&self) -> &'v Volume<M> {
        self.writer.volume()
    }

    /// Reserves memory for `steps` more steps: the list of a large plan grows once.
    pub fn reserve(&mut self, steps: usize) {
        self.steps.reserve(steps);
    }

    /// Takes `lock` until the end of the batch, unless the batch holds it already. Returns true if this call took
    /// it: another thread may have held it a moment ago.
    pub fn hold(&mut self, lock: &'v Mutex<()>) -> bool {
        // A second lock by the same thread would wait for itself.
        if self.held.iter().any(|held| std::ptr::eq(held.lock, lock)) {
            return false;
        }
        self.held.push(Held { lock, _guard: lock.lock() });
        true
    }

    /// Returns the present end of the plan.
    pub fn savepoint(&self) -> Savepoint {
        Savepoint(self.steps.len())
    }

    /// Blocks allocated since `savepoint`, less the blocks freed since.
    #[must_use]
    pub fn allocated_since(&self, savepoint: Savepoint) -> i64 {
        let blocks = |run: &BlockRun| i64::try_from(run.len).expect("a run has at most 512 blocks");
        let steps = self.steps[savepoint.0..].iter();
        steps.fold(0, |taken, step| match step {
            Step::Alloc(_) => taken + 1,
            Step::Free(_) => taken - 1,
            Step::AllocRun(run) => taken + blocks(run),
            Step::FreeRun(run) => taken - blocks(run),
            _ => taken,
        })
    }

    /// Marks the lines of `at .. at + len`, in one block of the volume, as unreachable from durable
    /// words: they need no undo record in this epoch. Requires: free in every open epoch.
    pub fn claim_lines(&mut self, at: PoolOffset, len: usize) {
        self.writer.claim_lines(at, len);
    }

    /// Drops every step since `savepoint`. Blocks allocated since are free again.
    pub fn roll_back(&mut self, savepoint: Savepoint) {
        let Savepoint(len) = savepoint;
        // A roll-back to an earlier point may have shortened the list already.
        let kept = self.steps.len().min(len);
        self.cancel_allocs(kept);
        while self.visible.last().is_some_and(|&place| place as usize >= kept) {
            self.visible.pop();
        }
    }

    /// Drops the steps from place `kept` on, and frees the blocks they allocated.
    fn cancel_allocs(&mut self, kept: usize) {
        for step in self.steps.drain(kept..) {
            match step {
                Step::Alloc(block) => self.writer.cancel_alloc(block),
                Step::AllocRun(run) => self.writer.cancel_alloc_run(run),
                _ => {}
            }
        }
    }

    /// Allocates a block. The block is fresh from now on. `None` if the pool is full.
    pub fn alloc(&mut self) -> Option<BlockNo> {
        let block = self.writer.alloc()?;
        self.steps.push(Step::Alloc(block));
        Some(block)
    }

    /// Allocates a block for a node of a map, near other nodes.
    pub fn alloc_node(&mut self) -> Option<BlockNo> {
        let block = self.writer.alloc_node()?;
        self.steps.push(Step::Alloc(block));
        Some(block)
    }

    /// Allocates `blocks` adjacent blocks at a multiple of that number, a power of two up to 512 (2 MiB).
    /// They are fresh from now on. `None` without such a free run.
    pub fn alloc_run(&mut self, blocks: u64) -> Option<BlockRun> {
        let run = self.writer.alloc_run(blocks)?;
        self.steps.push(Step::AllocRun(run));
        Some(run)
    }

    /// Plans to free a run of [`Batch::alloc_run`]: it is free once nothing durable names it.
    pub fn free_run(&mut self, run: BlockRun) {
        self.steps.push(Step::FreeRun(run));
    }

    /// Plans to free `block`: it is free once nothing durable names it.
    pub fn free(&mut self, block: BlockNo) {
        self.steps.push(Step::Free(block));
    }

    /// Plans to free all of `blocks` as [`Batch::free`] does. Ascending blocks in whole aligned runs of 2 MiB
    /// are freed as runs.
    pub fn free_all(&mut self, blocks: impl IntoIterator<Item = BlockNo>) {
        let mut open = BlockRun { start: BlockNo(0), len: 0 };
        for block in blocks {
            if open.len == 0 || block.0 != open.start.0 + open.len {
                open.blocks().for_each(|block| self.free(block));
                open = BlockRun { start: block, len: 0 };
            }
            open.len += 1;
            // Only an aligned start can grow into a whole run.
            if !open.start.0.is_multiple_of(RUN_BLOCKS_MAX) {
                self.free(block);
                open.len = 0;
            } else if open.len == RUN_BLOCKS_MAX {
                self.free_run(open);
                open.len = 0;
            }
        }
        open.blocks().for_each(|block| self.free(block));
    }

    /// The word at `at` as it is once the batch is carried out, as far as it was changed by
    /// [`Batch::change_word`].
    #[must_use]
    #[inline]
    pub fn word(&self, at: PoolOffset) -> u64 {
        if self.visible.is_empty() {
            return self.volume().medium().load_word(at);
        }
        self.pending_word(at).unwrap_or_else(|| self.volume().medium().load_word(at))
    }

    /// Overlays `words`, read at `at`, with the changes of [`Batch::change_word`].
    pub fn overlay_pending(&self, at: PoolOffset, words: &mut [u64]) {
        for &place in &self.visible {
            let Step::Word { at: word, new, .. } = self.steps[place as usize] else { continue };
            let index = word.0.checked_sub(at.0).and_then(|bytes| usize::try_from(bytes / 8).ok());
            if let Some(seen) = index.and_then(|index| words.get_mut(index)) {
                *seen = new;
            }
        }
    }

    /// Returns true if [`Batch::change_word`] has changed anything yet.
    #[must_use]
    pub fn has_pending_words(&self) -> bool {
        !self.visible.is_empty()
    }

    fn pending_word(&self, at: PoolOffset) -> Option<u64> {
        // Newest first: the last change of a word counts.
        self.visible.iter().rev().find_map(|&place| match self.steps[place as usize] {
            Step::Word { at: word, new, .. } if word == at => Some(new),
            _ => None,
        })
    }

    /// Plans the change of the word at `at` to `new`. The batch itself reads the new value immediately, and
    /// may change the word again. For a handful of words: each read of one passes over all of them.
    pub fn change_word(&mut self, at: PoolOffset, new: u64) {
        let own = self.pending_word(at);
        // Undo restores the value before the batch, so only the first change has a record.
        let record = own.is_none() && !self.writer.has_undo_record(at);
        let old = own.unwrap_or_else(|| self.volume().medium().load_word(at));
        let place = u32::try_from(self.steps.len()).expect("so many steps would take 200 GB");
        self.visible.push(place);
        self.steps.push(Step::Word { at, old, new, record });
    }

    /// Plans the change of the word at `at` from `old`, its present value, to `new`. For any number of words.
    /// The batch changes each once and does not read it again.
    pub fn change_word_once(&mut self, at: PoolOffset, old: u64, new: u64) {
        let record = !self.writer.has_undo_record(at);
        self.steps.push(Step::Word { at, old, new, record });
    }

    /// Plans to log the old bytes of `lines` of `block`. The lines have no record in this epoch or batch.
    pub fn log_lines(&mut self, block: BlockNo, lines: LineMask) {
        if !lines.is_empty() {
            self.steps.push(Step::LogLines { block, lines });
        }
    }

    /// Plans to store `data` at `at`, in one block, over lines that are fresh, logged, or logged by this
    /// batch.
    pub fn store(&mut self, at: PoolOffset, data: &'d [u8]) {
        if !data.is_empty() {
            self.steps.push(Step::Store { at, data });
        }
    }

    /// Plans the change of bytes of one block at `at` to `data`: logs the old bytes of those lines that need
    /// it, and stores. For structures logged by line under one lock; a batch changes each line once.
    pub fn change_bytes(&mut self, at: PoolOffset, data: &'d [u8]) {
        let block = at.block();
        // Undo takes back a fresh block as a whole, and restores none of its lines.
        if !self.writer.is_fresh(block) {
            let lines = LineMask::covering(at.in_block(), data.len());
            // The marks of this batch's own records come only after its fence.
            let lines = lines.without(self.writer.logged(block)).without(self.own_lines(block));
            self.log_lines(block, lines);
        }
        self.store(at, data);
    }

    /// Lines of `block` logged by this batch.
    fn own_lines(&self, block: BlockNo) -> LineMask {
        self.steps.iter().fold(LineMask::EMPTY, |seen, step| match *step {
            Step::LogLines { block: logged, lines } if logged == block => seen.or(lines),
            _ => seen,
        })
    }

    /// Streams `bytes` immediately to a place outside all durable structures: they are on their way while the
    /// rest is planned. If the batch is abandoned, no reader ever reads them.
    pub fn stream(&mut self, at: PoolOffset, bytes: &[u8]) {
        self.writer.fill(at, bytes);
    }

    /// Plans to fill a block as a whole.
    pub fn fill(&mut self, fill: Fill<'d>) {
        debug_assert!(fill.start + fill.data.len() <= BLOCK, "a fill ends within its block");
        self.steps.push(Step::Fill(fill));
    }

    /// Plans to store the word at `at` before the fence. Undo does not rely on the word.
    pub fn fill_word(&mut self, at: PoolOffset, new: u64) {
        self.steps.push(Step::FillWord { at, new });
    }
}

//! Writing to a volume inside an epoch.
//!
//! The order that makes a write crash-proof, which the two types here impose:
//! 1. A `Writer` appends records of what will be overwritten, and fills blocks that nothing
//!    durable can reach yet.
//! 2. `commit` fences. Only the `Committed` it returns can
//! 3. store in place, and defer freeing the blocks that were replaced.
//!
//! Invariants: a line or word gets one record per epoch; a block that is fresh in the epoch gets
//! none; whatever is stored with ordinary stores is on the lane's dirty list; whatever is logged
//! is too, so that the checkpoint forgets its marks, but is dirty only if its writer goes on to store.
//! The caller holds the locks of the blocks and words it names from before `join` until the writer is
//! dropped.

use std::sync::atomic::Ordering;

use everbyte_media::{BLOCK, BlockNo, LineMask, MediaError, Medium, PoolOffset};
use everbyte_plant::planted;

use super::{Lane, Volume, WriteError};
use crate::alloc::{Allocator, BlockRun, CellSize};
use crate::epoch::GroupedWords;
use crate::format::{WordItem, lines_record_bytes, words_record_bytes};
use crate::persist::{Dirty, InFlight};
use crate::plant::Bug;
use crate::sync::MutexGuard;

/// Blocks that a lane takes from the allocator at a time while there is plenty.
const ALLOC_BATCH: usize = 32;
/// The same for nodes of maps: enough that they lie together, away from the data that is written
/// while they are added.
const NODES_BATCH: usize = 64;
/// Longest run: a region of the allocator.
const RUN_BLOCKS_MAX: usize = 512;
/// Share of the pool, as a divisor, that a lane takes for nodes at most.
const NODES_SHARE: usize = 1024;

/// A thread inside the current epoch, with a lane of the log of its own.
///
/// It appends records of what will be overwritten, and fills blocks that nothing durable can reach
/// yet. [`Writer::commit`] fences; only the [`Committed`] it returns can store in place and defer
/// freeing the blocks that were replaced. The caller holds the locks of the blocks and words that
/// it names from before it joined until the writer is dropped.
pub struct Writer<'v, M: Medium> {
    volume: &'v Volume<M>,
    lane: MutexGuard<'v, Lane>,
    /// Streams and appended records since the last fence.
    in_flight: Option<InFlight<()>>,
    /// True if it writes while its thread unwinds, so that its end says nothing of its own writes.
    joined_in_panic: bool,
}

impl<M: Medium> Drop for Writer<'_, M> {
    fn drop(&mut self) {
        // Before the lane is given back, so that neither the next one on it nor who seals the epoch
        // can miss it.
        if std::thread::panicking() && !self.joined_in_panic {
            self.volume.leave_unfinished();
        }
        self.volume.count_dirty(&mut self.lane.dirty);
    }
}

/// A writer whose records are durable: it may store in place.
pub struct Committed<'w, 'v, M: Medium>(&'w mut Writer<'v, M>);

impl<M: Medium> Volume<M> {
    /// Joins the current epoch on a lane of the thread's own if possible. The epoch cannot be
    /// sealed until the writer is dropped, so nothing slow may happen meanwhile: no socket, no
    /// checkpoint, no waiting for space.
    ///
    /// # Errors
    /// The volume is read-only, gone, or its medium failed.
    pub fn join(&self) -> Result<Writer<'_, M>, WriteError> {
        if self.lanes.is_empty() {
            return Err(WriteError::NoLog);
        }
        let writer = Writer::new(self, self.take_lane());
        if let Some(reason) = self.read_only_reason() {
            return Err(WriteError::ReadOnly { reason: reason.to_owned() });
        }
        if self.is_gone() {
            return Err(WriteError::Gone);
        }
        self.medium().check()?;
        Ok(writer)
    }
}

/// Takes up to `want` blocks near `hint` from the allocator, as far as the volume may have them.
fn take_batch<M: Medium>(volume: &Volume<M>, hint: u64, want: usize, out: &mut Vec<u64>) {
    let reserved = volume.usage.reserve(want as u64);
    let want = usize::try_from(reserved).unwrap_or(want);
    let got = match want {
        0 => 0,
        want => volume.shared.alloc.alloc_batch(hint, want, out),
    };
    volume.usage.subtract(reserved - got as u64);
}

impl<'v, M: Medium> Writer<'v, M> {
    pub(super) fn new(volume: &'v Volume<M>, lane: MutexGuard<'v, Lane>) -> Self {
        Self { volume, lane, in_flight: None, joined_in_panic: std::thread::panicking() }
    }

    /// The volume that is written.
    #[must_use]
    pub fn volume(&self) -> &'v Volume<M> {
        self.volume
    }

    /// Returns true if a stream, an appended record or a flush is not fenced yet.
    #[must_use]
    pub(crate) fn is_unfenced(&self) -> bool {
        self.in_flight.is_some()
    }

    /// The epoch that this writer is in.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.lane.log.epoch()
    }

    /// Bytes of records that still fit.
    #[must_use]
    pub fn room_bytes(&self) -> u64 {
        self.lane.log.room_bytes()
    }

    /// Bytes that one record of `count` words takes.
    #[must_use]
    pub fn words_bytes(count: usize) -> u64 {
        words_record_bytes(count)
    }

    /// Bytes that one record of `lines` takes.
    #[must_use]
    pub fn lines_bytes(lines: LineMask) -> u64 {
        lines_record_bytes(lines.count())
    }

    /// Takes a free block, which is fresh from now on. `None` if the pool is full.
    pub fn alloc(&mut self) -> Option<BlockNo> {
        let block = loop {
            let block = self.next_preallocated()?;
            if !self.withholds(block) {
                break block;
            }
        };
        if let Some(&next) = self.lane.free.last() {
            self.volume.shared.states.get(BlockNo(next)).prefetch_fresh();
        }
        Some(self.own(block))
    }

    /// The next block that the lane took in advance, which it does here if there is none.
    fn next_preallocated(&mut self) -> Option<BlockNo> {
        let lane = &mut *self.lane;
        if lane.free.is_empty() {
            let alloc = &self.volume.shared.alloc;
            let want = if alloc.is_low() { 1 } else { ALLOC_BATCH };
            take_batch(self.volume, lane.hint, want, &mut lane.free);
            lane.hint = lane.free.last().copied().unwrap_or(lane.hint);
            lane.free.reverse();
        }
        lane.free.pop().or_else(|| lane.free_for_nodes.pop()).map(BlockNo)
    }

    /// Returns true if `block`, which the lane took in advance or was given back, has turned out to be bad:
    /// it is nobody's then.
    fn withholds(&self, block: BlockNo) -> bool {
        let is_bad = self.volume.shared.withhold_if_bad(block);
        if is_bad {
            self.volume.usage.subtract(1);
        }
        is_bad
    }

    /// The same for a node of a map, near others: what is kept of nodes in DRAM, and of their
    /// addresses by the processor, lies together then. Data goes on where it was.
    pub fn alloc_node(&mut self) -> Option<BlockNo> {
        let lane = &mut *self.lane;
        if lane.free_for_nodes.is_empty() {
            let alloc = &self.volume.shared.alloc;
            let total =
                usize::try_from(alloc.total_blocks()).expect("there is address space for them");
            if !alloc.is_low() {
                let want = NODES_BATCH.min(total / NODES_SHARE);
                take_batch(self.volume, lane.hint, want, &mut lane.free_for_nodes);
                lane.free_for_nodes.reverse();
            }
        }
        while let Some(block) = self.lane.free_for_nodes.pop() {
            if !self.withholds(BlockNo(block)) {
                return Some(self.own(BlockNo(block)));
            }
        }
        self.alloc()
    }

    /// Notes that `block` was just taken.
    fn own(&mut self, block: BlockNo) -> BlockNo {
        let epoch = self.epoch();
        let lane = &mut *self.lane;
        if let Some(blocks) = &mut lane.group_blocks {
            blocks.push(block);
        }
        lane.touched = true;
        self.volume.shared.states.get(block).set_fresh(epoch);
        block
    }

    /// Takes `blocks` adjacent free blocks at a multiple of that number, a power of two up to 512
    /// (2 MiB). They are fresh from now on. `None` if there is no such run.
    pub fn alloc_run(&mut self, blocks: u64) -> Option<BlockRun> {
        let alloc = &self.volume.shared.alloc;
        let is_allowed = self.volume.usage.reserve_all(blocks);
        let find = || {
            let near = alloc.alloc_aligned(blocks, self.lane.hint);
            near.or_else(|| find_run(alloc, blocks))
        };
        let take = || self.volume.shared.take_sound_run(find);
        let Some(run) = is_allowed.then(take).flatten() else {
            if is_allowed {
                self.volume.usage.subtract(blocks);
            }
            // The lane may have preallocated ones.
            let block = if blocks == 1 { self.alloc() } else { None };
            return block.map(|start| BlockRun { start, len: 1 });
        };
        if run.len < RUN_BLOCKS_MAX as u64 {
            // The next ones come from the same region, and break no other.
            self.lane.hint = run.start.0;
        }
        for block in run.blocks() {
            self.own(block);
        }
        Some(run)
    }

    /// Gives back a run of `alloc_run` that nothing names yet. It is free once the epoch is
    /// durable: what was streamed there is not fenced yet, and others could stream over it.
    pub fn cancel_alloc_run(&mut self, run: BlockRun) {
        self.lane.deferred.runs.push(run);
    }

    /// Takes a free cell. Its lines need no record in this epoch: nothing durable names it, and it
    /// was free before every open epoch, because a freed cell is free for others only once that is
    /// durable. `None` if the pool is full. Not within a group.
    pub fn alloc_cell(&mut self, size: CellSize) -> Option<PoolOffset> {
        debug_assert!(
            self.lane.group_blocks.is_none(),
            "a group that is rolled back knows no cells"
        );
        let at = loop {
            if self.lane.cells[size.index()].is_empty() {
                self.fetch_cells(size)?;
            }
            let at = self.lane.cells[size.index()].pop()?;
            if self.volume.medium().check_range(at, size.bytes()).is_ok() {
                break at;
            }
            // Its block is withheld once the last of its cells is given back.
            self.cancel_alloc_cell(at, size);
        };
        let (block, epoch) = (at.block(), self.epoch());
        let lines = match planted(Bug::CellsFreshByBlock) {
            true => LineMask::FULL,
            false => size.lines(at),
        };
        self.volume.shared.states.get(block).add_logged(epoch, lines);
        // Whatever is noted of a block is forgotten for those on the list.
        self.lane.dirty.note_marked(block);
        self.lane.touched = true;
        Some(at)
    }

    /// Says that the lines of `at .. at + len`, in one block, need no record in this epoch: nothing
    /// durable reaches them, and they were free before every open epoch.
    pub(crate) fn claim_lines(&mut self, at: PoolOffset, len: usize) {
        let lines = LineMask::covering(at.in_block(), len);
        self.volume.shared.states.at(at).add_logged(self.epoch(), lines);
        self.lane.dirty.note_marked(at.block());
        self.lane.touched = true;
    }

    /// Takes free cells in advance: those of one block that has some, or a whole new block.
    fn fetch_cells(&mut self, size: CellSize) -> Option<()> {
        let volume = self.volume;
        volume.cells.take_some(size, &mut self.lane.cells[size.index()]);
        if self.lane.cells[size.index()].is_empty() {
            let block = self.alloc()?;
            // Its cells are fresh one by one.
            volume.shared.states.get(block).set_fresh(0);
            volume.cells.add(block, size, &mut self.lane.cells[size.index()]);
        }
        Some(())
    }

    /// Gives back a cell of `alloc_cell` that nothing names yet. It is free once the epoch is
    /// durable: until then its lines are marked, and its block must not become another volume's.
    pub fn cancel_alloc_cell(&mut self, at: PoolOffset, size: CellSize) {
        self.lane.deferred.cells.push((at, size));
    }

    /// Gives back a block of `alloc` or `alloc_node` that nothing names yet.
    pub fn cancel_alloc(&mut self, block: BlockNo) {
        if let Some(blocks) = &mut self.lane.group_blocks {
            blocks.retain(|&b| b != block);
        }
        self.lane.free.push(block.0);
    }

    /// Deferred frees of blocks of this lane in this epoch: the next checkpoint frees them.
    #[must_use]
    pub fn deferred_blocks(&self) -> usize {
        self.lane.deferred.blocks.len()
    }

    /// Returns true if `block` was allocated in this epoch.
    #[must_use]
    pub fn is_fresh(&self, block: BlockNo) -> bool {
        self.volume.shared.states.get(block).is_fresh(self.epoch())
    }

    /// Lines of `block` that have a record in this epoch.
    #[must_use]
    pub fn logged(&self, block: BlockNo) -> LineMask {
        if planted(Bug::LoggedTwice) {
            return LineMask::EMPTY;
        }
        self.volume.shared.states.get(block).logged(self.epoch())
    }

    /// Returns true if the word at `at` needs no record: it has one, its line has, or it lies in a
    /// fresh block or cell.
    #[must_use]
    pub fn has_undo_record(&self, at: PoolOffset) -> bool {
        self.volume.shared.states.at(at).covers_word(self.epoch(), at)
    }

    /// Saves the old values of words that are not covered, as the caller has loaded them. The room was
    /// checked by the caller.
    ///
    /// # Errors
    /// One of the words has turned out to be bad, so that a zero may stand for what was stored there, which
    /// undo would restore; nothing is logged then. As for [`Writer::log_lines`] otherwise.
    pub fn log_words(&mut self, items: &[WordItem]) -> Result<(), MediaError> {
        if items.is_empty() {
            return Ok(());
        }
        let medium = self.volume.medium();
        if medium.has_poison() {
            items.iter().try_for_each(|item| medium.check_range(PoolOffset(item.target), 8))?;
        }
        self.append(|lane, medium| Ok(lane.log.append_words(medium, items)))?;
        self.lane.words_to_note.extend(items.iter().map(|item| PoolOffset(item.target)));
        Ok(())
    }

    /// Saves the bytes that `lines` of `block` have now. The room was checked by the caller.
    ///
    /// # Errors
    /// `block` has turned out to be bad; nothing of it is logged then. What was logged before needs
    /// a commit all the same: torn, it would hide later records of the lane from recovery.
    pub fn log_lines(&mut self, block: BlockNo, lines: LineMask) -> Result<(), MediaError> {
        if lines.is_empty() {
            return Ok(());
        }
        self.append(|lane, medium| lane.log.append_lines(medium, block, lines).map(Some))?;
        self.lane.lines_to_note.push((block, lines));
        Ok(())
    }

    /// Saves the bytes that `lines` of `block` will have with `data` at byte `start`, so that a
    /// crash from the commit on leaves these. The room was checked by the caller, who has also
    /// asked [`Volume::fua_fast_path_allowed`] under the block's lock.
    ///
    /// # Errors
    /// `block` has turned out to be bad; nothing is logged then.
    pub fn log_redo(
        &mut self,
        block: BlockNo,
        lines: LineMask,
        start: usize,
        data: &[u8],
    ) -> Result<(), MediaError> {
        let order = self.volume.redo_order.fetch_add(1, Ordering::Relaxed);
        self.append(|lane, medium| {
            lane.log.append_redo(medium, order, block, lines, (start, data)).map(Some)
        })
    }

    fn append(
        &mut self,
        record: impl FnOnce(&mut Lane, &M) -> Result<Option<InFlight<()>>, MediaError>,
    ) -> Result<(), MediaError> {
        let before = self.lane.log.used_bytes();
        let in_flight = record(&mut self.lane, &self.volume.shared.medium)?;
        self.lane.log_bytes += self.lane.log.used_bytes() - before;
        if self.lane.log.used_bytes() * 2 >= self.volume.log_half_bytes() {
            self.volume.ask_for_checkpoint();
        }
        self.lane.touched = true;
        self.in_flight = in_flight.or(self.in_flight.take());
        Ok(())
    }

    /// Streams `bytes` into a block that is fresh, or that nothing durable reads. Durable with
    /// the next `commit`.
    pub fn fill(&mut self, at: PoolOffset, bytes: &[u8]) {
        self.in_flight = Some(InFlight::stream(&*self.volume.shared.medium, at, bytes));
    }

    /// Fills a block as a whole: with `data` from byte `start` on, and around it with what the
    /// block `around` holds, or zeroes.
    pub fn fill_block(&mut self, to: BlockNo, around: Option<BlockNo>, start: usize, data: &[u8]) {
        if data.len() == BLOCK {
            self.fill(to.offset(), data);
            return;
        }
        let mut image = [0; BLOCK];
        let end = start + data.len();
        if let Some(around) = around {
            let medium = self.volume.medium();
            medium.read(around.offset(), &mut image[..start]);
            medium.read(around.offset().plus(end as u64), &mut image[end..]);
        }
        image[start..end].copy_from_slice(data);
        self.fill(to.offset(), &image);
    }

    /// Makes everything appended and filled durable, with one fence, or none if there is nothing.
    ///
    /// # Errors
    /// The medium's; nothing has been stored in place then, and nothing can be any more.
    pub fn commit(&mut self) -> Result<Committed<'_, 'v, M>, MediaError> {
        self.fence_records()?;
        self.note_logged(true);
        Ok(Committed(self))
    }

    /// The same for what was given up: nothing of it is going to be stored to, so the checkpoint has none of its
    /// lines to flush. A flush of one that failed meanwhile would fail the medium, though no store is lost.
    ///
    /// # Errors
    /// The medium's.
    pub(crate) fn commit_abandoned(&mut self) -> Result<(), MediaError> {
        self.fence_records()?;
        self.note_logged(false);
        Ok(())
    }

    /// Fences what was appended and filled, if there is anything.
    #[inline]
    fn fence_records(&mut self) -> Result<(), MediaError> {
        if let Some(in_flight) = &self.in_flight {
            if planted(Bug::LaneShared) {
                MutexGuard::unlocked(&mut self.lane, || self.volume.shared.medium.fence())?;
            }
            in_flight.wait(&*self.volume.shared.medium)?;
        }
        self.in_flight = None;
        self.lane.log.committed();
        Ok(())
    }

    /// Marks what was logged since the last commit, and as dirty if it `is_stored` to next. Only now may others
    /// rely on the records; and before the fence the marks, being locked operations, would wait for what was
    /// streamed.
    #[inline]
    fn note_logged(&mut self, is_stored: bool) {
        let epoch = self.epoch();
        let lane = &mut *self.lane;
        let states = &self.volume.shared.states;
        let mut rest = lane.words_to_note.as_slice();
        while let Some(words) = GroupedWords::take(&mut rest) {
            let state = states.get(words.block());
            state.set_words_logged(epoch, &words);
            if is_stored {
                lane.dirty.note(state, epoch, words.block(), words.lines());
            } else {
                lane.dirty.note_marked(words.block());
            }
        }
        lane.words_to_note.clear();
        for (block, lines) in lane.lines_to_note.drain(..) {
            let state = states.get(block);
            state.add_logged(epoch, lines);
            if is_stored {
                lane.dirty.note(state, epoch, block, lines);
            } else {
                lane.dirty.note_marked(block);
            }
        }
    }

    /// Notes lines that are about to be stored to. Before, not after: a locked operation would
    /// wait for the stores.
    fn mark_dirty(&mut self, at: PoolOffset, len: usize) {
        let block = at.block();
        let lines = LineMask::covering(at.in_block(), len);
        self.lane.touched = true;
        let state = self.volume.shared.states.get(block);
        let epoch = self.lane.log.epoch();
        self.lane.dirty.note(state, epoch, block, lines);
    }
}

/// Looks everywhere for a run, where neither the first place that was asked nor any whole region
/// has one. Only runs of 2 to 256 blocks can be anywhere else, and take time that grows with the pool:
/// one block is found by the slot tree, and a region was looked for by the tree of regions.
#[cold]
fn find_run(alloc: &Allocator, blocks: u64) -> Option<BlockRun> {
    if !(2..RUN_BLOCKS_MAX as u64).contains(&blocks) || alloc.free_blocks() < blocks {
        return None;
    }
    let regions = (0..alloc.total_blocks()).step_by(RUN_BLOCKS_MAX);
    regions.into_iter().find_map(|region| alloc.alloc_aligned(blocks, region))
}

impl<M: Medium> Committed<'_, '_, M> {
    /// Stores one covered word. Durable with the epoch.
    pub fn store_word(&mut self, at: PoolOffset, value: u64) {
        debug_assert!(self.0.has_undo_record(at), "the word at {at} has no record");
        self.0.mark_dirty(at, 8);
        self.0.volume.shared.medium.store_word(at, value);
    }

    /// Stores bytes over lines of one block that are logged or fresh, durable with the epoch; or
    /// bytes that a redo record has, which are durable already.
    pub fn store(&mut self, at: PoolOffset, bytes: &[u8]) {
        self.0.mark_dirty(at, bytes.len());
        self.0.volume.shared.medium.store(at, bytes);
    }

    /// Stores words and makes them durable at once, outside the epochs: the FUA fast path. Each is so for
    /// itself: a crash leaves any of them. The caller has asked `Volume::fua_fast_path_allowed` for each, under
    /// the locks of the blocks.
    ///
    /// # Errors
    /// The medium's; any of the words may be durable then.
    pub fn store_words_durably(&mut self, words: &[(PoolOffset, u64)]) -> Result<(), MediaError> {
        if words.is_empty() {
            return Ok(());
        }
        let medium = &*self.0.volume.shared.medium;
        let mut dirty = Dirty::default();
        for &(at, value) in words {
            dirty.store_word(medium, at, value);
        }
        dirty.flush(medium).fence(medium)?;
        Ok(())
    }

    /// Frees a block that was replaced or unmapped once the epoch is durable. A fresh block is free
    /// at once, since no undo brings a word back that names it, unless the checkpoint still has to
    /// flush lines of it, or it is pinned.
    pub fn defer_free(&mut self, block: BlockNo) {
        if planted(Bug::ReuseWithoutQuarantine) {
            self.0.lane.free.push(block.0);
            return;
        }
        if planted(Bug::DirtyDroppedOnReplace) {
            let state = self.0.volume.shared.states.get(block);
            let current = self.0.epoch();
            state.forget(current + 1);
        }
        self.0.lane.touched = true;
        let state = self.0.volume.shared.states.get(block);
        // What a group took on another lane stays on that one's list, for a roll-back to give up.
        let groups = self.0.lane.group_blocks.as_ref();
        let is_ours =
            groups.is_none_or(|blocks| blocks.contains(&block)) || planted(Bug::GroupBlocksFreed);
        let is_unmarked = match planted(Bug::MarkedBlocksFreed) {
            true => state.is_fresh(self.0.epoch()),
            false => state.is_untouched_since(self.0.epoch()),
        };
        let is_pinned = self.0.volume.pins.has(block) && !planted(Bug::PinIgnoredByRelease);
        if is_ours && is_unmarked && !is_pinned {
            self.0.cancel_alloc(block);
        } else {
            self.0.lane.deferred.blocks.push(block);
        }
    }

    /// Frees a run of `alloc_run` once the epoch is durable.
    pub fn defer_free_run(&mut self, run: BlockRun) {
        if planted(Bug::RunFreedEarly) {
            self.0.volume.give_back_run(run);
            return;
        }
        self.0.lane.touched = true;
        self.0.lane.deferred.runs.push(run);
    }

    /// Gives up a cell: it is free once the epoch is durable.
    pub fn defer_free_cell(&mut self, at: PoolOffset, size: CellSize) {
        if planted(Bug::CellRefilledEarly) {
            self.0.lane.cells[size.index()].push(at);
            return;
        }
        self.0.lane.touched = true;
        self.0.lane.deferred.cells.push((at, size));
    }

    /// Says that `block`, just allocated, is reachable from durable words already, so that later
    /// writes in this epoch must log it.
    pub fn mark_reachable(&mut self, block: BlockNo) {
        self.0.volume.shared.states.get(block).set_fresh(0);
    }
}

//! Writes to a volume in an epoch.
//!
//! Two types impose the order of a crash-proof write:
//! 1. A `Writer` appends undo records, and fills blocks outside the reach of all durable words.
//! 2. `commit` fences and returns a `Committed`.
//! 3. Only a `Committed` stores in place and defers the frees of replaced blocks.
//!
//! Invariants: a line or word gets one record per epoch. A block that is fresh in the epoch gets none. Each
//! ordinary store is on the lane's dirty list. Each logged line is on the list too, so that the checkpoint
//! clears its marks, but is dirty only if its writer stores to it. The caller holds the locks of the named
//! blocks and words from before `join` until the drop of the writer.

use std::convert::Infallible;
use std::sync::atomic::Ordering;

use everbyte_media::{BLOCK, BlockNo, LineMask, MediaError, Medium, PoolOffset};
use everbyte_plant::planted;

use super::{Lane, Volume, WriteError};
use crate::alloc::{Allocator, BlockRun};
use crate::epoch::GroupedWords;
use crate::format::{WordItem, lines_record_bytes, words_record_bytes};
use crate::persist::{Dirty, InFlight};
use crate::plant::Bug;
use crate::sync::MutexGuard;

/// Number of blocks preallocated by a lane at a time while the pool has plenty.
const ALLOC_BATCH: usize = 32;
/// Blocks for nodes of maps preallocated by a lane at a time: enough to keep nodes together and apart from
/// concurrent data.
const NODES_BATCH: usize = 64;
/// Longest run: a region of the allocator.
const RUN_BLOCKS_MAX: usize = 512;
/// Largest share of the pool, as a divisor, for nodes preallocated by a lane.
const NODES_SHARE: usize = 1024;

/// A thread in the current epoch, with its own lane of the log.
///
/// It appends undo records, and fills blocks outside the reach of all durable words. [`Writer::commit`]
/// fences. Only the returned [`Committed`] stores in place and defers the frees of replaced blocks. The
/// caller holds the locks of the named blocks and words from before the join until the drop of the writer.
pub struct Writer<'v, M: Medium> {
    volume: &'v Volume<M>,
    lane: MutexGuard<'v, Lane>,
    /// Streams and appended records since the last fence.
    in_flight: Option<InFlight<()>>,
    /// True if it writes while its thread unwinds: its end says nothing of its own writes.
    joined_in_panic: bool,
}

impl<M: Medium> Drop for Writer<'_, M> {
    fn drop(&mut self) {
        // Before the release of the lane: neither its next writer nor the seal of the epoch may
        // miss it.
        if std::thread::panicking() && !self.joined_in_panic {
            self.volume.leave_unfinished();
        }
        // Under the lane: the seal empties the list and the count together.
        self.volume.count_dirty(&mut self.lane.dirty);
    }
}

/// A writer with durable records. It may store in place.
pub struct Committed<'w, 'v, M: Medium>(&'w mut Writer<'v, M>);

impl<M: Medium> Volume<M> {
    /// Joins the current epoch, on the thread's own lane if possible. The writer prevents the seal of the epoch, so
    /// the thread must not wait for a socket, a checkpoint or space before it drops the writer.
    ///
    /// # Errors
    /// The volume is read-only or gone, or its medium failed.
    pub fn join(&self) -> Result<Writer<'_, M>, WriteError> {
        if self.lanes.is_empty() {
            return Err(WriteError::NoLog);
        }
        let writer = Writer::new(self, self.take_lane());
        // After the lane was taken: a deletion marks the volume first, and its checkpoint takes all
        // lanes.
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

/// Allocates up to `want` blocks near `hint`, within the limit of the volume.
fn take_batch<M: Medium>(volume: &Volume<M>, hint: u64, want: usize, out: &mut Vec<u64>) {
    // Counted before they are taken, so two lanes cannot exceed the limit together.
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

    /// The written volume.
    #[must_use]
    pub fn volume(&self) -> &'v Volume<M> {
        self.volume
    }

    /// Returns true if a stream, an appended record or a flush is not fenced yet.
    #[must_use]
    pub(crate) fn is_unfenced(&self) -> bool {
        self.in_flight.is_some()
    }

    /// The epoch of this writer.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.lane.log.epoch()
    }

    /// Bytes of records that still fit in the lane.
    #[must_use]
    pub fn room_bytes(&self) -> u64 {
        self.lane.log.room_bytes()
    }

    /// Bytes of a record of `count` words.
    #[must_use]
    pub fn words_bytes(count: usize) -> u64 {
        words_record_bytes(count)
    }

    /// Bytes of a record of `lines`.
    #[must_use]
    pub fn lines_bytes(lines: LineMask) -> u64 {
        lines_record_bytes(lines.count())
    }

    /// Allocates a block. The block is fresh from now on. `None` if the pool is full.
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

    /// Returns true if fewer than `blocks` blocks are preallocated and the pool is nearly full.
    #[must_use]
    pub fn may_lack_blocks(&self, blocks: usize) -> bool {
        self.lane.free.len() < blocks && self.volume.shared.alloc.is_low()
    }

    /// Returns true in a group.
    #[must_use]
    pub fn is_in_group(&self) -> bool {
        self.lane.group_blocks.is_some()
    }

    /// Returns the next preallocated block of the lane. Preallocates blocks if the lane has none.
    fn next_preallocated(&mut self) -> Option<BlockNo> {
        let lane = &mut *self.lane;
        if lane.free.is_empty() {
            let alloc = &self.volume.shared.alloc;
            // A nearly full pool has no blocks to keep in advance.
            let want = if alloc.is_low() { 1 } else { ALLOC_BATCH };
            take_batch(self.volume, lane.hint, want, &mut lane.free);
            lane.hint = lane.free.last().copied().unwrap_or(lane.hint);
            // `pop` takes from the end, and blocks are used in ascending order.
            lane.free.reverse();
        }
        // Blocks kept for nodes serve data before the pool counts as full.
        lane.free.pop().or_else(|| lane.free_for_nodes.pop()).map(BlockNo)
    }

    /// Returns true if `block`, a block preallocated or freed to the lane, is poisoned. It is then withheld.
    fn withholds(&self, block: BlockNo) -> bool {
        let is_bad = self.volume.shared.withhold_if_bad(block);
        if is_bad {
            self.volume.usage.subtract(1);
        }
        is_bad
    }

    /// Allocates a block for a node of a map, near other nodes: their state in DRAM and their TLB entries are
    /// close together then. Data continues at its own place.
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

    /// Marks `block` as just allocated.
    fn own(&mut self, block: BlockNo) -> BlockNo {
        let epoch = self.epoch();
        let lane = &mut *self.lane;
        // A roll-back of the group frees the block.
        if let Some(blocks) = &mut lane.group_blocks {
            blocks.push(block);
        }
        lane.touched = true;
        self.volume.shared.states.get(block).set_fresh(epoch);
        block
    }

    /// Allocates `blocks` adjacent blocks at a multiple of that number, a power of two up to 512 (2 MiB).
    /// They are fresh from now on. `None` without such a free run.
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
            // The lane may have preallocated blocks.
            let block = if blocks == 1 { self.alloc() } else { None };
            return block.map(|start| BlockRun { start, len: 1 });
        };
        if run.len < RUN_BLOCKS_MAX as u64 {
            // The next blocks come from the same region, and break no other.
            self.lane.hint = run.start.0;
        }
        for block in run.blocks() {
            self.own(block);
        }
        Some(run)
    }

    /// Frees a still unnamed run of `alloc_run`. It is free once the epoch is durable: streams to it are not
    /// fenced yet, and another thread could stream over them.
    pub fn cancel_alloc_run(&mut self, run: BlockRun) {
        self.lane.deferred.runs.push(run);
    }

    /// Marks the lines of `at .. at + len`, in one block, as unreachable from durable words: they need no undo record
    /// in this epoch. Requires: free in every open epoch.
    pub(crate) fn claim_lines(&mut self, at: PoolOffset, len: usize) {
        let lines = LineMask::covering(at.in_block(), len);
        self.volume.shared.states.at(at).add_logged(self.epoch(), lines);
        // No line is dirty, but the checkpoint must clear the mark with the epoch.
        self.lane.dirty.note_marked(at.block());
        self.lane.touched = true;
    }

    /// Frees a still unnamed block of `alloc` or `alloc_node`.
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

    /// Lines of `block` with a record in this epoch.
    #[must_use]
    pub fn logged(&self, block: BlockNo) -> LineMask {
        if planted(Bug::LoggedTwice) {
            return LineMask::EMPTY;
        }
        self.volume.shared.states.get(block).logged(self.epoch())
    }

    /// Returns true if the word at `at` needs no record: it or its line has a record, or it is in a fresh block.
    #[must_use]
    pub fn has_undo_record(&self, at: PoolOffset) -> bool {
        self.volume.shared.states.at(at).covers_word(self.epoch(), at)
    }

    /// Logs the old values of words without a record, as the caller loaded them. The caller has checked the
    /// room in the log.
    ///
    /// # Errors
    /// One of the words is poisoned: undo might restore a zero in place of the stored value. No word is logged
    /// then. Otherwise as [`Writer::log_lines`].
    pub fn log_words(&mut self, items: &[WordItem]) -> Result<(), MediaError> {
        if items.is_empty() {
            return Ok(());
        }
        let medium = self.volume.medium();
        if medium.has_poison() {
            items.iter().try_for_each(|item| medium.check_range(PoolOffset(item.target), 8))?;
        }
        self.append(|lane, medium| Ok::<_, MediaError>(lane.log.append_words(medium, items)))?;
        // Marked only after the fence: no other thread may rely on an unfenced record.
        self.lane.words_to_note.extend(items.iter().map(|item| PoolOffset(item.target)));
        Ok(())
    }

    /// Logs the present bytes of `lines` of `block`. The caller has checked the room in the log.
    ///
    /// # Errors
    /// `block` is poisoned. Nothing of it is logged then. Earlier records still need a commit: a torn record would
    /// hide later records of the lane from recovery.
    pub fn log_lines(&mut self, block: BlockNo, lines: LineMask) -> Result<(), MediaError> {
        if lines.is_empty() {
            return Ok(());
        }
        self.append(|lane, medium| lane.log.append_lines(medium, block, lines).map(Some))?;
        self.lane.lines_to_note.push((block, lines));
        Ok(())
    }

    /// Logs the new bytes of `lines` of `block`, with `data` at byte `start`. A crash after the commit leaves these
    /// bytes. The caller has checked the room in the log, and [`Volume::fua_fast_path_allowed`] under the block's
    /// lock.
    ///
    /// # Errors
    /// `block` is poisoned. Nothing is logged then.
    pub fn log_redo(
        &mut self,
        block: BlockNo,
        lines: LineMask,
        start: usize,
        data: &[u8],
    ) -> Result<(), MediaError> {
        // The block's lock is held until after the store, so the numbers order the writes of a
        // block.
        let order = self.volume.redo_order.fetch_add(1, Ordering::Relaxed);
        self.append(|lane, medium| {
            lane.log.append_redo(medium, order, block, lines, (start, data)).map(Some)
        })
    }

    /// Logs the new values of words, as one record. A crash after the commit leaves all of them. The caller has
    /// checked the room in the log, and [`Volume::fua_fast_path_allowed`] of each word under the locks.
    pub fn log_redo_words(&mut self, items: &[WordItem]) {
        // Before the record: a later writer of an entry sees the note under the entry's lock.
        self.volume.note_redone_words(self.epoch());
        // The locks are held until after the stores, so the numbers order the writes of an entry.
        let order = self.volume.redo_order.fetch_add(1, Ordering::Relaxed);
        let Ok(()) = self.append(|lane, medium| {
            Ok::<_, Infallible>(lane.log.append_redo_words(medium, order, items))
        });
    }

    fn append<E>(
        &mut self,
        record: impl FnOnce(&mut Lane, &M) -> Result<Option<InFlight<()>>, E>,
    ) -> Result<(), E> {
        let before = self.lane.log.used_bytes();
        let in_flight = record(&mut self.lane, &self.volume.shared.medium)?;
        self.lane.log_bytes += self.lane.log.used_bytes() - before;
        // At half, so that a background checkpoint can end before writers find the lane full.
        if self.lane.log.used_bytes() * 2 >= self.volume.log_half_bytes() {
            self.volume.ask_for_checkpoint();
        }
        self.lane.touched = true;
        // An append without a record must not hide an earlier, unfenced one.
        self.in_flight = in_flight.or(self.in_flight.take());
        Ok(())
    }

    /// Streams `bytes` into a block, fresh or outside the reach of durable words. Durable with the next
    /// `commit`.
    pub fn fill(&mut self, at: PoolOffset, bytes: &[u8]) {
        self.in_flight = Some(InFlight::stream(&*self.volume.shared.medium, at, bytes));
    }

    /// Fills a whole block: `data` from byte `start` on, and the content of the block `around`, or zeroes,
    /// elsewhere.
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

    /// Makes all records and fills durable, with one fence, or none if there are none.
    ///
    /// # Errors
    /// The medium's. No byte was stored in place then, and no later store is possible.
    pub fn commit(&mut self) -> Result<Committed<'_, 'v, M>, MediaError> {
        self.fence_records()?;
        self.note_logged(true);
        Ok(Committed(self))
    }

    /// Makes the records and fills of an abandoned plan durable. No store follows, so the checkpoint flushes
    /// none of its lines: a flush of a since failed line would fail the medium without a lost store.
    ///
    /// # Errors
    /// The medium's.
    pub fn commit_abandoned(&mut self) -> Result<(), MediaError> {
        self.fence_records()?;
        self.note_logged(false);
        Ok(())
    }

    /// Fences the records and fills, if there are any.
    #[inline]
    fn fence_records(&mut self) -> Result<(), MediaError> {
        // A thread without streams has nothing to wait for.
        if let Some(in_flight) = &self.in_flight {
            in_flight.wait(&*self.volume.shared.medium)?;
        }
        // After a successful fence only: otherwise nothing may count as durable.
        self.in_flight = None;
        self.lane.log.committed();
        Ok(())
    }

    /// Marks the lines and words logged since the last commit, and as dirty if a store follows (`is_stored`).
    /// Other threads may rely on the records only now. The marks come after the fence: they are locked
    /// operations, and would wait for the streams.
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

    /// Marks lines as dirty before a store. A mark after the store would wait for it, as a locked
    /// operation.
    fn mark_dirty(&mut self, at: PoolOffset, len: usize) {
        let block = at.block();
        let lines = LineMask::covering(at.in_block(), len);
        self.lane.touched = true;
        let state = self.volume.shared.states.get(block);
        let epoch = self.lane.log.epoch();
        self.lane.dirty.note(state, epoch, block, lines);
    }
}

/// Searches the whole pool for a run, after the hint and the whole regions had none. Only runs of 2 to 256 blocks
/// can be elsewhere, and the search takes time in proportion to the pool: the slot tree finds single blocks, and
/// the tree of regions has no region left.
#[cold]
fn find_run(alloc: &Allocator, blocks: u64) -> Option<BlockRun> {
    if !(2..RUN_BLOCKS_MAX as u64).contains(&blocks) || alloc.free_blocks() < blocks {
        return None;
    }
    let regions = (0..alloc.total_blocks()).step_by(RUN_BLOCKS_MAX);
    regions.into_iter().find_map(|region| alloc.alloc_aligned(blocks, region))
}

impl<M: Medium> Committed<'_, '_, M> {
    /// Stores a word without need of a further record. Durable with the epoch.
    pub fn store_word(&mut self, at: PoolOffset, value: u64) {
        debug_assert!(self.0.has_undo_record(at), "the word at {at} has no record");
        self.0.mark_dirty(at, 8);
        self.0.volume.shared.medium.store_word(at, value);
    }

    /// Stores a word of a redo record. Durable already, by the record.
    pub fn store_redone_word(&mut self, at: PoolOffset, value: u64) {
        self.0.mark_dirty(at, 8);
        self.0.volume.shared.medium.store_word(at, value);
    }

    /// Stores bytes over logged or fresh lines of one block. They are durable with the epoch. Bytes of a redo record
    /// are durable already.
    pub fn store(&mut self, at: PoolOffset, bytes: &[u8]) {
        self.0.mark_dirty(at, bytes.len());
        self.0.volume.shared.medium.store(at, bytes);
    }

    /// Stores words and makes them durable immediately, outside the epochs, for the FUA fast path. Each word
    /// is atomic separately: a crash may leave any subset. The caller has checked
    /// `Volume::fua_fast_path_allowed` for each under the locks of the blocks.
    ///
    /// # Errors
    /// The medium's. Any subset of the words may be durable then.
    pub fn store_words_durably(&mut self, words: &[(PoolOffset, u64)]) -> Result<(), MediaError> {
        if words.is_empty() {
            return Ok(());
        }
        let medium = &*self.0.volume.shared.medium;
        let mut dirty = Dirty::default();
        for &(at, value) in words {
            dirty.store_word(medium, at, value);
        }
        // One fence for all: the words do not depend on each other, and no undo touches them.
        dirty.flush(medium).fence(medium)?;
        Ok(())
    }

    /// Frees a replaced or unmapped block once the epoch is durable. A fresh block is free immediately,
    /// because undo restores no word with its name, unless the checkpoint must still flush its lines or the
    /// block is pinned.
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
        // Blocks that a group allocated on another lane stay on that lane's list, for a roll-back.
        let groups = self.0.lane.group_blocks.as_ref();
        let is_ours = groups.is_none_or(|blocks| blocks.contains(&block));
        let is_unmarked = state.is_untouched_since(self.0.epoch());
        let is_pinned = self.0.volume.pins.has(block);
        if is_ours && is_unmarked && !is_pinned {
            self.0.cancel_alloc(block);
        } else {
            self.0.lane.deferred.blocks.push(block);
        }
    }

    /// Frees a run of `alloc_run` once the epoch is durable.
    pub fn defer_free_run(&mut self, run: BlockRun) {
        self.0.lane.touched = true;
        self.0.lane.deferred.runs.push(run);
    }

    /// Marks `block`, a just allocated block, as reachable from durable words: later writes in this epoch
    /// must log it.
    pub fn mark_reachable(&mut self, block: BlockNo) {
        self.0.volume.shared.states.get(block).set_fresh(0);
    }
}

//! A volume: one consistency domain with its own log, epochs and map root.
//!
//! Owns the open volume's DRAM state. The volume's kind, in a crate above, interprets its map. Locks are
//! taken in this order: quiesce lock, the kind's block locks, a lane, the kind's structure lock.

mod error;
mod give_back;
mod group;
mod handle;
mod names;
mod pins;
mod root;
mod usage;
mod users;
mod writer;

pub use error::WriteError;
pub use group::{Group, GroupError};
pub use handle::VolumeHandle;
use names::Names;
pub(crate) use pins::Pins;
pub use pins::{PinError, PinLimits, PinnedBlocks};
pub(crate) use usage::{SealedBlocks, Usage, read_used_blocks};
pub use users::Users;
pub use writer::{Committed, Writer};

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use everbyte_media::{BlockNo, LineMask, MediaError, Medium, PoolOffset};
use everbyte_plant::planted;

use crate::alloc::BlockRun;
use crate::data_area::DataArea;
use crate::epoch::{DirtyLines, DirtyList};
use crate::format::{
    CHECKPOINT_LINES_AT, CHECKPOINT_LINES_DEFAULT, CHECKSUM_ROOT_AT, Corrupt, Descriptor, ROOT_AT,
    SIZE_AT, VolumeKind, decode_word,
};
use crate::log::{LaneLog, LogGeometry};
use crate::plant::Bug;
use crate::readable::check_readable;
use crate::recover::UndoScope;
use crate::shared::Shared;
use crate::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, thread_index};

/// Shards of the quiesce lock closed by groups; more than the usual number of writing threads.
const QUIESCE_SHARDS: usize = 16;

/// A lane: the log of one writer at a time, and that writer's state for the checkpoint.
pub(crate) struct Lane {
    pub(crate) log: LaneLog,
    /// Dirty lines of the current epoch.
    pub(crate) dirty: DirtyList,
    /// Blocks and runs freed in the current epoch; a checkpoint frees them finally.
    pub(crate) deferred: DeferredFree,
    /// Blocks taken from the allocator in advance.
    pub(crate) free: Vec<u64>,
    /// Blocks preallocated for nodes of maps.
    pub(crate) free_for_nodes: Vec<u64>,
    /// Place of the last allocated batch of blocks.
    pub(crate) hint: u64,
    /// Blocks allocated since the group began; `None` outside groups.
    pub(crate) group_blocks: Option<Vec<BlockNo>>,
    /// True if this epoch has work for a checkpoint.
    pub(crate) touched: bool,
    /// Words with an unfenced record.
    pub(crate) words_to_note: Vec<PoolOffset>,
    /// Lines with an unfenced record.
    pub(crate) lines_to_note: Vec<(BlockNo, LineMask)>,
    /// Bytes of records since the volume was opened.
    pub(crate) log_bytes: u64,
}

impl Lane {
    /// Returns the number of preallocated blocks.
    pub(crate) fn preallocated_blocks(&self) -> u64 {
        (self.free.len() + self.free_for_nodes.len()) as u64
    }

    /// Takes the preallocated blocks from the lane.
    pub(crate) fn take_preallocated(&mut self) -> impl Iterator<Item = BlockNo> {
        let nodes = std::mem::take(&mut self.free_for_nodes);
        std::mem::take(&mut self.free).into_iter().chain(nodes).map(BlockNo)
    }
}

/// Deferred frees of an epoch: blocks and runs. They are free once the epoch is durable.
#[derive(Default)]
pub(crate) struct DeferredFree {
    pub(crate) blocks: Vec<BlockNo>,
    pub(crate) runs: Vec<BlockRun>,
}

impl DeferredFree {
    /// Whole blocks, in runs or not.
    pub(crate) fn count_blocks(&self) -> u64 {
        self.blocks.len() as u64 + self.runs.iter().map(|run| run.len).sum::<u64>()
    }

    /// Moves the contents of `other` into this one.
    pub(crate) fn append(&mut self, other: &mut Self) {
        self.blocks.append(&mut other.blocks);
        self.runs.append(&mut other.runs);
    }
}

/// An open volume: one consistency domain with its own log, epochs and map root.
///
/// Only its kind interprets its map. Locks are taken in this order: the volume's quiesce lock, the
/// kind's block locks, a lane of the log, the kind's structure lock.
pub struct Volume<M: Medium> {
    pub(crate) shared: Arc<Shared<M>>,
    pub(crate) header_at: PoolOffset,
    descriptor: Descriptor,
    /// The descriptor with the present name.
    names: Names,
    kind: VolumeKind,
    pub(crate) current: AtomicU64,
    pub(crate) completed: AtomicU64,
    pub(crate) lanes: Box<[CachePadded<Mutex<Lane>>]>,
    /// Writes since the volume was opened, by the first lane taken by the thread.
    writes: Box<[CachePadded<AtomicU32>]>,
    /// Redo records of the current epoch so far.
    pub(crate) redo_order: CachePadded<AtomicU32>,
    /// The last epoch with a redo record of words; 0 for none since the opening.
    redone_words: AtomicU64,
    quiesce_locks: Box<[CachePadded<RwLock<()>>]>,
    /// Held while an epoch is sealed and completed, and by an open group.
    pub(crate) checkpointing: Mutex<()>,
    pub(crate) wants_checkpoint: AtomicBool,
    pub(crate) dirty_lines: CachePadded<DirtyLines>,
    pub(crate) usage: CachePadded<Usage>,
    /// Blocks in use by readers in place.
    pub(crate) pins: Pins,
    pub(crate) gone: AtomicBool,
    /// True once the volume was deleted, and its header may be another one's. Set under the checkpoint lock.
    pub(crate) retired: AtomicBool,
    /// Held by a thread that changes the shape of a tree shared by all of the volume.
    structure: Mutex<()>,
    /// True if its one handle is taken.
    taken: AtomicBool,
    /// The users inside through that handle.
    users: Mutex<Option<Arc<dyn Users>>>,
    /// The reason if the volume was opened read-only.
    read_only: Option<String>,
    /// Damage found since.
    damage: OnceLock<String>,
    /// The reason of [`Volume::refuse_changes`].
    refuses_changes: OnceLock<String>,
    /// True if a thread panicked inside the current epoch. Set under its lane.
    pub(crate) unfinished: AtomicBool,
    /// Reported media errors and wrong blocks: each is reported once.
    reported: Mutex<BTreeSet<PoolOffset>>,
    /// Checkpoints completed since the volume was opened.
    pub(crate) checkpoints: AtomicU64,
    /// The end and the duration of the last walk of the map without damage.
    sound_walk: Mutex<Option<(Instant, Duration)>>,
}

impl<M: Medium> Volume<M> {
    /// Opens the recovered volume with its header at `header_at` and the last completed epoch `completed`.
    pub(crate) fn open(
        shared: Arc<Shared<M>>,
        header_at: PoolOffset,
        descriptor: Descriptor,
        kind: VolumeKind,
        completed: u64,
        read_only: Option<String>,
    ) -> Self {
        let geometry = LogGeometry::of(&descriptor);
        let epoch = completed + 1;
        let checkpoint_lines = read_checkpoint_lines(&*shared.medium, header_at);
        let dirty_lines = DirtyLines::new(checkpoint_lines, u64::from(geometry.lanes));
        let writes = (0..geometry.lanes.max(1)).map(|_| CachePadded::default()).collect();
        let lanes = (0..geometry.lanes)
            .map(|lane| {
                CachePadded::new(Mutex::new(Lane {
                    log: LaneLog::new(geometry, lane, epoch),
                    dirty: DirtyList::default(),
                    deferred: DeferredFree::default(),
                    free: Vec::new(),
                    free_for_nodes: Vec::new(),
                    // Lanes begin apart, so that they rarely take blocks from the same words of the
                    // free map.
                    hint: u64::from(lane) * shared.alloc.total_blocks() / u64::from(geometry.lanes),
                    group_blocks: None,
                    touched: false,
                    words_to_note: Vec::new(),
                    lines_to_note: Vec::new(),
                    log_bytes: 0,
                }))
            })
            .collect();
        Self {
            shared,
            header_at,
            descriptor,
            names: Names::new(descriptor),
            kind,
            current: AtomicU64::new(epoch),
            completed: AtomicU64::new(completed),
            lanes,
            writes,
            redo_order: CachePadded::new(AtomicU32::new(0)),
            redone_words: AtomicU64::new(0),
            quiesce_locks: (0..QUIESCE_SHARDS).map(|_| CachePadded::new(RwLock::new(()))).collect(),
            checkpointing: Mutex::new(()),
            wants_checkpoint: AtomicBool::new(false),
            dirty_lines: CachePadded::new(dirty_lines),
            usage: CachePadded::new(Usage::unknown()),
            pins: Pins::default(),
            gone: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            structure: Mutex::new(()),
            taken: AtomicBool::new(false),
            users: Mutex::new(None),
            read_only,
            damage: OnceLock::new(),
            refuses_changes: OnceLock::new(),
            unfinished: AtomicBool::new(false),
            reported: Mutex::new(BTreeSet::new()),
            checkpoints: AtomicU64::new(0),
            sound_walk: Mutex::new(None),
        }
    }

    /// The medium below.
    #[must_use]
    pub fn medium(&self) -> &M {
        &self.shared.medium
    }

    /// Blocks of the pool that a map may name; all others are the pool's own, or not in use yet.
    #[must_use]
    #[inline]
    pub fn data_area(&self) -> &DataArea {
        &self.shared.data
    }

    /// Returns the settings of the volume from its creation, and its present name.
    #[must_use]
    pub fn descriptor(&self) -> &Descriptor {
        self.names.latest()
    }

    /// The volume's present name. An earlier returned name does not change when the volume is renamed.
    #[must_use]
    pub fn name(&self) -> &str {
        self.descriptor().name()
    }

    /// Gives the volume the name in `descriptor`. The caller has the pool's lock of changes.
    pub(crate) fn set_name(&self, descriptor: Descriptor) {
        self.names.add(descriptor);
    }

    /// Returns the kind. The kind interprets the volume's map.
    #[must_use]
    pub fn kind(&self) -> VolumeKind {
        self.kind
    }

    /// Address of the root word.
    #[must_use]
    pub fn root_at(&self) -> PoolOffset {
        self.header_at.plus(ROOT_AT)
    }

    /// Address of the root word of the checksums.
    #[must_use]
    pub fn checksum_root_at(&self) -> PoolOffset {
        self.header_at.plus(CHECKSUM_ROOT_AT)
    }

    /// The structure lock of state shared by all of the volume: the tree of checksums. It is the last lock
    /// taken, and no thread holds it together with another structure lock.
    #[must_use]
    pub fn structure(&self) -> &Mutex<()> {
        &self.structure
    }

    /// Address of the size word.
    #[must_use]
    pub fn size_at(&self) -> PoolOffset {
        self.header_at.plus(SIZE_AT)
    }

    /// The volume's size in bytes, as its size word says now.
    ///
    /// # Errors
    /// If the size word is corrupt.
    pub fn size_bytes(&self) -> Result<u64, Corrupt> {
        read_size(self.medium(), self.header_at)
    }

    /// The open epoch.
    #[must_use]
    pub fn current_epoch(&self) -> u64 {
        self.current.load(Ordering::Acquire)
    }

    /// The last durable epoch.
    #[must_use]
    pub fn completed_epoch(&self) -> u64 {
        self.completed.load(Ordering::Acquire)
    }

    /// Returns the reason if the volume cannot be written.
    #[must_use]
    pub fn read_only_reason(&self) -> Option<&str> {
        let since = || self.damage.get().or(self.refuses_changes.get()).map(String::as_str);
        self.opened_read_only().or_else(since)
    }

    /// Returns the damage if it prevents writes to the volume.
    #[must_use]
    pub fn damage(&self) -> Option<&str> {
        self.read_only.as_deref().or(self.damage.get().map(String::as_str))
    }

    /// Returns true after [`Volume::refuse_changes`].
    pub(crate) fn refuses_changes(&self) -> bool {
        self.refuses_changes.get().is_some()
    }

    /// Rejects writes from now on for `reason`; the reason is not damage.
    pub fn refuse_changes(&self, reason: &str) {
        // The first reason stays.
        let _ = self.refuses_changes.set(reason.to_owned());
    }

    /// Returns the reason if the volume was opened read-only. Nothing can then become durable, unlike in a
    /// volume with damage found later.
    pub(crate) fn opened_read_only(&self) -> Option<&str> {
        self.read_only.as_deref().or(self.shared.read_only.as_deref())
    }

    /// Rejects writes from now on, because a structure with the addresses of the volume's bytes cannot be
    /// read. Other volumes continue.
    pub fn fail(&self, damage: &Corrupt) {
        if self.damage.set(damage.to_string()).is_ok() {
            tracing::error!(volume = self.name(), %damage, "the volume is read-only from now on");
        }
    }

    /// Reports different contents than stored in the block at `at`, with the volume's bytes from `offset` on.
    pub fn report_mismatch(
        &self,
        offset: u64,
        at: PoolOffset,
        expected: impl std::fmt::Display,
        found: u32,
    ) {
        if self.reported.lock().insert(at) {
            tracing::error!(
                volume = self.name(), offset, %at, %expected, found = format_args!("{found:#010x}"),
                "checksum mismatch: these bytes of the volume are not what was stored"
            );
        }
    }

    /// Reports bad memory at `at`, with the volume's bytes from `offset` on.
    pub fn report_bad(&self, offset: u64, at: PoolOffset) {
        if self.reported.lock().insert(at) {
            let volume = self.name();
            tracing::error!(volume, offset, %at, "media error: these bytes of the volume are lost");
        }
    }

    /// Returns true if the volume has been deleted or closed.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Bytes of log records written since the volume was opened. Waits for writers.
    #[must_use]
    pub fn log_bytes(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.lock().log_bytes).sum()
    }

    /// Checkpoints completed since the volume was opened.
    #[must_use]
    pub fn checkpoints(&self) -> u64 {
        self.checkpoints.load(Ordering::Relaxed)
    }

    /// Bytes in use in the fullest lane of the log in the current epoch. The limit is
    /// [`log_half_bytes`](Self::log_half_bytes). Waits for writers.
    #[must_use]
    pub fn log_used_bytes(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.lock().log.used_bytes()).max().unwrap_or_default()
    }

    /// Bytes of records that one request can log at most: half a lane.
    #[must_use]
    pub fn log_half_bytes(&self) -> u64 {
        u64::from(self.descriptor.half_blocks) * everbyte_media::BLOCK_U64
    }

    /// Takes the quiesce lock for an operation that may take block locks and join the epoch. Waits for an
    /// open group, and for a checkpoint if twice as many lines are dirty as one begins at. The caller holds
    /// no block lock yet.
    pub fn begin_op(&self) -> RwLockReadGuard<'_, ()> {
        // Before any lock of this request: the checkpoint waits for all lanes.
        if self.dirty_lines.are_too_many() {
            self.wait_for_fewer_dirty_lines();
        }
        self.quiesce_locks[thread_index() % QUIESCE_SHARDS].read()
    }

    /// Makes the current epoch durable, by this thread if the one in the background has not begun.
    #[cold]
    fn wait_for_fewer_dirty_lines(&self) {
        // This checkpoint was not promised to a caller. If it fails, a later flush reports the failure.
        let _best_effort = self.complete(self.current_epoch());
    }

    /// Counts a lane's new dirty lines, and requests a checkpoint if one is due.
    pub(crate) fn count_dirty(&self, list: &mut DirtyList) {
        if self.dirty_lines.add(list) {
            self.ask_for_checkpoint();
        }
    }

    /// Requests a checkpoint in the background, unless one was requested in this epoch.
    pub(crate) fn ask_for_checkpoint(&self) {
        // A load first: most requests are not the first, and would write a shared line.
        if !self.wants_checkpoint() && !self.wants_checkpoint.swap(true, Ordering::Relaxed) {
            self.shared.checkpoint_signal.notify();
        }
    }

    /// Dirty lines at which a background checkpoint begins.
    #[must_use]
    pub fn checkpoint_lines(&self) -> u64 {
        self.dirty_lines.checkpoint_lines()
    }

    /// Dirty lines of the current epoch, for the next checkpoint to flush. The count lacks less than a
    /// sixteenth of the number at which a checkpoint begins, or less than one for each lane.
    #[must_use]
    pub fn dirty_lines(&self) -> u64 {
        self.dirty_lines.count()
    }

    /// Counts a write of the calling thread, and returns the number of earlier writes on the thread's first
    /// lane. Threads with a shared lane may lose counts.
    pub fn count_write(&self) -> u32 {
        let count = &self.writes[thread_index() % self.writes.len()];
        let before = count.load(Ordering::Relaxed);
        count.store(before.wrapping_add(1), Ordering::Relaxed);
        before
    }

    /// Returns the number of counted writes on the calling thread's first lane.
    #[must_use]
    pub fn counted_writes(&self) -> u32 {
        self.writes[thread_index() % self.writes.len()].load(Ordering::Relaxed)
    }

    fn take_lane(&self) -> MutexGuard<'_, Lane> {
        let first = thread_index() % self.lanes.len();
        for step in 0..self.lanes.len() {
            let lane = &self.lanes[(first + step) % self.lanes.len()];
            if let Some(lane) = lane.try_lock() {
                return lane;
            }
        }
        // No holder of a lane waits for anything slow, so this wait is short.
        self.lanes[first].lock()
    }

    /// Notes that the calling thread panicked inside the epoch, with a lane still held, or could not roll a
    /// group back. Its operation may be half done, and its last records torn. So all writes fail from now on
    /// and the epoch is never completed: the next opening undoes it.
    fn leave_unfinished(&self) {
        self.unfinished.store(true, Ordering::Release);
        let reason = WriteError::Unfinished.to_string();
        if self.damage.set(reason).is_ok() {
            tracing::error!(
                volume = self.name(),
                "what was written is half done and never completed"
            );
        }
    }

    /// Prefetches the state of the block at `at`, and `len` of its bytes from there on, for a following read
    /// and change.
    pub fn prefetch_store(&self, at: PoolOffset, len: usize) {
        let state = self.shared.states.at(at);
        state.prefetch_fresh();
        state.prefetch_marks();
        self.medium().prefetch(at, len);
    }

    /// Prefetches the state of `block` for its free.
    pub fn prefetch_free(&self, block: BlockNo) {
        self.shared.states.get(block).prefetch_fresh();
    }

    /// Prefetches the record of the word at `at`. [`Volume::prefetch_store`] fetched the state of its block a
    /// while ago.
    pub fn prefetch_record(&self, at: PoolOffset) {
        self.shared.states.at(at).prefetch_word(self.current_epoch(), at);
    }

    /// Returns true if an entry may be changed on the FUA fast path, because undo of an open epoch cannot
    /// touch it: the entry has no record, its block (if any) has none and is not fresh, and the node of the
    /// entry is not fresh.
    #[must_use]
    pub fn fua_fast_path_allowed(&self, entry_at: PoolOffset, block: Option<BlockNo>) -> bool {
        if planted(Bug::FuaFastPathIgnoresRecords) {
            return true;
        }
        let block_free = block.is_none_or(|block| {
            let state = self.shared.states.get(block);
            // Both halves: a record of either open epoch forbids the fast path.
            self.is_settled(block) && !state.has_logged_lines(0) && !state.has_logged_lines(1)
        });
        let word_logged = self.word_logged_in_open(entry_at);
        !word_logged && block_free && self.is_settled(entry_at.block())
    }

    /// Notes a redo record of words in `epoch`, the writer's epoch.
    fn note_redone_words(&self, epoch: u64) {
        // A load first: the line is stored to once an epoch.
        if self.redone_words.load(Ordering::Relaxed) != epoch {
            self.redone_words.store(epoch, Ordering::Release);
        }
    }

    /// Returns true if an open epoch may have a redo record of words. A durable word then needs such a record:
    /// recovery would replace a word without one by an earlier recorded value.
    #[must_use]
    pub fn may_redo_words(&self) -> bool {
        self.redone_words.load(Ordering::Acquire) > self.completed_epoch()
    }

    /// Returns true if the block was allocated before every open epoch.
    #[must_use]
    pub fn is_settled(&self, block: BlockNo) -> bool {
        !self.shared.states.get(block).is_fresh_since(self.completed_epoch())
    }

    /// Returns true if the word at `at` has a record in any open epoch.
    #[must_use]
    pub fn word_logged_in_open(&self, at: PoolOffset) -> bool {
        let state = self.shared.states.at(at);
        state.word_logged(0, at) || state.word_logged(1, at)
    }

    pub(crate) fn quiesce(&self) -> Vec<RwLockWriteGuard<'_, ()>> {
        self.quiesce_locks.iter().map(|lock| lock.write()).collect()
    }

    /// Marks the volume as gone: every later `join` fails.
    pub fn mark_gone(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Clears [`Volume::mark_gone`], after a deletion without any change.
    pub(crate) fn unmark_gone(&self) {
        self.gone.store(false, Ordering::Release);
    }

    /// Returns true if a look for damage in the map is due. The looks take a hundredth of the time.
    pub(crate) fn walk_is_due(&self) -> bool {
        self.sound_walk.lock().is_none_or(|(ended, took)| ended.elapsed() >= took * 100)
    }

    /// Notes a walk of the map, begun at `began`, without damage.
    pub(crate) fn note_sound_walk(&self, began: Instant) {
        *self.sound_walk.lock() = Some((Instant::now(), began.elapsed()));
    }

    /// Makes the volume's blocks and the allocator's view of them equal. Requires: no writer.
    pub(crate) fn settle(&self) -> Result<(), WriteError> {
        self.flush()?;
        let guard = self.lock_checkpoint();
        self.begin_checkpoint(&guard)?.finish()?;
        self.return_preallocated();
        Ok(())
    }

    /// Returns true if a checkpoint should come soon: at most 75% of the log remains (half of the current
    /// half is used), or the dirty lines reach the volume's setting.
    #[must_use]
    pub fn wants_checkpoint(&self) -> bool {
        self.wants_checkpoint.load(Ordering::Relaxed)
    }

    /// Returns true if anything happened since the last seal.
    #[must_use]
    pub fn is_touched(&self) -> bool {
        self.lanes.iter().any(|lane| lane.lock().touched)
    }

    pub(crate) fn undo_scope(&self) -> UndoScope {
        UndoScope::new(&self.descriptor, self.header_at, self.shared.data_bounds())
    }

    pub(crate) fn check_medium(&self) -> Result<(), MediaError> {
        self.medium().check()
    }
}

/// The size in bytes of the volume with the header at `header_at`.
pub(crate) fn read_size<M: Medium>(medium: &M, header_at: PoolOffset) -> Result<u64, Corrupt> {
    let at = header_at.plus(SIZE_AT);
    let word = medium.load_word(at);
    check_readable(medium, "volume size", at, 8)?;
    decode_word(word)
        .map(|sectors| sectors * 512)
        .ok_or_else(|| Corrupt::new("volume size", at, "its check bits are wrong"))
}

/// Dirty lines at which a background checkpoint begins, of the volume with the header at `header_at`. An
/// unreadable word costs only speed, so it counts as the default.
fn read_checkpoint_lines<M: Medium>(medium: &M, header_at: PoolOffset) -> u64 {
    let at = header_at.plus(CHECKPOINT_LINES_AT);
    let word = medium.load_word(at);
    match decode_word(word) {
        Some(lines) if lines > 0 && medium.check_range(at, 8).is_ok() => lines,
        _ => CHECKPOINT_LINES_DEFAULT,
    }
}

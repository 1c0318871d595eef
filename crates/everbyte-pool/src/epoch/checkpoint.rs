//! Checkpoints: sealing an epoch and making it durable.
//!
//! The order: (1) seal the epoch with every lane locked; (2) flush its dirty lines and fence; (3) store
//! `completed`, twice, flush, fence; (4) pass its deferred blocks to the allocator. The reason of each step
//! stands next to its code.

use std::sync::atomic::Ordering;

use everbyte_media::{BlockNo, Medium, PoolOffset};
use everbyte_plant::planted;

use crate::checkpoint_record::write_completed;
use crate::persist::InFlight;
use crate::plant::Bug;
use crate::sync::MutexGuard;
use crate::volume::{DeferredFree, SealedBlocks, Volume, WriteError};

/// Dirty blocks with prefetched states ahead of the flushed block.
const PREFETCH_AHEAD: usize = 8;

/// A sealed epoch; it takes no writes.
struct Sealed {
    epoch: u64,
    dirty: Vec<BlockNo>,
    deferred: DeferredFree,
}

/// A checkpoint between sealing and completion. Writers continue in the next epoch during it. If it is
/// dropped, the volume cannot complete any epoch until the pool is opened again.
#[must_use = "a sealed epoch is not durable before it is finished"]
pub struct PendingCheckpoint<'v, 'g, M: Medium> {
    volume: &'v Volume<M>,
    sealed: Sealed,
    sealed_blocks: SealedBlocks<'v>,
    _checkpointing: &'g MutexGuard<'v, ()>,
}

impl<M: Medium> Volume<M> {
    /// Makes everything written before this call durable. Concurrent calls share checkpoints.
    ///
    /// # Errors
    /// The medium's, or an earlier checkpoint failed; then a crash may undo the writes since the last
    /// success.
    pub fn flush(&self) -> Result<(), WriteError> {
        self.complete(self.current_epoch())
    }

    /// Returns once `epoch` is durable. Makes a checkpoint if necessary.
    ///
    /// # Errors
    /// As for `flush`.
    pub fn complete(&self, epoch: u64) -> Result<(), WriteError> {
        if self.completed_epoch() < epoch {
            // The previous holder of the lock may have completed `epoch`, or only an earlier one.
            let checkpointing = self.checkpointing.lock();
            if self.completed_epoch() < epoch {
                // Without the lanes this can change before the seal, so `seal` checks again.
                self.check_completable()?;
                // An untouched epoch has nothing to make durable, and stays current.
                if self.is_touched() {
                    self.seal(&checkpointing, true)?.finish()?;
                }
            }
        }
        // Also without a checkpoint: a store lost since the last one must fail the flush.
        self.check_medium()?;
        Ok(())
    }

    /// Checks that the current epoch can be completed. The caller holds the checkpoint lock. Only if the
    /// caller holds all lanes does the result stay true until the epoch is sealed.
    ///
    /// # Errors
    /// `CheckpointAbandoned` if an earlier epoch was sealed and then not completed: it holds acknowledged
    /// writes, and nothing later can become durable. `Unfinished` if a write was left half done.
    fn check_completable(&self) -> Result<(), WriteError> {
        if self.unfinished.load(Ordering::Acquire) {
            Err(WriteError::Unfinished)
        // The checkpoint lock excludes a checkpoint in progress, so a gap is an abandoned one.
        } else if self.current_epoch() == self.completed_epoch() + 1
            || planted(Bug::FailedCheckpointForgotten)
        {
            Ok(())
        } else {
            Err(WriteError::CheckpointAbandoned)
        }
    }

    /// Makes room for a request that found none: in the log, and in free blocks. Frees the blocks that the
    /// epoch deferred, and if the pool or the volume has few left, those preallocated by lanes. The caller
    /// holds no lane.
    ///
    /// # Errors
    /// As for `flush`.
    pub fn make_room(&self) -> Result<(), WriteError> {
        // Deferred blocks are free only after the checkpoint, so the free space is judged afterwards.
        self.complete(self.current_epoch())?;
        if self.shared.alloc.is_low() {
            self.shared.reclaim_preallocated();
        } else if self.usage.is_near_limit() {
            // Blocks that one lane has count, and the others may have no more because of them.
            self.return_preallocated();
        }
        Ok(())
    }

    /// Makes room for a request that found none after [`Volume::make_room`]: frees the deferred blocks of the
    /// pool's other volumes. A volume at its block limit gets none of these blocks. The caller holds no lane.
    pub(crate) fn make_room_elsewhere(&self) {
        if !self.usage.is_at_limit() {
            self.shared.free_deferred();
        }
    }

    /// Makes the current epoch durable if it holds anything, unless a checkpoint or a group is
    /// under way: false then.
    ///
    /// # Errors
    /// As for `flush`.
    pub(crate) fn flush_if_idle(&self) -> Result<bool, WriteError> {
        // Without a wait: a group holds this lock for as long as its caller likes.
        let Some(checkpointing) = self.checkpointing.try_lock() else { return Ok(false) };
        if self.is_touched() {
            self.seal(&checkpointing, true)?.finish()?;
        }
        Ok(true)
    }

    /// Seals the current epoch. The caller holds the guard of [`Volume::lock_checkpoint`] and finishes the
    /// checkpoint.
    ///
    /// # Errors
    /// The volume is read-only, or was deleted.
    pub fn begin_checkpoint<'v, 'g>(
        &'v self,
        guard: &'g MutexGuard<'v, ()>,
    ) -> Result<PendingCheckpoint<'v, 'g, M>, WriteError> {
        self.seal(guard, true)
    }

    /// Waits for a checkpoint in progress, and rejects later ones: the volume was deleted, and another volume
    /// may get its header.
    pub(crate) fn retire(&self) {
        let _checkpointing = self.checkpointing.lock();
        self.retired.store(true, Ordering::Release);
    }

    /// Keeps other checkpoints away.
    pub fn lock_checkpoint(&self) -> MutexGuard<'_, ()> {
        self.checkpointing.lock()
    }

    /// Seals the current epoch. `return_free` gives the lanes' preallocated blocks back as well.
    pub(crate) fn seal<'v, 'g>(
        &'v self,
        guard: &'g MutexGuard<'v, ()>,
        return_free: bool,
    ) -> Result<PendingCheckpoint<'v, 'g, M>, WriteError> {
        // Another volume may own the header by now, and `finish` stores to it.
        if self.retired.load(Ordering::Acquire) {
            return Err(WriteError::Gone);
        }
        if let Some(reason) = self.opened_read_only() {
            return Err(WriteError::ReadOnly { reason: reason.to_owned() });
        }
        self.check_medium()?;
        // (1) With every lane locked, no writer is inside the epoch. Its dirty lists are therefore complete,
        // and its writers have fenced every streamed byte.
        let mut lanes: Vec<_> = match planted(Bug::SealDoesNotWait) {
            true => self.lanes.iter().filter_map(|lane| lane.try_lock()).collect(),
            false => self.lanes.iter().map(|lane| lane.lock()).collect(),
        };
        // Under the lanes: a panicking writer sets `unfinished` before it releases its lane.
        self.check_completable()?;
        let epoch = self.current_epoch();
        let mut sealed = Sealed { epoch, dirty: Vec::new(), deferred: DeferredFree::default() };
        // If the pool has few free blocks, other lanes need the preallocated ones of idle lanes.
        let low = return_free && self.shared.alloc.is_low();
        for lane in &mut lanes {
            lane.dirty.seal_into(&mut sealed.dirty);
            sealed.deferred.append(&mut lane.deferred);
            // New writers get the other log half. Its records are two epochs old and dead.
            lane.log.begin_epoch(epoch + 1);
            lane.touched = false;
            if low {
                lane.take_preallocated().for_each(|block| self.give_back(block));
            }
        }
        // Under the lanes: the deferred blocks are counted either in a lane or here.
        let sealed_blocks = self.usage.seal(sealed.deferred.count_blocks());
        // Under the lanes, so no request of a writer of the next epoch is overwritten.
        self.wants_checkpoint.store(false, Ordering::Relaxed);
        self.dirty_lines.clear();
        // Relaxed: a writer takes its number while it holds a lane, and this thread holds all lanes.
        self.redo_order.store(0, Ordering::Relaxed);
        // Before the lanes are free: a flush after a write of the next epoch must complete that
        // epoch.
        self.current.store(epoch + 1, Ordering::Release);
        drop(lanes);
        Ok(PendingCheckpoint { volume: self, sealed, sealed_blocks, _checkpointing: guard })
    }
}

impl<M: Medium> PendingCheckpoint<'_, '_, M> {
    /// Flushes the sealed epoch, marks it completed and frees its deferred blocks.
    ///
    /// # Errors
    /// The medium's; the epoch is then not durable and its log records stay alive.
    pub fn finish(self) -> Result<(), WriteError> {
        let Self { volume, sealed, sealed_blocks, .. } = self;
        let medium = volume.medium();
        // (2) By physical address, also lines of blocks replaced since: undo of the next epoch may bring the
        // blocks back.
        let durable =
            InFlight::flush(medium, dirty_ranges(volume, &sealed), sealed.epoch).fence(medium)?;
        // (3) From this store on the epoch's records are dead, so the flush must be durable before.
        write_completed(medium, volume.header_at, &durable)?;
        // Not earlier: while the records are alive, the FUA fast path must find their marks.
        for &block in &sealed.dirty {
            volume.shared.states.get(block).forget(sealed.epoch);
        }
        // After the marks are clear: from here on the epoch e + 2 may begin, and uses the same
        // halves.
        volume.completed.store(sealed.epoch, Ordering::Release);
        volume.checkpoints.fetch_add(1, Ordering::Relaxed);
        // Before the frees: a block without a pin need not be held back.
        volume.end_late_pins();
        // (4) Before the store of `completed`, undo could have brought the blocks back.
        volume.give_back_all(&sealed.deferred);
        drop(sealed_blocks);
        Ok(())
    }
}

/// The dirty lines of an epoch, by address.
fn dirty_ranges<M: Medium>(
    volume: &Volume<M>,
    sealed: &Sealed,
) -> impl Iterator<Item = (PoolOffset, u64)> {
    let states = &volume.shared.states;
    sealed.dirty.iter().enumerate().flat_map(move |(index, &block)| {
        if let Some(&later) = sealed.dirty.get(index + PREFETCH_AHEAD) {
            states.get(later).prefetch_marks();
        }
        let lines = states.get(block).dirty(sealed.epoch);
        lines.runs().map(move |(start, len)| (block.offset().plus(start as u64), len as u64))
    })
}

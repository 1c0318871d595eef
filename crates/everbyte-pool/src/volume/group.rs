//! Groups: several writes that become durable together or not at all.
//!
//! Invariants: a group begins right after a checkpoint: its epoch's log holds nothing but the group's own
//! records, and undo of the epoch undoes the group. While it is open, no other writer is in the volume and no
//! epoch is sealed: the group holds every quiesce lock and the checkpoint lock. Readers see the group's
//! writes as they are made.

use everbyte_media::{BlockNo, MediaError, Medium};

use super::{DeferredFree, Volume, WriteError};
use crate::recover::Undo;
use crate::sync::{MutexGuard, RwLockWriteGuard};

/// Errors of a group.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// The group has used up one epoch's log or the pool's free space. The failed call wrote nothing.
    #[error("the group is too large: {what}")]
    TooLarge {
        /// The exhausted resource.
        what: &'static str,
    },
    /// The volume cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The log could not be read back for the roll-back.
    #[error(transparent)]
    Corrupt(#[from] crate::format::Corrupt),
}

impl From<MediaError> for GroupError {
    fn from(error: MediaError) -> Self {
        Self::Write(error.into())
    }
}

/// An open group. Dropping it without `commit` or `roll_back` leaves its writes to the next
/// checkpoint, like any others.
pub struct Group<'v, M: Medium> {
    volume: &'v Volume<M>,
    checkpointing: MutexGuard<'v, ()>,
    _quiesced: Vec<RwLockWriteGuard<'v, ()>>,
}

impl<M: Medium> Volume<M> {
    /// Opens a group: waits for other writers, then makes everything before it durable. A thread with an open
    /// group must not call `begin_op`, `flush` or `checkpoint`.
    ///
    /// # Errors
    /// The volume is gone; the checkpoint's.
    pub fn begin_group(&self) -> Result<Group<'_, M>, WriteError> {
        // In the order of writers: they hold a quiesce lock when they wait for a checkpoint.
        let quiesce_locks = self.quiesce();
        let checkpointing = self.checkpointing.lock();
        // A thread that deletes or closes the volume marks it first, and then waits for the quiesce lock.
        if self.is_gone() {
            return Err(WriteError::Gone);
        }
        // Earlier records would be undone with the group.
        if self.is_touched() {
            self.seal(&checkpointing, true)?.finish()?;
        }
        for lane in &self.lanes {
            lane.lock().group_blocks = Some(Vec::new());
        }
        Ok(Group { volume: self, checkpointing, _quiesced: quiesce_locks })
    }
}

impl<M: Medium> Group<'_, M> {
    /// Makes the group's writes durable, all of them together.
    ///
    /// # Errors
    /// The medium's; a crash then undoes the whole group or nothing of it.
    pub fn commit(self) -> Result<(), WriteError> {
        self.volume.seal(&self.checkpointing, false)?.finish()?;
        Ok(())
    }

    /// Undoes the group's writes. The caller keeps readers out of the volume during the call.
    ///
    /// # Errors
    /// If the log cannot be read back. The epoch is never completed then and the volume takes no more
    /// writes: the next opening undoes the group.
    pub fn roll_back(self) -> Result<(), GroupError> {
        let volume = self.volume;
        // The group's contents seen by readers are undone.
        volume.end_all_pins();
        // A part of the group must not become durable with the next checkpoint.
        self.undo().inspect_err(|_| volume.leave_unfinished())?;
        for lane in &volume.lanes {
            let mut lane = lane.lock();
            let allocated: Vec<BlockNo> = lane.group_blocks.take().unwrap_or_default();
            // Undo has restored the words that name the blocks freed by the group, so those frees
            // are dropped. No word names its new blocks.
            lane.deferred = DeferredFree { blocks: allocated, ..DeferredFree::default() };
        }
        Ok(())
    }

    fn undo(&self) -> Result<(), GroupError> {
        let (volume, medium) = (self.volume, self.volume.medium());
        let undo = Undo::read(medium, &volume.undo_scope(), volume.current_epoch())?;
        undo.apply(medium).fence(medium)?;
        Ok(())
    }
}

impl<M: Medium> Drop for Group<'_, M> {
    fn drop(&mut self) {
        for lane in &self.volume.lanes {
            lane.lock().group_blocks = None;
        }
    }
}

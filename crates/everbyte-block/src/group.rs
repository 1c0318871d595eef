//! Groups of writes to a block volume: durable together or not at all.

use everbyte_device::{DeviceError, Fua, WriteRequest};
use everbyte_extent::ExtentError;
use everbyte_media::Medium;
use everbyte_plant::planted;
use everbyte_pool::plant::Bug;
use everbyte_pool::{BatchOutcome, Group, GroupError, PlanConstraints, WriteError};

use crate::volume::BlockVolume;
use crate::write::{PendingWrite, named, range_of};

/// Errors of a write in a group. The failed write changed nothing; the group stays open.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupWriteError {
    /// The request itself was wrong.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The group is too large or the volume cannot be written.
    #[error(transparent)]
    Group(#[from] GroupError),
}

impl From<WriteError> for GroupWriteError {
    fn from(error: WriteError) -> Self {
        Self::Group(error.into())
    }
}

/// An open group on a block volume. Other writers wait until it ends; readers see its writes.
pub struct BlockGroup<'v, M: Medium> {
    volume: &'v BlockVolume<M>,
    group: Group<'v, M>,
}

impl<M: Medium> BlockVolume<M> {
    /// Opens a group: waits for other writers, then makes everything before it durable. The
    /// thread must not write to, flush or resize the volume except through the group.
    ///
    /// # Errors
    /// The volume cannot be written.
    pub fn begin_group(&self) -> Result<BlockGroup<'_, M>, WriteError> {
        Ok(BlockGroup { volume: self, group: self.volume().begin_group()? })
    }
}

impl<M: Medium> BlockGroup<'_, M> {
    /// Writes `data` at `offset` as part of the group.
    ///
    /// # Errors
    /// The request leaves the device; or the group has become too large. The latter is decided before
    /// anything of this write is done: the group can then be committed or rolled back.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), GroupWriteError> {
        let volume = self.volume;
        let request = WriteRequest { offset, data, fua: Fua::No };
        volume.check_write(named(&request))?;
        // The group excludes other writers, but a reader must not see half a block.
        let _blocks = volume.extent().locks().write([range_of(&request)]);
        // No checkpoint can come within the group, so none can free deferred blocks.
        let mut constraints = PlanConstraints { pool_was_full: true, ..PlanConstraints::default() };
        loop {
            let mut outcome = Ok(());
            let mut writes = [PendingWrite { request, outcome: &mut outcome }];
            let attempt = volume.volume().attempt(constraints, |batch, constraints| {
                volume.plan_writes(batch, constraints, &mut writes)
            });
            match (attempt, outcome) {
                (Err(ExtentError::Write(error)), _) => return Err(error.into()),
                (Err(error), _) => {
                    return Err(named(&request).failed(volume.volume(), error).into());
                }
                (Ok(_), Err(DeviceError::NoSpace { .. })) => {
                    let what = "the pool has no free blocks left";
                    return Err(GroupError::TooLarge { what }.into());
                }
                (Ok(_), Err(error)) => return Err(error.into()),
                (Ok(BatchOutcome::Done(_)), Ok(())) => return Ok(()),
                // A plan that replaces all blocks takes the least log. It is tried once.
                (Ok(_), Ok(())) if !constraints.log_is_short => constraints.log_is_short = true,
                (Ok(_), Ok(())) => {
                    return Err(GroupError::TooLarge { what: "the log has no room left" }.into());
                }
            }
        }
    }

    /// Makes the group durable, all of it together.
    ///
    /// # Errors
    /// The medium's; a crash then leaves the whole group or nothing of it.
    pub fn commit(self) -> Result<(), WriteError> {
        self.group.commit()
    }

    /// Undoes the group.
    ///
    /// # Errors
    /// The log cannot be read back; the volume must be closed then, and recovery undoes the group.
    pub fn roll_back(self) -> Result<(), GroupError> {
        // A reader without locks detects the undone stores by the sequences of these locks.
        let _blocks = self.volume.extent().locks().write_all();
        // Undo removes the leaves that the group has attached.
        if !planted(Bug::UnlinkedLeafKnown) {
            self.volume.extent().forget_leaves();
        }
        self.group.roll_back()
    }
}

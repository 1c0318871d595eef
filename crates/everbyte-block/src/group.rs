//! Groups of writes to a block volume: durable together or not at all.

use everbyte_device::{DeviceError, Fua, WriteRequest};
use everbyte_media::Medium;
use everbyte_pool::plant::{Bug, planted};
use everbyte_pool::{Group, GroupError, WriteError};

use crate::locks::BlockRange;
use crate::plan::{Approach, Translation};
use crate::volume::BlockVolume;
use crate::write::{Asked, Attempt};

/// Why a write in a group failed. Nothing of that write was done; the group goes on.
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
    /// The request leaves the device; or the group has become too large, which is decided before
    /// anything of this write is done: it can be committed or rolled back then.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), GroupWriteError> {
        let volume = self.volume;
        let request = WriteRequest { offset, data, fua: Fua::No };
        volume.check_write(offset, data.len() as u64)?;
        let _blocks = volume.locks.write([BlockRange::of_bytes(offset, data.len() as u64)]);
        let mut outcome = Ok(());
        let mut attempt = |translation| {
            let approach = Approach { translation, ..Approach::AT_ONCE };
            volume.attempt(&mut [Asked { request, outcome: &mut outcome }], approach)
        };
        let attempted = match attempt(Translation::Cheapest)? {
            Attempt::LogFull | Attempt::TooLarge => attempt(Translation::LeastLog)?,
            attempted => attempted,
        };
        match attempted {
            Attempt::Done(_) => match outcome {
                Err(DeviceError::NoSpace { .. }) => {
                    Err(GroupError::TooLarge { what: "the pool has no free blocks left" }.into())
                }
                outcome => Ok(outcome?),
            },
            Attempt::LogFull | Attempt::TooLarge | Attempt::PoolFull => {
                Err(GroupError::TooLarge { what: "the log has no room left" }.into())
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
        let _blocks = self.volume.locks.write_all();
        if !planted(Bug::UnlinkedLeafKnown) {
            self.volume.leaves.forget_all();
        }
        self.group.roll_back()
    }
}

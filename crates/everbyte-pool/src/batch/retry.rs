//! Carrying a change out whatever the log and the free space are like when it comes.

use everbyte_media::Medium;
use everbyte_plant::planted;

use super::{Batch, BatchOutcome};
use crate::plant::Bug;
use crate::volume::{Volume, WriteError};

/// Circumstances under which a batch is planned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Circumstances {
    /// A checkpoint has freed what it could: what would like a block and finds none has to do
    /// without.
    pub pool_was_full: bool,
    /// Planned as usual the batch takes more log than there ever is: blocks are to be replaced
    /// wherever they can be, which takes the least.
    pub log_is_short: bool,
}

/// An error of planning a batch, as far as [`Volume::change`] must know it.
pub trait ChangeError: From<WriteError> {
    /// Returns true if the pool had no block, so that a checkpoint may help.
    fn is_no_space(&self) -> bool;
    /// The error of a change that the log never has room for.
    fn too_large() -> Self;
}

impl<M: Medium> Volume<M> {
    /// Makes the change that `plan` plans, in one batch, and returns its epoch. Plans again after a
    /// checkpoint where log or blocks were lacking, and with every block replaced where the log
    /// would never do; so `plan` may be called several times, each time with an empty batch, and
    /// looks at everything anew. The caller holds neither a lane nor a group.
    ///
    /// # Errors
    /// Those of `plan`, unless another plan may succeed; `too_large` if the log never has room;
    /// the medium's. Nothing was changed then.
    pub fn change<'v, 'd, E: ChangeError>(
        &'v self,
        mut plan: impl FnMut(&mut Batch<'v, 'd, M>, Circumstances) -> Result<(), E>,
    ) -> Result<u64, E> {
        let mut circumstances = Circumstances::default();
        loop {
            match self.attempt(circumstances, &mut plan) {
                Ok(BatchOutcome::Done(epoch)) => return Ok(epoch),
                Ok(BatchOutcome::LogFull) => self.make_room()?,
                Ok(BatchOutcome::TooLarge) if !circumstances.log_is_short => {
                    circumstances.log_is_short = true;
                }
                Ok(BatchOutcome::TooLarge) => return Err(E::too_large()),
                Err(error) if error.is_no_space() && !circumstances.pool_was_full => {
                    circumstances.pool_was_full = true;
                    self.make_room()?;
                    self.make_room_elsewhere();
                    // Of what the change writes to, nobody can pin anything meanwhile.
                    self.end_all_pins();
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Plans and carries out once.
    ///
    /// # Errors
    /// Those of `plan` or of the medium.
    pub fn attempt<'v, 'd, E: From<WriteError>>(
        &'v self,
        circumstances: Circumstances,
        plan: impl FnOnce(&mut Batch<'v, 'd, M>, Circumstances) -> Result<(), E>,
    ) -> Result<BatchOutcome, E> {
        let outcome = {
            // Built and dropped where it stands: moving all that a batch has room for costs as much
            // as planning one.
            let mut batch = Batch::new(self.join()?);
            plan(&mut batch, circumstances)?;
            let outcome = batch.carry_out()?;
            if planted(Bug::StalePlan) && outcome == BatchOutcome::LogFull {
                return Ok(batch.commit_stale()?);
            }
            outcome
        };
        self.medium().check().map_err(WriteError::from)?;
        Ok(outcome)
    }
}

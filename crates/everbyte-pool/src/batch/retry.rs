//! Retries of a change until log and free space suffice.

use everbyte_media::Medium;

use super::{Batch, BatchOutcome};
use crate::volume::{Volume, WriteError};

/// Shortages to respect in the plan of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PlanConstraints {
    /// The last checkpoint freed all deferred blocks: a write that prefers a new block must do without it.
    pub pool_was_full: bool,
    /// A normal plan needs more log than a lane has: the plan replaces blocks wherever it can, to take the
    /// least log.
    pub log_is_short: bool,
}

/// An error of a plan, as [`Volume::change`] sees it.
pub trait ChangeError: From<WriteError> {
    /// Returns true if no block was free, so a checkpoint may help.
    fn is_no_space(&self) -> bool;
    /// The error of a change too large for the log.
    fn too_large() -> Self;
}

impl<M: Medium> Volume<M> {
    /// Carries out the change of `plan` in one batch, and returns its epoch. If log or blocks are short,
    /// plans again after a checkpoint. If the batch never fits in the log, plans again with all blocks
    /// replaced. So `plan` may run several times, each time with an empty batch, and must read
    /// all state again. The caller holds neither a lane nor a group.
    ///
    /// # Errors
    /// Those of `plan`, unless another plan may succeed; `too_large` if the batch never fits in the
    /// log; the medium's. Nothing was changed then.
    pub fn change<'v, 'd, E: ChangeError>(
        &'v self,
        mut plan: impl FnMut(&mut Batch<'v, 'd, M>, PlanConstraints) -> Result<(), E>,
    ) -> Result<u64, E> {
        let mut constraints = PlanConstraints::default();
        loop {
            match self.attempt(constraints, &mut plan) {
                Ok(BatchOutcome::Done(epoch)) => return Ok(epoch),
                // The next plan starts anew: the checkpoint ends all freshness and all logged
                // lines.
                Ok(BatchOutcome::LogFull) => self.make_room()?,
                Ok(BatchOutcome::TooLarge) if !constraints.log_is_short => {
                    constraints.log_is_short = true;
                }
                Ok(BatchOutcome::TooLarge) => return Err(E::too_large()),
                Err(error) if error.is_no_space() && !constraints.pool_was_full => {
                    // Once only: a second shortage is not cured by a second checkpoint.
                    constraints.pool_was_full = true;
                    self.make_room()?;
                    self.make_room_elsewhere();
                    // The caller's locks keep readers from pinning the blocks of the change again.
                    self.end_all_pins();
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Plans and carries out a batch once.
    ///
    /// # Errors
    /// Those of `plan` or of the medium.
    pub fn attempt<'v, 'd, E: From<WriteError>>(
        &'v self,
        constraints: PlanConstraints,
        plan: impl FnOnce(&mut Batch<'v, 'd, M>, PlanConstraints) -> Result<(), E>,
    ) -> Result<BatchOutcome, E> {
        let outcome = {
            // Built and dropped in place: a move of a batch costs as much as a plan.
            let mut batch = Batch::new(self.join()?);
            plan(&mut batch, constraints)?;
            batch.carry_out()?
        };
        // A lost store fails the medium, so the outcome is reported only after this check.
        self.medium().check().map_err(WriteError::from)?;
        Ok(outcome)
    }
}

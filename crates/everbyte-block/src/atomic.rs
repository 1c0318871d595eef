//! Several writes as one: in one epoch. A crash undoes the epoch as a whole.
//!
//! Writes without a shared block are one commit of the log. Overlapping writes are a group: it begins and
//! ends with a checkpoint.

use everbyte_device::{
    AtomicWriteError, AtomicWrites, BlockDevice, DeviceError, Fua, WriteRequest,
};
use everbyte_extent::{DeviceOffset, ExtentError, Planner};
use everbyte_media::Medium;
use everbyte_plant::planted;
use everbyte_pool::plant::Bug;
use everbyte_pool::{Batch, ChangeError, GroupError, PlanConstraints, WriteError};

use crate::error::RequestRange;
use crate::group::GroupWriteError;
use crate::volume::BlockVolume;
use crate::write::{disjoint_prefix, named, range_of};

/// Errors of writing requests as one.
enum AsOneError {
    /// For this request.
    Request(RequestRange, ExtentError),
    /// For all of them.
    All(ExtentError),
    /// This request leaves the device, or the volume cannot be written.
    Refused(DeviceError),
}

impl From<WriteError> for AsOneError {
    fn from(error: WriteError) -> Self {
        Self::All(error.into())
    }
}

impl ChangeError for AsOneError {
    fn is_no_space(&self) -> bool {
        matches!(self, Self::Request(_, ExtentError::NoSpace))
    }

    fn too_large() -> Self {
        Self::All(ExtentError::TooLarge)
    }
}

impl<M: Medium> AtomicWrites for BlockVolume<M> {
    fn write_atomic(&self, requests: &[WriteRequest<'_>]) -> Result<(), AtomicWriteError> {
        // Before anything is written: one impossible request refuses all.
        for request in requests {
            self.check_write(named(request))?;
        }
        match requests {
            [] => Ok(()),
            // A write within one block is atomic without a shared plan.
            [one] if range_of(one).count <= 1 => Ok(self.write(one.offset, one.data, one.fua)?),
            _ if disjoint_prefix(requests) == requests.len() => self.write_as_one(requests),
            _ => self.write_as_group(requests),
        }
    }
}

impl<M: Medium> BlockVolume<M> {
    /// Writes requests without a shared block.
    fn write_as_one(&self, requests: &[WriteRequest<'_>]) -> Result<(), AtomicWriteError> {
        if planted(Bug::AtomicInParts) {
            return requests.iter().try_for_each(|r| Ok(self.write(r.offset, r.data, r.fua)?));
        }
        let epoch = {
            let _op = self.volume().begin_op();
            // All in one call: with a second call two threads could wait for each other.
            let _blocks = self.extent().locks().write(requests.iter().map(range_of));
            let changed = self
                .volume()
                .change(|batch, constraints| self.plan_all(batch, constraints, requests));
            changed.map_err(|error| self.atomic_error(error, requests))?
        };
        // Without the locks, so that other writers of these blocks do not wait for the checkpoint.
        if requests.iter().any(|request| request.fua == Fua::Yes) {
            let done = self.volume().complete(epoch);
            done.map_err(|error| span(requests).failed(self.volume(), error))?;
        }
        Ok(())
    }

    /// Plans all requests, or none.
    fn plan_all<'v, 'd>(
        &'v self,
        batch: &mut Batch<'v, 'd, M>,
        constraints: PlanConstraints,
        requests: &[WriteRequest<'d>],
    ) -> Result<(), AsOneError> {
        let empty = batch.savepoint();
        let mut planner = Planner::new(self.extent(), batch, constraints);
        planner.prefetch(requests.iter().map(|r| (DeviceOffset(r.offset), r.data)));
        let planned = self.plan_each_of(&mut planner, requests);
        // Replacements may have taken blocks that holes of later requests need.
        if constraints.pool_was_full && planned.as_ref().is_err_and(ChangeError::is_no_space) {
            planner.replan_in_place(empty);
            return self.plan_each_of(&mut planner, requests);
        }
        planned
    }

    /// Plans one request after the other, until one cannot be made.
    fn plan_each_of<'d>(
        &self,
        planner: &mut Planner<'_, '_, 'd, M>,
        requests: &[WriteRequest<'d>],
    ) -> Result<(), AsOneError> {
        for request in requests {
            // Under the locks: a resize may have come since the first check.
            self.check_write(named(request)).map_err(AsOneError::Refused)?;
            let planned = planner.write(DeviceOffset(request.offset), request.data);
            planned.map_err(|error| AsOneError::Request(named(request), error))?;
        }
        Ok(())
    }

    fn atomic_error(&self, error: AsOneError, requests: &[WriteRequest<'_>]) -> AtomicWriteError {
        match error {
            AsOneError::All(ExtentError::TooLarge) => {
                AtomicWriteError::TooLarge { what: "the volume's log" }
            }
            AsOneError::All(error) => span(requests).failed(self.volume(), error).into(),
            AsOneError::Request(request, error) => request.failed(self.volume(), error).into(),
            AsOneError::Refused(error) => error.into(),
        }
    }

    /// Writes requests with overlaps.
    fn write_as_group(&self, requests: &[WriteRequest<'_>]) -> Result<(), AtomicWriteError> {
        let all = span(requests);
        let failed = |error: WriteError| all.failed(self.volume(), error);
        let group = self.begin_group().map_err(failed)?;
        let Err(error) = requests.iter().try_for_each(|r| group.write(r.offset, r.data)) else {
            return Ok(group.commit().map_err(failed)?);
        };
        // Without the roll-back, the next checkpoint would make a part of the group durable.
        group.roll_back().map_err(|error| all.media(&error))?;
        Err(match error {
            GroupWriteError::Device(error) => error.into(),
            GroupWriteError::Group(GroupError::TooLarge { what }) => {
                AtomicWriteError::TooLarge { what }
            }
            GroupWriteError::Group(GroupError::Write(error)) => failed(error).into(),
            GroupWriteError::Group(error) => all.media(&error).into(),
        })
    }
}

/// The range from the first byte of `requests`, a non-empty slice, to the last.
fn span(requests: &[WriteRequest<'_>]) -> RequestRange {
    let start = requests.iter().map(|r| r.offset).min().unwrap_or(0);
    let end = requests.iter().map(|r| r.offset + r.data.len() as u64).max().unwrap_or(0);
    RequestRange { offset: start, len: end - start }
}

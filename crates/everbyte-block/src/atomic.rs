//! Several writes as one: in one epoch, which a crash undoes as a whole.
//!
//! Writes that share no block are one commit of the log. Writes that go over each other are a
//! group, which begins and ends with a checkpoint.

use everbyte_device::{AtomicWriteError, AtomicWrites, BlockDevice, Fua, WriteRequest};
use everbyte_media::Medium;
use everbyte_pool::plant::{Bug, planted};
use everbyte_pool::{GroupError, WriteError};

use crate::group::GroupWriteError;
use crate::plan::{Approach, Fate, Plan, PlanError, WhenFull};
use crate::volume::{BlockVolume, RequestRange};
use crate::write::{disjoint_prefix, named, range_of};

/// What became of an attempt to write all.
enum Attempt {
    /// Done, in this epoch.
    Done(u64),
    /// The log has no room now, but has after a checkpoint.
    LogFull,
    /// The log never has room for so much at once.
    TooLarge,
    /// The pool has no free block for this request; a checkpoint may free some.
    PoolFull(RequestRange),
}

impl<M: Medium> AtomicWrites for BlockVolume<M> {
    fn write_atomic(&self, requests: &[WriteRequest<'_>]) -> Result<(), AtomicWriteError> {
        for request in requests {
            self.check_write(request.offset, request.data.len() as u64)?;
        }
        match requests {
            [] => Ok(()),
            [one] if range_of(one).count <= 1 => Ok(self.write(one.offset, one.data, one.fua)?),
            _ if disjoint_prefix(requests) == requests.len() => self.write_as_one(requests),
            _ => self.write_as_group(requests),
        }
    }
}

impl<M: Medium> BlockVolume<M> {
    /// Writes requests that share no block.
    fn write_as_one(&self, requests: &[WriteRequest<'_>]) -> Result<(), AtomicWriteError> {
        if planted(Bug::AtomicInParts) {
            return requests.iter().try_for_each(|r| Ok(self.write(r.offset, r.data, r.fua)?));
        }
        let epoch = {
            let _gate = self.volume().enter();
            let _blocks = self.locks.write(requests.iter().map(range_of));
            self.write_all_locked(requests)?
        };
        if requests.iter().any(|request| request.fua == Fua::Yes) {
            let done = self.volume().complete(epoch);
            done.map_err(|error| span(requests).write_error(&error))?;
        }
        Ok(())
    }

    /// The same, under gate and block locks that the caller holds. Returns the epoch.
    fn write_all_locked(&self, requests: &[WriteRequest<'_>]) -> Result<u64, AtomicWriteError> {
        let mut approach = Approach::default();
        loop {
            match self.attempt_all(requests, approach)? {
                Attempt::Done(epoch) => return Ok(epoch),
                Attempt::TooLarge => {
                    let what = "the volume's log";
                    approach =
                        approach.with_less_log().ok_or(AtomicWriteError::TooLarge { what })?;
                    continue;
                }
                Attempt::PoolFull(request) if approach.when_full == WhenFull::Log => {
                    return Err(request.no_space().into());
                }
                Attempt::PoolFull(_) => approach.when_full = WhenFull::Log,
                Attempt::LogFull => {}
            }
            self.volume().make_room().map_err(|error| span(requests).write_error(&error))?;
        }
    }

    /// Plans and executes once. The caller holds gate and block locks.
    fn attempt_all(
        &self,
        requests: &[WriteRequest<'_>],
        approach: Approach,
    ) -> Result<Attempt, AtomicWriteError> {
        let all = span(requests);
        let mut writer = self.volume().join().map_err(|error| all.write_error(&error))?;
        let mut plan = Plan::new(approach);
        plan.expect(self, &writer, requests.iter());
        for request in requests {
            let named = named(request);
            let planned = self
                .check_write(named.offset, named.len)
                .map(|()| plan.add_request(self, &mut writer, request.offset, request.data));
            let error = match planned {
                Ok(Ok(())) => continue,
                Ok(Err(PlanError::NoSpace)) => {
                    plan.abandon(&mut writer);
                    return Ok(Attempt::PoolFull(named));
                }
                Ok(Err(PlanError::Corrupt(corrupt))) => self.corrupt(named, &corrupt),
                Ok(Err(PlanError::Lost(unsound))) => self.unsound(named, &unsound),
                Ok(Err(PlanError::Write(error))) => named.write_error(&error),
                Err(error) => error,
            };
            plan.abandon(&mut writer);
            return Err(error.into());
        }
        match plan.carry_out(self, writer).map_err(|error| all.write_error(&error))? {
            Fate::Done(epoch) => Ok(Attempt::Done(epoch)),
            Fate::LogFull => Ok(Attempt::LogFull),
            Fate::TooLarge => Ok(Attempt::TooLarge),
        }
    }

    /// Writes requests of which some go over others.
    fn write_as_group(&self, requests: &[WriteRequest<'_>]) -> Result<(), AtomicWriteError> {
        let all = span(requests);
        let failed = |error: WriteError| all.write_error(&error);
        let group = self.begin_group().map_err(failed)?;
        let Err(error) = requests.iter().try_for_each(|r| group.write(r.offset, r.data)) else {
            return Ok(group.commit().map_err(failed)?);
        };
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

/// The range from the first byte of `requests`, which are not empty, to the last.
fn span(requests: &[WriteRequest<'_>]) -> RequestRange {
    let start = requests.iter().map(|r| r.offset).min().unwrap_or(0);
    let end = requests.iter().map(|r| r.offset + r.data.len() as u64).max().unwrap_or(0);
    RequestRange { offset: start, len: end - start }
}

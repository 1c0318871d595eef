//! Writes: the grouping of requests, and their durability.
//!
//! Invariants: requests of a batch with a shared block are made in order. A FUA request returns once it is
//! durable, by the FUA fast path or by the checkpoint of its epoch. A failed request does not affect the
//! others.

use everbyte_device::{DeviceError, Fua, WriteRequest};
use everbyte_extent::{
    BlockRange, DeviceOffset, DurableWrite, ExtentError, FastPath, FuaOutcome, Planner, pieces,
};
use everbyte_media::Medium;
use everbyte_plant::planted;
use everbyte_pool::plant::Bug;
use everbyte_pool::{Batch, PlanConstraints};
use smallvec::SmallVec;

use crate::error::RequestRange;
use crate::volume::BlockVolume;

/// Outcome of one request.
pub(crate) type Outcome = Result<(), DeviceError>;

/// A pending request with the place of its outcome.
pub(crate) struct PendingWrite<'r, 'd> {
    pub(crate) request: WriteRequest<'d>,
    pub(crate) outcome: &'r mut Outcome,
}

pub(crate) fn range_of(request: &WriteRequest<'_>) -> BlockRange {
    BlockRange::of_bytes(DeviceOffset(request.offset), request.data.len() as u64)
}

pub(crate) fn named(request: &WriteRequest<'_>) -> RequestRange {
    RequestRange { offset: request.offset, len: request.data.len() as u64 }
}

impl<M: Medium> BlockVolume<M> {
    pub(crate) fn write_requests(&self, requests: &[WriteRequest<'_>]) -> Vec<Outcome> {
        if let [request] = requests {
            return vec![self.write_request(*request)];
        }
        let mut outcomes = vec![Ok(()); requests.len()];
        self.write_all(requests, &mut outcomes);
        outcomes
    }

    pub(crate) fn write_request(&self, request: WriteRequest<'_>) -> Outcome {
        if let FastPath::Done = self.try_fast_path(&request)? {
            return Ok(());
        }
        self.check_write(named(&request))?;
        if request.data.is_empty() {
            return Ok(());
        }
        let mut outcome = Ok(());
        let epoch = self.write_in_epoch(&mut [PendingWrite { request, outcome: &mut outcome }]);
        outcome?;
        match request.fua {
            Fua::No => Ok(()),
            Fua::Yes => self.complete_for(&request, epoch),
        }
    }

    /// Waits until `epoch` is durable, for the FUA request `request`.
    fn complete_for(&self, request: &WriteRequest<'_>, epoch: u64) -> Outcome {
        let completed = self.volume().complete(epoch);
        completed.map_err(|error| named(request).failed(self.volume(), error))
    }

    /// Tries the fast path, then the FUA fast path. Returns `Ineligible` if neither applies.
    fn try_fast_path(&self, request: &WriteRequest<'_>) -> Result<FastPath, DeviceError> {
        let range = range_of(request);
        if request.fua == Fua::Yes {
            let offset = DeviceOffset(request.offset);
            let written = match range.count {
                1 => self.write_durably(request)?,
                _ if self.extent().is_for_direct_path(offset, request.data.len()) => {
                    self.write_blocks_durably(request)?
                }
                _ => FuaOutcome::NotAllowed,
            };
            return Ok(match written {
                FuaOutcome::Durable => FastPath::Done,
                FuaOutcome::NotAllowed => FastPath::Ineligible,
            });
        }
        if range.count != 1 {
            return Ok(FastPath::Ineligible);
        }
        if !self.extent().has_fast_path() {
            return Ok(FastPath::Ineligible);
        }
        self.extent().prefetch_entry(range.first);
        let _op = self.volume().begin_op();
        let _block = self.extent().locks().write_one(range.first);
        // Under the lock: a resize or a deletion takes all block locks.
        self.check_write(named(request))?;
        let written = self.extent().try_fast_path(DeviceOffset(request.offset), request.data);
        written.map_err(|error| named(request).failed(self.volume(), error))
    }

    /// Writes requests in order and stores their results in `outcomes`, a slice of the same length, all `Ok`.
    fn write_all(&self, requests: &[WriteRequest<'_>], outcomes: &mut [Outcome]) {
        let mut durable_epoch = 0;
        let mut first = 0;
        // Requests with a shared block take effect in order, so a run ends before such a request.
        while first < requests.len() {
            let run = first..first + disjoint_prefix(&requests[first..]);
            first = run.end;
            let epoch = self.write_run(&requests[run.clone()], &mut outcomes[run]);
            durable_epoch = durable_epoch.max(epoch);
        }
        // One checkpoint serves all runs: the last epoch covers the earlier ones.
        if durable_epoch > 0
            && let Err(error) = self.volume().complete(durable_epoch)
        {
            for (request, outcome) in requests.iter().zip(outcomes) {
                if request.fua == Fua::Yes && outcome.is_ok() {
                    *outcome = Err(named(request).failed(self.volume(), error.clone()));
                }
            }
        }
    }

    /// Writes requests without a shared block. Returns the epoch that must be durable before the FUA requests
    /// return, 0 for none.
    fn write_run(&self, requests: &[WriteRequest<'_>], outcomes: &mut [Outcome]) -> u64 {
        let mut batch: SmallVec<[PendingWrite<'_, '_>; 1]> = SmallVec::new();
        for (request, outcome) in requests.iter().zip(outcomes) {
            *outcome = self.check_write(named(request));
            if outcome.is_ok() && !request.data.is_empty() {
                batch.push(PendingWrite { request: *request, outcome });
            }
        }
        if batch.iter().any(|pending| pending.request.fua == Fua::Yes) {
            batch = self.write_durable_ones(batch);
        }
        // Those of several blocks one by one, each with two fences.
        batch.retain(|PendingWrite { request, outcome }| {
            let offset = DeviceOffset(request.offset);
            let is_direct = self.extent().is_for_direct_path(offset, request.data.len());
            if request.fua == Fua::No || !is_direct {
                return true;
            }
            let written = self.write_blocks_durably(request);
            let is_left = matches!(written, Ok(FuaOutcome::NotAllowed));
            **outcome = written.map(drop);
            is_left
        });
        if batch.is_empty() {
            return 0;
        }
        let durable = batch.iter().any(|pending| pending.request.fua == Fua::Yes);
        let epoch = self.write_in_epoch(&mut batch);
        if durable { epoch } else { 0 }
    }

    /// Writes the requests eligible for the FUA fast path, with shared fences. Returns the others.
    fn write_durable_ones<'r, 'd>(
        &self,
        batch: SmallVec<[PendingWrite<'r, 'd>; 1]>,
    ) -> SmallVec<[PendingWrite<'r, 'd>; 1]> {
        let is_for_it = |pending: &PendingWrite<'_, '_>| {
            pending.request.fua == Fua::Yes && range_of(&pending.request).count == 1
        };
        let (mut durable, mut others): (SmallVec<[_; 1]>, SmallVec<[_; 1]>) =
            batch.into_iter().partition(is_for_it);
        for pending in &durable {
            self.extent().prefetch_entry(range_of(&pending.request).first);
        }
        let _op = self.volume().begin_op();
        let ranges = durable.iter().map(|pending| range_of(&pending.request));
        let _blocks = self.extent().locks().write(ranges);
        // The volume may have shrunk since the caller's check.
        durable.retain(|PendingWrite { request, outcome }| {
            **outcome = self.check_write(named(request));
            outcome.is_ok()
        });
        let pieces = durable
            .iter()
            .flat_map(|pending| pieces(DeviceOffset(pending.request.offset), pending.request.data));
        let mut writes: Vec<DurableWrite<'_>> = pieces.map(DurableWrite::of).collect();
        self.extent().write_all_durably(&mut writes);
        for (pending, write) in durable.into_iter().zip(writes) {
            match write.outcome() {
                Ok(FuaOutcome::Durable) => {}
                Ok(FuaOutcome::NotAllowed) => others.push(pending),
                Err(error) => {
                    *pending.outcome = Err(named(&pending.request).failed(self.volume(), error));
                }
            }
        }
        others
    }

    /// Tries the FUA fast path for a request of one block.
    fn write_durably(&self, request: &WriteRequest<'_>) -> Result<FuaOutcome, DeviceError> {
        self.extent().prefetch_entry(range_of(request).first);
        let _op = self.volume().begin_op();
        let _block = self.extent().locks().write_one(range_of(request).first);
        // Under the lock: a resize or a deletion takes all block locks.
        self.check_write(named(request))?;
        let written = self.extent().write_durably(DeviceOffset(request.offset), request.data);
        written.map_err(|error| named(request).failed(self.volume(), error))
    }

    /// Tries the durable direct path for a request of several whole blocks.
    fn write_blocks_durably(&self, request: &WriteRequest<'_>) -> Result<FuaOutcome, DeviceError> {
        self.extent().prefetch_entries(range_of(request));
        let _op = self.volume().begin_op();
        let _blocks = self.extent().locks().write_range(range_of(request));
        // Under the locks, as for one block.
        self.check_write(named(request))?;
        let offset = DeviceOffset(request.offset);
        let written = self.extent().write_blocks_durably(offset, request.data);
        written.map_err(|error| named(request).failed(self.volume(), error))
    }

    /// Writes disjoint requests in one epoch, or in several epochs if they do not fit in one. Returns the last
    /// epoch.
    fn write_in_epoch(&self, batch: &mut [PendingWrite<'_, '_>]) -> u64 {
        if let [one] = &*batch {
            self.extent().prefetch_entries(range_of(&one.request));
        }
        let _op = self.volume().begin_op();
        let locks = self.extent().locks();
        let mut blocks = match &*batch {
            [one] => locks.write_range(range_of(&one.request)),
            many => locks.write(many.iter().map(|pending| range_of(&pending.request))),
        };
        if planted(Bug::BlocksUnlockedEarly) {
            blocks.clear();
        }
        if let [one] = &mut *batch
            && let Some(epoch) = self.try_direct_path(one)
        {
            return epoch;
        }
        self.write_locked(batch)
    }

    /// Tries the direct path, and returns the epoch. `None` if the request needs a plan. The caller holds the
    /// quiesce lock and the block locks.
    fn try_direct_path(
        &self,
        PendingWrite { request, outcome }: &mut PendingWrite<'_, '_>,
    ) -> Option<u64> {
        // Under the locks: the volume may have shrunk since the caller's check. The planner reports it.
        self.check_write(named(request)).ok()?;
        match self.extent().try_direct_path(DeviceOffset(request.offset), request.data) {
            Ok(epoch) => epoch,
            Err(error) => {
                **outcome = Err(named(request).failed(self.volume(), error));
                Some(0)
            }
        }
    }

    /// Writes disjoint requests as `write_in_epoch`. The caller holds the quiesce lock and the block locks.
    fn write_locked(&self, writes: &mut [PendingWrite<'_, '_>]) -> u64 {
        let written =
            self.volume().change(|batch, constraints| self.plan_writes(batch, constraints, writes));
        match written {
            Ok(epoch) => epoch,
            // Even an empty lane has no room for a plan that replaces every block.
            Err(ExtentError::TooLarge) => self.write_parts(writes),
            Err(error) => {
                for PendingWrite { request, outcome } in writes {
                    **outcome = Err(named(request).failed(self.volume(), error.clone()));
                }
                0
            }
        }
    }

    /// Plans all of `writes`. A failed write gets its outcome and is left out.
    pub(crate) fn plan_writes<'v, 'd>(
        &'v self,
        batch: &mut Batch<'v, 'd, M>,
        constraints: PlanConstraints,
        writes: &mut [PendingWrite<'_, 'd>],
    ) -> Result<(), ExtentError> {
        let empty = batch.savepoint();
        let mut planner = Planner::new(self.extent(), batch, constraints);
        let places = writes.iter().map(|w| (DeviceOffset(w.request.offset), w.request.data));
        planner.prefetch(places);
        if self.plan_each(&mut planner, constraints, writes)? {
            planner.replan_in_place(empty);
            self.plan_each(&mut planner, constraints, writes)?;
        }
        Ok(())
    }

    /// Plans all of `writes` in order. Returns true if a write found no space after others were planned:
    /// their replacements may have taken needless blocks.
    fn plan_each<'d>(
        &self,
        planner: &mut Planner<'_, '_, 'd, M>,
        constraints: PlanConstraints,
        writes: &mut [PendingWrite<'_, 'd>],
    ) -> Result<bool, ExtentError> {
        let (mut any_planned, mut lacks_space) = (false, false);
        for PendingWrite { request, outcome } in writes {
            // Under the locks: the volume may have shrunk since the caller's check.
            **outcome = self.check_write(named(request));
            if outcome.is_err() {
                continue;
            }
            match planner.write(DeviceOffset(request.offset), request.data) {
                Ok(()) => any_planned = true,
                // A checkpoint may free blocks. All requests are then planned again.
                Err(ExtentError::NoSpace) if !constraints.pool_was_full => {
                    return Err(ExtentError::NoSpace);
                }
                Err(ExtentError::Write(error)) => return Err(error.into()),
                Err(error) => {
                    lacks_space |= any_planned && matches!(error, ExtentError::NoSpace);
                    **outcome = Err(named(request).failed(self.volume(), error));
                }
            }
        }
        Ok(lacks_space)
    }

    /// Writes requests too large for the log together: one by one, and a single request block by block. An
    /// error of a single request, except a media error and `Gone`, means that nothing of it was written. The
    /// caller holds the quiesce lock and the block locks.
    fn write_parts(&self, writes: &mut [PendingWrite<'_, '_>]) -> u64 {
        if let [PendingWrite { request, outcome }] = writes {
            if range_of(request).count <= 1 {
                **outcome = Err(named(request).failed(self.volume(), ExtentError::TooLarge));
                return 0;
            }
            let whole = named(request);
            let mut epoch = 0;
            for piece in pieces(DeviceOffset(request.offset), request.data) {
                let offset = piece.block.offset().plus(piece.start as u64).0;
                let request = WriteRequest { offset, data: piece.data, fua: request.fua };
                epoch = self.write_locked(&mut [PendingWrite { request, outcome }]);
                // The later parts stay unwritten, so the error states the length of the written
                // prefix.
                if let Err(error) = &**outcome {
                    **outcome = Err(whole.after_part(offset - whole.offset, error.clone()));
                    break;
                }
            }
            return epoch;
        }
        let mut last = 0;
        for write in writes {
            last = last.max(self.write_locked(std::slice::from_mut(write)));
        }
        last
    }
}

/// Returns the number of `requests`, from the first on, without a shared block.
pub(crate) fn disjoint_prefix(requests: &[WriteRequest<'_>]) -> usize {
    // The ranges so far, ascending.
    let mut ranges: SmallVec<[BlockRange; 16]> = SmallVec::new();
    for (count, request) in requests.iter().enumerate() {
        let range = range_of(request);
        // Most batches ascend.
        if range.count > 0 && ranges.last().is_none_or(|last| last.end() <= range.first) {
            ranges.push(range);
            continue;
        }
        let place = ranges.partition_point(|earlier| earlier.first < range.first);
        // The ranges are disjoint and ascend, so only the two neighbours can overlap.
        let before = place.checked_sub(1).and_then(|place| ranges.get(place));
        if before.into_iter().chain(ranges.get(place)).any(|near| near.overlaps(&range)) {
            return count;
        }
        if range.count > 0 {
            ranges.insert(place, range);
        }
    }
    requests.len()
}

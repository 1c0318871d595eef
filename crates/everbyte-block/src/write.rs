//! Writing: batches of requests, one fence for each batch, and the short path for FUA.
//!
//! The order of a batch: block locks, then the epoch, then the plan; then records and fills, one
//! fence, and the stores in place (`Plan::execute`). Where the log or the pool has no room the
//! epoch is left before a checkpoint is waited for, and everything is planned again, because the
//! old plan's compared and logged state may be stale. What no half of a lane has room for is planned
//! again with every block replaced, which takes a word of the log for a block; only if the pool has
//! too few free blocks for that, or the request has too many, is it written in parts.
//!
//! The short path (one block, FUA), with no checkpoint: a few lines are written to the log, fenced,
//! and then stored in place, and a crash redoes them; more of a block, or a hole, is filled as a
//! new block and fenced, then its entry is stored, flushed and fenced. It is allowed only where
//! no open epoch could undo the entry, the block or a node above, so a crash leaves the old bytes
//! or the new ones.

use everbyte_device::{DeviceError, Fua, WriteRequest};
use everbyte_media::{BlockNo, LineMask, Medium, PoolOffset};
use everbyte_pool::format::Entry;
use everbyte_pool::plant::{Bug, planted};
use everbyte_pool::{Corrupt, WriteError, Writer};
use smallvec::SmallVec;

use crate::checksum;
use crate::locks::BlockRange;
use crate::map::{self, Path};
use crate::plan::{Approach, BlockPiece, Fate, Plan, PlanError, WhenFull, fill_block_from, pieces};
use crate::volume::{BlockVolume, RequestRange};

/// Outcome of one request.
pub(crate) type Outcome = Result<(), DeviceError>;

/// A request that is still to be written, and where its outcome goes.
pub(crate) struct Asked<'r, 'd> {
    pub(crate) request: WriteRequest<'d>,
    pub(crate) outcome: &'r mut Outcome,
}

/// What became of an attempt to write a batch.
pub(crate) enum Attempt {
    /// Done, in this epoch; each request has its outcome.
    Done(u64),
    /// The log has no room now, but has after a checkpoint.
    LogFull,
    /// The log never has room for so much at once.
    TooLarge,
    /// The pool has no free block; a checkpoint may free some.
    PoolFull,
}

/// What became of an attempt at the short path.
enum Short {
    /// Durable, or durable before.
    Done,
    /// Not allowed here.
    NotAllowed,
}

pub(crate) fn range_of(request: &WriteRequest<'_>) -> BlockRange {
    BlockRange::of_bytes(request.offset, request.data.len() as u64)
}

pub(crate) fn named(request: &WriteRequest<'_>) -> RequestRange {
    RequestRange { offset: request.offset, len: request.data.len() as u64 }
}

impl<M: Medium> BlockVolume<M> {
    pub(crate) fn write_requests(&self, requests: &[WriteRequest<'_>]) -> Vec<Outcome> {
        let mut outcomes = vec![Ok(()); requests.len()];
        self.write_all(requests, &mut outcomes);
        outcomes
    }

    pub(crate) fn write_request(&self, request: WriteRequest<'_>) -> Outcome {
        let mut outcome = Ok(());
        self.write_all(&[request], std::slice::from_mut(&mut outcome));
        outcome
    }

    /// Writes requests in order; `outcomes`, as many and all good, become theirs.
    fn write_all(&self, requests: &[WriteRequest<'_>], outcomes: &mut [Outcome]) {
        let mut durable_epoch = 0;
        let mut first = 0;
        while first < requests.len() {
            let run = first..first + disjoint_prefix(&requests[first..]);
            first = run.end;
            let epoch = self.write_run(&requests[run.clone()], &mut outcomes[run]);
            durable_epoch = durable_epoch.max(epoch);
        }
        if durable_epoch > 0
            && let Err(error) = self.volume().complete(durable_epoch)
        {
            for (request, outcome) in requests.iter().zip(outcomes) {
                if request.fua == Fua::Yes && outcome.is_ok() {
                    *outcome = Err(named(request).write_error(&error));
                }
            }
        }
    }

    /// Writes requests that share no block. Returns the epoch that must be durable before those
    /// with FUA are answered, 0 for none.
    fn write_run(&self, requests: &[WriteRequest<'_>], outcomes: &mut [Outcome]) -> u64 {
        let mut batch: SmallVec<[Asked<'_, '_>; 1]> = SmallVec::new();
        let mut durable = false;
        for (request, outcome) in requests.iter().zip(outcomes) {
            *outcome = self.check_write(request.offset, request.data.len() as u64);
            if outcome.is_err() || request.data.is_empty() {
                continue;
            }
            if request.fua == Fua::Yes {
                match self.write_short(request) {
                    Ok(Short::Done) => continue,
                    Ok(Short::NotAllowed) => durable = true,
                    Err(error) => {
                        *outcome = Err(error);
                        continue;
                    }
                }
            }
            batch.push(Asked { request: *request, outcome });
        }
        if batch.is_empty() {
            return 0;
        }
        let epoch = self.write_batch_in_epoch(&mut batch);
        if durable { epoch } else { 0 }
    }

    /// Writes disjoint requests in one epoch, or in several if they do not fit in one. Returns
    /// the last one.
    fn write_batch_in_epoch(&self, batch: &mut [Asked<'_, '_>]) -> u64 {
        let _gate = self.volume().enter();
        let mut blocks = self.locks.write(batch.iter().map(|asked| range_of(&asked.request)));
        if planted(Bug::BlocksUnlockedEarly) {
            blocks.clear();
        }
        self.write_locked(batch)
    }

    /// The same, under gate and block locks that the caller holds.
    fn write_locked(&self, batch: &mut [Asked<'_, '_>]) -> u64 {
        let mut approach = Approach::default();
        loop {
            let error = match self.attempt(batch, approach) {
                Ok(Attempt::Done(epoch)) => return epoch,
                Ok(Attempt::TooLarge) => match approach.with_less_log() {
                    Some(less) => {
                        approach = less;
                        continue;
                    }
                    None => return self.write_parts(batch),
                },
                Ok(Attempt::LogFull) => None,
                Ok(Attempt::PoolFull) => {
                    approach.when_full = WhenFull::Log;
                    None
                }
                Err(error) => Some(error),
            };
            let error = error.or_else(|| self.volume().make_room().err());
            if let Some(error) = error {
                for asked in batch {
                    *asked.outcome = Err(named(&asked.request).write_error(&error));
                }
                return 0;
            }
        }
    }

    /// Plans and executes once. The caller holds gate and block locks.
    pub(crate) fn attempt(
        &self,
        batch: &mut [Asked<'_, '_>],
        approach: Approach,
    ) -> Result<Attempt, WriteError> {
        let mut writer = self.volume().join()?;
        let mut plan = Plan::new(approach);
        plan.expect(self, &writer, batch.iter().map(|asked| &asked.request));
        for Asked { request, outcome } in batch {
            let named = named(request);
            **outcome = self.check_write(named.offset, named.len);
            if outcome.is_err() {
                continue;
            }
            let planned = plan.add_request(self, &mut writer, request.offset, request.data);
            **outcome = match planned {
                Ok(()) => Ok(()),
                Err(PlanError::NoSpace) if approach.when_full == WhenFull::Checkpoint => {
                    plan.abandon(&mut writer);
                    return Ok(Attempt::PoolFull);
                }
                Err(PlanError::NoSpace) => Err(named.no_space()),
                Err(PlanError::Corrupt(corrupt)) => Err(self.corrupt(named, &corrupt)),
                Err(PlanError::Lost(unsound)) => Err(self.unsound(named, &unsound)),
                Err(PlanError::Write(error)) => return Err(error),
            };
        }
        let mut fate = plan.carry_out(self, writer)?;
        if planted(Bug::StalePlan) && matches!(fate, Fate::LogFull) {
            self.volume().make_room()?;
            fate = plan.carry_out(self, self.volume().join()?)?;
        }
        Ok(match fate {
            Fate::Done(epoch) => Attempt::Done(epoch),
            Fate::LogFull => Attempt::LogFull,
            Fate::TooLarge => Attempt::TooLarge,
        })
    }

    /// Writes what does not fit in the log at once, even if every block is replaced that the pool has
    /// a new one for, in parts: requests one by one, and a single request block by block. The caller holds gate and block locks.
    fn write_parts(&self, batch: &mut [Asked<'_, '_>]) -> u64 {
        if let [Asked { request, outcome }] = batch {
            let mut epoch = 0;
            for piece in pieces(request.offset, request.data) {
                let part = Asked {
                    request: WriteRequest { data: piece.data, offset: piece.offset(), ..*request },
                    outcome,
                };
                epoch = self.write_locked(&mut [part]);
                if outcome.is_err() {
                    break;
                }
            }
            return epoch;
        }
        batch
            .iter_mut()
            .map(|asked| self.write_locked(std::slice::from_mut(asked)))
            .max()
            .unwrap_or(0)
    }

    fn write_short(&self, request: &WriteRequest<'_>) -> Result<Short, DeviceError> {
        if range_of(request).count > 1 {
            return Ok(Short::NotAllowed);
        }
        let named = named(request);
        let _gate = self.volume().enter();
        let _blocks = self.locks.write([range_of(request)]);
        self.check_write(named.offset, named.len)?;
        let Some(piece) = pieces(request.offset, request.data).next() else {
            return Ok(Short::Done);
        };
        let target = self.short_target(piece).map_err(|c| self.corrupt(named, &c))?;
        let Some((entry_at, old)) = target else { return Ok(Short::NotAllowed) };
        self.write_durably(entry_at, old, piece).map_err(|error| match error {
            PlanError::NoSpace => named.no_space(),
            PlanError::Corrupt(corrupt) => self.corrupt(named, &corrupt),
            PlanError::Lost(unsound) => self.unsound(named, &unsound),
            PlanError::Write(error) => named.write_error(&error),
        })
    }

    /// The entry for `piece` and its address, if it may be changed on the short path.
    fn short_target(
        &self,
        piece: BlockPiece<'_>,
    ) -> Result<Option<(PoolOffset, Option<Entry>)>, Corrupt> {
        let mut settled = true;
        let path = self.walk_seeing(piece.block, None, |node| {
            settled &= self.volume().is_settled(node);
        })?;
        let Path::Entry(at) = path else { return Ok(None) };
        let entry = map::load_entry(self.medium(), at)?;
        let named = entry.map(|entry| entry.block);
        if let Some(block) = named {
            // What replaces the block leaves its bytes alone.
            let in_place = !self.threshold().replaces(piece.lines());
            let len = if in_place { piece.data.len() } else { 0 };
            self.volume().expect(block.offset().plus(piece.start as u64), len);
        }
        let allowed = settled && self.volume().short_path_allowed(at, named);
        Ok(allowed.then_some((at, entry)))
    }

    /// Writes `piece` over `old`, durably.
    fn write_durably(
        &self,
        entry_at: PoolOffset,
        old: Option<Entry>,
        piece: BlockPiece<'_>,
    ) -> Result<Short, PlanError> {
        let data = old.filter(|entry| !entry.flags.zero).map(|entry| entry.block);
        if let Some(block) = data {
            let changed = if self.delta().compares() {
                self.delta().changed(self.medium(), block, piece.start, piece.data)
            } else {
                piece.lines()
            };
            let changed = self.changed_or_unsound(changed, block, piece);
            if changed.is_empty() && !self.is_bad(block) {
                // What is stored is durable, since no open epoch has a record of it.
                self.medium().check().map_err(WriteError::from)?;
                return Ok(Short::Done);
            }
            // A record of lines could not redo the checksum of their block.
            if !self.threshold().replaces(changed)
                && !self.has_checksums()
                && !self.turns_out_bad(block, piece)
            {
                return Ok(self.change_durably(block, changed, piece)?);
            }
            self.check_replaceable(block, piece).map_err(PlanError::Lost)?;
        }
        let mut writer = self.volume().join()?;
        let Some(to) = writer.alloc() else { return Ok(Short::NotAllowed) };
        if !self.fill_short(&mut writer, to, data, piece)? {
            return Ok(Short::NotAllowed);
        }
        let mut committed = writer.commit().map_err(WriteError::from)?;
        committed.settle(to);
        let stored = committed.store_word_durably(entry_at, Entry::data(to).encode());
        stored.map_err(WriteError::from)?;
        if let Some(old) = old {
            committed.retire(old.block);
        }
        drop(writer);
        self.medium().check().map_err(WriteError::from)?;
        Ok(Short::Done)
    }

    /// Changes `lines` of `block` in place, durably by a record of their new bytes.
    fn change_durably(
        &self,
        block: BlockNo,
        lines: LineMask,
        piece: BlockPiece<'_>,
    ) -> Result<Short, WriteError> {
        let mut writer = self.volume().join()?;
        if Writer::<M>::lines_bytes(lines) > writer.room_bytes() {
            return Ok(Short::NotAllowed);
        }
        // What the lines hold beside the piece is read for the record. If that fails there is none:
        // torn, it would hide later records of the lane, and whole, it would redo zeroes.
        writer.log_redo(block, lines, piece.start, piece.data)?;
        let mut committed = writer.commit()?;
        for (at, data) in piece.parts_in(block, lines) {
            committed.store(at, data);
        }
        drop(writer);
        self.medium().check()?;
        Ok(Short::Done)
    }

    /// Fills `to`, and its checksum if it has one, to be durable with the commit. Says whether that
    /// is possible here; if not, or if the bytes around the piece are unsound, `to` is given back.
    fn fill_short(
        &self,
        writer: &mut Writer<'_, M>,
        to: BlockNo,
        around: Option<BlockNo>,
        piece: BlockPiece<'_>,
    ) -> Result<bool, PlanError> {
        let mut slot = None;
        if self.has_checksums() {
            let found = self.settled_slot(to).map_err(PlanError::Corrupt);
            let sum = self.checksum_over(around, piece).map_err(PlanError::Lost);
            match (found, sum) {
                (Ok(Some(at)), Ok(crc)) => slot = Some((at, checksum::encode(crc))),
                (found, sum) => {
                    writer.unalloc(to);
                    return found.and(sum).map(|_| false);
                }
            }
        }
        fill_block_from(self.medium(), writer, to, around, piece);
        if let Some(block) = around
            && let Err(unsound) = self.check_replaceable(block, piece)
        {
            // What was streamed must be fenced before the block is anyone's.
            let _ = writer.commit();
            writer.unalloc(to);
            return Err(PlanError::Lost(unsound));
        }
        if let Some((at, word)) = slot {
            writer.fill(at, &word.to_le_bytes());
        }
        Ok(true)
    }
}

/// How many of `requests`, from the first on, share no block with each other.
pub(crate) fn disjoint_prefix(requests: &[WriteRequest<'_>]) -> usize {
    // Those seen so far, ascending.
    let mut ranges: SmallVec<[BlockRange; 16]> = SmallVec::new();
    for (count, request) in requests.iter().enumerate() {
        let range = range_of(request);
        // Mostly they ascend.
        if range.count > 0
            && ranges.last().is_none_or(|last| last.first + last.count <= range.first)
        {
            ranges.push(range);
            continue;
        }
        let place = ranges.partition_point(|earlier| earlier.first < range.first);
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

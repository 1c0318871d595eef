//! Unmapping: discard and write-zeroes.
//!
//! Each part of a request that lies in one 2 MiB leaf is atomic, unless its partly touched blocks
//! must be logged whole and the log is too small for that. A whole leaf of the radix tree
//! is unlinked by its parent's one word; anything less changes the entries one by one, all logged
//! in one record. Bytes of blocks that are only touched partly are overwritten with zeroes.

use everbyte_device::{DeviceError, Fua, Hole};
use everbyte_media::{BLOCK, BLOCK_U64, Medium};
use everbyte_pool::plant::{Bug, planted};
use everbyte_pool::{Corrupt, PoolError, WriteError};

use crate::checksum::Unsound;
use crate::locks::BlockRange;
use crate::map::{self, ENTRIES, MapKind};
use crate::plan::{Approach, Fate, Plan, PlanError};
use crate::volume::{BlockVolume, RequestRange};

const LEAF_BYTES: u64 = ENTRIES * BLOCK_U64;
static ZEROES: [u8; BLOCK] = [0; BLOCK];

/// What became of an attempt at one part.
enum Attempt {
    Done(u64),
    LogFull,
    /// The log never has room for so much at once.
    TooLarge,
    PoolFull,
}

enum ZeroError {
    NoSpace,
    Corrupt(Corrupt),
    Lost(Unsound),
    Write(WriteError),
}

impl From<PlanError> for ZeroError {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::NoSpace => Self::NoSpace,
            PlanError::Corrupt(corrupt) => Self::Corrupt(corrupt),
            PlanError::Lost(error) => Self::Lost(error),
            PlanError::Write(error) => Self::Write(error),
        }
    }
}

impl From<WriteError> for ZeroError {
    fn from(error: WriteError) -> Self {
        Self::Write(error)
    }
}

/// A part of a request within one leaf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeafPart {
    offset: u64,
    len: u64,
}

impl LeafPart {
    fn blocks(self) -> BlockRange {
        BlockRange::of_bytes(self.offset, self.len)
    }

    /// The part cut in two at a block boundary. A part within one block, which any log has room
    /// for, is never cut.
    fn halves(self) -> (Self, Self) {
        let blocks = self.blocks();
        let middle = (blocks.first + blocks.count.div_ceil(2)) * BLOCK_U64;
        let len = middle.min(self.offset + self.len) - self.offset;
        let second = Self { offset: self.offset + len, len: self.len - len };
        (Self { len, ..self }, second)
    }

    fn is_whole_leaf(self) -> bool {
        self.offset.is_multiple_of(LEAF_BYTES) && self.len == LEAF_BYTES
    }
}

/// Cuts a range at leaf boundaries.
fn leaf_parts(offset: u64, len: u64) -> impl Iterator<Item = LeafPart> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let to = ((at / LEAF_BYTES + 1) * LEAF_BYTES).min(end);
        let part = LeafPart { offset: at, len: to - at };
        at = to;
        Some(part)
    })
}

impl<M: Medium> BlockVolume<M> {
    pub(crate) fn zero_range(
        &self,
        offset: u64,
        len: u64,
        hole: Hole,
        fua: Fua,
    ) -> Result<(), DeviceError> {
        let request = RequestRange { offset, len };
        self.check_write(offset, len)?;
        let mut epoch = 0;
        for part in leaf_parts(offset, len) {
            let _gate = self.volume().enter();
            let _blocks = self.locks.write([part.blocks()]);
            self.check_write(part.offset, part.len)?;
            let done = self.zero_part(part, hole == Hole::Forbidden);
            epoch = done.map_err(|error| match error {
                ZeroError::NoSpace => request.no_space(),
                ZeroError::Corrupt(corrupt) => self.corrupt(request, &corrupt),
                ZeroError::Lost(unsound) => self.unsound(request, &unsound),
                ZeroError::Write(error) => request.write_error(&error),
            })?;
        }
        if fua == Fua::Yes {
            self.volume().complete(epoch).map_err(|error| request.write_error(&error))?;
        }
        Ok(())
    }

    /// Unmaps everything from the first byte beyond the volume's end to where its map ends. The
    /// caller keeps everyone else out of the volume.
    pub(crate) fn trim_tail(&self) -> Result<(), PoolError> {
        if self.is_read_only() {
            return Ok(());
        }
        let size_bytes = self.size_bytes();
        let partial = size_bytes.next_multiple_of(BLOCK_U64) - size_bytes;
        if partial > 0 {
            self.zero_tail(LeafPart { offset: size_bytes, len: partial })?;
        }
        let mut from = self.size_blocks();
        while self.map_kind() == MapKind::Radix {
            let root_at = self.volume().root_at();
            let Some(leaf) = map::first_leaf_from(self.medium(), root_at, from)? else { break };
            let offset = leaf.max(from) * BLOCK_U64;
            let len = LEAF_BYTES - offset % LEAF_BYTES;
            self.zero_tail(LeafPart { offset, len })?;
            from = (offset + len) / BLOCK_U64;
        }
        Ok(())
    }

    fn zero_tail(&self, part: LeafPart) -> Result<(), PoolError> {
        match self.zero_part(part, false) {
            Ok(_) => Ok(()),
            Err(ZeroError::Corrupt(corrupt)) => Err(corrupt.into()),
            Err(ZeroError::Lost(Unsound::Map(corrupt))) => Err(corrupt.into()),
            // Nothing can be read there, now or after a growth.
            Err(ZeroError::Lost(_)) => Ok(()),
            Err(ZeroError::Write(error)) => Err(error.into()),
            Err(ZeroError::NoSpace) => Err(PoolError::Invalid(
                "the pool is full, so the end of the volume cannot be cleared".into(),
            )),
        }
    }

    /// Zeroes one part under locks that the caller holds. Returns its epoch.
    fn zero_part(&self, part: LeafPart, reserve: bool) -> Result<u64, ZeroError> {
        let mut pool_was_full = false;
        let mut approach = Approach::AT_ONCE;
        loop {
            match self.attempt_zero(part, reserve, approach, pool_was_full)? {
                Attempt::Done(epoch) => return Ok(epoch),
                Attempt::LogFull => self.volume().make_room()?,
                Attempt::TooLarge => match approach.with_less_log() {
                    Some(less) => approach = less,
                    None => {
                        let (first, second) = part.halves();
                        self.zero_part(first, reserve)?;
                        return self.zero_part(second, reserve);
                    }
                },
                Attempt::PoolFull => {
                    pool_was_full = true;
                    self.volume().make_room()?;
                }
            }
        }
    }

    fn attempt_zero(
        &self,
        part: LeafPart,
        reserve: bool,
        approach: Approach,
        pool_was_full: bool,
    ) -> Result<Attempt, ZeroError> {
        let mut writer = self.volume().join()?;
        let mut plan = Plan::new(approach);
        let planned = if part.is_whole_leaf() && !reserve && self.map_kind() == MapKind::Radix {
            self.plan_leaf(&mut plan, &writer, part)
        } else {
            self.plan_blocks(&mut plan, &mut writer, part, reserve)
        };
        if let Err(error) = planned {
            plan.abandon(&mut writer);
            return match error {
                PlanError::NoSpace if !pool_was_full => Ok(Attempt::PoolFull),
                other => Err(other.into()),
            };
        }
        Ok(match plan.carry_out(self, writer)? {
            Fate::Done(epoch) => Attempt::Done(epoch),
            Fate::LogFull => Attempt::LogFull,
            Fate::TooLarge => Attempt::TooLarge,
        })
    }

    fn plan_blocks<'v>(
        &'v self,
        plan: &mut Plan<'v, 'static>,
        writer: &mut everbyte_pool::Writer<'_, M>,
        part: LeafPart,
        reserve: bool,
    ) -> Result<(), PlanError> {
        let end = part.offset + part.len;
        let mut at = part.offset;
        while at < end {
            let block = at / BLOCK_U64;
            let to = ((block + 1) * BLOCK_U64).min(end);
            let whole = at.is_multiple_of(BLOCK_U64)
                && (to.is_multiple_of(BLOCK_U64) || to >= self.size_bytes());
            if whole {
                plan.add_zero_block(self, writer, block, reserve)?;
            } else if reserve || self.has_data(block)? {
                let len = usize::try_from(to - at).unwrap_or(BLOCK);
                plan.add_request(self, writer, at, &ZEROES[..len])?;
            }
            at = to;
        }
        Ok(())
    }

    /// Plans to unlink the leaf of `part` and everything below it.
    fn plan_leaf<'v>(
        &'v self,
        plan: &mut Plan<'v, 'static>,
        writer: &everbyte_pool::Writer<'_, M>,
        part: LeafPart,
    ) -> Result<(), PlanError> {
        plan.hold_structure(self);
        let first = part.offset / BLOCK_U64;
        let found = map::find_leaf_link(self.medium(), self.volume().root_at(), first)?;
        let Some((link, leaf)) = found else { return Ok(()) };
        if !planted(Bug::UnlinkedLeafKnown) {
            self.leaves.forget(first);
        }
        for index in 0..ENTRIES {
            if let Some(entry) = map::load_entry(self.medium(), map::slot_at(leaf, index))? {
                plan.retire(entry.block);
            }
        }
        plan.retire(leaf);
        plan.change_link(writer, link, self.medium().load_word(link), 0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_at_leaves() {
        let parts = |offset, len| -> Vec<(u64, u64)> {
            leaf_parts(offset, len).map(|part| (part.offset, part.len)).collect()
        };
        assert_eq!(parts(0, 0), []);
        assert_eq!(parts(5, 10), [(5, 10)]);
        let leaf = LEAF_BYTES;
        assert_eq!(parts(leaf - 1, leaf + 2), [(leaf - 1, 1), (leaf, leaf), (2 * leaf, 1)]);
    }
}

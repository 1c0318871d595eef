//! Number of blocks in use by a volume, counted in DRAM.
//!
//! Owns the count, and its place in the header for a clean shutdown. Invariants: a block counts from when a
//! lane takes it from the allocator until its return to it. Lanes take and return many blocks at a time: so
//! neither a write nor a read of the count walks a map, and no record is needed. The count in a header is
//! believed only after a clean shutdown, and only if the epoch next to it is the volume's last: a program
//! without counts completes another epoch.

use std::sync::atomic::{AtomicU64, Ordering};

use everbyte_media::{MediaError, Medium, PoolOffset};

use super::Volume;
use crate::alloc::BlockRun;
use crate::checkpoint_record::read_completed;
use crate::format::{USED_AT, USED_EPOCH_AT, decode_word, encode_word};
use crate::persist::Dirty;

/// Stands for an unknown count; no pool has so many blocks.
const UNKNOWN: u64 = 1 << 63;

/// Blocks below a volume's limit from which on lanes take one at a time: others cannot have a lane's
/// preallocated blocks.
const NEAR_LIMIT: u64 = 1024;

/// Attempts to count one volume while it changes.
const COUNT_ATTEMPTS: u32 = 8;

/// Present blocks of a volume from the allocator, without its log, and their limit.
pub(crate) struct Usage {
    blocks: AtomicU64,
    max: AtomicU64,
    /// Deferred frees of the epoch in a checkpoint, until the checkpoint frees them. They count in `blocks`.
    sealed: AtomicU64,
}

/// Deferred frees of a sealed epoch. A drop ends their wait: a failed checkpoint never frees them.
pub(crate) struct SealedBlocks<'u>(&'u Usage);

impl Drop for SealedBlocks<'_> {
    fn drop(&mut self) {
        self.0.sealed.store(0, Ordering::Relaxed);
    }
}

impl Usage {
    pub(crate) fn unknown() -> Self {
        let [blocks, max, sealed] = [UNKNOWN, u64::MAX, 0].map(AtomicU64::new);
        Self { blocks, max, sealed }
    }

    /// Notes the deferred frees of a sealing epoch.
    pub(crate) fn seal(&self, blocks: u64) -> SealedBlocks<'_> {
        self.sealed.store(blocks, Ordering::Relaxed);
        SealedBlocks(self)
    }

    /// Notes that so many of them are freed next.
    pub(crate) fn unseal(&self, blocks: u64) {
        self.sealed.fetch_sub(blocks, Ordering::Relaxed);
    }

    /// Returns true if the volume has as many blocks as it may have.
    pub(crate) fn is_at_limit(&self) -> bool {
        self.get().is_some_and(|blocks| blocks >= self.max.load(Ordering::Relaxed))
    }

    /// Sets the count, or sets it to unknown. Requires: no thread takes or returns blocks.
    pub(crate) fn set(&self, blocks: Option<u64>) {
        self.blocks.store(blocks.unwrap_or(UNKNOWN), Ordering::Relaxed);
    }

    pub(crate) fn add(&self, blocks: u64) {
        self.blocks.fetch_add(blocks, Ordering::Relaxed);
    }

    /// Counts `want` blocks more, or fewer where the limit is near, and returns how many. An unknown count
    /// has no limit.
    pub(crate) fn reserve(&self, want: u64) -> u64 {
        let max = self.max.load(Ordering::Relaxed);
        let mut got = want;
        let counted = self.blocks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |blocks| {
            let left = if blocks < UNKNOWN / 2 { max.saturating_sub(blocks) } else { u64::MAX };
            // Near the limit, blocks preallocated by one lane would be missing in the others.
            got = if left < NEAR_LIMIT { want.min(left).min(1) } else { want };
            (got > 0).then_some(blocks + got)
        });
        if counted.is_ok() { got } else { 0 }
    }

    /// The same for all of them or none.
    pub(crate) fn reserve_all(&self, want: u64) -> bool {
        let max = self.max.load(Ordering::Relaxed);
        let counted = self.blocks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |blocks| {
            let is_limited = blocks < UNKNOWN / 2;
            let counted = blocks.checked_add(want)?;
            (!is_limited || counted <= max).then_some(counted)
        });
        counted.is_ok()
    }

    /// Returns true if lanes take one block at a time, or none.
    pub(crate) fn is_near_limit(&self) -> bool {
        let max = self.max.load(Ordering::Relaxed);
        self.get().is_some_and(|blocks| max.saturating_sub(blocks) < NEAR_LIMIT)
    }

    pub(crate) fn subtract(&self, blocks: u64) {
        self.blocks.fetch_sub(blocks, Ordering::Relaxed);
    }

    /// The count, if it is below half of `UNKNOWN`. Larger values are unknown. They include a count that fell
    /// below zero because of an invalid medium.
    fn get(&self) -> Option<u64> {
        let blocks = self.blocks.load(Ordering::Relaxed);
        (blocks < UNKNOWN / 2).then_some(blocks)
    }
}

/// Unused blocks of a volume from the allocator.
#[derive(Clone, Copy, Default)]
struct WaitingBlocks {
    /// Preallocated blocks of lanes.
    preallocated: u64,
    /// Deferred frees of an open epoch, and of one in a checkpoint.
    deferred: u64,
    /// Freed but pinned blocks, and deferred frees of a group.
    held: u64,
}

impl WaitingBlocks {
    fn all(self) -> u64 {
        self.preallocated + self.deferred + self.held
    }
}

impl<M: Medium> Volume<M> {
    /// Blocks of data, maps and the like in use, if known. Waits for writers. Deferred frees are not in use.
    #[must_use]
    pub fn used_blocks(&self) -> Option<u64> {
        let (counted, waiting) = self.counts();
        counted.map(|blocks| blocks.saturating_sub(waiting.all()))
    }

    /// Unused blocks of the volume, available to any volume in need: preallocated blocks and deferred frees.
    /// Waits for writers.
    pub(crate) fn reclaimable_blocks(&self) -> u64 {
        let waiting = self.counts().1;
        waiting.preallocated + waiting.deferred
    }

    /// Deferred frees for a checkpoint to free.
    pub(crate) fn reclaimable_deferred(&self) -> u64 {
        self.counts().1.deferred
    }

    /// Limits the volume to `blocks`, without its log: at the limit the pool counts as full for it. The
    /// volume keeps present blocks beyond the limit.
    pub fn limit_blocks(&self, blocks: u64) {
        self.usage.max.store(blocks, Ordering::Relaxed);
    }

    /// The counted blocks, if known, and the unused ones among them. Both are of one moment, unless a
    /// checkpoint or a writer moves them in all of the attempts.
    fn counts(&self) -> (Option<u64>, WaitingBlocks) {
        let moment = || {
            let usage = &self.usage;
            let counts = [&usage.blocks, &usage.sealed].map(|count| count.load(Ordering::Relaxed));
            (self.completed_epoch(), self.current_epoch(), counts)
        };
        let mut attempts = 0..COUNT_ATTEMPTS;
        loop {
            let before = moment();
            let waiting = self.waiting_blocks();
            let counted = self.usage.get();
            if moment() == before || attempts.next().is_none() {
                return (counted, waiting);
            }
        }
    }

    /// Waits for writers.
    fn waiting_blocks(&self) -> WaitingBlocks {
        let mut waiting = WaitingBlocks {
            deferred: self.usage.sealed.load(Ordering::Relaxed),
            held: self.pins.held_back(),
            ..WaitingBlocks::default()
        };
        for lane in &self.lanes {
            let lane = lane.lock();
            waiting.preallocated += lane.preallocated_blocks();
            // A roll-back cancels the frees of a group, so no checkpoint can be relied on to make
            // them.
            match lane.group_blocks {
                None => waiting.deferred += lane.deferred.count_blocks(),
                Some(_) => waiting.held += lane.deferred.count_blocks(),
            }
        }
        waiting
    }

    /// Sets the count to `used`, and returns the old count if it was another. Requires: no writer.
    pub(crate) fn correct_used_blocks(&self, used: u64) -> Option<u64> {
        let counted = self.used_blocks();
        self.usage.set(Some(used + self.waiting_blocks().all()));
        counted.filter(|&counted| counted != used)
    }

    /// Counts a run of [`Pool::take_run`](crate::Pool::take_run) as used, now that a structure of the volume
    /// names it.
    pub fn adopt_run(&self, run: BlockRun) {
        self.usage.add(run.len);
    }

    /// Stops counting a run of a volume without a log. [`Pool::return_run`](crate::Pool::return_run) follows.
    pub fn disown_run(&self, run: BlockRun) {
        self.usage.subtract(run.len);
    }

    /// Stores the count in the header, durably. Requires: everything of the volume is durable, and it has no
    /// users.
    ///
    /// # Errors
    /// The medium's.
    pub(crate) fn save_used_blocks(&self) -> Result<(), MediaError> {
        let (medium, at) = (self.medium(), self.header_at.plus(USED_AT));
        // A store to bad memory would fail the medium. Without a count the next reader walks the
        // map.
        let is_sound = medium.check_range(at, USED_EPOCH_AT + 8 - USED_AT).is_ok();
        if let Some(blocks) = self.used_blocks().filter(|_| is_sound) {
            let mut dirty = Dirty::default();
            // 0 means no count.
            dirty.store_word(medium, at, encode_word(blocks + 1));
            let epoch_at = self.header_at.plus(USED_EPOCH_AT);
            // A program without counts leaves the old count in place. Its epochs then differ from
            // this one.
            dirty.store_word(medium, epoch_at, encode_word(self.completed_epoch()));
            // No order between the two: without the clean mark, stored later, neither is read.
            dirty.flush(medium).fence(medium)?;
        }
        Ok(())
    }
}

/// The count of a clean shutdown in the header at `header_at`, if it is valid.
pub(crate) fn read_used_blocks<M: Medium>(medium: &M, header_at: PoolOffset) -> Option<u64> {
    let completed = read_completed(medium, header_at).ok()?;
    let [blocks, epoch] = [USED_AT, USED_EPOCH_AT].map(|offset| {
        let at = header_at.plus(offset);
        let word = medium.load_word(at);
        medium.check_range(at, 8).ok().and_then(|()| decode_word(word))
    });
    if epoch? == completed { blocks?.checked_sub(1) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_stay_within_limit() {
        let usage = Usage::unknown();
        usage.max.store(2000, Ordering::Relaxed);
        assert_eq!(usage.reserve(32), 32, "an unknown count has no limit");
        usage.set(Some(900));
        assert_eq!(usage.reserve(64), 64);
        assert!(usage.reserve_all(512));
        assert_eq!(usage.reserve(32), 1);
        assert!(!usage.reserve_all(524));
        assert!(usage.reserve_all(523));
        assert_eq!((usage.reserve(1), usage.get()), (0, Some(2000)));
        usage.subtract(1);
        assert_eq!((usage.reserve(32), usage.reserve(32)), (1, 0));
    }
}

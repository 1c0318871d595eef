//! Pins: blocks of a volume in use by readers in place.
//!
//! Owns the pins of each holder, and the pinned blocks that would otherwise be free. Invariants:
//! - A reader pins a block under a lock under which a map names it. A writer changes or frees the block under
//!   the same lock, held for writing. So a block does not become pinned under a writer.
//! - A pin ends once, released by its holder or revoked. The end is recorded before the first of its blocks
//!   can be stored to or given to the allocator.
//! - A freed pinned block is held back, and given to the allocator with its last pin.
//!
//! Locks: the table's, a holder's, a shard's, in this order, after all others. Pins are DRAM only.
//! `docs/crash-model.md` argues it. Knows nothing of maps and files.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use everbyte_media::{BLOCK_U64, BlockNo, Medium};
use everbyte_plant::planted;
use hashbrown::HashMap;

use super::Volume;
use crate::alloc::BlockRun;
use crate::plant::Bug;
use crate::sync::{Mutex, MutexGuard, RwLock};

const SHARDS: usize = 16;

/// Limits of the pins of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PinLimits {
    /// Most pins at a time; of any number of blocks each.
    pub pins_max: usize,
    /// Most bytes pinned by all of them at a time.
    pub bytes_max: u64,
    /// Time limit of each pin; no limit if the end is beyond the clock, as with `Duration::MAX`.
    pub time_max: Duration,
}

impl Default for PinLimits {
    /// 1024 pins, 64 MiB, 10 seconds.
    fn default() -> Self {
        Self { pins_max: 1024, bytes_max: 64 << 20, time_max: Duration::from_secs(10) }
    }
}

/// The reason for a failed pin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// The volume has as many pins as it may have.
    #[error("the volume has {max} pinned views, and may have no more at a time")]
    TooMany {
        /// Most pins at a time.
        max: usize,
    },
    /// Too many bytes would be pinned.
    #[error("{bytes} bytes more would be pinned; the volume may have {bytes_max} at a time")]
    TooLarge {
        /// Bytes to pin.
        bytes: u64,
        /// Most bytes at a time.
        bytes_max: u64,
    },
    /// The volume was deleted or closed.
    #[error("the volume is gone")]
    Gone,
}

/// A holder of pinned blocks.
struct Holder {
    runs: Vec<BlockRun>,
    /// The end of its time; `None` if it is beyond the clock.
    deadline: Option<Instant>,
    ended: AtomicBool,
    /// Held shared during an irrevocable use of the bytes.
    in_use: RwLock<()>,
}

impl Holder {
    fn blocks(&self) -> u64 {
        self.runs.iter().map(|run| run.len).sum()
    }

    fn is_alive(&self) -> bool {
        let is_in_time = || self.deadline.is_none_or(|deadline| Instant::now() < deadline);
        !self.ended.load(Ordering::Acquire) && is_in_time()
    }
}

/// All holders of pinned blocks of a volume.
#[derive(Default)]
pub(crate) struct PinTable {
    limits: PinLimits,
    next_key: u64,
    blocks: u64,
    holders: BTreeMap<u64, Arc<Holder>>,
}

/// A pinned block.
#[derive(Default)]
struct PinnedBlock {
    pins: u64,
    /// No map will name it again: it is free but for its pins.
    is_freed: bool,
}

/// The pins of a volume.
#[derive(Default)]
pub(crate) struct Pins {
    /// Pinned blocks, each counted once per pin.
    count: AtomicU64,
    /// Blocks kept from being free only by their pins.
    held_back: AtomicU64,
    table: Mutex<PinTable>,
    shards: [Mutex<HashMap<BlockNo, PinnedBlock>>; SHARDS],
}

impl Pins {
    /// Returns true if any block may be pinned: one load where none is.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    fn shard(&self, block: BlockNo) -> MutexGuard<'_, HashMap<BlockNo, PinnedBlock>> {
        let shard = usize::try_from(block.0 % SHARDS as u64).expect("one of few");
        self.shards[shard].lock()
    }

    /// Returns true if `block` is pinned.
    #[inline]
    pub(crate) fn has(&self, block: BlockNo) -> bool {
        self.any() && self.shard(block).contains_key(&block)
    }

    /// Holds back `block`, a durably freed block, if it is pinned. Returns false if it is not.
    #[inline]
    pub(crate) fn hold_back(&self, block: BlockNo) -> bool {
        if !self.any() {
            return false;
        }
        let mut shard = self.shard(block);
        // The pin may have ended since the count was read.
        let Some(pinned) = shard.get_mut(&block) else { return false };
        pinned.is_freed = true;
        self.held_back.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Blocks kept from being free only by their pins.
    pub(crate) fn held_back(&self) -> u64 {
        self.held_back.load(Ordering::Relaxed)
    }

    /// Returns true if `block` is one of them.
    pub(crate) fn holds_back(&self, block: BlockNo) -> bool {
        self.any() && self.shard(block).get(&block).is_some_and(|pinned| pinned.is_freed)
    }

    /// Keeps pins from beginning and ending.
    pub(crate) fn freeze(&self) -> MutexGuard<'_, PinTable> {
        self.table.lock()
    }
}

/// Blocks with unchanged contents and owner while this lives and [`PinnedBlocks::is_alive`].
///
/// It ends when it is dropped; when its time is over; and before that if the volume is closed or deleted, a
/// group of it is rolled back, or one of its writers would find no space otherwise.
pub struct PinnedBlocks<M: Medium> {
    volume: Arc<Volume<M>>,
    holder: Arc<Holder>,
    key: u64,
}

impl<M: Medium> PinnedBlocks<M> {
    /// The volume of the blocks.
    #[must_use]
    pub fn volume(&self) -> &Arc<Volume<M>> {
        &self.volume
    }

    /// Returns true if the blocks were still pinned at the calling thread's last loads of them: all its loads
    /// until now returned the contents at the time of the pin. Permanently false once the pin's time is over
    /// or it was revoked.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        // The loads before are not to be made after the look.
        fence(Ordering::Acquire);
        self.holder.is_alive()
    }

    /// Calls `with` while the blocks certainly stay pinned, and returns its result; `None` if they are not
    /// pinned. A thread in need of the blocks waits during the call, so `with` must not wait for anything.
    pub fn while_alive<R>(&self, with: impl FnOnce() -> R) -> Option<R> {
        // Before the check: a revocation comes before the check, or waits for the end of `with`.
        let _in_use = self.holder.in_use.read();
        self.holder.is_alive().then(with)
    }
}

impl<M: Medium> Drop for PinnedBlocks<M> {
    fn drop(&mut self) {
        self.volume.end_pins(|key, _| key == self.key);
    }
}

impl<M: Medium> Volume<M> {
    /// Limits of the volume's pins.
    #[must_use]
    pub fn pin_limits(&self) -> PinLimits {
        self.pins.table.lock().limits
    }

    /// Sets the limits of new pins. Present pins stay.
    pub fn set_pin_limits(&self, limits: PinLimits) {
        self.pins.table.lock().limits = limits;
    }

    /// Pins the blocks of `runs`. The runs are disjoint. The caller holds locks under which the volume's maps
    /// name the blocks.
    ///
    /// # Errors
    /// A limit, or the volume is gone.
    pub fn pin(self: &Arc<Self>, runs: Vec<BlockRun>) -> Result<PinnedBlocks<M>, PinError> {
        let blocks = runs.iter().map(|run| run.len).sum();
        let mut table = self.pins.table.lock();
        // Expired pins count against the limits until they are ended.
        if table.refuses(blocks).is_some() {
            self.end_pins_in(&mut table, |_, holder| !holder.is_alive());
        }
        if let Some(error) = table.refuses(blocks) {
            return Err(error);
        }
        // Under the table's lock: a deletion marks the volume, and then ends all pins under this
        // lock.
        if self.is_gone() {
            return Err(PinError::Gone);
        }
        let deadline = Instant::now().checked_add(table.limits.time_max);
        for block in runs.iter().flat_map(|run| run.blocks()) {
            self.pins.shard(block).entry(block).or_default().pins += 1;
        }
        // The caller's locks keep writers of these blocks away until the count is stored.
        self.pins.count.fetch_add(blocks, Ordering::Release);
        let holder = Arc::new(Holder {
            runs,
            deadline,
            ended: AtomicBool::new(false),
            in_use: RwLock::new(()),
        });
        let key = table.next_key;
        table.next_key += 1;
        table.blocks += blocks;
        table.holders.insert(key, Arc::clone(&holder));
        Ok(PinnedBlocks { volume: Arc::clone(self), holder, key })
    }

    /// Returns true if `block` is pinned: it must not be stored to in place. The caller holds the lock for
    /// writing under which a map names it. Costs one load where no block is pinned.
    #[must_use]
    #[inline]
    pub fn is_pinned(&self, block: BlockNo) -> bool {
        self.pins.has(block) && !planted(Bug::PinIgnoredByPlanner)
    }

    /// Revokes the pins of holders with an expired time.
    pub(crate) fn end_late_pins(&self) {
        if self.pins.any() {
            self.end_pins(|_, holder| !holder.is_alive());
        }
    }

    /// Takes their pins from all.
    pub(crate) fn end_all_pins(&self) {
        self.end_pins(|_, _| true);
    }

    fn end_pins(&self, which: impl Fn(u64, &Holder) -> bool) {
        self.end_pins_in(&mut self.pins.table.lock(), which);
    }

    fn end_pins_in(&self, table: &mut PinTable, which: impl Fn(u64, &Holder) -> bool) {
        let ended: Vec<u64> = table
            .holders
            .iter()
            .filter(|(key, holder)| which(**key, holder))
            .map(|(k, _)| *k)
            .collect();
        for holder in ended.into_iter().filter_map(|key| table.holders.remove(&key)) {
            {
                let _nobody_uses_them = holder.in_use.write();
                // A locked instruction: streams of others cannot pass it, as they could a plain store.
                holder.ended.swap(true, Ordering::AcqRel);
            }
            let blocks = holder.blocks();
            table.blocks -= blocks;
            holder.runs.iter().flat_map(|run| run.blocks()).for_each(|block| self.unpin(block));
            // Last: `any` must stay true while a block is listed as pinned.
            self.pins.count.fetch_sub(blocks, Ordering::Release);
        }
    }

    /// Takes one pin off `block`, and gives it to the allocator if it was the last and nothing else
    /// keeps it.
    fn unpin(&self, block: BlockNo) {
        let mut shard = self.pins.shard(block);
        let Some(pinned) = shard.get_mut(&block) else { return };
        pinned.pins -= 1;
        if pinned.pins > 0 {
            return;
        }
        let is_freed = pinned.is_freed;
        // Before the allocator has the block: its next owner may pin it.
        shard.remove(&block);
        if is_freed {
            self.pins.held_back.fetch_sub(1, Ordering::Relaxed);
            self.give_back(block);
        }
    }
}

impl PinTable {
    /// The reason if so many more blocks cannot be pinned.
    fn refuses(&self, blocks: u64) -> Option<PinError> {
        let PinLimits { pins_max, bytes_max, .. } = self.limits;
        if self.holders.len() >= pins_max {
            Some(PinError::TooMany { max: pins_max })
        } else if (self.blocks + blocks) * BLOCK_U64 > bytes_max {
            Some(PinError::TooLarge { bytes: blocks * BLOCK_U64, bytes_max })
        } else {
            None
        }
    }
}

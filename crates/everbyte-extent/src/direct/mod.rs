//! The direct path: a write of several whole blocks, without a plan.
//!
//! The path takes whole blocks with known entries. [`classify`] decides about each block. Adjacent blocks are
//! streamed in one copy, and all entries share one record and one fence. The path leaves every other case to
//! the planner before it changes anything. The proof is in `docs/crash-model.md`.

mod durable;

use everbyte_media::{BLOCK, BLOCK_U64, BlockNo, Medium, PoolOffset};
use everbyte_pool::format::{Entry, WordItem};
use everbyte_pool::{WriteError, Writer};
use smallvec::SmallVec;

use crate::address::{BlockRange, DeviceOffset, LogicalBlock};
use crate::extent::Extent;
use crate::leaf::LEAF_BYTES;
use crate::map::MapSlot;
use crate::plan::{Change, classify};

/// Most blocks of a write on the direct path: as many as a leaf has.
const BLOCKS_MAX: u64 = LEAF_BYTES / BLOCK_U64;

/// A written block.
#[derive(Clone, Copy)]
struct Target {
    entry_at: PoolOffset,
    /// The word of the entry.
    word: u64,
    /// The block named by the entry; `None` for a hole.
    old: Option<BlockNo>,
    /// The block that gets the bytes, once it is known.
    to: BlockNo,
    /// True if `to` is `old`, a fresh block.
    is_refill: bool,
}

/// The written blocks in order. A few blocks take no separate memory.
type Targets = SmallVec<[Target; 32]>;

impl<M: Medium> Extent<M> {
    /// Prefetches the entries of `range` for a write. Needs no lock, as [`Extent::prefetch_entry`].
    pub fn prefetch_entries(&self, range: BlockRange) {
        self.prefetch_entry(range.first);
        if range.count > 1 {
            // Of most requests all entries lie in the first and the last line.
            self.prefetch_entry(LogicalBlock(range.end().0 - 1));
        }
    }

    /// Writes `data`, several whole blocks, at `offset` in the current epoch if the direct path is eligible,
    /// and returns the epoch. `None` if the write needs a plan: then nothing was written. The caller is in the
    /// volume's quiesce lock and holds the locks of the blocks.
    ///
    /// # Errors
    /// The medium's: nothing was written, or the written bytes never become durable.
    pub fn try_direct_path(
        &self,
        offset: DeviceOffset,
        data: &[u8],
    ) -> Result<Option<u64>, WriteError> {
        let mut targets = Targets::new();
        if !self.find_targets(offset, data, &mut targets) {
            return Ok(None);
        }
        let mut writer = self.volume().join()?;
        if !self.admit(&mut writer, &mut targets) {
            return Ok(None);
        }
        let epoch = writer.epoch();
        if !write_targets(&mut writer, &targets, data)? {
            return Ok(None);
        }
        // A write left to the planner is counted there.
        self.volume().count_write();
        // A store to memory that has just failed is lost. Only the medium knows it.
        self.medium().check()?;
        Ok(Some(epoch))
    }

    /// Returns true if a write of `len` bytes at `offset` has the shape for the direct path: 2 to 512 whole
    /// blocks.
    #[must_use]
    pub fn is_for_direct_path(&self, offset: DeviceOffset, len: usize) -> bool {
        let is_whole = offset.in_block() == 0 && len.is_multiple_of(BLOCK);
        is_whole && (2..=BLOCKS_MAX).contains(&(len as u64 / BLOCK_U64)) && !self.has_checksums()
    }

    /// Finds the entries of the blocks of a write. Returns false if the write is not for the direct path.
    fn find_targets(&self, offset: DeviceOffset, data: &[u8], targets: &mut Targets) -> bool {
        // With a poisoned range the planner checks each node and block.
        if self.medium().has_poison() {
            return false;
        }
        // A comparison may find lines to keep. The planner knows how.
        if !self.is_for_direct_path(offset, data.len()) || self.compares_next() {
            return false;
        }
        let blocks = BlockRange::of_bytes(offset, data.len() as u64);
        (blocks.first.0..blocks.end().0).map(LogicalBlock).all(|block| {
            // The planner builds a missing branch, and reports an invalid one.
            let Ok(MapSlot::At(entry_at)) = self.look_up(block) else { return false };
            let word = self.medium().load_word(entry_at);
            // The planner meets an invalid entry again, and reports it.
            let Ok(entry) = self.entries().decode(word, entry_at) else { return false };
            // A block that reads as zeroes may be filled without a record only in some cases. The planner
            // knows them.
            if entry.is_some_and(|entry| entry.flags.zero) {
                return false;
            }
            let old = entry.map(|entry| entry.block);
            if let Some(old) = old {
                self.volume().prefetch_free(old);
            }
            targets.push(Target { entry_at, word, old, to: BlockNo(0), is_refill: false });
            true
        })
    }

    /// Decides about every target, and allocates the new blocks. Returns false if a target needs the planner:
    /// then no block is allocated.
    fn admit(&self, writer: &mut Writer<'_, M>, targets: &mut Targets) -> bool {
        // A record of fewer words may fit. The planner counts them.
        if writer.is_in_group() || Writer::<M>::words_bytes(targets.len()) > writer.room_bytes() {
            return false;
        }
        let fills_leaf = targets.len() as u64 == BLOCKS_MAX;
        let mut new = 0;
        for target in targets.iter_mut() {
            match target.old.map(|old| (old, classify(&self.inspect_whole(writer, old)))) {
                // The planner gives adjacent blocks to a leaf of holes.
                None if fills_leaf => return false,
                None | Some((_, Change::Replace { must: false })) => new += 1,
                Some((old, Change::Refill)) => (target.to, target.is_refill) = (old, true),
                Some(_) => return false,
            }
        }
        // The planner decides on a scarce block: a hole needs it more than a block that can stay.
        !writer.may_lack_blocks(new) && allocate(writer, targets)
    }
}

/// Allocates a block for each target, except for refilled blocks. Returns false, without any allocation, if
/// the pool has too few free blocks.
fn allocate<M: Medium>(writer: &mut Writer<'_, M>, targets: &mut Targets) -> bool {
    for place in 0..targets.len() {
        if targets[place].is_refill {
            continue;
        }
        let Some(block) = writer.alloc() else {
            cancel(writer, &targets[..place]);
            return false;
        };
        targets[place].to = block;
    }
    true
}

/// Frees the new blocks of `targets`.
fn cancel<M: Medium>(writer: &mut Writer<'_, M>, targets: &[Target]) {
    // The lane hands out the last freed block first, so the blocks stay in ascending order.
    for target in targets.iter().rev().filter(|target| !target.is_refill) {
        writer.cancel_alloc(target.to);
    }
}

/// Streams the bytes of `targets`, records the entries, fences, and stores the entries. Returns false and frees
/// the new blocks if the medium got a poisoned range.
fn write_targets<M: Medium>(
    writer: &mut Writer<'_, M>,
    targets: &[Target],
    data: &[u8],
) -> Result<bool, WriteError> {
    // The streams are under way while the entries are recorded.
    stream(writer, targets, data, false);
    let records = targets
        .iter()
        .filter(|target| !target.is_refill && !writer.has_undo_record(target.entry_at))
        .map(|target| WordItem { target: target.entry_at.0, old: target.word });
    let items: SmallVec<[WordItem; 32]> = records.collect();
    if writer.log_words(&items).is_err() || writer.volume().medium().has_poison() {
        // The fence comes first: another thread can allocate the blocks, and cannot fence these streams.
        writer.commit_abandoned()?;
        cancel(writer, targets);
        return Ok(false);
    }
    // Readers see a refilled block without the entry, so its stream waits until nothing can fail.
    stream(writer, targets, data, true);
    // One fence covers records and blocks, so no entry names a torn block, and undo finds every old word.
    let mut committed = writer.commit()?;
    for target in targets.iter().filter(|target| !target.is_refill) {
        committed.store_word(target.entry_at, Entry::data(target.to).encode());
        // Undo may restore the old entry, so the old block waits for the checkpoint.
        if let Some(old) = target.old {
            committed.defer_free(old);
        }
    }
    Ok(true)
}

/// Streams the bytes of the refilled targets, or of the others: one copy for targets that follow each other in
/// the pool.
fn stream<M: Medium>(writer: &mut Writer<'_, M>, targets: &[Target], data: &[u8], refills: bool) {
    let mut from = 0;
    while let Some(first) = targets.get(from) {
        // A copy beyond the last adjacent target would reach another owner's block.
        let follows = |&(place, target): &(u64, &Target)| {
            target.to.0 == first.to.0 + place && target.is_refill == first.is_refill
        };
        let len = (0..).zip(&targets[from..]).take_while(follows).count();
        if first.is_refill == refills {
            writer.fill(first.to.offset(), &data[from * BLOCK..(from + len) * BLOCK]);
        }
        from += len;
    }
}

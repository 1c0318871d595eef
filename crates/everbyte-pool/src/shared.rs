//! The parts of an open pool shared by its volumes: medium, free blocks, states of blocks, superblock. Knows
//! no volume.

use std::ops::Range;
use std::sync::{Arc, Weak};

use everbyte_media::{BLOCK_U64, BlockNo, MediaError, Medium, PoolOffset};
use zerocopy::IntoBytes;

use crate::alloc::{Allocator, BlockRun};
use crate::checkpoint_signal::CheckpointSignal;
use crate::data_area::DataArea;
use crate::epoch::BlockStates;
use crate::format::{Corrupt, SUPERBLOCK_COPIES, Superblock};
use crate::persist::Dirty;
use crate::sync::Mutex;

/// A holder of preallocated blocks and of deferred frees.
pub(crate) trait Preallocator: Send + Sync {
    /// Returns them to the allocator. The caller holds no lane.
    fn return_preallocated_blocks(&self);
    /// Frees the deferred blocks with a checkpoint. Does nothing while a group is open, and returns after a
    /// short time. The caller holds no lane.
    fn free_deferred_blocks(&self);
}

/// The parts of a pool shared by its volumes.
pub(crate) struct Shared<M: Medium> {
    pub(crate) medium: Arc<M>,
    pub(crate) alloc: Allocator,
    pub(crate) states: BlockStates,
    /// Blocks of volumes, and blocks free for them, as in the superblock.
    pub(crate) data: DataArea,
    pub(crate) superblock: Mutex<Superblock>,
    pub(crate) read_only: Option<String>,
    /// True if it is read-only because two volumes own a block.
    pub(crate) has_clash: bool,
    /// The reason if the free blocks are unknown. Only blocks freed by volumes since are then allocated.
    pub(crate) space_unknown: Option<String>,
    /// Unreadable volume headers; there may have been volumes.
    pub(crate) lost_headers: Vec<Corrupt>,
    pub(crate) checkpoint_signal: CheckpointSignal,
    /// Blocks withheld from allocation because their memory is bad. They have no owner.
    pub(crate) withheld: Mutex<Vec<BlockNo>>,
    /// Holders of preallocated blocks.
    pub(crate) preallocators: Mutex<Vec<Weak<dyn Preallocator>>>,
}

impl<M: Medium> Shared<M> {
    /// Blocks of volumes, and blocks free for them.
    pub(crate) fn data_bounds(&self) -> Range<u64> {
        self.data.blocks()
    }

    /// Takes the medium's blocks up to `size_blocks` into the pool, durably. The allocator is to
    /// get them afterwards.
    ///
    /// # Errors
    /// The medium's; the pool is as it was then.
    pub(crate) fn extend_to(&self, size_blocks: u64) -> Result<(), MediaError> {
        // First: no map may name a block that the next opening finds outside the pool.
        self.update_superblock(|sb| sb.size_blocks = size_blocks)?;
        self.data.extend_to(size_blocks);
        Ok(())
    }

    /// Returns true if `block`, a block without an owner, is in a poisoned range. It is then not allocated
    /// while the pool is open: a store there would be lost, and end every promise of every volume.
    pub(crate) fn withhold_if_bad(&self, block: BlockNo) -> bool {
        let is_bad = self.medium.check_range(block.offset(), BLOCK_U64).is_err();
        if is_bad {
            // In DRAM only: a clean shutdown saves these blocks as free.
            self.withheld.lock().push(block);
        }
        is_bad
    }

    /// The first run without bad blocks among those that `find` takes from the allocator. For the other runs,
    /// withholds the bad blocks from further searches and frees the rest.
    pub(crate) fn take_sound_run(&self, find: impl Fn() -> Option<BlockRun>) -> Option<BlockRun> {
        loop {
            let run = find()?;
            if self.medium.check_range(run.start.offset(), run.len * BLOCK_U64).is_ok() {
                return Some(run);
            }
            // The search would find the same bad blocks again, so they leave the allocator.
            for block in run.blocks().filter(|&block| !self.withhold_if_bad(block)) {
                if let Err(error) = self.alloc.free(block) {
                    tracing::error!(%error, "a block that was taken just now is free already");
                }
            }
        }
    }

    /// The first `words` words of the free map as a clean shutdown saves it. Blocks are withheld while the pool
    /// is open: its next opening, like one after a crash, knows nothing of bad memory yet.
    pub(crate) fn free_words(&self, words: usize) -> Vec<u64> {
        let mut free: Vec<u64> = self.alloc.words().take(words).collect();
        for block in self.withheld.lock().iter() {
            let word = usize::try_from(block.0 / 64).ok().and_then(|word| free.get_mut(word));
            if let Some(word) = word {
                *word |= 1 << (block.0 % 64);
            }
        }
        free
    }

    /// Notes one more holder of preallocated blocks.
    pub(crate) fn note_preallocator(&self, holder: Weak<dyn Preallocator>) {
        let mut preallocators = self.preallocators.lock();
        // Deleted volumes leave dead entries.
        preallocators.retain(|holder| holder.strong_count() > 0);
        preallocators.push(holder);
    }

    /// Returns the preallocated blocks of every volume to the allocator: other volumes can use those of an
    /// idle volume. The caller holds no lane.
    pub(crate) fn reclaim_preallocated(&self) {
        self.holders().iter().for_each(|holder| holder.return_preallocated_blocks());
    }

    /// Frees the deferred blocks of every volume. The caller holds no lane.
    pub(crate) fn free_deferred(&self) {
        self.holders().iter().for_each(|holder| holder.free_deferred_blocks());
    }

    fn holders(&self) -> Vec<Arc<dyn Preallocator>> {
        // A copy: holders make checkpoints, and the list must not be locked for as long.
        self.preallocators.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Changes the superblock durably, one copy after the other.
    pub(crate) fn update_superblock(
        &self,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<Superblock, MediaError> {
        // Locked over the stores: two updates must not mix their copies.
        let mut current = self.superblock.lock();
        let mut next = *current;
        change(&mut next);
        next.generation += 1;
        let next = next.sealed();
        write_superblock(&*self.medium, &next)?;
        // After both copies are durable: a failed update changes nothing here.
        *current = next;
        Ok(next)
    }
}

/// Stores both copies, the second after the first is durable.
pub(crate) fn write_superblock<M: Medium>(medium: &M, sb: &Superblock) -> Result<(), MediaError> {
    for at in SUPERBLOCK_COPIES {
        let mut dirty = Dirty::default();
        dirty.store(medium, at, sb.as_bytes());
        dirty.flush(medium).fence(medium)?;
    }
    Ok(())
}

/// Address of the header in `slot` of the volume table.
pub(crate) fn header_at(sb: &Superblock, slot: u64) -> PoolOffset {
    BlockNo(sb.table_start + slot).offset()
}

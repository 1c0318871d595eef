//! The size of a file system: a limit of its blocks.
//!
//! Invariant: the volume allocates no block beyond its size. A smaller size is set only if the used blocks
//! fit.

use std::sync::atomic::Ordering;

use everbyte_media::{BLOCK_U64, Medium};
use everbyte_pool::PoolError;
use everbyte_pool::format::encode_word;

use crate::error::FsError;
use crate::fs::{FileSystem, pool_error};

impl<M: Medium> FileSystem<M> {
    /// Its size in blocks of 4096 bytes: a limit of files, directories, inodes and maps together.
    pub(crate) fn size_blocks(&self) -> u64 {
        self.size_blocks.load(Ordering::Relaxed)
    }

    /// Sets the size in DRAM.
    pub(crate) fn set_size_blocks(&self, blocks: u64) {
        self.size_blocks.store(blocks, Ordering::Relaxed);
        self.volume().limit_blocks(blocks);
    }

    /// Sets the size to `size_bytes`, a positive multiple of 512. Users can work during the change. Durable on return. The limit
    /// of inodes stays.
    ///
    /// # Errors
    /// `Invalid` for an invalid size, a size below the used bytes, or a pool without the space; the volume's.
    /// The old size stays then.
    pub fn resize(&self, size_bytes: u64) -> Result<(), PoolError> {
        self.pool().check_volume_size(size_bytes)?;
        // Two concurrent changes could both pass the check and then set each other's limit.
        let _resizing = self.resizing.lock();
        let (old, new) = (self.size_blocks(), size_bytes / BLOCK_U64);
        if new < old {
            // The limit stops new allocations. Blocks that a checkpoint frees are not in use.
            self.set_size_blocks(new);
        }
        let done = self.check_fits(old, new).and_then(|()| self.store_size(size_bytes));
        // A larger limit is set only after the size is durable: a crash must not leave more blocks
        // than the size.
        self.set_size_blocks(if done.is_ok() { new } else { old });
        done
    }

    fn check_fits(&self, old: u64, new: u64) -> Result<(), PoolError> {
        // A checkpoint executes the deferred frees, so only blocks in use count.
        self.sync().map_err(pool_error)?;
        let used = self.volume().used_blocks().unwrap_or(u64::MAX);
        if used > new {
            return Err(PoolError::Invalid(format!(
                "{} bytes of the file system are in use: it cannot be smaller",
                used.saturating_mul(BLOCK_U64)
            )));
        }
        let free = self.pool().info().free_bytes / BLOCK_U64;
        if new > old && new - used > free {
            return Err(PoolError::Invalid(format!(
                "the file system would need {} bytes more than it uses, and the pool has {} free",
                (new - used) * BLOCK_U64,
                free * BLOCK_U64
            )));
        }
        Ok(())
    }

    /// Makes the size durable.
    fn store_size(&self, size_bytes: u64) -> Result<(), PoolError> {
        let volume = self.volume();
        let _op = volume.begin_op();
        let changed = volume.change(|batch, _| {
            batch.change_word(volume.size_at(), encode_word(size_bytes / 512));
            Ok::<(), FsError>(())
        });
        let epoch = changed.map_err(pool_error)?;
        Ok(volume.complete(epoch)?)
    }
}

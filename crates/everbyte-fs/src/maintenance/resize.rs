//! The size of a file system: how many blocks it may take, and another size for it.
//!
//! Invariant: the volume takes no block beyond its size; a smaller size is set only when what is in use
//! fits into it.

use std::sync::atomic::Ordering;

use everbyte_media::{BLOCK_U64, Medium};
use everbyte_pool::PoolError;
use everbyte_pool::format::encode_word;

use crate::error::FsError;
use crate::fs::{FileSystem, pool_error};

impl<M: Medium> FileSystem<M> {
    /// Its size in blocks of 4096 bytes: files, directories, inodes and maps together take no more.
    pub(crate) fn size_blocks(&self) -> u64 {
        self.size_blocks.load(Ordering::Relaxed)
    }

    /// Sets the size, in DRAM.
    pub(crate) fn set_size_blocks(&self, blocks: u64) {
        self.size_blocks.store(blocks, Ordering::Relaxed);
        self.volume().limit_blocks(blocks);
    }

    /// Makes the file system `size_bytes` large, a positive multiple of 512, while it is in use. Durable
    /// when it returns. The number of inodes that there can be stays as it is.
    ///
    /// # Errors
    /// `Invalid`: the size cannot be, is smaller than what is in use, or the pool has not so much free;
    /// the volume's. It has its old size then.
    pub fn resize(&self, size_bytes: u64) -> Result<(), PoolError> {
        self.pool().check_volume_size(size_bytes)?;
        let _resizing = self.resizing.lock();
        let (old, new) = (self.size_blocks(), size_bytes / BLOCK_U64);
        if new < old {
            // Nobody takes more from now on, and what a checkpoint frees is not in use.
            self.set_size_blocks(new);
        }
        let done = self.check_fits(old, new).and_then(|()| self.store_size(size_bytes));
        self.set_size_blocks(if done.is_ok() { new } else { old });
        done
    }

    fn check_fits(&self, old: u64, new: u64) -> Result<(), PoolError> {
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

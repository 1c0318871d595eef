//! Rollback: a block volume, with its log of old bytes.
//!
//! After a crash: data written before the last checkpoint is present. Requests with durability on
//! answer are present too. Each request is present as a whole or absent, within the limits of the
//! block volume. `docs/crash-model.md` has the argument, and `everbyte-block` the crash tests.
//!
//! A flush is a checkpoint: the log of old bytes cannot make new bytes durable. The volume also
//! starts a checkpoint when the log fills.

use std::sync::Arc;

use everbyte_block::{BlockOptions, BlockVolume, kinds};
use everbyte_device::{
    AtomicWriteError, AtomicWrites, BlockDevice, DeviceError, Passthrough, WriteRequest,
};
use everbyte_extent::Delta;
use everbyte_media::{BLOCK_U64, Medium};
use everbyte_pool::{OpenOptions, Pool, PoolError};

use super::{Kind, Scheme};
use crate::subject::Counts;
use crate::subjects::floor::medium_counts;

const NAME: &str = "device";
const VOLUMES: u64 = 1;
const POOL_UID: [u8; 16] = [4; 16];
/// Blocks of the pool and of the map's pages, in addition to the blocks of a device.
const EXTRA_BLOCKS: u64 = 128;

/// Bytes of a log from which on it has two lanes.
const TWO_LANES_BYTES: u64 = 8 << 20;

/// Bytes that the medium must have.
pub(crate) fn medium_bytes(device_bytes: u64, log_bytes: u64) -> u64 {
    let for_moves = (device_bytes / 8).next_multiple_of(BLOCK_U64);
    device_bytes + for_moves + log_bytes + EXTRA_BLOCKS * BLOCK_U64
}

/// A block volume as a scheme.
pub(crate) struct Rollback<M: Medium> {
    volume: BlockVolume<M>,
}

impl<M: Medium> Rollback<M> {
    /// Makes an empty device, which detects changes as `delta` says.
    ///
    /// # Errors
    /// The pool's.
    pub(crate) fn format(
        medium: &Arc<M>,
        device_bytes: u64,
        log_bytes: u64,
        delta: Delta,
    ) -> Result<(), PoolError> {
        Pool::format(&**medium, VOLUMES, POOL_UID)?;
        let pool = Self::pool(medium)?;
        // A lane for each of two writers. The log of a test is too small for two.
        let lanes = if log_bytes < TWO_LANES_BYTES { 1 } else { 2 };
        let options =
            BlockOptions { log_bytes: Some(log_bytes), lanes, delta, ..BlockOptions::default() };
        BlockVolume::create(&pool, NAME, device_bytes, &options)?;
        pool.close()
    }

    /// Opens a device, and recovers it.
    ///
    /// # Errors
    /// The pool's.
    pub(crate) fn open(medium: &Arc<M>) -> Result<Self, PoolError> {
        let pool = Self::pool(medium)?;
        let volume = BlockVolume::open(&pool, NAME)?;
        Ok(Self { volume })
    }

    fn pool(medium: &Arc<M>) -> Result<Arc<Pool<M>>, PoolError> {
        Ok(Arc::new(Pool::open(Arc::clone(medium), kinds(), &OpenOptions::default())?))
    }
}

impl<M: Medium> everbyte_device::Decorator for Rollback<M> {
    type Inner = BlockVolume<M>;
    const PASSTHROUGH: Passthrough = Passthrough::Whole;

    fn inner(&self) -> &Self::Inner {
        &self.volume
    }
}

impl<M: Medium> AtomicWrites for Rollback<M> {
    fn write_atomic(&self, requests: &[WriteRequest<'_>]) -> Result<(), AtomicWriteError> {
        self.volume.write_atomic(requests)
    }
}

impl<M: Medium> Scheme for Rollback<M> {
    fn name(&self) -> &'static str {
        Kind::Rollback.name()
    }

    fn checkpoint(&self) -> Result<(), DeviceError> {
        self.volume.flush()
    }

    fn counts(&self) -> Counts {
        medium_counts(&**self.volume.pool().medium(), self.volume.volume().log_bytes())
    }
}

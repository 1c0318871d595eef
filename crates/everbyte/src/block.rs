//! Block volumes: disks in the pool. See [`BlockVolume`].

use std::sync::Arc;

use everbyte_device::{AtomicWriteError, AtomicWrites, BlockDevice, Passthrough, WriteRequest};
use everbyte_pool::format::VolumeKind;

pub use everbyte_block::{Checksum, Delta};

use crate::builder::setters;
use crate::engine::{Device, open_volume};
use crate::error::Error;
use crate::shared::{Handle, Shared};

/// Settings of a new block volume.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct BlockOptions {
    engine: everbyte_block::BlockOptions,
}

impl BlockOptions {
    /// The default settings.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn engine(&self) -> &everbyte_block::BlockOptions {
        &self.engine
    }
}

setters! { BlockOptions:
    /// Change detection: the comparison of writes with the stored bytes. Default: where it pays.
    delta(delta: Delta) => engine.delta = delta;

    /// Checksum of every block. It detects a block with other bytes than the stored ones. Default:
    /// none.
    checksum(checksum: Checksum) => engine.checksum = checksum;

    /// Share of a block, in percent, at which a write replaces the block instead of logging the
    /// lines. 0: always. 101 and more: only if the log has no room for the lines. Default: 50.
    threshold_percent(percent: u32) => engine.threshold_percent = percent;

    /// Bytes of log over all lanes. Default: 1/32 of the size, from 2.5 to 128 MiB.
    log_bytes(bytes: u64) => engine.log_bytes = Some(bytes);

    /// Lanes of the log: the number of threads able to write concurrently. Default: 8.
    lanes(lanes: u32) => engine.lanes = lanes;

    /// Dirty 64-byte lines at which a background checkpoint begins, at least 1. Writers wait for
    /// the checkpoint at twice this number. Default: 65,536.
    checkpoint_lines(lines: u32) => engine.checkpoint_lines = lines.max(1);
}

/// An open block volume: a [`BlockDevice`] in the pool.
///
/// A handle is `Send`, `Sync` and cheap to clone; all clones are one open volume, and every method
/// may be called from any number of threads. The volume can be opened again once the last clone is
/// dropped. A handle keeps its pool open.
///
/// In addition to the contract of [`BlockDevice`], several writes can form one atomic change, see
/// [`AtomicWrites`]. A write of up to 32 MiB is atomic under a crash if the volume has the default
/// log and the pool has a free block. Larger writes are atomic in parts. Trims are atomic per 2
/// MiB.
#[derive(Clone)]
pub struct BlockVolume(pub(crate) Arc<Handle<Device>>);

impl BlockVolume {
    pub(crate) fn create(
        shared: &Arc<Shared>,
        name: &str,
        size_bytes: u64,
        options: &BlockOptions,
    ) -> Result<Self, Error> {
        shared.check_writable()?;
        let made = Device::create(&shared.engine, name, size_bytes, options.engine());
        Ok(Self(Handle::new(made.map_err(Error::volume(name))?, shared)))
    }

    pub(crate) fn open(shared: &Arc<Shared>, name: &str) -> Result<Self, Error> {
        shared.check_open()?;
        let device = open_volume(&shared.engine, name, VolumeKind::BLOCK)?;
        device.set_read_only(shared.read_only);
        Ok(Self(Handle::new(device, shared)))
    }

    /// Its name in the pool.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.volume.volume().name()
    }

    /// Makes the volume `size_bytes` large, a positive multiple of 512, while it is in use. Durable
    /// when it returns. Bytes beyond a smaller size are lost, bytes gained read as zeroes.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::Volume`] if the size cannot be, the pool is too full, or its
    /// memory fails.
    pub fn resize(&self, size_bytes: u64) -> Result<(), Error> {
        self.0.shared.check_writable()?;
        self.0.volume.resize(size_bytes).map_err(Error::volume(self.name()))
    }
}

impl everbyte_device::Decorator for BlockVolume {
    type Inner = dyn BlockDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Whole;

    fn inner(&self) -> &Self::Inner {
        &self.0.volume
    }
}

impl AtomicWrites for BlockVolume {
    fn write_atomic(&self, requests: &[WriteRequest<'_>]) -> Result<(), AtomicWriteError> {
        self.0.volume.write_atomic(requests)
    }
}

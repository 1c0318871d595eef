//! The block volume: a block device over a volume of the pool.
//!
//! Owns creation, opening and the shared state.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use everbyte_device::DeviceError;
use everbyte_extent::{
    BlockReadError, Checksum, Delta, Extent, ExtentError, ExtentSettings, MAP_CODE,
};
use everbyte_media::Medium;
use everbyte_pool::format::VolumeKind;
use everbyte_pool::{
    Corrupt, NewRoot, Pool, PoolError, ScrubReport, Volume, VolumeHandle, VolumeSpec, VolumeView,
    WriteError,
};

use crate::error::RequestRange;

/// Settings of a new block volume.
#[derive(Clone, Copy, Debug)]
pub struct BlockOptions {
    /// Change detection: comparison of writes with the stored bytes.
    pub delta: Delta,
    /// Checksum of every block. It detects blocks with changed bytes.
    pub checksum: Checksum,
    /// Changed share of a block, in percent, from which on the block is replaced instead of logged. 0:
    /// always. 101 and more: only if the log has no room for the lines.
    pub threshold_percent: u32,
    /// Bytes of log over all lanes. `None`: derived from the size of the volume.
    pub log_bytes: Option<u64>,
    /// Lanes of the log: the number of concurrent writers.
    pub lanes: u32,
    /// Number of dirty lines of 64 bytes at the start of a background checkpoint. Writers wait for it at
    /// twice the number. 0 means 65,536.
    pub checkpoint_lines: u32,
}

impl Default for BlockOptions {
    fn default() -> Self {
        Self {
            delta: Delta::default(),
            checksum: Checksum::default(),
            threshold_percent: 50,
            log_bytes: None,
            lanes: everbyte_pool::LANES_DEFAULT,
            checkpoint_lines: 0,
        }
    }
}

impl BlockOptions {
    fn threshold_lines(&self) -> u32 {
        (self.threshold_percent.saturating_mul(64)).div_ceil(100).min(65)
    }
}

/// A block device over a volume of the pool.
///
/// Any number of threads may call every method. A write is durable after a flush that began when the write
/// had been answered.
///
/// In addition to the contract of [`BlockDevice`](everbyte_device::BlockDevice), writes are atomic under
/// crashes as long as their undo records fit in half a lane of the log: with the default log every write of
/// up to 32 MiB. Larger writes are made in parts of at least a block, each atomic. The same applies in a pool
/// without enough free blocks. Unmapping is atomic per 2 MiB.
///
/// Its block locks keep concurrent requests whole. So a volume has one `BlockVolume` at a time, shared by
/// threads in an [`Arc`]; another opening fails with [`PoolError::InUse`] until that one is dropped. A drop
/// makes nothing durable: call [`flush`](everbyte_device::BlockDevice::flush), or close the pool with
/// [`Pool::close`].
pub struct BlockVolume<M: Medium> {
    pool: Arc<Pool<M>>,
    extent: Extent<M>,
    _handle: VolumeHandle<M>,
    read_only: AtomicBool,
}

impl<M: Medium> BlockVolume<M> {
    /// Makes a block volume of `size_bytes` in `pool`.
    ///
    /// # Errors
    /// As [`Pool::create_volume`].
    pub fn create(
        pool: &Arc<Pool<M>>,
        name: &str,
        size_bytes: u64,
        options: &BlockOptions,
    ) -> Result<Self, PoolError> {
        Self::create_as(pool, name, VolumeKind::BLOCK, size_bytes, options)
    }

    /// Creates a volume of a kind with a block volume inside. It can be opened as this kind only.
    ///
    /// # Errors
    /// As [`Pool::create_volume`].
    pub fn create_as(
        pool: &Arc<Pool<M>>,
        name: &str,
        kind: VolumeKind,
        size_bytes: u64,
        options: &BlockOptions,
    ) -> Result<Self, PoolError> {
        pool.check_volume_size(size_bytes)?;
        let mut spec = VolumeSpec::new(name, kind, size_bytes);
        spec.delta = options.delta.code();
        spec.checksum = options.checksum.code();
        spec.threshold_lines = options.threshold_lines();
        spec.log_bytes = options.log_bytes;
        spec.lanes = options.lanes;
        spec.checkpoint_lines = options.checkpoint_lines;
        pool.create_volume(&spec, NewRoot::Empty)?;
        Self::open_as(pool, name, kind)
    }

    /// Opens the block volume `name` of `pool`. It can be opened again after the drop of the returned value.
    ///
    /// # Errors
    /// The volume does not exist, is unreadable, is of another kind, or is open already.
    pub fn open(pool: &Arc<Pool<M>>, name: &str) -> Result<Self, PoolError> {
        Self::open_as(pool, name, VolumeKind::BLOCK)
    }

    /// Opens the volume `name` of `pool`, a volume of a kind with a block volume inside.
    ///
    /// # Errors
    /// As [`BlockVolume::open`].
    pub fn open_as(pool: &Arc<Pool<M>>, name: &str, kind: VolumeKind) -> Result<Self, PoolError> {
        let handle = pool.open_volume(name, kind)?;
        let volume = handle.volume();
        let descriptor = volume.descriptor();
        let bounds = pool.data_bounds();
        let view = VolumeView {
            descriptor,
            root_at: volume.root_at(),
            checksum_root_at: volume.checksum_root_at(),
            size_bytes: volume.size_bytes()?,
            data_start: bounds.start,
            data_end: bounds.end,
        };
        check_map(&view)?;
        let unknown = |what| Corrupt::new("volume descriptor", volume.root_at(), what);
        let delta = Delta::from_code(descriptor.delta);
        let checksum = Checksum::from_code(descriptor.checksum);
        let settings = ExtentSettings {
            root_at: view.root_at,
            checksum_root_at: match checksum.ok_or_else(|| unknown("unknown checksum"))? {
                Checksum::None => None,
                Checksum::Crc32c => Some(view.checksum_root_at),
            },
            delta: delta.ok_or_else(|| unknown("unknown translation"))?,
            threshold_lines: descriptor.threshold_lines,
            size_bytes: view.size_bytes,
        };
        let read_only = AtomicBool::new(volume.read_only_reason().is_some());
        let extent = Extent::new(Arc::clone(volume), &settings);
        // A deletion then waits for the holders of these locks.
        handle.set_users(Arc::new(extent.locks().clone()));
        let block_volume = Self { pool: Arc::clone(pool), extent, _handle: handle, read_only };
        {
            // A crash may have come between a shrink of the size and the unmapping.
            let _op = block_volume.volume().begin_op();
            match block_volume.trim_tail() {
                // The volume still opens for reading.
                Err(PoolError::Corrupt(damage)) => block_volume.volume().fail(&damage),
                trimmed => trimmed?,
            }
        }
        Ok(block_volume)
    }

    /// Unmaps the blocks beyond the end, if the volume is writable.
    pub(crate) fn trim_tail(&self) -> Result<(), PoolError> {
        if self.is_read_only() {
            return Ok(());
        }
        self.extent.trim_tail().map_err(|error| match error {
            ExtentError::Corrupt(corrupt)
            | ExtentError::BlockReadError(BlockReadError::Map(corrupt)) => corrupt.into(),
            ExtentError::Write(error) => error.into(),
            other => {
                PoolError::Invalid(format!("the end of the volume cannot be cleared: {other}"))
            }
        })
    }

    /// The pool's view of the volume: epochs, log, checkpoints.
    #[must_use]
    pub fn volume(&self) -> &Arc<Volume<M>> {
        self.extent.volume()
    }

    /// The bytes of the volume.
    pub(crate) fn extent(&self) -> &Extent<M> {
        &self.extent
    }

    /// The checksum kept of every block.
    #[must_use]
    pub fn checksum(&self) -> Checksum {
        if self.extent.has_checksums() { Checksum::Crc32c } else { Checksum::None }
    }

    /// Reads the volume from byte `from` on, up to a large part, and notes unreadable bytes and bytes other
    /// than the stored ones. Also returns the next position, or `None` at the end.
    ///
    /// # Errors
    /// `Gone`.
    pub fn scrub(&self, from: u64) -> Result<(ScrubReport, Option<u64>), DeviceError> {
        self.extent.scrub(from).map_err(|_| DeviceError::Gone)
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool<M>> {
        &self.pool
    }

    /// Refuses writes from now on, or allows them again where the pool does.
    pub fn set_read_only(&self, read_only: bool) {
        self.read_only.store(read_only, Ordering::Release);
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire) || self.volume().read_only_reason().is_some()
    }

    pub(crate) fn medium(&self) -> &M {
        self.extent.medium()
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.extent.size_bytes()
    }

    /// Checks that a request lies in the device and that the device is present.
    pub(crate) fn check_range(&self, request: RequestRange) -> Result<(), DeviceError> {
        let checked = self.extent.check_range(request.offset, request.len);
        checked.map_err(|error| request.failed(self.volume(), error))
    }

    /// Checks that a request may write.
    pub(crate) fn check_write(&self, request: RequestRange) -> Result<(), DeviceError> {
        if self.is_read_only() {
            return Err(DeviceError::ReadOnly { reason: self.why_read_only() });
        }
        self.check_range(request)
    }

    pub(crate) fn check_writable(&self) -> Result<(), WriteError> {
        if self.is_read_only() {
            return Err(WriteError::ReadOnly { reason: self.why_read_only() });
        }
        Ok(())
    }

    fn why_read_only(&self) -> String {
        self.volume().read_only_reason().unwrap_or("it was opened so").to_owned()
    }
}

/// Checks that the descriptor of the volume in `view` names the only map, a radix tree.
///
/// # Errors
/// The descriptor names another map.
pub(crate) fn check_map(view: &VolumeView<'_>) -> Result<(), Corrupt> {
    match view.descriptor.map {
        MAP_CODE => Ok(()),
        kind => {
            let reason = format!("block maps of kind {kind} are unknown");
            Err(Corrupt::new("volume descriptor", view.root_at, reason))
        }
    }
}

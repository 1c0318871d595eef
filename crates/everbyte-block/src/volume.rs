//! The block volume: a block device over a volume of the pool.
//!
//! Owns what its parts share: the map's shape, the block locks, the settings. Reading is in
//! `read`, writing in `write` and `plan`, unmapping in `unmap`, resizing in `resize`, groups in
//! `group`. Locks are taken in this order: the volume's gate, block locks, a lane, the structure
//! lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use everbyte_device::DeviceError;
use everbyte_media::{BLOCK_U64, Medium};
use everbyte_pool::format::VolumeKind;
use everbyte_pool::sync::{Mutex, MutexGuard};
use everbyte_pool::{Corrupt, Pool, PoolError, Volume, VolumeSpec, VolumeView, WriteError};

use crate::checksum::Checksum;
use crate::delta::{Delta, DeltaState};
use crate::locks::BlockLocks;
use crate::map::{self, Leaves, MapKind};
use crate::threshold::Threshold;

/// Settings of a new block volume.
#[derive(Clone, Copy, Debug)]
pub struct BlockOptions {
    /// Shape of the mapping table.
    pub map: MapKind,
    /// Whether writes are compared with what is stored.
    pub delta: Delta,
    /// What is kept of every block, to notice when it is not what was stored.
    pub checksum: Checksum,
    /// Share of a block, in percent, from which on a block is replaced instead of logged: 0
    /// always, 101 and more never but where the log has no room for the lines.
    pub threshold_percent: u32,
    /// Bytes of log over all lanes; `None` for a size that suits the volume's.
    pub log_bytes: Option<u64>,
    /// Lanes of the log: how many threads can write at once.
    pub lanes: u32,
}

impl Default for BlockOptions {
    fn default() -> Self {
        Self {
            map: MapKind::default(),
            delta: Delta::default(),
            checksum: Checksum::default(),
            threshold_percent: 50,
            log_bytes: None,
            lanes: everbyte_pool::LANES_DEFAULT,
        }
    }
}

impl BlockOptions {
    fn threshold_lines(&self) -> u32 {
        (self.threshold_percent.saturating_mul(64)).div_ceil(100).min(65)
    }
}

/// A block device over a volume of the pool. See the module's head.
pub struct BlockVolume<M: Medium> {
    pool: Arc<Pool<M>>,
    volume: Arc<Volume<M>>,
    map: MapKind,
    delta: DeltaState,
    threshold: Threshold,
    checksums: bool,
    pub(crate) locks: BlockLocks,
    /// Of the map.
    pub(crate) leaves: Leaves,
    structure: Mutex<()>,
    size_bytes: AtomicU64,
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
        Self::create_as(pool, name, VolumeKind::Block, size_bytes, options)
    }

    /// Makes a volume of a kind that is a block volume inside. It can be opened as that kind only.
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
        spec.map = options.map.code();
        spec.delta = options.delta.code();
        spec.checksum = options.checksum.code();
        spec.threshold_lines = options.threshold_lines();
        spec.log_bytes = options.log_bytes;
        spec.lanes = options.lanes;
        let table_blocks = match options.map {
            MapKind::Radix => 0,
            MapKind::Direct => map::table_blocks(size_bytes),
        };
        pool.create_volume(&spec, table_blocks)?;
        Self::open_as(pool, name, kind)
    }

    /// Opens the block volume `name` of `pool`. A volume is to be opened once at a time.
    ///
    /// # Errors
    /// There is no such volume, or it cannot be read, or it is of another kind.
    pub fn open(pool: &Arc<Pool<M>>, name: &str) -> Result<Self, PoolError> {
        Self::open_as(pool, name, VolumeKind::Block)
    }

    /// Opens the volume `name` of `pool`, which is of a kind that is a block volume inside.
    ///
    /// # Errors
    /// As [`BlockVolume::open`].
    pub fn open_as(pool: &Arc<Pool<M>>, name: &str, kind: VolumeKind) -> Result<Self, PoolError> {
        let volume = pool.volume(name)?;
        if volume.kind() != kind {
            let what = format!("volume {name} is a {} volume, not a {kind} one", volume.kind());
            return Err(PoolError::Invalid(what));
        }
        let unknown = |what| Corrupt::new("volume descriptor", volume.root_at(), what);
        let descriptor = volume.descriptor();
        let map = MapKind::from_code(descriptor.map).ok_or_else(|| unknown("unknown map"))?;
        let delta =
            Delta::from_code(descriptor.delta).ok_or_else(|| unknown("unknown translation"))?;
        let checksum =
            Checksum::from_code(descriptor.checksum).ok_or_else(|| unknown("unknown checksum"))?;
        let (read_ns, write_ns) = volume.medium().line_cost_ns();
        let size_bytes = volume.size_bytes()?;
        let bounds = pool.data_bounds();
        let view = VolumeView {
            descriptor,
            root_at: volume.root_at(),
            checksum_root_at: volume.checksum_root_at(),
            size_bytes,
            data_start: bounds.start,
            data_end: bounds.end,
        };
        map::check_shape(volume.medium(), &view)?;
        let block_volume = Self {
            pool: Arc::clone(pool),
            map,
            delta: DeltaState::new(delta, read_ns, write_ns),
            threshold: Threshold::new(descriptor.threshold_lines),
            checksums: checksum == Checksum::Crc32c,
            locks: BlockLocks::new(),
            leaves: Leaves::new(size_bytes.div_ceil(BLOCK_U64)),
            structure: Mutex::new(()),
            size_bytes: AtomicU64::new(size_bytes),
            read_only: AtomicBool::new(volume.read_only_reason().is_some()),
            volume,
        };
        {
            let _gate = block_volume.volume.enter();
            match block_volume.trim_tail() {
                Err(PoolError::Corrupt(damage)) => block_volume.volume.fail(&damage),
                trimmed => trimmed?,
            }
        }
        Ok(block_volume)
    }

    /// The pool's view of the volume: epochs, log, checkpoints.
    #[must_use]
    pub fn volume(&self) -> &Arc<Volume<M>> {
        &self.volume
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

    /// Returns when nobody reads or writes the volume any more. To be called after
    /// [`Volume::mark_gone`], so that nobody begins to either.
    pub fn drain(&self) {
        drop(self.locks.write_all());
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire) || self.volume.read_only_reason().is_some()
    }

    pub(crate) fn medium(&self) -> &M {
        self.volume.medium()
    }

    #[inline]
    pub(crate) fn has_checksums(&self) -> bool {
        self.checksums
    }

    pub(crate) fn map_kind(&self) -> MapKind {
        self.map
    }

    pub(crate) fn delta(&self) -> &DeltaState {
        &self.delta
    }

    pub(crate) fn threshold(&self) -> &Threshold {
        &self.threshold
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    pub(crate) fn set_size_bytes(&self, size_bytes: u64) {
        self.size_bytes.store(size_bytes, Ordering::Release);
    }

    pub(crate) fn size_blocks(&self) -> u64 {
        self.size_bytes().div_ceil(BLOCK_U64)
    }

    pub(crate) fn lock_structure(&self) -> MutexGuard<'_, ()> {
        self.structure.lock()
    }

    /// Checks that a request lies in the device and that the device is there.
    pub(crate) fn check_range(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        if self.volume.is_gone() {
            return Err(DeviceError::Gone);
        }
        let size_bytes = self.size_bytes();
        match offset.checked_add(len) {
            Some(end) if end <= size_bytes => Ok(()),
            _ => Err(DeviceError::OutOfRange { offset, len, size_bytes }),
        }
    }

    /// The error of a request that met damage in the map, which stops all writing.
    pub(crate) fn corrupt(&self, request: RequestRange, damage: &Corrupt) -> DeviceError {
        self.volume.fail(damage);
        request.media(damage)
    }

    /// Checks that a request may write.
    pub(crate) fn check_write(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        if self.is_read_only() {
            let reason = self.volume.read_only_reason().unwrap_or("it was opened so");
            return Err(DeviceError::ReadOnly { reason: reason.to_owned() });
        }
        self.check_range(offset, len)
    }
}

/// A request, for error messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestRange {
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl RequestRange {
    pub(crate) fn media(self, error: &impl ToString) -> DeviceError {
        DeviceError::Media { offset: self.offset, len: self.len, reason: error.to_string() }
    }

    pub(crate) fn write_error(self, error: &WriteError) -> DeviceError {
        match error {
            WriteError::ReadOnly { reason } => DeviceError::ReadOnly { reason: reason.clone() },
            WriteError::Gone => DeviceError::Gone,
            other => self.media(other),
        }
    }

    pub(crate) fn no_space(self) -> DeviceError {
        DeviceError::NoSpace {
            offset: self.offset,
            len: self.len,
            advice: "the pool is full; grow it, trim or delete volumes".into(),
        }
    }
}

//! Hybrid caches: DRAM, and SCM in the pool, before a slower backing device. See [`CacheVolume`].

mod change;
mod create;
mod open;
mod state;
mod status;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use everbyte_device::{BlockDevice, DeviceError, Extent, Fua, Geometry, Hole, WriteRequest};
use everbyte_pool::DeletedVolume;
use everbyte_pool::format::VolumeKind;

pub use crate::error::NotOpen;
pub use change::ChangeOptions;
pub use create::CacheOptions;
pub use everbyte_cache::{
    ActionCount, CacheStats, Change as NewSizes, Identity, Mode, Policy, Settings, SettingsError,
    usable_policies,
};
pub use everbyte_path::Rights;
pub use state::CacheState;
pub use status::CacheStatus;

pub(crate) use open::OpenCache;

use crate::backing::{self, KnownBacking};
use crate::engine::{Device, open_volume};
use crate::error::Error;
use crate::shared::Shared;
use open::Patience;

/// Size of a page of a cache, in bytes.
pub const PAGE_BYTES: u64 = 4096;

/// A cache: a [`BlockDevice`] as large as its backing device. Nothing else may change the backing device.
///
/// A flush makes writes durable in the pool. A write-back thread of the cache writes dirty pages to the
/// backing device later; [`drain`](Self::drain) writes all of them. If the backing device fails, dirty
/// pages stay in the pool, and their write-back is tried again.
///
/// A handle is `Send`, `Sync` and cheap to clone. Dropping the last clone makes durable in the pool
/// the dirty pages of DRAM, and closes the backing device; failures are logged then, and
/// [`close`](Self::close) or [`Pool::close`](crate::Pool::close) reports them. A handle keeps its pool
/// open.
///
/// A cache can have a handle without being open: its backing device is missing, or it is opened in the background by
/// [`Pool::open_cache_in_background`](crate::Pool::open_cache_in_background). Requests fail then.
#[derive(Clone)]
pub struct CacheVolume(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) cache: Arc<OpenCache>,
    pub(crate) shared: Arc<Shared>,
}

impl CacheVolume {
    /// Returns a handle of a closed cache. The cache stays closed until a caller opens it.
    pub(crate) fn find(shared: &Arc<Shared>, name: &str) -> Result<Self, Error> {
        // Until the handle is in the list of caches: a deletion or a close must meet it.
        let _names = shared.lock_names()?;
        let device = open_volume(&shared.engine, name, VolumeKind::CACHE)?;
        device.set_read_only(shared.read_only);
        Ok(Self::new(shared, device))
    }

    /// Requires: the names of the pool are locked.
    fn new(shared: &Arc<Shared>, device: Device) -> Self {
        let cache = OpenCache::new(device, &shared.backing, shared.read_only);
        shared.add_cache(&cache);
        Self(Arc::new(Inner { cache, shared: Arc::clone(shared) }))
    }

    /// Its name in the pool.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.cache.name()
    }

    /// Begins to open the cache on another thread, unless it is open, being opened or being changed.
    pub fn begin_to_open(&self) {
        self.0.cache.begin_to_open();
    }

    /// Waits until the cache is open, as long as its backing device answers.
    ///
    /// # Errors
    /// [`Error::NotOpen`] with the reason.
    pub fn wait_until_open(&self) -> Result<(), Error> {
        Ok(self.0.cache.await_open(self.patience()).map(drop)?)
    }

    fn patience(&self) -> Patience {
        Patience::Stall(self.0.shared.backing.stall_time_max)
    }

    /// Opens the cache, for a caller with the duty to drop it on an error.
    pub(crate) fn opened(self) -> Result<Self, Error> {
        self.begin_to_open();
        match self.0.cache.await_open(self.patience()).map(drop) {
            Ok(()) => Ok(self),
            Err(why) => {
                // The error is the caller's alone if the state gives it away.
                drop(self.0.cache.take_failure());
                Err(why.into_error())
            }
        }
    }

    /// The open cache as a device, once it is open. [`close`](Self::close) does not wait for
    /// requests to this device: the caller waits for its own requests before the cache or its pool
    /// is closed.
    ///
    /// # Errors
    /// The cache is not open at `deadline`, and why.
    pub fn device_by(&self, deadline: Instant) -> Result<Arc<dyn BlockDevice>, NotOpen> {
        self.begin_to_open();
        Ok(self.0.cache.await_open(Patience::Until(deadline))?)
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> CacheState {
        self.0.cache.cache_state()
    }

    /// The cache in figures, whether it is open or not.
    ///
    /// # Errors
    /// [`Error::Cache`] if its volume cannot be read.
    pub fn status(&self) -> Result<CacheStatus, Error> {
        self.0.cache.status().map_err(Error::cache(self.name()))
    }

    /// Returns counts since the cache was opened, and figures of its present contents.
    ///
    /// # Errors
    /// [`DeviceError::Gone`] once it was closed.
    pub fn stats(&self) -> Result<CacheStats, DeviceError> {
        Ok(self.0.cache.begin_op()?.stats())
    }

    /// Writes all dirty pages back, and makes them durable on the backing device. Afterwards the
    /// device has all writes completed before this call. Requests continue during the call.
    ///
    /// # Errors
    /// [`Error::Cache`] if pages stay dirty because the backing device or the medium fails.
    /// Nothing is lost then.
    pub fn drain(&self) -> Result<(), Error> {
        let begun = self.0.cache.begin_op().map_err(Into::into);
        begun.and_then(|cache| cache.drain()).map_err(Error::cache(self.name()))
    }

    /// Gives the cache other sizes, and opens it again. Requests fail in the meantime. With
    /// [`NewSizes::follows_backing`], a cache becomes as large as its backing device.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::NoRoom`]; [`Error::Backing`]; [`Error::Cache`] for a size out
    /// of range, or if a necessary write-back fails. On an error, the cache keeps its old sizes.
    pub fn resize(&self, sizes: NewSizes) -> Result<(), Error> {
        self.changed(|| self.resize_with(sizes, &ChangeOptions::default()))
    }

    /// As [`resize`](Self::resize), with options, and without opening it again.
    ///
    /// # Errors
    /// As [`resize`](Self::resize).
    pub fn resize_with(&self, sizes: NewSizes, options: &ChangeOptions) -> Result<(), Error> {
        self.0.shared.check_writable()?;
        self.0.cache.resize(sizes, options)
    }

    /// Attaches the cache to its backing device, moved to the path or URI `backing`, and opens it
    /// again. Requests fail during the call.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::Backing`]; [`Error::SharedBacking`]; [`Error::SharesPool`];
    /// [`Error::Cache`] if nothing proves the identity of the device. On an error, the cache keeps
    /// its old backing device.
    pub fn attach(&self, backing: impl AsRef<Path>) -> Result<(), Error> {
        self.changed(|| self.attach_with(backing, &ChangeOptions::default()))
    }

    /// As [`attach`](Self::attach), with options, and without opening it again.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn attach_with(
        &self,
        backing: impl AsRef<Path>,
        options: &ChangeOptions,
    ) -> Result<(), Error> {
        let shared = &self.0.shared;
        let _changing = shared.begin_change(self.name())?;
        let text = create::text_of(self.name(), backing.as_ref())?;
        let rights = create::rights(shared, options.rights.as_ref());
        // Called twice: before the opening, and on the opened device.
        let check = |known: &KnownBacking| shared.check_unshared(self.name(), text, known);
        let looked = backing::look_within(text, &rights, create::NEW_BACKING_LOOK_MAX);
        check(&looked.map_err(Error::backing(self.name()))?)?;
        self.0.cache.attach(text, rights, options, check)
    }

    /// Makes a change of the cache while it is not being opened, and opens it again.
    fn changed(&self, change: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        // If the opening fails, the cache can be changed all the same.
        drop(self.0.cache.await_open(self.patience()));
        let changed = change();
        self.begin_to_open();
        // After the opening has begun: the cache serves again also if the change failed.
        changed?;
        self.wait_until_open()
    }

    /// Writes dirty pages back for about a second, and returns how many bytes are still dirty. Opens the cache if need be.
    ///
    /// # Errors
    /// [`Error::NotWrittenBack`] or [`Error::NotOpen`]. Nothing is lost.
    pub fn write_back_part(&self, options: &ChangeOptions) -> Result<u64, Error> {
        self.0.shared.check_writable()?;
        self.0.cache.write_back(options)
    }

    /// As [`drain`](Self::drain), as long as the backing device answers. Opens the cache if need be.
    ///
    /// # Errors
    /// As [`drain`](Self::drain), and [`Error::NotOpen`].
    pub fn drain_with(&self, options: &ChangeOptions) -> Result<(), Error> {
        self.0.shared.check_writable()?;
        self.0.cache.drain(options)
    }

    /// Writes all dirty pages back and deletes the cache. The backing device then has all data, and
    /// can be used without the cache. Requests of other handles fail from the end of the write-back on.
    /// Devices from `device_by` must have no writer. Calls `progress`
    /// with the remaining dirty bytes, about once a second.
    ///
    /// # Errors
    /// As [`drain_with`](Self::drain_with) and [`Pool::delete`](crate::Pool::delete). Nothing is lost.
    pub fn detach(self, mut progress: impl FnMut(u64)) -> Result<(), Error> {
        let options = ChangeOptions::default();
        let (mut left, mut is_stalled) = (u64::MAX, false);
        while left > 0 && !is_stalled {
            let before = std::mem::replace(&mut left, self.write_back_part(&options)?);
            // Without progress the final drain reports the reason.
            is_stalled = left >= before;
            progress(left);
        }
        self.drain_with(&options)?;
        // Drained before with open doors: the closed doors wait for the last pages only.
        let deleted = self.0.cache.delete_clean(&options, || self.delete(false));
        if deleted.is_err() {
            self.begin_to_open();
        }
        deleted.map(drop)
    }

    /// The facts about its backing device, and about the device of an attachment under way.
    #[must_use]
    pub fn backings(&self) -> Vec<KnownBacking> {
        self.0.cache.backings()
    }

    /// Deletes the cache; with `is_forced`, also a damaged one.
    pub(crate) fn delete(&self, is_forced: bool) -> Result<DeletedVolume, Error> {
        let deleted = self.0.shared.delete(self.0.cache.volume(), is_forced);
        // Otherwise the deletion was rejected, and the cache continues.
        if self.0.cache.volume().is_gone() {
            self.0.cache.abandon();
            self.0.shared.forget_cache(&self.0.cache);
        }
        deleted
    }

    /// Closes the cache for all clones of the handle: waits for their requests, makes the dirty
    /// pages of DRAM durable in the pool, and closes the backing device without writing to it.
    /// Later requests fail with [`DeviceError::Gone`].
    ///
    /// # Errors
    /// [`Error::Lost`] if unflushed writes may be lost, for example after a silence of the backing
    /// device for [`PoolBuilder::close_timeout`](crate::PoolBuilder::close_timeout). If requests
    /// still wait for the device then, the cache is still open.
    pub fn close(self) -> Result<(), Error> {
        self.0.shared.close_cache(&self.0.cache)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The end of the pool has reported the losses. Another attempt would wait for a silent backing
        // device once more.
        if self.shared.is_closed() {
            return;
        }
        if let Err(error) = self.shared.close_cache(&self.cache) {
            let volume = self.cache.name();
            tracing::error!(volume, %error, "unflushed writes may be lost");
        }
    }
}

impl BlockDevice for CacheVolume {
    fn geometry(&self) -> Geometry {
        match self.0.cache.begin_op() {
            Ok(cache) => cache.geometry(),
            Err(_) => Geometry {
                size_bytes: self.0.cache.size_bytes(),
                minimum_bytes: 1,
                preferred_bytes: 4096,
                read_only: true,
            },
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.0.cache.begin_op()?.read(offset, out)
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        self.0.cache.begin_op()?.write(offset, data, fua)
    }

    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> Vec<Result<(), DeviceError>> {
        match self.0.cache.begin_op() {
            Ok(cache) => cache.write_batch(requests),
            Err(gone) => requests.iter().map(|_| Err(gone.clone())).collect(),
        }
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.0.cache.begin_op()?.flush()
    }

    fn discard(&self, offset: u64, len: u64, fua: Fua) -> Result<(), DeviceError> {
        self.0.cache.begin_op()?.discard(offset, len, fua)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        hole: Hole,
        fast: bool,
        fua: Fua,
    ) -> Result<(), DeviceError> {
        self.0.cache.begin_op()?.write_zeroes(offset, len, hole, fast, fua)
    }

    fn status(
        &self,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> Result<Vec<Extent>, DeviceError> {
        self.0.cache.begin_op()?.status(offset, len, extents_max)
    }

    fn prefetch(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.0.cache.begin_op()?.prefetch(offset, len)
    }
}

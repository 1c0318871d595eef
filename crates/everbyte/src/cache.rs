//! Hybrid caches: DRAM, and SCM in the pool, before a slower backing device. See [`CacheVolume`].

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::backing::{
    self, Backing, BackingError, IoWatchdog, KnownBacking, Outcome, TimedTask, Watched,
};
use everbyte_cache::{Cache, Identity, Settings, inspect, volume_bytes};
use everbyte_device::{BlockDevice, DeviceError, Extent, Fua, Geometry, Hole, WriteRequest};
use everbyte_pool::format::VolumeKind;

pub use everbyte_cache::{ActionCount, CacheStats, Mode, Policy};

use crate::block::{BlockOptions, Volume, open_volume};
use crate::error::{CacheError, Error};
use crate::open_cache::OpenCache;
use crate::shared::{BackingUse, Shared};

/// Size of a page of a cache, in bytes.
pub const PAGE_BYTES: u64 = 4096;

/// Settings of a new cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheOptions {
    /// Bytes of DRAM for pages, at least 4096; `None` for a third of the cache's SCM.
    pub dram_bytes: Option<u64>,
    /// Write mode: when the backing device gets what is written.
    pub mode: Mode,
    /// Replacement policy: one for two tiers that keeps a page in one of them.
    pub policy: Policy,
    /// Writes of at most this many bytes, from 0 to 4096, count as small: best made in SCM.
    pub small_write_bytes: u16,
    /// Settings of the volume that holds the cache's pages.
    pub volume: BlockOptions,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self {
            dram_bytes: None,
            mode: Mode::default(),
            policy: Policy::Everbyte,
            small_write_bytes: 512,
            volume: BlockOptions::default(),
        }
    }
}

/// An open cache: a [`BlockDevice`] as large as its backing device, which is to be used through the
/// cache alone.
///
/// A flush makes writes durable in the pool. A write-back thread of the cache writes dirty pages to the
/// backing device later; [`drain`](Self::drain) writes all of them. If the backing device fails, dirty
/// pages stay in the pool, and their write-back is tried again.
///
/// A handle is `Send`, `Sync` and cheap to clone. Dropping the last clone makes durable in the pool
/// the dirty pages of DRAM, and closes the backing device; failures are logged then, and
/// [`close`](Self::close) or [`Pool::close`](crate::Pool::close) tells of it. A handle keeps its pool
/// open.
#[derive(Clone)]
pub struct CacheVolume(Arc<Inner>);

struct Inner {
    cache: Arc<OpenCache>,
    shared: Arc<Shared>,
}

impl CacheVolume {
    pub(crate) fn create(
        shared: &Arc<Shared>,
        name: &str,
        backing: &Path,
        scm_bytes: u64,
        options: &CacheOptions,
    ) -> Result<Self, Error> {
        let _backings = shared.backings.lock();
        shared.check_writable()?;
        let found = open_backing(shared, name, backing)?;
        check_unshared(shared, &found.known())?;
        let settings = settings(&found, scm_bytes, options);
        settings.check().map_err(|error| Error::cache(name)(error.into()))?;
        let (needed_bytes, free_bytes) =
            (settings.volume_page_bytes_max(), shared.engine.info().free_bytes);
        if needed_bytes > free_bytes {
            return Err(Error::NoRoom { volume: name.to_owned(), needed_bytes, free_bytes });
        }
        let size_bytes = volume_bytes(settings.backing_bytes);
        let engine = &shared.engine;
        let made = Volume::create_as(engine, name, VolumeKind::CACHE, size_bytes, &options.volume);
        let volume = Arc::new(made.map_err(Error::volume(name))?);
        if let Err(error) = Cache::format(&*volume, &settings) {
            drop(volume);
            if let Err(error) = engine.delete_volume(name) {
                tracing::warn!(volume = name, %error, "a volume is left over that is no cache");
            }
            return Err(Error::cache(name)(error));
        }
        Self::start(shared, name, volume, found)
    }

    pub(crate) fn open(shared: &Arc<Shared>, name: &str) -> Result<Self, Error> {
        let _backings = shared.backings.lock();
        shared.check_writable()?;
        let volume = Arc::new(open_volume(&shared.engine, name, VolumeKind::CACHE)?);
        let recorded = identity(&volume).map_err(Error::cache(name))?;
        let found = open_backing(shared, name, Path::new(&recorded.name))?;
        Self::start(shared, name, volume, found)
    }

    fn start(
        shared: &Arc<Shared>,
        name: &str,
        volume: Arc<Volume>,
        found: Backing,
    ) -> Result<Self, Error> {
        let (watch, known) = (Arc::default(), found.known());
        let cache = open_cache(shared, name, volume, found, &watch)?;
        let cache = OpenCache::start(name, (cache, known), watch, shared.backing.silence_max);
        let cache = Arc::new(cache.map_err(|source| Error::Thread { source })?);
        shared.add_cache(&cache);
        Ok(Self(Arc::new(Inner { cache, shared: Arc::clone(shared) })))
    }

    /// Its name in the pool.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.cache.name
    }

    /// Returns counts since the cache was opened, and figures of what it holds now.
    ///
    /// # Errors
    /// [`DeviceError::Gone`] once it was closed.
    pub fn stats(&self) -> Result<CacheStats, DeviceError> {
        Ok(self.0.cache.begin_op()?.stats())
    }

    /// Writes all dirty pages back, and makes them durable on the backing device: it then has
    /// everything that was written before this was called. Requests go on meanwhile.
    ///
    /// # Errors
    /// [`Error::Cache`] if pages stay dirty because the backing device or the medium fails.
    /// Nothing is lost then.
    pub fn drain(&self) -> Result<(), Error> {
        let failed = Error::cache(self.name());
        match self.0.cache.begin_op() {
            Ok(cache) => cache.drain().map_err(failed),
            Err(gone) => Err(failed(CacheError::Scm(gone))),
        }
    }

    /// Closes the cache for all clones of the handle: waits for their requests, makes durable in the
    /// pool the dirty pages of DRAM, and closes the backing device, which is not written. Later requests
    /// fail with [`DeviceError::Gone`].
    ///
    /// # Errors
    /// [`Error::Lost`] if something that was written and not flushed may be lost, as when the backing
    /// device has been silent for [`PoolBuilder::backing_timeout`](crate::PoolBuilder::backing_timeout).
    /// If requests wait for it then, the cache is still open.
    pub fn close(self) -> Result<(), Error> {
        let closed = self.0.shared.close_cache(&self.0.cache);
        closed.map_err(|source| Error::Lost { volume: self.name().to_owned(), source })
    }
}

/// Checks that a cache that is not open can be deleted without losing what was written to it.
pub(crate) fn check_drained(volume: &Volume, name: &str) -> Result<(), Error> {
    let found = inspect(volume).map_err(|error| Error::cache(name)(error.into()))?;
    match found.dirty_pages * PAGE_BYTES {
        0 => Ok(()),
        dirty_bytes => Err(Error::Dirty { volume: name.to_owned(), dirty_bytes }),
    }
}

fn identity(volume: &Volume) -> Result<Identity, CacheError> {
    Ok(inspect(volume)?.settings.backing)
}

fn open_backing(shared: &Shared, name: &str, path: &Path) -> Result<Backing, Error> {
    let BackingUse { options, silence_max, .. } = &shared.backing;
    let opened = match path.to_str() {
        Some(text) => backing::open_within(text, options, *silence_max),
        None => Err(BackingError::Name { text: path.display().to_string() }),
    };
    opened.map_err(|error| refused(name, path.display().to_string(), error))
}

/// Opens the cache in `volume`, for which its backing device is read. If that is silent, the volume
/// is in use until it answers.
fn open_cache(
    shared: &Shared,
    name: &str,
    volume: Arc<Volume>,
    found: Backing,
    watch: &Arc<IoWatchdog>,
) -> Result<Cache, Error> {
    let Backing { device, identity, .. } = found;
    let text = identity.name.clone();
    let device = Arc::new(Watched { device, watch: Arc::clone(watch) });
    let work =
        TimedTask::begin("cache-open", watch, move || Cache::open(volume, device, &identity));
    match work.wait(shared.backing.silence_max) {
        Outcome::Done(opened) => opened.map_err(Error::cache(name)),
        Outcome::Silent(silence) => {
            let silent = BackingError::Silent { text: text.clone(), silence };
            Err(refused(name, text, silent))
        }
        Outcome::Failed(what) => Err(Error::Thread { source: std::io::Error::other(what) }),
    }
}

fn refused(volume: &str, backing: String, error: BackingError) -> Error {
    Error::Backing { volume: volume.to_owned(), backing, source: error.into() }
}

/// Checks that no cache of the pool has this backing device.
fn check_unshared(shared: &Shared, found: &KnownBacking) -> Result<(), Error> {
    let open = shared.caches();
    for volume in shared.engine.volumes() {
        let other = volume.name();
        if volume.kind() != VolumeKind::CACHE {
            continue;
        }
        let recorded = match open.iter().find(|open| open.name == other) {
            Some(open) => Ok(open.backing.clone()),
            None => {
                let volume = open_volume(&shared.engine, other, VolumeKind::CACHE)?;
                identity(&volume).map(|identity| look_at(shared, identity))
            }
        };
        // One that cannot be read cannot be opened either.
        if recorded.is_ok_and(|recorded| backing::share_bytes(&recorded, found)) {
            let backing = found.identity.name.clone();
            return Err(Error::SharedBacking { backing, other: other.to_owned() });
        }
    }
    Ok(())
}

/// The facts about a recorded backing device: its identity, and the device under its name now.
fn look_at(shared: &Shared, identity: Identity) -> KnownBacking {
    let BackingUse { options, silence_max, .. } = &shared.backing;
    let found = backing::look_within(&identity.name, &options.rights, *silence_max);
    KnownBacking::recorded(identity, found.ok())
}

fn settings(found: &Backing, scm_bytes: u64, options: &CacheOptions) -> Settings {
    let third = (scm_bytes / 3 / PAGE_BYTES * PAGE_BYTES).max(PAGE_BYTES);
    Settings {
        backing: found.identity.clone(),
        backing_bytes: found.device.geometry().size_bytes,
        dram_bytes: options.dram_bytes.unwrap_or(third),
        scm_bytes,
        mode: options.mode,
        policy: options.policy,
        small_write_bytes: options.small_write_bytes,
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Err(error) = self.shared.close_cache(&self.cache) {
            let volume = &self.cache.name;
            tracing::error!(volume, %error, "what was written and not flushed may be lost");
        }
    }
}

impl fmt::Debug for CacheVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheVolume").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl BlockDevice for CacheVolume {
    fn geometry(&self) -> Geometry {
        match self.0.cache.begin_op() {
            Ok(cache) => cache.geometry(),
            Err(_) => Geometry {
                size_bytes: self.0.cache.size_bytes,
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

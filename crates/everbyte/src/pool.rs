//! Pools: making them, opening them, and their volumes. See [`Pool`].

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use everbyte_media::{MediaOptions, Technology};
use everbyte_pool::file::{
    CreateOptions, FileError, Inspected, Sharing, create, delete, inspect, open_locked,
};
use everbyte_pool::format::VolumeKind;

use everbyte_path::{Kind, Place, look};
use everbyte_pool::OpenOptions;
pub use everbyte_pool::{PoolInfo, RecoverySummary, VolumeInfo};

use crate::block::{BlockOptions, BlockVolume, open_volume};
use crate::cache::{CacheOptions, CacheVolume, check_drained};
use crate::error::Error;
use crate::files::{FileSystem, FsOptions, open_engine};
use crate::media::Description;
use crate::shared::{BackingUse, Shared};

/// Default time between checkpoints: a crash takes back unflushed writes of at most this time.
pub const CHECKPOINT_INTERVAL_DEFAULT: Duration = Duration::from_secs(5);

/// Default for the time that a backing device may be silent while its cache is made, opened or closed:
/// longer than a cache tries to reach a lost NBD server.
const BACKING_TIMEOUT_DEFAULT: Duration = Duration::from_secs(40);

/// Options for making or opening a pool. Made by [`Pool::builder`]; everything has a default.
#[derive(Clone, Debug)]
#[must_use]
pub struct PoolBuilder {
    creation: CreateOptions,
    media: MediaOptions,
    read_only: bool,
    checkpoint_interval: Duration,
    direct_backing: bool,
    backing_timeout: Duration,
    trust_pool: bool,
}

impl Default for PoolBuilder {
    fn default() -> Self {
        Self {
            creation: CreateOptions::default(),
            media: MediaOptions::new(),
            read_only: false,
            checkpoint_interval: CHECKPOINT_INTERVAL_DEFAULT,
            direct_backing: false,
            backing_timeout: BACKING_TIMEOUT_DEFAULT,
            trust_pool: false,
        }
    }
}

impl PoolBuilder {
    /// Bytes of a new pool, a multiple of 4096. A file needs a size; a device is taken as a whole
    /// and must have this size if one is given.
    pub fn size(mut self, bytes: u64) -> Self {
        self.creation.len_bytes = Some(bytes);
        self
    }

    /// Volumes that a new pool can have, at least 1; each takes 4096 bytes at once. Default: 64.
    pub fn volumes_max(mut self, volumes: u64) -> Self {
        self.creation.volumes_max = volumes;
        self
    }

    /// Lets a new pool replace whatever is there. Default: no.
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.creation.force = overwrite;
        self
    }

    /// Opens a private copy: nothing of the pool is changed, recovery included, and its block volumes
    /// refuse writes. Other processes may open it read-only as well, and none can change it meanwhile.
    /// Default: no.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Sets the time between checkpoints in the background, which make every volume that changed
    /// durable. It bounds the unflushed writes that a crash takes back. Less than 1 ms is taken for 1 ms.
    /// Default: 5 s.
    pub fn checkpoint_interval(mut self, interval: Duration) -> Self {
        self.checkpoint_interval = interval;
        self
    }

    /// Adds the costs of a memory technology to every line read, flushed and streamed, to measure what
    /// a program would be like on it. Default: none.
    pub fn emulate(mut self, technology: Technology) -> Self {
        self.media = self.media.emulate(Some(technology));
        self
    }

    /// Maps every page when the pool is opened, which takes about a second for every few GiB, and not
    /// when the page is first touched. Default: no.
    pub fn populate(mut self, populate: bool) -> Self {
        self.media = self.media.populate(populate);
        self
    }

    /// Address space to reserve, in bytes, which bounds what the pool can grow to while it is open.
    /// Default: 1 TiB, or 16 times the size if that is more.
    pub fn reserve(mut self, bytes: u64) -> Self {
        self.media = self.media.reserve_bytes(bytes);
        self
    }

    /// Makes requests to backing devices of caches bypass the system's page cache (`O_DIRECT`), where
    /// the file system supports that. Default: no.
    pub fn direct_backing(mut self, direct: bool) -> Self {
        self.direct_backing = direct;
        self
    }

    /// Sets the longest time that a backing device may be silent while its cache is made, opened or
    /// closed, before that fails. A cache that cannot be opened in time is in use until the backing
    /// device answers; unflushed writes to one that cannot be closed in time may be lost. Default: 40 s.
    pub fn backing_timeout(mut self, timeout: Duration) -> Self {
        self.backing_timeout = timeout;
        self
    }

    /// Opens backing devices with all rights of the process, independent of other users with write access to the pool.
    /// Default: no. With one other such user, a process of root opens backing devices with the rights of the user.
    /// Another process, and any process with several such users, opens none.
    pub fn trust_pool(mut self, trust: bool) -> Self {
        self.trust_pool = trust;
        self
    }

    /// Makes an empty pool at `path`, in a new file that is allocated as a whole or on a device, and
    /// opens it.
    ///
    /// # Errors
    /// [`Error::Exists`], unless told to overwrite; [`Error::Invalid`] or [`Error::Pool`] for a size
    /// that cannot be; [`Error::Medium`] if there is no room, or not the address space that is to be
    /// reserved; [`Error::InUse`]; [`Error::Io`]; [`Error::Thread`]. A file that was made is removed again,
    /// unless somebody has opened it meanwhile.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<Pool, Error> {
        let path = path.as_ref();
        if self.read_only {
            return Err(Error::ReadOnly { path: path.to_owned() });
        }
        let is_device = look(path).is_ok_and(|found| found.kind() != Kind::File);
        if self.creation.len_bytes.is_none() && !is_device {
            let what = format!("a pool in a file needs a size: {}", path.display());
            return Err(Error::Invalid { what });
        }
        let is_new =
            Place::of(path).and_then(|place| place.find()).is_ok_and(|found| found.is_none());
        create(path, &self.creation)?;
        self.open(path).inspect_err(|_| {
            if is_new {
                remove_unopened(path);
            }
        })
    }

    /// Opens the pool at `path`, recovering it if it was not closed cleanly.
    ///
    /// This library knows no swap volumes. It opens a pool that has or had one only if that was closed cleanly, and
    /// then only to read: what would change something fails, and [`PoolInfo::read_only`] says why.
    ///
    /// # Errors
    /// [`Error::NoPool`], [`Error::NotAPool`], [`Error::InUse`]; [`Error::Pool`] if it is damaged;
    /// [`Error::Medium`], [`Error::Io`], [`Error::Thread`] if the system refuses.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Pool, Error> {
        let path = path.as_ref();
        let kinds = everbyte_block::kinds().and(everbyte_fs::kinds());
        let media = self.media.clone();
        let (engine, medium) = if self.read_only {
            let Inspected { pool, medium } = inspect(path, Sharing::Shared, media, kinds)?;
            (Arc::new(pool), medium)
        } else {
            let pool = open_locked(path, &media, kinds, &OpenOptions::default())?;
            let medium = pool.medium().describe();
            (Arc::new(pool), medium)
        };
        let timer = if self.read_only {
            None
        } else {
            let started = engine.start_timer(self.checkpoint_interval);
            Some(started.map_err(|source| Error::Thread { source })?)
        };
        let stack = engine.medium().stack().map_err(|source| {
            let path = path.to_owned();
            Error::Io { action: "inspect", path, source }
        })?;
        let rights = match &stack {
            Some(stack) if !self.trust_pool => crate::backing::rights_for(&stack.writers()),
            _ => everbyte_path::Rights::Own,
        };
        let options = crate::backing::Options {
            direct: self.direct_backing,
            rights,
            ..crate::backing::Options::default()
        };
        let stack = stack.map(Arc::new);
        let backing = BackingUse { options, silence_max: self.backing_timeout, stack };
        let shared = Shared::new(engine, path.to_owned(), medium, self.read_only, backing);
        if let Some(timer) = timer {
            shared.set_timer(timer);
        }
        Ok(Pool(Arc::new(shared)))
    }
}

/// Removes the file of a pool that was made and could not be opened, unless somebody else has it open, or has
/// made volumes in it.
fn remove_unopened(path: &Path) {
    let kinds = everbyte_block::kinds().and(everbyte_fs::kinds());
    let removed = delete(path, kinds, |pool| match pool.info().volumes {
        0 => Ok(()),
        _ => Err(FileError::Exists { path: path.to_owned() }),
    });
    if let Err(error) = removed {
        let path = path.display();
        tracing::warn!(%path, %error, "a pool that could not be opened is left over");
    }
}

/// An open pool: a file or device of byte-addressable memory, and the volumes in it.
///
/// A handle is `Send`, `Sync` and cheap to clone. One process has a pool open at a time, and once.
///
/// While a pool is open, a thread makes every volume durable every few seconds
/// ([`PoolBuilder::checkpoint_interval`]) and whenever a log fills. The pool is closed when the last
/// handle of it and of its volumes is dropped: everything is made durable, and the pool is marked
/// clean, so that its next opening has nothing to recover. Failures are logged then; to get them,
/// call [`Pool::close`]. A process that ends without either leaves the pool as a crash does.
#[derive(Clone)]
pub struct Pool(Arc<Shared>);

impl Pool {
    /// Makes an empty pool of `size_bytes`, a multiple of 4096, in a new file at `path`, and opens it.
    /// In `/dev/shm` it lives in DRAM and survives the process; on a DAX file system or a disk it
    /// survives the loss of power.
    ///
    /// # Errors
    /// As [`PoolBuilder::create`].
    pub fn create(path: impl AsRef<Path>, size_bytes: u64) -> Result<Self, Error> {
        Self::builder().size(size_bytes).create(path)
    }

    /// Opens the pool at `path`, recovering it if it was not closed cleanly.
    ///
    /// # Errors
    /// As [`PoolBuilder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::builder().open(path)
    }

    /// The way to make or open a pool that is not as by default.
    pub fn builder() -> PoolBuilder {
        PoolBuilder::default()
    }

    /// Makes a block volume of `size_bytes`, a positive multiple of 512, and opens it. It takes space
    /// as it is written, besides its log, which is there from the start: by default 1/32 of its size,
    /// from 2.5 to 128 MiB. It may be larger than the pool.
    ///
    /// # Errors
    /// [`Error::VolumeExists`], [`Error::ReadOnly`]; [`Error::Volume`] for a name or size that cannot
    /// be, or if the pool is too full.
    pub fn create_block(&self, name: &str, size_bytes: u64) -> Result<BlockVolume, Error> {
        self.create_block_with(name, size_bytes, &BlockOptions::default())
    }

    /// As [`Pool::create_block`], with options.
    ///
    /// # Errors
    /// As [`Pool::create_block`].
    pub fn create_block_with(
        &self,
        name: &str,
        size_bytes: u64,
        options: &BlockOptions,
    ) -> Result<BlockVolume, Error> {
        BlockVolume::create(&self.0, name, size_bytes, options)
    }

    /// Opens a block volume.
    ///
    /// # Errors
    /// [`Error::NoSuchVolume`]; [`Error::VolumeInUse`] while there is a handle of it, which can be
    /// cloned; [`Error::Volume`] if it is of another kind or damaged.
    pub fn block(&self, name: &str) -> Result<BlockVolume, Error> {
        BlockVolume::open(&self.0, name)
    }

    /// Makes a file system of `size_bytes`, a positive multiple of 512, and opens it. It takes space as it
    /// is written, besides its log, and never more than its size. It can have an inode for each 16 KiB.
    ///
    /// # Errors
    /// As [`Pool::create_block`].
    pub fn create_fs(&self, name: &str, size_bytes: u64) -> Result<FileSystem, Error> {
        self.create_fs_with(name, size_bytes, &FsOptions::default())
    }

    /// As [`Pool::create_fs`], with options.
    ///
    /// # Errors
    /// As [`Pool::create_block`].
    pub fn create_fs_with(
        &self,
        name: &str,
        size_bytes: u64,
        options: &FsOptions,
    ) -> Result<FileSystem, Error> {
        FileSystem::create(&self.0, name, size_bytes, options)
    }

    /// Opens a file system.
    ///
    /// # Errors
    /// As [`Pool::block`].
    pub fn fs(&self, name: &str) -> Result<FileSystem, Error> {
        FileSystem::open(&self.0, name)
    }

    /// Makes a cache with `scm_bytes` of SCM in the pool, at least 4096, before the file or block
    /// device at `backing`, and opens it. With the feature `nbd` that may also be a URI:
    /// `nbd://HOST:PORT/EXPORT`, `nbd+unix:///EXPORT?socket=PATH`. A cache is as large as its backing
    /// device. It may come to take `scm_bytes`, as much again as its DRAM, and a sixteenth of both.
    ///
    /// # Errors
    /// As [`Pool::create_block`]; [`Error::Backing`] if the backing device cannot be used;
    /// [`Error::SharedBacking`], [`Error::NoRoom`]; [`Error::Cache`] for a size that cannot be.
    pub fn create_cache(
        &self,
        name: &str,
        backing: impl AsRef<Path>,
        scm_bytes: u64,
    ) -> Result<CacheVolume, Error> {
        self.create_cache_with(name, backing, scm_bytes, &CacheOptions::default())
    }

    /// As [`Pool::create_cache`], with options.
    ///
    /// # Errors
    /// As [`Pool::create_cache`].
    pub fn create_cache_with(
        &self,
        name: &str,
        backing: impl AsRef<Path>,
        scm_bytes: u64,
        options: &CacheOptions,
    ) -> Result<CacheVolume, Error> {
        CacheVolume::create(&self.0, name, backing.as_ref(), scm_bytes, options)
    }

    /// Opens a cache and the backing device that it was made for.
    ///
    /// # Errors
    /// As [`Pool::block`]; [`Error::ReadOnly`]; [`Error::Backing`]; [`Error::OtherBacking`] if what is
    /// at the recorded path is not that device, or has another size; [`Error::Cache`] if the cache is
    /// damaged.
    pub fn cache(&self, name: &str) -> Result<CacheVolume, Error> {
        CacheVolume::open(&self.0, name)
    }

    /// Every volume of the pool in figures, by name. Walks their maps, so it takes a while for large
    /// ones.
    #[must_use]
    pub fn volumes(&self) -> Vec<VolumeInfo> {
        let engine = &self.0.engine;
        engine.volumes().iter().map(|volume| engine.volume_info(volume)).collect()
    }

    /// The pool in figures.
    #[must_use]
    pub fn info(&self) -> PoolInfo {
        self.0.engine.info()
    }

    /// The medium: its kind, how it is flushed, and its persistence domain.
    #[must_use]
    pub fn medium(&self) -> &Description {
        &self.0.medium
    }

    /// Summary of the recovery that opening did.
    #[must_use]
    pub fn recovery(&self) -> &RecoverySummary {
        self.0.engine.recovery()
    }

    /// Deletes a volume that is not open, and all that is in it.
    ///
    /// # Errors
    /// [`Error::NoSuchVolume`], [`Error::VolumeInUse`], [`Error::ReadOnly`]; [`Error::Dirty`] for a
    /// cache that was not [drained](CacheVolume::drain); [`Error::Volume`] and [`Error::Cache`] if it
    /// is damaged.
    pub fn delete(&self, name: &str) -> Result<(), Error> {
        let _backings = self.0.backings.lock();
        self.0.check_writable()?;
        let engine = &self.0.engine;
        let kind = engine.volume(name).map_err(Error::volume(name))?.kind();
        // Held until it is gone, so that nobody opens it meanwhile.
        if kind == everbyte_fs::FS {
            let _files = open_engine(engine, name)?;
            return engine.delete_volume(name).map_err(Error::volume(name));
        }
        let volume = open_volume(engine, name, kind)?;
        if kind == VolumeKind::CACHE {
            check_drained(&volume, name)?;
        }
        engine.delete_volume(name).map_err(Error::volume(name))
    }

    /// Closes the pool for all handles: waits for requests under way, makes everything durable and
    /// marks the pool clean. Later requests to its volumes fail with
    /// [`DeviceError::Gone`](crate::device::DeviceError::Gone). The file can be opened again once the
    /// last handle is dropped. Called again on a clone, it says the same again.
    ///
    /// # Errors
    /// [`Error::Lost`] or [`Error::Pool`] if something that was written and not flushed may be lost.
    /// Every other volume is made durable then, and the next opening recovers as after a crash.
    pub fn close(self) -> Result<(), Error> {
        self.0.close()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("path", &self.0.path).finish_non_exhaustive()
    }
}

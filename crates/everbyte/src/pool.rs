//! Pools: making them, opening them, and their volumes. See [`Pool`].

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use everbyte_media::{BLOCK_U64, Mapped, MediaOptions, Medium, Stack, Technology, Writers};
use everbyte_path::{Kind, Place, Rights, look};
use everbyte_pool::file::{
    CreateOptions, FileError, Inspected, Repaired, Sharing, create, delete, inspect, open_locked,
};
pub use everbyte_pool::{
    CheckReport, DeletedVolume, Health, PoolInfo, RecoverySummary, ScrubFinding, ScrubReport,
    VolumeInfo,
};
use everbyte_pool::{OpenOptions, is_range_locked};

use crate::backing::KnownBacking;
use crate::block::{BlockOptions, BlockVolume};
use crate::builder::setters;
use crate::cache::{CacheOptions, CacheVolume};
use crate::engine::{BackingUse, Engine, kinds, writers};
use crate::error::{Error, LostWrites};
use crate::files::{FileSystem, FsOptions};
use crate::media::Description;
use crate::shared::Shared;
use crate::size::show_size;
use crate::swap::{SwapOptions, SwapVolume};
use crate::volume::{SWAP, Volume, VolumeStatus};

/// Default time between checkpoints: a crash takes back unflushed writes of at most this time.
pub const CHECKPOINT_INTERVAL_DEFAULT: Duration = Duration::from_secs(5);

/// Time for which a backing device may be silent besides the time for which a cache tries to reach a lost NBD server.
const STALL_MARGIN: Duration = Duration::from_secs(10);

/// Options for making or opening a pool. Made by [`Pool::builder`]; everything has a default.
#[derive(Clone, Debug)]
#[must_use]
pub struct PoolBuilder {
    creation: CreateOptions,
    media: MediaOptions,
    read_only: bool,
    checkpoint_interval: Duration,
    is_exclusive: bool,
    backing: crate::backing::Options,
    backing_timeout: Option<Duration>,
    close_timeout: Option<Duration>,
    trust_pool: bool,
}

impl Default for PoolBuilder {
    fn default() -> Self {
        Self {
            creation: CreateOptions::default(),
            media: MediaOptions::new(),
            read_only: false,
            checkpoint_interval: CHECKPOINT_INTERVAL_DEFAULT,
            is_exclusive: false,
            backing: crate::backing::Options::default(),
            backing_timeout: None,
            close_timeout: None,
            trust_pool: false,
        }
    }
}

impl PoolBuilder {
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
    /// # Errors
    /// [`Error::NoPool`], [`Error::NotAPool`], [`Error::InUse`]; [`Error::Pool`] if it is damaged;
    /// [`Error::Medium`], [`Error::Io`], [`Error::Thread`] if the system refuses.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Pool, Error> {
        Ok(self.open_file(path.as_ref())?)
    }

    /// As [`open`](Self::open), with the error of the pool's file.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn open_file(&self, path: &Path) -> Result<Pool, FileError> {
        let media = self.media.clone();
        if self.read_only {
            let sharing = if self.is_exclusive { Sharing::Exclusive } else { Sharing::Shared };
            return Ok(self.over(inspect(path, sharing, media, kinds())?, path));
        }
        let pool = open_locked(path, &media, kinds(), &OpenOptions::default())?;
        let medium = pool.medium().describe();
        let engine = Arc::new(pool);
        let timer = engine.start_timer(self.checkpoint_interval).map_err(|source| {
            FileError::Io { action: "start a checkpoint thread for", path: path.to_owned(), source }
        })?;
        let shared = Shared::new(engine, path.to_owned(), medium, false, self.backing_use());
        shared.set_timer(timer);
        Ok(Pool(Arc::new(shared)))
    }

    /// Repairs the pool at `path`, as far as that needs no guess, and opens the result read-only. With `dry_run`, the file
    /// is not changed. Also returns the damage that was repaired, or would be.
    ///
    /// # Errors
    /// As [`open_file`](Self::open_file); nothing is changed if a superblock cannot be read.
    pub fn repair(&self, path: &Path, dry_run: bool) -> Result<(Vec<String>, Pool), FileError> {
        let Repaired { mended, inspected } = everbyte_pool::file::repair(path, dry_run, kinds)?;
        Ok((mended, self.over(inspected, path)))
    }

    /// The pool in a private copy.
    fn over(&self, inspected: Inspected, path: &Path) -> Pool {
        let Inspected { pool, medium } = inspected;
        let engine = Arc::new(pool);
        let shared = Shared::new(engine, path.to_owned(), medium, true, self.backing_use());
        Pool(Arc::new(shared))
    }

    fn backing_use(&self) -> BackingUse {
        let longest = || self.backing.reconnect_timeout.saturating_add(STALL_MARGIN);
        let stall_time_max = self.backing_timeout.unwrap_or_else(longest);
        BackingUse {
            options: self.backing.clone(),
            stall_time_max,
            close_time_max: self.close_timeout.unwrap_or(stall_time_max),
            trust_pool: self.trust_pool,
        }
    }
}

setters! { PoolBuilder:
    /// Bytes of a new pool, a multiple of 4096. A file needs a size; a device is taken as a whole
    /// and must have this size if one is given.
    size(bytes: u64) => creation.len_bytes = Some(bytes);

    /// Volumes that a new pool can have, at least 1; each takes 4096 bytes at once. Default: 64.
    volumes_max(volumes: u64) => creation.volumes_max = volumes;

    /// Lets a new pool replace whatever is there. Default: no.
    overwrite(overwrite: bool) => creation.force = overwrite;

    /// Opens a private copy: nothing of the pool is changed, recovery included, and its block volumes
    /// refuse writes. Other processes may open it read-only as well, and none can change it meanwhile.
    /// Default: no.
    read_only(read_only: bool) => read_only = read_only;

    /// Sets the time between checkpoints in the background, which make every volume that changed
    /// durable. It bounds the unflushed writes that a crash takes back. Less than 1 ms is taken for 1 ms.
    /// Default: 5 s.
    checkpoint_interval(interval: Duration) => checkpoint_interval = interval;

    /// Makes requests to backing devices of caches bypass the system's page cache (`O_DIRECT`), where
    /// the file system supports that. Default: no.
    direct_backing(direct: bool) => backing.direct = direct;

    /// Time for which requests wait for a lost NBD server. Default: 30 s.
    reconnect_timeout(timeout: Duration) => backing.reconnect_timeout = timeout;

    /// Longest time that a backing device may be silent while its cache is made, opened, changed or
    /// closed, before that fails. A cache that cannot be opened in time is in use until the backing
    /// device answers. Default: 10 s more than the time for a lost NBD server.
    backing_timeout(timeout: Duration) => backing_timeout = Some(timeout);

    /// Longest time that a backing device may be silent while its cache is closed. Unflushed writes to a cache that
    /// cannot be closed in time may be lost. Default: as [`backing_timeout`](Self::backing_timeout).
    close_timeout(timeout: Duration) => close_timeout = Some(timeout);

    /// All options of the medium at once.
    media(media: MediaOptions) => media = media;

    /// Keeps other processes from opening the pool while it is open [read-only](Self::read_only). Default: no.
    exclusive(exclusive: bool) => is_exclusive = exclusive;

    /// Opens backing devices with all rights of the process, independent of other users with write access to the pool.
    /// Default: no. With one other such user, a process of root opens backing devices with the rights of the user.
    /// Another process, and any process with several such users, opens none.
    trust_pool(trust: bool) => trust_pool = trust;
}

/// Removes the file of a pool that was made and could not be opened, unless somebody else has it open, or has
/// made volumes in it.
fn remove_unopened(path: &Path) {
    let removed = delete(path, kinds(), |pool| match pool.info().volumes {
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
    pub fn open_block(&self, name: &str) -> Result<BlockVolume, Error> {
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
    /// As [`Pool::open_block`].
    pub fn open_fs(&self, name: &str) -> Result<FileSystem, Error> {
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
        CacheVolume::create(&self.0, name, backing.as_ref(), scm_bytes, options)?.opened()
    }

    /// Makes a cache as [`Pool::create_cache_with`], and does not open it: see [`CacheVolume::begin_to_open`].
    ///
    /// # Errors
    /// As [`Pool::create_cache`].
    pub fn create_closed_cache(
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
    /// As [`Pool::open_block`]; [`Error::ReadOnly`]; [`Error::Backing`]; [`Error::OtherBacking`] if the recorded
    /// path leads to another device, or to a device of another size; [`Error::Cache`] if the cache is
    /// damaged.
    pub fn open_cache(&self, name: &str) -> Result<CacheVolume, Error> {
        self.0.check_writable()?;
        CacheVolume::find(&self.0, name)?.opened()
    }

    /// Begins to open a cache on another thread. [`CacheVolume::state`] and [`CacheVolume::wait_until_open`] report the
    /// result. A cache that cannot be opened can be attached to its backing device, resized or deleted.
    ///
    /// # Errors
    /// As [`Pool::open_block`]; [`Error::ReadOnly`].
    pub fn open_cache_in_background(&self, name: &str) -> Result<CacheVolume, Error> {
        self.0.check_writable()?;
        let cache = CacheVolume::find(&self.0, name)?;
        cache.begin_to_open();
        Ok(cache)
    }

    /// Makes a swap volume of `size_bytes`, a positive multiple of 2 MiB, and opens it. It takes all of its space at once.
    ///
    /// # Errors
    /// As [`Pool::create_block`]; [`Error::Swap`] for a size that cannot be, or if the pool has too few free runs.
    pub fn create_swap(&self, name: &str, size_bytes: u64) -> Result<SwapVolume, Error> {
        self.create_swap_with(name, size_bytes, SwapOptions::default())
    }

    /// As [`Pool::create_swap`], with options.
    ///
    /// # Errors
    /// As [`Pool::create_swap`].
    pub fn create_swap_with(
        &self,
        name: &str,
        size_bytes: u64,
        options: SwapOptions,
    ) -> Result<SwapVolume, Error> {
        SwapVolume::create(&self.0, name, size_bytes, options)
    }

    /// Opens a swap volume.
    ///
    /// # Errors
    /// As [`Pool::open_block`].
    pub fn open_swap(&self, name: &str) -> Result<SwapVolume, Error> {
        SwapVolume::open(&self.0, name)
    }

    /// Opens a volume of any kind. A cache gets a handle and stays closed: see [`CacheVolume::begin_to_open`].
    ///
    /// # Errors
    /// As [`Pool::open_block`].
    pub fn open_volume(&self, name: &str) -> Result<Volume, Error> {
        self.0.check_open()?;
        Volume::open(&self.0, name)
    }

    /// The engine's view of each volume, by name.
    #[doc(hidden)]
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.0.engine
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

    /// The pool's file or device.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Returns true if the pool is a private copy, whose changes are dropped.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.0.read_only
    }

    /// The users with write access to the bytes of the pool now.
    #[must_use]
    pub fn writers(&self) -> Writers {
        writers(&self.0.engine)
    }

    /// The rights with which files and devices are opened now that the pool names.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.0.backing.rights(&self.0.engine)
    }

    /// The status of a volume. A volume is not opened for it, except for a cache; the figures of a swap volume need its
    /// handle: [`Volume::status`].
    ///
    /// # Errors
    /// [`Error::NoSuchVolume`].
    pub fn volume_status(&self, name: &str) -> Result<VolumeStatus, Error> {
        let volume = self.0.engine.volume(name).map_err(Error::volume(name))?;
        Ok(VolumeStatus::find(&self.0, &volume))
    }

    /// As [`Pool::volume_status`], of the engine's volume.
    #[doc(hidden)]
    #[must_use]
    pub fn status_of(&self, volume: &everbyte_pool::Volume<Mapped>) -> VolumeStatus {
        VolumeStatus::find(&self.0, volume)
    }

    /// The first cache whose backing device, or the device that it is being attached to, satisfies `is_it`.
    ///
    /// # Errors
    /// [`Error::VolumeInUse`] for a cache that is being opened in this moment.
    pub fn find_backing(
        &self,
        is_it: impl Fn(&str, &KnownBacking) -> bool,
    ) -> Result<Option<String>, Error> {
        self.0.find_backing(is_it)
    }

    /// Returns true if the pool shares bytes with `stack`.
    #[must_use]
    pub fn shares_bytes_with(&self, stack: &Stack) -> bool {
        self.0.shares_bytes_with(stack)
    }

    /// Renames a volume, which may be open.
    ///
    /// # Errors
    /// [`Error::NoSuchVolume`], [`Error::VolumeExists`], [`Error::ReadOnly`]; [`Error::Volume`] for a name that cannot be.
    pub fn rename(&self, name: &str, new_name: &str) -> Result<(), Error> {
        self.0.rename(name, new_name)
    }

    /// Makes the pool `size_bytes` large, and returns its new size. A pool in a file grows with its file; a device must be
    /// as large already.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::Invalid`] for a size that is not larger; [`Error::Medium`], [`Error::Pool`].
    pub fn grow(&self, size_bytes: u64) -> Result<u64, Error> {
        self.0.check_writable()?;
        let old = self.info().size_bytes;
        if size_bytes <= old {
            let size = show_size(old);
            let what = format!("the pool has {size} ({old} bytes) already: a pool can only grow");
            return Err(Error::Invalid { what });
        }
        let medium = self.0.engine.medium();
        if size_bytes > medium.len() {
            medium.grow(size_bytes)?;
        }
        self.0.engine.extend().map_err(self.failed())
    }

    /// Checks all structures of the pool and of its volumes.
    ///
    /// # Errors
    /// [`Error::Pool`] if the check itself fails: damage is in the report.
    pub fn check(&self) -> Result<CheckReport, Error> {
        self.0.check_open()?;
        self.0.engine.check().map_err(self.failed())
    }

    /// Reads the structures of the pool that no volume owns. [`Volume::scrub`] reads a volume.
    #[must_use]
    pub fn scrub(&self) -> ScrubReport {
        self.0.engine.scrub()
    }

    fn failed(&self) -> impl FnOnce(crate::error::PoolError) -> Error {
        let path = self.0.path.clone();
        move |source| Error::Pool { path, source }
    }

    /// Deletes a volume that is not open, with its contents.
    ///
    /// # Errors
    /// [`Error::NoSuchVolume`], [`Error::VolumeInUse`], [`Error::ReadOnly`]; [`Error::Dirty`] for a
    /// cache that was not [drained](CacheVolume::drain); [`Error::Volume`] and [`Error::DirtyUnknown`] if it
    /// is damaged; [`Error::Swap`] while runs are lent.
    pub fn delete(&self, name: &str) -> Result<(), Error> {
        self.0.check_writable()?;
        // Open until the volume is gone: nobody else opens it in the meantime.
        let volume = Volume::open(&self.0, name)?;
        volume.check_deletable()?;
        volume.delete(false).map(drop)
    }

    /// Deletes a volume that cannot be opened, and reports what was freed and what leaks. A block is freed only if
    /// the map of no other volume names it.
    ///
    /// # Errors
    /// [`Error::NoSuchVolume`], [`Error::ReadOnly`], [`Error::Volume`]; [`Error::Invalid`] for a swap volume while programs
    /// have memory of the pool: the kernel does not say of which volume.
    pub fn delete_damaged(&self, name: &str) -> Result<DeletedVolume, Error> {
        self.0.check_writable()?;
        let volume = self.0.engine.volume(name).map_err(Error::volume(name))?;
        if volume.kind() == SWAP && self.is_lent() {
            let what = format!(
                "programs have memory of the pool, perhaps of volume {name}: end them first"
            );
            return Err(Error::Invalid { what });
        }
        self.0.delete(&volume, true)
    }

    /// Returns true if programs have memory of the pool. Unknown counts as lent.
    fn is_lent(&self) -> bool {
        let data = self.0.engine.data_bounds();
        let bytes = data.start * BLOCK_U64..data.end * BLOCK_U64;
        match self.0.engine.medium().reopen() {
            Ok(Some(file)) => is_range_locked(&file, &bytes).unwrap_or(true),
            Ok(None) => false,
            Err(_) => true,
        }
    }

    /// Reports that unflushed writes of a volume may be lost: [`Pool::close`] does not mark the pool clean, and returns
    /// the loss. For servers that hold writes of their clients themselves.
    pub fn report_loss(&self, lost: LostWrites) {
        self.0.note_loss(lost);
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

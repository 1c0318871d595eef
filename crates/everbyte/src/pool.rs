//! Pools: making them, opening them, and their volumes. See [`Pool`].

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use everbyte_media::{BLOCK_U64, Mapped, MediaOptions, Medium, Stack, Writers};
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

/// Permitted silence of a backing device, in addition to the time a cache tries to reach a lost NBD
/// server.
const STALL_MARGIN: Duration = Duration::from_secs(10);

/// Options for making or opening a pool. Made by [`Pool::builder`]; everything has a default.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct PoolBuilder {
    creation: CreateOptions,
    media: MediaOptions,
    read_only: bool,
    checkpoint_interval: Option<Duration>,
    is_exclusive: bool,
    backing: crate::backing::Options,
    backing_timeout: Option<Duration>,
    close_timeout: Option<Duration>,
    trust_pool: bool,
}

impl PoolBuilder {
    /// Creates an empty pool at `path` and opens it. A new file is allocated as a whole. `path` may
    /// also be a device.
    ///
    /// # Errors
    /// [`Error::Exists`], unless overwriting is permitted; [`Error::Invalid`] or [`Error::Pool`]
    /// for an invalid size; [`Error::Medium`] if the space is used up or the address space cannot
    /// be reserved; [`Error::InUse`]; [`Error::Io`]; [`Error::Thread`]. On an error, a newly
    /// created file is removed, unless another process has opened it.
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
        // Only a newly created file may be removed after a failed opening.
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
            // A private copy needs no checkpoint timer: its changes are dropped.
            let sharing = if self.is_exclusive { Sharing::Exclusive } else { Sharing::Shared };
            return Ok(self.over(inspect(path, sharing, media, kinds())?, path));
        }
        let pool = open_locked(path, &media, kinds(), &OpenOptions::default())?;
        let medium = pool.medium().describe();
        let engine = Arc::new(pool);
        let timer =
            engine.start_timer(self.checkpoint_interval.unwrap_or(CHECKPOINT_INTERVAL_DEFAULT));
        // Before the error of the timer: dropping the shared part closes the pool cleanly.
        let shared = Shared::new(engine, path.to_owned(), medium, false, self.backing_use());
        shared.set_timer(timer.map_err(|source| FileError::Io {
            action: "start a checkpoint thread for",
            path: path.to_owned(),
            source,
        })?);
        Ok(Pool(Arc::new(shared)))
    }

    /// Repairs the pool at `path`, as far as a repair needs no guess, and opens the result
    /// read-only. With `dry_run`, the file is not changed. Also returns the damage: repaired, or
    /// repairable with `dry_run`.
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
        // A silence within the reconnect time is not a failure.
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

    /// Maximum number of volumes of a new pool, at least 1. Each takes 4096 bytes at creation.
    /// Default: 1024 in a pool of 1 GiB or more, 64 in a smaller one.
    volumes_max(volumes: u64) => creation.volumes_max = Some(volumes);

    /// Lets a new pool replace the present contents. Default: no.
    overwrite(overwrite: bool) => creation.force = overwrite;

    /// Opens a private copy: the pool does not change, recovery included, and its block volumes
    /// reject writes. Other processes may also open the pool read-only. No process can change it
    /// while it is open. Default: no.
    read_only(read_only: bool) => read_only = read_only;

    /// Sets the time between background checkpoints. A checkpoint makes every changed volume
    /// durable. The time bounds the unflushed writes a crash can undo. Less than 1 ms counts as 1
    /// ms. Default: 5 s.
    checkpoint_interval(interval: Duration) => checkpoint_interval = Some(interval);

    /// Makes requests to backing devices of caches bypass the system's page cache (`O_DIRECT`) if
    /// the file system supports it. Default: no.
    direct_backing(direct: bool) => backing.direct = direct;

    /// Longest wait of requests for a lost NBD server. Default: 30 s.
    reconnect_timeout(timeout: Duration) => backing.reconnect_timeout = timeout;

    /// Longest silence of a backing device during the creation, opening, change or closing of its
    /// cache. After a longer silence the operation fails. If a cache cannot be opened in time, it
    /// is in use until the backing device answers. Default: 10 s more than the time for a lost NBD
    /// server.
    backing_timeout(timeout: Duration) => backing_timeout = Some(timeout);

    /// Longest silence of a backing device during the closing of its cache. If a cache cannot be
    /// closed in time, its unflushed writes may be lost. Default: as
    /// [`backing_timeout`](Self::backing_timeout).
    close_timeout(timeout: Duration) => close_timeout = Some(timeout);

    /// Options of the medium: address space for growth, mapping of all pages at the opening, costs
    /// of an emulated memory technology. Default: those of [`MediaOptions::new`].
    media(media: MediaOptions) => media = media;

    /// Keeps other processes from opening the pool while it is open [read-only](Self::read_only). Default: no.
    exclusive(exclusive: bool) => is_exclusive = exclusive;

    /// Opens backing devices with all rights of the process, independent of other users with write access to the pool.
    /// Default: no. With one other such user, a process of root opens backing devices with the rights of the user.
    /// Another process, and any process with several such users, opens none.
    trust_pool(trust: bool) => trust_pool = trust;
}

/// Removes the file of a new pool after a failed opening, unless another process has it open or has
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
/// ([`PoolBuilder::checkpoint_interval`]) and at each full log. Dropping the last handle of the
/// pool and of its volumes closes the pool: it makes everything durable and marks the pool clean.
/// The next opening of a clean pool has nothing to recover. A drop logs its failures. To receive
/// them, call [`Pool::close`]. If a process ends without a drop or a close, it leaves the pool as a
/// crash does.
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

    /// Makes or opens a pool with other options than the default.
    pub fn builder() -> PoolBuilder {
        PoolBuilder::default()
    }

    /// Makes a block volume of `size_bytes`, a positive multiple of 512, and opens it. Writes
    /// allocate its space. Its log is allocated at creation: by default 1/32 of its size, from 2.5
    /// to 128 MiB. The volume may be larger than the pool.
    ///
    /// # Errors
    /// [`Error::VolumeExists`], [`Error::ReadOnly`]; [`Error::Volume`] for an invalid name or size,
    /// or if the pool is too full.
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
    /// [`Error::NoSuchVolume`]; [`Error::VolumeInUse`] while it has a handle (clone the handle
    /// instead); [`Error::Volume`] if it is of another kind or damaged.
    pub fn open_block(&self, name: &str) -> Result<BlockVolume, Error> {
        BlockVolume::open(&self.0, name)
    }

    /// Makes a file system of `size_bytes`, a positive multiple of 512, and opens it. In addition
    /// to its log, it takes space as it is written, and never more than its size. It can have an
    /// inode for each 16 KiB.
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
    /// device at `backing`, and opens it. With the feature `nbd`, `backing` may also be a URI:
    /// `nbd://HOST:PORT/EXPORT`, `nbd+unix:///EXPORT?socket=PATH`. A cache is as large as its
    /// backing device. Its volume may grow to the sum of `scm_bytes`, its DRAM size, and a
    /// sixteenth of both.
    ///
    /// # Errors
    /// As [`Pool::create_block`]; [`Error::Backing`] if the backing device cannot be used;
    /// [`Error::SharedBacking`], [`Error::NoRoom`]; [`Error::Cache`] for an invalid size.
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

    /// Opens a cache and its recorded backing device.
    ///
    /// # Errors
    /// As [`Pool::open_block`]; [`Error::ReadOnly`]; [`Error::Backing`]; [`Error::Cache`] if the recorded
    /// path leads to another device, or to a device of another size, or if the cache is damaged.
    pub fn open_cache(&self, name: &str) -> Result<CacheVolume, Error> {
        self.0.check_writable()?;
        CacheVolume::find(&self.0, name)?.opened()
    }

    /// Begins to open a cache on another thread. [`CacheVolume::state`] and
    /// [`CacheVolume::wait_until_open`] report the result. If a cache cannot be opened, it can be
    /// attached to its backing device, resized or deleted.
    ///
    /// # Errors
    /// As [`Pool::open_block`]; [`Error::ReadOnly`].
    pub fn open_cache_in_background(&self, name: &str) -> Result<CacheVolume, Error> {
        self.0.check_writable()?;
        let cache = CacheVolume::find(&self.0, name)?;
        cache.begin_to_open();
        Ok(cache)
    }

    /// Makes a swap volume of `size_bytes`, a positive multiple of 2 MiB, and opens it. Allocates
    /// all of its space at creation.
    ///
    /// # Errors
    /// As [`Pool::create_block`]; [`Error::Swap`] for an invalid size, or if the pool has too few
    /// free runs.
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

    /// Summary of the recovery at the opening.
    #[must_use]
    pub fn recovery(&self) -> &RecoverySummary {
        self.0.engine.recovery()
    }

    /// The pool's file or device.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Returns true if the pool is a private copy. Changes to a private copy are dropped.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.0.read_only
    }

    /// The users with write access to the bytes of the pool now.
    #[must_use]
    pub fn writers(&self) -> Writers {
        writers(&self.0.engine)
    }

    /// The rights to open files and devices named by the pool now.
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

    /// The first cache whose backing device satisfies `is_it`. The device of an attachment under
    /// way also counts.
    ///
    /// # Errors
    /// [`Error::VolumeInUse`] for a cache during the end of its handle.
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

    /// Renames a volume. The volume may be open.
    ///
    /// # Errors
    /// [`Error::NoSuchVolume`], [`Error::VolumeExists`], [`Error::ReadOnly`]; [`Error::Volume`] for
    /// an invalid name.
    pub fn rename(&self, name: &str, new_name: &str) -> Result<(), Error> {
        self.0.rename(name, new_name)
    }

    /// Makes the pool `size_bytes` large, and returns its new size. A pool in a file grows with its file; a device must be
    /// as large already.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::Invalid`] if the size is not larger; [`Error::Medium`],
    /// [`Error::Pool`].
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
            // The file first: after a crash it is longer than the pool, and a next call extends it.
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

    /// Reads the structures of the pool outside all volumes. [`Volume::scrub`] reads a volume.
    #[must_use]
    pub fn scrub(&self) -> ScrubReport {
        self.0.engine.scrub()
    }

    fn failed(&self) -> impl FnOnce(crate::error::PoolError) -> Error {
        let path = self.0.path.clone();
        move |source| Error::Pool { path, source }
    }

    /// Deletes a closed volume with its contents.
    ///
    /// # Errors
    /// [`Error::NoSuchVolume`], [`Error::VolumeInUse`], [`Error::ReadOnly`]; [`Error::Dirty`] for a
    /// cache not [drained](CacheVolume::drain) before; [`Error::Volume`] and
    /// [`Error::DirtyUnknown`] if it is damaged; [`Error::Swap`] while runs are lent.
    pub fn delete(&self, name: &str) -> Result<(), Error> {
        self.0.check_writable()?;
        // The handle stays open until the volume is gone: it excludes other opens.
        let volume = Volume::open(&self.0, name)?;
        // With the only handle: no client writes between the check and the deletion.
        volume.check_deletable()?;
        volume.delete(false).map(drop)
    }

    /// Deletes a volume too damaged to open, and reports the freed blocks and the leaks. A block is
    /// freed only if the map of no other volume names it.
    ///
    /// # Errors
    /// [`Error::NoSuchVolume`], [`Error::ReadOnly`], [`Error::Volume`]; [`Error::Invalid`] for a
    /// swap volume while programs have memory of the pool: the kernel does not report the volume of
    /// the memory.
    pub fn delete_damaged(&self, name: &str) -> Result<DeletedVolume, Error> {
        self.0.check_writable()?;
        let volume = self.0.engine.volume(name).map_err(Error::volume(name))?;
        // The kernel does not report the volume of lent memory.
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
            // Unknown counts as lent: blocks in use by a program must not be freed.
            Err(_) => true,
        }
    }

    /// Reports the possible loss of unflushed writes of a volume: [`Pool::close`] does not mark the
    /// pool clean, and returns the loss. For servers with their own buffers of client writes.
    pub fn report_loss(&self, lost: LostWrites) {
        self.0.note_loss(lost);
    }

    /// Closes the pool for all handles: waits for requests under way, makes everything durable and
    /// marks the pool clean. Later requests to its volumes fail with
    /// [`DeviceError::Gone`](crate::device::DeviceError::Gone). The file can be opened again once the
    /// last handle is dropped. Called again on a clone, it says the same again.
    ///
    /// # Errors
    /// [`Error::Lost`] or [`Error::Pool`] if unflushed writes may be lost. All other volumes are
    /// durable then, and the next opening recovers as after a crash.
    pub fn close(self) -> Result<(), Error> {
        self.0.close()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("path", &self.0.path).finish_non_exhaustive()
    }
}

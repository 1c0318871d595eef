//! Volumes of any kind, and their status. See [`Volume`].

use std::sync::Arc;

use everbyte_media::Mapped;
pub use everbyte_pool::format::VolumeKind;
use everbyte_pool::{DeletedVolume, ScrubReport, VolumeInfo};

use crate::block::BlockVolume;
use crate::cache::{CacheState, CacheStatus, CacheVolume, OpenCache};
pub use crate::engine::{Engine, kinds};
use crate::error::Error;
use crate::files::FileSystem;
use crate::shared::Shared;
use crate::swap::{LenderStatus, SwapVolume};
pub use everbyte_block::{BLOCK_NAME, CACHE_NAME};
pub use everbyte_fs::{FS, FS_NAME};
pub use everbyte_swap_volume::{SWAP, SWAP_NAME};

/// An open volume of any kind.
#[derive(Clone, Debug)]
pub enum Volume {
    /// A disk.
    Block(BlockVolume),
    /// A cache before a backing device. Its handle may be closed: see [`CacheVolume::begin_to_open`].
    Cache(CacheVolume),
    /// A file system.
    Fs(FileSystem),
    /// Volatile memory.
    Swap(SwapVolume),
}

impl Volume {
    pub(crate) fn open(shared: &Arc<Shared>, name: &str) -> Result<Self, Error> {
        let kind = shared.engine.volume(name).map_err(Error::volume(name))?.kind();
        Ok(match kind {
            VolumeKind::BLOCK => Self::Block(BlockVolume::open(shared, name)?),
            VolumeKind::CACHE => Self::Cache(CacheVolume::find(shared, name)?),
            everbyte_fs::FS => Self::Fs(FileSystem::open(shared, name)?),
            everbyte_swap_volume::SWAP => Self::Swap(SwapVolume::open(shared, name)?),
            other => {
                let what = format!("volume {name}: this version does not know volumes of {other}");
                return Err(Error::Invalid { what });
            }
        })
    }

    /// Its name in the pool.
    #[must_use]
    pub fn name(&self) -> &str {
        self.engine_volume().name()
    }

    /// The engine's view of it.
    #[doc(hidden)]
    #[must_use]
    pub fn engine_volume(&self) -> &Arc<everbyte_pool::Volume<Mapped>> {
        match self {
            Self::Block(disk) => disk.0.volume.volume(),
            Self::Cache(cache) => cache.0.cache.volume(),
            Self::Fs(fs) => fs.engine().volume(),
            Self::Swap(swap) => swap.volume(),
        }
    }

    fn shared(&self) -> &Arc<Shared> {
        match self {
            Self::Block(disk) => &disk.0.shared,
            Self::Cache(cache) => &cache.0.shared,
            Self::Fs(fs) => &fs.0.shared,
            Self::Swap(swap) => &swap.0.shared,
        }
    }

    /// The number of the volume in the pool. Later volumes of the same name have other numbers.
    #[must_use]
    pub fn uid(&self) -> u64 {
        self.engine_volume().descriptor().uid
    }

    /// Returns true once the volume was deleted or its pool is closed.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.engine_volume().is_gone()
    }

    /// Size for its users, in bytes.
    ///
    /// # Errors
    /// [`Error::Volume`] if the size cannot be right.
    pub fn size_bytes(&self) -> Result<u64, Error> {
        let damaged = |corrupt: everbyte_pool::Corrupt| Error::volume(self.name())(corrupt.into());
        self.engine_volume().size_bytes().map_err(damaged)
    }

    /// Makes all answered writes durable in the pool. Volatile volumes have nothing to make
    /// durable.
    ///
    /// # Errors
    /// [`Error::Volume`] if the medium fails.
    pub fn flush(&self) -> Result<(), Error> {
        let flushed = self.engine_volume().flush();
        flushed.map_err(|error| Error::volume(self.name())(error.into()))
    }

    /// Makes the volume `size_bytes` large while it is in use. Durable when it returns.
    ///
    /// # Errors
    /// The errors of its kind; [`Error::CacheSize`] for a cache.
    pub fn resize(&self, size_bytes: u64) -> Result<(), Error> {
        match self {
            Self::Block(disk) => disk.resize(size_bytes),
            Self::Cache(cache) => Err(Error::CacheSize { volume: cache.name().to_owned() }),
            Self::Fs(fs) => fs.resize(size_bytes),
            Self::Swap(swap) => swap.resize(size_bytes),
        }
    }

    /// Reads its bytes from `from` on, a good deal of them, and verifies checksums. Also returns the place to go on from,
    /// or `None` at the end. The contents of swap volumes have no meaning here, and are not read.
    ///
    /// # Errors
    /// [`Error::Device`] if the volume is gone.
    pub fn scrub(&self, from: u64) -> Result<(ScrubReport, Option<u64>), Error> {
        Ok(match self {
            Self::Block(disk) => disk.0.volume.scrub(from)?,
            Self::Cache(cache) => cache.0.cache.device()?.scrub(from)?,
            Self::Fs(fs) => fs.engine().scrub(from),
            Self::Swap(_) => (ScrubReport::default(), None),
        })
    }

    /// Checks for hidden loss by a deletion: dirty pages of a cache.
    ///
    /// # Errors
    /// [`Error::Dirty`], [`Error::DirtyUnknown`], [`Error::NotFlushed`].
    pub fn check_deletable(&self) -> Result<(), Error> {
        match self {
            Self::Cache(cache) => cache.0.cache.check_deletable(),
            _ => Ok(()),
        }
    }

    /// Deletes the volume with its contents, while this handle is open. With `is_forced`, also
    /// deletes a damaged volume: the result reports the freed blocks and the leaks.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::Swap`] while runs are lent; [`Error::Volume`] if it is damaged. It has its old state
    /// then.
    pub fn delete(&self, is_forced: bool) -> Result<DeletedVolume, Error> {
        match self {
            Self::Cache(cache) => return cache.delete(is_forced),
            // First: blocks lent to a program must not be freed.
            Self::Swap(swap) => swap.end_lending()?,
            Self::Block(_) | Self::Fs(_) => {}
        }
        let deleted = self.shared().delete(self.engine_volume(), is_forced);
        // A refused deletion keeps the volume, and with it the programs' right to more memory.
        if let Self::Swap(swap) = self
            && !self.is_gone()
        {
            swap.resume_lending();
        }
        deleted
    }

    /// The volume in figures.
    #[must_use]
    pub fn status(&self) -> VolumeStatus {
        let mut status = VolumeStatus::of(&self.shared().engine, self.engine_volume());
        match self {
            Self::Cache(cache) => status.add_cache(&cache.0.cache),
            // If the kernel does not report a state, the field stays empty.
            Self::Swap(swap) => status.swap = swap.status().ok(),
            Self::Block(_) | Self::Fs(_) => {}
        }
        status
    }
}

/// A volume in figures.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct VolumeStatus {
    /// The figures of the pool. For a cache, the size is the size of its backing device.
    pub info: VolumeInfo,
    /// True if this version knows the kind.
    pub is_known_kind: bool,
    /// The known damage, if any.
    pub damage: Option<String>,
    /// The figures of a cache.
    pub cache: Option<CacheStatus>,
    /// The figures of an open swap volume.
    pub swap: Option<LenderStatus>,
}

impl VolumeStatus {
    fn of(engine: &Engine, volume: &everbyte_pool::Volume<Mapped>) -> Self {
        let info = engine.volume_info(volume);
        let known =
            [VolumeKind::BLOCK, VolumeKind::CACHE, everbyte_fs::FS, everbyte_swap_volume::SWAP];
        let is_known_kind = known.contains(&volume.kind());
        let damage = volume.damage().filter(|_| is_known_kind).map(str::to_owned);
        Self { info, is_known_kind, damage, cache: None, swap: None }
    }

    /// The status of a volume whether it has a handle or not. Volumes are not opened for it, except for caches.
    pub(crate) fn find(shared: &Arc<Shared>, volume: &everbyte_pool::Volume<Mapped>) -> Self {
        let (mut status, name) = (Self::of(&shared.engine, volume), volume.name());
        if volume.kind() != VolumeKind::CACHE {
            return status;
        }
        // The figures of a cache are in its volume, which is opened for them.
        let looked = shared.look_at_cache(name, |cache| status.add_cache(cache));
        // A cache in use by a handle that ends has no figures.
        if let Err(Error::Volume { source, .. }) = looked {
            status.damage.get_or_insert(source.to_string());
        }
        status
    }

    fn add_cache(&mut self, cache: &OpenCache) {
        match cache.status() {
            Ok(found) => {
                self.info.size_bytes = found.settings.backing_bytes;
                if found.is_write_protected {
                    let reason = || "the backing device is write-protected".to_owned();
                    self.info.read_only.get_or_insert_with(reason);
                }
                self.cache = Some(found);
            }
            Err(error) => {
                self.damage.get_or_insert(error.to_string());
            }
        }
    }

    /// The state in one or two words.
    #[must_use]
    pub fn state(&self) -> VolumeState {
        match self.cache.as_ref().map(|cache| cache.state) {
            // Damage precedes all else: the other fields may be wrong then.
            _ if self.damage.is_some() => VolumeState::Damaged,
            _ if !self.is_known_kind => VolumeState::UnknownKind,
            Some(state) if ![CacheState::Open, CacheState::Closed].contains(&state) => {
                VolumeState::Cache(state)
            }
            _ if self.info.read_only.is_some() => VolumeState::ReadOnly,
            _ => VolumeState::Ok,
        }
    }
}

/// State of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum VolumeState {
    /// It can be used.
    Ok,
    /// It can be read only.
    ReadOnly,
    /// It is a cache, meant to be open, and not open.
    Cache(CacheState),
    /// Some of it cannot be read.
    Damaged,
    /// This version does not know the kind.
    UnknownKind,
}

impl std::fmt::Display for VolumeState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ok => f.write_str("ok"),
            Self::ReadOnly => f.write_str("read-only"),
            Self::Cache(state) => state.fmt(f),
            Self::Damaged => f.write_str("damaged"),
            Self::UnknownKind => f.write_str("unknown kind"),
        }
    }
}

macro_rules! debug_by_name {
    ($($handle:ident)*) => {
        $(impl std::fmt::Debug for $handle {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                // The fields below have the tables of the whole volume.
                f.debug_struct(stringify!($handle)).field("name", &self.name()).finish_non_exhaustive()
            }
        })*
    };
}

debug_by_name! { BlockVolume CacheVolume FileSystem SwapVolume }

//! The cache: its parts, opening and closing.
//!
//! Two locks, taken in this order: `writer`, held by whoever writes pages back or zeroes ranges of
//! storage, and `state`, which is never held while storage is accessed.

use std::sync::Arc;

use everbyte_device::{AtomicWrites, BlockDevice, DeviceError};
use parking_lot::{Condvar, Mutex};

use crate::layout::{PAGE_U64, Page, volume_bytes};
use crate::memory::Memory;
use crate::policies::AnyPolicy;
use crate::settings::{Identity, Settings, SettingsError};
use crate::state::State;
use crate::stats::CacheStats;

/// Why a cache cannot be made or opened.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The settings cannot be, or the header is damaged.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The volume failed.
    #[error("the volume of the cache failed: {0}")]
    Memory(#[from] DeviceError),
    /// The storage is another one than the cache belongs to.
    #[error(
        "the cache belongs to {recorded}, and this is {found}: its pages would damage other data; \
         give it its own storage again"
    )]
    OtherStorage {
        /// The storage that it belongs to.
        recorded: Box<Identity>,
        /// The one it was given.
        found: Box<Identity>,
    },
    /// The storage has another size than it had.
    #[error(
        "{storage} had {recorded} bytes when the cache was made and has {found} now: bring it back \
         to its old size, or detach the cache and make it anew"
    )]
    OtherSize {
        /// The storage.
        storage: Box<Identity>,
        /// Bytes it had.
        recorded: u64,
        /// Bytes it has.
        found: u64,
    },
    /// The volume is too small or too large.
    #[error("the volume has {found} bytes, and a cache of this storage takes {needed}")]
    VolumeSize {
        /// Bytes it has.
        found: u64,
        /// Bytes it needs.
        needed: u64,
    },
    /// The volume cannot be written, so nothing could leave the cache.
    #[error(
        "the volume of the cache is read-only, and a cache must write what leaves it: see \
         'everbyte pool check' for why, and mend the pool"
    )]
    ReadOnly,
    /// Pages could not be written back.
    #[error("{pages} pages could not be written back: {reason}; nothing is lost, try again")]
    NotDrained {
        /// Pages that remain dirty.
        pages: u64,
        /// The storage's or the volume's words.
        reason: String,
    },
}

/// A cache before a storage, as a block device. See the crate's head.
pub struct Cache {
    pub(crate) storage: Arc<dyn BlockDevice>,
    pub(crate) settings: Settings,
    pub(crate) read_only: bool,
    pub(crate) state: Mutex<State>,
    /// Told when pages are no longer busy.
    pub(crate) freed: Condvar,
    /// Where the hand that writes back stands.
    pub(crate) writer: Mutex<Page>,
    /// Told when there is something to write back.
    pub(crate) work: Condvar,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Cache {
    /// Makes `volume`, which is empty and of [`volume_bytes`], a cache, durably.
    ///
    /// # Errors
    /// The settings cannot be, or the volume fails or is of another size.
    pub fn format(volume: &dyn AtomicWrites, settings: &Settings) -> Result<(), CacheError> {
        settings.check()?;
        check_volume(volume, settings)?;
        let header = settings.encode()?;
        volume.write(0, &header, everbyte_device::Fua::No)?;
        Ok(volume.flush()?)
    }

    /// Opens the cache in `volume` before `storage`, whose identity is `found`. A volume is to be
    /// opened once at a time.
    ///
    /// # Errors
    /// The volume holds no cache or cannot be read; it belongs to another storage.
    pub fn open(
        volume: Arc<dyn AtomicWrites>,
        storage: Arc<dyn BlockDevice>,
        found: &Identity,
    ) -> Result<Self, CacheError> {
        let memory = Memory::new(volume);
        let settings = Settings::decode(&memory.header()?)?;
        if settings.storage != *found {
            let recorded = Box::new(settings.storage);
            let found = Box::new(found.clone());
            return Err(CacheError::OtherStorage { recorded, found });
        }
        let (recorded, size_bytes) = (settings.storage_bytes, storage.geometry().size_bytes);
        if recorded != size_bytes {
            let storage = Box::new(settings.storage);
            return Err(CacheError::OtherSize { storage, recorded, found: size_bytes });
        }
        let needed = volume_bytes(recorded);
        if memory.size_bytes() != needed {
            return Err(CacheError::VolumeSize { found: memory.size_bytes(), needed });
        }
        if memory.is_read_only() {
            return Err(CacheError::ReadOnly);
        }
        let pages = memory.scan(recorded.div_ceil(PAGE_U64))?;
        let read_only = storage.geometry().read_only;
        let mut state = State::new(memory, AnyPolicy::new(&settings)?);
        state.restore(pages);
        Ok(Self {
            storage,
            settings,
            read_only,
            state: Mutex::new(state),
            freed: Condvar::new(),
            writer: Mutex::new(0),
            work: Condvar::new(),
        })
    }

    /// What the cache is set to.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What it did since it was opened, and holds now.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        self.state.lock().stats()
    }

    /// Bytes of the storage that lie in a page: all but perhaps in the last one.
    pub(crate) fn page_len(&self, page: Page) -> usize {
        let start = u64::from(page) * PAGE_U64;
        let len = self.settings.storage_bytes.saturating_sub(start).min(PAGE_U64);
        usize::try_from(len).unwrap_or(0)
    }

    /// The error of a request that storage failed.
    pub(crate) fn storage_failed(&self, offset: u64, len: u64, error: &DeviceError) -> DeviceError {
        self.state.lock().counts.stats.storage_errors += 1;
        tracing::warn!(storage = %self.settings.storage, %error, "the storage failed");
        let reason = format!("{}: {error}", self.settings.storage);
        DeviceError::Media { offset, len, reason }
    }

    /// Makes memory durable as it is.
    pub(crate) fn checkpoint(&self) -> Result<(), DeviceError> {
        let (departed, memory) = {
            let state = self.state.lock();
            (state.departed, state.memory.clone())
        };
        memory.flush()?;
        let mut state = self.state.lock();
        state.departed_durably = state.departed_durably.max(departed);
        Ok(())
    }
}

fn check_volume(volume: &dyn AtomicWrites, settings: &Settings) -> Result<(), CacheError> {
    let (found, needed) = (volume.geometry().size_bytes, volume_bytes(settings.storage_bytes));
    if found != needed {
        return Err(CacheError::VolumeSize { found, needed });
    }
    Ok(())
}

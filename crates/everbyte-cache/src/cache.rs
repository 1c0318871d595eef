//! The cache: its parts, opening and closing.
//!
//! Three locks, taken in this order: `writer`, held by whoever writes pages back or zeroes ranges of
//! storage; `flushing`, held while storage flushes; and `state`, which is never held while storage
//! is accessed. Pages are made busy after `writer` is taken and before `flushing` is.

use std::sync::Arc;

use everbyte_device::{AtomicWrites, BlockDevice, DeviceError, Likeness};
use parking_lot::{Condvar, Mutex};

use crate::error::CacheError;
use crate::layout::{PAGE_U64, Page, volume_bytes};
use crate::memory::{Mark, Memory};
use crate::policies::AnyPolicy;
use crate::proof::{Comparison, PROOF_PAGES};
use crate::settings::{Identity, Settings};
use crate::state::State;
use crate::stats::CacheStats;

/// A backing device that a cache is given.
#[derive(Clone, Copy)]
pub(crate) struct Found<'a> {
    pub(crate) identity: &'a Identity,
    /// How it compares with the recorded one.
    pub(crate) likeness: Likeness,
}

impl Found<'_> {
    /// Dirty pages that are going to be written there although nothing shows that it is the cache's
    /// own device: all or none.
    ///
    /// # Errors
    /// Clean pages show that it is another one.
    fn unproven_pages(
        self,
        memory: &Memory,
        storage: &dyn BlockDevice,
        settings: &Settings,
        pages: &[(Page, Mark)],
    ) -> Result<u64, CacheError> {
        let (storage_bytes, found) = (settings.storage_bytes, self.identity);
        let comparison = Comparison { memory, storage, storage_bytes, found };
        let matched = comparison.at_opening(pages)?;
        if self.likeness == Likeness::Same || matched >= PROOF_PAGES {
            return Ok(0);
        }
        let dirty_pages = pages.iter().filter(|(_, mark)| *mark == Mark::Dirty).count() as u64;
        if dirty_pages > 0 {
            tracing::warn!(
                storage = %found, dirty_pages, matched,
                "nothing proves that this is the storage of the cache: the system tells no lasting \
                 identity of it, and too few clean pages agree with it"
            );
        }
        Ok(dirty_pages)
    }
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
    /// Held while storage flushes, until what became of it is noted.
    pub(crate) flushing: Mutex<()>,
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
        let likeness = settings.check_storage(found)?;
        let size_bytes = storage.geometry().size_bytes;
        if settings.storage_bytes != size_bytes {
            return Err(settings.other_size(size_bytes));
        }
        Self::build(memory, storage, settings, Found { identity: found, likeness })
    }

    /// Opens what lies in `memory` with these settings before a storage that is at least as large
    /// as they say, and that clean pages do not show to be another one.
    pub(crate) fn build(
        memory: Memory,
        storage: Arc<dyn BlockDevice>,
        settings: Settings,
        found: Found<'_>,
    ) -> Result<Self, CacheError> {
        let needed = volume_bytes(settings.storage_bytes);
        // It is larger if a crash came while the cache was about to follow its storage.
        if memory.size_bytes() < needed {
            return Err(CacheError::VolumeSize { found: memory.size_bytes(), needed });
        }
        if memory.is_read_only() {
            return Err(CacheError::ReadOnly);
        }
        let pages = memory.scan(settings.storage_bytes.div_ceil(PAGE_U64))?;
        let unproven_pages = found.unproven_pages(&memory, &*storage, &settings, &pages)?;
        let read_only = storage.geometry().read_only;
        let mut state = State::new(memory, AnyPolicy::new(&settings)?);
        state.counts.stats.unproven_pages = unproven_pages;
        state.restore(pages);
        // What went there past the cache in an earlier life may not be flushed, and is read from now
        // on as what is there.
        if !read_only && let Err(error) = storage.flush() {
            tracing::warn!(storage = %settings.storage, %error, "the flush at opening failed");
            let reason = format!("{}: at opening, {error}", settings.storage);
            let lost = DeviceError::Media { offset: 0, len: settings.storage_bytes, reason };
            state.bypassed.opening_flush_failed(lost);
        }
        Ok(Self {
            storage,
            settings,
            read_only,
            state: Mutex::new(state),
            freed: Condvar::new(),
            writer: Mutex::new(0),
            flushing: Mutex::new(()),
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

    /// The error of a drain that did not come to its end.
    pub(crate) fn not_drained(&self, error: &DeviceError) -> CacheError {
        let pages = self.state.lock().dirty.len() as u64;
        CacheError::NotDrained { pages, reason: error.to_string() }
    }

    /// Makes everything durable that was answered, so that the cache can be dropped without loss:
    /// for those who are about to close it. With an error it is open as it was. Other than a flush
    /// it says nothing of what failed before and has been put right.
    ///
    /// # Errors
    /// The volume's or the storage's.
    pub fn sync(&self) -> Result<(), DeviceError> {
        if self.read_only { Ok(()) } else { self.persist_all() }
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

impl Settings {
    /// How sure it is that `found` is the storage that the cache belongs to; an error if it is not.
    pub(crate) fn check_storage(&self, found: &Identity) -> Result<Likeness, CacheError> {
        let likeness = self.storage.compare(found);
        if likeness != Likeness::Different {
            return Ok(likeness);
        }
        let (recorded, found) = (Box::new(self.storage.clone()), Box::new(found.clone()));
        Err(CacheError::OtherStorage { recorded, found })
    }

    /// The error for a storage of `found` bytes.
    pub(crate) fn other_size(&self, found: u64) -> CacheError {
        let (storage, recorded) = (Box::new(self.storage.clone()), self.storage_bytes);
        CacheError::OtherSize { storage, recorded, found }
    }
}

fn check_volume(volume: &dyn AtomicWrites, settings: &Settings) -> Result<(), CacheError> {
    let (found, needed) = (volume.geometry().size_bytes, volume_bytes(settings.storage_bytes));
    if found != needed {
        return Err(CacheError::VolumeSize { found, needed });
    }
    Ok(())
}

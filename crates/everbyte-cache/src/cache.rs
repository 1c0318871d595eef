//! The cache: its parts, opening and closing.
//!
//! Locks, taken in this order: `writeback`, held while pages are written back or ranges of the
//! backing device are zeroed; `flushing`, held while the backing device flushes; `state`, never
//! held during an access to the backing device; the lock of a shard of `frames`, or of a lane of
//! `hit_log`. Pages become busy after `writeback` is taken and before `flushing` is. A hit takes
//! only the last two, one after the other.

use std::sync::Arc;

use everbyte_device::{AtomicWrites, BlockDevice, DeviceError, IdentityMatch};
use parking_lot::{Condvar, Mutex};

use crate::error::CacheError;
use crate::frames::Frames;
use crate::hit_log::HitLog;
use crate::identity_check::{IdentityCheck, MATCHES_MIN};
use crate::layout::{PAGE_U64, Page, volume_bytes};
use crate::policies::AnyPolicy;
use crate::scm::{Mark, ScmVolume};
use crate::settings::{Identity, Settings};
use crate::state::State;
use crate::stats::CacheStats;
use crate::writeback_in_flight::Writeback;

/// The backing device at the opening of a cache.
#[derive(Clone, Copy)]
pub(crate) struct FoundBacking<'a> {
    pub(crate) identity: &'a Identity,
    /// Result of comparing it with the recorded one.
    pub(crate) likeness: IdentityMatch,
}

impl FoundBacking<'_> {
    /// Counts the dirty pages for a device without proof of its identity: all of them or none.
    ///
    /// # Errors
    /// `OtherBytes`, if a clean page differs.
    fn unproven_pages(
        self,
        scm: &ScmVolume,
        backing: &dyn BlockDevice,
        settings: &Settings,
        pages: &[(Page, Mark)],
    ) -> Result<u64, CacheError> {
        let (backing_bytes, found) = (settings.backing_bytes, self.identity);
        let comparison = IdentityCheck { scm, backing, backing_bytes, found };
        let matched = comparison.at_opening(pages)?;
        // Compared in any case: a page that differs refuses even a device with the same identity.
        if self.likeness == IdentityMatch::Same || matched >= MATCHES_MIN {
            return Ok(0);
        }
        let dirty_pages = pages.iter().filter(|(_, mark)| *mark == Mark::Dirty).count() as u64;
        if dirty_pages > 0 {
            tracing::warn!(
                backing = %found, dirty_pages, matched,
                "nothing proves that this is the backing device of the cache: the system tells no lasting \
                 identity of it, and too few clean pages agree with it"
            );
        }
        Ok(dirty_pages)
    }
}

/// A cache before a backing device, as a block device. The crate's documentation has its promises.
pub struct Cache {
    pub(crate) backing: Arc<dyn BlockDevice>,
    pub(crate) settings: Settings,
    pub(crate) read_only: bool,
    pub(crate) scm: ScmVolume,
    pub(crate) frames: Arc<Frames>,
    pub(crate) hit_log: Arc<HitLog>,
    pub(crate) state: Mutex<State>,
    /// Notified when pages are no longer busy.
    pub(crate) freed: Condvar,
    /// The first page of the next sweep.
    pub(crate) writeback: Mutex<Writeback>,
    /// Held while the backing device flushes, until the outcome is noted.
    pub(crate) flushing: Mutex<()>,
    /// Notified when there is something to write back.
    pub(crate) work: Condvar,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Cache {
    /// Makes a cache of `volume`, durably. The volume is empty and has [`volume_bytes`] bytes.
    ///
    /// # Errors
    /// `Settings`, if one is out of range; `VolumeSize`; `Scm`, if the volume fails.
    pub fn format(volume: &dyn AtomicWrites, settings: &Settings) -> Result<(), CacheError> {
        settings.check()?;
        check_volume(volume, settings)?;
        let header = settings.encode()?;
        volume.write(0, &header, everbyte_device::Fua::No)?;
        Ok(volume.flush()?)
    }

    /// Opens the cache in `volume` before `backing`, whose identity is `found`. The caller opens a
    /// volume only once at a time.
    ///
    /// # Errors
    /// `Settings`, if the volume holds no cache; `Scm`, if it cannot be read; `OtherBacking`,
    /// `OtherSize` or `OtherBytes`, if the cache belongs to another backing device; `VolumeSize`,
    /// `ReadOnly`.
    pub fn open(
        volume: Arc<dyn AtomicWrites>,
        backing: Arc<dyn BlockDevice>,
        found: &Identity,
    ) -> Result<Self, CacheError> {
        let scm = ScmVolume::new(volume);
        let settings = Settings::decode(&scm.header()?)?;
        // The identity is compared before a page of the backing device is read or written.
        let likeness = settings.check_backing(found)?;
        let size_bytes = backing.geometry().size_bytes;
        if settings.backing_bytes != size_bytes {
            return Err(settings.other_size(size_bytes));
        }
        Self::build(scm, backing, settings, FoundBacking { identity: found, likeness })
    }

    /// Opens the cache in `scm` with these settings. The backing device is at least as large as
    /// they say.
    pub(crate) fn build(
        scm: ScmVolume,
        backing: Arc<dyn BlockDevice>,
        settings: Settings,
        found: FoundBacking<'_>,
    ) -> Result<Self, CacheError> {
        let needed = volume_bytes(settings.backing_bytes);
        // It is larger after a crash while the cache was about to follow its backing device.
        if scm.size_bytes() < needed {
            return Err(CacheError::VolumeSize { found: scm.size_bytes(), needed });
        }
        if scm.is_read_only() {
            return Err(CacheError::ReadOnly);
        }
        let pages = scm.scan(settings.backing_bytes.div_ceil(PAGE_U64))?;
        let unproven_pages = found.unproven_pages(&scm, &*backing, &settings, &pages)?;
        let read_only = backing.geometry().read_only;
        let mut state = State::new(scm, AnyPolicy::new(&settings)?);
        state.counts.stats.unproven_pages = unproven_pages;
        // After the comparison: a policy with less room drops clean pages here, and their marks.
        state.restore(pages);
        // A write that bypassed the cache before it was last closed may not be flushed, and reads
        // show its bytes from now on.
        if !read_only && let Err(error) = backing.flush() {
            tracing::warn!(backing = %settings.backing, %error, "the flush at opening failed");
            let reason = format!("{}: at opening, {error}", settings.backing);
            let lost = DeviceError::Media { offset: 0, len: settings.backing_bytes, reason };
            state.bypassed.opening_flush_failed(lost);
        }
        Ok(Self {
            backing,
            settings,
            read_only,
            scm: state.scm.clone(),
            frames: Arc::clone(&state.frames),
            hit_log: Arc::clone(&state.hit_log),
            state: Mutex::new(state),
            freed: Condvar::new(),
            writeback: Mutex::default(),
            flushing: Mutex::new(()),
            work: Condvar::new(),
        })
    }

    /// Returns the settings of the cache.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the counters since the cache was opened, and its present contents.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        self.state.lock().stats()
    }

    /// Returns the number of the page's bytes in the backing device: 4096, or fewer in the last
    /// page.
    pub(crate) fn page_len(&self, page: Page) -> usize {
        let start = u64::from(page) * PAGE_U64;
        let len = self.settings.backing_bytes.saturating_sub(start).min(PAGE_U64);
        usize::try_from(len).unwrap_or(0)
    }

    /// Returns the error of a failed drain.
    pub(crate) fn not_drained(&self, error: &DeviceError) -> CacheError {
        let pages = self.state.lock().dirty.len() as u64;
        CacheError::NotDrained { pages, reason: error.to_string() }
    }

    /// Makes all answered writes durable, so that the caller can close the cache without loss.
    /// After an error, the cache stays open. Unlike a flush, `sync` does not report an earlier
    /// failure that has been repaired.
    ///
    /// # Errors
    /// Those of the volume or of the backing device.
    pub fn sync(&self) -> Result<(), DeviceError> {
        if self.read_only { Ok(()) } else { self.persist_all() }
    }

    /// Makes the present contents of SCM durable.
    pub(crate) fn checkpoint(&self) -> Result<(), DeviceError> {
        // Counted before the flush: marks removed during it may not be durable.
        let invalidated = self.state.lock().invalidated;
        self.scm.flush()?;
        let mut state = self.state.lock();
        // Flushes can end in another order than they began.
        state.invalidated_durably = state.invalidated_durably.max(invalidated);
        Ok(())
    }
}

impl Settings {
    /// Compares `found` with the recorded backing device of the cache.
    ///
    /// # Errors
    /// `OtherBacking`, if they differ.
    pub(crate) fn check_backing(&self, found: &Identity) -> Result<IdentityMatch, CacheError> {
        let likeness = self.backing.compare(found);
        if likeness != IdentityMatch::Different {
            return Ok(likeness);
        }
        let (recorded, found) = (Box::new(self.backing.clone()), Box::new(found.clone()));
        Err(CacheError::OtherBacking { recorded, found })
    }

    /// Returns the error for a backing device of `found` bytes.
    pub(crate) fn other_size(&self, found: u64) -> CacheError {
        let (backing, recorded) = (Box::new(self.backing.clone()), self.backing_bytes);
        CacheError::OtherSize { backing, recorded, found }
    }
}

fn check_volume(volume: &dyn AtomicWrites, settings: &Settings) -> Result<(), CacheError> {
    let (found, needed) = (volume.geometry().size_bytes, volume_bytes(settings.backing_bytes));
    if found != needed {
        return Err(CacheError::VolumeSize { found, needed });
    }
    Ok(())
}

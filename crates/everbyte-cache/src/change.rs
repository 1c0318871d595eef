//! Changes of an unused cache: its sizes, and the place of its backing device.
//!
//! Invariants: a change durably writes back and evicts the pages that must go before the header
//! changes. The header changes in one write of one block. So a crash leaves the old or the new
//! cache, and an error leaves the old one, perhaps with fewer pages.

use std::sync::Arc;

use everbyte_device::{AtomicWrites, BlockDevice, DeviceError, IdentityMatch};

use crate::cache::{Cache, FoundBacking};
use crate::error::CacheError;
use crate::identity_check::{IdentityCheck, MATCHES_MIN};
use crate::layout::{PAGE_U64, Page, page_no, volume_bytes};
use crate::scm::ScmVolume;
use crate::settings::{Identity, Settings};
use crate::write_back::WritebackTarget;

/// New sizes of a cache. `None` keeps a size.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Change {
    /// Bytes of DRAM for pages.
    pub dram_bytes: Option<u64>,
    /// Bytes of SCM for pages.
    pub scm_bytes: Option<u64>,
    /// True if the cache grows to the size of its larger backing device.
    pub follows_backing: bool,
}

impl Change {
    /// Returns the new settings of a cache with the settings `recorded` before a backing device of
    /// `backing_bytes` bytes.
    ///
    /// # Errors
    /// `OtherSize`, if the backing device has shrunk, or has grown without `follows_backing`;
    /// `Settings`, if a size is out of range.
    pub fn applied_to(
        &self,
        recorded: &Settings,
        backing_bytes: u64,
    ) -> Result<Settings, CacheError> {
        let has_grown = backing_bytes > recorded.backing_bytes;
        if backing_bytes != recorded.backing_bytes && !(has_grown && self.follows_backing) {
            return Err(recorded.other_size(backing_bytes));
        }
        let settings = Settings {
            backing_bytes,
            dram_bytes: self.dram_bytes.unwrap_or(recorded.dram_bytes),
            scm_bytes: self.scm_bytes.unwrap_or(recorded.scm_bytes),
            ..recorded.clone()
        };
        settings.check()?;
        Ok(settings)
    }
}

impl Cache {
    /// Changes the sizes of the cache in `volume`, durably. The volume must not be open elsewhere.
    /// Pages without room in a smaller cache are written back and evicted. For a larger backing
    /// device the caller has enlarged the volume before.
    ///
    /// # Errors
    /// As [`Cache::open`] and [`Change::applied_to`]; `Backing`, if the backing device cannot be
    /// flushed, so that it may lose earlier writes; `NotDrained`, if a page cannot be written back
    /// before its eviction.
    pub fn resize(
        volume: Arc<dyn AtomicWrites>,
        backing: Arc<dyn BlockDevice>,
        found: &Identity,
        change: &Change,
    ) -> Result<Settings, CacheError> {
        let scm = ScmVolume::new(volume);
        let recorded = Settings::decode(&scm.header()?)?;
        let likeness = recorded.check_backing(found)?;
        let settings = change.applied_to(&recorded, backing.geometry().size_bytes)?;
        let (has_bytes, needed) = (scm.size_bytes(), volume_bytes(settings.backing_bytes));
        // Before any change: the header must never describe a volume that is too small.
        if has_bytes < needed {
            return Err(CacheError::VolumeSize { found: has_bytes, needed });
        }
        let old_bytes = recorded.backing_bytes;
        let cache = Self::build(
            scm.clone(),
            backing,
            Settings { backing_bytes: old_bytes, ..settings.clone() },
            FoundBacking { identity: found, likeness },
        )?;
        // No later report is possible: the next flush at an opening may succeed without the bytes
        // that this one has lost.
        if let Some(error) = cache.state.lock().bypassed.take_unreported() {
            return Err(CacheError::Backing(error));
        }
        // Pages that the policy has admitted and evicted again, because it has less room than
        // before.
        cache.write_back(&WritebackTarget::Pending).map_err(|error| cache.not_drained(&error))?;
        let is_cut = !old_bytes.is_multiple_of(PAGE_U64) && settings.backing_bytes > old_bytes;
        if is_cut {
            let last = page_no(old_bytes / PAGE_U64);
            cache.evict(last).map_err(|error| cache.not_drained(&error))?;
        }
        // The pages that must go are gone durably before the header tells the new sizes.
        cache.checkpoint()?;
        scm.write_header(&settings.encode()?)?;
        Ok(settings)
    }

    /// Writes a page back and invalidates it. The backing device may end within its last page. The
    /// rest of that page was never read, and exists after the backing device has grown.
    fn evict(&self, page: Page) -> Result<(), DeviceError> {
        self.write_back(&WritebackTarget::Pages([page].into()))?;
        let mut state = self.state.lock();
        if state.frames.contains(page) { state.invalidate(page) } else { Ok(()) }
    }

    /// Records `backing`, whose identity is `found`, as the backing device of the cache in
    /// `volume`, durably. The volume must not be open elsewhere. `backing` must be the cache's old
    /// backing device in a new place: of the same size, and either of the same kind and serial, or
    /// with the bytes of the cache's clean pages. At most 1024 clean pages are compared, and all of
    /// them must agree.
    ///
    /// # Errors
    /// `OtherSize`, `OtherBytes`, `NoProof`; `Scm` or `Backing`, if the volume or the backing
    /// device fails.
    pub fn move_backing(
        volume: Arc<dyn AtomicWrites>,
        backing: &dyn BlockDevice,
        found: &Identity,
    ) -> Result<Settings, CacheError> {
        let scm = ScmVolume::new(volume);
        let recorded = Settings::decode(&scm.header()?)?;
        let size_bytes = backing.geometry().size_bytes;
        if size_bytes != recorded.backing_bytes {
            return Err(recorded.other_size(size_bytes));
        }
        let pages = scm.scan(size_bytes.div_ceil(PAGE_U64))?;
        let comparison = IdentityCheck { scm: &scm, backing, backing_bytes: size_bytes, found };
        // Compared even with a proven identity: clean pages would hide changes made without the
        // cache.
        let matched = comparison.of_moved(&pages)?;
        let old = &recorded.backing;
        let has_serial =
            old.kind == found.kind && old.serial == found.serial && !old.serial.is_empty();
        // Kinds and serials count only where the system tells no lasting identity.
        let is_same = match (&old.backing, &found.backing) {
            (Some(old), Some(found)) => old.compare(found) == IdentityMatch::Same,
            _ => has_serial,
        };
        if !is_same && !pages.is_empty() && matched < MATCHES_MIN {
            let (recorded, found) = (Box::new(recorded.backing), Box::new(found.clone()));
            return Err(CacheError::NoProof { recorded, found, matched, needed: MATCHES_MIN });
        }
        let settings = Settings { backing: found.clone(), ..recorded };
        scm.write_header(&settings.encode()?)?;
        Ok(settings)
    }
}

//! Changing a cache that nobody uses: its sizes, and where its storage is.
//!
//! Invariants: whatever a change asks of pages (to be written back, to leave) is done durably
//! before the header says that the cache is another one; the header changes in one write of one
//! block. So a crash leaves a cache that is as it was or as it was to be, and an error one that is
//! as it was, if perhaps with fewer pages.

use std::sync::Arc;

use everbyte_device::{AtomicWrites, BlockDevice, DeviceError, Likeness};
use everbyte_plant::planted;

use crate::cache::{Cache, Found};
use crate::error::CacheError;
use crate::layout::{PAGE_U64, Page, page_no, volume_bytes};
use crate::memory::Memory;
use crate::plant::Bug;
use crate::proof::{Comparison, PROOF_PAGES};
use crate::settings::{Identity, Settings};
use crate::write_back::Choice;

/// Other sizes for a cache. What is `None` stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Change {
    /// Bytes of DRAM for pages.
    pub dram_bytes: Option<u64>,
    /// Bytes of storage-class memory for pages.
    pub scm_bytes: Option<u64>,
    /// Whether the cache becomes as large as its storage, which has grown.
    pub follows_storage: bool,
}

impl Change {
    /// What a cache that is `recorded` before a storage of `storage_bytes` bytes becomes.
    ///
    /// # Errors
    /// `OtherSize`, if the storage has shrunk, or has grown and is not to be followed; sizes that
    /// cannot be.
    pub fn applied_to(
        &self,
        recorded: &Settings,
        storage_bytes: u64,
    ) -> Result<Settings, CacheError> {
        let has_grown = storage_bytes > recorded.storage_bytes;
        if storage_bytes != recorded.storage_bytes && !(has_grown && self.follows_storage) {
            return Err(recorded.other_size(storage_bytes));
        }
        let settings = Settings {
            storage_bytes,
            dram_bytes: self.dram_bytes.unwrap_or(recorded.dram_bytes),
            scm_bytes: self.scm_bytes.unwrap_or(recorded.scm_bytes),
            ..recorded.clone()
        };
        settings.check()?;
        Ok(settings)
    }
}

impl Cache {
    /// Gives the cache in `volume`, which nobody has open, other sizes, durably. Pages that have no
    /// room in a smaller one are written back. The volume must have been made large enough for a
    /// larger storage already.
    ///
    /// # Errors
    /// As [`Cache::open`] and [`Change::applied_to`]; `NotDrained`, if pages must leave that cannot
    /// be written back.
    pub fn resize(
        volume: Arc<dyn AtomicWrites>,
        storage: Arc<dyn BlockDevice>,
        found: &Identity,
        change: &Change,
    ) -> Result<Settings, CacheError> {
        let memory = Memory::new(volume);
        let recorded = Settings::decode(&memory.header()?)?;
        let likeness = recorded.check_storage(found)?;
        let settings = change.applied_to(&recorded, storage.geometry().size_bytes)?;
        let (has_bytes, needed) = (memory.size_bytes(), volume_bytes(settings.storage_bytes));
        if has_bytes < needed {
            return Err(CacheError::VolumeSize { found: has_bytes, needed });
        }
        let old_bytes = recorded.storage_bytes;
        let cache = Self::build(
            memory.clone(),
            storage,
            Settings { storage_bytes: old_bytes, ..settings.clone() },
            Found { identity: found, likeness },
        )?;
        // What the policy took in and gave up again, because it has less room than it had.
        cache.write_back(&Choice::Aside).map_err(|error| cache.not_drained(&error))?;
        let is_cut = !old_bytes.is_multiple_of(PAGE_U64) && settings.storage_bytes > old_bytes;
        if is_cut && !planted(Bug::CutPageKept) {
            let last = page_no(old_bytes / PAGE_U64);
            cache.expel(last).map_err(|error| cache.not_drained(&error))?;
        }
        cache.checkpoint()?;
        memory.write_header(&settings.encode()?)?;
        Ok(settings)
    }

    /// Writes a page back and forgets it. The last page of a storage that does not end with a whole
    /// page is one whose rest nobody has read; it is there once the storage has grown.
    fn expel(&self, page: Page) -> Result<(), DeviceError> {
        self.write_back(&Choice::These([page].into()))?;
        let mut state = self.state.lock();
        if state.frames.contains_key(&page) { state.take_out(page) } else { Ok(()) }
    }

    /// Makes the storage at hand, whose identity is `found`, the one of the cache in `volume`, which
    /// nobody has open, durably. It must be the cache's old storage in a new place: of the same
    /// size, and either of the same kind and serial, or with the bytes that the cache's clean pages
    /// have; and no clean page that is looked at (1024 at most) may differ in any case.
    ///
    /// # Errors
    /// `OtherSize`, `OtherBytes`, `NoProof`; the volume's, the storage's.
    pub fn move_storage(
        volume: Arc<dyn AtomicWrites>,
        storage: &dyn BlockDevice,
        found: &Identity,
    ) -> Result<Settings, CacheError> {
        let memory = Memory::new(volume);
        let recorded = Settings::decode(&memory.header()?)?;
        let size_bytes = storage.geometry().size_bytes;
        if size_bytes != recorded.storage_bytes {
            return Err(recorded.other_size(size_bytes));
        }
        let pages = memory.scan(size_bytes.div_ceil(PAGE_U64))?;
        let comparison = Comparison { memory: &memory, storage, storage_bytes: size_bytes, found };
        let matched = comparison.of_moved(&pages)?;
        let old = &recorded.storage;
        let has_serial =
            old.kind == found.kind && old.serial == found.serial && !old.serial.is_empty();
        let is_same = match (&old.backing, &found.backing) {
            (Some(old), Some(found)) => old.compare(found) == Likeness::Same,
            _ => has_serial,
        };
        if !is_same && !pages.is_empty() && matched < PROOF_PAGES {
            let (recorded, found) = (Box::new(recorded.storage), Box::new(found.clone()));
            return Err(CacheError::NoProof { recorded, found, matched, needed: PROOF_PAGES });
        }
        let settings = Settings { storage: found.clone(), ..recorded };
        memory.write_header(&settings.encode()?)?;
        Ok(settings)
    }
}

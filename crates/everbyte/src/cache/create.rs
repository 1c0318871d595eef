//! Making caches: settings, the checks of a new backing device, room in the pool.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use everbyte_cache::{Cache, Mode, Policy, Settings, volume_bytes};
use everbyte_path::Rights;
use everbyte_pool::format::VolumeKind;

use super::{CacheVolume, PAGE_BYTES};
use crate::backing::{self, Backing, BackingError};
use crate::block::BlockOptions;
use crate::builder::setters;
use crate::engine::{BackingUse, Device};
use crate::error::Error;
use crate::shared::Shared;

/// Settings of a new cache.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct CacheOptions {
    dram_bytes: Option<u64>,
    mode: Mode,
    policy: Option<Policy>,
    small_write_bytes: Option<u16>,
    volume: BlockOptions,
    rights: Option<Rights>,
}

impl CacheOptions {
    /// The default settings.
    pub fn new() -> Self {
        Self::default()
    }

    fn settings(&self, found: &Backing, scm_bytes: u64) -> Settings {
        let third = (scm_bytes / 3 / PAGE_BYTES * PAGE_BYTES).max(PAGE_BYTES);
        Settings {
            backing: found.identity.clone(),
            backing_bytes: found.device.geometry().size_bytes,
            dram_bytes: self.dram_bytes.unwrap_or(third),
            scm_bytes,
            mode: self.mode,
            policy: self.policy.unwrap_or(Policy::Everbyte),
            small_write_bytes: self.small_write_bytes.unwrap_or(512),
        }
    }
}

setters! { CacheOptions:
    /// Bytes of DRAM for pages, at least 4096. Default: a third of the cache's SCM.
    dram_bytes(bytes: u64) => dram_bytes = Some(bytes);

    /// Write mode: the time of writing to the backing device. Default: write-back.
    mode(mode: Mode) => mode = mode;

    /// Replacement policy: a policy for two tiers with each page in only one tier. Default:
    /// `everbyte`.
    policy(policy: Policy) => policy = Some(policy);

    /// Writes of at most this many bytes, from 0 to 4096, count as small: SCM suits them best. Default: 512.
    small_write_bytes(bytes: u16) => small_write_bytes = Some(bytes);

    /// Settings of the volume with the cache's pages.
    volume(options: BlockOptions) => volume = options;

    /// Opens the backing device with no more than these rights. Default: the rights permitted by
    /// the pool.
    rights(rights: Rights) => rights = Some(rights);
}

/// Longest look at a new backing device. Other changes wait for it, so it is shorter than the wait for the
/// device of an open cache.
pub(super) const NEW_BACKING_LOOK_MAX: Duration = Duration::from_secs(5);

impl CacheVolume {
    /// Makes a cache. Its backing device is opened for its presence and its size, and closed again.
    pub(crate) fn create(
        shared: &Arc<Shared>,
        name: &str,
        backing: &Path,
        scm_bytes: u64,
        options: &CacheOptions,
    ) -> Result<Self, Error> {
        let _changing = shared.begin_change(name)?;
        let text = text_of(name, backing)?;
        let BackingUse { options: opening, stall_time_max, .. } = &*shared.backing;
        let rights = rights(shared, options.rights.as_ref());
        // Before the opening: the lock of another cache refuses it without the cache's name.
        let looked = backing::look_within(text, &rights, NEW_BACKING_LOOK_MAX);
        shared.check_unshared(name, text, &looked.map_err(Error::backing(name))?)?;
        let opening = backing::Options { rights, ..opening.clone() };
        let found = backing::open_within(text, &opening, *stall_time_max);
        let found = found.map_err(Error::backing(name))?;
        // Again, on the opened device: the path may lead elsewhere since the look.
        shared.check_unshared(name, text, &found.known())?;
        let settings = options.settings(&found, scm_bytes);
        settings.check().map_err(|error| Error::cache(name)(error.into()))?;
        let engine = &shared.engine;
        // Before the volume is made: pages without room would fail writes later.
        check_room(name, settings.volume_page_bytes_max(), engine.info().free_bytes)?;
        let size_bytes = volume_bytes(settings.backing_bytes);
        // Until the handle is in the list of caches, closing the pool waits.
        let _names = shared.lock_names()?;
        let device =
            Device::create_as(engine, name, VolumeKind::CACHE, size_bytes, options.volume.engine());
        let device = device.map_err(Error::volume(name))?;
        if let Err(error) = Cache::format(&device, &settings) {
            drop(device);
            if let Err(error) = engine.delete_volume(name) {
                tracing::warn!(volume = name, %error, "a volume that is not a cache is left over");
            }
            return Err(Error::cache(name)(error));
        }
        Ok(Self::new(shared, device))
    }
}

/// The rights to open a new backing device: permitted by the pool and by `wanted`.
pub(super) fn rights(shared: &Shared, wanted: Option<&Rights>) -> Rights {
    let rights = shared.backing.rights(&shared.engine);
    wanted.map_or(rights.clone(), |wanted| rights.and(wanted))
}

/// The text of a path or URI, as a cache records it.
pub(super) fn text_of<'p>(name: &str, backing: &'p Path) -> Result<&'p str, Error> {
    let text = || backing.display().to_string();
    backing.to_str().ok_or_else(|| Error::backing(name)(BackingError::Name { text: text() }))
}

/// Checks that `free_bytes` has room for a cache of up to `needed_bytes`.
pub(super) fn check_room(name: &str, needed_bytes: u64, free_bytes: u64) -> Result<(), Error> {
    if needed_bytes <= free_bytes {
        return Ok(());
    }
    Err(Error::NoRoom { volume: name.to_owned(), needed_bytes, free_bytes })
}

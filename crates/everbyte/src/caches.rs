//! The caches among the volumes of an open pool.
//!
//! Invariants: a cache is open at most once; its storage is open, and locked if it is a file, as
//! long as the cache is; what is only looked at needs no storage.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use everbyte_block::{BlockOptions, BlockVolume};
use everbyte_cache::{
    Cache, CacheStats, Change, Inspection, Mode, Settings, Writer, inspect, volume_bytes,
};
use everbyte_control::{CacheStatus, NewCache, Refused};
use everbyte_device::BlockDevice;
use everbyte_media::Mapped;
use everbyte_policy::sim::Kind;
use everbyte_pool::Pool;
use everbyte_pool::format::VolumeKind;
use parking_lot::Mutex;

use crate::backing;
use crate::size::show_size;

type Device = BlockVolume<Mapped>;

/// How long one part of a drain goes on.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// A cache in use.
struct OpenCache {
    cache: Arc<Cache>,
    /// References to it that are no clients'.
    own: usize,
    _writer: Writer,
}

#[derive(Default)]
struct All {
    open: BTreeMap<String, OpenCache>,
    /// Caches that are being changed or detached: no client gets them.
    held: BTreeSet<String>,
    options: backing::Options,
}

/// The caches among the volumes of an open pool; each is open at most once.
#[derive(Default)]
pub(crate) struct Caches(Mutex<All>);

/// Keeps clients away from a cache as long as it lives.
pub(crate) struct Held<'c> {
    caches: &'c Caches,
    name: String,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.caches.0.lock().held.remove(&self.name);
    }
}

impl OpenCache {
    fn clients(&self) -> u64 {
        Arc::strong_count(&self.cache).saturating_sub(self.own) as u64
    }
}

fn refused(error: impl std::fmt::Display) -> Refused {
    Refused(format!("{error:#}"))
}

/// Makes a cache. Its storage is opened to see that it is there and how large, and closed again.
///
/// # Errors
/// Words or sizes that cannot be, storage that cannot be opened, a pool without enough space.
pub(crate) fn create(
    pool: &Arc<Pool<Mapped>>,
    name: &str,
    wanted: &NewCache,
    options: &BlockOptions,
    backing_options: &backing::Options,
) -> Result<Device, Refused> {
    let backing = backing::open(&wanted.backing, backing_options).map_err(refused)?;
    let settings = Settings {
        storage: backing.identity,
        storage_bytes: backing.device.geometry().size_bytes,
        dram_bytes: wanted.dram_bytes,
        scm_bytes: wanted.scm_bytes,
        mode: mode(&wanted.mode)?,
        policy: wanted.policy.parse::<Kind>().map_err(refused)?,
        small_write_bytes: wanted.small_write_bytes,
    };
    settings.check().map_err(refused)?;
    check_room(settings.memory_bytes_max(), pool.info().free_bytes)?;
    let size_bytes = volume_bytes(settings.storage_bytes);
    let device = Device::create_as(pool, name, VolumeKind::CACHE, size_bytes, options);
    let device = device.map_err(refused)?;
    if let Err(error) = Cache::format(&device, &settings) {
        if let Err(error) = pool.delete_volume(name) {
            tracing::warn!(volume = name, %error, "a volume is left over that is no cache");
        }
        return Err(refused(error));
    }
    Ok(device)
}

/// Whether a cache that may take `needed` bytes has room in `free` bytes.
fn check_room(needed: u64, free: u64) -> Result<(), Refused> {
    if needed <= free {
        return Ok(());
    }
    Err(Refused(format!(
        "the cache may take {} of the pool: its memory, as much again as its DRAM, and a sixteenth \
         for pages on their way out; {} are free: make it smaller or grow the pool",
        show_size(needed),
        show_size(free)
    )))
}

fn mode(word: &str) -> Result<Mode, Refused> {
    let found = Mode::ALL.into_iter().find(|mode| mode.name() == word);
    found.ok_or_else(|| Refused(format!("{word:?} is no mode of a cache")))
}

impl All {
    fn open(&mut self, name: &str, volume: &Arc<Device>) -> Result<Arc<Cache>, Refused> {
        if let Some(open) = self.open.get(name) {
            return Ok(Arc::clone(&open.cache));
        }
        let recorded = inspect(&**volume).map_err(refused)?.settings.storage;
        let backing = backing::open(&recorded.name, &self.options).map_err(refused)?;
        let volume = Arc::clone(volume);
        let cache = Cache::open(volume, backing.device, &backing.identity).map_err(refused)?;
        let cache = Arc::new(cache);
        let writer = Writer::start(&cache).map_err(refused)?;
        let own = Arc::strong_count(&cache);
        let open = OpenCache { cache: Arc::clone(&cache), own, _writer: writer };
        self.open.insert(name.to_owned(), open);
        Ok(cache)
    }
}

impl Caches {
    /// How storage is used that is opened from now on.
    pub(crate) fn set_options(&self, options: backing::Options) {
        self.0.lock().options = options;
    }

    pub(crate) fn options(&self) -> backing::Options {
        self.0.lock().options
    }

    /// The cache in the volume, opened if need be.
    ///
    /// # Errors
    /// The storage cannot be opened or is not the one that the cache belongs to.
    pub(crate) fn open(&self, name: &str, volume: &Arc<Device>) -> Result<Arc<Cache>, Refused> {
        let mut all = self.0.lock();
        if all.held.contains(name) {
            return Err(Refused(format!("cache {name} is being changed or detached: try again")));
        }
        all.open(name, volume)
    }

    /// Clients that have the cache open.
    pub(crate) fn clients(&self, name: &str) -> u64 {
        self.0.lock().open.get(name).map_or(0, OpenCache::clients)
    }

    /// Keeps clients from opening the cache, so that it can be changed.
    ///
    /// # Errors
    /// Clients have it open.
    pub(crate) fn hold(&self, name: &str) -> Result<Held<'_>, Refused> {
        let mut all = self.0.lock();
        let clients = all.open.get(name).map_or(0, OpenCache::clients);
        if clients > 0 {
            return Err(Refused(format!(
                "{clients} clients have volume {name} open: disconnect them first"
            )));
        }
        all.held.insert(name.to_owned());
        Ok(Held { caches: self, name: name.to_owned() })
    }

    /// Writes everything that a held cache has to its storage.
    ///
    /// # Errors
    /// The storage fails; then the cache stays as it is.
    pub(crate) fn drain(&self, held: &Held<'_>, volume: &Arc<Device>) -> Result<(), Refused> {
        let cache = self.0.lock().open(&held.name, volume)?;
        cache.drain().map_err(refused)
    }

    /// Writes back for a while; says how many bytes are left to write.
    ///
    /// # Errors
    /// As `drain`.
    pub(crate) fn drain_part(&self, held: &Held<'_>, volume: &Arc<Device>) -> Result<u64, Refused> {
        let cache = self.0.lock().open(&held.name, volume)?;
        let end = Instant::now() + DRAIN_TIME;
        while cache.dirty_bytes() > 0 && Instant::now() < end {
            cache.sweep().map_err(|error| {
                Refused(format!(
                    "{} could not be written back: {error}; nothing is lost: mend the storage and \
                     try again",
                    show_size(cache.dirty_bytes())
                ))
            })?;
        }
        Ok(cache.dirty_bytes())
    }

    /// Closes a held cache, with what it holds in DRAM made durable.
    fn shut(&self, held: &Held<'_>) -> Result<(), Refused> {
        let open = self.0.lock().open.remove(&held.name);
        open.map_or(Ok(()), |open| open.cache.flush()).map_err(refused)
    }

    /// Gives a held cache other sizes.
    ///
    /// # Errors
    /// Sizes that cannot be, storage that cannot be opened or fails, a pool without enough space.
    pub(crate) fn resize(
        &self,
        held: &Held<'_>,
        volume: &Arc<Device>,
        change: &Change,
        free_bytes: u64,
    ) -> Result<(), Refused> {
        self.shut(held)?;
        let Inspection { settings, pages, .. } = inspect(&**volume).map_err(refused)?;
        let backing = backing::open(&settings.storage.name, &self.options()).map_err(refused)?;
        let storage_bytes = backing.device.geometry().size_bytes;
        let wanted = change.applied_to(&settings, storage_bytes).map_err(refused)?;
        let (old, new) = (settings.memory_bytes_max(), wanted.memory_bytes_max());
        if new > old {
            // Its pages may still become as many as it had asked for.
            check_room(new, free_bytes + pages * 4096)?;
        }
        let needed = volume_bytes(storage_bytes);
        if needed > volume.geometry().size_bytes {
            volume.resize(needed).map_err(refused)?;
        }
        let volume = Arc::clone(volume);
        let resized = Cache::resize(volume, backing.device, &backing.identity, change);
        resized.map(drop).map_err(refused)
    }

    /// Tells a held cache where its storage is now.
    ///
    /// # Errors
    /// The storage cannot be opened, or is not the cache's.
    pub(crate) fn attach(
        &self,
        held: &Held<'_>,
        volume: &Arc<Device>,
        place: &str,
    ) -> Result<(), Refused> {
        self.shut(held)?;
        let backing = backing::open(place, &self.options()).map_err(refused)?;
        let volume = Arc::clone(volume);
        let moved = Cache::move_storage(volume, &*backing.device, &backing.identity);
        moved.map(drop).map_err(refused)
    }

    /// Closes a cache, if it is open, as it is.
    pub(crate) fn forget(&self, name: &str) {
        let open = self.0.lock().open.remove(name);
        // Its writer may take a while to end, and others need not wait for it.
        drop(open);
    }

    /// Makes what caches hold in DRAM durable, and closes them.
    pub(crate) fn close(&self) {
        let all = std::mem::take(&mut self.0.lock().open);
        for (name, open) in all {
            if let Err(error) = open.cache.flush() {
                tracing::error!(volume = name, %error, "the cache could not be made durable");
            }
        }
    }

    /// The cache in figures; `None` if its volume cannot be read.
    pub(crate) fn status(&self, name: &str, volume: &Device) -> Option<CacheStatus> {
        let stats = self
            .0
            .lock()
            .open
            .get(name)
            .map(|open| (open.cache.settings().clone(), open.cache.stats()));
        if let Some((settings, stats)) = stats {
            return Some(status(&settings, &stats));
        }
        match inspect(volume) {
            Ok(found) => {
                let stats = CacheStats {
                    pages: found.pages,
                    dirty_pages: found.dirty_pages,
                    ..CacheStats::default()
                };
                let mut status = status(&found.settings, &stats);
                status.counts.clear();
                Some(status)
            }
            Err(error) => {
                tracing::warn!(volume = name, %error, "the cache cannot be looked at");
                None
            }
        }
    }
}

fn status(settings: &Settings, stats: &CacheStats) -> CacheStatus {
    let counts = [
        ("hits_dram", stats.hits_dram),
        ("hits_scm", stats.hits_scm),
        ("misses", stats.misses),
        ("fetched_pages", stats.fetched_pages),
        ("fetches", stats.fetches),
        ("scm_bytes_in_place", stats.scm_bytes_in_place),
        ("scm_bytes_moved", stats.scm_bytes_moved),
        ("scm_bytes_shadow", stats.scm_bytes_shadow),
        ("written_back_pages", stats.written_back_pages),
        ("write_back_runs", stats.write_back_runs),
        ("bypass_write_bytes", stats.bypass_write_bytes),
        ("bypass_zero_bytes", stats.bypass_zero_bytes),
        ("storage_errors", stats.storage_errors),
        ("memory_errors", stats.memory_errors),
        ("unproven_pages", stats.unproven_pages),
        ("waiting_pages", stats.waiting_pages),
    ];
    let reasons = stats.actions.iter();
    CacheStatus {
        backing: settings.storage.name.clone(),
        backing_bytes: settings.storage_bytes,
        dram_bytes: settings.dram_bytes,
        scm_bytes: settings.scm_bytes,
        mode: settings.mode.to_string(),
        policy: settings.policy.to_string(),
        cached_bytes: stats.pages * 4096,
        dirty_bytes: stats.dirty_pages * 4096,
        hit_permille: stats.hit_permille(),
        counts: counts.map(|(name, count)| (name.to_owned(), count)).into(),
        reasons: reasons.map(|a| (format!("{}/{}", a.action, a.reason), a.count)).collect(),
    }
}

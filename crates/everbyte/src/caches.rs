//! The caches among the volumes of an open pool.
//!
//! Invariants: a cache is open at most once; its storage is open, and locked if it is a file, as
//! long as the cache is; what is only looked at needs no storage.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use everbyte_block::{BlockOptions, BlockVolume};
use everbyte_cache::{Cache, CacheStats, Mode, Settings, Writer, inspect, volume_bytes};
use everbyte_device::BlockDevice;
use everbyte_media::Mapped;
use everbyte_policy::sim::Kind;
use everbyte_pool::Pool;
use everbyte_pool::control::{CacheStatus, NewCache, Refused};
use everbyte_pool::format::VolumeKind;
use parking_lot::Mutex;

use crate::backing;
use crate::size::show_size;

type Device = BlockVolume<Mapped>;

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
    /// Caches that are being detached: no client gets them any more.
    leaving: BTreeSet<String>,
}

/// See the module's head.
#[derive(Default)]
pub(crate) struct Caches(Mutex<All>);

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
) -> Result<Device, Refused> {
    let backing = backing::open(&wanted.backing).map_err(refused)?;
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
    let (needed, free) = (settings.memory_bytes_max(), pool.info().free_bytes);
    if needed > free {
        return Err(Refused(format!(
            "the cache may take {} of the pool: its memory, as much again as its DRAM, and a \
             sixteenth for pages on their way out; {} are free: make it smaller or grow the pool",
            show_size(needed),
            show_size(free)
        )));
    }
    let size_bytes = volume_bytes(settings.storage_bytes);
    let device = Device::create_as(pool, name, VolumeKind::Cache, size_bytes, options);
    let device = device.map_err(refused)?;
    if let Err(error) = Cache::format(&device, &settings) {
        if let Err(error) = pool.delete_volume(name, || device.drain()) {
            tracing::warn!(volume = name, %error, "a volume is left over that is no cache");
        }
        return Err(refused(error));
    }
    Ok(device)
}

fn mode(word: &str) -> Result<Mode, Refused> {
    let found = Mode::ALL.into_iter().find(|mode| mode.name() == word);
    found.ok_or_else(|| Refused(format!("{word:?} is no mode of a cache")))
}

impl Caches {
    /// The cache in the volume, opened if need be.
    ///
    /// # Errors
    /// The storage cannot be opened or is not the one that the cache belongs to.
    pub(crate) fn open(&self, name: &str, volume: &Arc<Device>) -> Result<Arc<Cache>, Refused> {
        let mut all = self.0.lock();
        if all.leaving.contains(name) {
            return Err(Refused(format!("cache {name} is being detached from its storage")));
        }
        if let Some(open) = all.open.get(name) {
            return Ok(Arc::clone(&open.cache));
        }
        let recorded = inspect(&**volume).map_err(refused)?.settings.storage;
        let backing = backing::open(&recorded.name).map_err(refused)?;
        let volume = Arc::clone(volume);
        let cache = Cache::open(volume, backing.device, &backing.identity).map_err(refused)?;
        let cache = Arc::new(cache);
        let writer = Writer::start(&cache).map_err(refused)?;
        let own = Arc::strong_count(&cache);
        let open = OpenCache { cache: Arc::clone(&cache), own, _writer: writer };
        all.open.insert(name.to_owned(), open);
        Ok(cache)
    }

    /// Clients that have the cache open.
    pub(crate) fn clients(&self, name: &str) -> u64 {
        self.0.lock().open.get(name).map_or(0, OpenCache::clients)
    }

    /// Writes everything that the cache holds to its storage. Nobody can open it afterwards, until
    /// [`Caches::end_detaching`].
    ///
    /// # Errors
    /// Clients have it open, or the storage fails; then it stays as it is.
    pub(crate) fn drain(&self, name: &str, volume: &Arc<Device>) -> Result<(), Refused> {
        let cache = self.open(name, volume)?;
        {
            let mut all = self.0.lock();
            // One of them is this very call.
            let clients = all.open.get(name).map_or(0, OpenCache::clients).saturating_sub(1);
            if clients > 0 {
                return Err(Refused(format!(
                    "{clients} clients have volume {name} open: disconnect them first"
                )));
            }
            all.leaving.insert(name.to_owned());
        }
        cache.drain().map_err(|error| {
            self.0.lock().leaving.remove(name);
            refused(error)
        })
    }

    /// Closes a cache, if it is open, as it is.
    pub(crate) fn forget(&self, name: &str) {
        let open = self.0.lock().open.remove(name);
        // Its writer may take a while to end, and others need not wait for it.
        drop(open);
    }

    /// The volume of the cache that was drained is gone, or stays after all.
    pub(crate) fn end_detaching(&self, name: &str) {
        self.0.lock().leaving.remove(name);
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

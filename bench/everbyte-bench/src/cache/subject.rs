//! Subjects of requests: the backing device alone, our cache, plain caches.

use std::sync::Arc;

use anyhow::{Context, Result};
use everbyte_block::{BlockOptions, BlockVolume, kinds};
use everbyte_cache::{Cache, Identity, Mode, WritebackThread, volume_bytes};
use everbyte_device::BlockDevice;
use everbyte_media::{Mapped, MediaOptions};
use everbyte_policy::sim::{Kind, Spec};
use everbyte_pool::format::VolumeKind;
use everbyte_pool::{OpenOptions, Pool};

use super::backing::Backing;
use super::lru::{LruCache, LruWriter};
use super::options::CacheArgs;

const PAGE: u64 = 4096;

/// Cache before the backing device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Front {
    /// Nothing.
    Nothing,
    /// Our cache.
    Cache(Kind, Mode),
    /// A plain cache in DRAM, and no SCM besides.
    Lru(Share),
}

/// Size of a plain cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Share {
    /// As much DRAM as ours has.
    Dram,
    /// As much DRAM as ours costs.
    Cost,
    /// As much DRAM as ours has DRAM and SCM.
    Capacity,
}

impl Share {
    /// Pages that it has beside a cache of ours.
    fn pages(self, spec: &Spec, scm_price_percent: u64) -> u32 {
        let capacity = spec.capacity();
        match self {
            Self::Dram => capacity.dram,
            Self::Cost => {
                let scm = u64::from(capacity.scm) * scm_price_percent / 100;
                capacity.dram + u32::try_from(scm).unwrap_or(u32::MAX)
            }
            Self::Capacity => capacity.dram + capacity.scm,
        }
    }
}

/// Name of the backing device alone, the reference of the others.
pub(crate) const BACKING: &str = "backing";

impl Front {
    /// Fronts that are measured before a backing device, at every size.
    pub(crate) const CACHES: [Self; 7] = [
        Self::Cache(Kind::Everbyte, Mode::WriteBack),
        Self::Cache(Kind::Hybrid, Mode::WriteBack),
        Self::Cache(Kind::ClockMigration, Mode::WriteBack),
        Self::Cache(Kind::Everbyte, Mode::WriteThrough),
        Self::Lru(Share::Dram),
        Self::Lru(Share::Cost),
        Self::Lru(Share::Capacity),
    ];

    /// Returns its name in the results.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Nothing => BACKING.to_owned(),
            Self::Cache(policy, Mode::WriteBack) => policy.name().to_owned(),
            Self::Cache(policy, mode) => format!("{policy}-{mode}"),
            Self::Lru(Share::Dram) => "dram-lru".to_owned(),
            Self::Lru(Share::Cost) => "dram-lru-equal-cost".to_owned(),
            Self::Lru(Share::Capacity) => "dram-lru-equal-capacity".to_owned(),
        }
    }

    /// Returns the policy that the simulator has for it, and its spec.
    pub(crate) fn simulated(
        self,
        spec: &Spec,
        settings: &CacheArgs,
    ) -> Result<Option<(Kind, Spec)>> {
        Ok(match self {
            Self::Nothing => None,
            Self::Cache(policy, _) => Some((policy, *spec)),
            Self::Lru(share) => match share.pages(spec, settings.scm_price) {
                // The simulator's smallest cache.
                0 | 1 => None,
                pages => Some((Kind::Lru, Spec::new(pages)?)),
            },
        })
    }
}

/// Counts that both kinds of caches have.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counted {
    pub(crate) hits: u64,
    pub(crate) accesses: u64,
    /// Bytes written to storage-class memory; `None` if there is none.
    pub(crate) scm_bytes: Option<u64>,
    pub(crate) written_back: u64,
    pub(crate) runs: u64,
}

/// A front before a backing device of its own.
pub(crate) struct Subject {
    pub(crate) backing: Arc<Backing>,
    kind: Made,
}

enum Made {
    Nothing,
    Cache(Arc<Cache>),
    Lru(Arc<LruCache>),
}

/// A writer in the background, for as long as it is held.
pub(crate) enum Writer {
    Cache { _thread: WritebackThread },
    Lru { _thread: LruWriter },
}

impl Subject {
    /// Makes an empty `front` of the size in `spec`.
    ///
    /// # Errors
    /// No memory for it.
    pub(crate) fn new(
        front: Front,
        backing: Arc<Backing>,
        spec: &Spec,
        settings: &CacheArgs,
    ) -> Result<Self> {
        let kind = match front {
            Front::Nothing => Made::Nothing,
            Front::Cache(policy, mode) => {
                let backing: Arc<dyn BlockDevice> = Arc::<Backing>::clone(&backing);
                Made::Cache(new_cache(backing, policy, mode, spec, |pool_bytes| {
                    let options = MediaOptions::new().emulate(Some(settings.scm));
                    Mapped::anonymous(pool_bytes, &options)
                        .with_context(|| format!("no memory for a pool of {pool_bytes} bytes"))
                })?)
            }
            Front::Lru(share) => {
                let pages = share.pages(spec, settings.scm_price) as usize;
                Made::Lru(Arc::new(LruCache::new(Arc::<Backing>::clone(&backing), pages)))
            }
        };
        Ok(Self { backing, kind })
    }

    pub(crate) fn device(&self) -> &dyn BlockDevice {
        match &self.kind {
            Made::Nothing => &*self.backing,
            Made::Cache(cache) => &**cache,
            Made::Lru(cache) => &**cache,
        }
    }

    /// Returns our cache, if it is one.
    pub(crate) fn cache(&self) -> Option<Arc<Cache>> {
        match &self.kind {
            Made::Cache(cache) => Some(Arc::clone(cache)),
            Made::Nothing | Made::Lru(_) => None,
        }
    }

    /// Does the write-back that a background thread would do now, if there is one.
    ///
    /// # Errors
    /// The cache's.
    pub(crate) fn write_back_due(&self) -> Result<()> {
        match &self.kind {
            Made::Nothing => {}
            Made::Cache(cache) => {
                cache.write_back_due()?;
            }
            Made::Lru(cache) => cache.write_back_due()?,
        }
        Ok(())
    }

    /// Starts the write-back thread, if the front has one; it runs as long as it is held.
    ///
    /// # Errors
    /// No thread could be started.
    pub(crate) fn writer(&self) -> Result<Option<Writer>> {
        Ok(match &self.kind {
            Made::Nothing => None,
            Made::Cache(cache) => Some(Writer::Cache { _thread: WritebackThread::start(cache)? }),
            Made::Lru(cache) => Some(Writer::Lru { _thread: LruWriter::start(cache)? }),
        })
    }

    /// Returns a cache's counts.
    pub(crate) fn counted(&self) -> Option<Counted> {
        match &self.kind {
            Made::Nothing => None,
            Made::Cache(cache) => {
                let stats = cache.stats();
                Some(Counted {
                    hits: stats.hits(),
                    accesses: stats.hits() + stats.misses,
                    scm_bytes: Some(
                        stats.scm_bytes_in_place
                            + stats.scm_bytes_moved
                            + stats.scm_bytes_persisted,
                    ),
                    written_back: stats.written_back_pages,
                    runs: stats.write_back_runs,
                })
            }
            Made::Lru(cache) => {
                let stats = cache.stats();
                Some(Counted {
                    hits: stats.hits,
                    accesses: stats.hits + stats.misses,
                    scm_bytes: None,
                    written_back: stats.written_back,
                    runs: stats.runs,
                })
            }
        }
    }
}

/// Makes our cache before `backing` in a new pool, on memory of as many bytes as are asked of `memory`.
///
/// # Errors
/// No memory for it.
pub(crate) fn new_cache(
    backing: Arc<dyn BlockDevice>,
    policy: Kind,
    mode: Mode,
    spec: &Spec,
    memory: impl FnOnce(u64) -> Result<Mapped>,
) -> Result<Arc<Cache>> {
    let identity = Identity {
        kind: "file".into(),
        name: "model".into(),
        serial: String::new(),
        backing: None,
    };
    let backing_bytes = backing.geometry().size_bytes;
    let capacity = spec.capacity();
    let settings = everbyte_cache::Settings {
        backing: identity.clone(),
        backing_bytes,
        dram_bytes: u64::from(capacity.dram) * PAGE,
        scm_bytes: u64::from(capacity.scm) * PAGE,
        mode,
        policy,
        small_write_bytes: spec.small_write_bytes,
    };
    let pool_bytes = (settings.volume_page_bytes_max() * 5 / 4 + (64 << 20)).next_multiple_of(PAGE);
    let medium = memory(pool_bytes)?;
    Pool::format(&medium, 4, [1; 16])?;
    let pool = Arc::new(Pool::open(Arc::new(medium), kinds(), &OpenOptions::default())?);
    let (size_bytes, options) = (volume_bytes(backing_bytes), BlockOptions::default());
    let volume = BlockVolume::create_as(&pool, "c", VolumeKind::CACHE, size_bytes, &options)?;
    Cache::format(&volume, &settings)?;
    Ok(Arc::new(Cache::open(Arc::new(volume), backing, &identity)?))
}

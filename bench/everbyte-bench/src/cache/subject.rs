//! Subjects of the suite: the backing device alone, our cache, plain caches.

use std::any::Any;
use std::sync::Arc;

use anyhow::{Context, Result};
use everbyte_block::{BlockOptions, BlockVolume, kinds};
use everbyte_cache::{Cache, Identity, Mode, WritebackThread, volume_bytes};
use everbyte_device::BlockDevice;
use everbyte_media::{Mapped, MediaOptions};
use everbyte_policy::sim::{Kind, Spec};
use everbyte_pool::format::VolumeKind;
use everbyte_pool::{OpenOptions, Pool};

use super::Counts;
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
    /// A plain cache in DRAM, without SCM.
    Lru(Share),
}

/// Size of a plain cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Share {
    /// The DRAM of our cache.
    Dram,
    /// DRAM at the cost of our cache.
    Cost,
    /// DRAM of the size of our DRAM and SCM.
    Capacity,
}

impl Share {
    /// Pages compared with a cache of ours.
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

impl Front {
    /// Fronts with a cache.
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
            Self::Nothing => "backing".to_owned(),
            Self::Cache(policy, Mode::WriteBack) => policy.name().to_owned(),
            Self::Cache(policy, mode) => format!("{policy}-{mode}"),
            Self::Lru(Share::Dram) => "dram-lru".to_owned(),
            Self::Lru(Share::Cost) => "dram-lru-equal-cost".to_owned(),
            Self::Lru(Share::Capacity) => "dram-lru-equal-capacity".to_owned(),
        }
    }

    /// Returns the policy and the spec of the simulator for this front.
    pub(crate) fn simulated(
        self,
        spec: &Spec,
        settings: &CacheArgs,
    ) -> Result<Option<(Kind, Spec)>> {
        Ok(match self {
            Self::Nothing => None,
            Self::Cache(policy, _) => Some((policy, *spec)),
            Self::Lru(share) => match share.pages(spec, settings.scm_price) {
                // The smallest cache of the simulator has two pages.
                0 | 1 => None,
                pages => Some((Kind::Lru, Spec::new(pages)?)),
            },
        })
    }
}

/// A front before its own backing device.
pub(crate) struct Subject {
    pub(crate) backing: Arc<Backing>,
    cache: FrontCache,
}

enum FrontCache {
    Absent,
    Ours(Arc<Cache>),
    Lru(Arc<LruCache>),
}

impl Subject {
    /// Makes an empty `front` with the size of `spec`.
    ///
    /// # Errors
    /// There is not enough memory.
    pub(crate) fn new(
        front: Front,
        backing: Arc<Backing>,
        spec: &Spec,
        settings: &CacheArgs,
    ) -> Result<Self> {
        let cache = match front {
            Front::Nothing => FrontCache::Absent,
            Front::Cache(policy, mode) => {
                let backing: Arc<dyn BlockDevice> = Arc::<Backing>::clone(&backing);
                FrontCache::Ours(new_cache(backing, policy, mode, spec, |pool_bytes| {
                    let options = MediaOptions::new().emulate(Some(settings.scm));
                    Mapped::anonymous(pool_bytes, &options)
                        .with_context(|| format!("no memory for a pool of {pool_bytes} bytes"))
                })?)
            }
            Front::Lru(share) => {
                let pages = share.pages(spec, settings.scm_price) as usize;
                FrontCache::Lru(Arc::new(LruCache::new(Arc::<Backing>::clone(&backing), pages)))
            }
        };
        Ok(Self { backing, cache })
    }

    pub(crate) fn device(&self) -> &dyn BlockDevice {
        match &self.cache {
            FrontCache::Absent => &*self.backing,
            FrontCache::Ours(cache) => &**cache,
            FrontCache::Lru(cache) => &**cache,
        }
    }

    /// Does the due write-back of a background thread.
    ///
    /// # Errors
    /// The cache's.
    pub(crate) fn write_back_due(&self) -> Result<()> {
        match &self.cache {
            FrontCache::Absent => {}
            FrontCache::Ours(cache) => drop(cache.write_back_due()?),
            FrontCache::Lru(cache) => cache.write_back_due()?,
        }
        Ok(())
    }

    /// Starts the write-back thread of a cache. A drop of the result ends it.
    ///
    /// # Errors
    /// The system starts no thread.
    pub(crate) fn writer(&self) -> Result<Option<Box<dyn Any>>> {
        Ok(match &self.cache {
            FrontCache::Absent => None,
            FrontCache::Ours(cache) => Some(Box::new(WritebackThread::start(cache)?)),
            FrontCache::Lru(cache) => Some(Box::new(LruWriter::start(cache)?)),
        })
    }

    /// Returns the counts of a cache.
    pub(crate) fn counts(&self) -> Option<Counts> {
        match &self.cache {
            FrontCache::Absent => None,
            FrontCache::Ours(cache) => {
                let stats = cache.stats();
                let in_place = stats.scm_bytes_in_place;
                Some(Counts {
                    hits: stats.hits(),
                    accesses: stats.hits() + stats.misses,
                    scm_bytes: Some(in_place + stats.scm_bytes_moved + stats.scm_bytes_persisted),
                    written_back: stats.written_back_pages,
                    runs: stats.write_back_runs,
                })
            }
            FrontCache::Lru(cache) => Some(cache.counts()),
        }
    }
}

/// Makes our cache before `backing` in a new pool on `memory`, by its size in bytes.
///
/// # Errors
/// There is not enough memory.
pub(crate) fn new_cache(
    backing: Arc<dyn BlockDevice>,
    policy: Kind,
    mode: Mode,
    spec: &Spec,
    memory: impl FnOnce(u64) -> Result<Mapped>,
) -> Result<Arc<Cache>> {
    let (kind, name) = ("file".into(), "model".into());
    let identity = Identity { kind, name, serial: String::new(), backing: None };
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
    // The pool also holds maps, logs and the volume's descriptor.
    let pool_bytes = (settings.volume_page_bytes_max() * 5 / 4 + (64 << 20)).next_multiple_of(PAGE);
    let medium = memory(pool_bytes)?;
    Pool::format(&medium, 4, [1; 16])?;
    let pool = Arc::new(Pool::open(Arc::new(medium), kinds(), &OpenOptions::default())?);
    let (size_bytes, options) = (volume_bytes(backing_bytes), BlockOptions::default());
    let volume = BlockVolume::create_as(&pool, "c", VolumeKind::CACHE, size_bytes, &options)?;
    Cache::format(&volume, &settings)?;
    Ok(Arc::new(Cache::open(Arc::new(volume), backing, &identity)?))
}

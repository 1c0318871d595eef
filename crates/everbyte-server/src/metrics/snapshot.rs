//! The figures of a served pool at one moment.

use everbyte::pool::Health;
use everbyte_control::{CacheMetrics, PoolMetrics, VolumeMetrics};
use everbyte_media::{BLOCK_U64, Mapped, Medium};

use crate::open_pool::OpenPool;
use crate::status;

/// Volumes in the metrics at most: the oldest ones. A page for more would be too long for a scrape.
const VOLUMES_MAX: usize = 256;

impl OpenPool {
    /// The figures of the pool, its volumes and servers. Opens no volume.
    #[must_use]
    pub fn metrics(&self) -> PoolMetrics {
        let (engine, info) = (self.pool.engine(), self.pool.info());
        let mut volumes = engine.volumes();
        // Numbers of volumes grow, so a volume never leaves the page because of a new one.
        volumes.sort_unstable_by_key(|volume| volume.descriptor().uid);
        let omitted_volumes = volumes.len().saturating_sub(VOLUMES_MAX) as u64;
        let shown = volumes.iter().take(VOLUMES_MAX);
        PoolMetrics {
            pool: self.pool.path().display().to_string(),
            uptime_ms: u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX),
            size_bytes: info.size_bytes,
            free_bytes: info.free_bytes,
            provisioned_bytes: info.provisioned_bytes,
            low_on_space: info.low_on_space,
            medium: status::counters(engine.medium().counters()),
            servers: self.servers().iter().flatten().map(|server| status::server(server)).collect(),
            volumes: shown.map(|volume| self.volume_metrics(volume)).collect(),
            omitted_volumes,
        }
    }

    fn volume_metrics(&self, volume: &everbyte_pool::Volume<Mapped>) -> VolumeMetrics {
        let mut metrics = VolumeMetrics {
            name: volume.name().to_owned(),
            uid: volume.descriptor().uid,
            size_bytes: volume.size_bytes().unwrap_or_default(),
            used_bytes: volume.used_blocks().map(|blocks| blocks * BLOCK_U64),
            log_used_bytes: volume.log_used_bytes(),
            log_max_bytes: volume.log_half_bytes(),
            log_bytes: volume.log_bytes(),
            checkpoints: volume.checkpoints(),
            dirty_lines: volume.dirty_lines(),
            checkpoint_lines: volume.checkpoint_lines(),
            ..VolumeMetrics::default()
        };
        let opened = self.volumes.opened(volume.name());
        let status = match &opened {
            Some(opened) => self.status_of(opened),
            None => status::volume(volume, self.pool.status_of(volume), None),
        };
        metrics.healthy = status::health_of(&status) == Health::Clean;
        metrics.size_bytes = status.size_bytes;
        metrics.clients = status.clients.unwrap_or_default();
        metrics.cache = status.cache().map(|cache| {
            let count = |name| cache.counts.get(name).copied().unwrap_or_default();
            CacheMetrics {
                cached_bytes: cache.cached_bytes,
                dirty_bytes: cache.dirty_bytes,
                hits_dram: count("hits_dram"),
                hits_scm: count("hits_scm"),
                misses: count("misses"),
                written_back_pages: count("written_back_pages"),
                backing_errors: count("backing_errors"),
                scm_errors: count("scm_errors"),
            }
        });
        if let Some(swap) = status.swap() {
            metrics.lent_bytes = Some(swap.lent_bytes);
            metrics.borrowers = Some(swap.pids.len() as u64);
        }
        (metrics.kind, metrics.state) = (status.kind, status.state);
        if let Some(opened) = opened {
            opened.meters.add_to(&mut metrics.requests, &mut metrics.errors);
        }
        metrics
    }
}

//! Counters of a cache since it was opened, by reason.

use everbyte_policy::policy::{Action, ActionCount, ActionCounts, Tier};
use serde::{Deserialize, Serialize};

/// Counters since a cache was opened, and its present contents. Accesses are counted in pages of
/// 4096 bytes: a request counts once for each of its pages.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct CacheStats {
    /// Accesses with the page in DRAM.
    pub hits_dram: u64,
    /// Accesses with the page in SCM.
    pub hits_scm: u64,
    /// Accesses with the page absent, or evicted and not yet written back.
    pub misses: u64,
    /// Hits of either kind that were dropped before a report to the policy, because other threads'
    /// decisions took too long.
    #[serde(default)]
    pub hits_dropped: u64,
    /// Pages fetched from the backing device.
    pub fetched_pages: u64,
    /// Reads of the backing device for these fills.
    pub fetches: u64,
    /// Bytes written by requests to SCM in place.
    pub scm_bytes_in_place: u64,
    /// Bytes written to SCM because a page was filled or demoted there.
    pub scm_bytes_moved: u64,
    /// Bytes written to SCM as persisted copies of pages in DRAM.
    pub scm_bytes_persisted: u64,
    /// Pages written back to the backing device.
    pub written_back_pages: u64,
    /// Writes to the backing device for these pages, each of a run of adjacent pages.
    pub write_back_runs: u64,
    /// Bytes of bypassing writes, in write-around mode.
    pub bypass_write_bytes: u64,
    /// Bytes of whole pages that trims and zeroing requests changed directly on the backing device.
    pub bypass_zero_bytes: u64,
    /// Failed reads, writes and flushes of the backing device.
    pub backing_errors: u64,
    /// Failed accesses of SCM.
    pub scm_errors: u64,
    /// Dirty pages found at opening without any proof of the backing device's identity; 0 with
    /// proof by identity or clean pages.
    #[serde(default)]
    pub unproven_pages: u64,
    /// Pages in the cache now.
    pub pages: u64,
    /// Of these, dirty pages: the backing device may have older bytes.
    pub dirty_pages: u64,
    /// Of these, evicted pages pending write-back.
    pub pending_pages: u64,
    /// Fills, moves, copies, drops and evictions by reason, without zero counts.
    pub actions: Vec<ActionCount>,
}

impl CacheStats {
    /// Accesses with the page in the cache.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.hits_dram + self.hits_scm
    }

    /// Returns the share of accesses with the page in the cache, in thousandths; `None` without
    /// accesses.
    #[must_use]
    pub fn hit_permille(&self) -> Option<u64> {
        let accesses = self.hits() + self.misses;
        (accesses > 0).then(|| self.hits() * 1000 / accesses)
    }
}

/// The counters of an open cache.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) stats: CacheStats,
    actions: ActionCounts,
}

impl Counts {
    pub(crate) fn count(&mut self, action: Action) {
        match action {
            Action::Hit { found: Tier::Dram, .. } => self.stats.hits_dram += 1,
            Action::Hit { found: Tier::Scm, .. } => self.stats.hits_scm += 1,
            Action::Fill { .. } => self.stats.misses += 1,
            _ => {}
        }
        self.actions.count(&action);
    }

    /// Returns the counters, with actions by name.
    pub(crate) fn shown(&self) -> CacheStats {
        CacheStats { actions: self.actions.named(), ..self.stats.clone() }
    }
}

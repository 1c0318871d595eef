//! Counters of a cache since it was opened, by reason.

use everbyte_policy::policy::{Action, Reason, Tier};
use serde::{Deserialize, Serialize};

const ACTION_NAMES: [&str; 10] = [
    "fill_dram",
    "fill_scm",
    "to_scm",
    "to_dram",
    "copy_to_dram",
    "drop_dram",
    "drop_scm",
    "evict_dram",
    "evict_scm",
    "update_scm",
];

/// Number of times that the policy asked for an action, for one reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ActionCount {
    /// `fill_dram`, `fill_scm`, `to_scm`, `to_dram`, `copy_to_dram`, `drop_dram`, `drop_scm`,
    /// `evict_dram` or `evict_scm`.
    pub action: String,
    /// The name of a [`Reason`].
    pub reason: String,
    /// Number of times.
    pub count: u64,
}

/// Counters since a cache was opened, and its present contents. Accesses are counted in pages of
/// 4096 bytes: a request counts once for each page that it touches.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct CacheStats {
    /// Accesses whose page was in DRAM.
    pub hits_dram: u64,
    /// Accesses whose page was in SCM.
    pub hits_scm: u64,
    /// Accesses whose page was not in the cache, or was evicted and not yet written back.
    pub misses: u64,
    /// Hits of either kind that the policy was not told of, because other threads' decisions took too
    /// long.
    #[serde(default)]
    pub hits_untold: u64,
    /// Pages fetched from the backing device.
    pub fetched_pages: u64,
    /// Reads of the backing device that fetched them.
    pub fetches: u64,
    /// Bytes that requests wrote to SCM in place.
    pub scm_bytes_in_place: u64,
    /// Bytes written to SCM because a page was filled or demoted there.
    pub scm_bytes_moved: u64,
    /// Bytes written to SCM as persisted copies of pages in DRAM.
    pub scm_bytes_persisted: u64,
    /// Pages written back to the backing device.
    pub written_back_pages: u64,
    /// Writes to the backing device that wrote them back, each of a run of adjacent pages.
    pub write_back_runs: u64,
    /// Bytes of writes that bypassed the cache, in write-around mode.
    pub bypass_write_bytes: u64,
    /// Bytes of whole pages that trims and zeroing requests changed on the backing device directly.
    pub bypass_zero_bytes: u64,
    /// Reads, writes and flushes of the backing device that failed.
    pub backing_errors: u64,
    /// Accesses of SCM that failed.
    pub scm_errors: u64,
    /// Dirty pages found at opening although nothing proved that the backing device is the cache's
    /// own; 0 if its identity or clean pages did.
    #[serde(default)]
    pub unproven_pages: u64,
    /// Pages in the cache now.
    pub pages: u64,
    /// Of these, dirty pages: the backing device may have older bytes.
    pub dirty_pages: u64,
    /// Of these, pages that the policy has evicted and that are pending write-back.
    pub pending_pages: u64,
    /// Fills, moves, copies, drops and evictions by reason, without those that did not occur.
    pub actions: Vec<ActionCount>,
}

impl CacheStats {
    /// Accesses whose page was in the cache.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.hits_dram + self.hits_scm
    }

    /// Returns the share of accesses whose page was in the cache, in thousandths; `None` without
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
    actions: [[u64; Reason::ALL.len()]; ACTION_NAMES.len()],
}

impl Counts {
    pub(crate) fn count(&mut self, action: Action) {
        let of = |tier, dram, scm| if tier == Tier::Dram { dram } else { scm };
        let (name, why) = match action {
            Action::Hit { found, .. } => {
                match found {
                    Tier::Dram => self.stats.hits_dram += 1,
                    Tier::Scm => self.stats.hits_scm += 1,
                }
                return;
            }
            Action::Fill { tier, why, .. } => {
                self.stats.misses += 1;
                (of(tier, 0, 1), why)
            }
            Action::Move { to, why, .. } => (of(to, 3, 2), why),
            Action::Copy { why, .. } => (4, why),
            Action::Drop { from, why, .. } => (of(from, 5, 6), why),
            Action::Evict { from, why, .. } => (of(from, 7, 8), why),
            Action::Update { why, .. } => (9, why),
        };
        self.actions[name][why as usize] += 1;
    }

    /// Returns the counters, with actions by name.
    pub(crate) fn shown(&self) -> CacheStats {
        let mut stats = self.stats.clone();
        for (name, counts) in ACTION_NAMES.iter().zip(&self.actions) {
            for (reason, &count) in Reason::ALL.iter().zip(counts).filter(|(_, count)| **count > 0)
            {
                let (action, reason) = ((*name).to_owned(), reason.name().to_owned());
                stats.actions.push(ActionCount { action, reason, count });
            }
        }
        stats
    }
}

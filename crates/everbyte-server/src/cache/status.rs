//! A cache in figures.

use std::time::Duration;

use everbyte_cache::{CacheError, CacheStats, Settings, inspect};
use everbyte_control::CacheStatus;

use super::{Shared, State};
use crate::handle::Unavailable;

/// Time after which a backing device that has not answered counts as silent.
const SILENT_AFTER: Duration = Duration::from_secs(5);

/// State of a cache in a word or two, with the reason.
struct Condition {
    state: &'static str,
    reason: Option<String>,
}

impl Shared {
    /// The cache in figures.
    ///
    /// # Errors
    /// Its volume cannot be read.
    pub(super) fn status(&self) -> Result<CacheStatus, CacheError> {
        let (found, condition) = {
            let state = self.state.lock();
            let found = match &*state {
                State::Open(open) => Some((open.cache.settings().clone(), open.cache.stats())),
                _ => None,
            };
            (found, self.condition(&state))
        };
        let mut status = match found {
            Some((settings, stats)) => figures(&settings, &stats),
            None => self.inspected()?,
        };
        condition.state.clone_into(&mut status.state);
        status.reason = condition.reason;
        Ok(status)
    }

    fn condition(&self, state: &State) -> Condition {
        let silence = self.watch.stall_time();
        if silence >= SILENT_AFTER {
            return Condition { state: "backing silent", reason: Some(self.silent(silence)) };
        }
        let (state, reason) = match state {
            State::Open(_) => ("open", None),
            State::Opening => ("opening", None),
            State::Changing => ("changing", None),
            State::Closed(None) => ("closed", None),
            State::Closed(Some(Unavailable { state, reason, .. })) => {
                (*state, Some(reason.clone()))
            }
        };
        Condition { state, reason }
    }

    /// Figures from the cache's volume, while the cache is not open.
    fn inspected(&self) -> Result<CacheStatus, CacheError> {
        let found = inspect(&*self.volume).inspect_err(|error| {
            tracing::warn!(volume = self.name(), %error, "the cache cannot be looked at");
        })?;
        let stats = CacheStats {
            pages: found.pages,
            dirty_pages: found.dirty_pages,
            ..CacheStats::default()
        };
        let mut status = figures(&found.settings, &stats);
        status.counts.clear();
        Ok(status)
    }
}

fn figures(settings: &Settings, stats: &CacheStats) -> CacheStatus {
    let counts = [
        ("hits_dram", stats.hits_dram),
        ("hits_scm", stats.hits_scm),
        ("hits_dropped", stats.hits_dropped),
        ("misses", stats.misses),
        ("fetched_pages", stats.fetched_pages),
        ("fetches", stats.fetches),
        ("scm_bytes_in_place", stats.scm_bytes_in_place),
        ("scm_bytes_moved", stats.scm_bytes_moved),
        ("scm_bytes_persisted", stats.scm_bytes_persisted),
        ("written_back_pages", stats.written_back_pages),
        ("write_back_runs", stats.write_back_runs),
        ("bypass_write_bytes", stats.bypass_write_bytes),
        ("bypass_zero_bytes", stats.bypass_zero_bytes),
        ("backing_errors", stats.backing_errors),
        ("scm_errors", stats.scm_errors),
        ("pending_pages", stats.pending_pages),
        ("unproven_pages", stats.unproven_pages),
    ];
    let reasons = stats.actions.iter();
    CacheStatus {
        state: String::new(),
        reason: None,
        backing: settings.backing.name.clone(),
        backing_bytes: settings.backing_bytes,
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

//! A cache in figures.

use std::time::Duration;

use everbyte_cache::{CacheStats, Settings};
use everbyte_device::BlockDevice;

use super::open::{OpenCache, State};
use super::state::CacheState;
use crate::error::CacheError;

/// Time without an answer after which a backing device counts as silent.
const SILENT_AFTER: Duration = Duration::from_secs(5);

/// A cache in figures.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CacheStatus {
    /// Its state.
    pub state: CacheState,
    /// The reason for the state, if there is one.
    pub reason: Option<String>,
    /// Its settings: backing device, sizes, mode, policy.
    pub settings: Settings,
    /// Counts since the opening, and the present contents. If the cache is not open, only the pages
    /// are known.
    pub stats: CacheStats,
    /// True if the cache is open, and its counts are known.
    pub has_counts: bool,
    /// True if the backing device is known to be write-protected.
    pub is_write_protected: bool,
}

impl OpenCache {
    /// The cache in figures.
    ///
    /// # Errors
    /// Its volume cannot be read.
    pub(crate) fn status(&self) -> Result<CacheStatus, CacheError> {
        // Without the lock of the state: the watchdog has its own.
        let stall_time = self.watch.stall_time();
        let (found, (state, reason)) = {
            let state = self.state.lock();
            let found = match &*state {
                State::Open(parts) => {
                    let protected = parts.cache.geometry().read_only;
                    Some((parts.cache.settings().clone(), parts.cache.stats(), protected))
                }
                _ => None,
            };
            (found, condition(&state))
        };
        // Silence says more than the state: an open cache with a hanging device looks sound.
        let (state, reason) = match stall_time >= SILENT_AFTER {
            true => (CacheState::BackingSilent, Some(self.silent(stall_time))),
            false => (state, reason),
        };
        let has_counts = found.is_some();
        let (settings, stats, is_write_protected) = match found {
            Some(found) => found,
            None => {
                // Outside the lock of the state: the inspection reads the volume.
                let found = self.inspect().inspect_err(|error| {
                    tracing::warn!(volume = self.name(), %error, "the cache cannot be inspected");
                })?;
                let stats = CacheStats {
                    pages: found.pages,
                    dirty_pages: found.dirty_pages,
                    ..CacheStats::default()
                };
                (found.settings, stats, false)
            }
        };
        Ok(CacheStatus { state, reason, settings, stats, has_counts, is_write_protected })
    }

    /// The state of the cache.
    pub(super) fn cache_state(&self) -> CacheState {
        condition(&self.state.lock()).0
    }
}

fn condition(state: &State) -> (CacheState, Option<String>) {
    match state {
        State::Open(_) => (CacheState::Open, None),
        State::Opening => (CacheState::Opening, None),
        State::Changing => (CacheState::Changing, None),
        State::Closed(None) | State::Ended(_) => (CacheState::Closed, None),
        State::Closed(Some(why)) => (why.state, Some(why.to_string())),
    }
}

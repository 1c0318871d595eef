//! Parts shared by the commands with a server: their target, the signals to end them, and their log
//! of a recovery.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use everbyte_path::{Kind, look};
use everbyte_pool::file::FileError;
use everbyte_server::OpenPool;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::service;
use crate::interrupt::KILLED_STATUS;

/// Time between two polls of the second condition in a wait for two.
const LOOK: Duration = Duration::from_millis(50);

/// The signals to end a server. The server waits for the first; a second one ends the process
/// immediately.
pub(crate) struct Stop {
    signals: Signals,
    stopping: Arc<AtomicBool>,
    /// True once one has come.
    wanted: Arc<AtomicBool>,
}

impl Stop {
    const SIGNALS: [i32; 3] = [SIGHUP, SIGINT, SIGTERM];

    pub(crate) fn new() -> anyhow::Result<Self> {
        let (stopping, wanted) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        for signal in Self::SIGNALS {
            let stopping = Arc::clone(&stopping);
            // `stopping` is set once the shutdown has begun, so only a later signal ends the
            // process immediately.
            signal_hook::flag::register_conditional_shutdown(signal, KILLED_STATUS, stopping)?;
            signal_hook::flag::register(signal, Arc::clone(&wanted))?;
        }
        Ok(Self { signals: Signals::new(Self::SIGNALS)?, stopping, wanted })
    }

    /// Returns true once a signal has come.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst)
    }

    /// Waits for a signal.
    pub(crate) fn wait(&mut self) {
        let signal = self.signals.forever().next();
        self.stopping.store(true, Ordering::SeqCst);
        tracing::info!(signal, "shutting down");
        service::stopping("finishing requests, then closing the pool");
    }

    /// Waits for a signal, or until `is_over` returns true: no work is left.
    pub(crate) fn wait_unless(&self, is_over: impl Fn() -> bool) {
        while !self.is_wanted() && !is_over() {
            // Polled: the end of a mount has no signal that could be waited for together with
            // these.
            std::thread::sleep(LOOK);
        }
        self.stopping.store(true, Ordering::SeqCst);
        tracing::info!("shutting down");
        service::stopping("unmounting");
    }
}

/// The pool, and the volume if the last part of `target` does not belong to the pool's path.
pub(crate) fn split_target(target: &Path) -> anyhow::Result<(PathBuf, Option<String>)> {
    // An existing file wins: a pool may have a name like a volume's path.
    if look(target).is_ok() {
        return Ok((target.to_owned(), None));
    }
    if let (Some(pool), Some(volume)) = (target.parent(), target.file_name())
        // A directory is not a pool. The last part is then a missing file, and the error says so.
        && look(pool).is_ok_and(|found| found.kind() != Kind::Directory)
    {
        let Some(volume) = volume.to_str() else {
            bail!("{} names no volume: names are made of ASCII letters", target.display());
        };
        return Ok((pool.to_owned(), Some(volume.to_owned())));
    }
    Err(FileError::NotFound { path: target.to_owned() }.into())
}

/// Serves commands on the control socket until the pool is closed.
pub(crate) fn start_control(pool: &Arc<OpenPool>) -> anyhow::Result<()> {
    let failed = || format!("cannot make the control socket of {}", pool.pool().path().display());
    pool.start_control().with_context(failed)
}

/// Logs the recovery at the opening of the pool.
pub(crate) fn report_recovery(pool: &OpenPool, took: Duration) {
    let summary = pool.pool().recovery();
    for remark in &summary.remarks {
        tracing::warn!("{remark}");
    }
    let info = pool.pool().info();
    if let Some(reason) = &info.read_only {
        tracing::warn!("the pool is read-only: {reason}");
    }
    if summary.was_clean {
        tracing::info!(?took, volumes = info.volumes, "opened; it was shut down cleanly");
    } else {
        let records = summary.records_undone;
        tracing::info!(?took, volumes = info.volumes, records, "recovered after a crash");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_is_pool_or_volume() {
        let folder = tempfile::tempdir().unwrap();
        let pool = folder.path().join("pool");
        std::fs::write(&pool, "").unwrap();
        assert_eq!(split_target(&pool).unwrap(), (pool.clone(), None));
        let (found, volume) = split_target(&pool.join("disk")).unwrap();
        assert_eq!((found, volume.as_deref()), (pool.clone(), Some("disk")));
        for wrong in [folder.path().join("other"), pool.join("disk/more")] {
            let error = split_target(&wrong).unwrap_err().to_string();
            assert!(error.contains("there is no pool"), "{error}");
        }
    }
}

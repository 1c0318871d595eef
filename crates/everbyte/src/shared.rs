//! The state that the handles of a pool and of its volumes share, and closing it with the last one.
//!
//! Invariants: a pool is marked clean only if everything that was answered is in it; else closing it
//! returns an error. A cache is in the list of caches until it has been closed without loss.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::backing::Claim;
use everbyte_device::DeviceError;
use everbyte_media::{Description, Mapped, Stack};
use everbyte_pool::{CheckpointTimer, PoolError};
use parking_lot::Mutex;

use crate::error::Error;
use crate::open_cache::OpenCache;

pub(crate) type Engine = everbyte_pool::Pool<Mapped>;

/// Use of backing devices by caches.
pub(crate) struct BackingUse {
    pub(crate) options: crate::backing::Options,
    /// Longest time one may be silent while its cache is made, opened or closed.
    pub(crate) silence_max: Duration,
    /// The objects that the pool lies on.
    pub(crate) stack: Option<Arc<Stack>>,
}

/// An open pool.
pub(crate) struct Shared {
    pub(crate) engine: Arc<Engine>,
    pub(crate) path: PathBuf,
    pub(crate) medium: Description,
    /// True if the engine has a private copy of the pool, whose changes are dropped.
    pub(crate) read_only: bool,
    pub(crate) backing: BackingUse,
    /// Held while a cache is made, opened or deleted, so that no two get one backing device.
    pub(crate) backings: Mutex<()>,
    _claim: Option<Claim>,
    timer: Mutex<Option<CheckpointTimer>>,
    caches: Mutex<Vec<Arc<OpenCache>>>,
    /// Set under `backings`, so that closing meets every cache that was opened before.
    is_closing: AtomicBool,
    closed: OnceLock<Result<(), CloseFailure>>,
}

#[derive(Clone)]
enum CloseFailure {
    Lost { volume: String, source: DeviceError },
    Pool(PoolError),
}

impl Shared {
    pub(crate) fn new(
        engine: Arc<Engine>,
        path: PathBuf,
        medium: Description,
        read_only: bool,
        backing: BackingUse,
    ) -> Self {
        let claim = backing.stack.as_ref().map(|stack| Claim::medium(Arc::clone(stack), &path));
        Self {
            engine,
            path,
            medium,
            read_only,
            backing,
            _claim: claim,
            backings: Mutex::default(),
            timer: Mutex::default(),
            caches: Mutex::default(),
            is_closing: AtomicBool::new(false),
            closed: OnceLock::new(),
        }
    }

    /// Keeps the timer until the pool is closed.
    pub(crate) fn set_timer(&self, timer: CheckpointTimer) {
        *self.timer.lock() = Some(timer);
    }

    /// Fails once closing has begun: no volume is opened any more.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.is_closing.load(Ordering::Acquire) {
            return Err(Error::Closed { path: self.path.clone() });
        }
        Ok(())
    }

    /// Fails if the pool is read-only, or once closing has begun.
    pub(crate) fn check_writable(&self) -> Result<(), Error> {
        self.check_open()?;
        if self.read_only {
            return Err(Error::ReadOnly { path: self.path.clone() });
        }
        Ok(())
    }

    /// Every cache that is open.
    pub(crate) fn caches(&self) -> Vec<Arc<OpenCache>> {
        self.caches.lock().clone()
    }

    /// Adds a cache to those that closing the pool closes.
    pub(crate) fn add_cache(&self, cache: &Arc<OpenCache>) {
        self.caches.lock().push(Arc::clone(cache));
    }

    /// Closes a cache that nobody uses any more. If something is lost, closing the pool returns that
    /// error again.
    ///
    /// # Errors
    /// Unflushed writes to it may be lost.
    pub(crate) fn close_cache(&self, cache: &Arc<OpenCache>) -> Result<(), DeviceError> {
        cache.close()?;
        self.caches.lock().retain(|open| !Arc::ptr_eq(open, cache));
        Ok(())
    }

    /// Ends checkpoints in the background, makes everything durable and marks the pool clean. Later
    /// calls return the first one's result.
    pub(crate) fn close(&self) -> Result<(), Error> {
        let closed = self.closed.get_or_init(|| self.shut_down()).clone();
        closed.map_err(|failure| match failure {
            CloseFailure::Lost { volume, source } => Error::Lost { volume, source },
            CloseFailure::Pool(source) => Error::Pool { path: self.path.clone(), source },
        })
    }

    fn shut_down(&self) -> Result<(), CloseFailure> {
        {
            let _backings = self.backings.lock();
            self.is_closing.store(true, Ordering::Release);
        }
        drop(self.timer.lock().take());
        if self.read_only {
            // Nothing is to be made durable: it has a private copy.
            for volume in self.engine.volumes() {
                volume.mark_gone();
            }
            return Ok(());
        }
        let mut closed = Ok(());
        for cache in self.caches() {
            if let Err(source) = cache.close() {
                let volume = cache.name.clone();
                tracing::error!(volume, error = %source, "the cache could not be made durable");
                closed = closed.and(Err(CloseFailure::Lost { volume, source }));
            }
        }
        if closed.is_ok() {
            return self.engine.close().map_err(CloseFailure::Pool);
        }
        // Not marked clean, but everything else is there.
        for volume in self.engine.volumes() {
            volume.mark_gone();
            if let Err(error) = volume.flush() {
                tracing::error!(volume = volume.name(), %error, "the last checkpoint failed");
            }
        }
        closed
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.closed.get().is_none()
            && let Err(error) = self.close()
        {
            tracing::error!(%error, "the pool was not closed cleanly");
        }
    }
}

//! A cache that is open: the engine, and the thread that writes back.
//!
//! Invariant: once it is closed, everything that was answered is durable in the pool, or whoever
//! closed it, and whoever does so again, knows that it is not; later requests are refused.

use std::sync::Arc;

use everbyte_cache::{Cache, Identity, Writer};
use everbyte_device::DeviceError;
use parking_lot::{MappedRwLockReadGuard, RwLock, RwLockReadGuard};

/// A cache in use.
pub(crate) struct OpenCache {
    pub(crate) name: String,
    pub(crate) backing: Identity,
    pub(crate) size_bytes: u64,
    /// Held shared by requests, so that closing waits for them.
    state: RwLock<State>,
}

enum State {
    Open {
        cache: Arc<Cache>,
        _writer: Writer,
    },
    /// With what closing came to.
    Closed(Result<(), DeviceError>),
}

impl OpenCache {
    /// Starts the thread that writes back.
    ///
    /// # Errors
    /// The system has no thread.
    pub(crate) fn start(name: &str, cache: Cache) -> std::io::Result<Self> {
        let settings = cache.settings();
        let (backing, size_bytes) = (settings.storage.clone(), settings.storage_bytes);
        let cache = Arc::new(cache);
        let writer = Writer::start(&cache)?;
        let state = RwLock::new(State::Open { cache, _writer: writer });
        Ok(Self { name: name.to_owned(), backing, size_bytes, state })
    }

    /// The cache for one request; it is not closed meanwhile.
    ///
    /// # Errors
    /// `Gone`, once it is closed.
    pub(crate) fn enter(&self) -> Result<MappedRwLockReadGuard<'_, Cache>, DeviceError> {
        let entered = RwLockReadGuard::try_map(self.state.read(), |state| match state {
            State::Open { cache, .. } => Some(&**cache),
            State::Closed(_) => None,
        });
        entered.map_err(|_| DeviceError::Gone)
    }

    /// Makes durable in the pool what lies in DRAM, ends the thread, and lets go of the backing
    /// device. Called again, it says the same again.
    ///
    /// # Errors
    /// What was written and not flushed may be lost.
    pub(crate) fn close(&self) -> Result<(), DeviceError> {
        let mut state = self.state.write();
        let closed = match &*state {
            State::Closed(closed) => return closed.clone(),
            State::Open { cache, .. } => cache.sync(),
        };
        *state = State::Closed(closed.clone());
        closed
    }
}

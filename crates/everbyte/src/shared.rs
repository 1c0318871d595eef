//! The state shared by the handles of a pool and of its volumes, and closing it with the last
//! handle.
//!
//! Invariants: a pool is marked clean only if it contains every answered write. Otherwise closing
//! it returns an error. A cache is in the list of caches until it has been closed without loss.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use everbyte_device::DeviceError;
use everbyte_media::{Description, Mapped, Stack};
use everbyte_pool::format::VolumeKind;
use everbyte_pool::{CheckpointTimer, DeletedVolume, PoolError};
use parking_lot::{Mutex, MutexGuard};

use crate::backing::{self, Claim, KnownBacking};
use crate::cache::{CacheState, OpenCache};
use crate::engine::{BackingUse, Engine, open_volume};
use crate::error::{Error, LostWrites};

/// Longest time a change waits while another cache gets its backing device.
const BACKINGS_TIME_MAX: Duration = Duration::from_secs(5);

/// An open volume of the engine, and its pool.
///
/// Dropped in this order: the volume first, because dropping the last handle of the pool closes it.
pub(crate) struct Handle<V> {
    pub(crate) volume: V,
    pub(crate) shared: Arc<Shared>,
}

impl<V> Handle<V> {
    pub(crate) fn new(volume: V, shared: &Arc<Shared>) -> Arc<Self> {
        Arc::new(Self { volume, shared: Arc::clone(shared) })
    }
}

/// An open pool.
pub(crate) struct Shared {
    pub(crate) engine: Arc<Engine>,
    pub(crate) path: PathBuf,
    pub(crate) medium: Description,
    /// True if the engine has a private copy of the pool. Changes to the copy are dropped.
    pub(crate) read_only: bool,
    pub(crate) backing: Arc<BackingUse>,
    /// The objects below the pool; `None` if it lies in memory without a name.
    stack: Option<Arc<Stack>>,
    /// Held while a cache gets a backing device: two caches never get one backing device.
    backings: Mutex<()>,
    /// Held while a volume gets another name or is deleted, while a cache is formatted, gets its handle
    /// or has a passing one, and while closing begins. A deletion never meets another volume of its
    /// name, and a cache is only in use if it is in the list of caches or ends.
    names: Mutex<()>,
    _claim: Option<Arc<Claim>>,
    timer: Mutex<Option<CheckpointTimer>>,
    caches: Mutex<Caches>,
    /// Losses of volumes, reported before the pool is closed.
    lost: Mutex<Vec<LostWrites>>,
    closed: OnceLock<Result<(), CloseFailure>>,
}

#[derive(Default)]
struct Caches {
    open: Vec<Arc<OpenCache>>,
    /// Under the lock of the list: closing meets every cache in it.
    is_closing: bool,
}

#[derive(Clone)]
enum CloseFailure {
    Lost(Vec<LostWrites>),
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
        let stack = engine.medium().stack().ok().flatten().map(Arc::new);
        let claim = stack.as_ref().map(|stack| Claim::medium(Arc::clone(stack), &path));
        Self {
            engine,
            path,
            medium,
            read_only,
            backing: Arc::new(backing),
            stack,
            backings: Mutex::default(),
            names: Mutex::default(),
            _claim: claim,
            timer: Mutex::default(),
            caches: Mutex::default(),
            lost: Mutex::default(),
            closed: OnceLock::new(),
        }
    }

    /// Keeps the timer until the pool is closed.
    pub(crate) fn set_timer(&self, timer: CheckpointTimer) {
        *self.timer.lock() = Some(timer);
    }

    /// Fails once closing has begun: from then on no volume is opened.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.caches.lock().is_closing {
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

    /// Begins a change of the backing device of cache `name`.
    pub(crate) fn begin_change(&self, name: &str) -> Result<MutexGuard<'_, ()>, Error> {
        let changing = self.backings.try_lock_for(BACKINGS_TIME_MAX).ok_or_else(|| {
            let reason = "another cache is being made or attached, and waits for its backing device: \
                          try again";
            let (volume, state) = (name.to_owned(), CacheState::Changing);
            Error::Unavailable { volume, state, reason: reason.to_owned() }
        })?;
        self.check_writable()?;
        Ok(changing)
    }

    /// Locks the names and handles of volumes for a change.
    pub(crate) fn lock_names(&self) -> Result<MutexGuard<'_, ()>, Error> {
        let names = self.names.lock();
        self.check_open()?;
        Ok(names)
    }

    /// Renames a volume.
    pub(crate) fn rename(&self, name: &str, new_name: &str) -> Result<(), Error> {
        let is_cache = self.engine.volume(name).is_ok_and(|v| v.kind() == VolumeKind::CACHE);
        // A search for the user of a backing device finds a cache under one of its names.
        let _backings = is_cache.then(|| self.begin_change(name)).transpose()?;
        let _names = self.lock_names()?;
        self.check_writable()?;
        self.engine.rename_volume(name, new_name).map_err(Error::volume(name))
    }

    /// Deletes a volume; with `is_forced`, also a damaged volume.
    pub(crate) fn delete(
        &self,
        volume: &everbyte_pool::Volume<Mapped>,
        is_forced: bool,
    ) -> Result<DeletedVolume, Error> {
        let _names = self.lock_names()?;
        self.check_writable()?;
        let name = volume.name();
        let deleted = match is_forced {
            true => self.engine.delete_damaged_volume(name),
            false => self.engine.delete_volume(name).map(|()| DeletedVolume::default()),
        };
        deleted.map_err(Error::volume(name))
    }

    /// Calls `look` with the cache `name`, or with a passing handle if it has none.
    ///
    /// # Errors
    /// It cannot be read, or its handle is being closed.
    pub(crate) fn look_at_cache<T>(
        &self,
        name: &str,
        look: impl FnOnce(&OpenCache) -> T,
    ) -> Result<T, Error> {
        // Another caller would take the passing handle for a use of the cache.
        let names = self.names.lock();
        // Listed caches first: their volume has no second handle.
        let open = self.caches.lock().open.iter().find(|cache| cache.is_in_use(name)).cloned();
        if let Some(cache) = open {
            // The look may wait for a backing device, and changes of other volumes go on.
            drop(names);
            return Ok(look(&cache));
        }
        let device = open_volume(&self.engine, name, VolumeKind::CACHE)?;
        Ok(look(&OpenCache::new(device, &self.backing, self.read_only)))
    }

    /// Adds a cache to the list of caches to close with the pool. Requires: the names are locked.
    pub(crate) fn add_cache(&self, cache: &Arc<OpenCache>) {
        self.caches.lock().open.push(Arc::clone(cache));
    }

    /// Closes a cache without users. If the cache loses writes, closing the pool returns the same
    /// error again.
    ///
    /// # Errors
    /// Unflushed writes to it may be lost.
    pub(crate) fn close_cache(&self, cache: &Arc<OpenCache>) -> Result<(), Error> {
        let volume = cache.name().to_owned();
        let closed = cache.close();
        closed.map_err(|why| Error::Lost { lost: vec![LostWrites::new(volume, &why)] })?;
        // After a success only: a cache with a loss stays for the close of the pool.
        self.forget_cache(cache);
        Ok(())
    }

    /// Takes a cache from the list.
    pub(crate) fn forget_cache(&self, cache: &Arc<OpenCache>) {
        self.caches.lock().open.retain(|open| !Arc::ptr_eq(open, cache));
    }

    /// Reports the possible loss of unflushed writes of a volume: the pool is not marked clean.
    pub(crate) fn note_loss(&self, lost: LostWrites) {
        self.lost.lock().push(lost);
    }

    /// Checks the backing device of cache `name`: no other cache has it or shares bytes with it,
    /// and the pool does not share bytes with it. `text` names the device in the error.
    pub(crate) fn check_unshared(
        &self,
        name: &str,
        text: &str,
        found: &KnownBacking,
    ) -> Result<(), Error> {
        if found.stack.as_ref().is_some_and(|stack| self.shares_bytes_with(stack)) {
            return Err(Error::SharesPool { backing: text.to_owned() });
        }
        let is_shared = |other: &str, recorded: &KnownBacking| {
            other != name && backing::share_bytes(recorded, found)
        };
        match self.find_backing(is_shared)? {
            None => Ok(()),
            Some(other) => Err(Error::SharedBacking { backing: text.to_owned(), other }),
        }
    }

    /// The first cache whose backing device satisfies `is_it`. The device of an attachment under
    /// way also counts.
    pub(crate) fn find_backing(
        &self,
        is_it: impl Fn(&str, &KnownBacking) -> bool,
    ) -> Result<Option<String>, Error> {
        for volume in self.engine.volumes() {
            let name = volume.name();
            if volume.kind() != VolumeKind::CACHE {
                continue;
            }
            let is_user =
                |cache: &OpenCache| cache.backings().iter().any(|backing| is_it(name, backing));
            match self.look_at_cache(name, is_user) {
                Ok(true) => return Ok(Some(name.to_owned())),
                // Its handle ends, and may still have the wanted backing device.
                Err(error @ Error::VolumeInUse { .. }) => return Err(error),
                // An unreadable cache cannot be opened either.
                Ok(false) | Err(_) => {}
            }
        }
        Ok(None)
    }

    /// True if the pool lies on bytes of `stack`.
    pub(crate) fn shares_bytes_with(&self, stack: &Stack) -> bool {
        self.stack.as_ref().is_some_and(|own| own.shares_bytes_with(stack))
    }

    /// Returns true once the pool is closed. No cache can be closed better then.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get().is_some()
    }

    /// Ends checkpoints in the background, makes everything durable and marks the pool clean. Later
    /// calls return the first result.
    pub(crate) fn close(&self) -> Result<(), Error> {
        // Concurrent closes wait here for the first, and share its result.
        let closed = self.closed.get_or_init(|| self.shut_down()).clone();
        closed.map_err(|failure| match failure {
            CloseFailure::Lost(lost) => Error::Lost { lost },
            CloseFailure::Pool(source) => Error::Pool { path: self.path.clone(), source },
        })
    }

    fn shut_down(&self) -> Result<(), CloseFailure> {
        let caches = {
            // A creation ends first: a pool closed before the format would keep a volume that is not
            // a cache.
            let _names = self.names.lock();
            let mut caches = self.caches.lock();
            // Under the lock of the list: no cache is added after the copy below.
            caches.is_closing = true;
            caches.open.clone()
        };
        // Background checkpoints end before the final checkpoint.
        drop(self.timer.lock().take());
        if self.read_only {
            // Nothing is to be made durable: the engine has a private copy.
            self.engine.volumes().iter().for_each(|volume| volume.mark_gone());
            return Ok(());
        }
        // Losses before the close count: the pool lacks answered writes.
        let mut lost = std::mem::take(&mut *self.lost.lock());
        lost.extend(close_all(&caches));
        if lost.is_empty() {
            return self.engine.close().map_err(CloseFailure::Pool);
        }
        // The pool is not marked clean, but everything else becomes durable.
        for volume in self.engine.volumes() {
            // Before the flush: no write is answered after the last checkpoint.
            volume.mark_gone();
            if let Err(error) = volume.flush() {
                tracing::error!(volume = volume.name(), %error, "the last checkpoint failed");
                lost.push(LostWrites::new(volume.name(), &error));
            }
        }
        Err(CloseFailure::Lost(lost))
    }
}

/// Closes caches concurrently, and returns the caches with possible loss of writes.
fn close_all(caches: &[Arc<OpenCache>]) -> Vec<LostWrites> {
    let mut lost = Vec::new();
    let mut lose = |cache: &OpenCache, error: DeviceError| {
        tracing::error!(volume = cache.name(), %error, "the cache could not be made durable");
        lost.push(LostWrites::new(cache.name(), &error));
    };
    let mut closing = Vec::new();
    // Time for one is time for all: silent backing devices delay the end only once.
    let begun = Instant::now();
    for cache in caches {
        match cache.begin_close(begun) {
            Ok(begun) => closing.push((cache, begun)),
            Err(why) => lose(cache, why),
        }
    }
    for (cache, closing) in &mut closing {
        if let Err(why) = closing.flush() {
            lose(cache, why);
        }
    }
    // All have begun to end before the first is waited for: silence is waited for once.
    closing.into_iter().for_each(|(_, closing)| closing.end());
    lost
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.is_closed()
            && let Err(error) = self.close()
        {
            tracing::error!(%error, "the pool was not closed cleanly");
        }
    }
}

//! A cache that is open: the engine and its write-back thread.
//!
//! Invariants: once it is closed, everything that was answered is durable in the pool, or `close`
//! returns an error, to later callers as well; later requests are refused. Closing does not wait for
//! ever for a backing device that is silent, but for one that answers as long as that takes. A request
//! holds one door open, its thread's, so that requests of several threads store to no common line; who
//! closes shuts all doors, in their order.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backing::{IoWatchdog, KnownBacking, Outcome, TimedTask};
use crossbeam_utils::CachePadded;
use everbyte_cache::{Cache, WritebackThread};
use everbyte_device::DeviceError;
use everbyte_pool::sync::thread_index;
use parking_lot::{MappedRwLockReadGuard, Mutex, RwLock, RwLockReadGuard};

/// Doors of a cache.
const DOORS: usize = 16;

/// Longest time to wait for a lock before the next look at whether the backing device is silent.
const LOOK: Duration = Duration::from_millis(200);

/// Longest silence of a backing device while it is closed, once nothing can be lost any more.
const END_SILENCE_MAX: Duration = Duration::from_secs(1);

/// A cache in use.
pub(crate) struct OpenCache {
    pub(crate) name: String,
    pub(crate) backing: KnownBacking,
    pub(crate) size_bytes: u64,
    /// The requests that the backing device has not answered.
    watch: Arc<IoWatchdog>,
    /// Longest time it may be silent while the cache is closed.
    silence_max: Duration,
    /// Quiesce locks: requests hold one of them shared, so that closing waits for them. Each has the
    /// cache until it is closed.
    doors: Box<[Door]>,
    state: Mutex<State>,
}

type Door = CachePadded<RwLock<Option<Arc<Cache>>>>;

enum State {
    Open {
        cache: Arc<Cache>,
        _writeback: WritebackThread,
    },
    /// The result of closing.
    Closed(Result<(), DeviceError>),
}

impl OpenCache {
    /// Starts the write-back thread.
    ///
    /// # Errors
    /// The system has no thread.
    pub(crate) fn start(
        name: &str,
        (cache, backing): (Cache, KnownBacking),
        watch: Arc<IoWatchdog>,
        silence_max: Duration,
    ) -> std::io::Result<Self> {
        let size_bytes = cache.settings().backing_bytes;
        let cache = Arc::new(cache);
        let writeback = WritebackThread::start(&cache)?;
        let door = || CachePadded::new(RwLock::new(Some(Arc::clone(&cache))));
        let doors = std::iter::repeat_with(door).take(DOORS).collect();
        let state = Mutex::new(State::Open { cache, _writeback: writeback });
        Ok(Self { name: name.to_owned(), backing, size_bytes, watch, silence_max, doors, state })
    }

    /// Begins a request: the cache is not closed as long as the guard lives.
    ///
    /// # Errors
    /// `Gone`, once it is closed.
    pub(crate) fn begin_op(&self) -> Result<MappedRwLockReadGuard<'_, Cache>, DeviceError> {
        let door = self.doors[thread_index() % DOORS].read();
        RwLockReadGuard::try_map(door, Option::as_deref).map_err(|_| DeviceError::Gone)
    }

    /// Makes the dirty pages of DRAM durable in the pool, ends the write-back thread, and closes the
    /// backing device. Waits for requests as long as the backing device answers. Later calls return the first
    /// one's result.
    ///
    /// # Errors
    /// Unflushed writes may be lost. If that is because requests wait for a backing device that is
    /// silent, the cache is still open.
    pub(crate) fn close(&self) -> Result<(), DeviceError> {
        let begun = Instant::now();
        let shut = || -> Option<_> {
            let state = self.patiently(begun, || self.state.try_lock_for(LOOK))?;
            let doors =
                self.doors.iter().map(|door| self.patiently(begun, || door.try_write_for(LOOK)));
            Some((state, doors.collect::<Option<Vec<_>>>()?))
        };
        let Some((mut state, mut doors)) = shut() else {
            return Err(self.silent(self.watch.stall_time()));
        };
        let cache = match &*state {
            State::Closed(closed) => return closed.clone(),
            State::Open { cache, .. } => Arc::clone(cache),
        };
        let flushing = TimedTask::begin("cache-flush", &self.watch, move || cache.sync());
        let closed = match flushing.wait(self.silence_max) {
            Outcome::Done(flushed) => flushed,
            Outcome::Silent(silence) => Err(self.silent(silence)),
            Outcome::Failed(reason) => Err(self.failed(reason)),
        };
        let open = (
            std::mem::replace(&mut *state, State::Closed(closed.clone())),
            doors.iter_mut().map(|door| door.take()).collect::<Vec<_>>(),
        );
        drop((doors, state));
        // Its thread may be in a request that is never answered, so it ends on a thread of its own.
        let ending = TimedTask::begin("cache-end", &self.watch, move || drop(open));
        if let Outcome::Silent(silence) = ending.wait(END_SILENCE_MAX) {
            let (volume, error) = (&self.name, self.silent(silence));
            tracing::warn!(volume, %error, "the cache is closed without its answer");
        }
        closed
    }

    /// Takes a lock that requests, or another call that closes, hold. `None` if the backing device has been silent
    /// for too long, and the caller, who `begun` then, has waited as long.
    fn patiently<T>(&self, begun: Instant, try_lock: impl Fn() -> Option<T>) -> Option<T> {
        loop {
            let taken = try_lock();
            if taken.is_some() || self.watch.stall_time().min(begun.elapsed()) >= self.silence_max {
                return taken;
            }
        }
    }

    fn silent(&self, silence: Duration) -> DeviceError {
        let seconds = silence.as_secs();
        self.failed(format!("the backing device has not answered for {seconds} s"))
    }

    fn failed(&self, reason: String) -> DeviceError {
        DeviceError::Media { offset: 0, len: self.size_bytes, reason }
    }
}

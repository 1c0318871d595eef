//! A cache of an open pool: opening it in the background, its requests, closing it.
//!
//! Invariants: a cache is open at most once. Its backing device is open, and locked if it is a
//! file, as long as the cache is open. If work may wait for a backing device, it runs on its own
//! thread, and no lock is held during the wait. Once the cache is closed, all answered writes are
//! durable in the pool, or `close` returns an error, to later callers as well. Closing waits a
//! bounded time for a silent backing device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use everbyte_cache::{Cache, Inspection, WritebackThread, inspect};
use everbyte_device::DeviceError;
use everbyte_media::Mapped;
use everbyte_path::Rights;
use everbyte_pool::sync::thread_index;
use parking_lot::{
    Condvar, MappedRwLockReadGuard, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

use super::state::CacheState;
use crate::backing::{
    self, Backing, BackingError, Cancel, IoWatchdog, KnownBacking, Outcome, TimedTask, Watched,
};
use crate::engine::{BackingUse, Device};
use crate::error::{CacheError, Error, NotOpen};

/// Doors of a cache.
const DOORS: usize = 16;
/// Longest wait for a lock before the next look at the silence of the backing device.
const LOOK: Duration = Duration::from_millis(200);
/// Time between two looks at an opening.
const OPENING_LOOK: Duration = Duration::from_millis(50);
/// Longest silence of a backing device during its closing, once a loss is excluded.
const END_SILENCE_MAX: Duration = Duration::from_secs(1);
/// Longest time to inspect the backing device of a closed cache.
const BACKING_LOOK_MAX: Duration = Duration::from_secs(1);

/// A cache of an open pool. The cache may be open or closed.
pub(crate) struct OpenCache {
    volume: Arc<everbyte_pool::Volume<Mapped>>,
    /// The volume's one handle, until the cache has ended.
    device: Mutex<Option<Arc<Device>>>,
    pub(super) backing_use: Arc<BackingUse>,
    /// True if the pool is a private copy.
    read_only: bool,
    /// The requests without an answer from the backing device.
    pub(super) watch: Arc<IoWatchdog>,
    /// Ends all waits for an NBD server, permanently; `None` if the system refused its descriptor.
    cancel: Option<Cancel>,
    pub(super) state: Mutex<State>,
    /// Notified when the state has changed.
    changed: Condvar,
    /// The last opening. The lock comes before the lock of the state.
    opening: Mutex<Option<TimedTask<()>>>,
    /// The lock of a call to close the cache or to close it for a change.
    pub(super) turn: Mutex<()>,
    /// Locks held shared by requests. Each thread has its own lock, because requests of several
    /// threads must not store to a common line. Closing waits for all requests. Each lock has the
    /// cache while it is open.
    doors: Box<[Door]>,
    /// Size of the backing device when the cache was last open, in bytes.
    size_bytes: AtomicU64,
    /// The backing device of an attachment under way. The volume may name this device at any
    /// moment. If the device is silent, the moment may come long after the call has returned.
    pub(super) attaching: Mutex<Option<KnownBacking>>,
}

type Door = CachePadded<RwLock<Option<Arc<Cache>>>>;
type DoorGuard<'c> = RwLockWriteGuard<'c, Option<Arc<Cache>>>;

pub(super) enum State {
    /// With the reason of the last failed opening, if any.
    Closed(Option<NotOpen>),
    Opening,
    /// Closed, while its sizes or its backing device change.
    Changing,
    Open(Parts),
    /// Closed permanently, with the result.
    Ended(Result<(), DeviceError>),
}

/// The parts of an open cache.
pub(super) struct Parts {
    pub(super) cache: Arc<Cache>,
    _writeback: WritebackThread,
    backing: KnownBacking,
}

/// Bound of a wait for the opening of a cache.
#[derive(Clone, Copy)]
pub(crate) enum Patience {
    /// Until this moment.
    Until(Instant),
    /// As long as the backing device answers within this time.
    Stall(Duration),
}

impl OpenCache {
    /// For the cache in `device`. The cache stays closed until a caller opens it.
    pub(crate) fn new(device: Device, backing_use: &Arc<BackingUse>, read_only: bool) -> Arc<Self> {
        let door = || CachePadded::new(RwLock::new(None));
        Arc::new(Self {
            volume: Arc::clone(device.volume()),
            device: Mutex::new(Some(Arc::new(device))),
            backing_use: Arc::clone(backing_use),
            read_only,
            watch: Arc::default(),
            cancel: Cancel::new().ok(),
            state: Mutex::new(State::Closed(None)),
            changed: Condvar::new(),
            opening: Mutex::default(),
            turn: Mutex::default(),
            doors: std::iter::repeat_with(door).take(DOORS).collect(),
            size_bytes: AtomicU64::new(0),
            attaching: Mutex::default(),
        })
    }

    pub(crate) fn name(&self) -> &str {
        self.volume.name()
    }

    pub(crate) fn volume(&self) -> &Arc<everbyte_pool::Volume<Mapped>> {
        &self.volume
    }

    /// The volume with the pages.
    ///
    /// # Errors
    /// `Gone`, once the cache has ended.
    pub(crate) fn device(&self) -> Result<Arc<Device>, DeviceError> {
        self.device.lock().clone().ok_or(DeviceError::Gone)
    }

    /// Returns true for the cache named `name` unless it has ended.
    pub(crate) fn is_in_use(&self, name: &str) -> bool {
        self.name() == name && self.device.lock().is_some()
    }

    pub(super) fn inspect(&self) -> Result<Inspection, CacheError> {
        // Under the lock: a copy of the handle outlives a close, and the next opening meets it.
        let device = self.device.lock();
        Ok(inspect(&**device.as_ref().ok_or(DeviceError::Gone)?)?)
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Relaxed)
    }

    /// The rights to open the backing device named by the pool now.
    fn rights(&self) -> Rights {
        let device = self.device.lock();
        let unused = || Rights::Nothing("the cache is closed".into());
        device.as_ref().map_or_else(unused, |device| self.backing_use.rights(device.pool()))
    }

    /// The facts about its backing device, if the volume is readable, and about the device of an
    /// attachment under way.
    pub(crate) fn backings(&self) -> Vec<KnownBacking> {
        let attaching = self.attaching.lock().clone();
        // Read after `attaching`: it is cleared only once the volume names the new device.
        attaching.into_iter().chain(self.known_backing()).collect()
    }

    fn known_backing(&self) -> Option<KnownBacking> {
        if let State::Open(parts) = &*self.state.lock() {
            return Some(parts.backing.clone());
        }
        let identity = self.inspect().ok()?.settings.backing;
        let found = backing::look_within(&identity.name, &self.rights(), BACKING_LOOK_MAX);
        Some(KnownBacking::recorded(identity, found.ok()))
    }

    /// Begins a request: the cache is not closed as long as the guard lives.
    ///
    /// # Errors
    /// `Gone`, once it is closed; `Media` with the reason, if it is not open, or if a change of the
    /// cache waits for a silent backing device.
    pub(crate) fn begin_op(&self) -> Result<MappedRwLockReadGuard<'_, Cache>, DeviceError> {
        // By thread: requests of two threads store to different lines.
        let door: &Door = &self.doors[thread_index() % DOORS];
        let door = match door.try_read() {
            Some(door) => door,
            // A change holds the door while it makes the last pages durable, and the backing device
            // may take part in this.
            None => {
                let try_lock = |time| RwLock::try_read_for(door, time);
                let max = self.backing_use.stall_time_max;
                self.patiently(Instant::now(), max, try_lock).map_err(|why| self.failed(why))?
            }
        };
        RwLockReadGuard::try_map(door, Option::as_deref).map_err(|door| {
            // An opening fills the doors while it holds the lock of the state.
            drop(door);
            self.why_shut()
        })
    }

    fn why_shut(&self) -> DeviceError {
        match &*self.state.lock() {
            State::Closed(None) | State::Ended(_) => DeviceError::Gone,
            State::Closed(Some(why)) => self.failed(why.to_string()),
            State::Changing => self.failed("the cache is being changed".to_owned()),
            State::Opening | State::Open(_) => self.failed("the cache is being opened".to_owned()),
        }
    }

    pub(super) fn silent(&self, stall_time: Duration) -> String {
        let (name, seconds) = (self.name(), stall_time.as_secs());
        format!("the backing device of cache {name} has not answered for {seconds} s")
    }

    fn failed(&self, reason: String) -> DeviceError {
        DeviceError::Media { offset: 0, len: self.size_bytes(), reason }
    }

    /// The error of a cache in this state.
    pub(super) fn unavailable(&self, state: CacheState, reason: String) -> Error {
        Error::Unavailable { volume: self.name().to_owned(), state, reason }
    }

    fn not_open(&self, state: CacheState, reason: String) -> NotOpen {
        NotOpen::new(state, self.unavailable(state, reason))
    }

    /// Begins to open the cache on another thread, unless it is open, being opened, being changed or has ended.
    pub(crate) fn begin_to_open(self: &Arc<Self>) {
        // Before the lock of the state: the order of the two locks.
        let mut begun = self.opening.lock();
        let mut state = self.state.lock();
        if !matches!(*state, State::Closed(_)) {
            return;
        }
        if self.read_only {
            let what =
                "is a cache, which cannot be open read-only: its pages could not be written back";
            let reason = format!("volume {} {what}", self.name());
            // A waiter finds the reason in the state, as after a failed opening.
            *state = State::Closed(Some(self.not_open(CacheState::ReadOnly, reason)));
            return;
        }
        *state = State::Opening;
        drop(state);
        // Without a thread the task is dropped, and with it `opening`. Its drop sets the state.
        let opening = Opening { cache: Arc::clone(self), is_settled: false };
        *begun = Some(TimedTask::begin("cache-open", &self.watch, move || opening.carry_out()));
    }

    fn open_parts(&self) -> Result<Parts, NotOpen> {
        let name = self.name();
        let recorded = self.inspect().map_err(|source| {
            NotOpen::new(CacheState::Damaged, Error::Cache { volume: name.to_owned(), source })
        })?;
        let backing = {
            // The opening itself may hang, and no watched device exists yet.
            let _request = self.watch.begin();
            self.open_backing(&recorded.settings.backing.name, self.rights())
        };
        let backing = backing.map_err(|source| {
            let is_missing = source.is_missing();
            let state =
                if is_missing { CacheState::BackingMissing } else { CacheState::BackingRefused };
            NotOpen::new(state, Error::Backing { volume: name.to_owned(), source })
        })?;
        let known = backing.known();
        // From here on the watchdog sees each single request.
        let watched = self.watched_device(&backing);
        let cache = self.device().map_err(CacheError::from);
        let cache = cache.and_then(|device| Cache::open(device, watched, &backing.identity));
        let refused = |error| NotOpen::new(CacheState::BackingRefused, Error::cache(name)(error));
        let cache = Arc::new(cache.map_err(refused)?);
        let writeback = WritebackThread::start(&cache)
            .map_err(|source| NotOpen::new(CacheState::NoThread, Error::Thread { source }))?;
        Ok(Parts { cache, _writeback: writeback, backing: known })
    }

    /// Opens the backing device `text`, without a time limit.
    pub(super) fn open_backing(&self, text: &str, rights: Rights) -> Result<Backing, BackingError> {
        let options = backing::Options { rights, ..self.backing_use.options.clone() };
        backing::open(text, &options, self.cancel.clone())
    }

    /// The device of `backing`, with its requests under the watchdog.
    pub(super) fn watched_device(&self, backing: &Backing) -> Arc<Watched> {
        let (device, watch) = (Arc::clone(&backing.device), Arc::clone(&self.watch));
        Arc::new(Watched { device, watch })
    }

    /// The cache, once it is open.
    ///
    /// # Errors
    /// The reason why it is not open, or not yet.
    pub(crate) fn await_open(&self, patience: Patience) -> Result<Arc<Cache>, NotOpen> {
        let begun = Instant::now();
        let mut state = self.state.lock();
        loop {
            let name = self.name();
            match &*state {
                State::Open(parts) => return Ok(Arc::clone(&parts.cache)),
                // The reason stays: each waiting caller gets it.
                State::Closed(Some(why)) => return Err(why.clone()),
                State::Closed(None) | State::Ended(_) => {
                    let reason = format!("cache {name} was closed: try again");
                    return Err(self.not_open(CacheState::Closed, reason));
                }
                State::Changing => {
                    let reason = format!("cache {name} is being changed: try again");
                    return Err(self.not_open(CacheState::Changing, reason));
                }
                State::Opening => {}
            }
            let is_over = match patience {
                Patience::Until(deadline) => Instant::now() >= deadline,
                // The shorter of the two: a silence before this wait does not count.
                Patience::Stall(max) => self.watch.stall_time().min(begun.elapsed()) >= max,
            };
            if is_over {
                let reason = self.silent(self.watch.stall_time());
                return Err(self.not_open(CacheState::BackingSilent, reason));
            }
            self.changed.wait_for(&mut state, OPENING_LOOK);
        }
    }

    /// Takes the reason of the last failed opening. The next opening begins without it.
    pub(super) fn take_failure(&self) -> Option<NotOpen> {
        let state = &mut *self.state.lock();
        match state {
            State::Closed(why) => why.take(),
            _ => None,
        }
    }

    pub(super) fn is_being_opened(&self) -> Error {
        let name = self.name();
        let reason = format!(
            "cache {name} is being opened, for which it waits for its backing device: try again"
        );
        self.unavailable(CacheState::Opening, reason)
    }

    /// Ends the opening with this result, unless the cache has ended.
    fn settle(&self, opened: Result<Parts, NotOpen>) {
        let mut state = self.state.lock();
        if !matches!(*state, State::Opening) {
            drop(state);
            return;
        }
        *state = match opened {
            Ok(parts) => {
                self.size_bytes.store(parts.cache.settings().backing_bytes, Ordering::Relaxed);
                for door in &self.doors {
                    *door.write() = Some(Arc::clone(&parts.cache));
                }
                State::Open(parts)
            }
            Err(why) => State::Closed(Some(why)),
        };
        self.changed.notify_all();
    }

    /// Ends a change: the closed cache may be opened again. `why` is the reason of the last failed
    /// opening.
    pub(super) fn end_change(&self, why: Option<NotOpen>) {
        let mut state = self.state.lock();
        if matches!(*state, State::Changing) {
            *state = State::Closed(why);
            self.changed.notify_all();
        }
    }

    /// Shuts requests out, after the end of the requests under way.
    ///
    /// # Errors
    /// Requests wait for a silent backing device. No request is shut out then.
    pub(super) fn shut_doors(
        &self,
        begun: Instant,
        stall_time_max: Duration,
    ) -> Result<Vec<DoorGuard<'_>>, String> {
        let shut =
            |door| self.patiently(begun, stall_time_max, |time| RwLock::try_write_for(door, time));
        self.doors.iter().map(|door: &Door| shut(&**door)).collect()
    }

    /// Takes a lock held by requests or by another closing call. Fails if the backing device has
    /// been silent for too long and the caller has waited as long since `begun`.
    pub(super) fn patiently<T>(
        &self,
        begun: Instant,
        stall_time_max: Duration,
        try_lock: impl Fn(Duration) -> Option<T>,
    ) -> Result<T, String> {
        loop {
            let stall_time = self.watch.stall_time();
            let is_over = stall_time.min(begun.elapsed()) >= stall_time_max;
            // Without time left one try remains: a free lock is taken however late the caller is.
            if let Some(taken) = try_lock(if is_over { Duration::ZERO } else { LOOK }) {
                return Ok(taken);
            }
            if is_over {
                return Err(self.silent(stall_time));
            }
        }
    }

    /// Begins to close the cache permanently: makes the dirty pages of DRAM durable on another
    /// thread. Waits for requests as long as the backing device answers. Silence counts from `begun`.
    ///
    /// # Errors
    /// Unflushed writes were lost before, or requests wait for a silent backing device. In the second case the cache is
    /// still open.
    pub(crate) fn begin_close(&self, begun: Instant) -> Result<Closing<'_>, DeviceError> {
        let stall_time_max = self.backing_use.close_time_max;
        let failed = |reason| self.failed(reason);
        let turn = self.patiently(begun, stall_time_max, |time| self.turn.try_lock_for(time));
        let turn = turn.map_err(failed)?;
        {
            let mut state = self.state.lock();
            match &*state {
                State::Open(_) => {}
                // A repeated close must not report success after a loss.
                State::Ended(result) => result.clone()?,
                // In every other state all is in the pool.
                _ => *state = State::Ended(Ok(())),
            }
            self.changed.notify_all();
        }
        // The last request ends here, so the sync covers all answered writes.
        let mut doors = self.shut_doors(begun, stall_time_max).map_err(failed)?;
        let left = {
            let mut state = self.state.lock();
            match std::mem::replace(&mut *state, State::Ended(Ok(()))) {
                State::Open(parts) => Some(parts),
                _ => None,
            }
        };
        let left = left.map(|parts| (parts, doors.iter_mut().map(|door| door.take()).collect()));
        let flushing = left.as_ref().map(|(parts, _): &(Parts, Vec<_>)| {
            let cache = Arc::clone(&parts.cache);
            // On another thread: all caches of a pool make their pages durable concurrently.
            TimedTask::begin("cache-flush", &self.watch, move || cache.sync())
        });
        Ok(Closing { cache: self, _turn: turn, flushing, left, ending: None })
    }

    /// Closes the cache permanently. Later calls return the first result.
    ///
    /// # Errors
    /// As [`OpenCache::begin_close`] and [`Closing::flush`].
    pub(crate) fn close(&self) -> Result<(), DeviceError> {
        let mut closing = self.begin_close(Instant::now())?;
        let flushed = closing.flush();
        closing.end();
        flushed
    }

    /// Closes the cache of a deleted volume: its pages are lost. Waits until the backing device is
    /// closed, or has been silent for a second.
    pub(crate) fn abandon(self: &Arc<Self>) {
        let left = std::mem::replace(&mut *self.state.lock(), State::Ended(Ok(())));
        self.changed.notify_all();
        let cache = Arc::clone(self);
        let release = self.begin_release(move || {
            cache.doors.iter().for_each(|door| drop(door.write().take()));
            drop(left);
        });
        // The next user may want the backing device. But its writer may be in a request without an
        // answer, and this thread does not wait for it.
        let _ended_or_silent = release.wait(END_SILENCE_MAX);
    }

    /// Drops the handle of the volume and, by `release`, the parts of the ended cache. Both happen on
    /// another thread: a thread of the parts may be in a request without an answer.
    fn begin_release(&self, release: impl FnOnce() + Send + 'static) -> TimedTask<()> {
        self.stop_waiting();
        let (device, opening) = (self.device.lock().take(), self.opening.lock().take());
        TimedTask::begin("cache-end", &self.watch, move || {
            drop(device);
            release();
            // An opening under way still has the backing device, and drops it without a use.
            let _opened = opening.map(|opening| opening.wait(Duration::MAX));
        })
    }

    /// Ends all waits for an NBD server, permanently.
    fn stop_waiting(&self) {
        if let Some(cancel) = &self.cancel {
            cancel.cancel();
        }
    }
}

/// The end of a cache. All caches of a pool are flushed before the first is waited for to end.
pub(crate) struct Closing<'c> {
    cache: &'c OpenCache,
    _turn: MutexGuard<'c, ()>,
    flushing: Option<TimedTask<Result<(), DeviceError>>>,
    left: Option<(Parts, Vec<Option<Arc<Cache>>>)>,
    ending: Option<TimedTask<()>>,
}

impl Closing<'_> {
    /// Waits until the dirty pages of DRAM are durable in the pool, and begins to close the backing device.
    ///
    /// # Errors
    /// Unflushed writes may be lost.
    pub(crate) fn flush(&mut self) -> Result<(), DeviceError> {
        let cache = self.cache;
        let flushed =
            match self.flushing.take().map(|work| work.wait(cache.backing_use.close_time_max)) {
                None => Ok(()),
                Some(Outcome::Done(flushed)) => flushed,
                Some(Outcome::Silent(stall_time)) => Err(cache.failed(cache.silent(stall_time))),
                Some(Outcome::Failed(reason)) => Err(cache.failed(reason)),
            };
        // A later close returns this result.
        *cache.state.lock() = State::Ended(flushed.clone());
        let left = self.left.take();
        self.ending = Some(cache.begin_release(move || drop(left)));
        flushed
    }

    /// Waits until the backing device is closed, or has been silent for a second.
    pub(crate) fn end(self) {
        let Some(Outcome::Silent(stall_time)) = self.ending.map(|work| work.wait(END_SILENCE_MAX))
        else {
            return;
        };
        let reason = self.cache.silent(stall_time);
        tracing::warn!(volume = self.cache.name(), "{reason}; the cache ends without its answer");
    }
}

/// The opening of a cache. It may fail without a result: the system may have no thread for it, or the thread panics.
struct Opening {
    cache: Arc<OpenCache>,
    is_settled: bool,
}

impl Opening {
    fn carry_out(mut self) {
        let opened = self.cache.open_parts();
        if let Err(why) = &opened {
            tracing::warn!(volume = self.cache.name(), "the cache cannot be opened: {why}");
        }
        // Before the result is settled: a drop must not replace it.
        self.is_settled = true;
        self.cache.settle(opened);
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if !self.is_settled {
            let reason = format!("no thread opens cache {}: try again", self.cache.name());
            self.cache.settle(Err(self.cache.not_open(CacheState::NoThread, reason)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use everbyte_block::BlockOptions;
    use everbyte_cache::Identity;
    use everbyte_device::MemoryDevice;
    use everbyte_media::MediaOptions;
    use everbyte_pool::format::VolumeKind;
    use everbyte_pool::{OpenOptions, Pool};

    use super::*;
    use crate::cache::change::Attaching;

    /// A volume of the kind cache with room for a cache over `backing_bytes`.
    fn volume(backing_bytes: u64) -> Device {
        let medium = Mapped::anonymous(32 << 20, &MediaOptions::new()).unwrap();
        Pool::format(&medium, 8, [1; 16]).unwrap();
        let options = OpenOptions { capacity_blocks: 8192 };
        let pool = Pool::open(Arc::new(medium), everbyte_block::kinds(), &options).unwrap();
        let (pool, kind) = (Arc::new(pool), VolumeKind::CACHE);
        let size_bytes = everbyte_cache::volume_bytes(backing_bytes);
        Device::create_as(&pool, "c", kind, size_bytes, &BlockOptions::default()).unwrap()
    }

    fn closed(device: Device) -> Arc<OpenCache> {
        let second = Duration::from_secs(1);
        let backing_use = BackingUse {
            options: backing::Options::default(),
            stall_time_max: second,
            close_time_max: second,
            trust_pool: false,
        };
        OpenCache::new(device, &Arc::new(backing_use), false)
    }

    /// A volume of the kind cache, without a cache in it.
    fn empty() -> Arc<OpenCache> {
        closed(volume(1 << 20))
    }

    /// An open cache over memory.
    fn opened() -> Arc<OpenCache> {
        let identity = Identity {
            kind: "file".to_owned(),
            name: "/backing".to_owned(),
            serial: String::new(),
            backing: None,
        };
        let settings = everbyte_cache::Settings {
            backing: identity.clone(),
            backing_bytes: 1 << 20,
            dram_bytes: 64 << 10,
            scm_bytes: 256 << 10,
            mode: everbyte_cache::Mode::default(),
            policy: everbyte_cache::Policy::Everbyte,
            small_write_bytes: 512,
        };
        let device = volume(settings.backing_bytes);
        Cache::format(&device, &settings).unwrap();
        let cache = closed(device);
        let (device, memory) = (cache.device().unwrap(), Arc::new(MemoryDevice::new(1 << 20)));
        let open = Arc::new(Cache::open(device, memory, &identity).unwrap());
        let backing = KnownBacking { identity, stack: None };
        let parts =
            Parts { _writeback: WritebackThread::start(&open).unwrap(), cache: open, backing };
        *cache.state.lock() = State::Opening;
        cache.settle(Ok(parts));
        cache
    }

    #[test]
    fn attaching_cache_has_both_devices() {
        let cache = empty();
        assert!(cache.backings().is_empty());
        let to = Identity {
            kind: "nbd".to_owned(),
            name: "nbd://elsewhere/disk".to_owned(),
            serial: String::new(),
            backing: None,
        };
        let known = KnownBacking { identity: to.clone(), stack: None };
        let attaching = Attaching::new(&cache, known);
        let backings: Vec<_> = cache.backings().into_iter().map(|known| known.identity).collect();
        assert_eq!(backings, [to]);
        drop(attaching);
        assert!(cache.backings().is_empty());
    }

    #[test]
    fn closes_begun_together_wait_once() {
        let (cache, stall_time_max) = (empty(), Duration::from_millis(1));
        let (_request, begun) = (cache.watch.begin(), Instant::now());
        std::thread::sleep(2 * stall_time_max);
        // The common beginning is as long ago as any close may wait: each looks at its lock once.
        let tries = std::cell::Cell::new(0);
        let try_lock = |_| -> Option<()> {
            tries.set(tries.get() + 1);
            None
        };
        for closes in 1..=3 {
            assert!(cache.patiently(begun, stall_time_max, try_lock).is_err());
            assert_eq!(tries.get(), closes);
        }
    }

    #[test]
    fn opening_without_result_is_repeatable() {
        let cache = empty();
        *cache.state.lock() = State::Opening;
        drop(Opening { cache: Arc::clone(&cache), is_settled: false });
        let why = cache.await_open(Patience::Until(Instant::now())).err().unwrap();
        assert_eq!(why.state, CacheState::NoThread);

        cache.begin_to_open();
        let why = cache.await_open(Patience::Stall(Duration::from_secs(60))).err().unwrap();
        assert_eq!(why.state, CacheState::Damaged, "it was opened again, and holds no cache");
    }

    #[test]
    fn ended_cache_drops_a_late_opening() {
        let cache = empty();
        *cache.state.lock() = State::Opening;
        cache.close().unwrap();
        let late = cache.not_open(CacheState::NoThread, "late".to_owned());
        cache.settle(Err(late));
        assert!(matches!(*cache.state.lock(), State::Ended(Ok(()))));
        cache.begin_to_open();
        assert!(matches!(cache.begin_op(), Err(DeviceError::Gone)));
    }

    #[test]
    fn requests_are_bounded_during_silent_change() {
        let cache = opened();
        let (begun, answered) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            let changing = scope.spawn(|| {
                cache.begin_change_after(|_| {
                    let _request = cache.watch.begin();
                    begun.wait();
                    answered.wait();
                    Ok(())
                })
            });
            begun.wait();
            // Before the doors shut, the silence delays no request.
            drop(cache.begin_op().unwrap());
            answered.wait();
            begun.wait();
            let request = scope.spawn(|| cache.begin_op().map(drop)).join().unwrap();
            let error = request.unwrap_err();
            assert!(error.to_string().contains("has not answered"), "{error}");
            answered.wait();
            drop(changing.join().unwrap().unwrap());
        });
        cache.close().unwrap();
    }

    #[test]
    fn abandoned_opening_is_awaited() {
        let cache = empty();
        let is_released = Arc::new(AtomicU64::new(0));
        let (opening, begun) = (Arc::clone(&is_released), Arc::new(Barrier::new(2)));
        let started = Arc::clone(&begun);
        let task = TimedTask::begin("cache-open", &cache.watch, move || {
            started.wait();
            std::thread::sleep(Duration::from_millis(200));
            opening.store(1, Ordering::Release);
        });
        *cache.state.lock() = State::Opening;
        *cache.opening.lock() = Some(task);
        begun.wait();
        cache.abandon();
        assert_eq!(is_released.load(Ordering::Acquire), 1, "the device is still open");
    }
}

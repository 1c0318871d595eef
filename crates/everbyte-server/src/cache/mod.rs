//! Caches: opening them before their backing devices, changing them, closing them.
//!
//! Invariants: a cache is open at most once; its backing device is open, and locked if it is a file,
//! as long as the cache is; looking at a cache needs no backing device. TimedTask that may wait for a
//! backing device runs on a thread of its own, and no lock is held meanwhile. A cache that is taken
//! apart to be changed holds nothing in DRAM that is not in the pool.

mod create;
mod status;

use std::sync::Arc;
use std::time::{Duration, Instant};

use everbyte::backing::{
    self, Backing, BackingError, Cancel, IoWatchdog, KnownBacking, Outcome, TimedTask, Watched,
};
use everbyte_cache::{
    Cache, CacheError, Change, Identity, Inspection, WritebackThread, inspect, volume_bytes,
};
use everbyte_control::{Cause, KindStatus, Refused, VolumeStatus};
use everbyte_device::BlockDevice;
use everbyte_path::Rights;
use everbyte_pool::ScrubReport;
use everbyte_pool::format::VolumeKind;
use parking_lot::{Condvar, Mutex};

use crate::context::{Context, NewBacking, rights_now};
use crate::device::open_device;
use crate::handle::{Closing, Device, Handle, Opened, Resize, Unavailable};
use crate::quiesce::Alone;
use crate::refusal::{cause, refused};
use crate::size::show_size;

/// Duration of one part of a drain.
const DRAIN_TIME: Duration = Duration::from_secs(1);
/// Longest time a client waits for a cache to be opened: short enough that it gets the reason before
/// its own time limit.
const OPEN_TIME_MAX: Duration = Duration::from_secs(4);
/// Longest silence of a backing device while the server ends.
const CLOSE_SILENCE_MAX: Duration = Duration::from_secs(4);
/// Longest silence of a backing device while it is closed, once nothing can be lost any more.
const END_SILENCE_MAX: Duration = Duration::from_secs(1);
/// Longest silence of a backing device during a change of its cache, besides the time for which a
/// cache tries to reach a lost NBD server.
const CHANGE_SILENCE: Duration = Duration::from_secs(10);
/// Longest time for a look at the backing device of a cache that is not open.
const LOOK_TIME_MAX: Duration = Duration::from_secs(1);

/// A cache's handle, whether the cache is open or not.
pub(crate) struct CacheHandle(Arc<Shared>);

/// State that the threads of a cache share.
struct Shared {
    volume: Arc<Device>,
    options: backing::Options,
    trust_pool: bool,
    unchanging: bool,
    /// The requests that the backing device has not answered.
    watch: Arc<IoWatchdog>,
    /// Ends all waits for an NBD server, for good; `None` if the system had nothing to make it of.
    cancel: Option<Cancel>,
    state: Mutex<State>,
    /// Notified when the state has changed.
    changed: Condvar,
    /// The backing device that the cache is being attached to. Its volume may name that at any moment, also long after
    /// the request was given up because the device is silent.
    attaching: Mutex<Option<KnownBacking>>,
}

enum State {
    /// With the reason why it could not be opened the last time, if so.
    Closed(Option<Unavailable>),
    Opening,
    /// Taken apart, to be put together in another way.
    Changing,
    Open(OpenCache),
}

/// A cache in use.
struct OpenCache {
    cache: Arc<Cache>,
    _writeback: WritebackThread,
    backing: KnownBacking,
}

impl CacheHandle {
    pub(crate) fn open_volume(context: &Context, name: &str) -> Result<Opened, Refused> {
        Ok(Self::opened(context, open_device(context, name, VolumeKind::CACHE)?))
    }

    fn opened(context: &Context, device: Device) -> Opened {
        let volume = Arc::clone(device.volume());
        Opened { volume, handle: Box::new(Self(Shared::new(context, device))) }
    }

    /// Runs `work` on another thread, and waits for it as long as the backing device answers. If
    /// that is silent, the work goes on by itself.
    fn watched<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Arc<Shared>) -> Result<T, Refused> + Send + 'static,
    ) -> Result<T, Refused> {
        let shared = Arc::clone(&self.0);
        let work = TimedTask::begin("cache-change", &self.0.watch, move || work(&shared));
        self.0.outcome(work.wait(self.0.options.reconnect_timeout + CHANGE_SILENCE))
    }

    /// Opens the backing device that is called `text`.
    fn open_backing(&self, text: String, rights: Rights) -> Result<Backing, Refused> {
        self.watched(move |shared| {
            let _request = shared.watch.begin();
            let options = backing::Options { rights, ..shared.options.clone() };
            backing::open(&text, &options, shared.cancel.clone()).map_err(refused)
        })
    }
}

impl Handle for CacheHandle {
    fn prepare(&self) {
        self.0.begin_to_open();
    }

    fn open(&self) -> Result<Arc<dyn BlockDevice>, Unavailable> {
        self.0.begin_to_open();
        Ok(self.0.await_open(Instant::now() + OPEN_TIME_MAX)?)
    }

    fn is_settled(&self) -> bool {
        !matches!(*self.0.state.lock(), State::Opening)
    }

    fn is_ready(&self) -> bool {
        matches!(*self.0.state.lock(), State::Open(_))
    }

    fn scrub(&self, from: u64) -> Result<(ScrubReport, Option<u64>), Refused> {
        self.0.volume.scrub(from).map_err(refused)
    }

    fn has_backing(&self) -> bool {
        true
    }

    fn backings(&self) -> Vec<KnownBacking> {
        let attaching = self.0.attaching.lock().clone();
        // Looked at after that, which ends only when the volume names it.
        attaching.into_iter().chain(self.0.backing()).collect()
    }

    fn complete(&self, status: &mut VolumeStatus) {
        match self.0.status() {
            Ok(cache) => {
                status.size_bytes = cache.backing_bytes;
                status.of_kind = Some(KindStatus::Cache(Box::new(cache)));
            }
            Err(error) => {
                status.damage.get_or_insert(error.to_string());
            }
        }
        if let State::Open(open) = &*self.0.state.lock()
            && open.cache.geometry().read_only
        {
            status
                .read_only
                .get_or_insert_with(|| "the backing device is write-protected".to_owned());
        }
    }

    /// True for a size for its users, which `resize` refuses anyway.
    fn resizes_beside_clients(&self, resize: &Resize) -> bool {
        matches!(resize, Resize::Size(_))
    }

    fn resize(&self, resize: &Resize, alone: Option<Alone>) -> Result<(), Refused> {
        let Resize::Memory(change) = *resize else {
            return Err(Refused::new(format!(
                "volume {} is a cache, which is as large as its backing device",
                self.0.name()
            ))
            .because(Cause::CacheSize));
        };
        self.watched(move |shared| {
            let _alone = alone;
            let _apart = shared.take_apart()?;
            shared.resize(&change)
        })
    }

    fn attach(
        &self,
        backing: &str,
        alone: Alone,
        conditions: &NewBacking<'_>,
    ) -> Result<(), Refused> {
        (conditions.unshared)(None)?;
        let (apart, alone) = self.watched(move |shared| Ok((shared.take_apart()?, alone)))?;
        let backing = self.open_backing(backing.to_owned(), conditions.rights.clone())?;
        (conditions.unshared)(Some(&backing))?;
        let attaching = Attaching::new(&self.0, backing.known());
        self.watched(move |shared| {
            let (_alone, _apart, _attaching) = (alone, apart, attaching);
            let device = Watched { device: backing.device, watch: Arc::clone(&shared.watch) };
            let volume = Arc::clone(&shared.volume);
            Cache::move_backing(volume, &device, &backing.identity).map(drop).map_err(refused)
        })
    }

    fn write_back(&self, alone: Alone) -> Result<u64, Refused> {
        self.0.begin_to_open();
        self.watched(move |shared| {
            let _alone = alone;
            shared.write_back_part()
        })
    }

    fn detach(&self, alone: Alone) -> Result<Alone, Refused> {
        self.0.begin_to_open();
        self.watched(move |shared| {
            let cache = shared.await_open(Instant::now() + shared.options.reconnect_timeout);
            cache.map_err(refused)?.drain().map_err(refused)?;
            Ok(alone)
        })
    }

    fn check_deletable(&self) -> Result<(), Refused> {
        match self.0.status() {
            Ok(status) if status.dirty_bytes > 0 => Err(Refused::new(format!(
                "volume {} is a cache with {} that its backing device does not have",
                self.0.name(),
                show_size(status.dirty_bytes)
            ))
            .because(Cause::CacheDirty)),
            Ok(_) => self.0.flush_bypassed(),
            Err(_) => Err(Refused::new(format!(
                "volume {} is a cache, and how much it has that its backing device does not have \
                 cannot be read",
                self.0.name()
            ))
            .because(Cause::CacheUnread)),
        }
    }

    fn abandon(&self) {
        self.0.stop_waiting();
        let shared = Arc::clone(&self.0);
        let work = TimedTask::begin("cache-end", &self.0.watch, move || shared.let_go());
        // Who comes next may want the backing device. But its writer may be in a request that is never
        // answered, and this thread need not wait for that.
        let _ended_or_silent = work.wait(END_SILENCE_MAX);
    }

    fn close(&self) -> Option<Box<dyn Closing>> {
        let left = std::mem::replace(&mut *self.0.state.lock(), State::Closed(None));
        // In every other state it holds nothing that is not in the pool.
        let State::Open(open) = left else {
            self.0.stop_waiting();
            return None;
        };
        let (flushed, shared) = (Arc::clone(&open.cache), Arc::clone(&self.0));
        let work = move || flushed.sync().map_err(|error| error.to_string());
        let work = TimedTask::begin("cache-flush", &self.0.watch, work);
        Some(Box::new(ClosingCache { flushing: work, open: Some(open), ending: None, shared }))
    }
}

/// A cache whose dirty pages in DRAM are made durable for the last time.
struct ClosingCache {
    flushing: TimedTask<Result<(), String>>,
    open: Option<OpenCache>,
    ending: Option<TimedTask<()>>,
    shared: Arc<Shared>,
}

impl Closing for ClosingCache {
    fn flush(&mut self) -> Result<(), String> {
        let flushed = self.flushing.wait(CLOSE_SILENCE_MAX);
        self.shared.stop_waiting();
        let open = self.open.take();
        self.ending = Some(TimedTask::begin("cache-end", &self.shared.watch, move || drop(open)));
        match flushed {
            Outcome::Done(flushed) => flushed,
            Outcome::Silent(silence) => Err(self.shared.silent(silence)),
            Outcome::Failed(what) => Err(what),
        }
    }

    fn end(self: Box<Self>) {
        let Some(ending) = self.ending else { return };
        if let Outcome::Silent(silence) = ending.wait(END_SILENCE_MAX) {
            tracing::warn!(
                volume = self.shared.name(),
                "{}; the server ends without its answer",
                self.shared.silent(silence)
            );
        }
    }
}

/// A cache that is taken apart, until it may be opened again.
struct Apart(Arc<Shared>);

impl Drop for Apart {
    fn drop(&mut self) {
        self.0.settle(State::Closed(None));
    }
}

/// A cache that is being attached to another backing device, until its volume names that or will not.
struct Attaching(Arc<Shared>);

impl Attaching {
    fn new(shared: &Arc<Shared>, to: KnownBacking) -> Self {
        *shared.attaching.lock() = Some(to);
        Self(Arc::clone(shared))
    }
}

impl Drop for Attaching {
    fn drop(&mut self) {
        *self.0.attaching.lock() = None;
    }
}

/// The opening of a cache. Nothing may come of it: the system may have no thread for it, or that may panic.
struct Opening {
    shared: Arc<Shared>,
    is_settled: bool,
}

impl Opening {
    fn carry_out(mut self) {
        let opened = self.shared.open_cache();
        if let Err(why) = &opened {
            tracing::warn!(volume = self.shared.name(), "the cache cannot be opened: {why}");
        }
        self.is_settled = true;
        self.shared.settle(match opened {
            Ok(open) => State::Open(open),
            Err(why) => State::Closed(Some(why)),
        });
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if !self.is_settled {
            let reason = format!("no thread opens cache {}: try again", self.shared.name());
            self.shared.settle(State::Closed(Some(Unavailable::new("no thread", reason))));
        }
    }
}

impl Shared {
    fn new(context: &Context, device: Device) -> Arc<Self> {
        Arc::new(Self {
            volume: Arc::new(device),
            options: context.backing.clone(),
            trust_pool: context.trust_pool,
            unchanging: context.unchanging,
            watch: Arc::default(),
            cancel: Cancel::new().ok(),
            state: Mutex::new(State::Closed(None)),
            changed: Condvar::new(),
            attaching: Mutex::default(),
        })
    }

    fn name(&self) -> &str {
        self.volume.volume().name()
    }

    /// The rights with which the backing device that the pool names is opened now.
    fn rights(&self) -> Rights {
        rights_now(self.volume.pool(), self.trust_pool)
    }

    /// The backing device that its volume names, with what is found under its name if that can be seen soon.
    fn backing(&self) -> Option<KnownBacking> {
        if let State::Open(open) = &*self.state.lock() {
            return Some(open.backing.clone());
        }
        let identity = inspect(&*self.volume).ok()?.settings.backing;
        let found = backing::look_within(&identity.name, &self.rights(), LOOK_TIME_MAX);
        Some(KnownBacking::recorded(identity, found.ok()))
    }

    fn silent(&self, silence: Duration) -> String {
        format!(
            "the backing device of cache {} has not answered for {} s",
            self.name(),
            silence.as_secs()
        )
    }

    fn outcome<T>(&self, outcome: Outcome<Result<T, Refused>>) -> Result<T, Refused> {
        match outcome {
            Outcome::Done(done) => done,
            Outcome::Silent(silence) => Err(Refused::new(format!(
                "{}; what was begun goes on when it answers, and until then the cache is shut",
                self.silent(silence)
            ))),
            Outcome::Failed(what) => Err(Refused::new(what)),
        }
    }

    fn open_backing(&self, text: &str) -> Result<Backing, BackingError> {
        let options = backing::Options { rights: self.rights(), ..self.options.clone() };
        backing::open(text, &options, self.cancel.clone())
    }

    /// Cancels requests that wait for the backing device, where that can be done.
    fn stop_waiting(&self) {
        if let Some(cancel) = &self.cancel {
            cancel.cancel();
        }
    }

    fn settle(&self, state: State) {
        *self.state.lock() = state;
        self.changed.notify_all();
    }

    /// Closes the backing device, once no thread is opening it.
    fn let_go(&self) {
        let mut state = self.state.lock();
        while matches!(*state, State::Opening) {
            self.changed.wait(&mut state);
        }
        let left = std::mem::replace(&mut *state, State::Closed(None));
        drop(state);
        drop(left);
    }

    /// Begins to open the cache on another thread, unless it is open, being opened or being changed.
    fn begin_to_open(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if !matches!(*state, State::Closed(_)) {
            return;
        }
        if self.unchanging {
            let reason = format!(
                "volume {} is a cache, which cannot be served read-only: its pages could not be \
                 written back",
                self.name()
            );
            *state = State::Closed(Some(Unavailable::new("read-only", reason)));
            return;
        }
        *state = State::Opening;
        // Without a thread `opening` is dropped here, and sets the state.
        drop(state);
        let opening = Opening { shared: Arc::clone(self), is_settled: false };
        // The result is the state.
        drop(TimedTask::begin("cache-open", &self.watch, move || opening.carry_out()));
    }

    fn open_cache(&self) -> Result<OpenCache, Unavailable> {
        let _opening = self.watch.begin();
        let recorded = inspect(&*self.volume)
            .map_err(|error| Unavailable::new("damaged", error.to_string()))?;
        let backing = self.open_backing(&recorded.settings.backing.name);
        let backing = backing.map_err(|error| {
            let is_missing = error.is_missing();
            let state = if is_missing { "backing missing" } else { "backing refused" };
            let detail = error.is_wrong_type().then_some("neither a file nor a block device");
            Unavailable { state, reason: error.to_string(), cause: cause(&error), detail }
        })?;
        let known = backing.known();
        let cache = self.build(backing.device, &backing.identity);
        let cache = Arc::new(cache.map_err(|error| Unavailable {
            state: "backing refused",
            reason: error.to_string(),
            cause: cause(&error),
            detail: None,
        })?);
        let writeback = WritebackThread::start(&cache)
            .map_err(|error| Unavailable::new("no thread", error.to_string()))?;
        Ok(OpenCache { cache, _writeback: writeback, backing: known })
    }

    fn build(
        &self,
        device: Arc<dyn BlockDevice>,
        identity: &Identity,
    ) -> Result<Cache, CacheError> {
        let watched = Watched { device, watch: Arc::clone(&self.watch) };
        Cache::open(Arc::<Device>::clone(&self.volume), Arc::new(watched), identity)
    }

    /// The cache, once it is open.
    fn await_open(&self, deadline: Instant) -> Result<Arc<Cache>, Unavailable> {
        let mut state = self.state.lock();
        loop {
            match &*state {
                State::Open(open) => return Ok(Arc::clone(&open.cache)),
                State::Closed(Some(why)) => return Err(why.clone()),
                State::Closed(None) => {
                    let reason = format!("cache {} was closed meanwhile: try again", self.name());
                    return Err(Unavailable::new("closed", reason));
                }
                State::Changing => {
                    let reason = format!("cache {} is being changed: try again", self.name());
                    return Err(Unavailable::new("changing", reason));
                }
                State::Opening => {}
            }
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                let reason = self.silent(self.watch.stall_time());
                return Err(Unavailable::new("backing silent", reason));
            }
        }
    }

    fn is_being_opened(&self) -> Refused {
        Refused::new(format!(
            "cache {} is being opened, for which it waits for its backing device: try again",
            self.name()
        ))
    }

    /// Makes the dirty pages of DRAM durable, and closes the cache for a change. If that fails, the
    /// cache stays open. It may be opened at the same time by a server that begins, which needs no
    /// right to change it.
    fn take_apart(self: &Arc<Self>) -> Result<Apart, Refused> {
        let open = match &*self.state.lock() {
            State::Open(open) => Some(Arc::clone(&open.cache)),
            State::Closed(_) => None,
            State::Opening | State::Changing => return Err(self.is_being_opened()),
        };
        if let Some(cache) = &open {
            cache.sync().map_err(|error| {
                Refused::new(format!(
                    "what cache {} holds in DRAM could not be made durable, so it stays as it is: \
                     {error}",
                    self.name()
                ))
            })?;
        }
        let mut state = self.state.lock();
        let is_as_it_was = match (&*state, &open) {
            (State::Open(found), Some(cache)) => Arc::ptr_eq(&found.cache, cache),
            (State::Closed(_), None) => true,
            _ => false,
        };
        if !is_as_it_was {
            return Err(self.is_being_opened());
        }
        let left = std::mem::replace(&mut *state, State::Changing);
        drop(state);
        let apart = Apart(Arc::clone(self));
        drop(left);
        Ok(apart)
    }

    /// Makes durable what went past an open cache, which no dirty page shows.
    fn flush_bypassed(&self) -> Result<(), Refused> {
        let cache = match &*self.state.lock() {
            State::Open(open) => Arc::clone(&open.cache),
            _ => return Ok(()),
        };
        let work = move || cache.sync().map_err(|error| error.to_string());
        let work = TimedTask::begin("cache-flush", &self.watch, work);
        let reason = match work.wait(self.options.reconnect_timeout + CHANGE_SILENCE) {
            Outcome::Done(Ok(())) => return Ok(()),
            Outcome::Done(Err(reason)) | Outcome::Failed(reason) => reason,
            Outcome::Silent(silence) => self.silent(silence),
        };
        Err(Refused::new(format!(
            "volume {} is a cache, and its backing device may lose what was written there past \
             the cache: {reason}",
            self.name()
        ))
        .because(Cause::CacheDirty))
    }

    /// Gives a cache that is taken apart other sizes.
    fn resize(&self, change: &Change) -> Result<(), Refused> {
        let Inspection { settings, pages, .. } = inspect(&*self.volume).map_err(refused)?;
        let backing = {
            let _request = self.watch.begin();
            self.open_backing(&settings.backing.name).map_err(refused)?
        };
        let storage_bytes = backing.device.geometry().size_bytes;
        let wanted = change.applied_to(&settings, storage_bytes).map_err(refused)?;
        let (old, new) = (settings.volume_page_bytes_max(), wanted.volume_page_bytes_max());
        if new > old {
            // Its pages may still become as many as it had asked for.
            let free_bytes = self.volume.pool().info().free_bytes;
            create::check_room(new, free_bytes + pages * 4096)?;
        }
        let needed = volume_bytes(storage_bytes);
        if needed > self.volume.geometry().size_bytes {
            self.volume.resize(needed).map_err(refused)?;
        }
        let volume = Arc::<Device>::clone(&self.volume);
        let watched = Watched { device: backing.device, watch: Arc::clone(&self.watch) };
        let resized = Cache::resize(volume, Arc::new(watched), &backing.identity, change);
        resized.map(drop).map_err(refused)
    }

    fn write_back_part(&self) -> Result<u64, Refused> {
        let opened = self.await_open(Instant::now() + self.options.reconnect_timeout);
        let cache = opened.map_err(refused)?;
        let end = Instant::now() + DRAIN_TIME;
        while cache.dirty_bytes() > 0 && Instant::now() < end {
            cache.sweep().map_err(|error| {
                Refused::new(format!(
                    "{} could not be written back: {error}; nothing is lost: mend the backing \
                     device and try again",
                    show_size(cache.dirty_bytes())
                ))
            })?;
        }
        Ok(cache.dirty_bytes())
    }
}

#[cfg(test)]
mod tests {
    use everbyte_block::BlockOptions;
    use everbyte_media::{Mapped, MediaOptions};
    use everbyte_pool::{OpenOptions, Pool};

    use super::*;

    /// A cache in a pool, with nothing in it.
    fn empty() -> Arc<Shared> {
        let medium = Mapped::anonymous(32 << 20, &MediaOptions::new()).unwrap();
        Pool::format(&medium, 8, [1; 16]).unwrap();
        let options = OpenOptions { capacity_blocks: 8192 };
        let pool = Arc::new(Pool::open(Arc::new(medium), crate::kinds(), &options).unwrap());
        let context = Context {
            pool,
            unchanging: false,
            backing: backing::Options::default(),
            trust_pool: false,
        };
        let (kind, options) = (VolumeKind::CACHE, BlockOptions::default());
        let device = Device::create_as(&context.pool, "c", kind, 1 << 20, &options).unwrap();
        Shared::new(&context, device)
    }

    #[test]
    fn a_cache_has_the_backing_device_that_it_is_being_attached_to() {
        let shared = empty();
        let handle = CacheHandle(Arc::clone(&shared));
        assert!(handle.backings().is_empty());
        let to = Identity {
            kind: "nbd".to_owned(),
            name: "nbd://elsewhere/disk".to_owned(),
            serial: String::new(),
            backing: None,
        };
        let attaching = Attaching::new(&shared, KnownBacking { identity: to.clone(), stack: None });
        let backings: Vec<_> = handle.backings().into_iter().map(|known| known.identity).collect();
        assert_eq!(backings, [to]);
        drop(attaching);
        assert!(handle.backings().is_empty());
    }

    #[test]
    fn a_cache_whose_opening_comes_to_nothing_can_be_opened_again() {
        let shared = empty();
        *shared.state.lock() = State::Opening;
        drop(Opening { shared: Arc::clone(&shared), is_settled: false });
        let why = shared.await_open(Instant::now()).err().unwrap();
        assert_eq!(why.state, "no thread");

        shared.begin_to_open();
        let why = shared.await_open(Instant::now() + Duration::from_secs(60)).err().unwrap();
        assert_eq!(why.state, "damaged", "it was opened again, and holds no cache");
    }
}

//! Changes of a cache: its sizes, its backing device, and its write-back before it is detached.
//!
//! Invariant: if a cache is closed for a change, all its DRAM contents are in the pool. If its
//! backing device is silent and its caller has gone, a change continues, and until it ends the
//! cache cannot be opened.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use everbyte_cache::{Cache, Change, Inspection, volume_bytes};
use everbyte_device::BlockDevice;
use everbyte_path::Rights;

use super::create::check_room;
use super::open::{OpenCache, Patience, State};
use super::state::CacheState;
use crate::backing::{Backing, KnownBacking, Outcome, TimedTask};
use crate::builder::setters;
use crate::error::{Error, NotOpen};

/// Duration of one part of a write-back.
const PART_TIME: Duration = Duration::from_secs(1);

/// Conditions of a change of a cache. Default: the rights permitted by the pool, and nothing held.
#[derive(Clone, Default)]
#[must_use]
pub struct ChangeOptions {
    pub(super) rights: Option<Rights>,
    held: Option<Arc<dyn Any + Send + Sync>>,
}

setters! { ChangeOptions:
    /// Opens a new backing device with no more than these rights.
    rights(rights: Rights) => rights = Some(rights);

    /// Keeps `held` until the change has ended. If the backing device is silent, a change ends
    /// after its call has returned.
    hold(held: Arc<dyn Any + Send + Sync>) => held = Some(held);
}

impl OpenCache {
    /// Runs `work` on another thread, and waits for it as long as the backing device answers. If
    /// the device is silent, the work continues without the caller.
    fn watched<T: Send + 'static>(
        self: &Arc<Self>,
        options: &ChangeOptions,
        work: impl FnOnce(&Arc<Self>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (cache, held) = (Arc::clone(self), options.held.clone());
        let task = TimedTask::begin("cache-change", &self.watch, move || {
            let done = work(&cache);
            // After the work, not after the call: a silent device delays the work beyond the call.
            drop(held);
            done
        });
        match task.wait(self.backing_use.stall_time_max) {
            Outcome::Done(done) => done,
            Outcome::Silent(stall_time) => {
                let reason = format!(
                    "{}; the operation goes on when the device answers, and until then the cache is \
                     unavailable",
                    self.silent(stall_time)
                );
                Err(self.unavailable(CacheState::BackingSilent, reason))
            }
            Outcome::Failed(what) => Err(Error::Thread { source: std::io::Error::other(what) }),
        }
    }

    /// Makes the dirty pages of DRAM durable, and closes the cache for a change. On an error, the
    /// cache stays open.
    fn begin_change(self: &Arc<Self>) -> Result<Changing, Error> {
        self.begin_change_after(|cache| cache.sync().map_err(|error| error.to_string()))
    }

    /// As [`begin_change`](Self::begin_change), with `settle` between the last request and the close.
    pub(super) fn begin_change_after(
        self: &Arc<Self>,
        settle: impl Fn(&Cache) -> Result<(), String>,
    ) -> Result<Changing, Error> {
        let (begun, max) = (Instant::now(), self.backing_use.stall_time_max);
        let silent = |reason| self.unavailable(CacheState::BackingSilent, reason);
        let turn = self.patiently(begun, max, |time| self.turn.try_lock_for(time));
        // Excludes a close and another change until the state is replaced.
        let _turn = turn.map_err(silent)?;
        let open = match &*self.state.lock() {
            State::Open(parts) => Some(Arc::clone(&parts.cache)),
            State::Closed(_) => None,
            State::Opening | State::Changing | State::Ended(_) => {
                return Err(self.is_being_opened());
            }
        };
        let settled = |cache: &Cache| {
            settle(cache).map_err(|error| {
                let reason = format!(
                    "the pages of cache {} could not be made durable, so it stays as it is: {error}",
                    self.name()
                );
                self.unavailable(CacheState::Open, reason)
            })
        };
        let mut doors = Vec::new();
        if let Some(cache) = &open {
            // First with open doors: while the backing device is silent, requests for cached pages go on.
            settled(cache)?;
            doors = self.shut_doors(Instant::now(), max).map_err(silent)?;
            settled(cache)?;
        }
        let mut state = self.state.lock();
        let is_as_it_was = match (&*state, &open) {
            (State::Open(found), Some(cache)) => Arc::ptr_eq(&found.cache, cache),
            (State::Closed(_), None) => true,
            _ => false,
        };
        // If the cache was closed, another caller may open it concurrently.
        if !is_as_it_was {
            return Err(self.is_being_opened());
        }
        // From here on no caller opens the cache.
        let mut left = std::mem::replace(&mut *state, State::Changing);
        // Dropping the parts joins the write-back thread, which may wait for the device.
        drop(state);
        doors.iter_mut().for_each(|door| drop(door.take()));
        let why = if let State::Closed(why) = &mut left { why.take() } else { None };
        // Before the parts are dropped: its own drop ends the change even after a panic.
        let changing = Changing { cache: Arc::clone(self), why };
        drop(left);
        Ok(changing)
    }

    /// Gives the cache other sizes.
    pub(super) fn resize(
        self: &Arc<Self>,
        change: Change,
        options: &ChangeOptions,
    ) -> Result<(), Error> {
        self.watched(options, move |cache| {
            // In one task: after a silence the change ends without its caller.
            cache.begin_change()?.finish(cache.change_sizes(&change))
        })
    }

    fn change_sizes(&self, change: &Change) -> Result<(), Error> {
        let failed = || Error::cache(self.name());
        let Inspection { settings, pages, .. } = self.inspect().map_err(failed())?;
        let device = self.device().map_err(|gone| failed()(gone.into()))?;
        let backing = {
            let _request = self.watch.begin();
            self.open_backing(&settings.backing.name, self.backing_use.rights(device.pool()))
        };
        let backing = backing.map_err(Error::backing(self.name()))?;
        let storage_bytes = backing.device.geometry().size_bytes;
        let wanted = change.applied_to(&settings, storage_bytes).map_err(failed())?;
        let (old, new) = (settings.volume_page_bytes_max(), wanted.volume_page_bytes_max());
        if new > old {
            // Its pages may still become as many as it had asked for.
            let free_bytes = device.pool().info().free_bytes;
            check_room(self.name(), new, free_bytes + pages * super::PAGE_BYTES)?;
        }
        let needed = volume_bytes(storage_bytes);
        // First the volume: the cache requires room for the larger backing device.
        if needed > device.geometry().size_bytes {
            device.resize(needed).map_err(Error::volume(self.name()))?;
        }
        let resized =
            Cache::resize(device, self.watched_device(&backing), &backing.identity, change);
        resized.map(drop).map_err(failed())
    }

    /// Attaches the cache to its backing device, moved to `text`. `check` rejects a device in other
    /// use.
    pub(super) fn attach(
        self: &Arc<Self>,
        text: &str,
        rights: Rights,
        options: &ChangeOptions,
        check: impl Fn(&KnownBacking) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let changing = self.watched(options, Self::begin_change)?;
        let opened = text.to_owned();
        let backing = self.watched(options, move |cache| {
            let _request = cache.watch.begin();
            cache.open_backing(&opened, rights).map_err(Error::backing(cache.name()))
        })?;
        // Again, on the opened device: the path may lead elsewhere since the first look.
        check(&backing.known())?;
        let attaching = Attaching::new(self, backing.known());
        self.watched(options, move |cache| {
            // Until the task ends, both devices count as used: the volume may name either.
            let _attaching = attaching;
            changing.finish(cache.move_to(&backing)).map_err(Error::cache(cache.name()))
        })
    }

    fn move_to(&self, backing: &Backing) -> Result<(), crate::error::CacheError> {
        let device = self.watched_device(backing);
        Cache::move_backing(self.device()?, &*device, &backing.identity).map(drop)
    }

    /// Writes dirty pages back for about a second, and returns how many bytes are still dirty.
    pub(super) fn write_back(self: &Arc<Self>, options: &ChangeOptions) -> Result<u64, Error> {
        self.begin_to_open();
        self.watched(options, |cache| {
            let open = cache.await_open(Patience::Stall(cache.backing_use.stall_time_max))?;
            // The part is short: the caller reports progress between parts.
            let end = Instant::now() + PART_TIME;
            while open.dirty_bytes() > 0 && Instant::now() < end {
                open.sweep().map_err(|source| Error::NotWrittenBack {
                    volume: cache.name().to_owned(),
                    dirty_bytes: open.dirty_bytes(),
                    source,
                })?;
            }
            Ok(open.dirty_bytes())
        })
    }

    /// Writes all dirty pages back.
    pub(super) fn drain(self: &Arc<Self>, options: &ChangeOptions) -> Result<(), Error> {
        self.begin_to_open();
        self.watched(options, |cache| {
            let open = cache.await_open(Patience::Stall(cache.backing_use.stall_time_max))?;
            open.drain().map_err(Error::cache(cache.name()))
        })
    }

    /// Closes the cache to the requests of all handles, writes its last dirty pages back and calls `delete`.
    /// No write can come between the write-back and the deletion. After an error the cache can be opened
    /// again.
    pub(super) fn delete_clean<T>(
        self: &Arc<Self>,
        options: &ChangeOptions,
        delete: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let drain = |cache: &Cache| {
            cache.drain().map_err(|error| error.to_string())?;
            cache.sync().map_err(|error| error.to_string())
        };
        // Held during the deletion: no request and no opening comes between.
        let _changing = self.watched(options, move |cache| cache.begin_change_after(drain))?;
        self.check_deletable()?;
        delete()
    }

    /// Checks that deleting the cache loses nothing: no page is dirty, and the backing device has
    /// flushed all writes past the cache. These writes leave no dirty page.
    pub(crate) fn check_deletable(self: &Arc<Self>) -> Result<(), Error> {
        let name = self.name();
        match self.status() {
            Ok(status) if status.stats.dirty_pages > 0 => {
                let dirty_bytes = status.stats.dirty_pages * super::PAGE_BYTES;
                return Err(Error::Dirty { volume: name.to_owned(), dirty_bytes });
            }
            Ok(_) => {}
            // Unknown pages may be dirty, so they count as a loss.
            Err(source) => return Err(Error::DirtyUnknown { volume: name.to_owned(), source }),
        }
        let cache = match &*self.state.lock() {
            State::Open(parts) => Arc::clone(&parts.cache),
            _ => return Ok(()),
        };
        let work = move || cache.sync().map_err(|error| error.to_string());
        let work = TimedTask::begin("cache-flush", &self.watch, work);
        let reason = match work.wait(self.backing_use.stall_time_max) {
            Outcome::Done(Ok(())) => return Ok(()),
            Outcome::Done(Err(reason)) | Outcome::Failed(reason) => reason,
            Outcome::Silent(stall_time) => self.silent(stall_time),
        };
        Err(Error::NotFlushed { volume: name.to_owned(), reason })
    }
}

/// A cache closed for a change, until it may be opened again.
pub(super) struct Changing {
    cache: Arc<OpenCache>,
    /// The reason of the last failed opening: true as long as no change succeeds.
    why: Option<NotOpen>,
}

impl Changing {
    fn finish<T, E>(mut self, changed: Result<T, E>) -> Result<T, E> {
        if changed.is_ok() {
            self.why = None;
        }
        changed
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        self.cache.end_change(self.why.take());
    }
}

/// A cache during its attachment to another backing device, until its volume names the new device
/// or keeps the old one.
pub(super) struct Attaching(Arc<OpenCache>);

impl Attaching {
    pub(super) fn new(cache: &Arc<OpenCache>, to: KnownBacking) -> Self {
        *cache.attaching.lock() = Some(to);
        Self(Arc::clone(cache))
    }
}

impl Drop for Attaching {
    fn drop(&mut self) {
        *self.0.attaching.lock() = None;
    }
}

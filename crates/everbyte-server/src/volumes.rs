//! The volumes of an open pool, each of them opened when it is first needed.
//!
//! Invariants: a volume is open at most once, because its block locks live in its one device. While
//! a volume is made, opened or renamed under a name, the name belongs to it. The lock of the table
//! is held only for lookups in the pool's memory. It is never held while a volume is opened: for a
//! file system, opening inspects all of its inodes. It is never held during a wait for a backing
//! device, a client, or the pool's own lock of changes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use everbyte::cache::CacheState;
use everbyte::{Error, Pool, Volume};
use everbyte_control::{Cause, RequestError};
use everbyte_device::BlockDevice;
use parking_lot::{Condvar, Mutex};

use crate::fs_mounts::FsMounts;
use crate::guarded_device::GuardedDevice;
use crate::metrics::VolumeMeters;
use crate::quiesce::{Busy, ExclusiveGuard, Lease, QuiesceLock};
use crate::request_error::{Unavailable, about, refused};
use crate::swap_export::SwapExport;

/// Longest time a client waits for the opening of a cache: short enough to get the reason before
/// the client's own time limit.
const OPEN_TIME_MAX: Duration = Duration::from_secs(4);

/// An open volume.
pub(crate) struct OpenVolume {
    pub(crate) volume: Volume,
    /// The mounts of a file system.
    pub(crate) mounts: Option<FsMounts>,
    swap_export: SwapExport,
    pub(crate) quiesce: Arc<QuiesceLock>,
    /// Counts of its clients' requests since it was opened.
    pub(crate) meters: VolumeMeters,
}

impl OpenVolume {
    fn new(volume: Volume) -> Self {
        let meters = VolumeMeters::default();
        let mounts = match &volume {
            Volume::Fs(fs) => Some(FsMounts::new(fs.clone(), Arc::clone(&meters.mount))),
            _ => None,
        };
        Self { volume, mounts, swap_export: SwapExport::default(), quiesce: Arc::default(), meters }
    }

    /// Its present name.
    pub(crate) fn name(&self) -> &str {
        self.volume.name()
    }

    /// Returns the device for clients. Waits for it no longer than a client would.
    ///
    /// # Errors
    /// The reason why clients cannot use the volume now.
    pub(crate) fn device(&self) -> Result<Arc<dyn BlockDevice>, Unavailable> {
        let name = self.name();
        match &self.volume {
            Volume::Block(disk) => Ok(Arc::new(disk.clone())),
            Volume::Cache(cache) => Ok(cache.device_by(Instant::now() + OPEN_TIME_MAX)?),
            Volume::Fs(_) => {
                let reason = format!("volume {name} is a file system");
                Err(Unavailable::new("file system", reason.into()))
            }
            Volume::Swap(swap) if swap.is_read_only() => {
                let reason = format!("volume {name} is swap, which cannot be served read-only");
                let error = RequestError::new(reason).because(Cause::ServedReadOnly);
                Err(Unavailable::new("read-only", error))
            }
            Volume::Swap(swap) => self.swap_export.device(swap),
        }
    }

    /// Returns false if the writes of clients are never durable.
    pub(crate) fn is_durable(&self) -> bool {
        !matches!(self.volume, Volume::Swap(_))
    }

    /// Returns false as long as its opening is under way: `is_ready` may still change.
    pub(crate) fn is_settled(&self) -> bool {
        !matches!(&self.volume, Volume::Cache(cache) if cache.state() == CacheState::Opening)
    }

    /// Returns true if clients can use it without waiting.
    pub(crate) fn is_ready(&self) -> bool {
        match &self.volume {
            Volume::Cache(cache) => cache.state() == CacheState::Open,
            Volume::Swap(swap) => !swap.is_read_only() && self.swap_export.is_ready(swap),
            Volume::Block(_) | Volume::Fs(_) => true,
        }
    }

    /// Returns true as long as programs have memory of it. They ask for more by its name.
    pub(crate) fn is_lent(&self) -> bool {
        matches!(&self.volume, Volume::Swap(swap) if swap.is_lent())
    }

    /// Returns true as long as it is mounted.
    pub(crate) fn is_mounted(&self) -> bool {
        self.mounts.as_ref().is_some_and(FsMounts::is_mounted)
    }

    /// Checks that it is not mounted.
    ///
    /// # Errors
    /// It is mounted.
    pub(crate) fn check_unmounted(&self) -> Result<(), RequestError> {
        if self.is_mounted() {
            return Err(format!("volume {} is mounted: unmount it first", self.name()).into());
        }
        Ok(())
    }

    /// The mounts of a file system.
    ///
    /// # Errors
    /// It is not a file system.
    pub(crate) fn mounts(&self) -> Result<&FsMounts, RequestError> {
        let mounts = self.mounts.as_ref();
        mounts.ok_or_else(|| format!("volume {} is no file system", self.name()).into())
    }

    /// Returns the device for one client. The client counts as long as the device lives.
    ///
    /// # Errors
    /// As [`OpenVolume::begin_op`]; the volume cannot be opened.
    pub(crate) fn lease(&self, name: &str) -> Result<Arc<dyn BlockDevice>, Unavailable> {
        let changing = |refused| Unavailable::new("changing", refused);
        let lease = self.begin_op(name).map_err(changing)?;
        let device = self.device()?;
        // Opening may take long, and a disconnecting change does not know of this client yet.
        let undisturbed = lease.check_undisturbed();
        undisturbed.map_err(|busy| changing(self.refuse(busy, None)))?;
        Ok(Arc::new(GuardedDevice::new(device, lease)))
    }

    /// Admits a user of the volume, found as `name`.
    ///
    /// # Errors
    /// It is being changed, or has been deleted or renamed since the lookup. Another volume may
    /// have its name.
    pub(crate) fn begin_op(&self, name: &str) -> Result<Lease, RequestError> {
        let lease = self.quiesce.begin_op().map_err(|busy| self.refuse(busy, None))?;
        // Under the lease: no rename or deletion can follow the check.
        self.check_found(name).map(|()| lease)
    }

    /// Shuts clients out to do `what`, with the cause `about_clients` if they are in its way.
    ///
    /// # Errors
    /// It has clients and `beside_clients` is false; the volume is being changed, or has been
    /// deleted or renamed since it was found as `name`. Another volume may have the name now.
    pub(crate) fn lock_exclusive(
        &self,
        name: &str,
        what: &'static str,
        beside_clients: bool,
        about_clients: Option<Cause>,
    ) -> Result<ExclusiveGuard, RequestError> {
        let guard = self.quiesce.lock_exclusive(what, beside_clients);
        let guard = guard.map_err(|busy| self.refuse(busy, about_clients))?;
        // Under the lock, for the same reason as under a lease.
        self.check_found(name).map(|()| guard)
    }

    /// Checks that it is still the volume found as `name`. The caller's lease or lock keeps this
    /// true.
    fn check_found(&self, name: &str) -> Result<(), RequestError> {
        let reason = if self.volume.is_gone() {
            format!("volume {name} is gone: it was deleted meanwhile, or the pool is being closed")
        } else if self.name() != name {
            format!("volume {name} was renamed to {} meanwhile", self.name())
        } else {
            return Ok(());
        };
        Err(RequestError::new(reason).because(Cause::NoSuchVolume))
    }

    /// The refusal of a change, with the cause `about_clients` if clients are in its way.
    fn refuse(&self, busy: Busy, about_clients: Option<Cause>) -> RequestError {
        let name = self.name();
        let (reason, cause) = match busy {
            Busy::Change(what) => (format!("volume {name} is being {what}: try again"), None),
            Busy::Clients(1) => (format!("1 client has volume {name} open"), about_clients),
            Busy::Clients(clients) => {
                (format!("{clients} clients have volume {name} open"), about_clients)
            }
        };
        RequestError { reason, cause }
    }
}

enum Slot {
    /// A volume of this name is being made.
    Making,
    /// The volume of this name is being opened. Other users of the name wait.
    Opening,
    Open(Arc<OpenVolume>),
}

impl Slot {
    fn is_opening(&self) -> bool {
        matches!(self, Self::Opening)
    }

    fn opened(&self) -> Option<Arc<OpenVolume>> {
        match self {
            Self::Open(volume) => Some(Arc::clone(volume)),
            Self::Making | Self::Opening => None,
        }
    }
}

type Slots = BTreeMap<String, Slot>;

/// The volumes of an open pool by name. A volume is open at most once.
pub(crate) struct Volumes {
    pool: Pool,
    slots: Mutex<Slots>,
    /// Notified when an opening has ended.
    changed: Condvar,
}

/// A name reserved for a volume. If the operation fails, even by a panic, the name is free again.
pub(crate) struct Reserved<'a> {
    volumes: &'a Volumes,
    name: &'a str,
    is_filled: bool,
}

impl Reserved<'_> {
    fn fill(mut self, slot: Slot, slots: &mut Slots) {
        slots.insert(self.name.to_owned(), slot);
        self.is_filled = true;
        self.volumes.changed.notify_all();
    }

    fn open(self, volume: Volume) -> Arc<OpenVolume> {
        let volume = Arc::new(OpenVolume::new(volume));
        let volumes = self.volumes;
        self.fill(Slot::Open(Arc::clone(&volume)), &mut volumes.slots.lock());
        volume
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if !self.is_filled {
            // Others wait for the name, and would wait forever after a panic.
            self.volumes.slots.lock().remove(self.name);
            self.volumes.changed.notify_all();
        }
    }
}

impl Volumes {
    pub(crate) fn new(pool: Pool) -> Self {
        Self { pool, slots: Mutex::default(), changed: Condvar::new() }
    }

    /// The volume of this name, opened if need be.
    ///
    /// # Errors
    /// The volume does not exist, or it cannot be read.
    pub(crate) fn get(&self, name: &str) -> Result<Arc<OpenVolume>, RequestError> {
        self.get_by(name, || self.pool.open_volume(name).map_err(refused))
    }

    fn get_by(
        &self,
        name: &str,
        open: impl FnOnce() -> Result<Volume, RequestError>,
    ) -> Result<Arc<OpenVolume>, RequestError> {
        let mut slots = self.slots.lock();
        self.changed.wait_while(&mut slots, |slots| slots.get(name).is_some_and(Slot::is_opening));
        match slots.get(name) {
            Some(Slot::Open(volume)) => return Ok(Arc::clone(volume)),
            Some(_) => return Err(format!("volume {name} is being made: try again").into()),
            // Before the reservation: a missing volume can be made.
            None => self.check_exists(name)?,
        }
        let reserved = self.reserve_as(Slot::Opening, name, &mut slots);
        // Opening a file system reads all of its inodes, and must not delay users of other volumes.
        drop(slots);
        Ok(reserved.open(open().map_err(|refused| about(name, refused))?))
    }

    fn check_exists(&self, name: &str) -> Result<(), RequestError> {
        let missing = |_| refused(Error::NoSuchVolume { volume: name.to_owned() });
        self.pool.engine().volume(name).map(drop).map_err(missing)
    }

    /// Waits until nothing is being opened.
    pub(crate) fn await_openings(&self) {
        let is_any_opening = |slots: &mut Slots| slots.values().any(Slot::is_opening);
        self.changed.wait_while(&mut self.slots.lock(), is_any_opening);
    }

    /// The volume of this name, if it is open.
    pub(crate) fn opened(&self, name: &str) -> Option<Arc<OpenVolume>> {
        self.slots.lock().get(name).and_then(Slot::opened)
    }

    /// All open volumes.
    pub(crate) fn all_opened(&self) -> Vec<Arc<OpenVolume>> {
        self.slots.lock().values().filter_map(Slot::opened).collect()
    }

    /// Makes a volume by `make`, and reserves its name for the time of the call.
    ///
    /// # Errors
    /// The name is taken; the errors of `make`.
    pub(crate) fn make(
        &self,
        name: &str,
        make: impl FnOnce() -> Result<Volume, RequestError>,
    ) -> Result<Arc<OpenVolume>, RequestError> {
        let reserved = self.reserve(name)?;
        Ok(reserved.open(make()?))
    }

    /// Renames an open volume, and reserves the new name for the time of the call.
    ///
    /// # Errors
    /// The name is taken; the errors of the pool.
    pub(crate) fn rename(&self, name: &str, new_name: &str) -> Result<(), RequestError> {
        let reserved = self.reserve(new_name)?;
        self.pool.rename(name, new_name).map_err(refused)?;
        // One lock for both names: a lookup finds the volume under exactly one.
        let mut slots = self.slots.lock();
        if let Some(volume) = slots.remove(name) {
            reserved.fill(volume, &mut slots);
        }
        Ok(())
    }

    /// Reserves a name for a future volume.
    fn reserve<'a>(&'a self, name: &'a str) -> Result<Reserved<'a>, RequestError> {
        let mut slots = self.slots.lock();
        // An existing, unopened volume keeps its name: a reservation would block the users of the
        // volume.
        if slots.contains_key(name) || self.check_exists(name).is_ok() {
            return Err(format!("a volume named {name:?} exists already").into());
        }
        Ok(self.reserve_as(Slot::Making, name, &mut slots))
    }

    /// Reserves the name of a closed volume, and so prevents its opening. Waits for an opening under
    /// way: it may fail, as that of a look at a damaged volume does.
    ///
    /// # Errors
    /// It is open by now.
    pub(crate) fn reserve_closed<'a>(
        &'a self,
        name: &'a str,
    ) -> Result<Reserved<'a>, RequestError> {
        let mut slots = self.slots.lock();
        self.changed.wait_while(&mut slots, |slots| slots.get(name).is_some_and(Slot::is_opening));
        if slots.contains_key(name) {
            return Err(format!("volume {name} is being opened: try again").into());
        }
        Ok(self.reserve_as(Slot::Making, name, &mut slots))
    }

    fn reserve_as<'a>(&'a self, slot: Slot, name: &'a str, slots: &mut Slots) -> Reserved<'a> {
        slots.insert(name.to_owned(), slot);
        Reserved { volumes: self, name, is_filled: false }
    }

    /// Forgets a deleted volume.
    pub(crate) fn remove(&self, name: &str) {
        self.slots.lock().remove(name);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn volumes() -> (tempfile::TempDir, Volumes) {
        let folder = tempfile::tempdir().unwrap();
        let pool = Pool::create(folder.path().join("pool"), 32 << 20).unwrap();
        (folder, Volumes::new(pool))
    }

    #[test]
    fn failed_creation_frees_the_name() {
        let (_folder, volumes) = volumes();
        let made = catch_unwind(AssertUnwindSafe(|| volumes.make("v", || panic!("planned"))));
        assert!(made.is_err());
        for reason in ["the first", "the second"] {
            let refused = volumes.make("v", || Err(RequestError::new(reason))).err().unwrap();
            assert_eq!(refused.reason, reason);
        }
    }

    #[test]
    fn slow_opening_delays_no_other_volume() {
        let (_folder, volumes) = &volumes();
        for name in ["slow", "other"] {
            volumes.pool.create_block(name, 1 << 20).map(drop).unwrap();
        }
        std::thread::scope(|scope| {
            let mut waiting = None;
            let opened = volumes.get_by("slow", || {
                assert!(volumes.slots.try_lock().is_some(), "the table is locked");
                volumes.get("other").unwrap();
                assert!(volumes.opened("slow").is_none());
                waiting = Some(scope.spawn(move || volumes.get("slow").unwrap()));
                volumes.pool.open_volume("slow").map_err(refused)
            });
            let waited = waiting.unwrap().join().unwrap();
            assert!(Arc::ptr_eq(&opened.unwrap(), &waited), "it was opened twice");
        });
    }

    #[test]
    fn name_of_closed_volume_is_taken() {
        let (_folder, volumes) = volumes();
        volumes.pool.create_block("v", 1 << 20).map(drop).unwrap();
        let refused = volumes.make("v", || panic!("it was asked for")).err().unwrap();
        assert!(refused.reason.contains("exists already"), "{refused}");
        volumes.get("v").unwrap();
    }

    #[test]
    fn panicked_opening_is_repeatable() {
        let (_folder, volumes) = volumes();
        volumes.pool.create_block("v", 1 << 20).map(drop).unwrap();
        let open = || volumes.get_by("v", || panic!("planned"));
        assert!(catch_unwind(AssertUnwindSafe(open)).is_err());
        volumes.await_openings();
        volumes.get("v").unwrap();
    }
}

//! The volumes of an open pool, each of them opened when it is first needed.
//!
//! Invariants: a volume is open at most once, because its block locks live in that one device; a
//! name that a volume is being made or opened under, or gets, belongs to it. The lock of the table is
//! held while something in the pool's memory is looked up, and never while a volume is opened, which for
//! a file system takes as long as a look at all of its inodes, nor while anybody waits for a backing
//! device, a client, or the pool's own lock of changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use everbyte_control::{Cause, Refused};
use everbyte_device::BlockDevice;
use everbyte_media::Mapped;
use everbyte_pool::Volume;
use everbyte_pool::format::VolumeKind;
use parking_lot::{Condvar, Mutex};

use crate::context::Context;
use crate::handle::{Handle, Opened, Unavailable};
use crate::kinds::Kind;
use crate::leased::Leased;
use crate::quiesce::{Alone, Lease, Occupied, QuiesceLock};
use crate::refusal::{about, refused};

/// A volume that is open.
pub(crate) struct OpenVolume {
    pub(crate) volume: Arc<Volume<Mapped>>,
    pub(crate) handle: Box<dyn Handle>,
    pub(crate) quiesce: Arc<QuiesceLock>,
}

impl OpenVolume {
    fn new(opened: Opened) -> Self {
        let Opened { volume, handle } = opened;
        Self { volume, handle, quiesce: Arc::default() }
    }

    /// Its present name.
    pub(crate) fn name(&self) -> &str {
        self.volume.name()
    }

    /// Returns the device for one client, which counts as a client as long as the device lives.
    ///
    /// # Errors
    /// As [`OpenVolume::begin_op`]; the volume cannot be opened.
    pub(crate) fn lease(&self, name: &str) -> Result<Arc<dyn BlockDevice>, Unavailable> {
        let changing = |refused: Refused| Unavailable::new("changing", refused.reason);
        let lease = self.begin_op(name).map_err(changing)?;
        let device = self.handle.open()?;
        // Opening may take long, and a change that sends clients away does not know of this one yet.
        let undisturbed = lease.check_undisturbed();
        undisturbed.map_err(|occupied| changing(self.refuse(occupied, None)))?;
        Ok(Arc::new(Leased::new(device, lease)))
    }

    /// Lets somebody use the volume, who has found it as `name`.
    ///
    /// # Errors
    /// It is being changed, or was deleted or renamed meanwhile, and another may have its name.
    pub(crate) fn begin_op(&self, name: &str) -> Result<Lease, Refused> {
        let lease = self.quiesce.begin_op().map_err(|occupied| self.refuse(occupied, None))?;
        self.check_found(name).map(|()| lease)
    }

    /// Shuts clients out to do `what`, with the cause `about_clients` if they are in its way.
    ///
    /// # Errors
    /// There are clients and it is not to be done `beside_clients`; the volume is being changed, or was
    /// deleted or renamed since it was found as `name`, and another may have that now.
    pub(crate) fn shut(
        &self,
        name: &str,
        what: &'static str,
        beside_clients: bool,
        about_clients: Option<Cause>,
    ) -> Result<Alone, Refused> {
        let alone = self.quiesce.shut(what, beside_clients);
        let alone = alone.map_err(|occupied| self.refuse(occupied, about_clients))?;
        self.check_found(name).map(|()| alone)
    }

    /// Checks that it is still what was found as `name`. Who has a right to it keeps it so.
    fn check_found(&self, name: &str) -> Result<(), Refused> {
        let reason = if self.volume.is_gone() {
            format!("volume {name} is gone: it was deleted meanwhile, or the pool is being closed")
        } else if self.name() != name {
            format!("volume {name} was renamed to {} meanwhile", self.name())
        } else {
            return Ok(());
        };
        Err(Refused::new(reason).because(Cause::NoSuchVolume))
    }

    /// The refusal of a change, with the cause `about_clients` if clients are in its way.
    fn refuse(&self, occupied: Occupied, about_clients: Option<Cause>) -> Refused {
        let cause = match occupied {
            Occupied::Clients(_) => about_clients,
            Occupied::Change(_) => None,
        };
        Refused { reason: self.why_occupied(occupied), cause }
    }

    /// `occupied` for people.
    fn why_occupied(&self, occupied: Occupied) -> String {
        let name = self.name();
        match occupied {
            Occupied::Change(what) => format!("volume {name} is being {what}: try again"),
            Occupied::Clients(1) => format!("1 client has volume {name} open"),
            Occupied::Clients(clients) => format!("{clients} clients have volume {name} open"),
        }
    }
}

enum Slot {
    /// A volume of this name is being made.
    Making,
    /// The volume of this name is being opened, and whoever wants it waits.
    Opening,
    Open(Arc<OpenVolume>),
}

type Slots = BTreeMap<String, Slot>;

/// The volumes of an open pool by name. A volume is open at most once.
pub(crate) struct Volumes {
    context: Context,
    slots: Mutex<Slots>,
    /// Notified when an opening has ended.
    changed: Condvar,
}

/// A name that is kept for a volume. It is free again if nothing comes of that, even by a panic.
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
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if !self.is_filled {
            self.volumes.slots.lock().remove(self.name);
            self.volumes.changed.notify_all();
        }
    }
}

impl Volumes {
    pub(crate) fn new(context: Context) -> Self {
        Self { context, slots: Mutex::default(), changed: Condvar::new() }
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// The volume of this name, opened if need be.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub(crate) fn get(&self, name: &str) -> Result<Arc<OpenVolume>, Refused> {
        self.get_by(name, |kind| (Kind::of(kind)?.open)(&self.context, name))
    }

    fn get_by(
        &self,
        name: &str,
        open: impl FnOnce(VolumeKind) -> Result<Opened, Refused>,
    ) -> Result<Arc<OpenVolume>, Refused> {
        let mut slots = self.slots.lock();
        loop {
            match slots.get(name) {
                Some(Slot::Open(volume)) => return Ok(Arc::clone(volume)),
                Some(Slot::Making) => {
                    return Err(Refused::new(format!("volume {name} is being made: try again")));
                }
                Some(Slot::Opening) => self.changed.wait(&mut slots),
                None => break,
            }
        }
        // Before the name is kept: a volume that is not there can be made.
        let kind = self.context.pool.volume(name).map_err(refused)?.kind();
        slots.insert(name.to_owned(), Slot::Opening);
        drop(slots);
        let reserved = Reserved { volumes: self, name, is_filled: false };
        let opened = open(kind).map_err(|refused| about(name, refused))?;
        let volume = Arc::new(OpenVolume::new(opened));
        reserved.fill(Slot::Open(Arc::clone(&volume)), &mut self.slots.lock());
        Ok(volume)
    }

    /// Waits until nothing is being opened.
    pub(crate) fn await_openings(&self) {
        let mut slots = self.slots.lock();
        while slots.values().any(|slot| matches!(slot, Slot::Opening)) {
            self.changed.wait(&mut slots);
        }
    }

    /// The volume of this name, if it is open.
    pub(crate) fn opened(&self, name: &str) -> Option<Arc<OpenVolume>> {
        match self.slots.lock().get(name) {
            Some(Slot::Open(volume)) => Some(Arc::clone(volume)),
            _ => None,
        }
    }

    /// All that are open.
    pub(crate) fn all_opened(&self) -> Vec<Arc<OpenVolume>> {
        let slots = self.slots.lock();
        let open = slots.values().filter_map(|slot| match slot {
            Slot::Open(volume) => Some(Arc::clone(volume)),
            Slot::Making | Slot::Opening => None,
        });
        open.collect()
    }

    /// Makes a volume by `make`, under a name that nobody else gets meanwhile.
    ///
    /// # Errors
    /// The name is taken; those of `make`.
    pub(crate) fn make(
        &self,
        name: &str,
        make: impl FnOnce() -> Result<Opened, Refused>,
    ) -> Result<Arc<OpenVolume>, Refused> {
        let reserved = self.reserve(name)?;
        let volume = Arc::new(OpenVolume::new(make()?));
        reserved.fill(Slot::Open(Arc::clone(&volume)), &mut self.slots.lock());
        Ok(volume)
    }

    /// Renames an open volume by `rename`, to a name that nobody else gets meanwhile.
    ///
    /// # Errors
    /// The name is taken; those of `rename`.
    pub(crate) fn rename(
        &self,
        name: &str,
        new_name: &str,
        rename: impl FnOnce() -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let reserved = self.reserve(new_name)?;
        rename()?;
        let mut slots = self.slots.lock();
        if let Some(volume) = slots.remove(name) {
            reserved.fill(volume, &mut slots);
        }
        Ok(())
    }

    /// Keeps a name for a volume that is to have it.
    fn reserve<'a>(&'a self, name: &'a str) -> Result<Reserved<'a>, Refused> {
        let mut slots = self.slots.lock();
        // One that nobody has opened yet is no name to be kept from those who want it.
        if slots.contains_key(name) || self.context.pool.volume(name).is_ok() {
            return Err(Refused::new(format!("a volume named {name:?} exists already")));
        }
        slots.insert(name.to_owned(), Slot::Making);
        Ok(Reserved { volumes: self, name, is_filled: false })
    }

    /// Reserves the name of a closed volume, and so prevents its opening.
    ///
    /// # Errors
    /// It is open by now, or is being opened.
    pub(crate) fn reserve_closed<'a>(&'a self, name: &'a str) -> Result<Reserved<'a>, Refused> {
        let mut slots = self.slots.lock();
        if slots.contains_key(name) {
            return Err(Refused::new(format!("volume {name} is being opened: try again")));
        }
        slots.insert(name.to_owned(), Slot::Making);
        Ok(Reserved { volumes: self, name, is_filled: false })
    }

    /// Forgets a volume that is gone.
    pub(crate) fn remove(&self, name: &str) {
        self.slots.lock().remove(name);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use everbyte_block::BlockOptions;
    use everbyte_media::MediaOptions;
    use everbyte_pool::{OpenOptions, Pool};

    use super::*;
    use crate::handle::Device;

    fn volumes() -> Volumes {
        let medium = Mapped::anonymous(32 << 20, &MediaOptions::new()).unwrap();
        Pool::format(&medium, 8, [1; 16]).unwrap();
        let options = OpenOptions { capacity_blocks: 8192 };
        let pool = Arc::new(Pool::open(Arc::new(medium), crate::kinds(), &options).unwrap());
        let backing = everbyte::backing::Options::default();
        Volumes::new(Context { pool, unchanging: false, backing, trust_pool: false })
    }

    #[test]
    fn a_name_under_which_nothing_could_be_made_is_free_again() {
        let volumes = volumes();
        let made = catch_unwind(AssertUnwindSafe(|| volumes.make("v", || panic!("planned"))));
        assert!(made.is_err());
        for reason in ["the first", "the second"] {
            let refused = volumes.make("v", || Err(Refused::new(reason))).err().unwrap();
            assert_eq!(refused.reason, reason);
        }
    }

    #[test]
    fn a_volume_that_is_being_opened_is_waited_for_by_those_alone_who_want_it() {
        let volumes = &volumes();
        for name in ["slow", "other"] {
            let options = BlockOptions::default();
            Device::create(&volumes.context.pool, name, 1 << 20, &options).map(drop).unwrap();
        }
        std::thread::scope(|scope| {
            let mut waiting = None;
            let opened = volumes.get_by("slow", |kind| {
                assert!(volumes.slots.try_lock().is_some(), "the table is locked");
                volumes.get("other").unwrap();
                assert!(volumes.opened("slow").is_none());
                waiting = Some(scope.spawn(move || volumes.get("slow").unwrap()));
                (Kind::of(kind)?.open)(&volumes.context, "slow")
            });
            let waited = waiting.unwrap().join().unwrap();
            assert!(Arc::ptr_eq(&opened.unwrap(), &waited), "it was opened twice");
        });
    }

    #[test]
    fn nothing_is_made_under_the_name_of_a_volume_that_is_not_open() {
        let volumes = volumes();
        let options = BlockOptions::default();
        Device::create(&volumes.context.pool, "v", 1 << 20, &options).map(drop).unwrap();
        let refused = volumes.make("v", || panic!("it was asked for")).err().unwrap();
        assert!(refused.reason.contains("exists already"), "{refused}");
        volumes.get("v").unwrap();
    }

    #[test]
    fn an_opening_that_panics_can_be_tried_again() {
        let volumes = volumes();
        let options = BlockOptions::default();
        Device::create(&volumes.context.pool, "v", 1 << 20, &options).map(drop).unwrap();
        let open = || volumes.get_by("v", |_| panic!("planned"));
        assert!(catch_unwind(AssertUnwindSafe(open)).is_err());
        volumes.await_openings();
        volumes.get("v").unwrap();
    }
}

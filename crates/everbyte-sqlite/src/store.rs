//! The databases of a VFS: those of a pool, and those on attached devices.
//!
//! Owns the open ones. Invariants: every device is opened once, for any number of connections. A
//! database of the pool is opened and closed under the lock of the search for it, so that no caller
//! finds its volume in use by one that is being closed. A name leads to the same database while
//! that is open, regardless of its volume: SQLite finds journals by name.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use everbyte_block::{BlockOptions, BlockVolume};
use everbyte_device::AtomicWrites;
use everbyte_media::Medium;
use everbyte_pool::{Pool, PoolError};
use parking_lot::Mutex;

use crate::database::{Activity, Database};
use crate::error::DatabaseError;
use crate::format::{FileKind, volume_bytes};

/// A volume of a pool on any medium.
trait NamedVolume: AtomicWrites {
    /// Returns true if the pool has it, under this name.
    fn is_named(&self, name: &str) -> bool;
}

impl<M: Medium> NamedVolume for BlockVolume<M> {
    fn is_named(&self, name: &str) -> bool {
        !self.volume().is_gone() && self.volume().name() == name
    }
}

/// A pool on any medium.
trait Volumes: Send + Sync {
    fn has(&self, name: &str) -> bool;
    fn open(&self, name: &str) -> Result<Arc<dyn NamedVolume>, PoolError>;
    fn create(
        &self,
        name: &str,
        size_bytes: u64,
        options: &BlockOptions,
    ) -> Result<Arc<dyn AtomicWrites>, PoolError>;
}

impl<M: Medium> Volumes for Arc<Pool<M>> {
    fn has(&self, name: &str) -> bool {
        self.volume(name).is_ok()
    }

    fn open(&self, name: &str) -> Result<Arc<dyn NamedVolume>, PoolError> {
        Ok(Arc::new(BlockVolume::open(self, name)?))
    }

    fn create(
        &self,
        name: &str,
        size_bytes: u64,
        options: &BlockOptions,
    ) -> Result<Arc<dyn AtomicWrites>, PoolError> {
        Ok(Arc::new(BlockVolume::create(self, name, size_bytes, options)?))
    }
}

/// Databases by name: one on each block volume of a pool with a database, and one on each attached
/// device. They must have no other writer while the store has them open.
pub struct Store {
    pool: Option<Box<dyn Volumes>>,
    databases: Mutex<Databases>,
}

#[derive(Default)]
struct Databases {
    attached: BTreeMap<String, Arc<Database>>,
    /// Databases of the pool with open connections, by the names of their opening.
    open: BTreeMap<String, OpenDatabase>,
}

struct OpenDatabase {
    database: Arc<Database>,
    volume: Arc<dyn NamedVolume>,
}

impl Databases {
    fn get(&self, name: &str) -> Option<&Arc<Database>> {
        self.attached.get(name).or_else(|| self.open.get(name).map(|open| &open.database))
    }

    /// Returns true if a database is open under a former name of its volume.
    fn has_moved(&self, name: &str) -> bool {
        self.open.get(name).is_some_and(|open| !open.volume.is_named(name))
    }

    /// Refuses a name of a database.
    fn check_free(&self, name: &str) -> Result<(), DatabaseError> {
        if self.has_moved(name) {
            return Err(DatabaseError::Moved { name: name.to_owned() });
        }
        match self.get(name) {
            Some(_) => Err(DatabaseError::Taken { name: name.to_owned() }),
            None => Ok(()),
        }
    }

    /// Closes a database of the pool that only the store uses.
    fn close_unused(&mut self, name: &str) {
        if self.open.get(name).is_some_and(|open| Arc::strong_count(&open.database) == 1) {
            self.open.remove(name);
        }
    }
}

/// A database in use. The store closes one of the pool with its last handle.
pub(crate) struct DatabaseHandle {
    /// Before `user`, so that it is dropped first and the store has the last reference.
    database: Arc<Database>,
    user: User,
}

impl DatabaseHandle {
    /// Returns true if its volume is gone or has another name now.
    pub(crate) fn has_moved(&self) -> bool {
        self.user.store.databases.lock().has_moved(&self.user.name)
    }
}

impl Deref for DatabaseHandle {
    type Target = Database;

    fn deref(&self) -> &Database {
        &self.database
    }
}

/// When dropped, lets the store check for remaining users of the database.
struct User {
    store: Arc<Store>,
    name: String,
}

impl Drop for User {
    fn drop(&mut self) {
        self.store.databases.lock().close_unused(&self.name);
    }
}

impl Store {
    /// Makes a store of the databases of `pool`.
    #[must_use]
    pub fn new<M: Medium>(pool: Arc<Pool<M>>) -> Arc<Self> {
        Arc::new(Self { pool: Some(Box::new(pool)), databases: Mutex::default() })
    }

    /// Makes a store without a pool, for attached databases only.
    #[must_use]
    pub fn of_devices() -> Arc<Self> {
        Arc::new(Self { pool: None, databases: Mutex::default() })
    }

    /// Makes an empty database on a new volume in the pool. It may grow to `database_bytes`. An
    /// unwritten volume made by other means serves as well: see [`volume_bytes`].
    ///
    /// # Errors
    /// The name is used, also by a volume that lost it while connections have it open, or is not
    /// valid for a database; the pool is missing or full; the medium's.
    pub fn create_database(
        &self,
        name: &str,
        database_bytes: u64,
        options: &BlockOptions,
    ) -> Result<(), DatabaseError> {
        check_name(name)?;
        let databases = self.databases.lock();
        databases.check_free(name)?;
        let device = self
            .pool(name)?
            .create(name, volume_bytes(database_bytes), options)
            .map_err(|source| DatabaseError::Pool { name: name.to_owned(), source })?;
        Database::open(name, device).map(drop)
    }

    /// Offers the database on `device` as `name`, for the lifetime of the store. An unwritten
    /// device becomes an empty database; [`volume_bytes`] returns its required size.
    ///
    /// SQLite recovers from crashes if the device promises two properties beyond its contract, as a
    /// block volume does. A write within an aligned 4 KiB block is atomic in a crash. Sequentially
    /// answered writes become durable in this order, so that none is present without its
    /// predecessors.
    ///
    /// # Errors
    /// The name is taken, also by a volume that lost it while connections have it open, or is not
    /// valid for a database; the device holds foreign content, is too small, or fails.
    pub fn attach(&self, name: &str, device: Arc<dyn AtomicWrites>) -> Result<(), DatabaseError> {
        check_name(name)?;
        let mut databases = self.databases.lock();
        databases.check_free(name)?;
        if self.pool.as_ref().is_some_and(|pool| pool.has(name)) {
            return Err(DatabaseError::Taken { name: name.to_owned() });
        }
        let database = Arc::new(Database::open(name, device)?);
        databases.attached.insert(name.to_owned(), database);
        Ok(())
    }

    /// Returns the counts of requests to a database since it was attached, or else since the first
    /// of its present connections opened it; zeroes if it has no connection.
    ///
    /// # Errors
    /// The database is missing.
    pub fn activity(&self, name: &str) -> Result<Activity, DatabaseError> {
        let mut databases = self.databases.lock();
        let activity = self.find(&mut databases, name)?.activity();
        databases.close_unused(name);
        Ok(activity)
    }

    /// Returns true if there is a device or volume of this name, or a database open under it.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.databases.lock().get(name).is_some()
            || self.pool.as_ref().is_some_and(|pool| pool.has(name))
    }

    /// Opens a database, or finds it open.
    pub(crate) fn database(self: &Arc<Self>, name: &str) -> Result<DatabaseHandle, DatabaseError> {
        let database = self.find(&mut self.databases.lock(), name)?;
        let user = User { store: Arc::clone(self), name: name.to_owned() };
        Ok(DatabaseHandle { database, user })
    }

    fn find(&self, databases: &mut Databases, name: &str) -> Result<Arc<Database>, DatabaseError> {
        check_name(name)?;
        if let Some(database) = databases.get(name) {
            return Ok(Arc::clone(database));
        }
        let volume = self
            .pool(name)?
            .open(name)
            .map_err(|source| DatabaseError::Pool { name: name.to_owned(), source })?;
        let device: Arc<dyn AtomicWrites> = Arc::<dyn NamedVolume>::clone(&volume);
        let database = Arc::new(Database::open(name, device)?);
        let open = OpenDatabase { database: Arc::clone(&database), volume };
        databases.open.insert(name.to_owned(), open);
        Ok(database)
    }

    fn pool(&self, name: &str) -> Result<&dyn Volumes, DatabaseError> {
        self.pool.as_deref().ok_or_else(|| DatabaseError::NoDevice { name: name.to_owned() })
    }
}

/// Refuses a name of SQLite's journals.
pub(crate) fn check_name(name: &str) -> Result<(), DatabaseError> {
    match file_of(name) {
        (_, FileKind::Main) => Ok(()),
        (_, kind) => Err(DatabaseError::Name { name: name.to_owned(), suffix: kind.suffix() }),
    }
}

/// Splits SQLite's name of a file into the database and the kind of its file.
pub(crate) fn file_of(path: &str) -> (&str, FileKind) {
    let kinds = [FileKind::Journal, FileKind::Wal].into_iter();
    let mut found = kinds.filter_map(|kind| Some((path.strip_suffix(kind.suffix())?, kind)));
    found.next().unwrap_or((path, FileKind::Main))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{Sender, channel};
    use std::thread;
    use std::time::Duration;

    use everbyte_device::{AtomicWriteError, Decorator, MemoryDevice, Passthrough, WriteRequest};

    use super::*;

    /// A volume with a slow close and one handle at a time.
    struct SlowVolume {
        below: MemoryDevice,
        taken: Arc<AtomicBool>,
        closing: Sender<()>,
    }

    impl Decorator for SlowVolume {
        type Inner = MemoryDevice;
        const PASSTHROUGH: Passthrough = Passthrough::Split;

        fn inner(&self) -> &MemoryDevice {
            &self.below
        }
    }

    impl AtomicWrites for SlowVolume {
        fn write_atomic(&self, _requests: &[WriteRequest<'_>]) -> Result<(), AtomicWriteError> {
            Err(AtomicWriteError::TooLarge { what: "the test" })
        }
    }

    impl NamedVolume for SlowVolume {
        fn is_named(&self, _name: &str) -> bool {
            true
        }
    }

    impl Drop for SlowVolume {
        fn drop(&mut self) {
            // At the end of the test the receiver is gone.
            let _heard = self.closing.send(());
            thread::sleep(Duration::from_millis(100));
            self.taken.store(false, Ordering::Release);
        }
    }

    struct SlowVolumes {
        taken: Arc<AtomicBool>,
        closing: Sender<()>,
    }

    impl Volumes for SlowVolumes {
        fn has(&self, _name: &str) -> bool {
            true
        }

        fn open(&self, name: &str) -> Result<Arc<dyn NamedVolume>, PoolError> {
            if self.taken.swap(true, Ordering::AcqRel) {
                return Err(PoolError::InUse { name: name.to_owned() });
            }
            Ok(Arc::new(SlowVolume {
                below: MemoryDevice::new(volume_bytes(1 << 20)),
                taken: Arc::clone(&self.taken),
                closing: self.closing.clone(),
            }))
        }

        fn create(
            &self,
            name: &str,
            _size_bytes: u64,
            _options: &BlockOptions,
        ) -> Result<Arc<dyn AtomicWrites>, PoolError> {
            Err(PoolError::VolumeExists { name: name.to_owned() })
        }
    }

    #[test]
    fn closing_database_can_be_opened() {
        let (closing, closes) = channel();
        let volumes = SlowVolumes { taken: Arc::default(), closing };
        let store = Arc::new(Store { pool: Some(Box::new(volumes)), databases: Mutex::default() });
        let last = store.database("a").unwrap();
        thread::scope(|scope| {
            scope.spawn(|| drop(last));
            closes.recv().unwrap();
            store.database("a").map(drop).unwrap();
            closes.recv().unwrap();
            scope.spawn(|| store.activity("a").unwrap());
            closes.recv().unwrap();
            store.activity("a").unwrap();
        });
    }
}

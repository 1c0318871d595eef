//! The databases that a VFS offers: those of a pool, and those on attached devices.
//!
//! Owns the open ones. Invariant: every device is opened once, however many connections use it.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use everbyte_block::{BlockOptions, BlockVolume};
use everbyte_device::AtomicWrites;
use everbyte_media::Medium;
use everbyte_pool::{Pool, PoolError};
use parking_lot::Mutex;

use crate::database::{Activity, Database};
use crate::error::DatabaseError;
use crate::format::{FileKind, volume_bytes};

/// A pool, whatever its medium is.
trait Volumes: Send + Sync {
    fn has(&self, name: &str) -> bool;
    fn open(&self, name: &str) -> Result<Arc<dyn AtomicWrites>, PoolError>;
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

    fn open(&self, name: &str) -> Result<Arc<dyn AtomicWrites>, PoolError> {
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

/// Databases by name: one on each block volume of a pool that holds one, and one on each device
/// that was attached. Nobody else may write these while the store has them open.
pub struct Store {
    pool: Option<Box<dyn Volumes>>,
    databases: Mutex<Databases>,
}

#[derive(Default)]
struct Databases {
    attached: BTreeMap<String, Arc<Database>>,
    /// Databases of the pool that connections have open.
    open: BTreeMap<String, Weak<Database>>,
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

    /// Makes an empty database, on a volume of its own in the pool, that may grow to
    /// `database_bytes`. A volume made by other means and never written serves as well: see
    /// [`volume_bytes`].
    ///
    /// # Errors
    /// The name is taken or cannot be a database's; there is no pool or it is full; the medium's.
    pub fn create_database(
        &self,
        name: &str,
        database_bytes: u64,
        options: &BlockOptions,
    ) -> Result<(), DatabaseError> {
        check_name(name)?;
        let mut databases = self.databases.lock();
        if databases.attached.contains_key(name) {
            return Err(DatabaseError::Taken { name: name.to_owned() });
        }
        let device = self
            .pool(name)?
            .create(name, volume_bytes(database_bytes), options)
            .map_err(|source| DatabaseError::Pool { name: name.to_owned(), source })?;
        databases.open.remove(name);
        Database::open(name, device).map(drop)
    }

    /// Offers the database on `device` as `name`, for as long as the store exists. A device that
    /// nobody has written becomes an empty database; [`volume_bytes`] says how large it must be.
    ///
    /// SQLite recovers from crashes if the device promises two things beyond its contract, as a
    /// block volume does: a write within an aligned 4 KiB block is there after a crash as a whole
    /// or not at all, and writes that were answered one after the other become durable in this
    /// order, so that none is there without those before it.
    ///
    /// # Errors
    /// The name is taken or cannot be a database's; the device holds something else, is too small,
    /// or fails.
    pub fn attach(&self, name: &str, device: Arc<dyn AtomicWrites>) -> Result<(), DatabaseError> {
        check_name(name)?;
        let mut databases = self.databases.lock();
        let in_pool = self.pool.as_ref().is_some_and(|pool| pool.has(name));
        if in_pool || databases.attached.contains_key(name) {
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
    /// There is no such database.
    pub fn activity(&self, name: &str) -> Result<Activity, DatabaseError> {
        Ok(self.database(name)?.activity())
    }

    /// Returns true if there is a device or volume of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.databases.lock().attached.contains_key(name)
            || self.pool.as_ref().is_some_and(|pool| pool.has(name))
    }

    /// Opens a database, or finds it open.
    pub(crate) fn database(&self, name: &str) -> Result<Arc<Database>, DatabaseError> {
        check_name(name)?;
        let mut databases = self.databases.lock();
        let open = databases.open.get(name).and_then(Weak::upgrade);
        if let Some(database) = databases.attached.get(name).cloned().or(open) {
            return Ok(database);
        }
        let device = self
            .pool(name)?
            .open(name)
            .map_err(|source| DatabaseError::Pool { name: name.to_owned(), source })?;
        let database = Arc::new(Database::open(name, device)?);
        databases.open.insert(name.to_owned(), Arc::downgrade(&database));
        Ok(database)
    }

    fn pool(&self, name: &str) -> Result<&dyn Volumes, DatabaseError> {
        self.pool.as_deref().ok_or_else(|| DatabaseError::NoDevice { name: name.to_owned() })
    }
}

fn check_name(name: &str) -> Result<(), DatabaseError> {
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

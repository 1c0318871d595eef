//! The databases of a pool.
//!
//! Owns the open ones. Invariant: every volume is opened once, however many connections use it.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use everbyte_block::{BlockOptions, BlockVolume};
use everbyte_media::Medium;
use everbyte_pool::Pool;
use parking_lot::Mutex;

use crate::database::{Activity, Database};
use crate::error::DatabaseError;
use crate::format::{FileKind, volume_bytes};

/// The databases of a pool, one on each block volume that holds one. Nobody else may write these
/// volumes while the store has them open.
pub struct Store<M: Medium> {
    pool: Arc<Pool<M>>,
    open: Mutex<BTreeMap<String, Weak<Database<M>>>>,
}

impl<M: Medium> Store<M> {
    /// The databases of `pool`.
    #[must_use]
    pub fn new(pool: Arc<Pool<M>>) -> Arc<Self> {
        Arc::new(Self { pool, open: Mutex::new(BTreeMap::new()) })
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool<M>> {
        &self.pool
    }

    /// Makes an empty database, on a volume of its own, that may grow to `database_bytes`. A volume
    /// that was made otherwise and never written does as well: see [`volume_bytes`].
    ///
    /// # Errors
    /// The name is taken or cannot be a database's; the pool is full; the medium's.
    pub fn create_database(
        &self,
        name: &str,
        database_bytes: u64,
        options: &BlockOptions,
    ) -> Result<(), DatabaseError> {
        check_name(name)?;
        let mut open = self.open.lock();
        let volume = BlockVolume::create(&self.pool, name, volume_bytes(database_bytes), options)
            .map_err(|source| DatabaseError::Pool { name: name.to_owned(), source })?;
        open.remove(name);
        Database::open(name, volume).map(drop)
    }

    /// What was asked of a database since it was opened by the first of the connections that it
    /// has; nothing if it has none.
    ///
    /// # Errors
    /// There is no such database.
    pub fn activity(&self, name: &str) -> Result<Activity, DatabaseError> {
        Ok(self.database(name)?.activity())
    }

    /// Opens a database, or finds it open.
    pub(crate) fn database(&self, name: &str) -> Result<Arc<Database<M>>, DatabaseError> {
        check_name(name)?;
        let mut open = self.open.lock();
        if let Some(database) = open.get(name).and_then(Weak::upgrade) {
            return Ok(database);
        }
        let volume = BlockVolume::open(&self.pool, name)
            .map_err(|source| DatabaseError::Pool { name: name.to_owned(), source })?;
        let database = Arc::new(Database::open(name, volume)?);
        open.insert(name.to_owned(), Arc::downgrade(&database));
        Ok(database)
    }
}

fn check_name(name: &str) -> Result<(), DatabaseError> {
    match file_of(name) {
        (_, FileKind::Main) => Ok(()),
        (_, kind) => Err(DatabaseError::Name { name: name.to_owned(), suffix: kind.suffix() }),
    }
}

/// Takes the name that SQLite has for a file apart: the database and which of its files it is.
pub(crate) fn file_of(path: &str) -> (&str, FileKind) {
    let kinds = [FileKind::Journal, FileKind::Wal].into_iter();
    let mut found = kinds.filter_map(|kind| Some((path.strip_suffix(kind.suffix())?, kind)));
    found.next().unwrap_or((path, FileKind::Main))
}

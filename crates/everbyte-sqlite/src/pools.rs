//! The pools behind the paths of databases.
//!
//! Owns the open ones. A path is that of a pool, a slash, and the name of a volume. Invariant: one lock covers
//! the search for a pool, its opening and its close, so no search finds a pool in the middle of its close. A pool closes
//! with its last file, because one process at a time has a pool open.

use std::any::Any;
use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::DatabaseError;
use crate::store::Store;

/// A pool that was opened for its databases.
pub struct PoolStore {
    /// Its databases.
    pub store: Arc<Store>,
    /// A handle that closes the pool when it is dropped, after the store.
    pub pool: Box<dyn Any + Send>,
}

/// Opens the pool at a path.
pub type OpenPool = fn(&Path) -> Result<PoolStore, Box<dyn Error>>;

/// Open pools, by their absolute paths.
pub(crate) struct Pools {
    open: OpenPool,
    pools: Mutex<BTreeMap<String, PoolStore>>,
}

/// A use of a pool.
pub(crate) struct PoolUser {
    pools: &'static Pools,
    path: String,
}

impl Pools {
    pub(crate) fn new(open: OpenPool) -> Self {
        Self { open, pools: Mutex::default() }
    }

    /// Opens the pool at an absolute path, or finds it open.
    pub(crate) fn open(&'static self, path: &str) -> Result<(Arc<Store>, PoolUser), DatabaseError> {
        let user = PoolUser { pools: self, path: path.to_owned() };
        let mut pools = self.pools.lock();
        if let Some(pool) = pools.get(path) {
            return Ok((Arc::clone(&pool.store), user));
        }
        let pool = (self.open)(Path::new(path)).map_err(|error| {
            let reason = error.to_string();
            DatabaseError::OpenPool { path: path.to_owned(), reason }
        });
        let store = match pool {
            Ok(pool) => Arc::clone(&pools.entry(path.to_owned()).or_insert(pool).store),
            Err(error) => {
                drop(pools);
                return Err(error);
            }
        };
        Ok((store, user))
    }
}

impl Drop for PoolUser {
    fn drop(&mut self) {
        let mut pools = self.pools.pools.lock();
        // Every file of the pool holds its store.
        if pools.get(&self.path).is_some_and(|pool| Arc::strong_count(&pool.store) == 1)
            && let Some(PoolStore { store, pool }) = pools.remove(&self.path)
        {
            drop(store);
            drop(pool);
        }
    }
}

/// Splits a path into those of the pool and of the volume in it.
pub(crate) fn split_path(path: &str) -> Result<(&str, &str), DatabaseError> {
    let parts = path.rsplit_once('/').filter(|(pool, name)| !pool.is_empty() && !name.is_empty());
    parts.ok_or_else(|| DatabaseError::Path { path: path.to_owned() })
}

/// Returns the absolute path of a database, without symbolic links.
pub(crate) fn full_path(path: &str) -> Result<String, DatabaseError> {
    let (pool, name) = split_path(path)?;
    let failed = |reason| DatabaseError::OpenPool { path: pool.to_owned(), reason };
    let full = fs::canonicalize(pool).map_err(|error| failed(error.to_string()))?;
    let full = full.to_str().ok_or_else(|| failed("its path is not UTF-8".to_owned()))?;
    Ok(format!("{full}/{name}"))
}

#[cfg(test)]
mod tests {
    use everbyte_block::BlockOptions;
    use everbyte_media::{Mapped, MediaOptions};
    use everbyte_pool::OpenOptions;

    use super::*;

    fn open_new(_: &Path) -> Result<PoolStore, Box<dyn Error>> {
        let medium = Mapped::anonymous(16 << 20, &MediaOptions::new())?;
        everbyte_pool::Pool::format(&medium, 8, [1; 16])?;
        let kinds = everbyte_block::kinds();
        let pool = everbyte_pool::Pool::open(Arc::new(medium), kinds, &OpenOptions::default())?;
        let store = Store::new(Arc::new(pool));
        store.create_database("v", 1 << 20, &BlockOptions::default())?;
        Ok(PoolStore { store, pool: Box::new(()) })
    }

    #[test]
    fn path_without_pool_is_refused() {
        for path in ["volume", "/volume", "/tmp/"] {
            assert!(split_path(path).is_err(), "{path}");
        }
        assert_eq!(split_path("/tmp/pool/v-journal").unwrap(), ("/tmp/pool", "v-journal"));
    }

    #[test]
    fn pool_is_closed_with_its_last_user() {
        let pools: &'static Pools = Box::leak(Box::new(Pools::new(open_new)));
        let (store, user) = pools.open("/a").unwrap();
        let (other_store, other) = pools.open("/a").unwrap();
        assert!(Arc::ptr_eq(&store, &other_store));
        let database = store.database("v").unwrap();
        drop((store, user, other_store, other));
        assert_eq!(pools.pools.lock().len(), 1, "the database is open");
        drop(database);
        drop(pools.open("/a").unwrap());
        assert!(pools.pools.lock().is_empty());
    }
}

//! SQLite on volumes: ordinary SQL in every journal mode, atomic batches, locks between
//! connections, full volumes, and simulated crashes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod batches;
mod connections;
mod crash;
mod devices;
mod mapped;
mod modes;
mod moved;
mod refusals;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use everbyte_block::{BlockOptions, BlockVolume, kinds};
use everbyte_media::{Mapped, MediaOptions, Medium};
use everbyte_pool::{OpenOptions, Pool};
use everbyte_sqlite::{Registration, Store, VfsOptions, register, volume_bytes};
use rusqlite::{Connection, OpenFlags};

/// Name of the database of most tests.
pub(crate) const NAME: &str = "test.db";

/// A store and its VFS.
pub(crate) struct Bench {
    pub(crate) store: Arc<Store>,
    pub(crate) vfs: String,
    registration: Option<Registration>,
}

impl Bench {
    /// Registers a new VFS for `store`.
    pub(crate) fn new(store: Arc<Store>, batch_atomic: bool) -> Self {
        Self::with(store, VfsOptions { batch_atomic, ..VfsOptions::default() })
    }

    /// The same with any options.
    pub(crate) fn with(store: Arc<Store>, options: VfsOptions) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let vfs = format!("everbyte-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let registration = Some(register(&vfs, &store, options).unwrap());
        Self { store, vfs, registration }
    }

    /// Ends the registration.
    pub(crate) fn unregister(&mut self) {
        self.registration = None;
    }

    /// A new connection to the database `name`.
    pub(crate) fn connect_to(&self, name: &str) -> rusqlite::Result<Connection> {
        Connection::open_with_flags_and_vfs(name, OpenFlags::default(), self.vfs.as_str())
    }

    /// A new connection to the usual database.
    pub(crate) fn connect(&self) -> Connection {
        self.connect_to(NAME).unwrap()
    }
}

/// Opens the pool on `medium`.
pub(crate) fn open_pool<M: Medium>(medium: Arc<M>) -> Arc<Pool<M>> {
    let options = OpenOptions { capacity_blocks: medium.len() / 4096 };
    Arc::new(Pool::open(medium, kinds(), &options).unwrap())
}

/// A new pool of `pool_mib` MiB.
pub(crate) fn new_pool(pool_mib: u64) -> Arc<Pool<Mapped>> {
    let medium = Mapped::anonymous(pool_mib << 20, &MediaOptions::new()).unwrap();
    Pool::format(&medium, 8, [1; 16]).unwrap();
    open_pool(Arc::new(medium))
}

/// A new pool of `pool_mib` MiB, and in it an empty database with room for `database_bytes`.
pub(crate) fn new_bench(pool_mib: u64, database_bytes: u64, batch_atomic: bool) -> Bench {
    bench_in(new_pool(pool_mib), database_bytes, batch_atomic)
}

/// The same in an existing pool.
pub(crate) fn bench_in(pool: Arc<Pool<Mapped>>, database_bytes: u64, batch_atomic: bool) -> Bench {
    let store = Store::new(pool);
    store.create_database(NAME, database_bytes, &BlockOptions::default()).unwrap();
    Bench::new(store, batch_atomic)
}

/// Makes the bench of a test of everyday use.
pub(crate) fn usual_bench(batch_atomic: bool) -> Bench {
    new_bench(64, 16 << 20, batch_atomic)
}

/// Sets a pragma and returns SQLite's answer.
pub(crate) fn pragma(db: &Connection, pragma: &str) -> String {
    let text = |row: &rusqlite::Row<'_>| {
        let value: rusqlite::types::Value = row.get(0)?;
        Ok(match value {
            rusqlite::types::Value::Text(text) => text,
            rusqlite::types::Value::Integer(number) => number.to_string(),
            other => format!("{other:?}"),
        })
    };
    db.query_row(&format!("PRAGMA {pragma}"), [], text).unwrap()
}

/// The one number of a query's result.
pub(crate) fn number(db: &Connection, query: &str) -> i64 {
    db.query_row(query, [], |row| row.get(0)).unwrap()
}

/// The result code of a failing statement.
pub(crate) fn failure(result: rusqlite::Result<()>) -> i32 {
    result.unwrap_err().sqlite_error().unwrap().extended_code
}

#[test]
fn sqlite_is_built_for_batches() {
    assert!(everbyte_sqlite::has_batch_atomic());
    let db = Connection::open_in_memory().unwrap();
    let mut options = db.prepare("PRAGMA compile_options").unwrap();
    let options: Vec<String> =
        options.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert!(options.iter().any(|option| option == "ENABLE_BATCH_ATOMIC_WRITE"), "{options:?}");
}

#[test]
fn unwritten_volume_becomes_a_database() {
    let pool = new_pool(16);
    drop(
        BlockVolume::create(&pool, NAME, volume_bytes(1 << 20), &BlockOptions::default()).unwrap(),
    );
    let bench = Bench::new(Store::new(pool), true);
    bench.connect().execute_batch("CREATE TABLE t (n); INSERT INTO t VALUES (7);").unwrap();
    assert_eq!(number(&bench.connect(), "SELECT n FROM t"), 7);
}

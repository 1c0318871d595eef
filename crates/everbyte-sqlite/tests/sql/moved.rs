//! Volumes renamed or deleted under connections: journals stay with their databases.

use std::sync::Arc;

use everbyte_block::{BlockOptions, BlockVolume};
use everbyte_media::Mapped;
use everbyte_pool::Pool;
use everbyte_sqlite::{Store, volume_bytes};
use rusqlite::{Connection, ffi};

use crate::{Bench, NAME, bench_in, failure, new_pool, number, pragma};

/// New name of the volume `NAME`.
const MOVED: &str = "moved.db";

/// A pool with a database of one row, and a connection to it with a small page cache.
fn bench_with_one_row(batch_atomic: bool) -> (Arc<Pool<Mapped>>, Bench, Connection) {
    let pool = new_pool(64);
    let bench = bench_in(Arc::clone(&pool), 4 << 20, batch_atomic);
    let db = bench.connect();
    db.execute_batch("PRAGMA cache_size = 10").unwrap();
    db.execute_batch("CREATE TABLE t (n, b); INSERT INTO t VALUES (1, NULL);").unwrap();
    (pool, bench, db)
}

/// Makes a volume for a database by other means than the store.
fn create_volume(pool: &Arc<Pool<Mapped>>, name: &str) -> BlockVolume<Mapped> {
    BlockVolume::create(pool, name, volume_bytes(4 << 20), &BlockOptions::default()).unwrap()
}

fn create_database(store: &Store) -> Result<(), String> {
    let created = store.create_database(NAME, 4 << 20, &BlockOptions::default());
    created.map_err(|error| error.to_string())
}

#[test]
fn renamed_database_is_read_only_for_old_connections() {
    for batch_atomic in [false, true] {
        let (pool, bench, db) = bench_with_one_row(batch_atomic);
        pool.rename_volume(NAME, MOVED).unwrap();
        drop(create_volume(&pool, NAME));
        let insert = "INSERT INTO t VALUES (2, NULL)";
        assert_eq!(failure(db.execute_batch(insert)), ffi::SQLITE_READONLY_DBMOVED);
        assert_eq!(number(&db, "SELECT sum(n) FROM t"), 1);
        for name in [NAME, MOVED] {
            let second = bench.connect_to(name).map(drop);
            assert_eq!(failure(second) & 0xff, ffi::SQLITE_CANTOPEN, "{name}");
        }
        drop(db);

        let other = bench.connect();
        assert_eq!(number(&other, "SELECT count(*) FROM sqlite_master"), 0);
        let moved = bench.connect_to(MOVED).unwrap();
        moved.execute_batch(insert).unwrap();
        assert_eq!(number(&moved, "SELECT sum(n) FROM t"), 3);
        assert_eq!(pragma(&moved, "integrity_check"), "ok");
    }
}

#[test]
fn database_renamed_back_is_writable() {
    let (pool, _bench, db) = bench_with_one_row(false);
    pool.rename_volume(NAME, MOVED).unwrap();
    db.execute_batch("INSERT INTO t VALUES (2, NULL)").unwrap_err();
    pool.rename_volume(MOVED, NAME).unwrap();
    db.execute_batch("INSERT INTO t VALUES (2, NULL)").unwrap();
    assert_eq!(number(&db, "SELECT sum(n) FROM t"), 3);
}

#[test]
fn rename_before_first_write_keeps_the_journal() {
    for batch_atomic in [false, true] {
        let pool = new_pool(64);
        let bench = bench_in(Arc::clone(&pool), 4 << 20, batch_atomic);
        let db = bench.connect();
        assert_eq!(number(&db, "SELECT count(*) FROM sqlite_master"), 0);
        pool.rename_volume(NAME, MOVED).unwrap();
        create_database(&bench.store).unwrap_err();
        drop(create_volume(&pool, NAME));
        // SQLite does not ask where a database without pages is.
        db.execute_batch("CREATE TABLE t (n)").unwrap();
        drop(db);
        let count =
            |name| number(&bench.connect_to(name).unwrap(), "SELECT count(*) FROM sqlite_master");
        assert_eq!((count(NAME), count(MOVED)), (0, 1));
    }
}

#[test]
fn renamed_database_keeps_its_wal() {
    let (pool, bench, db) = bench_with_one_row(false);
    pragma(&db, "locking_mode = EXCLUSIVE");
    assert_eq!(pragma(&db, "journal_mode = WAL"), "wal");
    pool.rename_volume(NAME, MOVED).unwrap();
    create_database(&bench.store).unwrap_err();
    db.execute_batch("INSERT INTO t VALUES (2, NULL)").unwrap();
    drop(db);
    create_database(&bench.store).unwrap();
    assert_eq!(number(&bench.connect(), "SELECT count(*) FROM sqlite_master"), 0);
    let moved = bench.connect_to(MOVED).unwrap();
    pragma(&moved, "locking_mode = EXCLUSIVE");
    assert_eq!(number(&moved, "SELECT sum(n) FROM t"), 3);
}

#[test]
fn rename_during_transaction_keeps_the_journal() {
    for (batch_atomic, end) in [(false, "COMMIT"), (true, "COMMIT"), (true, "ROLLBACK")] {
        let (pool, bench, db) = bench_with_one_row(batch_atomic);
        db.execute_batch("BEGIN; INSERT INTO t VALUES (2, NULL);").unwrap();
        pool.rename_volume(NAME, MOVED).unwrap();
        create_database(&bench.store).unwrap_err();
        drop(create_volume(&pool, NAME));
        // More than the page cache holds, so that SQLite needs its journal now.
        db.execute_batch("INSERT INTO t VALUES (4, randomblob(500000))").unwrap();
        assert!(bench.store.activity(NAME).unwrap().journal_writes > 0);
        db.execute_batch(end).unwrap();
        let sum = if end == "COMMIT" { 7 } else { 1 };
        assert_eq!(number(&db, "SELECT sum(n) FROM t"), sum);
        drop(db);

        assert_eq!(number(&bench.connect(), "SELECT count(*) FROM sqlite_master"), 0);
        let moved = bench.connect_to(MOVED).unwrap();
        assert_eq!(number(&moved, "SELECT sum(n) FROM t"), sum);
        assert_eq!(pragma(&moved, "integrity_check"), "ok");
    }
}

#[test]
fn failed_transaction_after_rename_is_rolled_back() {
    for batch_atomic in [false, true] {
        let (pool, _bench, db) = bench_with_one_row(batch_atomic);
        for _ in 0..50 {
            db.execute_batch("INSERT INTO t VALUES (0, randomblob(3000))").unwrap();
        }
        // More pages than the page cache holds, so that some are written before the commit.
        db.execute_batch("BEGIN; UPDATE t SET n = 7;").unwrap();
        pool.rename_volume(NAME, MOVED).unwrap();
        let too_much = "INSERT INTO t VALUES (4, randomblob(6000000))";
        assert_eq!(failure(db.execute_batch(too_much)), ffi::SQLITE_FULL);
        assert_eq!(number(&db, "SELECT sum(n) FROM t"), 1);
        assert_eq!(pragma(&db, "integrity_check"), "ok");
    }
}

#[test]
fn open_database_keeps_its_name_until_closed() {
    let is_renamed: fn(&Pool<Mapped>) = |pool| pool.rename_volume(NAME, MOVED).unwrap();
    let is_deleted: fn(&Pool<Mapped>) = |pool| pool.delete_volume(NAME).unwrap();
    for goes in [is_renamed, is_deleted] {
        let (pool, bench, db) = bench_with_one_row(false);
        goes(&pool);
        let refusal = create_database(&bench.store).unwrap_err();
        assert!(refusal.contains("connections have"), "{refusal}");
        let device = Arc::new(create_volume(&pool, "device"));
        let refusal = bench.store.attach(NAME, device).unwrap_err().to_string();
        assert!(refusal.contains("connections have"), "{refusal}");
        db.execute_batch("INSERT INTO t VALUES (2, NULL)").unwrap_err();
        drop(db);

        create_database(&bench.store).unwrap();
        bench.connect().execute_batch("CREATE TABLE u (n)").unwrap();
        assert_eq!(number(&bench.connect(), "SELECT count(*) FROM sqlite_master"), 1);
    }
}

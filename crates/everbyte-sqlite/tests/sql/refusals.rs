//! Operations that are refused: each fails clearly and harms nothing.

use std::sync::Arc;

use everbyte_block::{BlockOptions, BlockVolume};
use everbyte_device::{BlockDevice, Fua};
use everbyte_sqlite::{VfsOptions, register};
use rusqlite::ffi;

use crate::{Bench, NAME, bench_in, failure, new_bench, new_pool, number, pragma, usual_bench};

#[test]
fn a_database_that_outgrows_its_volume_is_full() {
    for batch_atomic in [false, true] {
        let bench = new_bench(64, 1 << 20, batch_atomic);
        let db = bench.connect();
        db.execute_batch("CREATE TABLE t (b); INSERT INTO t VALUES (randomblob(100000));").unwrap();
        let too_much = "INSERT INTO t VALUES (randomblob(4000000))";
        assert_eq!(failure(db.execute_batch(too_much)), ffi::SQLITE_FULL);
        assert_eq!(number(&db, "SELECT count(*) FROM t"), 1);
        db.execute_batch("INSERT INTO t VALUES (randomblob(100000))").unwrap();
        assert_eq!(pragma(&db, "integrity_check"), "ok");
    }
}

#[test]
fn a_pool_without_room_is_full() {
    for batch_atomic in [false, true] {
        let bench = new_bench(4, 16 << 20, batch_atomic);
        let db = bench.connect();
        db.execute_batch("CREATE TABLE t (b); INSERT INTO t VALUES (randomblob(100000));").unwrap();
        let too_much = "INSERT INTO t VALUES (randomblob(6000000))";
        assert_eq!(failure(db.execute_batch(too_much)), ffi::SQLITE_FULL);
        assert_eq!(number(&db, "SELECT count(*) FROM t"), 1);
        db.execute_batch("INSERT INTO t VALUES (randomblob(10000))").unwrap();
        assert_eq!(pragma(&db, "integrity_check"), "ok");
    }
}

#[test]
fn what_is_no_database_is_not_touched() {
    let pool = new_pool(64);
    let bench = bench_in(Arc::clone(&pool), 16 << 20, true);
    let volume = BlockVolume::create(&pool, "disk", 1 << 20, &BlockOptions::default()).unwrap();
    volume.write(500_000, b"something", Fua::No).unwrap();
    drop(volume);
    let error = bench.store.activity("disk").unwrap_err().to_string();
    assert!(error.contains("volume disk holds no database"), "{error}");
    let open = bench.connect_to("disk").map(drop);
    assert_eq!(failure(open) & 0xff, ffi::SQLITE_CANTOPEN);
    let volume = BlockVolume::open(&pool, "disk").unwrap();
    let mut found = [0; 9];
    volume.read(500_000, &mut found).unwrap();
    assert_eq!(&found, b"something");
}

#[test]
fn names() {
    let bench = usual_bench(true);
    let missing = bench.store.activity("nowhere").unwrap_err().to_string();
    assert!(missing.contains("nowhere"), "{missing}");
    assert_eq!(failure(bench.connect_to("nowhere").map(drop)) & 0xff, ffi::SQLITE_CANTOPEN);
    for name in ["a-journal", "a-wal", NAME, "a/b"] {
        assert!(bench.store.create_database(name, 1, &BlockOptions::default()).is_err(), "{name}");
    }
    let uri = format!("file:/{NAME}?vfs={}", bench.vfs);
    rusqlite::Connection::open(uri).unwrap().execute_batch("CREATE TABLE t (n)").unwrap();
}

#[test]
fn a_transaction_over_two_databases_is_refused_as_a_whole() {
    let bench = usual_bench(true);
    bench.store.create_database("other", 1 << 20, &BlockOptions::default()).unwrap();
    let db = bench.connect();
    db.execute_batch("ATTACH 'other' AS other; CREATE TABLE t (n); CREATE TABLE other.u (n);")
        .unwrap();
    let both = "BEGIN; INSERT INTO t VALUES (1); INSERT INTO u VALUES (1); COMMIT;";
    assert_eq!(failure(db.execute_batch(both)) & 0xff, ffi::SQLITE_CANTOPEN);
    db.execute_batch("ROLLBACK").ok();
    assert_eq!(number(&db, "SELECT (SELECT count(*) FROM t) + (SELECT count(*) FROM u)"), 0);
    db.execute_batch("INSERT INTO t VALUES (1); INSERT INTO u VALUES (1);").unwrap();
}

#[test]
fn a_registration_ends_with_its_guard() {
    let mut bench = usual_bench(true);
    assert!(register(&bench.vfs, &bench.store, VfsOptions::default()).is_err(), "it is taken");
    assert!(register("a\0b", &bench.store, VfsOptions::default()).is_err());
    let db = bench.connect();
    db.execute_batch("CREATE TABLE t (n)").unwrap();
    bench.unregister();
    assert!(bench.connect_to(NAME).is_err());
    assert_eq!(failure(db.execute_batch("SELECT * FROM t")), ffi::SQLITE_CANTOPEN);
    drop(db);
    let again = Bench::new(Arc::clone(&bench.store), true);
    assert_eq!(number(&again.connect(), "SELECT count(*) FROM t"), 0);
}

//! The same SQL in every journal mode, and the remaining journals of each mode.

use everbyte_block::BlockOptions;
use everbyte_sqlite::{Store, VfsOptions};
use rusqlite::Connection;

use crate::{Bench, NAME, new_pool, number, pragma, usual_bench};

/// Rows in `item` after the workload.
const ROWS_LEFT: i64 = 300;

/// Connects and sets the journal mode, with WAL's exclusive locking.
fn connect(bench: &Bench, mode: &str) -> Connection {
    let db = bench.connect();
    if mode == "wal" {
        assert_eq!(pragma(&db, "locking_mode = EXCLUSIVE"), "exclusive");
    }
    assert_eq!(pragma(&db, &format!("journal_mode = {mode}")), mode);
    db
}

/// All operations of ordinary programs. `rolls_back` is off for the mode without rollback.
fn workload(db: &Connection, rolls_back: bool) {
    db.execute_batch(
        "CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, stock INTEGER);
         CREATE INDEX by_name ON item (name);
         CREATE TABLE file (content BLOB);",
    )
    .unwrap();
    db.execute_batch("BEGIN").unwrap();
    for id in 0..500 {
        let name = format!("item {:05}", id * 7919 % 1000);
        db.execute("INSERT INTO item VALUES (?1, ?2, 10)", (id, name)).unwrap();
    }
    db.execute_batch("COMMIT").unwrap();
    if rolls_back {
        db.execute_batch(
            "BEGIN; UPDATE item SET stock = 0; DELETE FROM item WHERE id < 400; ROLLBACK",
        )
        .unwrap();
        db.execute_batch(
            "BEGIN; SAVEPOINT inner; UPDATE item SET stock = 99; ROLLBACK TO inner; RELEASE inner;
             SAVEPOINT other; UPDATE item SET stock = 11 WHERE id < 100; RELEASE other; COMMIT",
        )
        .unwrap();
    } else {
        db.execute_batch("UPDATE item SET stock = 11 WHERE id < 100").unwrap();
    }
    assert_eq!(number(db, "SELECT sum(stock) FROM item"), 5100);
    let large: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[n as usize % 4]).collect();
    db.execute("INSERT INTO file VALUES (?1)", [&large]).unwrap();
    let found: Vec<u8> = db.query_row("SELECT content FROM file", [], |row| row.get(0)).unwrap();
    assert!(found == large);
    db.execute_batch("DELETE FROM file; DELETE FROM item WHERE id >= 300; VACUUM").unwrap();
    verify(db);
}

fn verify(db: &Connection) {
    assert_eq!(pragma(db, "integrity_check"), "ok");
    assert_eq!(number(db, "SELECT count(*) FROM item"), ROWS_LEFT);
    let indexed = "SELECT count(*) FROM item INDEXED BY by_name WHERE name >= 'item '";
    assert_eq!(number(db, indexed), ROWS_LEFT);
    assert_eq!(number(db, "SELECT sum(stock) FROM item"), 100 * 11 + 200 * 10);
    let pages = number(db, "PRAGMA page_count");
    assert!(pages < 40, "{pages} pages are left after VACUUM");
}

/// Runs the workload in a mode, then looks at the result through another connection.
fn run(mode: &str, batch_atomic: bool) -> Bench {
    let bench = usual_bench(batch_atomic);
    let db = connect(&bench, mode);
    workload(&db, mode != "off");
    db.close().unwrap();
    verify(&connect(&bench, mode));
    bench
}

#[test]
fn delete() {
    run("delete", false);
}

#[test]
fn truncate() {
    run("truncate", false);
}

#[test]
fn persist() {
    run("persist", false);
}

#[test]
fn memory() {
    run("memory", false);
}

#[test]
fn off() {
    run("off", false);
}

#[test]
fn wal_with_exclusive_locking() {
    run("wal", false);
    run("wal", true);
}

#[test]
fn wal_without_exclusive_locking_is_not_entered() {
    let bench = usual_bench(true);
    assert_eq!(pragma(&bench.connect(), "journal_mode = wal"), "delete");
}

#[test]
fn batches_in_every_mode_that_has_them() {
    for mode in ["delete", "truncate", "persist", "memory"] {
        run(mode, true);
    }
}

/// A bench without SQLite's own batches.
fn emulating_bench() -> Bench {
    let store = Store::new(new_pool(64));
    store.create_database(NAME, 16 << 20, &BlockOptions::default()).unwrap();
    Bench::with(store, VfsOptions { native_batches: false, ..VfsOptions::default() })
}

#[test]
fn emulated_batches_serve_every_journal_mode() {
    for mode in ["delete", "truncate", "persist", "memory", "off", "wal"] {
        let bench = emulating_bench();
        let db = connect(&bench, mode);
        workload(&db, mode != "off");
        db.close().unwrap();
        verify(&connect(&bench, mode));
    }
}

#[test]
fn emulated_commit_writes_no_journal() {
    for (mode, locking) in [
        ("delete", "normal"),
        ("truncate", "normal"),
        ("persist", "normal"),
        ("delete", "exclusive"),
    ] {
        let bench = emulating_bench();
        let db = bench.connect();
        pragma(&db, &format!("locking_mode = {locking}"));
        pragma(&db, &format!("journal_mode = {mode}"));
        db.execute_batch("PRAGMA cache_size = 10; CREATE TABLE t (b); BEGIN;").unwrap();
        for _ in 0..100 {
            db.execute("INSERT INTO t VALUES (randomblob(4000))", []).unwrap();
        }
        db.execute_batch("COMMIT; BEGIN; UPDATE t SET b = randomblob(4000);").unwrap();
        assert_eq!(number(&db, "SELECT count(*) FROM t WHERE length(b) = 4000"), 100);
        db.execute_batch("ROLLBACK; BEGIN; DELETE FROM t WHERE rowid > 50; COMMIT;").unwrap();
        let activity = bench.store.activity(NAME).unwrap();
        assert_eq!(activity.journal_writes, 0, "{mode}, {locking}: {activity:?}");
        assert!(activity.batches_committed >= 3, "{mode}, {locking}: {activity:?}");
        assert_eq!(number(&db, "SELECT count(*) FROM t"), 50);
        assert_eq!(pragma(&db, "integrity_check"), "ok");
    }
}

#[test]
fn emulated_batch_beyond_the_log_uses_the_journal() {
    let store = Store::new(new_pool(64));
    let options = BlockOptions { log_bytes: Some(8 * 4096), lanes: 1, ..BlockOptions::default() };
    store.create_database(NAME, 16 << 20, &options).unwrap();
    let bench = Bench::with(store, VfsOptions { native_batches: false, ..VfsOptions::default() });
    let db = bench.connect();
    db.execute_batch("CREATE TABLE t (b); INSERT INTO t VALUES (randomblob(6000000));").unwrap();
    db.execute_batch("UPDATE t SET b = randomblob(6000000)").unwrap();
    let activity = bench.store.activity(NAME).unwrap();
    assert!(activity.batches_refused > 0 && activity.journal_writes > 0, "{activity:?}");
    drop(db);
    assert_eq!(number(&bench.connect(), "SELECT length(b) FROM t"), 6_000_000);
    assert_eq!(pragma(&bench.connect(), "integrity_check"), "ok");
}

#[test]
fn each_mode_uses_the_files_that_it_should() {
    for (mode, journal, wal) in [
        ("delete", true, false),
        ("truncate", true, false),
        ("persist", true, false),
        ("memory", false, false),
        ("off", false, false),
        ("wal", false, true),
    ] {
        let bench = usual_bench(false);
        let db = connect(&bench, mode);
        let before = bench.store.activity(crate::NAME).unwrap();
        db.execute_batch("CREATE TABLE t (n); INSERT INTO t VALUES (1);").unwrap();
        let activity = bench.store.activity(crate::NAME).unwrap();
        assert_eq!(
            activity.journal_writes > before.journal_writes,
            journal,
            "{mode}: {activity:?}"
        );
        assert_eq!(activity.wal_writes > before.wal_writes, wal, "{mode}: {activity:?}");
        assert_eq!(activity.batches_committed, 0, "{mode}: {activity:?}");
    }
}

#[test]
fn page_sizes() {
    for page_bytes in [512, 1024, 65536] {
        for batch_atomic in [false, true] {
            let bench = usual_bench(batch_atomic);
            let db = bench.connect();
            db.execute_batch(&format!("PRAGMA page_size = {page_bytes}; CREATE TABLE t (b);"))
                .unwrap();
            db.execute("INSERT INTO t VALUES (randomblob(200000))", []).unwrap();
            db.execute_batch("BEGIN; DELETE FROM t; ROLLBACK;").unwrap();
            assert_eq!(number(&db, "PRAGMA page_size"), page_bytes);
            assert_eq!(number(&bench.connect(), "SELECT length(b) FROM t"), 200_000);
            assert_eq!(pragma(&db, "integrity_check"), "ok");
        }
    }
}

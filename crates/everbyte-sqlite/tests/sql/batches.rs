//! Atomic batches: no journal, one checkpoint a commit, and the journal where a batch cannot be.

use everbyte_block::BlockOptions;
use everbyte_sqlite::{Activity, Store};

use crate::{Bench, NAME, number, open_pool, pragma, usual_bench};

fn activity(bench: &Bench<everbyte_media::Mapped>) -> Activity {
    bench.store.activity(NAME).unwrap()
}

#[test]
fn no_journal_is_ever_written() {
    let bench = usual_bench(true);
    let db = bench.connect();
    db.execute_batch("CREATE TABLE t (n INTEGER PRIMARY KEY, b)").unwrap();
    let before = activity(&bench);
    for n in 0..200 {
        db.execute("INSERT INTO t VALUES (?1, randomblob(3000))", [n]).unwrap();
    }
    db.execute_batch("BEGIN; DELETE FROM t; ROLLBACK; UPDATE t SET b = 1 WHERE n % 2;").unwrap();
    let after = activity(&bench);
    assert_eq!(after.batches_committed - before.batches_committed, 201, "{after:?}");
    assert_eq!(after.journal_writes, before.journal_writes, "{after:?}");
    assert_eq!(after.batches_refused, 0, "{after:?}");
    assert_eq!(number(&db, "SELECT count(*) FROM t"), 200);
    assert_eq!(pragma(&db, "integrity_check"), "ok");
}

#[test]
fn a_commit_is_one_checkpoint() {
    let bench = usual_bench(true);
    let db = bench.connect();
    db.execute_batch("CREATE TABLE t (n)").unwrap();
    let volume = bench.store.pool().volume(NAME).unwrap();
    let before = volume.checkpoints();
    for n in 0..10 {
        db.execute("INSERT INTO t VALUES (?1)", [n]).unwrap();
    }
    assert_eq!(volume.checkpoints() - before, 10);
}

#[test]
fn what_a_log_cannot_undo_goes_through_the_journal() {
    let medium = everbyte_media::Mapped::anonymous(64 << 20, &everbyte_media::MediaOptions::new());
    let medium = std::sync::Arc::new(medium.unwrap());
    everbyte_pool::Pool::format(&*medium, 8, [1; 16]).unwrap();
    let store = Store::new(open_pool(medium));
    let options = BlockOptions {
        log_bytes: Some(8 * 4096),
        lanes: 1,
        threshold_percent: 101,
        ..BlockOptions::default()
    };
    store.create_database(NAME, 16 << 20, &options).unwrap();
    let bench = Bench::new(store, true);
    let db = bench.connect();
    db.execute_batch("CREATE TABLE t (b); INSERT INTO t VALUES (randomblob(400000));").unwrap();
    db.execute_batch("UPDATE t SET b = randomblob(400000)").unwrap();
    let activity = activity(&bench);
    assert!(activity.batches_refused > 0, "{activity:?}");
    assert!(activity.journal_writes > 0, "{activity:?}");
    assert_eq!(number(&db, "SELECT length(b) FROM t"), 400_000);
    drop(db);
    assert_eq!(pragma(&bench.connect(), "integrity_check"), "ok");
}

#[test]
fn what_the_page_cache_cannot_hold_goes_through_the_journal() {
    let bench = usual_bench(true);
    let db = bench.connect();
    db.execute_batch("PRAGMA cache_size = 10; CREATE TABLE t (b);").unwrap();
    let before = activity(&bench);
    db.execute_batch("BEGIN").unwrap();
    for _ in 0..100 {
        db.execute("INSERT INTO t VALUES (randomblob(4000))", []).unwrap();
    }
    db.execute_batch("ROLLBACK").unwrap();
    assert!(activity(&bench).journal_writes > before.journal_writes);
    assert_eq!(number(&db, "SELECT count(*) FROM t"), 0);
    assert_eq!(pragma(&db, "integrity_check"), "ok");
}

#[test]
fn no_timer_makes_a_checkpoint_within_a_batch() {
    let bench = usual_bench(true);
    let db = bench.connect();
    db.execute_batch("CREATE TABLE t (n, b)").unwrap();
    let volume = bench.store.pool().volume(NAME).unwrap();
    let (before, checkpoints) = (activity(&bench), volume.checkpoints());
    let timer = bench.store.pool().start_timer(std::time::Duration::from_micros(50)).unwrap();
    for n in 0..200 {
        db.execute("INSERT INTO t VALUES (?1, randomblob(9000))", [n]).unwrap();
    }
    drop(timer);
    let after = activity(&bench);
    assert_eq!(after.journal_writes, before.journal_writes, "{after:?}");
    assert_eq!(after.batches_committed - before.batches_committed, 200, "{after:?}");
    assert_eq!(volume.checkpoints() - checkpoints, 200, "those of the commits and no others");
    assert_eq!(pragma(&db, "integrity_check"), "ok");
}

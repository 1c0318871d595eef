//! Atomic batches: no journal, one checkpoint a commit, and the journal where a batch cannot be.

use std::sync::Arc;

use everbyte_block::BlockOptions;
use everbyte_sqlite::{Activity, Durability, Store, VfsOptions};

use crate::{Bench, NAME, bench_in, new_pool, number, pragma, usual_bench};

fn activity(bench: &Bench) -> Activity {
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
fn commit_is_one_checkpoint() {
    let pool = new_pool(64);
    let bench = bench_in(Arc::clone(&pool), 16 << 20, true);
    let db = bench.connect();
    db.execute_batch("CREATE TABLE t (n)").unwrap();
    let volume = pool.volume(NAME).unwrap();
    let before = volume.checkpoints();
    for n in 0..10 {
        db.execute("INSERT INTO t VALUES (?1)", [n]).unwrap();
    }
    assert_eq!(volume.checkpoints() - before, 10);
}

/// Checkpoints of ten commits in a journal mode without durability.
fn checkpoints_of_commits(mode: &str, batch_atomic: bool) -> u64 {
    let pool = new_pool(64);
    let store = Store::new(Arc::clone(&pool));
    store.create_database(NAME, 16 << 20, &BlockOptions::default()).unwrap();
    let durability = Durability::AtCheckpoint;
    let bench =
        Bench::with(store, VfsOptions { batch_atomic, durability, ..VfsOptions::default() });
    let db = bench.connect();
    pragma(&db, "locking_mode = EXCLUSIVE");
    assert_eq!(pragma(&db, &format!("journal_mode = {mode}")), mode);
    db.execute_batch("CREATE TABLE t (n)").unwrap();
    let volume = pool.volume(NAME).unwrap();
    let before = volume.checkpoints();
    for n in 0..10 {
        db.execute("INSERT INTO t VALUES (?1)", [n]).unwrap();
    }
    assert_eq!(pragma(&db, "integrity_check"), "ok");
    volume.checkpoints() - before
}

#[test]
fn lazy_commit_makes_no_checkpoint() {
    for mode in ["delete", "truncate", "persist", "wal"] {
        assert_eq!(checkpoints_of_commits(mode, false), 0, "{mode}");
    }
    assert_eq!(checkpoints_of_commits("delete", true), 0, "batches");
}

#[test]
fn durable_commit_covers_earlier_commits() {
    let pool = new_pool(64);
    let bench = bench_in(Arc::clone(&pool), 16 << 20, false);
    let durability = Durability::AtCheckpoint;
    let options = VfsOptions { batch_atomic: false, durability, ..VfsOptions::default() };
    let lazy = Bench::with(Arc::clone(&bench.store), options);
    lazy.connect().execute_batch("CREATE TABLE t (n); INSERT INTO t VALUES (1);").unwrap();
    let volume = pool.volume(NAME).unwrap();
    assert!(volume.is_touched(), "nothing was made durable yet");
    bench.connect().execute_batch("INSERT INTO t VALUES (2)").unwrap();
    assert!(!volume.is_touched());
}

#[test]
fn transaction_beyond_the_log_uses_the_journal() {
    let store = Store::new(new_pool(64));
    // Half of the log has room for the entries of some thousand blocks.
    let options = BlockOptions { log_bytes: Some(8 * 4096), lanes: 1, ..BlockOptions::default() };
    store.create_database(NAME, 16 << 20, &options).unwrap();
    let bench = Bench::new(store, true);
    let db = bench.connect();
    db.execute_batch("PRAGMA cache_size = -40000; CREATE TABLE t (b);").unwrap();
    db.execute_batch("INSERT INTO t VALUES (randomblob(6000000));").unwrap();
    db.execute_batch("UPDATE t SET b = randomblob(6000000)").unwrap();
    let activity = activity(&bench);
    assert!(activity.batches_refused > 0, "{activity:?}");
    assert!(activity.journal_writes > 0, "{activity:?}");
    assert_eq!(number(&db, "SELECT length(b) FROM t"), 6_000_000);
    drop(db);
    assert_eq!(pragma(&bench.connect(), "integrity_check"), "ok");
}

#[test]
fn transaction_beyond_page_cache_uses_the_journal() {
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
    let pool = new_pool(64);
    let bench = bench_in(Arc::clone(&pool), 16 << 20, true);
    let db = bench.connect();
    db.execute_batch("CREATE TABLE t (n, b)").unwrap();
    let volume = pool.volume(NAME).unwrap();
    let (before, checkpoints) = (activity(&bench), volume.checkpoints());
    let timer = pool.start_timer(std::time::Duration::from_micros(50)).unwrap();
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

//! Several connections to one database in one process.

use rusqlite::ffi;

use crate::{NAME, failure, number, pragma, usual_bench};

#[test]
fn readers_see_commits_and_nothing_less() {
    for batch_atomic in [false, true] {
        let bench = usual_bench(batch_atomic);
        let (writer, reader) = (bench.connect(), bench.connect());
        writer.execute_batch("CREATE TABLE t (n); INSERT INTO t VALUES (1);").unwrap();
        assert_eq!(number(&reader, "SELECT sum(n) FROM t"), 1);
        writer.execute_batch("BEGIN; INSERT INTO t VALUES (2);").unwrap();
        assert_eq!(number(&reader, "SELECT sum(n) FROM t"), 1);
        writer.execute_batch("COMMIT").unwrap();
        assert_eq!(number(&reader, "SELECT sum(n) FROM t"), 3);
    }
}

#[test]
fn one_writes_at_a_time() {
    let bench = usual_bench(true);
    let (first, second) = (bench.connect(), bench.connect());
    second.busy_timeout(std::time::Duration::ZERO).unwrap();
    first.execute_batch("CREATE TABLE t (n); BEGIN IMMEDIATE;").unwrap();
    assert_eq!(failure(second.execute_batch("BEGIN IMMEDIATE")), ffi::SQLITE_BUSY);
    first.execute_batch("COMMIT").unwrap();
    second.execute_batch("BEGIN IMMEDIATE; COMMIT;").unwrap();
}

#[test]
fn commit_waits_for_readers() {
    let bench = usual_bench(true);
    let (writer, reader) = (bench.connect(), bench.connect());
    writer.busy_timeout(std::time::Duration::ZERO).unwrap();
    writer.execute_batch("CREATE TABLE t (n); INSERT INTO t VALUES (1);").unwrap();
    reader.execute_batch("BEGIN").unwrap();
    assert_eq!(number(&reader, "SELECT n FROM t"), 1);
    writer.execute_batch("BEGIN; UPDATE t SET n = 2;").unwrap();
    assert_eq!(failure(writer.execute_batch("COMMIT")), ffi::SQLITE_BUSY);
    assert_eq!(number(&reader, "SELECT n FROM t"), 1);
    reader.execute_batch("COMMIT").unwrap();
    writer.execute_batch("COMMIT").unwrap();
    assert_eq!(number(&reader, "SELECT n FROM t"), 2);
}

#[test]
fn threads_count_together() {
    const EACH: i64 = 50;
    for batch_atomic in [false, true] {
        let bench = usual_bench(batch_atomic);
        bench.connect().execute_batch("CREATE TABLE t (n); INSERT INTO t VALUES (0);").unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let db = bench.connect();
                    db.busy_timeout(std::time::Duration::from_secs(60)).unwrap();
                    for _ in 0..EACH {
                        db.execute_batch("BEGIN IMMEDIATE; UPDATE t SET n = n + 1; COMMIT;")
                            .unwrap();
                    }
                });
            }
        });
        let db = bench.connect();
        assert_eq!(number(&db, "SELECT n FROM t"), 4 * EACH);
        assert_eq!(pragma(&db, "integrity_check"), "ok");
    }
}

#[test]
fn database_opens_while_last_connection_closes() {
    const EACH: usize = 2000;
    let bench = usual_bench(true);
    bench.connect().execute_batch("CREATE TABLE t (n); INSERT INTO t VALUES (7);").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..EACH {
                    assert_eq!(number(&bench.connect(), "SELECT n FROM t"), 7);
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..EACH {
                bench.store.activity(NAME).unwrap();
            }
        });
    });
}

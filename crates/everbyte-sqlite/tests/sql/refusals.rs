//! Refused operations: each fails clearly and has no effect.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use everbyte_block::{BlockOptions, BlockVolume};
use everbyte_device::{BlockDevice, Fua};
use everbyte_media::Mapped;
use everbyte_pool::Pool;
use everbyte_sqlite::{VfsOptions, register};
use rusqlite::{Connection, ffi};

use crate::{Bench, NAME, bench_in, failure, new_bench, new_pool, number, pragma, usual_bench};

#[test]
fn database_larger_than_its_volume_is_full() {
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
fn pool_without_room_is_full() {
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
fn foreign_volume_is_untouched() {
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
fn journal_is_not_opened_as_a_database() {
    let bench = usual_bench(true);
    let db = bench.connect();
    db.execute_batch("CREATE TABLE t (n)").unwrap();
    for suffix in ["-journal", "-wal"] {
        let open = bench.connect_to(&format!("{NAME}{suffix}"));
        assert_eq!(failure(open.map(drop)) & 0xff, ffi::SQLITE_CANTOPEN, "{suffix}");
        let attached = db.execute_batch(&format!("ATTACH '{NAME}{suffix}' AS other"));
        assert_eq!(failure(attached) & 0xff, ffi::SQLITE_CANTOPEN, "{suffix}");
    }
    drop(db);
    bench.connect().execute_batch("INSERT INTO t VALUES (1)").unwrap();
    assert_eq!(number(&bench.connect(), "SELECT count(*) FROM t"), 1);
}

/// Sets the length of a file to 0 in the header of the volume `name`, like a connection that makes
/// the file and ends before its first write.
fn make_empty(pool: &Arc<Pool<Mapped>>, name: &str, kind: usize) {
    let volume = BlockVolume::open(pool, name).unwrap();
    let mut header = [0; 64];
    volume.read(0, &mut header).unwrap();
    let length = 40 + 8 * kind;
    assert_eq!(header[length..length + 8], u64::MAX.to_le_bytes(), "there is none yet");
    header[length..length + 8].fill(0);
    header[12..16].fill(0);
    let crc = crc32c::crc32c(&header);
    header[12..16].copy_from_slice(&crc.to_le_bytes());
    volume.write(0, &header, Fua::Yes).unwrap();
}

#[test]
fn empty_journal_or_wal_counts_as_missing() {
    for kind in [0, 1] {
        let pool = new_pool(64);
        let bench = bench_in(Arc::clone(&pool), 1 << 20, true);
        bench.connect().execute_batch("CREATE TABLE t (n)").unwrap();
        make_empty(&pool, NAME, kind);
        let db = bench.connect();
        db.execute_batch("INSERT INTO t VALUES (1)").unwrap();
        assert_eq!(pragma(&db, "journal_mode"), "delete");
        assert_eq!(number(&bench.connect(), "SELECT count(*) FROM t"), 1);
    }
}

#[test]
fn transaction_over_two_databases_is_refused() {
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

/// Initial rows of each test of a transaction over two file systems.
const ROWS: i64 = 100;

/// A database at `path`, in SQLite's own file system, with the usual one attached as `ours`, and old rows in both.
fn attached(bench: &Bench, path: &Path, page_bytes: u32) -> Connection {
    let db = Connection::open(path).unwrap();
    db.execute_batch(&format!(
        "ATTACH 'file:/{NAME}?vfs={}' AS ours;
         PRAGMA ours.page_size = {page_bytes}; PRAGMA ours.cache_size = 4000;
         CREATE TABLE t (n); CREATE TABLE ours.u (n, filler);
         INSERT INTO t VALUES (0);
         WITH RECURSIVE row (id) AS (VALUES (1) UNION ALL SELECT id + 1 FROM row WHERE id < {ROWS})
         INSERT INTO u SELECT 0, zeroblob(4000) FROM row;",
        bench.vfs
    ))
    .unwrap();
    db
}

/// Expects no change since [`attached`], for this connection and others.
fn expect_old_rows(bench: &Bench, db: &Connection, path: &Path) {
    assert_eq!(pragma(db, "integrity_check"), "ok");
    for query in ["SELECT count(*) FROM t WHERE n = 0", "SELECT count(*) FROM t"] {
        assert_eq!(number(db, query), 1);
        assert_eq!(number(&Connection::open(path).unwrap(), query), 1);
    }
    for query in ["SELECT count(*) FROM u WHERE n = 0", "SELECT count(*) FROM u"] {
        assert_eq!(number(db, query), ROWS);
        assert_eq!(number(&bench.connect(), query), ROWS);
    }
    assert_eq!(pragma(&bench.connect(), "integrity_check"), "ok");
}

/// A path of `bytes` bytes below `folder`.
fn path_of(folder: &Path, bytes: usize) -> PathBuf {
    let mut path = folder.canonicalize().unwrap();
    while bytes - path.as_os_str().len() > 230 {
        path.push("d".repeat(200));
        std::fs::create_dir(&path).unwrap();
    }
    path.join("m".repeat(bytes - path.as_os_str().len() - 1))
}

#[test]
fn transaction_over_two_vfs_is_refused() {
    let grown = "INSERT INTO u SELECT 1, zeroblob(4000) FROM u WHERE rowid <= 90;";
    // Behind the longer path, a super-journal's name is as long as a page of 512 bytes.
    for (has_long_path, page_bytes) in [(false, 512), (false, 4096), (true, 512), (true, 4096)] {
        for (batch_atomic, mode) in
            [(true, "delete"), (false, "delete"), (false, "truncate"), (false, "persist")]
        {
            for more in [&grown.repeat(2), grown, ""] {
                let bench = new_bench(64, 1 << 20, batch_atomic);
                let folder = tempfile::tempdir().unwrap();
                let path = match has_long_path {
                    true => path_of(folder.path(), 500),
                    false => folder.path().join("main"),
                };
                let db = attached(&bench, &path, page_bytes);
                pragma(&db, &format!("ours.journal_mode = {mode}"));
                let both = format!("BEGIN; UPDATE t SET n = 1; UPDATE u SET n = 1; {more} COMMIT;");
                let code = failure(db.execute_batch(&both)) & 0xff;
                db.execute_batch("ROLLBACK").ok();
                expect_old_rows(&bench, &db, &path);
                assert_eq!(code, ffi::SQLITE_CANTOPEN, "{path:?}, {page_bytes}, {mode}");
            }
        }
    }
}

#[test]
fn transaction_writing_one_of_two_vfs_commits() {
    for batch_atomic in [false, true] {
        let bench = new_bench(64, 1 << 20, batch_atomic);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("main");
        let db = attached(&bench, &path, 4096);
        db.execute_batch("BEGIN; UPDATE t SET n = (SELECT count(*) FROM u); COMMIT;").unwrap();
        db.execute_batch("BEGIN; UPDATE u SET n = (SELECT n FROM t); COMMIT;").unwrap();
        db.execute_batch("BEGIN IMMEDIATE; UPDATE t SET n = n + 1; COMMIT;").unwrap();
        // SQLite begins to write both, and makes a super-journal.
        let locked = db.execute_batch("BEGIN IMMEDIATE; UPDATE u SET n = 0; COMMIT;");
        assert_eq!(failure(locked) & 0xff, ffi::SQLITE_CANTOPEN);
        assert_eq!(number(&Connection::open(&path).unwrap(), "SELECT n FROM t"), ROWS + 1);
        assert_eq!(number(&bench.connect(), "SELECT min(n) + max(n) FROM u"), 2 * ROWS);
    }
}

/// The end of a page is where the first row of a table lies.
#[test]
fn page_resembling_super_journal_name_is_a_page() {
    let bench = new_bench(64, 1 << 20, false);
    let db = bench.connect();
    db.execute_batch(
        "PRAGMA page_size = 512; CREATE TABLE t (name); INSERT INTO t VALUES ('a-mj0B3CF19A7');
         BEGIN; UPDATE t SET name = 'b'; ROLLBACK; UPDATE t SET name = 'c' || name;",
    )
    .unwrap();
    assert_eq!(number(&db, "SELECT name = 'ca-mj0B3CF19A7' FROM t"), 1);
}

#[test]
fn registration_ends_with_its_guard() {
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

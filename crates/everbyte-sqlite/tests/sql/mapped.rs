//! Pages used by SQLite in place.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use everbyte_block::{BlockOptions, BlockVolume};
use everbyte_device::{
    AtomicWriteError, AtomicWrites, DirectAccess, MappedBytes, Passthrough, SendError, Transport,
    WriteRequest,
};
use everbyte_media::{Mapped, MediaOptions, Technology};
use everbyte_pool::Pool;
use everbyte_sqlite::{Activity, Store, volume_bytes};
use rusqlite::Connection;

use crate::{Bench, NAME, bench_in, new_bench, new_pool, number, open_pool, pragma, usual_bench};

/// A connection that maps as many pages as possible.
fn map(bench: &Bench) -> Connection {
    let db = bench.connect();
    assert_eq!(pragma(&db, "mmap_size = 1000000000"), "1000000000");
    db
}

fn activity(bench: &Bench) -> Activity {
    bench.store.activity(NAME).unwrap()
}

/// A table of a thousand rows with the sum 499,500.
fn fill(db: &Connection) {
    db.execute_batch(
        "CREATE TABLE t (n INTEGER PRIMARY KEY, b BLOB);
         WITH RECURSIVE i(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM i WHERE n < 999)
         INSERT INTO t SELECT n, randomblob(300) FROM i;",
    )
    .unwrap();
}

const SUM: &str = "SELECT sum(n) FROM t WHERE length(b) > 0";

#[test]
fn reading_connection_copies_little() {
    let bench = usual_bench(true);
    fill(&bench.connect());
    let db = map(&bench);
    let before = activity(&bench);
    assert_eq!(number(&db, SUM), 499_500);
    let after = activity(&bench);
    assert!(after.pages_lent - before.pages_lent > 70, "{before:?} {after:?}");
    // Its first page, and the version of the database, as in any mode.
    assert!(after.main_reads - before.main_reads < 6, "{before:?} {after:?}");
    assert_eq!(pragma(&db, "integrity_check"), "ok");
    pragma(&db, "mmap_size = 0");
    let before = activity(&bench);
    assert_eq!(number(&db, SUM), 499_500);
    assert_eq!(activity(&bench).pages_lent, before.pages_lent, "not asked for any more");
}

#[test]
fn mapping_reader_sees_atomic_ordered_commits() {
    for batch_atomic in [true, false] {
        sees_commits(&usual_bench(batch_atomic));
    }
}

fn sees_commits(bench: &Bench) {
    let (writer, reader) = (bench.connect(), map(bench));
    fill(&writer);
    for round in 1..20 {
        let mut rows = reader.prepare("SELECT n FROM t ORDER BY n").unwrap();
        let mut rows = rows.query([]).unwrap();
        let first: i64 = rows.next().unwrap().unwrap().get(0).unwrap();
        writer.busy_timeout(std::time::Duration::ZERO).unwrap();
        writer.execute_batch("BEGIN; UPDATE t SET n = -1 - n, b = randomblob(300)").unwrap();
        writer.execute_batch("COMMIT").unwrap_err();
        let mut seen = vec![first];
        while let Some(row) = rows.next().unwrap() {
            seen.push(row.get(0).unwrap());
        }
        assert!(seen.is_sorted() && seen.len() == 1000, "as it was when the statement began");
        drop(rows);
        writer.execute_batch("COMMIT").unwrap();
        let expected = if round % 2 == 1 { -500_500 } else { 499_500 };
        assert_eq!(number(&reader, SUM), expected);
        assert_eq!(pragma(&reader, "integrity_check"), "ok");
    }
    assert!(activity(bench).pages_lent > 1000);
}

#[test]
fn mapping_reader_sees_shrunk_and_grown_database() {
    let bench = new_bench(64, 4 << 20, true);
    let (writer, reader) = (bench.connect(), map(&bench));
    fill(&writer);
    for round in 0..4 {
        assert_eq!(number(&reader, SUM), 499_500, "round {round}");
        writer.execute_batch("DELETE FROM t WHERE n >= 100; VACUUM").unwrap();
        assert_eq!(number(&reader, SUM), 4950, "round {round}");
        // Blocks that were the database's become its journal's and another's.
        bench
            .store
            .create_database(&format!("other{round}"), 1 << 20, &BlockOptions::default())
            .unwrap();
        let other = bench.connect_to(&format!("other{round}")).unwrap();
        fill(&other);
        assert_eq!(pragma(&reader, "integrity_check"), "ok");
        writer
            .execute_batch(
                "WITH RECURSIVE i(n) AS (SELECT 100 UNION ALL SELECT n + 1 FROM i WHERE n < 999)
                 INSERT INTO t SELECT n, randomblob(300) FROM i;",
            )
            .unwrap();
        assert_eq!(pragma(&reader, "integrity_check"), "ok");
    }
}

#[test]
fn mapping_connection_writes_during_its_read() {
    for batch_atomic in [false, true] {
        let bench = usual_bench(batch_atomic);
        let db = map(&bench);
        fill(&db);
        db.execute_batch("CREATE TABLE other (n)").unwrap();
        let mut rows = db.prepare("SELECT n FROM t ORDER BY n").unwrap();
        let mut rows = rows.query([]).unwrap();
        let mut seen = 0;
        while let Some(row) = rows.next().unwrap() {
            let n: i64 = row.get(0).unwrap();
            assert_eq!(n, seen);
            seen += 1;
            if n % 50 == 0 {
                db.execute("UPDATE t SET b = randomblob(200) WHERE n = ?", [n]).unwrap();
                db.execute("INSERT INTO other SELECT n FROM t WHERE n < 40", []).unwrap();
            }
        }
        assert_eq!(seen, 1000);
        drop(rows);
        assert_eq!(number(&db, "SELECT count(*) FROM other"), 800);
        assert_eq!(pragma(&bench.connect(), "integrity_check"), "ok");
    }
}

#[test]
fn pages_of_other_sizes_are_right_too() {
    for (page_bytes, is_lent) in [(512, false), (4096, true), (8192, true), (65_536, true)] {
        let bench = usual_bench(true);
        let db = bench.connect();
        db.execute_batch(&format!("PRAGMA page_size = {page_bytes}")).unwrap();
        fill(&db);
        let db = map(&bench);
        assert_eq!(number(&db, SUM), 499_500, "pages of {page_bytes} bytes");
        assert_eq!(activity(&bench).pages_lent > 0, is_lent, "pages of {page_bytes} bytes");
    }
}

#[test]
fn pool_with_emulated_costs_lends_nothing() {
    let options = MediaOptions::new().emulate(Some(Technology::Pcm));
    let medium = Mapped::anonymous(32 << 20, &options).unwrap();
    Pool::format(&medium, 8, [1; 16]).unwrap();
    let bench = bench_in(open_pool(Arc::new(medium)), 4 << 20, true);
    fill(&bench.connect());
    assert_eq!(number(&map(&bench), SUM), 499_500);
    assert_eq!(activity(&bench).pages_lent, 0);
}

#[test]
fn deleted_database_fails_mapping_transaction() {
    let pool = new_pool(64);
    let bench = bench_in(Arc::clone(&pool), 4 << 20, true);
    fill(&bench.connect());
    let db = map(&bench);
    db.execute_batch("BEGIN").unwrap();
    assert_eq!(number(&db, SUM), 499_500);
    assert!(activity(&bench).pages_lent > 70);
    pool.delete_volume(NAME).unwrap();
    db.query_row(SUM, [], |row| row.get::<_, i64>(0)).unwrap_err();
}

/// A volume whose memory fails on request.
struct Failing {
    volume: BlockVolume<Mapped>,
    has_failed: AtomicBool,
}

impl everbyte_device::Decorator for Failing {
    type Inner = BlockVolume<Mapped>;
    const PASSTHROUGH: Passthrough = Passthrough::Whole;

    fn inner(&self) -> &Self::Inner {
        &self.volume
    }

    fn transport(&self) -> Option<&dyn Transport> {
        Some(self)
    }
}

impl Transport for Failing {
    fn send(
        &self,
        offset: u64,
        len: usize,
        prefix: &[u8],
        socket: BorrowedFd<'_>,
    ) -> Result<(), SendError> {
        everbyte_device::send(&self.volume, (offset, len), prefix, socket)
    }

    fn direct_access(&self) -> Option<&dyn DirectAccess> {
        Some(self)
    }
}

impl AtomicWrites for Failing {
    fn write_atomic(&self, requests: &[WriteRequest<'_>]) -> Result<(), AtomicWriteError> {
        self.volume.write_atomic(requests)
    }
}

impl DirectAccess for Failing {
    fn map_range(&self, offset: u64, len: usize) -> Option<MappedBytes> {
        self.volume.map_range(offset, len)
    }

    fn has_failed(&self, _: &MappedBytes) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }
}

#[test]
fn memory_that_fails_under_a_page_ends_all_work() {
    let size_bytes = volume_bytes(4 << 20);
    let volume =
        BlockVolume::create(&new_pool(64), "v", size_bytes, &BlockOptions::default()).unwrap();
    assert!(volume.direct_access().is_some());
    let device = Arc::new(Failing { volume, has_failed: AtomicBool::new(false) });
    let store = Store::of_devices();
    store.attach(NAME, Arc::clone(&device) as Arc<dyn AtomicWrites>).unwrap();
    let bench = Bench::new(store, true);
    fill(&bench.connect());
    let db = map(&bench);
    assert_eq!(number(&db, SUM), 499_500);
    device.has_failed.store(true, Ordering::Relaxed);
    let _ = db.query_row(SUM, [], |row| row.get::<_, i64>(0));
    db.query_row(SUM, [], |row| row.get::<_, i64>(0)).unwrap_err();
    let other = bench.connect_to(NAME);
    let written = other.and_then(|db| db.execute_batch("INSERT INTO t VALUES (-1, x'00')"));
    written.unwrap_err();
}

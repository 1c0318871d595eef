//! Databases on attached devices of any kind.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use everbyte_block::{BlockOptions, BlockVolume};
use everbyte_device::{
    AtomicWriteError, AtomicWrites, BlockDevice, DeviceError, Fua, MemoryDevice, Passthrough,
    WriteRequest,
};
use everbyte_sqlite::{Store, VfsOptions, volume_bytes};
use rusqlite::ffi;

use crate::{Bench, NAME, failure, new_pool, number, pragma};

/// A [`Scripted`] device's answer to atomic writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    Done,
    TooLarge,
    Media,
}

/// A device in memory.
struct Scripted {
    below: MemoryDevice,
    answer: Answer,
    atomic_writes: AtomicUsize,
    flushes: AtomicUsize,
}

impl Scripted {
    fn new(answer: Answer) -> Arc<Self> {
        let size_bytes = volume_bytes(4 << 20);
        let (atomic_writes, flushes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Self { below: MemoryDevice::new(size_bytes), answer, atomic_writes, flushes })
    }
}

impl everbyte_device::Decorator for Scripted {
    type Inner = MemoryDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Split;

    fn inner(&self) -> &Self::Inner {
        &self.below
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.below.flush()
    }
}

impl AtomicWrites for Scripted {
    fn write_atomic(&self, requests: &[WriteRequest<'_>]) -> Result<(), AtomicWriteError> {
        self.atomic_writes.fetch_add(1, Ordering::Relaxed);
        match self.answer {
            Answer::Done => {
                for outcome in self.write_batch(requests) {
                    outcome?;
                }
                Ok(())
            }
            Answer::TooLarge => Err(AtomicWriteError::TooLarge { what: "the script" }),
            Answer::Media => {
                let reason = "scripted".to_owned();
                Err(DeviceError::Media { offset: 0, len: 1, reason }.into())
            }
        }
    }
}

fn bench_on(device: &Arc<Scripted>) -> Bench {
    let store = Store::of_devices();
    store.attach(NAME, Arc::clone(device) as Arc<dyn AtomicWrites>).unwrap();
    Bench::new(store, true)
}

#[test]
fn commit_is_one_atomic_write() {
    let device = Scripted::new(Answer::Done);
    let bench = bench_on(&device);
    let db = bench.connect();
    db.execute_batch("CREATE TABLE t (b)").unwrap();
    let flushes = device.flushes.load(Ordering::Relaxed);
    let before = device.atomic_writes.load(Ordering::Relaxed);
    for _ in 0..10 {
        db.execute("INSERT INTO t VALUES (randomblob(9000))", []).unwrap();
    }
    assert_eq!(device.atomic_writes.load(Ordering::Relaxed) - before, 10);
    assert_eq!(device.flushes.load(Ordering::Relaxed), flushes, "the writes are durable as such");
    drop(db);
    drop(bench);
    assert_eq!(number(&bench_on(&device).connect(), "SELECT count(*) FROM t"), 10);
}

#[test]
fn refused_batch_uses_the_journal() {
    let device = Scripted::new(Answer::TooLarge);
    let bench = bench_on(&device);
    let db = bench.connect();
    db.execute_batch("CREATE TABLE t (n); INSERT INTO t VALUES (1); UPDATE t SET n = 2;").unwrap();
    let activity = bench.store.activity(NAME).unwrap();
    assert!(activity.batches_refused >= 2 && activity.journal_writes > 0, "{activity:?}");
    assert_eq!(number(&db, "SELECT n FROM t"), 2);
    assert_eq!(pragma(&db, "integrity_check"), "ok");
}

#[test]
fn medium_failure_in_a_batch_breaks_the_database() {
    let device = Scripted::new(Answer::Media);
    let bench = bench_on(&device);
    let db = bench.connect();
    db.execute_batch("CREATE TABLE t (n)").unwrap();
    for _ in 0..2 {
        db.execute_batch("INSERT INTO t VALUES (1)").unwrap_err();
    }
    assert_eq!(device.atomic_writes.load(Ordering::Relaxed), 1, "it was not asked again");
}

/// A device in memory that becomes read-only after some more writes to the database itself.
struct Freezing {
    below: MemoryDevice,
    writes_left: AtomicUsize,
}

impl Freezing {
    fn check_not_frozen(&self) -> Result<(), DeviceError> {
        match self.writes_left.load(Ordering::Relaxed) {
            0 => Err(DeviceError::ReadOnly { reason: "it is frozen".to_owned() }),
            _ => Ok(()),
        }
    }
}

impl everbyte_device::Decorator for Freezing {
    type Inner = MemoryDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Split;

    fn inner(&self) -> &Self::Inner {
        &self.below
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        self.check_not_frozen()?;
        // The journal and the WAL come first, with seven parts of twenty each.
        if offset >= self.below.geometry().size_bytes / 20 * 14 {
            self.writes_left.fetch_sub(1, Ordering::Relaxed);
        }
        self.below.write(offset, data, fua)
    }

    fn discard(&self, offset: u64, len: u64, fua: Fua) -> Result<(), DeviceError> {
        self.check_not_frozen()?;
        self.below.discard(offset, len, fua)
    }
}

impl AtomicWrites for Freezing {
    fn write_atomic(&self, _requests: &[WriteRequest<'_>]) -> Result<(), AtomicWriteError> {
        Err(AtomicWriteError::TooLarge { what: "the test" })
    }
}

#[test]
fn commit_on_freezing_device_leaves_no_trace() {
    let emulated = VfsOptions { native_batches: false, ..VfsOptions::default() };
    for options in [VfsOptions { batch_atomic: false, ..emulated }, emulated] {
        freeze_during_commit(options);
    }
}

fn freeze_during_commit(options: VfsOptions) {
    let below = MemoryDevice::new(volume_bytes(4 << 20));
    let device = Arc::new(Freezing { below, writes_left: AtomicUsize::new(usize::MAX) });
    let store = Store::of_devices();
    store.attach(NAME, Arc::clone(&device) as Arc<dyn AtomicWrites>).unwrap();
    let bench = Bench::with(store, options);
    let db = bench.connect();
    // So that the connection keeps its pages, and looks for no hot journal.
    pragma(&db, "locking_mode = EXCLUSIVE");
    db.execute_batch(
        "CREATE TABLE t (n, filler);
         WITH RECURSIVE row (id) AS (VALUES (1) UNION ALL SELECT id + 1 FROM row WHERE id < 100)
         INSERT INTO t SELECT 0, zeroblob(300) FROM row;",
    )
    .unwrap();
    device.writes_left.store(2, Ordering::Relaxed);
    let updated = db.execute_batch("UPDATE t SET n = 1");
    assert_eq!(failure(updated) & 0xff, ffi::SQLITE_IOERR);
    let sum = db.query_row("SELECT sum(n) FROM t", [], |row| row.get::<_, i64>(0));
    assert!(sum.is_err(), "it shows {sum:?}, which cannot be rolled back yet");

    device.writes_left.store(usize::MAX, Ordering::Relaxed);
    assert_eq!(number(&db, "SELECT sum(n) FROM t"), 0);
    assert_eq!(pragma(&db, "integrity_check"), "ok");
}

/// A device in memory without discard.
struct Keeping(MemoryDevice);

impl everbyte_device::Decorator for Keeping {
    type Inner = MemoryDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Split;

    fn inner(&self) -> &Self::Inner {
        &self.0
    }

    fn discard(&self, offset: u64, len: u64, _fua: Fua) -> Result<(), DeviceError> {
        Err(DeviceError::NoSpace { offset, len, reason: "scripted".to_owned() })
    }
}

impl AtomicWrites for Keeping {
    fn write_atomic(&self, _requests: &[WriteRequest<'_>]) -> Result<(), AtomicWriteError> {
        Err(AtomicWriteError::TooLarge { what: "the test" })
    }
}

#[test]
fn commit_succeeds_without_free_of_journal_space() {
    for mode in ["delete", "truncate"] {
        let store = Store::of_devices();
        let device = Keeping(MemoryDevice::new(volume_bytes(4 << 20)));
        store.attach(NAME, Arc::new(device)).unwrap();
        let bench = Bench::new(store, false);
        let db = bench.connect();
        assert_eq!(pragma(&db, &format!("journal_mode = {mode}")), mode);
        db.execute_batch("CREATE TABLE t (n); INSERT INTO t VALUES (1); UPDATE t SET n = 2;")
            .unwrap();
        assert_eq!(number(&bench.connect(), "SELECT n FROM t"), 2, "{mode}");
        assert_eq!(pragma(&db, "integrity_check"), "ok");
    }
}

#[test]
fn attached_devices_have_names_of_their_own() {
    let pool = new_pool(64);
    let bytes = volume_bytes(1 << 20);
    let spare = BlockVolume::create(&pool, "spare", bytes, &BlockOptions::default()).unwrap();
    let store = Store::new(pool);
    let device: Arc<dyn AtomicWrites> = Arc::new(spare);
    assert!(store.attach("spare", Arc::clone(&device)).is_err(), "a volume of the pool has it");
    assert!(store.attach("a-wal", Arc::clone(&device)).is_err());
    store.attach("mine", Arc::clone(&device)).unwrap();
    assert!(store.attach("mine", device).is_err());
    assert!(store.create_database("mine", 1 << 20, &BlockOptions::default()).is_err());
    store.create_database(NAME, 1 << 20, &BlockOptions::default()).unwrap();
    let bench = Bench::new(store, true);
    for name in ["mine", NAME] {
        let db = bench.connect_to(name).unwrap();
        db.execute_batch("CREATE TABLE t (n); INSERT INTO t VALUES (1);").unwrap();
        assert_eq!(number(&db, "SELECT count(*) FROM t"), 1);
    }
    let error = Store::of_devices().activity("nowhere").unwrap_err().to_string();
    assert!(error.contains("nowhere"), "{error}");
}

#[test]
fn foreign_content_of_attached_device_is_untouched() {
    let device = Scripted::new(Answer::Done);
    device.write(70_000, b"something", Fua::No).unwrap();
    let store = Store::of_devices();
    let error = store.attach(NAME, Arc::clone(&device) as Arc<dyn AtomicWrites>).unwrap_err();
    assert!(error.to_string().contains("holds no database"), "{error}");
    let mut found = [0; 9];
    device.read(70_000, &mut found).unwrap();
    assert_eq!(&found, b"something");
}

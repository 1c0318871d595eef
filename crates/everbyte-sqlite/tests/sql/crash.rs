//! Simulated crashes: after any loss of power, every transaction is present as a whole or not at
//! all, and all answered ones are present, unless they need not be durable yet.

use std::sync::Arc;

use everbyte_block::{BlockOptions, BlockVolume};
use everbyte_crash::{Crash, Explorer, Log, Scenario, SimMedium};
use everbyte_device::{AtomicWriteError, AtomicWrites, Decorator, Passthrough, WriteRequest};
use everbyte_pool::Pool;
use everbyte_sqlite::{Durability, Store, VfsOptions};
use rusqlite::Connection;

use crate::{Bench, NAME, number, open_pool, pragma};

const TRANSACTIONS: i64 = 4;
/// Rows changed by every transaction, on several pages.
const ROWS: i64 = 24;

/// The batches of commits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Batches {
    Native,
    Emulated,
    /// Emulated, and refused by the device: the transaction moves to the journal on it.
    Refused,
}

/// A volume that refuses atomic batches.
struct Refusing(BlockVolume<SimMedium>);

impl Decorator for Refusing {
    type Inner = BlockVolume<SimMedium>;
    const PASSTHROUGH: Passthrough = Passthrough::Split;

    fn inner(&self) -> &Self::Inner {
        &self.0
    }
}

impl AtomicWrites for Refusing {
    fn write_atomic(&self, _requests: &[WriteRequest<'_>]) -> Result<(), AtomicWriteError> {
        Err(AtomicWriteError::TooLarge { what: "the test" })
    }
}

/// Transactions. Each changes every row and adds one to a growing table.
struct Transactions {
    mode: &'static str,
    batch_atomic: bool,
    batches: Batches,
    page_bytes: u32,
    synchronous: &'static str,
    durability: Durability,
    /// The promise for recovery.
    promised: Durability,
}

#[derive(Debug)]
enum Event {
    Begun(i64),
    Answered(i64),
}

/// The connection and VFS left open by recovery. The connection is dropped before its VFS.
struct Recovered {
    db: Connection,
    _bench: Bench,
}

impl Transactions {
    fn open(&self, medium: &Arc<SimMedium>) -> Result<Recovered, String> {
        let options = VfsOptions {
            batch_atomic: self.batch_atomic,
            native_batches: self.batches == Batches::Native,
            durability: self.durability,
            ..VfsOptions::default()
        };
        let pool = open_pool(Arc::clone(medium));
        let store = if self.batches == Batches::Refused {
            let volume = BlockVolume::open(&pool, NAME).map_err(|error| error.to_string())?;
            let store = Store::of_devices();
            store.attach(NAME, Arc::new(Refusing(volume))).map_err(|error| error.to_string())?;
            store
        } else {
            Store::new(pool)
        };
        let bench = Bench::with(store, options);
        let db = bench.connect_to(NAME).map_err(|error| error.to_string())?;
        if self.mode == "wal" {
            pragma(&db, "locking_mode = EXCLUSIVE");
        }
        db.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))
            .map_err(|error| error.to_string())?;
        Ok(Recovered { db, _bench: bench })
    }

    /// The present transactions. An error if one is present in part.
    fn found(db: &Connection) -> Result<i64, String> {
        let verdict = pragma(db, "integrity_check");
        if verdict != "ok" {
            return Err(format!("integrity check: {verdict}"));
        }
        let (least, most) =
            (number(db, "SELECT min(last) FROM t"), number(db, "SELECT max(last) FROM t"));
        let (rows, done) =
            (number(db, "SELECT count(*) FROM t"), number(db, "SELECT count(*) FROM done"));
        let newest = number(db, "SELECT coalesce(max(n), 0) FROM done");
        if least == most && most == done && done == newest && rows == ROWS {
            Ok(done)
        } else {
            Err(format!(
                "{rows} rows of transactions {least} to {most}, {done} done up to {newest}"
            ))
        }
    }
}

impl Scenario for Transactions {
    type Event = Event;
    type Recovered = Recovered;

    fn medium_len(&self) -> u64 {
        2 << 20
    }

    fn prepare(&self, medium: &Arc<SimMedium>) {
        Pool::format(&**medium, 2, [3; 16]).unwrap();
        let store = Store::new(open_pool(Arc::clone(medium)));
        let options =
            BlockOptions { log_bytes: Some(64 * 4096), lanes: 1, ..BlockOptions::default() };
        store.create_database(NAME, 1 << 20, &options).unwrap();
        let bench = Bench::new(store, self.batch_atomic);
        let db = bench.connect();
        db.execute_batch(&format!("PRAGMA page_size = {}", self.page_bytes)).unwrap();
        if self.mode == "wal" {
            pragma(&db, "locking_mode = EXCLUSIVE");
        }
        assert_eq!(pragma(&db, &format!("journal_mode = {}", self.mode)), self.mode);
        db.execute_batch(
            "CREATE TABLE t (id INTEGER PRIMARY KEY, last, filler);
             CREATE TABLE done (n, filler);",
        )
        .unwrap();
        for id in 0..ROWS {
            db.execute("INSERT INTO t VALUES (?1, 0, zeroblob(500))", [id]).unwrap();
        }
    }

    fn run(&self, medium: &Arc<SimMedium>, log: &Log<Event>) {
        let Recovered { db, _bench } = self.open(medium).unwrap();
        db.execute_batch(&format!("PRAGMA synchronous = {}", self.synchronous)).unwrap();
        pragma(&db, &format!("journal_mode = {}", self.mode));
        for n in 1..=TRANSACTIONS {
            log.note(Event::Begun(n));
            db.execute_batch(&format!(
                "BEGIN; UPDATE t SET last = {n}; INSERT INTO done VALUES ({n}, zeroblob(3000)); COMMIT;"
            ))
            .unwrap();
            log.note(Event::Answered(n));
        }
    }

    fn recover(&self, medium: Arc<SimMedium>) -> Result<Recovered, String> {
        self.open(&medium)
    }

    fn check(&self, recovered: Recovered, crash: &Crash<'_, Event>) -> Result<(), String> {
        let found = Self::found(&recovered.db)?;
        let (mut begun, mut answered) = (0, 0);
        for event in crash.events {
            match event.event {
                Event::Begun(n) => begun = n,
                Event::Answered(n) => answered = n,
            }
        }
        if self.promised == Durability::AtCheckpoint {
            answered = 0;
        }
        if !(answered..=begun).contains(&found) {
            return Err(format!("{found} transactions; {begun} begun, {answered} answered"));
        }
        let again = found + 1;
        recovered
            .db
            .execute_batch(&format!(
                "UPDATE t SET last = {again}; INSERT INTO done VALUES ({again}, 0);"
            ))
            .map_err(|error| error.to_string())?;
        Self::found(&recovered.db).map(drop)
    }
}

/// Not many points: the volume's own crash tests visit all of theirs.
fn explorer() -> Explorer {
    Explorer {
        points_max: 60,
        from_first_event: true,
        runs_max: 3,
        samples: 2,
        nested_images_max: 1,
        nested_points_max: 3,
        nested_runs_max: 2,
        ..Explorer::default()
    }
}

/// Explores a mode with pages of the block's size, and with smaller ones.
fn explore(mode: &'static str, batch_atomic: bool, durability: Durability) {
    explore_batches(mode, batch_atomic, Batches::Native, durability);
}

/// The same with other batches.
#[expect(clippy::print_stdout, reason = "tests say what they explored")]
fn explore_batches(
    mode: &'static str,
    batch_atomic: bool,
    batches: Batches,
    durability: Durability,
) {
    for page_bytes in [512, 4096] {
        let synchronous = "FULL";
        let scenario = Transactions {
            mode,
            batch_atomic,
            batches,
            page_bytes,
            synchronous,
            durability,
            promised: durability,
        };
        let summary = explorer()
            .explore(&scenario)
            .unwrap_or_else(|failure| panic!("{mode}, pages of {page_bytes}: {failure}"));
        println!(
            "{mode}, {durability:?}, batch: {batch_atomic}, {batches:?}, pages of {page_bytes}: {summary}"
        );
        assert!(summary.images > 50, "hardly anything was explored: {summary}");
    }
}

#[test]
fn lost_transactions_are_noticed() {
    let scenario = Transactions {
        mode: "truncate",
        batch_atomic: false,
        batches: Batches::Native,
        page_bytes: 4096,
        synchronous: "OFF",
        durability: Durability::AtCommit,
        promised: Durability::AtCommit,
    };
    let failure = explorer().explore(&scenario).unwrap_err().to_string();
    assert!(failure.contains("answered"), "{failure}");
}

#[test]
fn atomic_batches() {
    explore("delete", true, Durability::AtCommit);
}

#[test]
fn emulated_batches() {
    for mode in ["delete", "truncate", "persist"] {
        explore_batches(mode, true, Batches::Emulated, Durability::AtCommit);
    }
    explore_batches("delete", true, Batches::Emulated, Durability::AtCheckpoint);
}

#[test]
fn refused_emulated_batches() {
    for mode in ["delete", "truncate", "persist"] {
        explore_batches(mode, true, Batches::Refused, Durability::AtCommit);
    }
}

#[test]
fn journal_deleted() {
    explore("delete", false, Durability::AtCommit);
}

#[test]
fn journal_truncated() {
    explore("truncate", false, Durability::AtCommit);
}

#[test]
fn journal_kept() {
    explore("persist", false, Durability::AtCommit);
}

#[test]
fn wal() {
    explore("wal", false, Durability::AtCommit);
}

#[test]
fn lazy_commits_violate_durability_promise() {
    let lazy = Transactions {
        mode: "delete",
        batch_atomic: false,
        batches: Batches::Native,
        page_bytes: 4096,
        synchronous: "FULL",
        durability: Durability::AtCheckpoint,
        promised: Durability::AtCommit,
    };
    let failure = explorer().explore(&lazy).unwrap_err().to_string();
    assert!(failure.contains("answered"), "{failure}");
}

#[test]
fn lazy_atomic_batches() {
    explore("delete", true, Durability::AtCheckpoint);
}

#[test]
fn lazy_journal() {
    explore("delete", false, Durability::AtCheckpoint);
}

#[test]
fn lazy_wal() {
    explore("wal", false, Durability::AtCheckpoint);
}

//! Real crashes: a child process commits transactions and reports them, is killed with SIGKILL in
//! between, and the remaining database is checked. `EVERBYTE_SQLITE_KILL_ROUNDS` sets the number of
//! rounds.
//!
//! A separate program without the test harness, because it starts itself as the child.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use everbyte_block::{BlockOptions, kinds};
use everbyte_media::{Mapped, MediaOptions};
use everbyte_pool::file::{CreateOptions, create, open_locked};
use everbyte_pool::{OpenOptions, Pool};
use everbyte_sqlite::{Registration, Store, VfsOptions, register};
use rusqlite::{Connection, OpenFlags};

const NAME: &str = "test.db";
const POOL_VARIABLE: &str = "EVERBYTE_SQLITE_KILL_POOL";
const MODE_VARIABLE: &str = "EVERBYTE_SQLITE_KILL_MODE";
const ROUNDS_VARIABLE: &str = "EVERBYTE_SQLITE_KILL_ROUNDS";
const ROUNDS: u64 = 16;
/// The uncatchable signal.
const SIGKILL: i32 = 9;
/// Rows changed by every transaction, on several pages.
const ROWS: i64 = 60;
/// Newest transactions kept in the list, so that the database does not grow.
const KEPT: i64 = 1000;
/// The longest life of a child after its first commit.
const LIFE_MS_MAX: u64 = 60;

const BATCH: &str = "batch";
/// Before the journal mode of emulated batches.
const EMULATED: &str = "emulated ";
const MODES: [&str; 8] = [
    BATCH,
    "delete",
    "truncate",
    "persist",
    "wal",
    "emulated delete",
    "emulated truncate",
    "emulated persist",
];

/// An open database. The connection goes before the VFS, and that before the pool.
struct Open {
    db: Connection,
    _vfs: Registration,
    pool: Arc<Pool<Mapped>>,
}

fn open(pool: &Path, mode: &str) -> Open {
    let pool = open_locked(pool, &MediaOptions::new(), kinds(), &OpenOptions::default()).unwrap();
    let pool = Arc::new(pool);
    let store = Store::new(Arc::clone(&pool));
    if pool.volume(NAME).is_err() {
        store.create_database(NAME, 16 << 20, &BlockOptions::default()).unwrap();
    }
    let options = VfsOptions {
        batch_atomic: mode == BATCH || mode.starts_with(EMULATED),
        native_batches: mode == BATCH,
        ..VfsOptions::default()
    };
    let vfs = register("everbyte", &store, options).unwrap();
    let db = Connection::open_with_flags_and_vfs(NAME, OpenFlags::default(), "everbyte").unwrap();
    set(&db, "locking_mode = EXCLUSIVE");
    Open { db, _vfs: vfs, pool }
}

/// Sets a pragma with an answer of one word, and returns it.
fn set(db: &Connection, pragma: &str) -> String {
    db.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get(0)).unwrap()
}

fn number(db: &Connection, query: &str) -> i64 {
    db.query_row(query, [], |row| row.get(0)).unwrap()
}

/// Commits transactions until it is killed, and reports each one afterwards.
fn child(pool: &Path, mode: &str) {
    let Open { db, _vfs, pool } = open(pool, mode);
    let _timer = pool.start_timer(Duration::from_millis(1)).unwrap();
    let journal = if mode == BATCH { "delete" } else { mode.trim_start_matches(EMULATED) };
    assert_eq!(set(&db, &format!("journal_mode = {journal}")), journal);
    let mut out = std::io::stdout().lock();
    for n in number(&db, "SELECT max(n) FROM done") + 1.. {
        db.execute_batch(&format!(
            "BEGIN; UPDATE t SET last = {n}; INSERT INTO done VALUES ({n}, randomblob(700));
             DELETE FROM done WHERE n <= {n} - {KEPT}; COMMIT;"
        ))
        .unwrap();
        writeln!(out, "{n}").unwrap();
    }
}

/// Runs a child and kills it after `life`. Returns the last reported commit.
fn kill_a_child(pool: &Path, mode: &str, life: Duration) -> i64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .env(POOL_VARIABLE, pool)
        .env(MODE_VARIABLE, mode)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = said.next().expect("the child died before its first commit").unwrap();
    std::thread::sleep(life);
    child.kill().unwrap();
    let rest = said.map(Result::unwrap).filter_map(|line| line.parse().ok());
    let last = rest.fold(first.parse().unwrap(), |_, n| n);
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(SIGKILL), "{mode}: the child ended by itself, with {status}");
    last
}

/// Checks that every transaction is present as a whole or not at all, and that those up to
/// `answered` are present. Returns the newest.
fn judge(pool: &Path, mode: &str, answered: i64) -> i64 {
    let Open { db, _vfs, .. } = open(pool, mode);
    assert_eq!(set(&db, "integrity_check"), "ok");
    let rows = number(&db, "SELECT count(*) FROM t");
    let (least, most) =
        (number(&db, "SELECT min(last) FROM t"), number(&db, "SELECT max(last) FROM t"));
    let (kept, newest) =
        (number(&db, "SELECT count(*) FROM done"), number(&db, "SELECT max(n) FROM done"));
    let whole = least == most && most == newest && rows == ROWS && kept == KEPT.min(newest + 1);
    assert!(whole, "{mode}: {rows} rows of {least} to {most}, {kept} kept up to {newest}");
    let expected = answered..=answered + 1;
    assert!(
        expected.contains(&newest),
        "{mode}: transaction {newest} is there, {answered} answered"
    );
    // The next child has another mode, which a database in WAL mode would not let it have.
    assert_eq!(set(&db, "journal_mode = delete"), "delete");
    newest
}

fn prepare(pool: &Path) {
    let options = CreateOptions { len_bytes: Some(96 << 20), ..CreateOptions::default() };
    create(pool, &options).unwrap();
    let Open { db, _vfs, pool } = open(pool, BATCH);
    db.execute_batch(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, last, filler);
         CREATE TABLE done (n INTEGER PRIMARY KEY, filler);
         INSERT INTO done VALUES (0, 0);",
    )
    .unwrap();
    for id in 0..ROWS {
        db.execute("INSERT INTO t VALUES (?1, 0, zeroblob(500))", [id]).unwrap();
    }
    db.close().unwrap();
    pool.close().unwrap();
}

fn main() {
    if let (Some(pool), Ok(mode)) = (std::env::var_os(POOL_VARIABLE), std::env::var(MODE_VARIABLE))
    {
        return child(Path::new(&pool), &mode);
    }
    let rounds = std::env::var(ROUNDS_VARIABLE).map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    // Memory: the end of a process loses nothing of it, and commits take no disk's time.
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let pool = folder.path().join("pool");
    prepare(&pool);
    let mut there = 0;
    for (round, mode) in (0..rounds).zip(MODES.iter().cycle()) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let life = Duration::from_millis(u64::from(now.subsec_nanos()) % LIFE_MS_MAX);
        let answered = kill_a_child(&pool, mode, life);
        assert!(answered > there, "round {round}, {mode}: nothing was committed");
        there = judge(&pool, mode, answered);
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "{rounds} rounds of kill -9, {there} transactions, none lost, none torn")
        .unwrap();
}

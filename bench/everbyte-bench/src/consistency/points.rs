//! Point reads of SQLite: rows by their key, from a volume through our own file system for SQLite and from a file on
//! tmpfs through SQLite's, each with pages that are copied and with pages that are used where they lie.
//!
//! Invariants: every place has the same database, and connections whose page cache holds a small part of it; a round runs
//! every place once, one right after the other.

use std::fs;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use everbyte_block::Delta;
use everbyte_sqlite::{Durability, volume_bytes};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rusqlite::Connection;

use super::Settings;
use crate::rows::{Row, metric, timed};
use crate::stats::as_f64;
use crate::subjects::volume::BenchPool;
use crate::tpcc::place::{JournalMode, Opened, Place, Setting, database_bytes, new_source};

const SEED: u64 = 3;
/// Rows of the database and of a smoke test's, with a value of `VALUE_BYTES` each.
const ROWS: i64 = 200_000;
const QUICK_ROWS: i64 = 2_000;
const VALUE_BYTES: i64 = 200;
const CACHE_MIB: u32 = 1;
/// Room for the database to be mapped whole.
const MAPPED_BYTES: u64 = 1 << 30;
/// Reads between looks at the clock.
const STRIDE: u64 = 256;
/// The place that the others' times are divided by: SQLite's own mapped pages.
const REFERENCE: &str = "tmpfs, mapped";

/// Reads of a transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Transactions {
    /// One.
    Each,
    /// All of a slice.
    All,
}

/// A database and how it is read.
struct Reader {
    name: String,
    opened: Opened,
}

/// Measures all readers.
///
/// # Errors
/// No memory; SQLite's; or it is to stop.
pub(super) fn run(settings: &Settings) -> Result<Vec<Row>> {
    let count = if settings.quick { QUICK_ROWS } else { ROWS };
    settings.progress.set_message("loading rows to be read by their key");
    let source = new_source(None)?;
    source.execute_batch(&format!(
        "CREATE TABLE row (key INTEGER PRIMARY KEY, value BLOB NOT NULL);
         WITH RECURSIVE n(key) AS (SELECT 0 UNION ALL SELECT key + 1 FROM n WHERE key < {})
         INSERT INTO row SELECT key, randomblob({VALUE_BYTES}) FROM n;",
        count - 1
    ))?;
    let size_bytes = volume_bytes(2 * database_bytes(&source)? + (16 << 20)).next_multiple_of(4096);
    let pool = BenchPool::new(settings.folder(), size_bytes, 1)?;
    let volume = pool.volume("points", size_bytes, Delta::Off)?.into_device();
    let on_tmpfs = settings.folder().join("points");
    fs::create_dir(&on_tmpfs)?;
    let places = [
        ("everbyte", Place::Device(Arc::new(volume)), JournalMode::Batch),
        ("tmpfs", Place::Directory(on_tmpfs), JournalMode::Delete),
    ];
    let mut readers = Vec::new();
    for (name, place, journal) in &places {
        place.fill(&source)?;
        let setting =
            Setting { journal: *journal, durability: Durability::AtCommit, cache_mib: CACHE_MIB };
        for (how, mapped_bytes) in [("copied", 0), ("mapped", MAPPED_BYTES)] {
            let opened = place.open(&setting)?;
            opened.db.execute_batch(&format!("PRAGMA mmap_size = {mapped_bytes}"))?;
            readers.push(Reader { name: format!("{name}, {how}"), opened });
        }
    }
    drop(source);
    let each = measure(&readers, Transactions::Each, count, settings)?;
    let all = measure(&readers, Transactions::All, count, settings)?;
    Ok(each.into_iter().chain(all).collect())
}

fn measure(
    readers: &[Reader],
    transactions: Transactions,
    count: i64,
    settings: &Settings,
) -> Result<Vec<Row>> {
    let title = match transactions {
        Transactions::Each => "point reads, one a transaction",
        Transactions::All => "point reads, all in one transaction",
    };
    settings.progress.set_message(title);
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); readers.len()];
    for round in 0..settings.rounds {
        for (reader, times) in readers.iter().zip(&mut times) {
            settings.check_stop()?;
            let mut rng = SmallRng::seed_from_u64(SEED + round as u64);
            times.push(slice(&reader.opened.db, transactions, count, &mut rng, settings)?);
        }
    }
    let reference = readers.iter().position(|reader| reader.name == REFERENCE);
    let mut rows = Vec::new();
    for (reader, own) in readers.iter().zip(&times) {
        rows.extend(timed(&reader.name, title, metric::TIME, "ns", own));
        if let Some(reference) = reference.filter(|_| reader.name != REFERENCE) {
            let ratios: Vec<f64> =
                own.iter().zip(&times[reference]).map(|(own, base)| own / base).collect();
            rows.extend(timed(&reader.name, title, "time_to_tmpfs_mapped", "ratio", &ratios));
        }
    }
    Ok(rows)
}

/// Nanoseconds a read takes.
fn slice(
    db: &Connection,
    transactions: Transactions,
    count: i64,
    rng: &mut SmallRng,
    settings: &Settings,
) -> Result<f64> {
    let mut statement = db.prepare("SELECT value FROM row WHERE key = ?")?;
    if transactions == Transactions::All {
        db.execute_batch("BEGIN")?;
    }
    let (start, mut reads) = (Instant::now(), 0);
    while start.elapsed() < settings.slice * 5 {
        for _ in 0..STRIDE {
            let bytes = |row: &rusqlite::Row<'_>| Ok(row.get_ref(0)?.as_blob()?.len());
            let key = rng.random_range(0..count);
            let len = statement.query_row([key], bytes)?;
            ensure!(i64::try_from(len) == Ok(VALUE_BYTES), "row {key} has {len} bytes");
        }
        reads += STRIDE;
    }
    let elapsed = start.elapsed();
    if transactions == Transactions::All {
        db.execute_batch("COMMIT")?;
    }
    Ok(elapsed.as_secs_f64() * 1e9 / as_f64(reads))
}

//! Crashes of processes: a child runs TPC-C on a pool in a file and reports its commits. The parent kills it with
//! SIGKILL and judges the database.
//!
//! After a kill `integrity_check` and each consistency condition hold, and at most one unreported transaction is
//! present. With durable commits each reported transaction is present. With [`Durability::AtCheckpoint`] only the latest
//! ones can be absent. Planted faults show that the judge detects violations.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use everbyte_block::{BlockOptions, BlockVolume, kinds};
use everbyte_media::{Mapped, MediaOptions};
use everbyte_pool::file::{CreateOptions, create, open_locked};
use everbyte_pool::{OpenOptions, Pool};
use everbyte_sqlite::{Durability, volume_bytes};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rusqlite::{Connection, params};

use super::place::{JournalMode, Opened, Place, Setting, new_source};
use super::{Done, Scale, Until, consistency, load, run_watched};

const SCALE: Scale = Scale { warehouses: 2, shrink: 100 };
const VOLUME: &str = "tpcc";
const POOL_BYTES: u64 = 96 << 20;
const DATABASE_BYTES: u64 = 32 << 20;
const CACHE_MIB: u32 = 8;
/// Interval of the checkpoints of a child's pool.
const CHECKPOINT_INTERVAL: Duration = Duration::from_millis(5);
/// Longest life of a child after its first report.
const LIFE_MS_MAX: u64 = 60;
/// The signal that a process cannot catch.
const SIGKILL: i32 = 9;
/// Rounds between new copies of the prepared pool. They bound the size of the database and the time of a judgement.
const ROUNDS_PER_POOL: u64 = 12;

/// Modes of successive rounds.
type Mode = (JournalMode, Durability);
const MODES: [Mode; 6] = [
    (JournalMode::Batch, Durability::AtCommit),
    (JournalMode::Delete, Durability::AtCommit),
    (JournalMode::Wal, Durability::AtCommit),
    (JournalMode::Batch, Durability::AtCheckpoint),
    (JournalMode::Delete, Durability::AtCheckpoint),
    (JournalMode::Wal, Durability::AtCheckpoint),
];

/// Statements that undo payment `?1` consistently. Each changes one row.
const UNDO_PAYMENT: [&str; 4] = [
    "UPDATE warehouse SET w_ytd = w_ytd - h_amount FROM history WHERE h_id = ?1 AND w_id = h_w_id",
    "UPDATE district SET d_ytd = d_ytd - h_amount FROM history
     WHERE h_id = ?1 AND d_w_id = h_w_id AND d_id = h_d_id",
    "UPDATE customer SET c_balance = c_balance + h_amount, c_ytd_payment = c_ytd_payment - h_amount
     FROM history WHERE h_id = ?1 AND c_w_id = h_c_w_id AND c_d_id = h_c_d_id AND c_id = h_c_id",
    "DELETE FROM history WHERE h_id = ?1",
];
/// Removes line `?1` of the newest order of a district.
const TEAR_ORDER: &str = "DELETE FROM order_line WHERE ol_w_id = 1 AND ol_d_id = 1 AND
    ol_number = ?1 AND ol_o_id =
    (SELECT max(ol_o_id) FROM order_line WHERE ol_w_id = 1 AND ol_d_id = 1)";

/// Kills and judgements.
#[derive(clap::Args)]
pub(crate) struct KillArgs {
    /// Number of kills. With `--plant` the run ends at the detection of the fault.
    #[arg(long, default_value_t = 12)]
    rounds: u64,
    /// Folder for the pool, on tmpfs.
    #[arg(long, default_value = "/dev/shm", value_name = "FOLDER")]
    folder: PathBuf,
    /// Seed of the database, the transactions and the lives of children.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Plant a fault. The run fails unless it detects the fault.
    #[arg(long, value_enum)]
    plant: Option<Plant>,
}

/// A planted fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Plant {
    /// A reported payment is undone, consistently.
    Lost,
    /// A line of an order is removed.
    Torn,
    /// The child reports commits before they are durable.
    Lazy,
}

/// Arguments of a child.
#[derive(clap::Args)]
pub(crate) struct ChildArgs {
    pool: PathBuf,
    mode: usize,
    seed: u64,
    #[arg(long)]
    lazy: bool,
}

/// Runs transactions until a signal kills the process, and reports each committed change.
///
/// # Errors
/// Each failure before the signal.
pub(crate) fn child(args: &ChildArgs) -> Result<()> {
    let (journal, mut durability) = *MODES.get(args.mode).context("unknown mode")?;
    let pool = open_pool(&args.pool)?;
    if args.lazy {
        durability = Durability::AtCheckpoint;
    }
    // A checkpoint in the background could make the early reports of a lazy child true.
    let _timer = (!args.lazy).then(|| pool.start_timer(CHECKPOINT_INTERVAL)).transpose()?;
    let opened = open(&pool, (journal, durability))?;
    let mut out = io::stdout().lock();
    let mut report = |done: &Done| match done {
        Done::RolledBack | Done::OrderStatus | Done::StockLevel => Ok(()),
        Done::Delivery { orders, .. } if orders.is_empty() => Ok(()),
        _ => Ok(writeln!(out, "{}", serde_json::to_string(done)?)?),
    };
    run_watched(&opened.db, SCALE, args.seed, Until::Transactions(u64::MAX), &mut report)?;
    Ok(())
}

/// Kills children and judges their databases.
///
/// # Errors
/// A violation. With a planted fault: no detection.
pub(crate) fn rounds(args: &KillArgs) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("everbyte-tpcc.").tempdir_in(&args.folder);
    let folder = folder.with_context(|| format!("cannot use {}", args.folder.display()))?;
    let (prepared, pool) = (folder.path().join("prepared"), folder.path().join("pool"));
    prepare(&prepared, args.seed)?;
    let mut rng = SmallRng::seed_from_u64(args.seed);
    let (mut before, mut reported) = (Tally::default(), 0);
    let mut out = io::stdout().lock();
    for round in 0..args.rounds {
        let index = usize::try_from(round)? % MODES.len();
        let mode = MODES[index];
        // A loss is legal if commits are durable with checkpoints only.
        let is_detectable = |plant: &Plant| mode.1 == Durability::AtCommit || *plant == Plant::Torn;
        let plant = args.plant.filter(is_detectable);
        if round % ROUNDS_PER_POOL == 0 {
            fs::copy(&prepared, &pool)?;
            let opened = open_pool(&pool)?;
            before = tally(&open(&opened, MODES[0])?.db)?;
        }
        let life = Duration::from_millis(rng.random_range(0..LIFE_MS_MAX));
        let done = kill_child(&pool, index, rng.random(), life, plant == Some(Plant::Lazy))?;
        reported += done.len();
        let is_planted = plant.map_or(Ok(false), |plant| spoil(&pool, mode, &done, plant))?;
        let judged = judge(&pool, mode, &done, before);
        let judged = judged.with_context(|| format!("round {round}, {mode:?}"));
        match (judged, plant.filter(|_| is_planted)) {
            (Err(error), Some(plant)) => {
                let (error, torn) = (format!("{error:#}"), plant == Plant::Torn);
                let expected = if torn { "consistency condition 4: " } else { "is missing" };
                ensure!(error.contains(expected), "{error}");
                return Ok(writeln!(out, "the planted fault was detected: {error}")?);
            }
            (Ok(_), Some(plant @ (Plant::Lost | Plant::Torn))) => {
                bail!("round {round}: the judge did not detect {plant:?}")
            }
            (judged, _) => before = judged?,
        }
    }
    let (rounds, plant) = (args.rounds, args.plant);
    ensure!(plant.is_none(), "the judge did not detect {plant:?} in {rounds} rounds");
    let text = "transactions reported, none lost, none torn";
    Ok(writeln!(out, "{rounds} rounds of kill -9, {reported} {text}")?)
}

fn prepare(path: &Path, seed: u64) -> Result<()> {
    let source = new_source()?;
    load(&source, SCALE, seed)?;
    let options = CreateOptions { len_bytes: Some(POOL_BYTES), ..CreateOptions::default() };
    create(path, &options)?;
    let pool = open_pool(path)?;
    let bytes = volume_bytes(DATABASE_BYTES);
    let volume = BlockVolume::create(&pool, VOLUME, bytes, &BlockOptions::default())?;
    Place::Device(Arc::new(volume)).fill(&source)?;
    Ok(pool.close()?)
}

fn open_pool(path: &Path) -> Result<Arc<Pool<Mapped>>> {
    let pool = open_locked(path, &MediaOptions::new(), kinds(), &OpenOptions::default())?;
    Ok(Arc::new(pool))
}

fn open(pool: &Arc<Pool<Mapped>>, (journal, durability): Mode) -> Result<Opened> {
    let place = Place::Device(Arc::new(BlockVolume::open(pool, VOLUME)?));
    place.open(&Setting { journal, durability, cache_mib: CACHE_MIB })
}

/// Runs a child and kills it after `life`. Returns its reports.
fn kill_child(
    pool: &Path,
    mode: usize,
    seed: u64,
    life: Duration,
    lazy: bool,
) -> Result<Vec<Done>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("tpcc-child").arg(pool).args([mode.to_string(), seed.to_string()]);
    command.args(lazy.then_some("--lazy"));
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot start a child")?;
    let mut out = BufReader::new(child.stdout.take().context("the child has no output")?);
    let mut first = String::new();
    // The life begins at the first report, after the start of the program.
    let heard = out.read_line(&mut first);
    std::thread::sleep(life);
    // The child is reaped before an error returns.
    let killed = child.kill();
    let status = child.wait()?;
    heard.and(killed)?;
    ensure!(status.signal() == Some(SIGKILL), "the child ended before its kill: {status}");
    // Reports left in the pipe were sent before the kill, so they count as answers.
    let lines = std::iter::once(Ok(first)).chain(out.lines());
    lines.map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}

/// Numbers of new orders, payments and delivered orders.
type Tally = [i64; 3];

fn tally(db: &Connection) -> Result<Tally> {
    let query = "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM history),
                 (SELECT count(*) FROM orders WHERE o_carrier_id IS NOT NULL)";
    Ok(db.query_row(query, [], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?]))?)
}

fn add(tally: &mut Tally, done: &Done) -> Result<()> {
    match done {
        Done::NewOrder { .. } => tally[0] += 1,
        Done::Payment { .. } => tally[1] += 1,
        Done::Delivery { orders, .. } => tally[2] += i64::try_from(orders.len())?,
        Done::RolledBack | Done::OrderStatus | Done::StockLevel => {}
    }
    Ok(())
}

/// Returns true if `found` has at most one transaction more than `expected`. A delivery has up to ten orders.
fn has_at_most_one_more(found: Tally, expected: Tally) -> bool {
    let more = [0, 1, 2].map(|kind| found[kind] - expected[kind]);
    matches!(more, [0 | 1, 0, 0] | [0, 1, 0] | [0, 0, 1..=10])
}

/// Judges the database of a killed child. `before` is the tally before the child. Returns the tally after it.
fn judge(pool: &Path, mode: Mode, done: &[Done], before: Tally) -> Result<Tally> {
    let pool = open_pool(pool)?;
    let opened = open(&pool, mode)?;
    let db = &opened.db;
    let verdict: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    ensure!(verdict == "ok", "integrity_check: {verdict}");
    consistency::check(db)?;
    let present = done.iter().map(|done| is_present(db, done)).collect::<Result<Vec<bool>>>()?;
    let prefix = present.iter().position(|present| !present).unwrap_or(done.len());
    let (mut expected, found) = (before, tally(db)?);
    for done in &done[..prefix] {
        add(&mut expected, done)?;
    }
    if let Some(missing) = done.get(prefix) {
        let is_lazy = mode.1 == Durability::AtCheckpoint;
        ensure!(is_lazy, "{missing:?}, report {prefix} of {}, is missing", done.len());
        let later = present[prefix..].iter().filter(|&&present| present).count();
        ensure!(later == 0, "{missing:?} is missing, but {later} later ones are present");
        // An unreported transaction is later than the missing one.
        ensure!(found == expected, "found {found:?} before {missing:?} instead of {expected:?}");
    }
    let is_right = has_at_most_one_more(found, expected);
    ensure!(is_right, "found {found:?}, but {expected:?} was reported");
    // The next child has another journal mode. A database in WAL mode would refuse it.
    if mode.0 == JournalMode::Wal {
        db.query_row("PRAGMA journal_mode = delete", [], |_| Ok(()))?;
    }
    drop(opened);
    pool.close()?;
    Ok(found)
}

/// Returns true if all rows of a reported transaction are present.
fn is_present(db: &Connection, done: &Done) -> Result<bool> {
    let ask = |query, parameters: &[&dyn rusqlite::ToSql]| -> Result<bool> {
        Ok(db.query_row(query, parameters, |row| row.get(0))?)
    };
    match done {
        Done::NewOrder { warehouse, district, order, lines } => ask(
            "SELECT count(*) FROM orders WHERE o_w_id = ?1 AND o_d_id = ?2 AND o_id = ?3
             AND o_ol_cnt = ?4 AND ?4 = (SELECT count(*) FROM order_line
             WHERE ol_w_id = ?1 AND ol_d_id = ?2 AND ol_o_id = ?3)",
            params![warehouse, district, order, lines],
        ),
        Done::Payment { history, amount } => ask(
            "SELECT count(*) FROM history WHERE h_id = ?1 AND h_amount = ?2",
            params![history, amount],
        ),
        Done::Delivery { warehouse, orders } => {
            orders.iter().try_fold(true, |all, (district, order)| {
                let query =
                    "SELECT count(*) FROM orders WHERE o_w_id = ?1 AND o_d_id = ?2 AND o_id = ?3
                         AND o_carrier_id IS NOT NULL";
                Ok(all && ask(query, params![warehouse, district, order])?)
            })
        }
        Done::RolledBack | Done::OrderStatus | Done::StockLevel => Ok(true),
    }
}

/// Plants a fault in the database of a child. Returns true if the database or the child has the fault.
fn spoil(pool: &Path, mode: Mode, done: &[Done], plant: Plant) -> Result<bool> {
    let last_payment = done.iter().rev().find_map(|done| match done {
        Done::Payment { history, .. } => Some(*history),
        _ => None,
    });
    let (statements, number) = match (plant, last_payment) {
        (Plant::Lazy, _) => return Ok(true),
        // The kill came before the first payment. A later round has a payment.
        (Plant::Lost, None) => return Ok(false),
        (Plant::Lost, Some(payment)) => (&UNDO_PAYMENT[..], payment),
        (Plant::Torn, _) => (&[TEAR_ORDER][..], 1),
    };
    let pool = open_pool(pool)?;
    let opened = open(&pool, mode)?;
    for statement in statements {
        ensure!(opened.db.execute(statement, [number])? == 1, "nothing to spoil: {statement}");
    }
    drop(opened);
    pool.close()?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_transaction_may_be_unreported() {
        let before = [10, 20, 5];
        for found in [before, [11, 20, 5], [10, 21, 5], [10, 20, 15]] {
            assert!(has_at_most_one_more(found, before), "{found:?}");
        }
        for found in [[11, 21, 5], [12, 20, 5], [10, 19, 5], [10, 20, 16]] {
            assert!(!has_at_most_one_more(found, before), "{found:?}");
        }
    }
}

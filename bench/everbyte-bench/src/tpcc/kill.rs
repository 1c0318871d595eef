//! Real crashes: a child process runs TPC-C on a pool in a file and reports its commits; it is
//! killed with SIGKILL in the midst of that, and the judge checks the database that it leaves.
//!
//! Afterwards these must hold: `integrity_check` and every consistency condition; every
//! acknowledged transaction is there, unless commits are durable with checkpoints only: then the
//! missing ones are the latest; and at most one unacknowledged transaction is there. Planted
//! faults, of the child and of the database that it leaves, show that the judge notices.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
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
use super::{Done, Moment, Scale, Until, consistency, load, run_watched};

const SCALE: Scale = Scale { warehouses: 2, shrink: 100 };
const VOLUME: &str = "tpcc";
const POOL_BYTES: u64 = 96 << 20;
const DATABASE_BYTES: u64 = 32 << 20;
const CACHE_MIB: u32 = 8;
/// Interval of the checkpoints of the child's pool.
const CHECKPOINT_INTERVAL: Duration = Duration::from_millis(5);
/// The longest time that a child lives after its first transaction.
const LIFE_MS_MAX: u64 = 60;
/// Time that a child that acknowledges early waits before it commits.
const EARLY: Duration = Duration::from_millis(2);
/// The signal that nobody can catch.
const SIGKILL: i32 = 9;
/// Rounds until the pool is made anew, lest the database grow and judging take long.
const ROUNDS_PER_POOL: u64 = 12;

/// Modes that alternate over the rounds.
const MODES: [(JournalMode, Durability); 6] = [
    (JournalMode::Batch, Durability::AtCommit),
    (JournalMode::Delete, Durability::AtCommit),
    (JournalMode::Wal, Durability::AtCommit),
    (JournalMode::Batch, Durability::AtCheckpoint),
    (JournalMode::Delete, Durability::AtCheckpoint),
    (JournalMode::Wal, Durability::AtCheckpoint),
];

/// Kills and judgements.
#[derive(clap::Args)]
pub(crate) struct KillArgs {
    /// Kills. With `--plant`, at most so many until the fault is noticed.
    #[arg(long, default_value_t = 12)]
    rounds: u64,
    /// Folder for the pool; on tmpfs.
    #[arg(long, default_value = "/dev/shm", value_name = "FOLDER")]
    folder: PathBuf,
    /// Determines the database, the transactions, and how long children live.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A fault that must be noticed: the run fails unless it is.
    #[arg(long, value_enum)]
    plant: Option<Plant>,
}

/// A planted fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Plant {
    /// A payment that was acknowledged is undone, without a trace, before the judge comes.
    Lost,
    /// A line of an order is removed.
    Torn,
    /// The child acknowledges before it commits.
    Early,
    /// The child takes commits for durable that are not yet.
    Lazy,
}

impl Plant {
    /// Words of the judgement that there must be of it.
    fn expected(self) -> &'static str {
        match self {
            Self::Torn => "consistency condition 4: ",
            Self::Lost | Self::Early | Self::Lazy => ", acknowledged as number ",
        }
    }
}

/// The child's part.
#[derive(clap::Args)]
pub(crate) struct ChildArgs {
    pool: PathBuf,
    mode: usize,
    seed: u64,
    #[arg(long, value_enum)]
    plant: Option<Plant>,
}

/// Runs transactions until it is killed, and says after each that it is there.
///
/// # Errors
/// All but death.
pub(crate) fn child(args: &ChildArgs) -> Result<()> {
    let (journal, mut durability) = *MODES.get(args.mode).context("there is no such mode")?;
    let lazy = args.plant == Some(Plant::Lazy);
    if lazy {
        durability = Durability::AtCheckpoint;
    }
    let pool = open_pool(&args.pool)?;
    // A checkpoint could make durable in time what the child took for durable.
    let _timer = (!lazy).then(|| pool.start_timer(CHECKPOINT_INTERVAL)).transpose()?;
    let mut opened = open(&pool, journal, durability)?;
    let early = args.plant == Some(Plant::Early);
    let mut out = io::stdout().lock();
    let mut watch = |moment, done: &Done| {
        let acknowledges = if early { Moment::Ending } else { Moment::Ended };
        let Some(line) = acknowledgement(done).filter(|_| moment == acknowledges) else {
            return Ok(());
        };
        out.write_all(line.as_bytes())?;
        if early {
            std::thread::sleep(EARLY);
        }
        Ok(())
    };
    run_watched(&mut opened.db, &SCALE, args.seed, Until::Transactions(u64::MAX), &mut watch)?;
    Ok(())
}

/// Returns the child's acknowledgement of a transaction that changed something.
fn acknowledgement(done: &Done) -> Option<String> {
    match done {
        Done::NewOrder { warehouse, district, order, lines } => {
            Some(format!("order {warehouse} {district} {order} {lines}\n"))
        }
        Done::Payment { history, amount } => Some(format!("payment {history} {amount}\n")),
        Done::Delivery { warehouse, orders } if !orders.is_empty() => {
            let orders = orders.iter().map(|(district, order)| format!(" {district} {order}"));
            Some(format!("delivery {warehouse}{}\n", orders.collect::<String>()))
        }
        Done::RolledBack | Done::OrderStatus | Done::StockLevel | Done::Delivery { .. } => None,
    }
}

/// Understands it again.
fn acknowledged(line: &str) -> Result<Done> {
    let mut words = line.split(' ');
    let what = words.next();
    let numbers = words.map(str::parse).collect::<Result<Vec<i64>, _>>();
    let numbers = numbers.with_context(|| format!("the child said {line:?}"))?;
    let done = match (what, numbers.as_slice()) {
        (Some("order"), &[warehouse, district, order, lines]) => Done::NewOrder {
            warehouse: warehouse.try_into()?,
            district: district.try_into()?,
            order,
            lines: lines.try_into()?,
        },
        (Some("payment"), &[history, amount]) => {
            Done::Payment { history, amount: amount.try_into()? }
        }
        (Some("delivery"), [warehouse, orders @ ..]) => Done::Delivery {
            warehouse: (*warehouse).try_into()?,
            orders: orders
                .as_chunks()
                .0
                .iter()
                .map(|&[district, order]| Ok((district.try_into()?, order)))
                .collect::<Result<_>>()?,
        },
        _ => bail!("the child said {line:?}"),
    };
    Ok(done)
}

/// Kills children and judges what they leave.
///
/// # Errors
/// A judgement, unless a fault was planted: then its absence.
pub(crate) fn rounds(args: &KillArgs) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("everbyte-tpcc.").tempdir_in(&args.folder);
    let folder = folder.with_context(|| format!("cannot use {}", args.folder.display()))?;
    let (prepared, pool) = (folder.path().join("prepared"), folder.path().join("pool"));
    prepare(&prepared, args.seed)?;
    let mut rng = SmallRng::seed_from_u64(args.seed);
    let (mut there, mut acknowledged) = (Tally::default(), 0);
    let mut out = io::stdout().lock();
    for round in 0..args.rounds {
        let index = usize::try_from(round)? % MODES.len();
        let (journal, durability) = MODES[index];
        // Only those that are durable at once can be too early.
        let plant = args
            .plant
            .filter(|plant| durability == Durability::AtCommit || matches!(plant, Plant::Torn));
        if round % ROUNDS_PER_POOL == 0 {
            fs::copy(&prepared, &pool)?;
            let opened = open_pool(&pool)?;
            there = Tally::of(&open(&opened, JournalMode::Batch, Durability::AtCommit)?.db)?;
        }
        let life = Duration::from_millis(rng.random_range(0..LIFE_MS_MAX));
        let told = kill_a_child(&pool, index, rng.random(), life, plant)?;
        acknowledged += told.len();
        let planted = match plant {
            Some(plant) => spoil(&pool, (journal, durability), &told, plant)?.then_some(plant),
            None => None,
        };
        let judged = judge(&pool, journal, durability, &told, there);
        let judged = judged.with_context(|| format!("round {round}, {journal:?} {durability:?}"));
        there = match (judged, planted) {
            (Ok(_), Some(plant @ (Plant::Lost | Plant::Torn))) => {
                bail!("the judge did not notice that {plant:?} was planted, in round {round}")
            }
            (Ok(tally), _) => tally,
            (Err(error), Some(plant)) if format!("{error:#}").contains(plant.expected()) => {
                return Ok(writeln!(out, "the planted fault was noticed: {error:#}")?);
            }
            (Err(error), _) => return Err(error),
        };
    }
    if let Some(plant) = args.plant {
        bail!("the judge did not notice that {plant:?} was planted, in {} rounds", args.rounds);
    }
    writeln!(
        out,
        "{} rounds of kill -9, {acknowledged} transactions acknowledged, none lost, none torn",
        args.rounds
    )?;
    Ok(())
}

fn prepare(path: &Path, seed: u64) -> Result<()> {
    let source = new_source(None)?;
    load(&source, &SCALE, seed)?;
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

fn open(pool: &Arc<Pool<Mapped>>, journal: JournalMode, durability: Durability) -> Result<Opened> {
    let place = Place::Device(Arc::new(BlockVolume::open(pool, VOLUME)?));
    place.open(&Setting { journal, durability, cache_mib: CACHE_MIB })
}

/// Runs a child and kills it after `life`. Returns the transactions that it acknowledged.
fn kill_a_child(
    pool: &Path,
    mode: usize,
    seed: u64,
    life: Duration,
    plant: Option<Plant>,
) -> Result<Vec<Done>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("tpcc-child").arg(pool).args([mode.to_string(), seed.to_string()]);
    if let Some(value) = plant.and_then(|plant| plant.to_possible_value()) {
        command.args(["--plant", value.get_name()]);
    }
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot start a child")?;
    let said = listen(&mut child, life);
    // Whatever was said, the child must be gone; it may be already.
    let killed = child.kill();
    let rest = said.and_then(|(first, said)| {
        let rest = said.lines().map(|line| acknowledged(&line?));
        std::iter::once(acknowledged(&first)).chain(rest).collect()
    });
    let status = child.wait()?;
    killed?;
    let told = rest.with_context(|| format!("the child ended with {status}"))?;
    ensure!(status.signal() == Some(SIGKILL), "the child ended by itself, with {status}");
    Ok(told)
}

/// Waits for a child's first words, and as long as it may live after them.
fn listen(child: &mut Child, life: Duration) -> Result<(String, BufReader<ChildStdout>)> {
    let mut said = BufReader::new(child.stdout.take().context("a child without output")?);
    let mut first = String::new();
    said.read_line(&mut first)?;
    ensure!(!first.is_empty(), "the child died before its first transaction");
    std::thread::sleep(life);
    Ok((first.trim_end().to_owned(), said))
}

/// Number of transactions of each kind that changes something.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Tally {
    orders: i64,
    payments: i64,
    /// Orders that were delivered, of which one transaction does several.
    delivered: i64,
}

impl Tally {
    fn of(db: &Connection) -> Result<Self> {
        let count = |query| db.query_row(query, [], |row| row.get(0));
        Ok(Self {
            orders: count("SELECT count(*) FROM orders")?,
            payments: count("SELECT count(*) FROM history")?,
            delivered: count("SELECT count(*) FROM orders WHERE o_carrier_id IS NOT NULL")?,
        })
    }

    fn add(&mut self, done: &Done) -> Result<()> {
        match done {
            Done::NewOrder { .. } => self.orders += 1,
            Done::Payment { .. } => self.payments += 1,
            Done::Delivery { orders, .. } => self.delivered += i64::try_from(orders.len())?,
            Done::RolledBack | Done::OrderStatus | Done::StockLevel => {}
        }
        Ok(())
    }

    /// Returns true if `self` is `before` and perhaps one transaction more.
    fn is_at_most_one_after(&self, before: &Self) -> bool {
        let more = [
            self.orders - before.orders,
            self.payments - before.payments,
            self.delivered - before.delivered,
        ];
        matches!(more, [0 | 1, 0, 0] | [0, 1, 0] | [0, 0, 1..=10])
    }
}

/// Judges what a child left in the pool where there was `before`. Returns what is there now.
fn judge(
    pool: &Path,
    journal: JournalMode,
    durability: Durability,
    told: &[Done],
    before: Tally,
) -> Result<Tally> {
    let pool = open_pool(pool)?;
    let opened = open(&pool, journal, durability)?;
    let db = &opened.db;
    let verdict: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    ensure!(verdict == "ok", "integrity_check: {verdict}");
    consistency::check(db)?;
    let there = told.iter().map(|done| is_there(db, done)).collect::<Result<Vec<bool>>>()?;
    let first_missing = there.iter().position(|there| !there).unwrap_or(told.len());
    let (mut expected, found) = (before, Tally::of(db)?);
    for done in &told[..first_missing] {
        expected.add(done)?;
    }
    let all_there = first_missing == told.len();
    if !all_there {
        let missing = &told[first_missing];
        let later = there[first_missing..].iter().filter(|&&there| there).count();
        ensure!(
            durability == Durability::AtCheckpoint,
            "{missing:?}, acknowledged as number {first_missing} of {}, is missing",
            told.len()
        );
        ensure!(later == 0, "{missing:?} is missing, but {later} later ones are there");
        ensure!(found == expected, "there is {found:?}; up to {missing:?}, {expected:?} was done");
    }
    ensure!(
        found.is_at_most_one_after(&expected),
        "there is {found:?}; {expected:?} was acknowledged"
    );
    // The next child has another mode, which a database in WAL mode would not let it have.
    if journal == JournalMode::Wal {
        db.query_row("PRAGMA journal_mode = delete", [], |_| Ok(()))?;
    }
    drop(opened);
    pool.close()?;
    Ok(found)
}

/// Returns true if everything of an acknowledged transaction is there.
fn is_there(db: &Connection, done: &Done) -> Result<bool> {
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
            for (district, order) in orders {
                let delivered = ask(
                    "SELECT count(*) FROM orders WHERE o_w_id = ?1 AND o_d_id = ?2 AND o_id = ?3
                     AND o_carrier_id IS NOT NULL",
                    params![warehouse, district, order],
                )?;
                if !delivered {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        Done::RolledBack | Done::OrderStatus | Done::StockLevel => Ok(true),
    }
}

/// Plants a fault in what a child left. Returns true if it is there: those of the child are already.
fn spoil(
    pool: &Path,
    (journal, durability): (JournalMode, Durability),
    told: &[Done],
    plant: Plant,
) -> Result<bool> {
    let change = match plant {
        Plant::Lost => lose_a_payment,
        Plant::Torn => tear_an_order,
        Plant::Early | Plant::Lazy => return Ok(true),
    };
    let pool = open_pool(pool)?;
    let opened = open(&pool, journal, durability)?;
    let is_planted = change(&opened.db, told)?;
    drop(opened);
    pool.close()?;
    Ok(is_planted)
}

/// Undoes the last payment that was acknowledged so that the database is consistent. False if there is none.
fn lose_a_payment(db: &Connection, told: &[Done]) -> Result<bool> {
    let last = told.iter().rev().find_map(|done| match done {
        Done::Payment { history, .. } => Some(*history),
        _ => None,
    });
    // A child may have been killed before its first payment; another round will have one.
    let Some(history) = last else { return Ok(false) };
    for statement in [
        "UPDATE warehouse SET w_ytd = w_ytd - h_amount FROM history
         WHERE h_id = ?1 AND w_id = h_w_id",
        "UPDATE district SET d_ytd = d_ytd - h_amount FROM history
         WHERE h_id = ?1 AND d_w_id = h_w_id AND d_id = h_d_id",
        "UPDATE customer SET c_balance = c_balance + h_amount,
         c_ytd_payment = c_ytd_payment - h_amount FROM history
         WHERE h_id = ?1 AND c_w_id = h_c_w_id AND c_d_id = h_c_d_id AND c_id = h_c_id",
        "DELETE FROM history WHERE h_id = ?1",
    ] {
        ensure!(db.execute(statement, [history])? == 1, "payment {history} cannot be undone");
    }
    Ok(true)
}

/// Removes a line of the newest order of a district.
fn tear_an_order(db: &Connection, _: &[Done]) -> Result<bool> {
    let removed = db.execute(
        "DELETE FROM order_line WHERE ol_w_id = 1 AND ol_d_id = 1 AND ol_number = 1 AND ol_o_id =
         (SELECT max(ol_o_id) FROM order_line WHERE ol_w_id = 1 AND ol_d_id = 1)",
        [],
    )?;
    ensure!(removed == 1, "there is no line to remove");
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_are_parsed() {
        for done in [
            Done::NewOrder { warehouse: 1, district: 2, order: 3, lines: 4 },
            Done::Payment { history: 5, amount: 6 },
            Done::Delivery { warehouse: 7, orders: vec![(1, 8), (3, 9)] },
        ] {
            let line = acknowledgement(&done).unwrap();
            assert_eq!(acknowledged(line.trim_end()).unwrap(), done);
        }
        assert_eq!(acknowledgement(&Done::Delivery { warehouse: 1, orders: vec![] }), None);
        for line in ["", "order", "order 1 2 3", "payment 1 x", "delivery", "sale 1"] {
            assert!(acknowledged(line).is_err(), "{line}");
        }
    }

    #[test]
    fn one_transaction_may_be_unacknowledged() {
        let before = Tally { orders: 10, payments: 20, delivered: 5 };
        assert!(before.is_at_most_one_after(&before));
        assert!(Tally { orders: 11, ..before }.is_at_most_one_after(&before));
        assert!(Tally { payments: 21, ..before }.is_at_most_one_after(&before));
        assert!(Tally { delivered: 15, ..before }.is_at_most_one_after(&before));
        assert!(!Tally { orders: 11, payments: 21, ..before }.is_at_most_one_after(&before));
        assert!(!Tally { orders: 12, ..before }.is_at_most_one_after(&before));
        assert!(!Tally { payments: 19, ..before }.is_at_most_one_after(&before));
        assert!(!Tally { delivered: 16, ..before }.is_at_most_one_after(&before));
    }
}

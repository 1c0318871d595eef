//! `everbyte-bench tpcc`: one place and journal mode, by hand.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use everbyte_block::{BlockOptions, BlockVolume, kinds};
use everbyte_media::{Mapped, MediaOptions};
use everbyte_pool::{CheckpointTimer, OpenOptions, Pool};
use everbyte_sqlite::{Activity, Durability, volume_bytes};
use rusqlite::Connection;
use serde::Serialize;

use super::driver::as_ns;
use super::place::{JournalMode, Place, Setting, database_bytes, new_source};
use super::{Outcome, Scale, Until, consistency, load, run};
use crate::measure::thread_cpu;
use crate::stats::as_f64;
use crate::subjects::floor::{nameless_file, touch};

/// Interval of the pool's checkpoints, the server's default.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(5);
/// Bytes of a pool besides twice the database: space for new orders, and its own structures.
const POOL_EXTRA_BYTES: u64 = 1 << 30;
const POOL: &str = "pool";

/// TPC-C on SQLite in one place.
#[derive(clap::Args)]
pub(crate) struct TpccArgs {
    /// Warehouses; each takes about 70 MiB.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    warehouses: u32,
    /// Divide the number of items, stocks, customers and orders by this; only 1 is TPC-C.
    #[arg(long, default_value_t = 1, value_name = "DIVISOR",
          value_parser = clap::value_parser!(u32).range(1..=300))]
    scale: u32,
    /// Seconds to measure.
    #[arg(long, default_value_t = 5.0, conflicts_with = "transactions")]
    seconds: f64,
    /// Transactions to measure.
    #[arg(long)]
    transactions: Option<u64>,
    /// Seconds to run before that.
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    warm_up: f64,
    /// "pool" for a volume of a new pool, through everbyte-sqlite; or a directory, through SQLite's
    /// own file system.
    #[arg(long, default_value = POOL)]
    place: PathBuf,
    /// SQLite's way to commit.
    #[arg(long, value_enum, default_value = "batch")]
    journal: JournalMode,
    /// Moment from which commits are durable.
    #[arg(long, value_enum, default_value = "commit")]
    durability: DurabilityArg,
    /// SQLite's page cache.
    #[arg(long, default_value_t = 64, value_name = "MIB")]
    cache: u32,
    /// The volume's log; by default one that suits its size.
    #[arg(long, value_name = "MIB")]
    log: Option<u64>,
    /// Folder for the pool's file; on tmpfs, or on SCM.
    #[arg(long, default_value = "/dev/shm", value_name = "FOLDER")]
    folder: PathBuf,
    /// A loaded database: used if the file is there, else made.
    #[arg(long, value_name = "FILE")]
    template: Option<PathBuf>,
    /// Determines the database and the transactions.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Check clause 3.3.2 afterwards.
    #[arg(long)]
    check: bool,
    /// Write the result as JSON.
    #[arg(long)]
    json: bool,
}

/// As [`Durability`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum DurabilityArg {
    /// When they return.
    Commit,
    /// With the next checkpoint.
    Checkpoint,
}

/// The JSON report.
#[derive(Serialize)]
struct Report {
    suite: &'static str,
    scale: Scale,
    place: PathBuf,
    journal: JournalMode,
    durability: DurabilityArg,
    cache_mib: u32,
    seed: u64,
    database_bytes: u64,
    /// Making the database, or opening its template.
    load_s: f64,
    /// Copying it to its place.
    copy_s: f64,
    /// Making the last transactions durable, which is part of the time measured.
    settle_s: f64,
    tpmc: f64,
    tpmc_of_cpu: f64,
    transactions_per_s: f64,
    outcome: Outcome,
    batches_committed: Option<u64>,
    batches_refused: Option<u64>,
    debug_build: bool,
}

/// Runs it.
///
/// # Errors
/// The first failure.
pub(crate) fn tpcc(args: &TpccArgs) -> Result<()> {
    let scale = Scale { warehouses: args.warehouses, shrink: args.scale };
    let started = Instant::now();
    let source = source(args, &scale)?;
    let load_s = started.elapsed().as_secs_f64();
    let database_bytes = database_bytes(&source)?;
    let bench = TpccPool::at(&args.place, &args.folder, database_bytes, args.log)?;
    let place = match &bench {
        Some(pool) => Place::Device(Arc::clone(&pool.volume) as _),
        None => Place::Directory(args.place.clone()),
    };
    let started = Instant::now();
    place.fill(&source)?;
    drop(source);
    let copy_s = started.elapsed().as_secs_f64();
    let durability = match args.durability {
        DurabilityArg::Commit => Durability::AtCommit,
        DurabilityArg::Checkpoint => Durability::AtCheckpoint,
    };
    let setting = Setting { journal: args.journal, durability, cache_mib: args.cache };
    let mut opened = place.open(&setting)?;
    let warm_up = Duration::try_from_secs_f64(args.warm_up).context("--warm-up")?;
    run(&mut opened.db, &scale, args.seed ^ 1, Until::Duration(warm_up))?;
    let until = match args.transactions {
        Some(count) => Until::Transactions(count),
        None => Until::Duration(Duration::try_from_secs_f64(args.seconds).context("--seconds")?),
    };
    place.settle()?;
    let mut outcome = run(&mut opened.db, &scale, args.seed, until)?;
    let (started, cpu_before) = (Instant::now(), thread_cpu());
    place.settle()?;
    let settled = started.elapsed();
    outcome.elapsed_ns += as_ns(settled);
    outcome.cpu_ns += as_ns(thread_cpu().saturating_sub(cpu_before));
    if args.check {
        consistency::check(&opened.db)?;
    }
    let activity = opened.activity()?;
    let count = |of: fn(Activity) -> u64| activity.map(of);
    report(
        args,
        &Report {
            suite: "tpcc",
            scale,
            place: args.place.clone(),
            journal: args.journal,
            durability: args.durability,
            cache_mib: args.cache,
            seed: args.seed,
            database_bytes,
            load_s,
            copy_s,
            settle_s: settled.as_secs_f64(),
            tpmc: outcome.tpmc(),
            tpmc_of_cpu: outcome.tpmc_of_cpu(),
            transactions_per_s: as_f64(outcome.transactions) * 1e9
                / as_f64(outcome.elapsed_ns.max(1)),
            outcome,
            batches_committed: count(|activity| activity.batches_committed),
            batches_refused: count(|activity| activity.batches_refused),
            debug_build: cfg!(debug_assertions),
        },
    )
}

fn report(args: &TpccArgs, report: &Report) -> Result<()> {
    let mut out = io::stdout().lock();
    if args.json {
        return Ok(writeln!(out, "{}", serde_json::to_string_pretty(report)?)?);
    }
    writeln!(
        out,
        "{} {:?} {:?}: {:.0} tpmC ({:.0} of processor time), {:.0} transactions/s, {} new orders, {} rolled back\n\
         {} warehouses / {}, {} MiB, loaded in {:.1} s, copied in {:.1} s",
        report.place.display(),
        report.journal,
        report.durability,
        report.tpmc,
        report.tpmc_of_cpu,
        report.transactions_per_s,
        report.outcome.new_orders,
        report.outcome.aborted,
        report.scale.warehouses,
        report.scale.shrink,
        report.database_bytes >> 20,
        report.load_s,
        report.copy_s,
    )?;
    if let (Some(committed), Some(refused)) = (report.batches_committed, report.batches_refused) {
        writeln!(out, "{committed} batches committed, {refused} refused")?;
    }
    Ok(())
}

/// A loaded database.
fn source(args: &TpccArgs, scale: &Scale) -> Result<Connection> {
    if let Some(path) = args.template.as_deref().filter(|path| path.exists()) {
        let db = Connection::open(path)?;
        let count =
            |table| db.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0));
        let found: [u32; 2] = [count("warehouse")?, count("item")?];
        if found != [scale.warehouses, scale.items()] {
            bail!("{} has {} warehouses and {} items", path.display(), found[0], found[1]);
        }
        return Ok(db);
    }
    let db = new_source(args.template.as_deref())?;
    load(&db, scale, args.seed)?;
    Ok(db)
}

/// A pool with one volume for a database, and its background thread. Flushes are made although
/// the memory may be volatile.
pub(crate) struct TpccPool {
    pub(crate) volume: Arc<BlockVolume<Mapped>>,
    _timer: CheckpointTimer,
    _file: File,
}

impl TpccPool {
    /// Makes one for a database of so many bytes, in a file without a name.
    ///
    /// # Errors
    /// The pool's, the system's.
    pub(crate) fn new(folder: &Path, database_bytes: u64, options: &BlockOptions) -> Result<Self> {
        let len = 2 * database_bytes + POOL_EXTRA_BYTES;
        let file = nameless_file(folder, len)?;
        let medium = Mapped::from_file(&file, &MediaOptions::new().force_flush(true))?;
        touch(&medium, 0, len)?;
        Pool::format(&medium, 4, [9; 16])?;
        let pool = Pool::open(Arc::new(medium), kinds(), &OpenOptions::default())?;
        let pool = Arc::new(pool);
        let timer = pool.start_timer(CHECKPOINT_INTERVAL).context("no checkpoint thread")?;
        let volume = BlockVolume::create(&pool, "tpcc", volume_bytes(len), options)?;
        Ok(Self { volume: Arc::new(volume), _timer: timer, _file: file })
    }

    fn at(
        place: &Path,
        folder: &Path,
        database_bytes: u64,
        log_mib: Option<u64>,
    ) -> Result<Option<Self>> {
        if place != Path::new(POOL) {
            return Ok(None);
        }
        let log_bytes = log_mib.map(|mib| mib << 20);
        let options = BlockOptions { log_bytes, ..BlockOptions::default() };
        Self::new(folder, database_bytes, &options).map(Some)
    }
}

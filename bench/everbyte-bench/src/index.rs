//! `everbyte-bench index`: the indexes over inode tables, each alone.
//!
//! Invariants: a round measures every index once, on a new file system in memory of its own; a round's
//! order of tables is the same for all. What is looked up are real inode tables, so the memory of a
//! table that was found costs what it does in a file system.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use everbyte_fs::{FileSystem, FsOptions, IndexKind, kinds};
use everbyte_media::{BLOCK_U64, Counters, Mapped, MediaOptions, Medium, PoolOffset};
use everbyte_pool::{OpenOptions, Pool};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use crate::environment::Environment;
use crate::publish::{self, Output};
use crate::rows::{Results, Row, metric};
use crate::stats::{as_f64, summarise};

/// Rounds and tables of a smoke test.
const QUICK_ROUNDS: usize = 2;
const QUICK_TABLES: u64 = 600;
/// Inodes of a table of 4 KiB, and the place of the first in it.
const TABLE_INODES: u64 = 15;
const FIRST_INODE_AT: u64 = 256;
/// Bytes of memory beside the tables: index, log, and what the pool needs itself.
const OTHER_BYTES: u64 = 192 << 20;
const LOG_BYTES: u64 = 64 << 20;
/// Look-ups for each table.
const LOOKUPS: usize = 10;

/// Measures the indexes over inode tables alone: adding a table, looking up tables in random order, and a
/// chain of look-ups in which each inode says the next one.
///
/// Every index runs in this process, in anonymous memory with the flushes that persistent memory needs. Adding
/// a table includes all that goes with it: its head, the log, the fence, checkpoints.
#[derive(clap::Args)]
pub(crate) struct IndexArgs {
    /// A smoke test of a second. Its figures mean nothing.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: Output,
    /// Rounds; figures are medians over them.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeats: u16,
    /// Inode tables of 4 KiB, which take that much memory each.
    #[arg(long, default_value_t = 80_000, value_parser = clap::value_parser!(u64).range(2..=10_000_000))]
    tables: u64,
    /// Sizes of nodes in bytes, from 64 to 4096, at which the trees are measured; by default each at the
    /// size that suits it.
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    node_bytes: Vec<u32>,
}

/// An index, or an array of addresses in DRAM, below which no index can come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Subject {
    kind: Option<IndexKind>,
    node_bytes: Option<u32>,
}

impl Subject {
    /// The array first, then every index, at every size if there are sizes.
    fn all(node_bytes: &[u32]) -> Vec<Self> {
        let mut all = vec![Self { kind: None, node_bytes: None }];
        for kind in IndexKind::ALL {
            if !kind.is_tree() || node_bytes.is_empty() {
                all.push(Self { kind: Some(kind), node_bytes: None });
                continue;
            }
            let sizes = node_bytes.iter().map(|&bytes| Some(bytes));
            all.extend(sizes.map(|node_bytes| Self { kind: Some(kind), node_bytes }));
        }
        all
    }

    fn name(self) -> String {
        match (self.kind, self.node_bytes) {
            (None, _) => "floor".to_owned(),
            (Some(kind), None) => kind.name().to_owned(),
            (Some(kind), Some(bytes)) => format!("{} {bytes} B", kind.name()),
        }
    }
}

/// Figures of one subject in one round.
struct Sample {
    /// Nanoseconds to add a table, with what the medium and the log were asked to do for all of them; of an
    /// index.
    add: Option<(f64, Counters, u64)>,
    find_ns: f64,
    chain_ns: f64,
}

/// Order of a round: tables to look up, and after each table the next of one large circle.
struct Order {
    finds: Vec<u64>,
    next: Vec<u64>,
}

impl Order {
    fn new(tables: u64, round: usize) -> Self {
        let mut rng = SmallRng::seed_from_u64(round as u64);
        let mut circle: Vec<u64> = (0..tables).collect();
        circle.shuffle(&mut rng);
        let mut next = vec![0; circle.len()];
        for (&table, &after) in circle.iter().zip(circle.iter().cycle().skip(1)) {
            next[place(table)] = after;
        }
        let finds = (0..LOOKUPS * circle.len()).map(|_| rng.random_range(0..tables)).collect();
        Self { finds, next }
    }
}

fn place(table: u64) -> usize {
    usize::try_from(table).expect("every table is in memory")
}

fn per(count: usize, start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e9 / as_f64(count as u64)
}

/// An empty file system in memory of its own.
fn new_file_system(subject: Subject, tables: u64) -> Result<FileSystem<Mapped>> {
    let bytes = tables * BLOCK_U64 * 5 / 4 / BLOCK_U64 * BLOCK_U64 + OTHER_BYTES;
    let medium = Arc::new(Mapped::anonymous(bytes, &MediaOptions::new().force_flush(true))?);
    Pool::format(&*medium, 2, [1; 16])?;
    let capacity_blocks = bytes / BLOCK_U64;
    let pool = Arc::new(Pool::open(medium, kinds(), &OpenOptions { capacity_blocks })?);
    let options = FsOptions {
        index: subject.kind.unwrap_or_default(),
        index_node_bytes: subject.node_bytes,
        inodes_max: Some(tables * TABLE_INODES),
        log_bytes: Some(LOG_BYTES),
        lanes: 1,
        ..FsOptions::default()
    };
    Ok(FileSystem::create(&pool, "index", bytes, &options)?)
}

fn sample(subject: Subject, tables: u64, order: &Order) -> Result<Sample> {
    let fs = new_file_system(subject, tables)?;
    let medium = fs.volume().medium();
    let (before, log_before) = (medium.counters(), fs.volume().log_bytes());
    let start = Instant::now();
    (1..tables).try_for_each(|_| fs.add_inode_table())?;
    fs.sync()?;
    let ns = per(place(tables - 1), start);
    let counters = medium.counters().since(&before);
    let add = subject.kind.map(|_| (ns, counters, fs.volume().log_bytes() - log_before));
    let addresses = (0..tables).map(|table| fs.inode_table_at(table));
    let addresses = addresses.collect::<Result<Vec<PoolOffset>, _>>()?;
    for (at, &next) in addresses.iter().zip(&order.next) {
        medium.store_word(at.plus(FIRST_INODE_AT), next);
    }
    let (find_ns, chain_ns) = match subject.kind {
        None => look_up(medium, order, |table| Ok(addresses[place(table)]))?,
        Some(_) => look_up(medium, order, |table| Ok(fs.inode_table_at(table)?))?,
    };
    Ok(Sample { add, find_ns, chain_ns })
}

/// Nanoseconds of a look-up alone, and of one in a chain.
fn look_up(
    medium: &Mapped,
    order: &Order,
    find: impl Fn(u64) -> Result<PoolOffset>,
) -> Result<(f64, f64)> {
    let start = Instant::now();
    for &table in &order.finds {
        black_box(find(table)?);
    }
    let find_ns = per(order.finds.len(), start);
    let (start, mut table) = (Instant::now(), 0);
    for _ in 0..order.finds.len() {
        table = medium.load_word(find(table)?.plus(FIRST_INODE_AT));
    }
    let chain_ns = per(order.finds.len(), start);
    ensure!(table == 0, "the circle does not end where it began");
    Ok((find_ns, chain_ns))
}

/// The rows of one subject, beside the floor's samples of the same rounds.
fn rows_of(subject: &str, samples: &[Sample], floor: &[Sample], tables: u64) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut push = |workload: &str, metric, unit, (value, spread)| {
        let (subject, workload) = (subject.to_owned(), workload.to_owned());
        rows.push(Row { subject, workload, metric, value: Some(value), unit, spread, note: None });
    };
    let timed =
        |figures: Vec<f64>| summarise(&figures).map(|(median, spread)| (median, Some(spread)));
    if let Some(adds) = timed(samples.iter().filter_map(|s| Some(s.add?.0)).collect()) {
        push("add", metric::TIME, "ns", adds);
    }
    let mut lookups = |workload, ns: fn(&Sample) -> f64| {
        if let Some(figure) = timed(samples.iter().map(ns).collect()) {
            push(workload, metric::TIME, "ns", figure);
        }
        let ratios = samples.iter().zip(floor).map(|(own, floor)| ns(own) / ns(floor));
        if let Some(figure) = timed(ratios.collect()) {
            push(workload, metric::TO_FLOOR, "ratio", figure);
        }
    };
    lookups("find", |sample| sample.find_ns);
    lookups("chain", |sample| sample.chain_ns);
    let counts: Vec<_> = samples.iter().filter_map(|s| s.add).collect();
    let requests = as_f64(counts.len() as u64 * (tables - 1));
    let mut count = |metric, unit, of: fn(&Counters, u64) -> u64| {
        let sum: u64 = counts.iter().map(|(_, counters, log)| of(counters, *log)).sum();
        if !counts.is_empty() {
            push("add", metric, unit, (as_f64(sum) / requests, None));
        }
    };
    count("bytes_stored", "B/request", |counters, _| counters.bytes_stored);
    count("lines_stored", "1/request", |counters, _| counters.lines_stored);
    count("lines_flushed", "1/request", |counters, _| counters.lines_flushed);
    count("fences", "1/request", |counters, _| counters.fences);
    count("log_bytes", "B/request", |_, log| log);
    rows
}

/// Runs the suite.
///
/// # Errors
/// The first failure, or it is to stop.
pub(crate) fn index(args: &IndexArgs) -> Result<()> {
    let stop = publish::stop_flag()?;
    let progress = publish::progress_bar()?;
    let (rounds, tables) = match args.quick {
        true => (QUICK_ROUNDS, QUICK_TABLES),
        false => (usize::from(args.repeats), args.tables),
    };
    let subjects = Subject::all(&args.node_bytes);
    let mut samples: Vec<Vec<Sample>> = subjects.iter().map(|_| Vec::new()).collect();
    let mut environment = Environment::new(Path::new("/dev/shm"), tables * BLOCK_U64, rounds, 0.0);
    environment.medium = format!("anonymous memory, {tables} inode tables of 4 KiB");
    progress.inc_length((rounds * subjects.len()) as u64);
    for round in 0..rounds {
        let order = Order::new(tables, round);
        for (subject, samples) in subjects.iter().zip(&mut samples) {
            if stop.load(Ordering::Relaxed) {
                bail!("stopped");
            }
            progress.set_message(subject.name());
            let sample = sample(*subject, tables, &order);
            samples.push(sample.with_context(|| format!("measuring {}", subject.name()))?);
            progress.inc(1);
        }
    }
    let named = subjects.iter().zip(&samples);
    let rows = named.flat_map(|(subject, own)| rows_of(&subject.name(), own, &samples[0], tables));
    let results = Results { suite: "index", environment, rows: rows.collect() };
    progress.finish_and_clear();
    args.output.publish("Everbyte: indexes over inode tables", &results, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_meets_every_table_once() {
        let order = Order::new(50, 3);
        let mut met: Vec<u64> =
            std::iter::successors(Some(0), |&at| Some(order.next[place(at)])).take(50).collect();
        assert_eq!(order.next[place(met[49])], 0);
        met.sort_unstable();
        assert!(met.into_iter().eq(0..50));
    }

    #[test]
    fn every_index_has_figures_and_the_same_counts_in_every_round() {
        let subjects = Subject::all(&[64, 256]);
        assert_eq!(subjects.len(), 1 + 2 + 2 * 4);
        for subject in subjects {
            let samples: Vec<Sample> = (0..2)
                .map(|round| sample(subject, 200, &Order::new(200, round)).unwrap())
                .collect();
            let fences: Vec<_> = samples.iter().map(|s| s.add.map(|add| add.1.fences)).collect();
            assert_eq!(fences[0], fences[1]);
            let rows = rows_of(&subject.name(), &samples, &samples, 200);
            assert_eq!(rows.len(), if subject.kind.is_some() { 10 } else { 4 });
            assert!(rows.iter().all(|row| row.value.is_some_and(f64::is_finite)));
        }
    }
}

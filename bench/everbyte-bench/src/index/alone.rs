//! The indexes over inode tables, each alone: adding a table, finding tables, and chains of look-ups.
//!
//! Invariants: a round measures every index once, on a new file system in memory of its own; a round's
//! order of places is the same for all. What is looked up are real inode tables, so the memory of a
//! table that was found costs what it does in a file system. There is a place in every 4 KiB of the
//! tables, whatever their size.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use everbyte_fs::{FileSystem, IndexKind};
use everbyte_media::{BLOCK_U64, Mapped, Medium, PoolOffset};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::Settings;
use super::place::{Pages, Setting};
use super::sweeps::{sizes_of_tables_and_pages, sizes_title};
use crate::rows::{Row, exact, metric, timed};
use crate::stats::as_f64;
use crate::subject::Counts;
use crate::subjects::floor::medium_counts;

/// Inodes of a table of 4 KiB.
const TABLE_INODES: u64 = 15;
/// Offset of the place in each 4 KiB: that of its last inode, which no table's head reaches.
const PLACE_AT: u64 = TABLE_INODES * 256;
/// Bytes of memory beside the tables: index, log, and what the pool needs itself.
const OTHER_BYTES: u64 = 512 << 20;
/// Look-ups for each place.
const LOOKUPS: usize = 10;
/// An array of addresses in DRAM, below which no index can come.
const FLOOR: &str = "floor";

/// An index or the floor, on tables and pages of some size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Subject {
    setting: Setting,
    is_floor: bool,
}

/// Figures of one subject in one round.
struct Sample {
    /// Nanoseconds to add a table, with what the medium and the log were asked to do for all of them; of an
    /// index.
    add: Option<(f64, Counts)>,
    find_ns: f64,
    chain_ns: f64,
}

/// Order of a round: places to look up, and after each place the next of one large circle.
struct Order {
    finds: Vec<u64>,
    next: Vec<u64>,
}

impl Subject {
    /// On tables and pages of these sizes the floor first, then every index, and with `node_bytes`
    /// every size of nodes.
    fn all(
        indexes: &[IndexKind],
        node_bytes: &[u32],
        (large_tables, pages): (bool, Pages),
    ) -> Vec<Self> {
        let of = |index, node_bytes, is_floor| Self {
            setting: Setting { node_bytes, large_tables, pages, ..Setting::of(index) },
            is_floor,
        };
        let mut all = vec![of(IndexKind::default(), None, true)];
        for &index in indexes {
            all.push(of(index, None, false));
            if index.is_tree() {
                all.extend(node_bytes.iter().map(|&bytes| of(index, Some(bytes), false)));
            }
        }
        all
    }

    fn name(&self) -> String {
        let plain = Setting { large_tables: false, pages: Pages::Small, ..self.setting };
        if self.is_floor { FLOOR.to_owned() } else { plain.name() }
    }

    /// The name of a workload on these tables and pages.
    fn title(&self, workload: &str) -> String {
        sizes_title(workload, self.setting.large_tables, self.setting.pages)
    }

    /// Places in a table.
    fn places_of_table(&self) -> u64 {
        self.setting.table_bytes() / BLOCK_U64
    }
}

impl Order {
    fn new(places: u64, round: usize) -> Self {
        let mut rng = SmallRng::seed_from_u64(round as u64);
        let mut circle: Vec<u64> = (0..places).collect();
        circle.shuffle(&mut rng);
        let mut next = vec![0; circle.len()];
        for (&place, &after) in circle.iter().zip(circle.iter().cycle().skip(1)) {
            next[slot(place)] = after;
        }
        let finds = (0..LOOKUPS * circle.len()).map(|_| rng.random_range(0..places)).collect();
        Self { finds, next }
    }
}

fn slot(place: u64) -> usize {
    usize::try_from(place).expect("every place is in memory")
}

fn per(count: usize, start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e9 / as_f64(count as u64)
}

/// Offset of a place in its table.
fn in_table(subject: &Subject, place: u64) -> u64 {
    place % subject.places_of_table() * BLOCK_U64 + PLACE_AT
}

fn sample(subject: &Subject, order: &Order) -> Result<Sample> {
    let places = order.next.len() as u64;
    let tables = places.div_ceil(subject.places_of_table()).max(2);
    let table_bytes = subject.setting.table_bytes();
    let inodes = tables * (table_bytes / 256);
    let fs = subject
        .setting
        .file_system(inodes, tables * table_bytes * 5 / 4 / BLOCK_U64 * BLOCK_U64 + OTHER_BYTES)?;
    let medium = fs.volume().medium();
    let before = medium_counts(medium, fs.volume().log_bytes());
    let start = Instant::now();
    (1..tables).try_for_each(|_| fs.add_inode_table())?;
    fs.sync()?;
    let ns = per(slot(tables - 1), start);
    let counts = medium_counts(medium, fs.volume().log_bytes()).since(&before);
    let per_table = subject.places_of_table();
    let addresses = (0..places).map(|place| fs.inode_table_at(place / per_table));
    let addresses = addresses.collect::<Result<Vec<PoolOffset>, _>>()?;
    for (place, (at, &next)) in (0..).zip(addresses.iter().zip(&order.next)) {
        medium.store_word(at.plus(in_table(subject, place)), next);
    }
    let (find_ns, chain_ns) = match subject.is_floor {
        true => look_up(&fs, subject, order, |place| Ok(addresses[slot(place)]))?,
        false => look_up(&fs, subject, order, |place| Ok(fs.inode_table_at(place / per_table)?))?,
    };
    let add = (!subject.is_floor).then_some((ns, counts));
    Ok(Sample { add, find_ns, chain_ns })
}

/// Nanoseconds of a look-up alone, and of one in a chain.
fn look_up(
    fs: &FileSystem<Mapped>,
    subject: &Subject,
    order: &Order,
    find: impl Fn(u64) -> Result<PoolOffset>,
) -> Result<(f64, f64)> {
    let medium = fs.volume().medium();
    let start = Instant::now();
    for &place in &order.finds {
        black_box(find(place)?);
    }
    let find_ns = per(order.finds.len(), start);
    let (start, mut place) = (Instant::now(), 0);
    for _ in 0..order.finds.len() {
        place = medium.load_word(find(place)?.plus(in_table(subject, place)));
    }
    let chain_ns = per(order.finds.len(), start);
    ensure!(place == 0, "the circle does not end where it began");
    Ok((find_ns, chain_ns))
}

/// The rows of one subject, beside the floor's samples of the same rounds.
fn rows_of(subject: &Subject, samples: &[Sample], floor: &[Sample], tables: u64) -> Vec<Row> {
    let mut rows = Vec::new();
    let name = subject.name();
    let mut add = |workload: &str, metric, unit, figures: Vec<f64>| {
        rows.extend(timed(&name, &subject.title(workload), metric, unit, &figures));
    };
    add("add", metric::TIME, "ns", samples.iter().filter_map(|s| Some(s.add?.0)).collect());
    let mut lookups = |workload, ns: fn(&Sample) -> f64| {
        add(workload, metric::TIME, "ns", samples.iter().map(ns).collect());
        let ratios = samples.iter().zip(floor).map(|(own, floor)| ns(own) / ns(floor));
        add(workload, metric::TO_FLOOR, "ratio", ratios.collect());
    };
    lookups("find", |sample| sample.find_ns);
    lookups("chain", |sample| sample.chain_ns);
    let counts: Vec<Counts> = samples.iter().filter_map(|s| Some(s.add?.1)).collect();
    let added = counts.len() as u64 * (tables - 1);
    let sum = counts.into_iter().reduce(|sum, more| sum.plus(&more));
    for (metric, unit, mean) in sum.iter().flat_map(|sum| sum.means(added)) {
        rows.push(exact(&name, &subject.title("add"), metric, unit, mean));
    }
    rows
}

/// Measures every index on tables and pages of every size.
///
/// # Errors
/// The first failure, or it is to stop.
pub(super) fn run(settings: &Settings<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for sizes in sizes_of_tables_and_pages() {
        let is_plain = sizes == (false, Pages::Small);
        let node_bytes = if is_plain { &settings.node_bytes[..] } else { &[] };
        let subjects = Subject::all(&settings.indexes, node_bytes, sizes);
        let mut samples: Vec<Vec<Sample>> = subjects.iter().map(|_| Vec::new()).collect();
        settings.progress.inc_length((settings.rounds * subjects.len()) as u64);
        for round in 0..settings.rounds {
            let order = Order::new(settings.tables, round);
            for (subject, samples) in subjects.iter().zip(&mut samples) {
                settings.check_stop()?;
                settings.progress.set_message(subject.name());
                let sample = sample(subject, &order);
                samples.push(sample.with_context(|| format!("measuring {}", subject.name()))?);
                settings.progress.inc(1);
            }
        }
        for (subject, own) in subjects.iter().zip(&samples) {
            let tables = settings.tables.div_ceil(subject.places_of_table()).max(2);
            rows.extend(rows_of(subject, own, &samples[0], tables));
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_meets_every_place_once() {
        let order = Order::new(50, 3);
        let mut met: Vec<u64> =
            std::iter::successors(Some(0), |&at| Some(order.next[slot(at)])).take(50).collect();
        assert_eq!(order.next[slot(met[49])], 0);
        met.sort_unstable();
        assert!(met.into_iter().eq(0..50));
    }

    #[test]
    fn every_index_has_figures_and_the_same_counts_in_every_round() {
        for sizes in sizes_of_tables_and_pages() {
            for subject in Subject::all(&IndexKind::ALL, &[64, 256], sizes) {
                let samples: Vec<Sample> = (0..2)
                    .map(|round| sample(&subject, &Order::new(600, round)).unwrap())
                    .collect();
                let fences: Vec<_> =
                    samples.iter().map(|s| s.add.map(|add| add.1.fences)).collect();
                assert_eq!(fences[0], fences[1]);
                let rows = rows_of(&subject, &samples, &samples, 600);
                assert_eq!(rows.len(), if subject.is_floor { 4 } else { 10 });
                assert!(rows.iter().all(|row| row.value.is_some_and(f64::is_finite)));
            }
        }
    }
}

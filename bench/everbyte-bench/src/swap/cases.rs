//! The workloads of paging and their rows: access patterns, full spaces, FT and redis-server.

use super::access::Pattern;
use super::child::Outcome;
use super::flash;
use super::ft::Class;
use super::kernel::KERNEL_SWAPS_SOME;
use super::meter::Costs;
use super::serve::{self, Served};
use super::subjects::Subject;
use super::task::Load;
use super::words::PAGE;
use crate::driver::Rows;
use crate::rows::{Row, exact, metric};
use crate::stats::as_f64;

const THREADS: [usize; 2] = [1, 2];
/// Accesses for each page of the access patterns, and of a full space.
const ACCESSES_PER_PAGE: u64 = 3;
const CROWDED_ACCESSES_PER_PAGE: u64 = 8;
/// Slots of other owners in thousandths, for random stores.
const FILLS: [u64; 3] = [500, 990, 999];
/// Slots of other owners in thousandths, for FT.
const FT_FILL: u64 = 990;
/// Slots of a full space for each page of its region. Half of the pages can be in DRAM.
const SLOTS_PER_PAGE: u64 = 512;
/// DRAM of FT.B in the paper.
const PAPER_BYTES: u64 = 1000 << 20;

/// A workload with its limits and its subjects.
pub(super) struct Case {
    pub(super) title: String,
    pub(super) load: Load,
    pub(super) threads: usize,
    pub(super) dram_bytes: u64,
    /// Thousandths of the slots of a full space with other owners.
    pub(super) permille: u64,
    pub(super) subjects: Vec<Subject>,
}

/// Adds kernel swap if the run measures it.
fn and_kernel(with_kernel: bool, subjects: &[Subject], kinds: usize) -> Vec<Subject> {
    let kinds = if with_kernel { kinds } else { 0 };
    subjects.iter().copied().chain((0..kinds).map(Subject::Kernel)).collect()
}

/// Access patterns, half of the pages in DRAM.
pub(super) fn paging(with_kernel: bool, bytes: u64) -> Vec<Case> {
    let count = bytes / PAGE * ACCESSES_PER_PAGE;
    let mut cases = Vec::new();
    for pattern in Pattern::ALL {
        for (stores, threads) in [true, false].into_iter().flat_map(|s| THREADS.map(|t| (s, t))) {
            let mut subjects = and_kernel(with_kernel, &Subject::PAGING, KERNEL_SWAPS_SOME);
            // The paper's question: the cost of a slow medium with and without locality.
            if stores && matches!(pattern, Pattern::Random | Pattern::Sequential) {
                subjects.push(Subject::Flash);
            }
            let access = if stores { "stores" } else { "loads" };
            cases.push(Case {
                title: format!("paging: {} {access}, t{threads}", pattern.name()),
                load: Load::Touch { pattern, stores, bytes, warm: count / 4, count },
                threads,
                dram_bytes: bytes / 2,
                permille: 0,
                subjects,
            });
        }
    }
    cases
}

/// Random stores to a region in a nearly full space.
pub(super) fn crowded(slots: u64) -> Vec<Case> {
    let pages = (slots / SLOTS_PER_PAGE).max(256);
    let (bytes, count) = (pages * PAGE, pages * CROWDED_ACCESSES_PER_PAGE);
    let load = Load::Touch { pattern: Pattern::Random, stores: true, bytes, warm: count, count };
    let case = |permille| Case {
        title: format!("paging: random stores, swap {}.{}% full", permille / 10, permille % 10),
        load,
        threads: 1,
        dram_bytes: bytes / 2,
        permille,
        subjects: Subject::CROWDED.to_vec(),
    };
    FILLS.map(case).into()
}

/// FT by class, DRAM and threads.
pub(super) fn ft(with_kernel: bool, classes: &[Class]) -> Vec<Case> {
    let mut cases = Vec::new();
    for (&class, threads) in classes.iter().flat_map(|c| THREADS.map(|t| (c, t))) {
        let load = Load::Ft(class);
        let mut add = |dram: &str, dram_bytes, subjects| {
            let title = format!("FT.{class:?}, {dram} in DRAM, t{threads}");
            cases.push(Case { title, load, threads, dram_bytes, permille: FT_FILL, subjects });
        };
        // The floor: everything in DRAM.
        add("all", load.bytes(), vec![Subject::Dram]);
        for percent in [70, 50] {
            // Single settings change on class A, as in the paper.
            let is_tuned = (class, percent, threads) == (Class::A, 70, 1);
            let kinds =
                if is_tuned { super::kernel::KERNEL_SWAPS.len() } else { KERNEL_SWAPS_SOME };
            let mut subjects = and_kernel(with_kernel, &Subject::LIMITED, kinds);
            if class != Class::B && (percent, threads) == (70, 1) {
                subjects.extend(Subject::CROWDED);
            }
            // A limit counts whole pages.
            let dram_bytes = (load.bytes() * percent / 100).next_multiple_of(PAGE);
            add(&format!("{percent}%"), dram_bytes, subjects);
        }
        if class == Class::B {
            let subjects = and_kernel(with_kernel, &Subject::LIMITED, KERNEL_SWAPS_SOME);
            add(&format!("{} MiB", PAPER_BYTES >> 20), PAPER_BYTES, subjects);
        }
    }
    cases
}

/// redis-server in half of its memory. The run replaces the DRAM limit after the round in DRAM.
pub(super) fn serving(with_kernel: bool, bytes: u64) -> Vec<Case> {
    let load = Load::Serve { bytes };
    vec![Case {
        title: "serving: redis-server".to_owned(),
        load,
        threads: 1,
        dram_bytes: load.bytes(),
        permille: 0,
        subjects: and_kernel(with_kernel, &[Subject::Dram, Subject::Run], KERNEL_SWAPS_SOME),
    }]
}

/// Figure 2 of the paper as rows.
pub(super) fn published() -> [Row; 2] {
    let workload = format!("FT.B, {} MiB in DRAM, t1", PAPER_BYTES >> 20);
    [("paper-stock-swap", 1029.0), ("paper-slot-tree", 813.0)].map(|(subject, seconds)| Row {
        note: Some("as published: Xeon E5630, Linux 3.14.3, a DRAM-based SSD".to_owned()),
        ..exact(subject, &workload, "seconds", "s", seconds)
    })
}

impl Case {
    /// Adds the rows of one subject, or `why` if it has no outcome.
    pub(super) fn rows(
        &self,
        subject: Subject,
        outcomes: &[&Outcome],
        why: Option<&String>,
        rows: &mut Rows<'_>,
    ) {
        let costs: Vec<Costs> = outcomes.iter().map(|outcome| outcome.costs).collect();
        let served: Vec<&Served> = outcomes.iter().filter_map(|it| it.served.as_ref()).collect();
        match (self.load, why) {
            (Load::Serve { .. }, Some(why)) => {
                let skipped = |load| Row::skipped(rows.subject, &self.of_load(load), why.clone());
                rows.all.extend(serve::LOADS.map(skipped));
            }
            (_, Some(why)) => rows.all.push(Row::skipped(rows.subject, &self.title, why.clone())),
            (Load::Serve { .. }, None) => self.served(subject, &served, rows),
            (Load::Ft(_), None) => ft_rows(subject, &costs, rows),
            // Only full spaces have other owners.
            (Load::Touch { .. }, None) if self.permille > 0 => crowded_rows(&costs, rows),
            (Load::Touch { count, .. }, None) => touch_rows(subject, as_f64(count), &costs, rows),
        }
        if subject == Subject::Flash {
            let years = costs.iter().filter_map(|c| flash::lifetime_years(c.pages_out, c.wall_ns));
            rows.timed("flash_lifetime", "years", years);
        }
    }

    fn of_load(&self, load: &str) -> String {
        format!("{}, {load}", self.title)
    }

    fn served(&self, subject: Subject, served: &[&Served], rows: &mut Rows<'_>) {
        for (nth, load) in serve::LOADS.into_iter().enumerate() {
            let workload = self.of_load(load);
            let mut own = Rows::new(rows.subject, &workload);
            let loads = || served.iter().filter_map(|served| served.loads.get(nth));
            own.timed(metric::RATE, "1/s", loads().map(|load| load.per_second));
            own.timed("p99", "us", loads().map(|load| load.p99_us));
            rows.all.append(&mut own.all);
        }
        let workload = self.of_load("in all");
        let mut own = Rows::new(rows.subject, &workload);
        if subject.counts_pages() {
            let mib = served.iter().map(|served| as_f64(served.limit_bytes) / as_f64(1 << 20));
            own.timed("dram_limit", "MiB", mib);
            own.timed("pages_in", "", served.iter().map(|served| as_f64(served.pages_in)));
            own.timed("pages_out", "", served.iter().map(|served| as_f64(served.pages_out)));
        }
        own.timed("fork", "ms", served.iter().map(|served| served.fork_ms));
        own.timed("save", "ms", served.iter().map(|served| served.save_ms));
        rows.all.append(&mut own.all);
    }
}

/// Costs by access, and of a page in and out.
fn touch_rows(subject: Subject, accesses: f64, costs: &[Costs], rows: &mut Rows<'_>) {
    let mut each = |metric, unit, count: fn(&Costs) -> u64| {
        rows.timed(metric, unit, costs.iter().map(|costs| as_f64(count(costs)) / accesses));
    };
    each(metric::TIME, "ns", |costs| costs.wall_ns);
    each(metric::CPU, "ns", |costs| costs.cpu_ns());
    each("faults_per_access", "", |costs| costs.faults);
    if subject.counts_pages() {
        each("pages_in_per_access", "", |costs| costs.pages_in);
        each("pages_out_per_access", "", |costs| costs.pages_out);
    }
    if subject.is_region() {
        each("region_faults_per_access", "", |costs| costs.region_faults);
    }
    // In direct mode an access needs no page in DRAM.
    if subject.counts_pages() && subject != Subject::Direct {
        let mut of_page = |metric, ns: fn(&Costs) -> u64| {
            let paged = costs.iter().filter(|costs| costs.pages_in > 0);
            rows.timed(metric, "ns", paged.map(|c| as_f64(ns(c)) / as_f64(c.pages_in)));
        };
        of_page("cpu_per_page_in", |costs| costs.cpu_ns());
        of_page("process_cpu_per_page_in", |costs| costs.process_ns);
    }
}

/// Costs of a page, and the share of searches for slots.
fn crowded_rows(costs: &[Costs], rows: &mut Rows<'_>) {
    let mut each = |metric, unit, figure: fn(&Costs) -> f64| {
        // A short smoke test can page nothing, and a division by zero is no figure.
        let paged = costs.iter().filter(|costs| costs.pages_in > 0 && costs.pages_out > 0);
        rows.timed(metric, unit, paged.map(figure));
    };
    each(metric::TIME, "ns", |c| as_f64(c.wall_ns) / as_f64(c.pages_in));
    each("cpu_per_page_in", "ns", |c| as_f64(c.cpu_ns()) / as_f64(c.pages_in));
    each("slot_search_share", "%", |c| 100.0 * as_f64(c.slot_search_ns) / as_f64(c.cpu_ns()));
    each("slot_search", "ns", |c| as_f64(c.slot_search_ns) / as_f64(c.pages_out));
    each("slot_visits_per_page_out", "", |c| as_f64(c.slot_visits) / as_f64(c.pages_out));
}

fn ft_rows(subject: Subject, costs: &[Costs], rows: &mut Rows<'_>) {
    let mut each = |metric, unit, figure: fn(&Costs) -> f64| {
        rows.timed(metric, unit, costs.iter().map(figure));
    };
    each("seconds", "s", |costs| as_f64(costs.wall_ns) / 1e9);
    each(metric::CPU, "s", |costs| as_f64(costs.cpu_ns()) / 1e9);
    each("faults", "", |costs| as_f64(costs.faults + costs.region_faults));
    if subject.counts_pages() {
        each("pages_in", "", |costs| as_f64(costs.pages_in));
        each("pages_out", "", |costs| as_f64(costs.pages_out));
    }
    if subject.is_region() {
        let out = costs.iter().filter(|costs| costs.pages_out > 0);
        let visits = out.map(|costs| as_f64(costs.slot_visits) / as_f64(costs.pages_out));
        rows.timed("slot_visits_per_page_out", "", visits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dram_limits_have_a_row_of_their_rounds() {
        let outcome = |mib: u64| Outcome {
            served: Some(Served { limit_bytes: mib << 20, ..Served::default() }),
            ..Outcome::default()
        };
        let (one, other) = (outcome(3), outcome(5));
        let load = Load::Serve { bytes: 0 };
        let (title, subjects) = ("serving: redis-server".to_owned(), Vec::new());
        let case = Case { title, load, threads: 1, dram_bytes: 0, permille: 0, subjects };
        let mut rows = Rows::new("everbyte-run", &case.title);
        case.rows(Subject::Run, &[&one, &other], None, &mut rows);
        let limit = rows.all.iter().find(|row| row.metric == "dram_limit").unwrap();
        let spread = limit.spread.unwrap();
        assert_eq!([spread.min, spread.max, as_f64(spread.rounds as u64)], [3.0, 5.0, 2.0]);
    }
}

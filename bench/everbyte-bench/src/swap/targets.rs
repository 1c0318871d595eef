//! Targets and the paper's claims, each as a row with a verdict, from figures of the same run.
//!
//! Invariants: a verdict compares with the best setting of the kernel for that very figure; where figures are
//! missing there is no row. A ratio is the median of the rounds' ratios; where a round has no figure, it is that of
//! the medians.

use std::cmp::Ordering::Equal;

use crate::rows::{Results, Row, exact, metric, timed};

/// The subject of rows with verdicts.
pub(super) const SUBJECT: &str = "region";
/// The metric of rows with verdicts.
pub(super) const RATIO: &str = "ratio";
/// The metric of their bounds.
const RATIO_AT_MOST: &str = "ratio_at_most";

/// A bound.
#[derive(Clone, Copy, Debug)]
enum Bound {
    AtMost(f64),
    /// Told, and not judged.
    None,
}

/// A ratio of two figures.
struct Target {
    title: &'static str,
    workload: &'static str,
    metric: &'static str,
    /// Ours, and those of which the smallest figure counts.
    ours: &'static str,
    others: &'static [&'static str],
    bound: Bound,
}

const LOOP: &[&str] = &[
    "swap-loop",
    "swap-loop-cluster0",
    "swap-loop-swappiness1",
    "swap-loop-deadline",
    "swap-loop-tuned",
];
const ZRAM: &[&str] = &["swap-zram", "swap-zram-cluster0", "swap-zram-swappiness1"];
const STOCK: &[&str] = &["swap-loop"];
const RANDOM: &str = "paging: random stores, t1";
const RANDOM_2: &str = "paging: random stores, t2";
const SEQUENTIAL: &str = "paging: sequential stores, t1";
const ZIPF_2: &str = "paging: zipf stores, t2";
const FT_A: &str = "FT.A, 70% in DRAM, t1";
const FT_B: &str = "FT.B, 70% in DRAM, t1";
/// FT as the paper ran it.
pub(super) const PAPER: &str = "FT.B, 1000 MiB in DRAM, t1";
const HALF: &str = "50.0% full, random frees, t1";
const FULL: &str = "99.9% full, random frees, t1";
const CPU: &str = super::paging::CPU_PER_PAGE;
const SECONDS: &str = super::solving::SECONDS;

const fn target(
    title: &'static str,
    (workload, metric): (&'static str, &'static str),
    others: &'static [&'static str],
    bound: Bound,
) -> Target {
    Target { title, workload, metric, ours: SUBJECT, others, bound }
}

const fn ways(title: &'static str, ours: &'static str, bound: Bound) -> Target {
    let others = &["linux-3.14-linear"];
    Target { title, workload: FULL, metric: metric::TIME, ours, others, bound }
}

const fn setting(title: &'static str, ours: &'static str) -> Target {
    Target { title, workload: FT_A, metric: SECONDS, ours, others: STOCK, bound: Bound::None }
}

const TARGETS: [Target; 20] = [
    target("random page in and out, processor time to loop", (RANDOM, CPU), LOOP, AT_MOST_065),
    target("random page in and out, processor time to zram", (RANDOM, CPU), ZRAM, AT_MOST_065),
    target(
        "sequential page in and out, processor time to loop",
        (SEQUENTIAL, CPU),
        LOOP,
        AT_MOST_03,
    ),
    target(
        "sequential page in and out, processor time to zram",
        (SEQUENTIAL, CPU),
        ZRAM,
        AT_MOST_03,
    ),
    target("random stores of two threads, time to loop", (RANDOM_2, metric::TIME), LOOP, FASTER_15),
    target("random stores of two threads, time to zram", (RANDOM_2, metric::TIME), ZRAM, FASTER_15),
    target("zipf stores of two threads, time to loop", (ZIPF_2, metric::TIME), LOOP, AT_MOST_1),
    target("zipf stores of two threads, time to zram", (ZIPF_2, metric::TIME), ZRAM, AT_MOST_1),
    target("FT.A with 70%, seconds to loop", (FT_A, SECONDS), LOOP, FASTER_16),
    target("FT.A with 70%, seconds to zram", (FT_A, SECONDS), ZRAM, FASTER_16),
    target("FT.B with 70%, seconds to loop", (FT_B, SECONDS), LOOP, FASTER_16),
    target("FT.B with 70%, seconds to zram", (FT_B, SECONDS), ZRAM, FASTER_16),
    target(
        "FT.B with 1000 MiB, seconds to stock swap (paper: 0.79)",
        (PAPER, SECONDS),
        STOCK,
        PUBLISHED,
    ),
    ways("slot tree of order 64 at 99.9%, time to linear", "order64", THIRD),
    ways("slot tree of order 8 at 99.9%, time to linear", "order8", Bound::None),
    Target {
        title: "paper: a tree for slots; FT.A in a space that is 99% full, tree to linear",
        workload: FT_A,
        metric: SECONDS,
        ours: "region-crowded",
        others: &["region-crowded-linear"],
        bound: Bound::None,
    },
    setting("paper: no read-ahead; FT.A, page-cluster 0 to 3", "swap-loop-cluster0"),
    setting("paper: no scheduler; FT.A, mq-deadline to none", "swap-loop-deadline"),
    setting("paper: file pages first; FT.A, swappiness 1 to 60", "swap-loop-swappiness1"),
    setting("paper: all of these at once; FT.A, to stock", "swap-loop-tuned"),
];
const AT_MOST_065: Bound = Bound::AtMost(0.65);
const AT_MOST_03: Bound = Bound::AtMost(0.3);
const AT_MOST_1: Bound = Bound::AtMost(1.0);
const FASTER_15: Bound = Bound::AtMost(1.0 / 1.5);
const FASTER_16: Bound = Bound::AtMost(1.0 / 1.6);
const PUBLISHED: Bound = Bound::AtMost(0.79);
const THIRD: Bound = Bound::AtMost(1.0 / 3.0);

/// Titles of all verdicts, in the order of the report.
pub(super) fn titles() -> Vec<&'static str> {
    TARGETS.iter().map(|target| target.title).chain([TREE_TO_HALF, READ_AHEAD]).collect()
}

const TREE_TO_HALF: &str = "slot tree of order 64, time at 99.9% to 50%";
const READ_AHEAD: &str = "paper: no read-ahead; a region's sequential stores, without to with";

/// Rows with verdicts on the figures of `results`.
pub(super) fn verdicts(results: &Results) -> Vec<Row> {
    let mut rows: Vec<Row> =
        TARGETS.iter().filter_map(|target| verdict(results, target)).flatten().collect();
    let time = |subject: &str, workload: &str| results.find(subject, workload, metric::TIME);
    if let (Some(full), Some(half)) = (time("order64", FULL), time("order64", HALF)) {
        let ratio = ratio(results, TREE_TO_HALF, full, half);
        rows.extend(judged(ratio, Bound::AtMost(2.0), "itself"));
    }
    let without = time("region-no-read-ahead", SEQUENTIAL);
    if let (Some(without), Some(with)) = (without, time(SUBJECT, SEQUENTIAL)) {
        rows.extend(judged(ratio(results, READ_AHEAD, without, with), Bound::None, SUBJECT));
    }
    rows
}

fn verdict(results: &Results, target: &Target) -> Option<Vec<Row>> {
    let row = |subject: &str| results.find(subject, target.workload, target.metric);
    let others = target.others.iter().filter_map(|name| Some((row(name)?, *name)));
    let measured = others.filter(|(row, _)| row.value.is_some());
    let best = measured.min_by(|(a, _), (b, _)| a.value.partial_cmp(&b.value).unwrap_or(Equal))?;
    let (best, name) = best;
    let ratio = ratio(results, target.title, row(target.ours)?, best);
    Some(judged(ratio, target.bound, name))
}

/// The row of a figure's ratio to another one; `None` if either is missing.
fn ratio(results: &Results, title: &str, own: &Row, base: &Row) -> Option<Row> {
    let rounds = results.environment.rounds;
    // Of fewer figures nobody knows which rounds they are of.
    if own.figures.len() == rounds && base.figures.len() == rounds {
        let pairs = own.figures.iter().zip(&base.figures);
        let ratios: Vec<f64> = pairs.map(|(own, base)| own / base).collect();
        return timed(SUBJECT, title, RATIO, "", &ratios);
    }
    let value = own.value? / base.value.filter(|base| *base > 0.0)?;
    let spread = own.spread.zip(base.spread).map(|(own, base)| own.over(base));
    Some(Row { spread, ..exact(SUBJECT, title, RATIO, "", value) })
}

/// A ratio to the figure of `name` with its verdict, and its bound if it has one.
fn judged(ratio: Option<Row>, bound: Bound, name: &str) -> Vec<Row> {
    let Some((ratio, row)) = ratio.and_then(|row| Some((row.value?, row))) else {
        return Vec::new();
    };
    let verdict = match bound {
        Bound::AtMost(most) if ratio <= most => format!("met: at most {most:.2}"),
        Bound::AtMost(most) => format!("MISSED: at most {most:.2}"),
        Bound::None => "told, not judged".to_owned(),
    };
    let bound = match bound {
        Bound::AtMost(most) => Some(exact(SUBJECT, &row.workload, RATIO_AT_MOST, "", most)),
        Bound::None => None,
    };
    let judged = Row { note: Some(format!("{verdict}; compared with {name}")), ..row };
    [judged].into_iter().chain(bound).collect()
}

/// The paper's Figure 2, as rows beside ours.
pub(super) fn published() -> [Row; 2] {
    [("paper-stock-swap", 1029.0), ("paper-slot-tree", 813.0)].map(|(subject, seconds)| Row {
        note: Some("as published: Xeon E5630, Linux 3.14.3, a DRAM-based SSD".to_owned()),
        ..exact(subject, PAPER, SECONDS, "s", seconds)
    })
}

/// Rows that tell the settings of each kind of kernel swap.
pub(super) fn settings_rows(
    described: &std::collections::BTreeMap<&'static str, String>,
) -> Vec<Row> {
    let row = |(name, settings): (&&'static str, &String)| Row {
        metric: "settings",
        ..Row::skipped(name, "settings", settings.clone())
    };
    described.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::super::kernel::KernelSwap;
    use super::*;
    use crate::environment::Environment;

    fn results(figures: &[(&str, &str, &'static str, f64)]) -> Results {
        let rows = figures.iter().map(|(subject, workload, metric, value)| Row {
            metric,
            value: Some(*value),
            ..Row::skipped(subject, workload, String::new())
        });
        let environment = Environment::new(std::path::Path::new("/"), 0, 1, 0.0);
        Results { suite: "swap", environment, rows: rows.collect() }
    }

    #[test]
    fn the_best_setting_of_the_kernel_counts() {
        let found = verdicts(&results(&[
            ("region", RANDOM, CPU, 7.0),
            ("swap-loop", RANDOM, CPU, 20.0),
            ("swap-loop-cluster0", RANDOM, CPU, 10.0),
            ("swap-zram", RANDOM, CPU, 14.0),
        ]));
        let told: Vec<_> = found.iter().filter_map(|row| row.note.clone()).collect();
        assert_eq!(
            told,
            [
                "MISSED: at most 0.65; compared with swap-loop-cluster0",
                "met: at most 0.65; compared with swap-zram"
            ]
        );
        let ratios: Vec<_> = found.iter().map(|row| (row.metric, row.value.unwrap())).collect();
        assert_eq!(
            ratios,
            [(RATIO, 0.7), (RATIO_AT_MOST, 0.65), (RATIO, 0.5), (RATIO_AT_MOST, 0.65)]
        );
    }

    #[test]
    fn ratios_are_of_pairs_of_rounds_or_else_of_medians() {
        let mut results = results(&[]);
        results.environment.rounds = 3;
        let row = |subject: &str, figures: &[f64]| {
            timed(subject, RANDOM, metric::TIME, "ns", figures).unwrap()
        };
        let told = |own: &Row, base: &Row| {
            let row = ratio(&results, "it", own, base).unwrap();
            let spread = row.spread.unwrap();
            [spread.min, row.value.unwrap(), spread.max]
        };
        // A noisy second round slows both.
        let (own, base) = (row("region", &[1.0, 8.0, 3.0]), row("swap-zram", &[2.0, 16.0, 4.0]));
        assert_eq!(told(&own, &base), [0.5, 0.5, 0.75]);
        let fewer = row("swap-zram", &[2.0, 4.0]);
        assert_eq!(told(&own, &fewer), [0.25, 1.0, 4.0]);
    }

    #[test]
    fn every_kind_of_kernel_swap_is_compared_with() {
        let known: Vec<&str> = KernelSwap::ALL.map(KernelSwap::name).to_vec();
        assert_eq!([LOOP, ZRAM].concat(), known);
    }
}

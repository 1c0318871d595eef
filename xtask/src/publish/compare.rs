//! Two runs of one suite, row by row.
//!
//! Figures with a spread agree where their spreads meet; a figure without a spread is a spread of one value.
//! Counts, and figures from counts alone, are exact. Counts of suites of times are means over the requests of a
//! slice, so they may differ by less than the printed decimals. Counts of simulations are equal or wrong.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

use super::results::{Results, RowNo};
use super::suite::Suites;

/// Least percentage of rows with agreement.
const SHARE: usize = 95;

/// Metric of a row, empty where rows have none, and how the runs differ in it, if they do.
type Verdict<'a> = (&'a str, Option<String>);

/// Prints the rows without agreement: the spreads of two have nothing in common, exact figures differ, or one run
/// alone has the row. Then how many agree, by metric and in all.
///
/// # Errors
/// The suites differ; fewer than 95 of 100 rows agree.
pub(super) fn report(suites: &Suites, first: &Results, second: &Results) -> Result<()> {
    if first.suite != second.suite || first.columns != second.columns {
        bail!("runs of {} and {}", first.suite, second.suite);
    }
    // The counts of suites of times depend on the number of requests in a slice.
    let is_timed = suites.find(&first.suite).is_ok_and(|suite| suite.needs_idle);
    let verdicts = verdicts(is_timed, first, second);
    let differ: Vec<_> = verdicts.iter().filter_map(|(_, differs)| differs.as_ref()).collect();
    for line in &differ {
        println!("{line}");
    }
    for line in by_metric(&verdicts) {
        println!("{line}");
    }
    let all = verdicts.len();
    let agree = all - differ.len();
    println!("{agree} of {all} rows agree");
    // Two empty runs compare nothing.
    if all == 0 || agree * 100 < all * SHARE {
        bail!("fewer than {SHARE} of 100 rows agree");
    }
    Ok(())
}

/// A verdict on each row of either run; rows of the second run alone come last.
fn verdicts<'a>(is_timed: bool, first: &'a Results, second: &'a Results) -> Vec<Verdict<'a>> {
    let alone =
        |results: &Results, row: RowNo| Some(format!("{}: in one run alone", results.key(row)));
    let of_first = (0..first.rows.len()).map(|row| {
        let differs = match second.row(&first.key(row)) {
            Some(other) => differs(is_timed, [first, second], [row, other]),
            None => alone(first, row),
        };
        (first.word(row, "metric"), differs)
    });
    // Rows of both runs are in the first list already.
    let of_second = (0..second.rows.len())
        .filter(|&row| first.row(&second.key(row)).is_none())
        .map(|row| (second.word(row, "metric"), alone(second, row)));
    of_first.chain(of_second).collect()
}

/// How two runs differ in a row, if they do.
fn differs(is_timed: bool, runs: [&Results; 2], rows: [RowNo; 2]) -> Option<String> {
    let spreads = [0, 1].map(|at| spread(runs[at], rows[at]));
    let point = |at: usize| runs[at].number(rows[at], "value").map(|value| [value, value]);
    let ranges = [0, 1].map(|at| spreads[at].or_else(|| point(at)));
    // Two spreads without a common value exclude one value behind both runs.
    let meet = matches!(ranges, [Some(a), Some(b)] if a[0] <= b[1] && b[0] <= a[1]);
    let agree = meet || spreads.into_iter().all(is_exact) && counts_agree(is_timed, runs, rows);
    (!agree).then(|| format!("{}: {:?} and {:?}", runs[0].key(rows[0]), spreads[0], spreads[1]))
}

/// A line for each metric: rows that agree, of all.
fn by_metric(verdicts: &[Verdict<'_>]) -> Vec<String> {
    let mut sums: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
    for (metric, differs) in verdicts.iter().filter(|(metric, _)| !metric.is_empty()) {
        let [agree, all] = sums.entry(*metric).or_default();
        *agree += usize::from(differs.is_none());
        *all += 1;
    }
    let width = sums.keys().map(|metric| metric.len()).max().unwrap_or_default();
    let line = |(metric, [agree, all]): (&&str, &[usize; 2])| {
        format!("{metric:<width$}  {agree} of {all}")
    };
    sums.iter().map(line).collect()
}

/// True for a row without a spread, or with one over nothing.
fn is_exact(spread: Option<[f64; 2]>) -> bool {
    spread.is_none_or(|[least, most]| least.total_cmp(&most).is_eq())
}

/// True for equal rows, and for counts of a suite of times within a hundredth or within the two decimals of the pages.
fn counts_agree(is_timed: bool, runs: [&Results; 2], rows: [RowNo; 2]) -> bool {
    if runs[0].rows[rows[0]] == runs[1].rows[rows[1]] {
        return true;
    }
    match [0, 1].map(|at| runs[at].number(rows[at], "value")) {
        [Some(a), Some(b)] if is_timed => (a - b).abs() <= f64::max(a.abs() / 100.0, 0.005),
        _ => false,
    }
}

/// Least and most of a row with a spread.
fn spread(results: &Results, row: RowNo) -> Option<[f64; 2]> {
    Some([results.number(row, "least")?, results.number(row, "most")?])
}

#[cfg(test)]
mod tests {
    use super::super::results::of_bench;
    use super::*;

    fn run(least: f64, most: f64, fences: f64) -> Results {
        let spread = format!(r#"{{"min":{least},"max":{most}}}"#);
        with(least, &spread, fences)
    }

    fn with(time: f64, spread: &str, fences: f64) -> Results {
        let row = |metric: &str, value: f64, spread: &str| {
            format!(
                r#"{{"subject":"ours","workload":"w","metric":"{metric}","value":{value},"unit":"ns","spread":{spread}}}"#
            )
        };
        let rows = [row("time", time, spread), row("fences", fences, "null")].join(",");
        let text = format!(r#"{{"environment":{{}},"rows":[{rows}]}}"#);
        let (columns, rows, _) = of_bench(&text, &[], &[]).unwrap();
        Results::new("block", ["c", "w", "m", "r"].map(str::to_owned), columns, rows).unwrap()
    }

    /// Number of rows with agreement, and the lines of the others.
    fn judge(first: &Results, second: &Results) -> (usize, Vec<String>) {
        let verdicts = verdicts(true, first, second);
        let all = verdicts.len();
        let differ: Vec<String> = verdicts.into_iter().filter_map(|(_, differs)| differs).collect();
        (all - differ.len(), differ)
    }

    #[test]
    fn rows_that_agree_are_counted_by_metric() {
        let (first, second) = (run(1.0, 2.0, 3.0), run(2.5, 4.0, 3.0));
        let lines = by_metric(&verdicts(true, &first, &second));
        assert_eq!(lines, ["fences  1 of 1", "time    0 of 1"]);
        assert_eq!(by_metric(&[("", None)]), [""; 0]);
    }

    #[test]
    fn row_of_one_run_alone_does_not_agree() {
        let whole = run(1.0, 2.0, 3.0);
        let about = ["c", "w", "m", "r"].map(str::to_owned);
        let rows = whole.rows[..1].to_vec();
        let part = Results::new("block", about, whole.columns.clone(), rows).unwrap();
        let alone = vec!["ours|w|fences: in one run alone".to_owned()];
        assert_eq!(judge(&whole, &part), (1, alone.clone()));
        assert_eq!(judge(&part, &whole), (1, alone));
    }

    #[test]
    fn spreads_must_meet_and_counts_must_be_equal() {
        assert_eq!(judge(&run(1.0, 2.0, 3.0), &run(1.5, 4.0, 3.0)), (2, vec![]));
        let (agree, differ) = judge(&run(1.0, 2.0, 3.0), &run(2.5, 4.0, 3.0));
        assert_eq!((agree, differ.len()), (1, 1));
        assert_eq!(judge(&run(1.0, 2.0, 3.0), &run(1.0, 2.0, 3.01)).0, 2);
        let (agree, differ) = judge(&run(1.0, 2.0, 3.0), &run(1.0, 2.0, 3.1));
        assert_eq!((agree, differ.len()), (1, 1));
        let suites = Suites::parse(std::iter::empty()).unwrap();
        assert!(report(&suites, &run(1.0, 2.0, 3.0), &run(2.5, 4.0, 3.0)).is_err());
        assert_eq!(judge(&run(2.0, 2.0, 3.0), &run(2.01, 2.01, 3.0)).0, 2);
        assert_eq!(judge(&run(2.0, 2.0, 3.0), &run(2.1, 2.1, 3.0)).0, 1);
    }

    #[test]
    fn figure_without_spread_agrees_within_other() {
        let bare = |time| with(time, "null", 3.0);
        assert_eq!(judge(&bare(1.5), &run(1.0, 2.0, 3.0)).0, 2);
        assert_eq!(judge(&run(1.0, 2.0, 3.0), &bare(1.5)).0, 2);
        assert_eq!(judge(&bare(2.1), &run(1.0, 2.0, 3.0)).0, 1);
        assert_eq!(judge(&run(1.0, 2.0, 3.0), &bare(0.9)).0, 1);
    }
}

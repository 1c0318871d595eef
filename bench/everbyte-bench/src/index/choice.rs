//! The choice for the whole file system that follows from the rows.
//!
//! Every index has, for each round, the geometric mean of its rates at all workloads, with the most files and
//! threads, as multiples of the reference's; its figure is the median of the rounds. The best one's nodes, and
//! the tables and pages, are those with the highest rates in their sweeps.

use everbyte_fs::IndexKind;

use super::collected::{Collected, TO_REFERENCE};
use super::personality::Personality;
use super::place::{Pages, Setting};
use super::sweeps::{nodes_title, sizes_of_tables_and_pages, sizes_title};
use super::{REFERENCE, Settings, title};
use crate::rows::{Row, exact, metric};
use crate::stats::{Spread, as_f64, summarise};

pub(super) const WORKLOAD: &str = "all workloads, most files and threads";
const CHOICE: &str = "choice";

/// The value of a row.
fn value(rows: &[Row], subject: &str, workload: &str, metric: &str) -> Option<f64> {
    let is_it =
        |row: &&Row| row.subject == subject && row.workload == workload && row.metric == metric;
    rows.iter().find(is_it)?.value
}

/// The geometric mean; `None` unless there are figures, and all of them.
fn mean(figures: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let logs = figures.map(|figure| figure.map(f64::ln)).collect::<Option<Vec<f64>>>()?;
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / as_f64(logs.len() as u64)).exp())
}

/// Whoever has most.
fn best<T>(candidates: impl Iterator<Item = (T, Option<f64>)>) -> Option<(T, f64)> {
    let known = candidates.filter_map(|(candidate, figure)| Some((candidate, figure?)));
    known.max_by(|(_, one), (_, other)| one.total_cmp(other))
}

/// The geometric mean of each round, of workloads with their figures by round; `None` without workloads.
fn means_of_rounds(workloads: &[Vec<f64>]) -> Option<Vec<f64>> {
    let rounds = workloads.iter().map(Vec::len).min()?;
    (0..rounds).map(|round| mean(workloads.iter().map(|figures| Some(figures[round])))).collect()
}

fn row(subject: &str, (value, spread): (f64, Spread), note: Option<String>) -> Row {
    let row = exact(subject, WORKLOAD, TO_REFERENCE, "ratio", value);
    Row { spread: Some(spread), note, ..row }
}

/// The mean of every index at `workloads`, and the choice; nothing of what was not measured.
pub(super) fn rows(settings: &Settings<'_>, workloads: &Collected, rows: &[Row]) -> Vec<Row> {
    let of_index = |&index: &IndexKind| {
        let ratios = |&own: &Personality| {
            let workload = title(own, settings.files_max(), settings.most_threads(own));
            workloads.ratios(index.name(), &workload, REFERENCE.name())
        };
        let ratios = settings.personalities.iter().map(ratios).collect::<Option<Vec<_>>>()?;
        Some((index, summarise(&means_of_rounds(&ratios)?)?))
    };
    let means: Vec<(IndexKind, (f64, Spread))> =
        settings.indexes.iter().filter_map(of_index).collect();
    let candidates = means.iter().map(|&(index, (mean, spread))| ((index, spread), Some(mean)));
    let Some(((index, spread), most)) = best(candidates) else { return Vec::new() };
    let setting = chosen(settings, rows, index);
    let means = means.into_iter().map(|(index, mean)| row(index.name(), mean, None));
    means.chain([row(CHOICE, (most, spread), Some(setting.name()))]).collect()
}

/// The index with the nodes, tables and pages that suit it.
fn chosen(settings: &Settings<'_>, rows: &[Row], index: IndexKind) -> Setting {
    let swept = Personality::Fileserver;
    let (files, threads) = (settings.files_max(), settings.most_threads(swept));
    let node_bytes = best(settings.node_bytes.iter().map(|&bytes| {
        let workload = nodes_title(files, threads, bytes);
        (bytes, value(rows, index.name(), &workload, metric::RATE))
    }));
    let sizes = best(sizes_of_tables_and_pages().into_iter().map(|(large_tables, pages)| {
        let rates = settings.personalities.iter().map(|&own| {
            let workload = title(own, settings.files_min(), settings.most_threads(own));
            let workload = sizes_title(&workload, large_tables, pages);
            value(rows, index.name(), &workload, metric::RATE)
        });
        ((large_tables, pages), mean(rates))
    }));
    let ((large_tables, pages), _) = sizes.unwrap_or(((false, Pages::Small), 0.0));
    let node_bytes = node_bytes.map(|(bytes, _)| bytes);
    Setting { node_bytes, large_tables, pages, ..Setting::of(index) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_of_all_figures_or_of_none() {
        let four = mean([Some(2.0), Some(8.0)].into_iter()).unwrap();
        assert!((four - 4.0).abs() < 1e-12);
        assert_eq!(mean([Some(2.0), None].into_iter()), None);
        assert_eq!(mean(std::iter::empty()), None);
        let (name, _) =
            best([("a", Some(1.0)), ("b", None), ("c", Some(3.0))].into_iter()).unwrap();
        assert_eq!(name, "c");
    }

    #[test]
    fn means_are_taken_per_round() {
        let means = means_of_rounds(&[vec![2.0, 1.0, 4.0], vec![8.0, 1.0, 1.0]]).unwrap();
        let figure = row("direct", summarise(&means).unwrap(), None);
        let spread = figure.spread.unwrap();
        let told = [spread.min, figure.value.unwrap(), spread.max];
        assert!(told.iter().zip([1.0, 2.0, 4.0]).all(|(one, other)| (one - other).abs() < 1e-12));
        assert_eq!(spread.rounds, 3);
        assert_eq!(means_of_rounds(&[]), None);
    }
}

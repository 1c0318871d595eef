//! The choice for the whole file system that follows from the rows.
//!
//! Every index has the geometric mean of its rates at all workloads, with the most files and threads,
//! as multiples of the reference's. The best one's nodes, and the tables and pages, are those with the
//! highest rates in their sweeps.

use everbyte_fs::IndexKind;

use super::collected::TO_REFERENCE;
use super::personality::Personality;
use super::place::{Pages, Setting};
use super::sweeps::{nodes_title, sizes_of_tables_and_pages, sizes_title};
use super::{Settings, title};
use crate::rows::{Row, metric};
use crate::stats::as_f64;

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

fn row(subject: &str, value: f64, note: Option<String>) -> Row {
    Row {
        subject: subject.to_owned(),
        workload: WORKLOAD.to_owned(),
        metric: TO_REFERENCE,
        value: Some(value),
        unit: "ratio",
        spread: None,
        note,
    }
}

/// The mean of every index, and the choice; nothing of what was not measured.
pub(super) fn rows(settings: &Settings<'_>, rows: &[Row]) -> Vec<Row> {
    let at = |personality: Personality| {
        title(personality, settings.files_max(), settings.most_threads(personality))
    };
    let means = settings.indexes.iter().map(|index| {
        let ratio = |&own: &Personality| value(rows, index.name(), &at(own), TO_REFERENCE);
        (*index, mean(settings.personalities.iter().map(ratio)))
    });
    let means: Vec<(IndexKind, Option<f64>)> = means.collect();
    let Some((index, most)) = best(means.iter().copied()) else { return Vec::new() };
    let setting = chosen(settings, rows, index);
    let known = means.into_iter().filter_map(|(index, mean)| Some(row(index.name(), mean?, None)));
    known.chain([row(CHOICE, most, Some(setting.name()))]).collect()
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
}

//! Tables of suites of `everbyte-bench`: workloads by subjects, subjects by workloads, and lost comparisons.

use serde::Deserialize;

use super::format::{Cell, CellTable, fill};
use super::pattern::selects;
use super::results::{Results, RowNo};

/// A line for each workload and a column for each subject, or the other way round.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Grid {
    /// Columns without a figure are left out. Empty for all subjects.
    #[serde(default)]
    pub(crate) subjects: Vec<String>,
    /// Patterns of workloads; empty for all.
    #[serde(default)]
    workloads: Vec<String>,
    #[serde(default)]
    not_workloads: Vec<String>,
    /// Template of a cell. Its values are metrics, or `METRIC.COLUMN` for another column than the value.
    cell: String,
    /// Makes a line of each subject and a column of each workload.
    #[serde(default)]
    by_subject: bool,
    /// Headings of workloads, if they differ from the names.
    #[serde(default)]
    names: Vec<[String; 2]>,
}

impl Grid {
    pub(crate) fn table(&self, results: &Results) -> CellTable {
        let is_wanted = |place: &&str| selects(place, &self.workloads, &self.not_workloads);
        let places: Vec<&str> = results.words("workload").into_iter().filter(is_wanted).collect();
        let subjects: Vec<&str> = match self.subjects.is_empty() {
            true => results.words("subject"),
            false => self.subjects.iter().map(String::as_str).collect(),
        };
        let cell = |subject: &str, place: &str| {
            fill(&self.cell, |name| {
                let (metric, column) = name.split_once('.').unwrap_or((name, "value"));
                let row = results.row(&format!("{subject}|{place}|{metric}"))?;
                Some((results.number(row, column)?, vec![row]))
            })
        };
        let name = |place: &str| {
            let found = self.names.iter().find(|[_, workload]| workload == place);
            found.map_or(place, |[name, _]| name).to_owned()
        };
        let (first, lines, columns) = match self.by_subject {
            true => ("subject", subjects, places),
            false => ("workload", places, subjects),
        };
        let at = |line: &str, column: &str| match self.by_subject {
            true => cell(line, column),
            false => cell(column, line),
        };
        // The published run may lack a rival that was not installed: its column would be empty.
        let has_any = |column: &&str| lines.iter().any(|line| !at(line, column).text.is_empty());
        let columns: Vec<&str> = columns.into_iter().filter(has_any).collect();
        let head = columns.iter().map(|column| name(column));
        let mut table =
            CellTable { head: [first.to_owned()].into_iter().chain(head).collect(), rows: vec![] };
        for line in &lines {
            let cells: Vec<Cell> = columns.iter().map(|column| at(line, column)).collect();
            // A workload of another part of the suite has no figure here.
            if cells.iter().any(|cell| !cell.text.is_empty()) {
                table.rows.push([vec![Cell::plain(name(line))], cells].concat());
            }
        }
        table
    }
}

/// Workloads at which a rival is better than ours, the largest loss first.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Losses {
    metric: String,
    /// True for rates.
    #[serde(default)]
    more_is_better: bool,
    /// Patterns of workloads; empty for all.
    #[serde(default)]
    workloads: Vec<String>,
    /// Ours and its rivals.
    losses: Vec<Rivals>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rivals {
    /// Empty if the metric is a multiple of ours.
    #[serde(default)]
    ours: String,
    rivals: Vec<String>,
}

impl Losses {
    pub(crate) fn table(&self, results: &Results) -> CellTable {
        let mut lost: Vec<(f64, &str, &str, [RowNo; 2])> = Vec::new();
        let is_wanted = |place: &&str| selects(place, &self.workloads, &[]);
        for place in results.words("workload").into_iter().filter(is_wanted) {
            let value = |subject: &str| {
                let row = results.row(&format!("{subject}|{place}|{}", self.metric))?;
                Some((results.number(row, "value")?, row))
            };
            for Rivals { ours, rivals } in &self.losses {
                for rival in rivals {
                    let Some(their) = value(rival) else { continue };
                    // Results have no row of ours for a multiple of ours: it is 1 by definition.
                    let is_multiple = ours.is_empty();
                    let our = if is_multiple { Some((1.0, their.1)) } else { value(ours) };
                    let Some(our) = our else { continue };
                    let times = if self.more_is_better { their.0 / our.0 } else { our.0 / their.0 };
                    if times > 1.0 {
                        lost.push((times, place, rival, [our.1, their.1]));
                    }
                }
            }
        }
        // Readers see the worst loss first.
        lost.sort_by(|a, b| b.0.total_cmp(&a.0));
        let head = ["workload", "rival", "the rival is better by"].map(str::to_owned).to_vec();
        let line = |(times, place, rival, rows): (f64, &str, &str, [RowNo; 2])| {
            let times = fill("{times}x", |_| Some((times, rows.to_vec())));
            vec![Cell::plain(place), Cell::plain(rival), times]
        };
        CellTable { head, rows: lost.into_iter().map(line).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Results {
        let columns = ["subject", "workload", "metric", "value"].map(str::to_owned).to_vec();
        let row = |subject: &str, workload: &str, value: f64| {
            vec![subject.into(), workload.into(), "time".into(), value.into()]
        };
        let rows = vec![
            row("ours", "read", 20.0),
            row("ours", "write", 10.0),
            row("theirs", "read", 10.0),
            row("theirs", "write", 20.0),
        ];
        Results::new("s", ["c", "w", "m", "r"].map(str::to_owned), columns, rows).unwrap()
    }

    fn texts(table: &CellTable) -> Vec<Vec<&str>> {
        table.rows.iter().map(|row| row.iter().map(|cell| cell.text.as_str()).collect()).collect()
    }

    #[test]
    fn grid_has_lines_of_workloads_or_subjects() {
        let grid: Grid =
            toml::from_str("subjects = ['theirs', 'absent']\ncell = '{time:0}'").unwrap();
        let table = grid.table(&results());
        assert_eq!(table.head, ["workload", "theirs"]);
        assert_eq!(texts(&table), [["read", "10"], ["write", "20"]]);
        let text =
            "workloads = ['w*']\ncell = '{time:0}'\nby_subject = true\nnames = [['w', 'write']]";
        let grid: Grid = toml::from_str(text).unwrap();
        let table = grid.table(&results());
        assert_eq!(table.head, ["subject", "w"]);
        assert_eq!(texts(&table), [["ours", "10"], ["theirs", "20"]]);
    }

    #[test]
    fn losses_name_rivals_that_are_better() {
        let text = "metric = 'time'\nlosses = [{ ours = 'ours', rivals = ['theirs'] }]\n";
        let losses: Losses = toml::from_str(text).unwrap();
        assert_eq!(texts(&losses.table(&results())), [["read", "theirs", "2.00x"]]);
        let losses: Losses = toml::from_str(&format!("{text}more_is_better = true")).unwrap();
        assert_eq!(texts(&losses.table(&results())), [["write", "theirs", "2.00x"]]);
        let text = "metric = 'time'\nmore_is_better = true\nlosses = [{ rivals = ['ours'] }]\n";
        let losses: Losses = toml::from_str(text).unwrap();
        let wanted = [["read", "ours", "20x"], ["write", "ours", "10x"]];
        assert_eq!(texts(&losses.table(&results())), wanted);
    }
}

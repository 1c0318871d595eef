//! One figure: a chart with a bar or a point for each subject in each group, or a table.

use everbyte_report::{
    Across, Cell, Chart, Page, Point, Scale, Series, Shape as ChartShape, Table, short,
};

use crate::rows::{Results, Row};
use crate::stats::as_f64;

/// Drawing of values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    Bars,
    Lines,
    /// A table with a line for each workload, and for each of these metrics a column for each subject.
    Table(&'static [&'static str]),
    /// A table with a line for each workload: the value of the first subject, and its note.
    Verdicts,
}

/// Title, subjects and values of a figure.
pub(crate) struct Figure {
    pub(crate) title: String,
    pub(crate) explanation: String,
    pub(crate) subjects: Vec<String>,
    /// Workloads, with the words for their groups.
    pub(crate) workloads: Vec<(String, String)>,
    pub(crate) metric: &'static str,
    pub(crate) shape: Shape,
    pub(crate) logarithmic: bool,
}

impl Figure {
    /// Writes the figure with its heading; nothing if there is nothing to show. `look` numbers the
    /// looks of subjects.
    pub(super) fn write(&self, page: &mut Page, results: &Results, look: &dyn Fn(&str) -> usize) {
        let table = match self.shape {
            Shape::Table(metrics) => self.table(results, metrics),
            Shape::Verdicts => self.verdicts(results),
            Shape::Bars | Shape::Lines => {
                let chart = self.chart(results, look);
                page.section(2, &self.title, &self.explanation, &chart);
                return;
            }
        };
        if let Some(table) = table {
            page.heading(2, &self.title);
            page.paragraph(&self.explanation);
            page.table(&table);
        }
    }

    fn chart(&self, results: &Results, look: &dyn Fn(&str) -> usize) -> Chart {
        let find = |name: &str, workload: &str| {
            let row = results.find(name, workload, self.metric)?;
            Some((row, row.value.filter(|value| *value > 0.0)?))
        };
        let mut unit = "";
        let mut series = Vec::new();
        for name in &self.subjects {
            let groups = self.workloads.iter().enumerate();
            let points = groups.filter_map(|(group, (workload, label))| {
                let (row, value) = find(name, workload)?;
                unit = row.unit;
                Some(Point { x: as_f64(group as u64), y: value, words: words(row, value, label) })
            });
            let points: Vec<Point> = points.collect();
            if !points.is_empty() {
                series.push(Series { name: name.clone(), look: look(name), points });
            }
        }
        let words = self.metric.replace('_', " ");
        Chart {
            title: self.title.clone(),
            across: Across::Groups(self.workloads.iter().map(|(_, label)| label.clone()).collect()),
            up: if unit.is_empty() { words } else { format!("{words}, {unit}") },
            scale: if self.logarithmic { Scale::Logarithmic } else { Scale::Linear },
            shape: if self.shape == Shape::Lines { ChartShape::Lines } else { ChartShape::Bars },
            series,
        }
    }

    fn table(&self, results: &Results, metrics: &[&str]) -> Option<Table> {
        let columns = || metrics.iter().flat_map(|m| self.subjects.iter().map(move |s| (*m, s)));
        let heading = |(metric, subject): (&str, &String)| {
            Cell::number(format!("{} ({subject})", metric.replace('_', " ")))
        };
        let head = std::iter::once(Cell::words("")).chain(columns().map(heading)).collect();
        let mut table = Table { head, rows: Vec::new() };
        let mut is_empty = true;
        for (workload, label) in &self.workloads {
            let mut cells = vec![Cell::words(label)];
            for (metric, subject) in columns() {
                let value = results.find(subject, workload, metric).and_then(|row| row.value);
                is_empty &= value.is_none();
                cells.push(Cell::number(value.map_or_else(|| "-".to_owned(), short)));
            }
            table.rows.push(cells);
        }
        (!is_empty).then_some(table)
    }

    fn verdicts(&self, results: &Results) -> Option<Table> {
        let mut rows = Vec::new();
        for (workload, label) in &self.workloads {
            let row = self.subjects.first().and_then(|s| results.find(s, workload, self.metric));
            let Some(row) = row else { continue };
            let value = row.value.map_or_else(|| "-".to_owned(), short);
            let note = row.note.as_deref().unwrap_or("");
            rows.push(vec![Cell::words(label), Cell::number(value), Cell::words(note)]);
        }
        (!rows.is_empty()).then(|| Table { head: Vec::new(), rows })
    }
}

/// Words for a pointer: the group, the value with its unit, and the quartiles.
fn words(row: &Row, value: f64, label: &str) -> String {
    let unit = if row.unit.is_empty() { String::new() } else { format!(" {}", row.unit) };
    let spread = row.spread.map_or_else(String::new, |spread| {
        format!(" [{}, {}]", short(spread.q1), short(spread.q3))
    });
    format!("{}{unit}{spread} ({label})", short(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::exact;

    fn results() -> Results {
        let environment = crate::environment::Environment::new("/dev/shm".as_ref(), 0, 1, 0.0);
        let rows = vec![
            exact("quick", "one", "time", "ns", 3.0),
            exact("slow", "one", "time", "ns", 40_000.0),
            exact("quick", "two", "time", "ns", 50.0),
        ];
        Results { suite: "block", environment, rows }
    }

    fn figure(shape: Shape) -> Figure {
        Figure {
            title: "times".to_owned(),
            explanation: String::new(),
            subjects: ["quick", "slow", "absent"].map(str::to_owned).to_vec(),
            workloads: ["one", "two"].map(|name| (name.to_owned(), name.to_owned())).to_vec(),
            metric: "time",
            shape,
            logarithmic: true,
        }
    }

    #[test]
    fn subjects_without_values_are_left_out() {
        let look = |name: &str| name.len();
        for shape in [Shape::Bars, Shape::Lines] {
            let chart = figure(shape).chart(&results(), &look);
            let series: Vec<_> = chart.series.iter().map(|s| (s.name.as_str(), s.look)).collect();
            assert_eq!(series, [("quick", 5), ("slow", 4)]);
            assert_eq!(chart.up, "time, ns");
            let points = &chart.series[0].points;
            assert_eq!(points[0].words, "3.00 ns (one)");
            assert_eq!(points.iter().map(|point| point.y).collect::<Vec<_>>(), [3.0, 50.0]);
        }
    }

    #[test]
    fn figures_without_values_write_nothing() {
        let (environment, rows) = (results().environment, Vec::new());
        let empty = Results { suite: "block", environment, rows };
        for shape in [Shape::Bars, Shape::Lines, Shape::Table(&["time"]), Shape::Verdicts] {
            let mut page = Page::new("x");
            figure(shape).write(&mut page, &empty, &|_| 0);
            assert!(!page.finish().contains("<h2>"), "{shape:?}");
        }
    }
}

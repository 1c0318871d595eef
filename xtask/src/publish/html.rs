//! Pages of suites as HTML, and their plots as SVG.

use everbyte_report::{
    Cell as PageCell, Chart, HorizontalAxis, Page, Point, Scale, Series, Shape, Table, short,
};

use super::format::{Cell, CellTable};
use super::results::Results;
use super::suite::{Plot, PlotValues, Suite, TableValues};

/// The page of a suite: the run, its plots and its tables; with `all_rows` also every row.
pub(super) fn page(suites: &[&Suite], results: &Results, all_rows: bool) -> String {
    let title = suites.first().map_or(results.suite.as_str(), |suite| suite.title.as_str());
    let mut page = Page::new(title);
    page.paragraph(&format!(
        "One run at commit {} of: cargo run --release {}",
        results.commit, results.command
    ));
    page.paragraph(&format!("{}; {}.", results.machine, results.remarks));
    if let Some(warning) = &results.warning {
        page.warning(warning);
    }
    for plot in suites.iter().flat_map(|suite| &suite.plots) {
        page.section(2, &plot.title, &plot.explanation, &chart(plot, results));
    }
    for suite in suites {
        for (at, table) in suite.tables.iter().enumerate() {
            let cells = cells(suite, at, results);
            // The document of one part of a suite lacks the rows of the other tables.
            if !cells.rows.is_empty() {
                page.heading(2, &table.title);
                page.paragraph(&table.explanation);
                page.table(&to_page(&cells));
            }
        }
    }
    if all_rows {
        let words = |row: &Vec<serde_json::Value>| row.iter().map(value_cell).collect();
        let head = results.columns.iter().map(PageCell::words).collect();
        page.folded("All rows", &Table { head, rows: results.rows.iter().map(words).collect() });
    }
    page.finish()
}

fn value_cell(value: &serde_json::Value) -> PageCell {
    match value {
        serde_json::Value::String(text) => PageCell::words(text),
        serde_json::Value::Null => PageCell::words(""),
        value => PageCell::number(value.as_f64().map_or_else(String::new, short)),
    }
}

/// The table with a number.
pub(super) fn cells(suite: &Suite, table: usize, results: &Results) -> CellTable {
    match &suite.tables[table].values {
        TableValues::Losses(losses) => losses.table(results),
        TableValues::Comparison(comparison) => comparison.table(results),
        TableValues::Grid(grid) => grid.table(results),
    }
}

fn to_page(cells: &CellTable) -> Table {
    let cell = |cell: &Cell| match cell.rows.is_empty() {
        true => PageCell::words(&cell.text),
        false => PageCell::number(&cell.text),
    };
    Table {
        head: cells.head.iter().map(PageCell::words).collect(),
        rows: cells.rows.iter().map(|row| row.iter().map(cell).collect()).collect(),
    }
}

/// A chart of bars.
pub(super) fn chart(plot: &Plot, results: &Results) -> Chart {
    let (groups, values) = match &plot.values {
        PlotValues::Metric { metric, subjects, groups } => {
            let value = |subject: &str, workload: &str| {
                let row = results.row(&format!("{subject}|{workload}|{metric}"));
                row.and_then(|row| results.number(row, "value")).unwrap_or(f64::NAN)
            };
            let series = subjects.iter().map(|subject| {
                let values = groups.iter().map(|[_, workload]| value(subject, workload));
                (subject.clone(), values.collect())
            });
            (groups.iter().map(|[name, _]| name.clone()).collect(), series.collect())
        }
        PlotValues::Comparison(comparison) => comparison.means(results),
    };
    let series = values.into_iter().enumerate().map(|(look, (name, values))| {
        let points = (0_u32..).map(f64::from).zip(values);
        // A missing row is not a number. It has no bar, and the group keeps its place.
        let points = points.filter(|(_, y)| y.is_finite());
        let points = points.map(|(x, y)| Point { x, y, words: String::new() });
        Series { name, look, points: points.collect() }
    });
    Chart {
        title: plot.title.clone(),
        across: HorizontalAxis::Groups(groups),
        up: plot.up.clone(),
        scale: if plot.is_logarithmic { Scale::Logarithmic } else { Scale::Linear },
        shape: Shape::Bars,
        series: series.filter(|series| !series.points.is_empty()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::suite::Suites;
    use super::*;

    const SUITE: &str = "title = 'T'\ncommand = '-p a -- s'\nform = 'bench'\nminutes = 1\n\
        [[plots]]\ntitle = 'Plot'\nexplanation = 'E'\nup = 'time, ns'\nmetric = 'time'\n\
        subjects = ['a', 'b']\ngroups = [['one', 'w']]\n\
        [[tables]]\ntitle = 'Times'\ncell = '{time:0}'\n";

    fn results() -> Results {
        let columns = ["subject", "workload", "metric", "value"].map(str::to_owned).to_vec();
        let rows = vec![vec!["a".into(), "w".into(), "time".into(), 7.into()]];
        Results::new("s", ["c", "w", "m", "r"].map(str::to_owned), columns, rows).unwrap()
    }

    #[test]
    fn page_has_plots_tables_and_warning() {
        let suites = Suites::parse([("s.toml", SUITE)].into_iter()).unwrap();
        let suite = suites.find("s").unwrap();
        let mut results = results();
        results.warning = Some("quick".to_owned());
        let text = page(&[suite], &results, true);
        for part in ["<h2>Plot", "<h2>Times", ">7<", "class=\"warn\">quick", "All rows"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!page(&[suite], &results, false).contains("All rows"));
        let chart = chart(&suite.plots[0], &results);
        assert_eq!(chart.series.len(), 1);
    }

    #[test]
    fn page_without_suite_has_all_rows() {
        let text = page(&[], &results(), true);
        assert!(text.contains("<h1>s</h1>") && text.contains(">7.00<"), "{text}");
    }
}

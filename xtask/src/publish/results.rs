//! A file of results: one run of one suite at one commit.
//!
//! Each row has its line, so file and line name a figure. The first columns are the unique key. Numbers have at most
//! six significant digits.

use std::collections::HashMap;
use std::fmt::Write as _;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

/// Lines before the first row.
const HEAD_LINES: usize = 8;
/// Columns of results of `everbyte-bench`: a spread is least and most.
const BENCH: [&str; 7] = ["subject", "workload", "metric", "value", "unit", "least", "most"];
/// Metric of rows with the reason for a missing figure.
const SKIPPED: &str = "skipped";
/// Possible columns of a key.
const KEYS: [&str; 7] = ["subject", "workload", "metric", "trace", "policy", "size", "backing"];

/// A run and its rows.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Results {
    pub(crate) suite: String,
    pub(crate) commit: String,
    pub(crate) command: String,
    pub(crate) machine: String,
    /// Date of the run and further remarks.
    pub(crate) remarks: String,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Vec<Value>>,
    /// Reason why the figures mean nothing.
    #[serde(skip)]
    pub(crate) warning: Option<String>,
    /// Columns of the key.
    #[serde(skip)]
    keys: Vec<usize>,
    /// Numbers of rows by key.
    #[serde(skip)]
    index: HashMap<String, usize>,
}

/// A row by its number, from 0 on.
pub(crate) type RowNo = usize;

impl Results {
    /// # Errors
    /// Rows with the same key, or of another length than the columns.
    pub(crate) fn new(
        suite: &str,
        run: [String; 4],
        columns: Vec<String>,
        rows: Vec<Vec<Value>>,
    ) -> Result<Self> {
        let ([commit, command, machine, remarks], suite) = (run, suite.to_owned());
        let (warning, keys, index) = (None, Vec::new(), HashMap::new());
        Self { suite, commit, command, machine, remarks, columns, rows, warning, keys, index }
            .indexed()
    }

    fn indexed(mut self) -> Result<Self> {
        let (suite, columns) = (&self.suite, &self.columns);
        let is_key = |at: &usize| KEYS.contains(&columns[*at].as_str());
        // The order of the columns is the order of the key.
        self.keys = (0..columns.len()).filter(is_key).collect();
        for (number, row) in self.rows.iter().enumerate() {
            if row.len() != columns.len() {
                bail!("{suite}: row {number} has {} columns of {}", row.len(), columns.len());
            }
            let key = join(row, &self.keys);
            // A figure names its row by the key, so the key must be unique.
            if let Some(other) = self.index.insert(key.clone(), number) {
                bail!("{suite}: rows {other} and {number} are both of {key}");
            }
        }
        Ok(self)
    }

    /// Reads a file of `docs/results`.
    ///
    /// # Errors
    /// The text has another form.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        serde_json::from_str::<Self>(text)?.indexed()
    }

    /// Reads a file of `docs/results`, or a document of `everbyte-bench` with all its rows.
    ///
    /// # Errors
    /// The text has another form.
    pub(crate) fn of_any(text: &str) -> Result<Self> {
        let all: Value = serde_json::from_str(text)?;
        if all["environment"].is_null() {
            return Self::parse(text);
        }
        let (columns, rows, machine) = of_bench(text, &[], &[])?;
        let suite = all["suite"].as_str().context("no suite")?;
        let command = format!("-p everbyte-bench -- {suite}");
        let run =
            ["unknown".to_owned(), command, machine, "a document without a commit".to_owned()];
        let warning =
            meaningless(&all["environment"]).map(|why| format!("The figures mean nothing: {why}."));
        Ok(Self { warning, ..Self::new(suite, run, columns, rows)? })
    }

    /// The file's text.
    pub(crate) fn to_text(&self) -> String {
        let value = |text: &str| Value::from(text).to_string();
        let mut text = format!(
            "{{\"suite\": {},\n\"commit\": {},\n\"command\": {},\n\"machine\": {},\n\
             \"remarks\": {},\n\"columns\": {},\n\"rows\":\n[\n",
            value(&self.suite),
            value(&self.commit),
            value(&self.command),
            value(&self.machine),
            value(&self.remarks),
            Value::from(self.columns.clone()),
        );
        // One line for each row: file and line name a figure.
        for (number, row) in self.rows.iter().enumerate() {
            let comma = if number + 1 < self.rows.len() { "," } else { "" };
            let _ = writeln!(text, "{}{comma}", Value::from(row.clone()));
        }
        text.push_str("]}\n");
        text
    }

    /// The line of a row in its file, from 1 on.
    pub(crate) fn line(row: RowNo) -> usize {
        HEAD_LINES + row + 1
    }

    /// The row with a key: the key's columns in their order, with `|` between them.
    pub(crate) fn row(&self, key: &str) -> Option<RowNo> {
        self.index.get(key).copied()
    }

    /// The key of a row.
    pub(crate) fn key(&self, row: RowNo) -> String {
        join(&self.rows[row], &self.keys)
    }

    /// The number in a column of a row.
    pub(crate) fn number(&self, row: RowNo, column: &str) -> Option<f64> {
        let at = self.columns.iter().position(|name| name == column)?;
        match &self.rows[row][at] {
            Value::String(text) => text.parse().ok(),
            value => value.as_f64(),
        }
    }

    /// The words in a column of a row.
    pub(crate) fn word(&self, row: RowNo, column: &str) -> &str {
        let at = self.columns.iter().position(|name| name == column);
        at.and_then(|at| self.rows[row][at].as_str()).unwrap_or("")
    }

    /// Different words of a column, in the order of their first rows.
    pub(crate) fn words(&self, column: &str) -> Vec<&str> {
        let mut words = Vec::new();
        for row in 0..self.rows.len() {
            let word = self.word(row, column);
            if !words.contains(&word) {
                words.push(word);
            }
        }
        words
    }
}

fn join(row: &[Value], keys: &[usize]) -> String {
    let words: Vec<&str> = keys.iter().map(|&at| row[at].as_str().unwrap_or("")).collect();
    words.join("|")
}

/// The reason why the figures of an environment mean nothing.
pub(super) fn meaningless(about: &Value) -> Option<&'static str> {
    let is = |name: &str| about[name] == Value::Bool(true);
    match (is("debug_build"), is("quick")) {
        (true, _) => Some("a build with debug assertions"),
        (_, true) => Some("a smoke test, made with --quick"),
        _ => None,
    }
}

/// Columns and rows of a document of `everbyte-bench`, and its machine. Only metrics of `kept` and workloads with a
/// word of `workloads` are kept; empty lists keep all. Rows with the reason for a missing figure are always kept.
///
/// # Errors
/// The text has another form.
pub(crate) fn of_bench(
    text: &str,
    kept: &[String],
    workloads: &[String],
) -> Result<(Vec<String>, Vec<Vec<Value>>, String)> {
    let all: Value = serde_json::from_str(text)?;
    let about = &all["environment"];
    let mut rows = Vec::new();
    for row in all["rows"].as_array().context("no rows")? {
        let word = |name: &str| row[name].as_str().unwrap_or("").to_owned();
        let (metric, place) = (word("metric"), word("workload"));
        let is_kept = kept.is_empty() || kept.contains(&metric);
        let is_there =
            workloads.is_empty() || workloads.iter().any(|some| place.contains(some.as_str()));
        // A table without these rows would hide that a rival was not measured.
        if is_kept && is_there || metric == SKIPPED {
            let spread = &row["spread"];
            let mut cells: Vec<Value> = BENCH[..5].iter().map(|name| short(&row[*name])).collect();
            cells.extend([short(&spread["min"]), short(&spread["max"])]);
            rows.push(cells);
        }
    }
    let say = |name: &str| about[name].as_str().unwrap_or("unknown");
    let machine = format!(
        "{} cores of {}, Linux {}; {}; {} rounds of {} s; load average {} at the start",
        about["cores"],
        say("cpu"),
        say("kernel").split('-').next().unwrap_or(""),
        say("medium"),
        about["rounds"],
        about["slice_s"],
        about["load"],
    );
    Ok((BENCH.map(str::to_owned).to_vec(), rows, machine))
}

/// Columns and rows of comma-separated values. Traces lose their folders and endings.
///
/// # Errors
/// A line has another number of columns than the heading, or the heading lacks a kept one.
pub(crate) fn of_csv(text: &str, kept: &[String]) -> Result<(Vec<String>, Vec<Vec<Value>>)> {
    let mut lines = text.lines();
    let heading: Vec<&str> = lines.next().context("no heading")?.split(',').collect();
    let columns: Vec<&str> = match kept.is_empty() {
        true => heading.clone(),
        false => kept.iter().map(String::as_str).collect(),
    };
    let mut places = Vec::new();
    for name in &columns {
        let at = heading.iter().position(|found| found == name);
        places.push(at.with_context(|| format!("no column {name}"))?);
    }
    let mut rows = Vec::new();
    for line in lines {
        let cells: Vec<&str> = line.split(',').collect();
        // A comma in a name would shift all later columns.
        if cells.len() != heading.len() {
            bail!("{} columns of {}: {line}", cells.len(), heading.len());
        }
        rows.push(places.iter().map(|&at| csv_cell(heading[at], cells[at])).collect());
    }
    // Rows of a trace stand together, in any order of the files.
    rows.sort_by_key(|row: &Vec<Value>| row[0].to_string());
    Ok((columns.into_iter().map(str::to_owned).collect(), rows))
}

fn csv_cell(column: &str, cell: &str) -> Value {
    match column {
        "trace" => {
            // Other machines have the traces in other folders and compressed otherwise.
            let name = cell.rsplit('/').next().unwrap_or(cell);
            Value::from(name.split('.').next().unwrap_or(name))
        }
        "size" | "policy" | "backing" => Value::from(cell),
        _ => cell.parse::<u64>().map(Value::from).unwrap_or_else(|_| {
            cell.parse::<f64>().map_or_else(|_| Value::from(cell), |value| short(&value.into()))
        }),
    }
}

/// A number with at most six significant digits; integers and words as they are.
fn short(value: &Value) -> Value {
    match value.as_f64() {
        Some(number) if !value.is_u64() && number.is_finite() => {
            let text = format!("{number:.5e}");
            text.parse::<f64>().map_or(Value::Null, Value::from)
        }
        _ => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_file_reads_the_same() {
        let text = "trace,policy,size,backing,hits\na/web.csv,lru,10%,sd,7\nweb.csv,lru,20%,sd,8\n";
        let (columns, rows) = of_csv(text, &[]).unwrap();
        let run = ["c", "cargo", "m", "r"].map(str::to_owned);
        let results = Results::new("policies", run, columns, rows).unwrap();
        let written = results.to_text();
        let again = Results::parse(&written).unwrap();
        assert_eq!(again.to_text(), written);
        let row = again.row("web|lru|20%|sd").unwrap();
        assert_eq!(again.number(row, "hits"), Some(8.0));
        let line = written.lines().nth(Results::line(row) - 1).unwrap();
        assert_eq!(line, r#"["web","lru","20%","sd",8]"#);
    }

    #[test]
    fn reasons_for_missing_figures_are_kept() {
        let row = |workload: &str, metric: &str| {
            format!(r#"{{"subject":"ext4","workload":"{workload}","metric":"{metric}"}}"#)
        };
        let rows = [("all of them", "skipped"), ("all of them", "time"), ("reads", "time")];
        let rows = rows.map(|(workload, metric)| row(workload, metric)).join(",");
        let text = format!(r#"{{"environment":{{}},"rows":[{rows}]}}"#);
        let (columns, rows, _) =
            of_bench(&text, &["time".to_owned()], &["reads".to_owned()]).unwrap();
        let run = ["c", "cargo", "m", "r"].map(str::to_owned);
        let results = Results::new("consistency", run, columns, rows).unwrap();
        assert_eq!(results.row("ext4|all of them|skipped"), Some(0));
        assert_eq!(results.row("ext4|reads|time"), Some(1));
        assert_eq!(results.rows.len(), 2);
    }

    #[test]
    fn document_of_smoke_test_is_read_with_warning() {
        let text = r#"{"suite":"block","environment":{"quick":true},"rows":[{"subject":"a","workload":"w","metric":"m","value":1}]}"#;
        let results = Results::of_any(text).unwrap();
        assert!(results.warning.unwrap().contains("smoke test"));
        assert_eq!((results.suite.as_str(), results.rows.len()), ("block", 1));
        let text = text.replace("true", "false");
        assert_eq!(Results::of_any(&text).unwrap().warning, None);
    }

    #[test]
    fn rows_with_one_key_are_refused() {
        let text = "trace,policy,size,backing,hits\nweb,lru,10%,sd,7\nweb,lru,10%,sd,8\n";
        let (columns, rows) = of_csv(text, &[]).unwrap();
        let run = ["c", "cargo", "m", "r"].map(str::to_owned);
        let error = Results::new("policies", run, columns, rows).unwrap_err();
        assert_eq!(error.to_string(), "policies: rows 0 and 1 are both of web|lru|10%|sd");
    }

    #[test]
    fn numbers_keep_six_digits() {
        assert_eq!(short(&Value::from(0.964_670_349)), Value::from(0.96467));
        assert_eq!(short(&Value::from(123_456_789_u64)), Value::from(123_456_789_u64));
    }
}

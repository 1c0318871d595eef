//! Results as JSON, and as a short text with losses first.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result};

use crate::rows::{Results, Row};

/// Ratios in the text at most.
const RATIOS_MAX: usize = 60;
/// Beginnings of the names of our own subjects.
const OURS: [&str; 6] = ["everbyte", "region", "rollback", "nbd-everbyte", "nbd-cache", "hybrid"];

/// Writes the results to `output`, and to standard output as JSON or as text. Warns on standard error if the
/// figures mean nothing.
///
/// # Errors
/// A destination cannot be written.
pub(crate) fn publish(results: &Results, as_json: bool, output: Option<&Path>) -> Result<()> {
    let json = serde_json::to_string_pretty(results)?;
    if let Some(path) = output {
        fs::write(path, &json).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(warning) = results.environment.warning() {
        // A closed standard error changes nothing.
        let _unwritten = writeln!(io::stderr(), "everbyte-bench: warning: {warning}");
    }
    let mut out = io::stdout().lock();
    match as_json {
        true => writeln!(out, "{json}")?,
        false => write(results, &mut out)?,
    }
    Ok(())
}

/// Returns how much a ratio of ours loses: more than 1 is a loss. `None` for other rows.
fn loss(row: &Row) -> Option<f64> {
    let is_ours = OURS.iter().any(|own| row.subject.starts_with(own));
    let value = row.value.filter(|value| *value > 0.0 && is_ours && row.unit == "ratio")?;
    let (figure, _) = row.metric.split_once("_to_")?;
    let is_rate = figure.ends_with("rate") || figure.starts_with("tpmc");
    Some(if is_rate { 1.0 / value } else { value })
}

fn write(results: &Results, out: &mut impl Write) -> io::Result<()> {
    let rows = results.rows.iter();
    let mut ratios: Vec<(f64, &Row)> =
        rows.clone().filter_map(|row| Some((loss(row)?, row))).collect();
    ratios.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    let losses = ratios.iter().filter(|(loss, _)| *loss > 1.0).count();
    writeln!(
        out,
        "{}: {} rows; {losses} of {} ratios are losses",
        results.suite,
        rows.len(),
        ratios.len()
    )?;
    for (loss, row) in ratios.iter().take(RATIOS_MAX) {
        line(row, if *loss > 1.0 { "loss" } else { "" }, out)?;
    }
    for row in results.rows.iter().filter(|row| row.value.is_none()) {
        line(row, "", out)?;
    }
    if ratios.is_empty() {
        results
            .rows
            .iter()
            .filter(|row| row.value.is_some())
            .try_for_each(|row| line(row, "", out))?;
    }
    writeln!(out, "all rows: --json, or --output FILE")
}

fn line(row: &Row, mark: &str, out: &mut impl Write) -> io::Result<()> {
    let Row { subject, workload, metric, unit, .. } = row;
    match (row.value, &row.note) {
        (Some(value), _) => {
            let spread =
                row.spread.map_or(String::new(), |s| format!("  [{:.2}, {:.2}]", s.q1, s.q3));
            writeln!(
                out,
                "{mark:<5}{value:>12.2} {unit:<8} {subject:<18} {workload}, {metric}{spread}"
            )
        }
        (None, note) => {
            let why = note.as_deref().unwrap_or("not measured");
            writeln!(out, "{mark:<5}{:>12} {unit:<8} {subject:<18} {workload}: {why}", "-")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Environment;
    use crate::rows::exact;

    #[test]
    fn text_of_ratios_begins_with_losses() {
        let rows = vec![
            exact("everbyte", "reads", "rate_to_tmpfs", "ratio", 2.0),
            exact("everbyte", "writes", "rate_to_tmpfs", "ratio", 0.25),
            exact("everbyte", "writes", "time_to_floor", "ratio", 3.0),
            exact("ext4", "writes", "time_to_floor", "ratio", 9.0),
            Row::skipped("ext4", "reads", "needs root".to_owned()),
        ];
        let environment = Environment::new("/dev/shm".as_ref(), 1, 0.0, false);
        let mut text = Vec::new();
        write(&Results { suite: "files", environment, rows }, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "files: 5 rows; 2 of 3 ratios are losses");
        assert!(lines[1].starts_with("loss") && lines[1].contains("0.25"), "{text}");
        assert!(lines[2].contains("3.00") && lines[3].contains("2.00"), "{text}");
        assert!(lines[4].ends_with("reads: needs root") && lines.len() == 6, "{text}");
    }
}

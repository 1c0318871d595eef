//! Tables for the terminal: policies by size, or all figures of each simulation.

use clap::ValueEnum;

use super::groups::{Group, groups};
use super::results::{Row, as_f64};
use super::winners::{self, Contest};
use crate::output::{self, Column};
use crate::size::show_size;

/// Widest table of policies by size; more sizes continue below.
const WIDTH_MAX: usize = 80;
/// Spaces between columns.
const GAP: usize = 2;

/// A figure of each simulation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Figure {
    /// Accesses with their page in the cache, in percent.
    Hits,
    /// Seconds of all steps.
    Time,
    /// Seconds with the write-back of dirty pages at the end.
    Drain,
    /// Seconds with a drain, and with the same memory for policies of one tier.
    SameMemory,
    /// Thousands of writes to SCM.
    ScmWrites,
    /// MiB written to SCM.
    ScmBytes,
    /// Thousands of pages fetched from the backing device.
    Fetched,
    /// Thousands of pages written to the backing device.
    Written,
}

impl Figure {
    fn title(self) -> &'static str {
        match self {
            Self::Hits => "hits, %",
            Self::Time => "time, s",
            Self::Drain => "with drain, s",
            Self::SameMemory => "same memory, s",
            Self::ScmWrites => "SCM writes, 1000",
            Self::ScmBytes => "SCM, MiB",
            Self::Fetched => "fetched, 1000",
            Self::Written => "written, 1000",
        }
    }

    fn cell(self, row: &Row, rows: &[Row]) -> String {
        let outcome = &row.outcome;
        let thousands = |count: u64| digits(as_f64(count) / 1000.0);
        match self {
            Self::Hits => format!("{:.1}", 100.0 * outcome.hit_ratio()),
            Self::Time => digits(row.seconds()),
            Self::Drain => digits(row.seconds_with_drain()),
            Self::SameMemory => {
                row.seconds_with_same_memory(rows).map_or_else(|| "-".to_owned(), digits)
            }
            Self::ScmWrites => thousands(outcome.scm.writes),
            Self::ScmBytes => digits(as_f64(outcome.scm.bytes) / 1_048_576.0),
            Self::Fetched => thousands(outcome.backing.pages_read),
            Self::Written => thousands(outcome.backing.pages_written),
        }
    }

    fn contest(self) -> Option<Contest> {
        match self {
            Self::Hits => Some(winners::HITS),
            Self::SameMemory => Some(winners::TIME),
            Self::ScmBytes => Some(winners::SCM_BYTES),
            Self::Time | Self::Drain | Self::ScmWrites | Self::Fetched | Self::Written => None,
        }
    }
}

/// A number in about four characters.
fn digits(value: f64) -> String {
    match value.abs() {
        // The limits lie at the rounding, so that 99.96 has three digits as 100.
        large if large >= 99.95 => format!("{value:.0}"),
        large if large >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Prints a table of policies by size for each group of rows and each figure.
pub(super) fn show(rows: &[Row], figures: &[Figure]) {
    for (at, group) in groups(rows).iter().enumerate() {
        if at > 0 {
            output::line("");
        }
        output::line(&group.name);
        output::line(group.trace_figures());
        for figure in figures {
            output::line("");
            lines(group, *figure).iter().for_each(output::line);
        }
    }
}

fn lines(group: &Group, figure: Figure) -> Vec<String> {
    let rows = &group.rows;
    let mut policies = Vec::new();
    for row in rows {
        if !policies.contains(&row.setting.policy) {
            policies.push(row.setting.policy);
        }
    }
    let first: Vec<&str> = std::iter::once(figure.title())
        .chain(policies.iter().map(|policy| policy.name()))
        .collect();
    let columns = winners::sizes(rows).into_iter().map(|size| {
        let cell = |policy| {
            let found = rows.iter().find(|r| r.setting.policy == policy && r.setting.size == size);
            found.map_or_else(|| "-".to_owned(), |row| figure.cell(row, rows))
        };
        let cells = policies.iter().map(|policy| cell(*policy));
        std::iter::once(size.to_string()).chain(cells).collect()
    });
    let mut lines = in_blocks(&first, &columns.collect::<Vec<Vec<String>>>());
    if let Some(contest) = figure.contest() {
        lines.extend(best(rows, &contest));
    }
    lines
}

/// A table with `first` on the left, in blocks of as many columns as the width allows.
fn in_blocks(first: &[&str], columns: &[Vec<String>]) -> Vec<String> {
    let width = |cells: &mut dyn Iterator<Item = usize>| cells.max().unwrap_or(0);
    let left = width(&mut first.iter().map(|cell| cell.chars().count()));
    let mut lines = Vec::new();
    let mut rest = columns;
    while !rest.is_empty() {
        let (mut used, mut count) = (left, 0);
        let widths: Vec<usize> = rest
            .iter()
            .map(|cells| width(&mut cells.iter().map(|cell| cell.chars().count())))
            .collect();
        // At least one column for each block, or a narrow width would never end.
        while count < rest.len() && (count == 0 || used + GAP + widths[count] <= WIDTH_MAX) {
            used += GAP + widths[count];
            count += 1;
        }
        if !lines.is_empty() {
            lines.push(String::new());
        }
        for (at, name) in first.iter().enumerate() {
            let mut line = format!("{name:<left$}");
            for (cells, width) in rest[..count].iter().zip(&widths) {
                line += &format!("{:GAP$}{:>width$}", "", cells[at]);
            }
            lines.push(line);
        }
        rest = &rest[count..];
    }
    lines
}

/// The best policies by size, with one entry for a policy's successive sizes.
fn best(rows: &[Row], contest: &Contest) -> Vec<String> {
    let mut runs: Vec<(String, Vec<String>)> = Vec::new();
    for size in winners::sizes(rows) {
        let Some(winners) = contest.winners(rows, size) else { continue };
        let names = winners.names();
        match runs.last_mut() {
            // Consecutive sizes with the same winners share a line.
            Some((before, sizes)) if *before == names => sizes.push(size.to_string()),
            _ => runs.push((names, vec![size.to_string()])),
        }
    }
    let runs = runs.iter().map(|(names, sizes)| match sizes.as_slice() {
        [first, .., last] => format!("best at {first} to {last}: {names}"),
        sizes => format!("best at {}: {names}", sizes.concat()),
    });
    runs.collect()
}

/// Prints all figures of each simulation.
pub(super) fn show_details(rows: &[Row]) {
    let columns = [
        Column::Right("SIZE"),
        Column::Left("POLICY"),
        Column::Right("HITS"),
        Column::Right("SCM WRITES"),
        Column::Right("<=512 B"),
        Column::Right("SCM BYTES"),
        Column::Right("FETCHED"),
        Column::Right("WRITTEN"),
        Column::Right("TIME"),
        Column::Right("WITH DRAIN"),
        Column::Right("SAME MEMORY"),
    ];
    let percent = |share: f64| format!("{:.2}%", share * 100.0);
    for (at, group) in groups(rows).iter().enumerate() {
        if at > 0 {
            output::line("");
        }
        output::line(&group.name);
        output::line(group.trace_figures());
        output::line("");
        let cells = group.rows.iter().map(|row| {
            let outcome = &row.outcome;
            let same_memory = row.seconds_with_same_memory(&group.rows);
            [
                row.setting.size.to_string(),
                row.setting.policy.name().to_owned(),
                percent(outcome.hit_ratio()),
                outcome.scm.writes.to_string(),
                percent(row.small_share()),
                show_size(outcome.scm.bytes),
                outcome.backing.pages_read.to_string(),
                outcome.backing.pages_written.to_string(),
                format!("{:.3} s", row.seconds()),
                format!("{:.3} s", row.seconds_with_drain()),
                same_memory.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.3} s")),
            ]
        });
        output::table(columns, &cells.collect::<Vec<_>>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_sizes_of_all_policies_fit_80_columns() {
        let first = ["hits, %", "hybrid-drop-unused"];
        let column = |size: usize| vec![format!("{size}%"), "99.9".to_owned()];
        let columns: Vec<_> = (1..=10).map(|tenth| column(10 * tenth)).collect();
        let lines = in_blocks(&first, &columns);
        assert_eq!(lines.len(), 2);
        assert!(lines.iter().all(|line| line.len() <= WIDTH_MAX), "{lines:#?}");
        let many: Vec<_> = (1..=40).map(column).collect();
        let lines = in_blocks(&first, &many);
        assert!(lines.len() > 4 && lines.iter().all(|line| line.len() <= WIDTH_MAX), "{lines:#?}");
        assert_eq!(lines.concat().matches("99.9").count(), 40);
    }
}

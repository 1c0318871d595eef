//! Outcomes of all rounds, and their rows.
//!
//! Invariants: outcomes arrive in the order of rounds. A failed measurement leaves a row with the reason, without
//! figures and without ratios.

use anyhow::Result;

use super::drive::Outcome;
use super::personality::Operation;
use crate::rows::{Row, metric, timed};
use crate::stats::as_f64;

/// Name of the metric that compares with the paper's file system.
pub(crate) const TO_REFERENCE: &str = "rate_to_pmfs_radix";

/// One subject at one workload.
struct Cell {
    subject: String,
    workload: String,
    note: Option<String>,
    outcomes: Vec<Outcome>,
    failed: Option<String>,
}

/// All of them, in the order in which they were first measured.
#[derive(Default)]
pub(crate) struct Collected(Vec<Cell>);

impl Collected {
    fn cell(&mut self, subject: &str, workload: &str) -> &mut Cell {
        let is_it = |cell: &Cell| cell.subject == subject && cell.workload == workload;
        let at = self.0.iter().position(is_it).unwrap_or_else(|| {
            let (subject, workload) = (subject.to_owned(), workload.to_owned());
            let (note, outcomes, failed) = (None, Vec::new(), None);
            self.0.push(Cell { subject, workload, note, outcomes, failed });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    /// Adds an outcome, or the reason why there is none.
    pub(crate) fn push(
        &mut self,
        subject: &str,
        workload: &str,
        note: Option<&str>,
        outcome: Result<Outcome>,
    ) {
        let cell = self.cell(subject, workload);
        match outcome {
            Ok(outcome) => {
                cell.note = note.map(str::to_owned);
                cell.outcomes.push(outcome);
            }
            Err(error) => cell.failed = Some(format!("{error:#}")),
        }
    }

    /// The rows, with ratios to the subject `reference` at the same workload.
    pub(crate) fn rows(&self, reference: &str) -> Vec<Row> {
        self.0.iter().flat_map(|cell| self.rows_of(cell, reference)).collect()
    }

    /// Ratios of a subject's rates at a workload to those of `reference` in the same rounds; `None` unless both were
    /// measured and neither ever failed: after a failure, outcomes of one round have no longer one place.
    pub(crate) fn ratios(
        &self,
        subject: &str,
        workload: &str,
        reference: &str,
    ) -> Option<Vec<f64>> {
        let whole = |name: &str| {
            let is_it = |cell: &&Cell| cell.subject == name && cell.workload == workload;
            self.0.iter().find(is_it).filter(|cell| cell.failed.is_none())
        };
        let (own, reference) = (whole(subject)?, whole(reference)?);
        let pairs = own.outcomes.iter().zip(&reference.outcomes);
        Some(pairs.map(|(own, other)| own.rate() / other.rate()).collect())
    }

    fn rows_of(&self, cell: &Cell, reference: &str) -> Vec<Row> {
        if let Some(why) = &cell.failed {
            return vec![Row::skipped(&cell.subject, &cell.workload, why.clone())];
        }
        let mut rows = Vec::new();
        let mut push =
            |metric, unit, figures: Vec<f64>| rows.extend(cell.row(metric, unit, &figures));
        let all = |of: &dyn Fn(&Outcome) -> f64| cell.outcomes.iter().map(of).collect::<Vec<_>>();
        push(metric::RATE, "1/s", all(&Outcome::rate));
        if let Some(ratios) = self.ratios(&cell.subject, &cell.workload, reference) {
            push(TO_REFERENCE, "ratio", ratios);
        }
        push("durable_rate", "1/s", all(&Outcome::durable_rate));
        push("sync_time", "ms", all(&|outcome| outcome.sync.as_secs_f64() * 1e3));
        let per_second =
            |bytes: u64, outcome: &Outcome| as_f64(bytes) / 1e6 / outcome.elapsed.as_secs_f64();
        push("read", "MB/s", all(&|outcome| per_second(outcome.read_bytes, outcome)));
        push("written", "MB/s", all(&|outcome| per_second(outcome.written_bytes, outcome)));
        for operation in Operation::ALL {
            for (name, percent) in operation.metrics().into_iter().zip([50.0, 99.0]) {
                let latency = |outcome: &Outcome| outcome.latency_us(operation, percent);
                push(name, "us", cell.outcomes.iter().filter_map(latency).collect());
            }
        }
        rows
    }
}

impl Cell {
    fn row(&self, metric: &'static str, unit: &'static str, figures: &[f64]) -> Option<Row> {
        let row = timed(&self.subject, &self.workload, metric, unit, figures)?;
        Some(Row { note: self.note.clone(), ..row })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use anyhow::anyhow;

    use super::*;

    fn outcome(operations: u64) -> Outcome {
        let mut outcome = Outcome::default();
        outcome.operations = operations;
        outcome.elapsed = Duration::from_secs(1);
        outcome
    }

    /// Three rounds of a subject, and of a reference that fails where it has no rate.
    fn collected(reference: [Option<u64>; 3]) -> Collected {
        let mut collected = Collected::default();
        for (own, other) in [10, 20, 60].into_iter().zip(reference) {
            let other = other.map(outcome).ok_or_else(|| anyhow!("no memory"));
            collected.push("reference", "w", None, other);
            collected.push("own", "w", None, Ok(outcome(own)));
        }
        collected
    }

    #[test]
    fn ratios_need_complete_rounds() {
        let has_ratio = |collected: &Collected| {
            let rows = collected.rows("reference");
            rows.iter().any(|row| row.subject == "own" && row.metric == TO_REFERENCE)
        };
        let whole = collected([Some(10), Some(10), Some(20)]);
        assert_eq!(whole.ratios("own", "w", "reference"), Some(vec![1.0, 2.0, 3.0]));
        assert!(has_ratio(&whole));
        let failed = collected([Some(10), None, Some(20)]);
        assert_eq!(failed.ratios("own", "w", "reference"), None);
        assert!(!has_ratio(&failed));
        assert_eq!(whole.ratios("own", "w", "other"), None);
    }
}

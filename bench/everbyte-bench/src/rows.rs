//! The results as JSON.
//!
//! The document is `{"suite", "environment", "rows"}`. A row has one figure of one subject at one workload.
//! `docs/benchmarks.md` explains subjects, workloads and metrics.

use serde::Serialize;

use crate::environment::Environment;
use crate::stats::{Spread, summarise};

/// Rows of a run, with its environment.
#[derive(Debug, Serialize)]
pub(crate) struct Results {
    pub(crate) suite: &'static str,
    pub(crate) environment: Environment,
    pub(crate) rows: Vec<Row>,
}

/// One figure.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) subject: String,
    pub(crate) workload: String,
    pub(crate) metric: &'static str,
    /// The median of the rounds, or the mean of an exact count. Null without a figure.
    pub(crate) value: Option<f64>,
    pub(crate) unit: &'static str,
    /// Null for exact counts: noise does not scatter them. Counts of rounds with a time limit have a spread.
    pub(crate) spread: Option<Spread>,
    /// The reason for a missing value, or a hint for readers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}

/// Names of metrics of several suites.
pub(crate) mod metric {
    pub(crate) const RATE: &str = "rate";
    pub(crate) const TIME: &str = "time";
    pub(crate) const CPU: &str = "cpu";
    pub(crate) const CPU_TO_FLOOR: &str = "cpu_to_floor";
    pub(crate) const TO_FLOOR: &str = "time_to_floor";
    pub(crate) const TIME_TO_NULL: &str = "time_to_null";
    pub(crate) const SCALING: &str = "rate_to_one_thread";
    pub(crate) const SERVER_CPU: &str = "server_cpu";
    pub(crate) const MEDIA_BYTES: &str = "media_bytes_per_byte";
}

impl Row {
    fn new(
        subject: &str,
        workload: &str,
        metric: &'static str,
        unit: &'static str,
        value: Option<f64>,
    ) -> Self {
        let (subject, workload) = (subject.to_owned(), workload.to_owned());
        Self { subject, workload, metric, value, unit, spread: None, note: None }
    }

    /// A row with the reason for a missing figure.
    pub(crate) fn skipped(subject: &str, workload: &str, why: String) -> Self {
        Self { note: Some(why), ..Self::new(subject, workload, "skipped", "", None) }
    }
}

/// The row of a figure of every round; `None` without a figure, or if a figure is not finite.
pub(crate) fn timed(
    subject: &str,
    workload: &str,
    metric: &'static str,
    unit: &'static str,
    figures: &[f64],
) -> Option<Row> {
    let (median, spread) = summarise(figures)?;
    let row = Row::new(subject, workload, metric, unit, Some(median));
    Some(Row { spread: Some(spread), ..row })
}

/// The row of an exact figure.
pub(crate) fn exact(
    subject: &str,
    workload: &str,
    metric: &'static str,
    unit: &'static str,
    value: f64,
) -> Row {
    Row::new(subject, workload, metric, unit, Some(value))
}

//! The results as JSON.
//!
//! The document is `{"suite", "environment", "rows"}`. A row has one figure of one subject at one workload.
//! `docs/benchmarks.md` explains subjects, workloads and metrics.

use serde::Serialize;

use crate::environment::Environment;
use crate::stats::{Spread, summarise};

/// Everything that a run found out.
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
    /// The median of the rounds, or the mean of an exact count; null where there is none.
    pub(crate) value: Option<f64>,
    pub(crate) unit: &'static str,
    /// Null for exact counts, which do not scatter by noise, unless time cut rounds short.
    pub(crate) spread: Option<Spread>,
    /// The reason for a missing value, or a hint for readers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}

/// Names of metrics that more than one place needs.
pub(crate) mod metric {
    pub(crate) const RATE: &str = "rate";
    pub(crate) const TIME: &str = "time";
    pub(crate) const CPU: &str = "cpu";
    pub(crate) const CPU_TO_FLOOR: &str = "cpu_to_floor";
    pub(crate) const TO_FLOOR: &str = "time_to_floor";
    pub(crate) const TO_PLACES: &str = "time_to_places";
    pub(crate) const TO_NULL: &str = "rate_to_null";
    pub(crate) const TIME_TO_NULL: &str = "time_to_null";
    pub(crate) const SCALING: &str = "rate_to_one_thread";
    pub(crate) const SERVER_CPU: &str = "server_cpu";
    pub(crate) const MEDIA_BYTES: &str = "media_bytes_per_byte";
    pub(crate) const TO_BACKING: &str = "rate_to_backing";
    pub(crate) const COUNTED_RATE: &str = "counted_rate";
    pub(crate) const COUNTED_TO_BACKING: &str = "counted_rate_to_backing";
    /// Of `COUNTED_TO_BACKING`: what it would be if nothing took time but misses.
    pub(crate) const BOUND: &str = "counted_rate_to_backing_at_most";
    pub(crate) const HITS: &str = "hits";
    pub(crate) const HITS_SIMULATED: &str = "hits_simulated";
    pub(crate) const SKIPPED: &str = "skipped";
}

impl Row {
    /// A row that says why there is no figure.
    pub(crate) fn skipped(subject: &str, workload: &str, why: String) -> Self {
        Self {
            subject: subject.to_owned(),
            workload: workload.to_owned(),
            metric: metric::SKIPPED,
            value: None,
            unit: "",
            spread: None,
            note: Some(why),
        }
    }
}

/// The row of a figure that was measured in every round, if it was.
pub(crate) fn timed(
    subject: &str,
    workload: &str,
    metric: &'static str,
    unit: &'static str,
    figures: &[f64],
) -> Option<Row> {
    let (median, spread) = summarise(figures)?;
    Some(Row {
        subject: subject.to_owned(),
        workload: workload.to_owned(),
        metric,
        value: Some(median),
        unit,
        spread: Some(spread),
        note: None,
    })
}

/// The row of an exact figure.
pub(crate) fn exact(
    subject: &str,
    workload: &str,
    metric: &'static str,
    unit: &'static str,
    value: f64,
) -> Row {
    Row {
        subject: subject.to_owned(),
        workload: workload.to_owned(),
        metric,
        value: Some(value),
        unit,
        spread: None,
        note: None,
    }
}

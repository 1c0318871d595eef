//! The claims of the paper about IOzone-like writes next to the measured ratios.
//!
//! "145% to 216% of Opt-J" is a ratio of speeds or a gain over the other speed. A gain is a ratio minus one, so both
//! readings have rows. A speed is a ratio of times in the same round, from the rows of [`super::matrix`]. The memory of
//! the paper was DRAM, with durability at checkpoints.

use super::{EXT4, OURS, OURS_PUBLISHED};
use crate::baselines::Kind;
use crate::rows::{Row, exact};

/// The subject of the paper's numbers.
const PAPER: &str = "paper";
/// Speed as a multiple of the other scheme's: least and most over the matrix, and the mean.
const METRICS: [&str; 3] = ["speed_least", "speed_most", "speed_mean"];

/// Claim, the other schemes of published and of our rollback, and least, most and mean of the paper.
type Claim = (&'static str, [&'static str; 2], [Option<f64>; 3]);

const REDO: [&str; 2] = [Kind::RedoPublished.name(), Kind::RedoImproved.name()];
const JOURNAL: [Option<f64>; 3] = [Some(2.0), Some(21.0), Some(9.0)];

const CLAIMS: [Claim; 6] = [
    ("\"145% to 216%\" of redo, as a ratio", REDO, [Some(1.45), Some(2.16), None]),
    ("\"145% to 216%\" of redo, as a gain", REDO, [Some(2.45), Some(3.16), None]),
    ("a block journal in order", [Kind::JournalOrdered.name(); 2], JOURNAL),
    ("a block journal with data", [Kind::JournalData.name(); 2], JOURNAL),
    ("ext4 in order, on a loop device", [EXT4[1].0; 2], JOURNAL),
    ("ext4 with data, on a loop device", [EXT4[0].0; 2], JOURNAL),
];

/// Rows of each claim, from the rows of the matrix.
pub(super) fn rows(found: &[Row]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (words, others, published) in CLAIMS {
        for (own, other) in [OURS_PUBLISHED, OURS].into_iter().zip(others) {
            let base = own.replace('-', "_");
            for (metric, part) in METRICS.into_iter().zip(["min", "max", "mean"]) {
                let wanted = format!("time_to_{base}_{part}");
                let row = found.iter().find(|row| {
                    row.subject == other
                        && row.metric == wanted
                        && row.workload == "dram: all IOzone-like writes, checkpoint"
                });
                let (subject, workload) = (own.to_owned(), words.to_owned());
                rows.extend(row.cloned().map(|row| Row {
                    subject,
                    workload,
                    metric,
                    note: None,
                    ..row
                }));
            }
        }
        for (metric, value) in METRICS.into_iter().zip(published) {
            rows.extend(value.map(|value| exact(PAPER, words, metric, "ratio", value)));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::timed;

    #[test]
    fn speeds_are_the_other_schemes_times() {
        let title = "dram: all IOzone-like writes, checkpoint";
        let found = [
            exact("redo-published", title, "time_to_rollback_published_min", "ratio", 0.5),
            exact("redo-published", title, "time_to_rollback_min", "ratio", 0.7),
            timed("redo-improved", title, "time_to_rollback_min", "ratio", &[0.7, 0.8, 1.0])
                .unwrap(),
            exact("redo-published", "pcm: others", "time_to_rollback_published_max", "ratio", 9.0),
        ];
        let rows = rows(&found);
        let row = |subject: &str, metric: &str| {
            let fits = |row: &&Row| {
                row.subject == subject
                    && row.metric == metric
                    && row.workload.ends_with("as a gain")
            };
            rows.iter().find(fits)
        };
        let value = |subject: &str, metric: &str| row(subject, metric).and_then(|row| row.value);
        let spread = row("rollback", "speed_least").and_then(|row| row.spread).unwrap();
        assert_eq!([spread.min, spread.max], [0.7, 1.0]);
        assert_eq!(value("rollback-published", "speed_least"), Some(0.5));
        assert_eq!(value("rollback", "speed_least"), Some(0.8));
        assert_eq!(value("rollback-published", "speed_most"), None);
        assert_eq!(value("paper", "speed_least"), Some(2.45));
        assert_eq!(value("paper", "speed_mean"), None);
    }
}

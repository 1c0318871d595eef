//! The paper's claims about IOzone-like writes, read in both ways, compared with the measurements.
//!
//! "145% to 216% of Opt-J" can be a ratio of speeds, or a gain over the other speed. A gain is a ratio larger by one. A
//! speed is a ratio of times in the same round, from the rows of [`super::matrix`]. The paper's memory was DRAM, with
//! durability at checkpoints.

use super::{OURS, OURS_PUBLISHED};
use crate::baselines::Kind;
use crate::rows::{Row, exact};

/// The subject that has the paper's numbers.
pub(super) const PAPER: &str = "paper";
/// Speed as a multiple of the other's: least and most over the matrix, and the mean.
pub(super) const METRICS: [&str; 3] = ["speed_least", "speed_most", "speed_mean"];

/// A claim about rollback and another scheme.
struct Claim {
    words: &'static str,
    /// The other scheme beside rollback as published, and beside ours.
    others: [&'static str; 2],
    /// Least and most of the paper, and its mean where it tells one.
    published: [Option<f64>; 3],
}

const JOURNAL: [Option<f64>; 3] = [Some(2.0), Some(21.0), Some(9.0)];
const REDO: [&str; 2] = [Kind::RedoPublished.name(), Kind::RedoImproved.name()];

const CLAIMS: [Claim; 6] = [
    Claim {
        words: "\"145% to 216%\" of redo, as a ratio",
        others: REDO,
        published: [Some(1.45), Some(2.16), None],
    },
    Claim {
        words: "\"145% to 216%\" of redo, as a gain",
        others: REDO,
        published: [Some(2.45), Some(3.16), None],
    },
    Claim {
        words: "a block journal in order",
        others: [Kind::JournalOrdered.name(); 2],
        published: JOURNAL,
    },
    Claim {
        words: "a block journal with data",
        others: [Kind::JournalData.name(); 2],
        published: JOURNAL,
    },
    Claim {
        words: "ext4 in order, on a loop device",
        others: ["ext4-ordered"; 2],
        published: JOURNAL,
    },
    Claim {
        words: "ext4 with data, on a loop device",
        others: ["ext4-journal"; 2],
        published: JOURNAL,
    },
];

/// Rows of every claim, by what the matrix found.
pub(super) fn rows(found: &[Row]) -> Vec<Row> {
    let mut rows = Vec::new();
    for claim in &CLAIMS {
        for (own, other) in [OURS_PUBLISHED, OURS].into_iter().zip(claim.others) {
            let base = own.replace('-', "_");
            for (metric, part) in METRICS.into_iter().zip(["min", "max", "mean"]) {
                let wanted = format!("time_to_{base}_{part}");
                let row = found.iter().find(|row| {
                    row.subject == other
                        && row.metric == wanted
                        && row.workload == "dram: all IOzone-like writes, checkpoint"
                });
                rows.extend(row.map(|row| Row {
                    subject: own.to_owned(),
                    workload: claim.words.to_owned(),
                    metric,
                    note: None,
                    ..row.clone()
                }));
            }
        }
        for (metric, value) in METRICS.into_iter().zip(claim.published) {
            rows.extend(value.map(|value| exact(PAPER, claim.words, metric, "ratio", value)));
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

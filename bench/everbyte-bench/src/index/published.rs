//! Published figures of the paper on index structures, as rows.

use super::collected::TO_REFERENCE;
use super::misses::{MISS_RATE, misses_title};
use super::personality::Personality;
use super::{Settings, title};
use crate::rows::{Row, exact};
use crate::stats::as_f64;

/// Subject of published numbers.
const PAPER: &str = "paper";

fn published_row(
    workload: &str,
    metric: &'static str,
    unit: &'static str,
    value: f64,
    note: &str,
) -> Row {
    let note = Some(note.to_owned()).filter(|note| !note.is_empty());
    Row { note, ..exact(PAPER, workload, metric, unit, value) }
}

/// The paper's numbers for the measured workloads.
pub(super) fn rows(settings: &Settings<'_>) -> Vec<Row> {
    let mut rows = Vec::new();
    for &personality in &settings.personalities {
        let Some(line) = personality.published() else { continue };
        let mut push = |metric, unit, value| {
            rows.push(published_row(personality.name(), metric, unit, value, ""));
        };
        push("file_size", "KiB", as_f64(line.file_kib));
        push("threads", "", as_f64(line.threads as u64));
        push("reads", "%", as_f64(line.reads_percent));
    }
    for (personality, files, value, note) in [
        (Personality::Createfiles, 2_560_000, 1.09, "direct mapping, over the B-tree of PMFS"),
        (Personality::Fileserver, 640_000, 1.05, "direct mapping, over the B-tree of PMFS"),
        (Personality::Webserver, 640_000, 1.0, "no difference between the structures"),
    ] {
        if settings.files_of(personality).contains(&files) {
            let workload = title(personality, files, personality.threads());
            rows.push(published_row(&workload, TO_REFERENCE, "ratio", value, note));
        }
    }
    for (personality, value, note) in [
        (Personality::Webproxy, 50.0, "over 50% with every structure"),
        (Personality::Webserver, 1.0, "under 1% with every structure"),
    ] {
        if settings.files_max() == 640_000 {
            let workload = misses_title(personality, 640_000, personality.threads());
            rows.push(published_row(&workload, MISS_RATE, "%", value, note));
        }
    }
    rows
}

//! Filebench's workloads on our file system in process, with each index: the paper's Table 1 and Figure 2.
//!
//! Invariant: in a round all indexes get the same file set, in direct succession.

use anyhow::Result;
use everbyte_fs::IndexKind;

use super::cases::{Case, Outcomes, make_library, measure_and};
use super::collected::Collected;
use super::drive::Outcome;
use super::file_set::FileSet;
use super::personality::{Operation, Personality};
use super::place::Setting;
use super::share::{self, Share, Shares};
use super::{REFERENCE, Settings};
use crate::rows::{Row, exact};
use crate::stats::as_f64;

/// Percent of reads among reads, writes and appends of whole files and parts.
fn reads_percent(outcome: &Outcome) -> f64 {
    let reads = as_f64(outcome.count(Operation::Read));
    let writes = outcome.count(Operation::Write) + outcome.count(Operation::Append);
    100.0 * reads / (reads + as_f64(writes)).max(1.0)
}

/// Measures every workload with every index; returns the outcomes of all rounds besides their rows.
///
/// # Errors
/// It is to stop.
pub(super) fn run(settings: &Settings<'_>) -> Result<(Collected, Vec<Row>)> {
    let (mut collected, mut shares, mut table) =
        (Collected::default(), Shares::default(), Vec::new());
    let sizes: usize = settings.personalities.iter().map(|&p| settings.files_of(p).len()).sum();
    settings.progress.inc_length((settings.rounds * sizes * settings.indexes.len()) as u64);
    for round in 0..settings.rounds {
        for &personality in &settings.personalities {
            for files in settings.files_of(personality) {
                let set = FileSet::new(personality, files);
                let case =
                    Case { personality, set: &set, threads: settings.threads_of(personality) };
                for (place, &index) in settings.indexes.iter().enumerate() {
                    let is_largest = files == settings.files_max();
                    let is_first = round == 0 && place == 0 && is_largest;
                    let (outcomes, share) = one_index(settings, &case, index, is_largest)?;
                    if let Some((.., Ok(outcome))) = outcomes.last().filter(|_| is_first) {
                        table.extend(table_rows(&case, outcome));
                    }
                    for (threads, note, outcome) in outcomes {
                        let title = settings.title(personality, files, threads);
                        collected.push(index.name(), &title, note, outcome);
                    }
                    if let Some(share) = share {
                        shares.push(index, personality, files, share);
                    }
                    settings.progress.inc(1);
                }
            }
        }
    }
    let mut rows = collected.rows(REFERENCE.name());
    rows.extend(shares.rows());
    rows.extend(table);
    Ok((collected, rows))
}

/// The outcomes of an index, and its share of an operation's time if that is wanted.
fn one_index(
    settings: &Settings<'_>,
    case: &Case<'_>,
    index: IndexKind,
    with_share: bool,
) -> Result<(Outcomes, Option<Result<Share>>)> {
    settings.progress.set_message(format!("{} {}", case.personality.name(), index.name()));
    let (personality, setting) = (case.personality, Setting::of(index));
    // Whoever makes the whole file set has left nothing to make.
    let on_new = with_share && personality == Personality::Createfiles;
    let mut share = None;
    let outcomes = measure_and(
        settings,
        case,
        || make_library(settings, &setting, case),
        |filled| {
            let wanted = with_share && !on_new;
            share = wanted.then(|| share::measure(settings, personality, &setting, filled));
        },
    );
    if on_new {
        share = Some(share::measure_on_new(settings, case, &setting));
    }
    settings.check_stop()?;
    Ok((outcomes, share))
}

/// The lines of Table 1 as they came out.
fn table_rows(case: &Case<'_>, outcome: &Outcome) -> [Row; 3] {
    let row = |metric, unit, value| exact("everbyte", case.personality.name(), metric, unit, value);
    let threads = case.threads.last().copied().unwrap_or_default();
    [
        row("file_size", "KiB", case.set.mean_bytes() / 1024.0),
        row("threads", "", as_f64(threads as u64)),
        row("reads", "%", reads_percent(outcome)),
    ]
}

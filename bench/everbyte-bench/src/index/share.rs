//! The share of the index over inode tables in the time of an operation.
//!
//! One thread takes the same steps twice. The first time counts the look-ups of inode tables and times the steps. The
//! second time records the inodes of the paths. Then these look-ups are repeated alone in the same order. Their caches are
//! warmer than in the workload, so the result is a lower bound of the share.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use everbyte_fs::IndexKind;

use super::cases::{Case, make_library};
use super::drive::{self, Bound, Filled, Run};
use super::library::Library;
use super::personality::Personality;
use super::place::Setting;
use super::{Settings, title};
use crate::rows::{Row, timed};
use crate::stats::as_f64;

/// Operations that are recorded.
const OPERATIONS: u64 = 100_000;
const NOTE: &str = "look-ups replayed alone, with warmer caches than among other work";

/// Figures of a round.
pub(super) struct Share {
    lookups_per_operation: f64,
    lookup_ns: f64,
    percent: f64,
}

/// Shares of all rounds, by subject and workload.
#[derive(Default)]
pub(super) struct Shares(Vec<(String, String, Vec<Share>)>);

impl Shares {
    /// Adds a share, if it could be measured; the workload's own rows say why it could not.
    pub(super) fn push(
        &mut self,
        index: IndexKind,
        personality: Personality,
        files: u32,
        share: Result<Share>,
    ) {
        let Ok(share) = share else { return };
        let workload = title(personality, files, 1);
        let is_it = |(subject, own, _): &&mut (String, String, Vec<Share>)| {
            subject == index.name() && *own == workload
        };
        match self.0.iter_mut().find(is_it) {
            Some((.., shares)) => shares.push(share),
            None => self.0.push((index.name().to_owned(), workload, vec![share])),
        }
    }

    /// The rows.
    pub(super) fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (subject, workload, shares) in &self.0 {
            let mut push = |metric, unit, of: fn(&Share) -> f64| {
                let figures: Vec<f64> = shares.iter().map(of).collect();
                let row = timed(subject, workload, metric, unit, &figures);
                rows.extend(row.map(|row| Row { note: Some(NOTE.to_owned()), ..row }));
            };
            push("lookups", "1/operation", |share| share.lookups_per_operation);
            push("lookup_time", "ns", |share| share.lookup_ns);
            push("index_share", "%", |share| share.percent);
        }
        rows
    }
}

/// Measures the share on a file set that is there already, with one thread.
///
/// # Errors
/// The library's.
pub(super) fn measure(
    settings: &Settings<'_>,
    personality: Personality,
    setting: &Setting,
    filled: &Filled<'_, Library>,
) -> Result<Share> {
    // createfiles must have files left to make.
    let most = filled.set.entries.len() as u64;
    let bound = Bound::Operations(settings.operations.unwrap_or(OPERATIONS).min(most));
    let run = Run { personality, threads: 1, bound, stop: &settings.stop };
    let timed = drive::run(filled, &run)?;
    let (_, walked) = filled.target.recording(|| drive::run(filled, &run))?;
    anyhow::ensure!(!walked.is_empty() && timed.operations > 0, "nothing was looked up");
    let tables: Vec<u64> = walked.iter().map(|inode| setting.table_of(inode.0)).collect();
    let start = Instant::now();
    for &table in &tables {
        black_box(filled.target.fs.inode_table_at(table)?);
    }
    let lookup_ns = start.elapsed().as_secs_f64() * 1e9 / as_f64(tables.len() as u64);
    let lookups_ns = lookup_ns * as_f64(timed.lookups);
    Ok(Share {
        lookups_per_operation: as_f64(timed.lookups) / as_f64(timed.operations),
        lookup_ns,
        percent: 100.0 * lookups_ns / (timed.elapsed.as_secs_f64() * 1e9),
    })
}

/// The same on a file set that is made for it.
///
/// # Errors
/// The library's.
pub(super) fn measure_on_new(
    settings: &Settings<'_>,
    case: &Case<'_>,
    setting: &Setting,
) -> Result<Share> {
    let made = make_library(settings, setting, case)?;
    let filled = Filled::new(&made.target, case.set, case.personality, &settings.stop)?;
    measure(settings, case.personality, setting, &filled)
}

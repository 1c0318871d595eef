//! The suite of wear: writes per frame of a pool by the rule that places blocks.
//!
//! Answers what the NTL paper (Song, Moon, Noh 2015) leaves open, a placement that suits the medium's
//! endurance: the pool's own rule, next-fit, least worn first, and hot blocks to little worn frames, over
//! traces and the workloads of the hybrid cache's paper. Exact: the same in every run and on any machine.

pub(crate) mod command;
mod model;
mod placement;
mod report;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail, ensure};
use everbyte_policy::trace::generate::{GenerateOptions, Workload, generate};
use everbyte_policy::trace::{PageLimits, PageTraceBuilder, ReadOptions, TraceReader, read_pages};
use everbyte_policy::{Op, PageTrace};
use indicatif::ProgressBar;

use crate::rows::{Row, exact, metric};
use crate::stats::as_f64;
use model::{Model, Write};
use placement::Rule;

/// Lines written to the frame that was written most, as a multiple of the average frame's.
const MOST: &str = "most_to_mean";
/// The same of the frame that one of a hundred exceeds.
const CENTILE: &str = "p99_to_mean";
/// Percent of frames that were never written.
const UNUSED: &str = "unused";
/// Percent of the most written frame's lines that were stored in place.
const IN_PLACE: &str = "most_in_place";

/// Settings of a run.
pub(crate) struct Settings<'a> {
    /// Frames for each hundred blocks that a trace touches.
    pub(crate) frames_percent: u32,
    /// Times that each trace is written, one after the other.
    pub(crate) passes: u32,
    pub(crate) stop: &'a AtomicBool,
    pub(crate) progress: &'a ProgressBar,
}

/// Writes of a trace.
pub(crate) struct Writes {
    pub(crate) name: String,
    blocks: u32,
    writes: Vec<Write>,
}

impl Writes {
    /// Of a generated workload, at most so many requests.
    ///
    /// # Errors
    /// None that a workload can cause.
    pub(crate) fn generated(workload: Workload, requests: Option<u64>) -> Result<Self> {
        let mut builder = PageTraceBuilder::new(PageLimits::default());
        let options = GenerateOptions { requests, ..GenerateOptions::default() };
        generate(workload, &options, &mut |request, _| {
            builder.push(request).map_err(|problem| io::Error::other(problem.to_string()))
        })?;
        Self::new(workload.name(), &builder.finish())
    }

    /// Of a trace in a file.
    ///
    /// # Errors
    /// The trace's, or it writes nothing.
    pub(crate) fn from_file(path: &Path) -> Result<Self> {
        let mut reader = TraceReader::open(path, &ReadOptions::default())?;
        let trace = read_pages(&mut reader, PageLimits::default());
        let trace = trace.with_context(|| path.display().to_string())?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        Self::new(name.split('.').next().unwrap_or(&name), &trace)
    }

    fn new(name: &str, trace: &PageTrace) -> Result<Self> {
        let written = trace.accesses.iter().filter(|access| access.op == Op::Write);
        let writes: Vec<Write> = written
            .map(|access| Write { block: access.page.0, start: access.start, len: access.len })
            .collect();
        ensure!(!writes.is_empty(), "{name} writes nothing");
        let blocks = u32::try_from(trace.pages())?;
        Ok(Self { name: name.to_owned(), blocks, writes })
    }
}

/// Places every trace by every rule.
///
/// # Errors
/// A trace has too many blocks, or it is to stop.
pub(crate) fn run(all: &[Writes], settings: &Settings<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let steps = all.len() * Rule::ALL.len() * settings.passes as usize;
    settings.progress.inc_length(steps as u64);
    for trace in all {
        for rule in Rule::ALL {
            let frames = u64::from(trace.blocks) * u64::from(settings.frames_percent) / 100;
            let frames = u32::try_from(frames).with_context(|| trace.name.clone())?;
            // One frame more than blocks at the least, or nothing can be replaced.
            let mut model = Model::new(rule, trace.blocks, frames.max(trace.blocks + 1))?;
            for _ in 0..settings.passes {
                settings.progress.set_message(format!("{}: {}", trace.name, rule.name()));
                if settings.stop.load(Ordering::Relaxed) {
                    bail!("stopped");
                }
                trace.writes.iter().try_for_each(|&write| model.write(write))?;
                settings.progress.inc(1);
            }
            model.checkpoint()?;
            rows.extend(rows_of(rule, trace, &model));
        }
    }
    Ok(rows)
}

fn rows_of(rule: Rule, trace: &Writes, model: &Model) -> Vec<Row> {
    let frames = model.wear.len();
    let lines: u64 = model.wear.iter().sum();
    let mean = as_f64(lines) / as_f64(frames as u64);
    let mut sorted = model.wear.clone();
    sorted.sort_unstable();
    let at = |place: usize| as_f64(sorted[place.min(frames - 1)]) / mean;
    let most = (0..frames).max_by_key(|&frame| model.wear[frame]).unwrap_or(0);
    let share = |part: u64, whole: u64| 100.0 * as_f64(part) / as_f64(whole.max(1));
    let unused = sorted.partition_point(|&lines| lines == 0) as u64;
    let row = |metric, unit, value| exact(rule.name(), &trace.name, metric, unit, value);
    vec![
        row(MOST, "ratio", at(frames - 1)),
        row(CENTILE, "ratio", at(frames * 99 / 100)),
        row(UNUSED, "%", share(unused, frames as u64)),
        row(IN_PLACE, "%", share(model.in_place[most], model.wear[most])),
        row(metric::MEDIA_BYTES, "ratio", as_f64(lines * 64) / as_f64(model.asked_bytes)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_of_the_most_written_frame() {
        let progress = ProgressBar::hidden();
        let stop = AtomicBool::new(false);
        let settings =
            Settings { frames_percent: 200, passes: 3, stop: &stop, progress: &progress };
        // One of two blocks is written whole in each pass, and again, in place, by a line.
        let whole = Write { block: 1, start: 0, len: 4096 };
        let first = Write { block: 0, start: 0, len: 4096 };
        let trace = Writes { name: "two".into(), blocks: 2, writes: vec![first, whole] };
        let rows = run(&[trace], &settings).unwrap();
        let value = |rule: Rule, metric: &str| {
            let fits = |row: &&Row| row.subject == rule.name() && row.metric == metric;
            rows.iter().find(fits).and_then(|row| row.value).unwrap()
        };
        for rule in Rule::ALL {
            // The second pass writes to frames that are fresh still: they stay where they are.
            assert!((value(rule, MOST) - 2.0).abs() < 1e-9, "{}", rule.name());
            assert!((value(rule, UNUSED) - 50.0).abs() < 1e-9, "{}", rule.name());
        }
        assert_eq!(rows.len(), 4 * 5);
    }
}

//! Filebench's workloads on every mount with stored bytes.
//!
//! Invariants: each mount gets one file set. A round continues with the files of the previous round.

use anyhow::Result;

use super::fuse_options::Caching;
use super::server::Server;
use super::{Settings, title};
use crate::driver::Grid;
use crate::index;
use crate::index::directory::{Access, Place};
use crate::index::drive::{self, Bound, Filled, Outcome, Run};
use crate::index::file_set::FileSet;
use crate::index::personality::Personality;
use crate::rows::{Row, metric};
use crate::stats::as_f64;

/// Subjects that the others are compared with, and the metrics that do so.
const REFERENCES: [(&str, &str); 2] =
    [("plain", "rate_to_plain"), ("passthrough_ll", "rate_to_passthrough")];

/// One slice on one mount.
struct Slice {
    outcome: Outcome,
    server_cpu_ns: u64,
}

impl Slice {
    fn rate(&self) -> f64 {
        self.outcome.rate()
    }
}

/// Measures every workload on every server that keeps files.
///
/// # Errors
/// A call fails, or the user interrupted the run.
pub(super) fn run(settings: &Settings, caching: Caching, servers: &[Server]) -> Result<Vec<Row>> {
    let servers: Vec<&Server> = servers.iter().filter(|server| server.kind.keeps()).collect();
    let mut rows = Vec::new();
    for &personality in settings.own.personalities() {
        rows.extend(one(settings, caching, personality, &servers)?);
    }
    Ok(rows)
}

fn one(
    settings: &Settings,
    caching: Caching,
    personality: Personality,
    servers: &[&Server],
) -> Result<Vec<Row>> {
    settings.progress.set_message(format!("making files for {}", personality.name()));
    let set = FileSet::new(personality, settings.own.files);
    let directories = servers.iter().map(|server| {
        let place = Place { name: server.kind.name().to_owned(), path: server.dir.clone() };
        place.open(Access::Buffered)
    });
    let directories = directories.collect::<Result<Vec<_>>>()?;
    let filled = directories.iter();
    let filled = filled.map(|directory| Filled::new(directory, &set, personality, &settings.stop));
    let filled = filled.collect::<Result<Vec<_>>>()?;
    let runs = settings.own.clients.iter().map(|&threads| Run {
        personality,
        threads: threads.into(),
        bound: Bound::Time(settings.own.workload_seconds),
        stop: &settings.stop,
    });
    let runs: Vec<Run<'_>> = runs.collect();
    let titles = runs
        .iter()
        .map(|run| title(&index::title(personality, settings.own.files, run.threads), caching));
    let mut grid = Grid::new(servers.iter().map(|server| server.kind.name()), titles).select(
        settings,
        |_| true,
        |_, _| true,
    );
    grid.measure(settings, |subject, workload, _| {
        let before = servers[subject].cpu_ns()?;
        let outcome = drive::run(&filled[subject], &runs[workload])?;
        Ok(Slice { outcome, server_cpu_ns: servers[subject].cpu_ns()? - before })
    })?;
    grid.check()?;
    Ok(grid.rows(|cell, rows| {
        let own = &cell.samples[..];
        rows.timed(metric::RATE, "1/s", own.iter().map(Slice::rate));
        let cpu = |own: &Slice| as_f64(own.server_cpu_ns) / as_f64(own.outcome.operations);
        rows.timed(metric::SERVER_CPU, "ns", own.iter().map(cpu));
        for (name, metric) in REFERENCES {
            rows.ratio(metric, own, grid.base(cell, name), Slice::rate);
        }
    }))
}

//! Filebench's workloads on every mount with stored bytes.
//!
//! Invariants: each mount gets one file set. A round continues with the files of the previous round. The files end with
//! the server.

use anyhow::Result;

use super::fuse_options::Caching;
use super::server::Server;
use super::{Settings, title};
use crate::driver::Grid;
use crate::index;
use crate::index::directory::{Directory, open_directory};
use crate::index::drive::{self, Bound, Filled, Outcome, Run};
use crate::index::file_set::FileSet;
use crate::index::personality::Personality;
use crate::rows::{Row, metric};
use crate::stats::as_f64;

/// References with the metrics that compare others with them.
const REFERENCES: [(&str, &str); 2] =
    [("plain", "rate_to_plain"), ("passthrough_ll", "rate_to_passthrough")];
/// The workloads. createfiles cannot run for a time, because it creates its set once.
const WORKLOADS: [Personality; 4] =
    [Personality::Fileserver, Personality::Webproxy, Personality::Webserver, Personality::Varmail];

/// Measures the selected workloads on every server with stored bytes.
///
/// # Errors
/// A call fails, or the user interrupted the run.
pub(super) fn run(settings: &Settings, caching: Caching, servers: &[Server]) -> Result<Vec<Row>> {
    let servers: Vec<&Server> = servers.iter().filter(|server| server.kind.keeps()).collect();
    let mut rows = Vec::new();
    for personality in WORKLOADS {
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
    let titles = settings.own.clients.iter().map(|&threads| {
        title(&index::title(personality, settings.own.files, threads.into()), caching)
    });
    let names = servers.iter().map(|server| server.kind.name());
    let mut grid = Grid::new(names, titles).select(settings, |_| true, |_, _| true);
    if grid.cells.is_empty() {
        return Ok(Vec::new());
    }
    settings.progress.set_message(format!("creating files for {}", personality.name()));
    let set = FileSet::new(personality, settings.own.files);
    let directories = servers.iter().map(|server| {
        let path = server.dir.join(personality.name());
        std::fs::create_dir(&path)?;
        Ok(Directory::over(open_directory(&path)?))
    });
    let directories = directories.collect::<Result<Vec<_>>>()?;
    let filled = directories.iter();
    let filled = filled.map(|directory| Filled::new(directory, &set, personality, &settings.stop));
    let filled = filled.collect::<Result<Vec<_>>>()?;
    grid.measure(settings, |subject, workload, _| {
        let threads = settings.own.clients[workload].into();
        let bound = Bound::Time(settings.own.workload_seconds);
        let before = servers[subject].cpu_ns()?;
        let run = Run { personality, threads, bound, stop: &settings.stop };
        let outcome = drive::run(&filled[subject], &run)?;
        Ok((outcome, servers[subject].cpu_ns()? - before))
    })?;
    grid.check()?;
    Ok(grid.rows(|cell, rows| {
        let own = &cell.samples[..];
        let rate = |(outcome, _): &(Outcome, u64)| outcome.rate();
        rows.timed(metric::RATE, "1/s", own.iter().map(rate));
        let cpu = |(outcome, ns): &(Outcome, u64)| as_f64(*ns) / as_f64(outcome.operations());
        rows.timed(metric::SERVER_CPU, "ns", own.iter().map(cpu));
        for (name, metric) in REFERENCES {
            rows.ratio(metric, own, grid.base(cell, name), rate);
        }
    }))
}

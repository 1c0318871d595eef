//! Filebench's workloads on every mount that keeps bytes.
//!
//! Invariants: a file set is made once for each mount, and rounds go on with what the ones before left.

use anyhow::Result;

use super::server::Server;
use super::terms::Caching;
use super::{Settings, title};
use crate::index;
use crate::index::directory::{Access, Directory, Place};
use crate::index::drive::{self, Bound, Filled, Outcome, Run};
use crate::index::file_set::FileSet;
use crate::index::personality::Personality;
use crate::rows::{Row, metric, timed};
use crate::stats::as_f64;

/// Subjects that the others are compared with, and the metrics that do so.
const REFERENCES: [(&str, &str); 2] =
    [("plain", "rate_to_plain"), ("passthrough_ll", "rate_to_passthrough")];

/// One slice on one mount.
struct Slice {
    outcome: Outcome,
    server_cpu_ns: u64,
}

/// Measures every workload on every mount that keeps bytes.
///
/// # Errors
/// A mount's; it is to stop.
pub(super) fn run(
    settings: &Settings<'_>,
    caching: Caching,
    servers: &[Server],
) -> Result<Vec<Row>> {
    let servers: Vec<&Server> = servers.iter().filter(|server| server.kind.keeps()).collect();
    let steps = settings.personalities.len() * settings.clients.len() * settings.rounds;
    settings.progress.inc_length(steps as u64);
    let mut rows = Vec::new();
    for &personality in &settings.personalities {
        rows.extend(one(settings, caching, personality, &servers)?);
    }
    Ok(rows)
}

fn one(
    settings: &Settings<'_>,
    caching: Caching,
    personality: Personality,
    servers: &[&Server],
) -> Result<Vec<Row>> {
    settings.progress.set_message(format!("making files for {}", personality.name()));
    let set = FileSet::new(personality, settings.files);
    let directories = servers.iter().map(|server| {
        let place = Place { name: server.kind.name().to_owned(), path: server.dir.clone() };
        place.open(Access::Buffered)
    });
    let directories = directories.collect::<Result<Vec<_>>>()?;
    let filled = directories.iter();
    let filled = filled.map(|directory| Filled::new(directory, &set, personality, settings.stop));
    let filled = filled.collect::<Result<Vec<_>>>()?;
    let mut rows = Vec::new();
    for &threads in &settings.clients {
        let title = title(&index::title(personality, settings.files, threads), caching);
        let bound = Bound::Time(settings.slices[1]);
        let run = Run { personality, threads, bound, stop: settings.stop };
        let slices = rounds(settings, (&title, &run), servers, &filled)?;
        rows.extend(rows_of(&title, servers, &slices));
    }
    Ok(rows)
}

/// The slices of each mount, round by round.
fn rounds(
    settings: &Settings<'_>,
    (title, run): (&str, &Run<'_>),
    servers: &[&Server],
    filled: &[Filled<'_, Directory>],
) -> Result<Vec<Vec<Slice>>> {
    let mut slices: Vec<Vec<Slice>> = servers.iter().map(|_| Vec::new()).collect();
    for round in 0..settings.rounds {
        for turn in 0..servers.len() {
            settings.check_stop()?;
            let at = (turn + round) % servers.len();
            settings.progress.set_message(format!("{title}: {}", servers[at].kind.name()));
            let before = servers[at].cpu_ns()?;
            let outcome = drive::run(&filled[at], run)?;
            let server_cpu_ns = servers[at].cpu_ns()? - before;
            slices[at].push(Slice { outcome, server_cpu_ns });
        }
        settings.progress.inc(1);
    }
    Ok(slices)
}

fn rows_of(title: &str, servers: &[&Server], slices: &[Vec<Slice>]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (server, own) in servers.iter().zip(slices) {
        let mut push = |metric, unit, figures: Vec<f64>| {
            rows.extend(timed(server.kind.name(), title, metric, unit, &figures));
        };
        push(metric::RATE, "1/s", own.iter().map(|slice| slice.outcome.rate()).collect());
        let cpu = own.iter();
        let cpu = cpu.map(|own| as_f64(own.server_cpu_ns) / as_f64(own.outcome.operations));
        push(metric::SERVER_CPU, "ns", cpu.collect());
        for (name, metric) in REFERENCES.into_iter().filter(|(name, _)| *name != server.kind.name())
        {
            let Some(at) = servers.iter().position(|other| other.kind.name() == name) else {
                continue;
            };
            let pairs = own.iter().zip(&slices[at]);
            let ratios = pairs.map(|(own, other)| own.outcome.rate() / other.outcome.rate());
            push(metric, "ratio", ratios.collect());
        }
    }
    rows
}

//! The suite of mounts: single system calls and Filebench's workloads on our mount, on an empty file system, on a plain
//! one in memory, and on libfuse's mirror of a tmpfs.
//!
//! Invariants: all servers have the same options and threads, and each is a separate process. Subjects take turns within a
//! round. A ratio compares two subjects in the same round.

pub(crate) mod calls;
pub(crate) mod command;
pub(crate) mod fuse_options;
mod plain;
pub(crate) mod room;
pub(crate) mod served;
pub(crate) mod server;
mod workloads;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::ValueEnum;

use crate::driver::{Grid, Run};
use crate::rows::{Row, metric};
use calls::{Call, Client};
use fuse_options::Caching;
use room::{FOR_MOUNTS, Room};
use server::{Kind, Server, build_passthrough};

/// References with the metrics that compare others with them.
const REFERENCES: [(&str, &str); 3] = [
    ("null", metric::TIME_TO_NULL),
    ("plain", "time_to_plain"),
    ("passthrough_ll", "time_to_passthrough"),
];

/// The parts of the suite.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Part {
    /// Single system calls.
    Calls,
    /// Filebench's workloads.
    Workloads,
}

type Settings = Run<command::MountArgs>;

/// Measures the parts.
///
/// # Errors
/// The user is not root; FUSE is missing; a server of this program fails; the user interrupted the run.
fn run(settings: &Settings) -> Result<Vec<Row>> {
    let room = Room::new(Path::new(FOR_MOUNTS))?;
    let (mut rows, mut kinds) = (Vec::new(), Kind::ALL.to_vec());
    let passthrough = build_passthrough(&room).unwrap_or_else(|error| {
        let name = Kind::Passthrough.name();
        rows.push(Row::skipped(name, "all of them", format!("{error:#}")));
        kinds.retain(|kind| *kind != Kind::Passthrough);
        PathBuf::new()
    });
    for caching in Caching::ALL {
        let servers = kinds
            .iter()
            .map(|&kind| Server::start((kind, caching), &room, &passthrough, settings.own.sizes()));
        let servers = servers.collect::<Result<Vec<_>>>()?;
        if settings.own.wants(Part::Calls) {
            rows.extend(calls(settings, caching, &servers)?);
        }
        if settings.own.wants(Part::Workloads) {
            rows.extend(workloads::run(settings, caching, &servers)?);
        }
    }
    Ok(rows)
}

/// The name of a workload in the results.
fn title(workload: &str, caching: Caching) -> String {
    match caching {
        Caching::Cached => workload.to_owned(),
        Caching::Direct => format!("{workload}, direct"),
    }
}

/// Measures single calls.
///
/// # Errors
/// A call fails, or the user interrupted the run.
fn calls(settings: &Settings, caching: Caching, servers: &[Server]) -> Result<Vec<Row>> {
    let clients = servers.iter().map(Client::new).collect::<Result<Vec<_>>>()?;
    let titles = Call::ALL.map(|(_, name)| title(name, caching));
    let names = servers.iter().map(|server| server.kind.name());
    let mut grid = Grid::new(names, titles).select(settings, |_| true, |_, _| true);
    grid.measure(settings, |subject, workload, _| {
        clients[subject].measure(Call::ALL[workload].0, settings.slice)
    })?;
    grid.check()?;
    Ok(grid.rows(|cell, rows| {
        let own = &cell.samples[..];
        rows.timed(metric::TIME, "ns", own.iter().map(|s| s.ns_per_call(s.elapsed)));
        rows.timed(metric::CPU, "ns", own.iter().map(|s| s.ns_per_call(s.cpu)));
        rows.timed(metric::SERVER_CPU, "ns", own.iter().map(|s| s.ns_per_call(s.server_cpu)));
        for (name, metric) in REFERENCES {
            rows.ratio(metric, own, grid.base(cell, name), |s| s.ns_per_call(s.elapsed));
        }
    }))
}

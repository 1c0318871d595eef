//! The suite of mounts: single system calls and Filebench's workloads on our mount, on an empty file system, on a plain
//! one in memory, and on libfuse's mirror of a tmpfs.
//!
//! Invariants: all servers have the same options and threads, and each is a separate process. Subjects take turns within a
//! round. Ratios are of one round.

pub(crate) mod calls;
pub(crate) mod command;
pub(crate) mod fuse_options;
mod null;
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
use calls::{Call, Client, Sample};
use fuse_options::Caching;
use room::{FOR_MOUNTS, Room};
use server::{Kind, Server, build_passthrough};

/// Subjects that the others are compared with, and the metrics that do so.
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

/// Measures the parts that `wants` names.
///
/// # Errors
/// Not root, no FUSE; a server of this program does not work; it is to stop.
fn run(settings: &Settings) -> Result<Vec<Row>> {
    let room = Room::new(Path::new(FOR_MOUNTS))?;
    let mut rows = Vec::new();
    let (passthrough, kinds) = match build_passthrough(&room) {
        Ok(program) => (program, Kind::ALL.to_vec()),
        Err(error) => {
            let name = Kind::Passthrough.name();
            rows.push(Row::skipped(name, "all of them", format!("{error:#}")));
            let others = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Passthrough);
            (PathBuf::new(), others.collect())
        }
    };
    for &caching in settings.own.cachings() {
        let servers = start(settings, &room, (&kinds, caching), &passthrough)?;
        if settings.own.wants(Part::Calls) {
            rows.extend(calls(settings, caching, &servers)?);
        }
        if settings.own.wants(Part::Workloads) {
            rows.extend(workloads::run(settings, caching, &servers)?);
        }
    }
    Ok(rows)
}

fn start(
    settings: &Settings,
    room: &Room,
    (kinds, caching): (&[Kind], Caching),
    passthrough: &Path,
) -> Result<Vec<Server>> {
    let one =
        |&kind: &Kind| Server::start((kind, caching), room, passthrough, settings.own.sizes());
    kinds.iter().map(one).collect()
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
    let titles = Call::ALL.map(|call| title(call.name(), caching));
    let mut grid = Grid::new(servers.iter().map(|server| server.kind.name()), titles).select(
        settings,
        |_| true,
        |_, _| true,
    );
    grid.measure(settings, |subject, workload, _| {
        clients[subject].measure(Call::ALL[workload], settings.slice)
    })?;
    grid.check()?;
    Ok(grid.rows(|cell, rows| {
        let own = &cell.samples[..];
        rows.timed(metric::TIME, "ns", own.iter().map(Sample::ns_per_call));
        rows.timed(metric::CPU, "ns", own.iter().map(Sample::cpu_ns_per_call));
        rows.timed(metric::SERVER_CPU, "ns", own.iter().map(Sample::server_ns_per_call));
        for (name, metric) in REFERENCES {
            rows.ratio(metric, own, grid.base(cell, name), Sample::ns_per_call);
        }
    }))
}

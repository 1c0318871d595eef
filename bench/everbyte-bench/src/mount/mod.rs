//! The suite that measures mounts: single system calls and Filebench's workloads on ours, beside a file
//! system that does nothing, a plain one in memory, and libfuse's mirror of a tmpfs.
//!
//! Invariants: all have the same options and threads, and each is a process of its own; subjects take
//! turns within a round, and ratios are of one round.

pub(crate) mod calls;
pub(crate) mod command;
mod null;
mod plain;
pub(crate) mod room;
pub(crate) mod served;
pub(crate) mod server;
pub(crate) mod terms;
mod workloads;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use indicatif::ProgressBar;

use crate::index::personality::Personality;
use crate::rows::{Row, metric, timed};
use calls::{Call, Client, Sample};
use room::{FOR_MOUNTS, Room};
use server::{Kind, Server, build_passthrough};
use terms::Caching;

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

/// Settings of a run.
pub(crate) struct Settings<'a> {
    cachings: Vec<Caching>,
    personalities: Vec<Personality>,
    /// Files of a workload.
    files: u32,
    /// Threads of a workload.
    clients: Vec<usize>,
    /// Threads of a server.
    threads: usize,
    /// Bytes of our pool.
    size: u64,
    rounds: usize,
    /// Time of a call's slice, and of a workload's.
    slices: [Duration; 2],
    stop: &'a AtomicBool,
    progress: &'a ProgressBar,
}

impl Settings<'_> {
    fn check_stop(&self) -> Result<()> {
        ensure!(!self.stop.load(Ordering::Relaxed), "stopped");
        Ok(())
    }
}

/// Measures the parts that `wants` names.
///
/// # Errors
/// Not root, no FUSE; a server of this program does not work; it is to stop.
fn run(settings: &Settings<'_>, wants: impl Fn(Part) -> bool) -> Result<Vec<Row>> {
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
    for &caching in &settings.cachings {
        let servers = start(settings, &room, (&kinds, caching), &passthrough)?;
        if wants(Part::Calls) {
            rows.extend(calls(settings, caching, &servers)?);
        }
        if wants(Part::Workloads) {
            rows.extend(workloads::run(settings, caching, &servers)?);
        }
    }
    Ok(rows)
}

fn start(
    settings: &Settings<'_>,
    room: &Room,
    (kinds, caching): (&[Kind], Caching),
    passthrough: &Path,
) -> Result<Vec<Server>> {
    let one = |&kind: &Kind| {
        let sizes = (settings.threads, settings.size);
        Server::start((kind, caching), room, passthrough, sizes)
    };
    kinds.iter().map(one).collect()
}

/// The name of a workload in the results.
fn title(workload: &str, caching: Caching) -> String {
    match caching {
        Caching::Cached => workload.to_owned(),
        Caching::Direct => format!("{workload}, direct"),
    }
}

/// Measures every call on every server.
fn calls(settings: &Settings<'_>, caching: Caching, servers: &[Server]) -> Result<Vec<Row>> {
    let clients = servers.iter().map(Client::new).collect::<Result<Vec<_>>>()?;
    let mut rows = Vec::new();
    settings.progress.inc_length((Call::ALL.len() * settings.rounds) as u64);
    for call in Call::ALL {
        let mut samples: Vec<Vec<Sample>> = clients.iter().map(|_| Vec::new()).collect();
        for round in 0..settings.rounds {
            settings.check_stop()?;
            settings.progress.set_message(title(call.name(), caching));
            for turn in 0..clients.len() {
                let at = (turn + round) % clients.len();
                samples[at].push(clients[at].measure(call, settings.slices[0])?);
            }
            settings.progress.inc(1);
        }
        rows.extend(rows_of_call(&title(call.name(), caching), servers, &samples));
    }
    Ok(rows)
}

fn rows_of_call(title: &str, servers: &[Server], samples: &[Vec<Sample>]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (server, own) in servers.iter().zip(samples) {
        let mut push = |metric, unit, figures: Vec<f64>| {
            rows.extend(timed(server.kind.name(), title, metric, unit, &figures));
        };
        let all = |of: fn(&Sample) -> f64| own.iter().map(of).collect::<Vec<_>>();
        push(metric::TIME, "ns", all(Sample::ns_per_call));
        push(metric::CPU, "ns", all(Sample::cpu_ns_per_call));
        push(metric::SERVER_CPU, "ns", all(Sample::server_ns_per_call));
        for (name, metric) in REFERENCES.into_iter().filter(|(name, _)| *name != server.kind.name())
        {
            let Some(at) = servers.iter().position(|other| other.kind.name() == name) else {
                continue;
            };
            let pairs = own.iter().zip(&samples[at]);
            let ratio = |(own, other): (&Sample, &Sample)| own.ns_per_call() / other.ns_per_call();
            push(metric, "ratio", pairs.map(ratio).collect());
        }
    }
    rows
}

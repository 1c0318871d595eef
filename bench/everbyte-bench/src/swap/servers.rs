//! Servers of others at half of their footprint: without a limit, under `everbyte run`, under kernel swap.

use std::time::Duration;

use anyhow::Result;

use super::Settings;
use super::child::{Load, Outcome};
use super::kernel::KernelSwap;
use super::measure::{Work, measure};
use super::place::PAGE;
use super::serving::{Server, Service};
use super::subjects::Subject;
use crate::rows::{Row, metric};
use crate::stats::summarise;

const REQUESTS_PER_KEY: u64 = 5;
/// The most that a measurement may take.
const LIMIT: Duration = Duration::from_mins(10);

/// Measures every server that is installed.
///
/// # Errors
/// A server gives a wrong value or fails, or it is to stop.
pub(super) fn run(settings: &Settings<'_>, keys: u64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for server in Server::ALL.into_iter().filter(|server| settings.wants(server.name())) {
        if let Err(why) = server.check_installed() {
            rows.push(Row::skipped("everbyte-run", server.name(), why.to_string()));
            continue;
        }
        let requests = keys * REQUESTS_PER_KEY;
        rows.extend(run_one(settings, Service { server, keys, requests })?);
    }
    Ok(rows)
}

fn run_one(settings: &Settings<'_>, service: Service) -> Result<Vec<Row>> {
    // Without a limit first: half of what it has then is the limit of the others.
    let subjects = settings.and_kernel(&[Subject::Dram, Subject::Transparent], &KernelSwap::SOME);
    let mut samples: Vec<(Subject, Vec<Outcome>)> =
        subjects.into_iter().map(|subject| (subject, Vec::new())).collect();
    let mut dram_bytes = 0;
    for _ in 0..settings.rounds {
        for (subject, samples) in &mut samples {
            settings.progress.set_message(format!("{}, {}", subject.name(), service.server.name()));
            let work = Work { load: Load::Serve(service), threads: 1, dram_bytes, limit: LIMIT };
            let outcome = measure(settings, *subject, work)?;
            if let (Subject::Dram, Some(outcome)) = (&*subject, &outcome) {
                dram_bytes = (outcome.resident_bytes / 2).next_multiple_of(PAGE);
            }
            samples.extend(outcome);
        }
    }
    Ok(samples
        .iter()
        .flat_map(|(subject, outcomes)| rows_of(*subject, service, outcomes))
        .collect())
}

fn rows_of(subject: Subject, service: Service, outcomes: &[Outcome]) -> Vec<Row> {
    let name = if subject == Subject::Transparent { "everbyte-run" } else { subject.name() };
    let server = service.server.name();
    let Some(first) = outcomes.first() else {
        let why = format!("no round ended within {} s, or the kernel killed it", LIMIT.as_secs());
        return vec![Row::skipped(name, server, why)];
    };
    let mut rows = Vec::new();
    for (nth, served) in first.served.iter().enumerate() {
        let workload = format!("{server}, half in DRAM: {}", served.request);
        let mut add = |metric, unit, figures: Vec<f64>| {
            let Some((median, spread)) = summarise(&figures) else { return };
            rows.push(Row {
                subject: name.to_owned(),
                workload: workload.clone(),
                metric,
                value: Some(median),
                unit,
                spread: Some(spread),
                note: (subject == Subject::Dram).then(|| "all of it in DRAM".to_owned()),
            });
        };
        add(metric::RATE, "1/s", outcomes.iter().map(|outcome| outcome.served[nth].rate).collect());
        add("p50", "us", outcomes.iter().map(|outcome| outcome.served[nth].p50_us).collect());
        add("p99", "us", outcomes.iter().map(|outcome| outcome.served[nth].p99_us).collect());
    }
    rows
}

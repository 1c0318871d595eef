//! Public servers in half of their memory: requests a second, and latencies.

use std::time::Duration;

use anyhow::{Context, Result};

use super::Settings;
use super::child::Load;
use super::kernel::KernelSwap;
use super::measure::{Work, measure};
use super::serve::process::{check_everbyte_run, is_installed};
use super::serve::{self, Program, Serve, Served};
use super::subjects::Subject;
use crate::rows::{Row, metric, timed};
use crate::stats::as_f64;

/// The most that a measurement may take.
const LIMIT: Duration = Duration::from_mins(5);

/// Names of metrics.
pub(super) const P99: &str = "p99";
const DRAM_LIMIT: &str = "dram_limit";
const DRAM_PEAK: &str = "dram_peak";
const PAGES_IN: &str = "pages_in";
const PAGES_OUT: &str = "pages_out";
const FORK: &str = "fork";
const SAVE: &str = "save";

/// Those that are measured without kernel swap.
pub(super) const SUBJECTS: [Subject; 2] = [Subject::Dram, Subject::Run];

/// Names of workloads: a server's under each load, and its life as a whole.
pub(super) fn title(program: Program, load: &str) -> String {
    format!("serving: {}, {load}", program.name())
}

fn life(program: Program) -> String {
    title(program, "in all")
}

/// Bytes of memory that a server which is filled with `bytes` bytes can take.
pub(super) fn bytes_max(bytes: u64) -> u64 {
    Serve { program: Program::Redis, bytes, owner: 0 }.bytes_max()
}

/// Measures both servers, filled with about `bytes` bytes.
///
/// # Errors
/// It is to stop; the folder for what servers write. What else fails is told in rows and in the settings.
pub(super) fn run(settings: &Settings<'_>, bytes: u64) -> Result<Vec<Row>> {
    let owner = std::process::id();
    let name = serve::folder_name(owner);
    let folder = tempfile::Builder::new().prefix(&name).rand_bytes(0).tempdir();
    let folder = folder.context("cannot make a folder for servers")?;
    let mut rows = Vec::new();
    for program in Program::BOTH {
        rows.extend(run_one(settings, Serve { program, bytes, owner })?);
    }
    folder.close().context("cannot remove the folder of servers")?;
    Ok(rows)
}

/// Findings about one subject, or the reason why there are none.
struct Findings {
    subject: Subject,
    rounds: Vec<Served>,
    /// Bytes that it might have in DRAM in each round.
    limits: Vec<u64>,
    why_not: Option<String>,
}

fn run_one(settings: &Settings<'_>, serve: Serve) -> Result<Vec<Row>> {
    let program = serve.program;
    if !program.loads().iter().any(|load| settings.wants(&title(program, load))) {
        return Ok(Vec::new());
    }
    let missing = program.needs().iter().find(|name| !is_installed(name));
    let missing = missing.map(|name| format!("{name} is not installed"));
    let found = |subject| {
        let why_not = match subject {
            Subject::Run if missing.is_none() => {
                check_everbyte_run().err().map(|error| format!("{error:#}"))
            }
            _ => missing.clone(),
        };
        Findings { subject, rounds: Vec::new(), limits: Vec::new(), why_not }
    };
    let subjects = settings.and_kernel(&SUBJECTS, &KernelSwap::SOME);
    let mut findings: Vec<Findings> = subjects.into_iter().map(found).collect();
    // All of it at first: the first subject has no limit, and tells how much memory the server takes.
    let mut dram_bytes = serve.bytes_max();
    for _ in 0..settings.rounds {
        for found in findings.iter_mut().filter(|found| found.why_not.is_none()) {
            let work = Work { load: Load::Serve(serve), threads: 1, dram_bytes, limit: LIMIT };
            measure_one(settings, found, work)?;
            match (found.subject, found.rounds.last()) {
                (Subject::Dram, Some(served)) => dram_bytes = served.filled_bytes / 2,
                (Subject::Dram, None) => return Ok(rows(&findings, program)),
                _ => {}
            }
        }
    }
    Ok(rows(&findings, program))
}

/// Adds a round, or the reason why there is none.
fn measure_one(settings: &Settings<'_>, found: &mut Findings, work: Work) -> Result<()> {
    let Load::Serve(Serve { program, .. }) = work.load else { return Ok(()) };
    let (name, server) = (found.subject.name(), program.name());
    settings.progress.set_message(format!("{name}, {server}"));
    match measure(settings, found.subject, work) {
        Ok(Some(outcome)) => {
            found.rounds.extend(outcome.served);
            found.limits.push(work.dram_bytes);
        }
        Ok(None) => {
            let within = LIMIT.as_secs();
            found.why_not =
                Some(format!("it did not end within {within} s, or the kernel killed it"));
        }
        Err(error) if settings.should_stop() => return Err(error),
        Err(error) => {
            found.why_not = Some(format!("it failed: {error:#}"));
            settings.failures.borrow_mut().push(format!("{server} on {name}"));
        }
    }
    Ok(())
}

fn rows(findings: &[Findings], program: Program) -> Vec<Row> {
    findings.iter().flat_map(|found| rows_of(found, program)).collect()
}

fn rows_of(found: &Findings, program: Program) -> Vec<Row> {
    let subject = found.subject.name();
    let mut rows = Vec::new();
    if let Some(why) = &found.why_not {
        let skipped = |load: &&str| Row::skipped(subject, &title(program, load), why.clone());
        rows.extend(program.loads().iter().map(skipped));
    }
    let mut add = |workload: &str, metric, unit, figures: Vec<f64>| {
        rows.extend(timed(subject, workload, metric, unit, &figures));
    };
    let rounds = &found.rounds;
    for (nth, load) in program.loads().iter().enumerate() {
        let loads = || rounds.iter().filter_map(|served| served.loads.get(nth));
        let workload = title(program, load);
        add(&workload, metric::RATE, "1/s", loads().map(|load| load.per_second).collect());
        add(&workload, P99, "us", loads().map(|load| load.p99_us).collect());
    }
    let life = life(program);
    let each = |figure: fn(&Served) -> f64| rounds.iter().map(figure).collect::<Vec<f64>>();
    let mib = |bytes: u64| as_f64(bytes) / as_f64(1 << 20);
    if found.subject.pages() && !rounds.is_empty() {
        add(&life, DRAM_LIMIT, "MiB", found.limits.iter().copied().map(mib).collect());
        add(&life, PAGES_IN, "", each(|served| as_f64(served.pages_in)));
        add(&life, PAGES_OUT, "", each(|served| as_f64(served.pages_out)));
    }
    add(&life, DRAM_PEAK, "MiB", rounds.iter().map(|served| mib(served.peak_bytes)).collect());
    add(&life, FORK, "ms", rounds.iter().filter_map(|served| served.fork_ms).collect());
    add(&life, SAVE, "ms", rounds.iter().filter_map(|served| served.save_ms).collect());
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_of_their_rounds() {
        let found = Findings {
            subject: Subject::Run,
            rounds: vec![Served::default(), Served::default()],
            limits: vec![3 << 20, 5 << 20],
            why_not: None,
        };
        let rows = rows_of(&found, Program::Redis);
        let limit = rows.iter().find(|row| row.metric == DRAM_LIMIT).unwrap();
        let spread = limit.spread.unwrap();
        assert_eq!([spread.min, spread.max, as_f64(spread.rounds as u64)], [3.0, 5.0, 2.0]);
    }
}

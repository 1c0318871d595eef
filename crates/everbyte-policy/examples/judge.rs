//! Simulates all policies over traces, at 10% to 100% of the footprint, before three backing
//! devices. With `--ablation`, it simulates `everbyte` with its modes alone and with rules changed
//! or left out, at every second of these sizes. With `--only`, it simulates one policy, with
//! `--half` at every second size, to try a change. Prints a line of CSV for each, with columns of
//! `everbyte sim --csv`, for the tables of `cargo xtask publish`. Figures independent of the
//! backing device are simulated once.
//!
//! ```text
//! cargo run -p everbyte-policy --release --example judge [--ablation] [--only POLICY] [--half] TRACE... > rows.csv
//! ```

#![allow(clippy::print_stdout, reason = "a program")]

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use everbyte_policy::PageTrace;
use everbyte_policy::policy::{AddressedPages, Everbyte, Order, Rules};
use everbyte_policy::sim::{BackingCosts, Costs, Kind, Outcome, Spec, run, run_policy};
use everbyte_policy::trace::{PageLimits, ReadOptions, TraceReader, read_pages};

type Error = Box<dyn std::error::Error>;

const DEVICES: [(&str, BackingCosts); 3] =
    [("sd", BackingCosts::SD_CARD), ("hdd", BackingCosts::HDD), ("ssd", BackingCosts::SSD)];

/// A policy, or rules of `everbyte` under a name.
#[derive(Clone, Copy)]
enum Subject {
    Kind(Kind),
    Rules(&'static str, Rules),
}

/// The simulations of a call.
#[derive(Clone, Copy)]
struct Choice {
    ablation: bool,
    only: Option<Kind>,
    /// From one size to the next, in percent.
    step: usize,
}

/// One size, before one backing device or, if nothing depends on it, before all.
#[derive(Clone, Copy)]
struct Task {
    subject: Subject,
    percent: u64,
    devices: &'static [(&'static str, BackingCosts)],
}

/// Modes alone, and one of them without each rule.
fn variants() -> [Subject; 11] {
    let soon = Rules { order: Order::Sieve, waiting_permille: 30, ..Rules::ALL };
    let late = Rules { waiting_permille: 900, ..soon };
    let lru = Rules { order: Order::Lru, ..late };
    [
        Subject::Rules("soon", soon),
        Subject::Rules("late", late),
        Subject::Rules("passing", Rules { new_leave_first: true, ..lru }),
        Subject::Rules("resting", Rules { waiting_permille: 200, rests: true, ..lru }),
        Subject::Rules("soon without straight ways", Rules { straight: false, ..soon }),
        Subject::Rules("soon without waiting", Rules { waiting_permille: 0, ..soon }),
        Subject::Rules("soon in the order of lru", Rules { order: Order::Lru, ..soon }),
        Subject::Rules("soon without keeps", Rules { keeps: false, ..soon }),
        Subject::Rules("soon without weighing", Rules { weighs: false, ..soon }),
        Subject::Rules("soon without drops", Rules { drops: false, ..soon }),
        Subject::Rules("soon without promotion", Rules { promotes: false, ..soon }),
    ]
}

fn main() -> Result<(), Error> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut choice = Choice { ablation: false, only: None, step: 10 };
    while let Some(option) = arguments.first().filter(|argument| argument.starts_with("--")) {
        match option.as_str() {
            "--ablation" => (choice.ablation, choice.step) = (true, 20),
            "--half" => choice.step = 20,
            "--only" if arguments.len() > 1 => choice.only = Some(arguments.remove(1).parse()?),
            other => return Err(format!("what is {other}?").into()),
        }
        arguments.remove(0);
    }
    println!(
        "trace,policy,size,backing,hits,accesses,scm_bytes,elapsed_with_drain_ns,\
         backing_with_drain_ns"
    );
    for path in &arguments {
        let mut reader = TraceReader::open(Path::new(path), &ReadOptions::default())?;
        simulate(path, &read_pages(&mut reader, PageLimits::default())?, choice)?;
    }
    Ok(())
}

fn tasks(choice: Choice) -> Vec<Task> {
    let subjects: Vec<Subject> = match choice {
        Choice { ablation: true, .. } => variants().to_vec(),
        Choice { only: Some(kind), .. } => vec![Subject::Kind(kind)],
        _ => Kind::ALL.map(Subject::Kind).to_vec(),
    };
    let mut tasks = Vec::new();
    for percent in (10..=100).step_by(choice.step) {
        for &subject in &subjects {
            let weighs = !matches!(subject, Subject::Kind(kind) if kind != Kind::Everbyte);
            let groups = if weighs { DEVICES.chunks(1) } else { DEVICES.chunks(DEVICES.len()) };
            tasks.extend(groups.map(|devices| Task { subject, percent, devices }));
        }
    }
    tasks
}

/// Simulates everything over a trace, on two threads.
fn simulate(name: &str, trace: &PageTrace, choice: Choice) -> Result<(), Error> {
    let tasks = tasks(choice);
    let (next, lines) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
            let done = task.lines(name, trace);
            lines.lock().unwrap_or_else(PoisonError::into_inner).push(done);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
    let lines = lines.into_inner().unwrap_or_else(PoisonError::into_inner);
    lines.into_iter().collect::<Result<Vec<_>, _>>()?.iter().for_each(|lines| print!("{lines}"));
    Ok(())
}

impl Task {
    fn lines(&self, trace_name: &str, trace: &PageTrace) -> Result<String, String> {
        let footprint = u32::try_from(trace.pages()).map_err(|error| error.to_string())?;
        let pages = ((u64::from(footprint) * self.percent + 50) / 100).max(2);
        let spec = Spec::new(u32::try_from(pages).unwrap_or(footprint));
        let costs = Costs::with_backing(self.devices[0].1);
        let spec = Spec { costs, ..spec.map_err(|error| error.to_string())? };
        let (label, outcome) = match self.subject {
            Subject::Kind(kind) => (kind.name(), run(kind, &spec, trace)),
            Subject::Rules(label, rules) => {
                let storage = AddressedPages(&trace.addresses);
                let policy = Everbyte::with_rules(storage, spec.capacity(), rules, costs);
                (label, run_policy(policy, label, &spec, trace))
            }
        };
        let start = format!("{trace_name},{label},{}%", self.percent);
        Ok(self.devices.iter().map(|device| line(&start, *device, &outcome)).collect())
    }
}

fn line(start: &str, (device, backing): (&str, BackingCosts), outcome: &Outcome) -> String {
    let costs = Costs::with_backing(backing);
    let all_ns = costs.elapsed_ns(outcome) + costs.drain_ns(&outcome.drain);
    let backing_ns = costs.backing_ns(outcome) + costs.backing_drain_ns(&outcome.drain);
    let (hits, accesses, bytes) = (outcome.hits(), outcome.accesses(), outcome.scm.bytes);
    format!("{start},{device},{hits},{accesses},{bytes},{all_ns:.0},{backing_ns:.0}\n")
}

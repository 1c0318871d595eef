//! `everbyte-bench swap`: the options of the suite, and its run.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;

use super::cases::{self, Case};
use super::child::{self, Outcome};
use super::ft::Class;
use super::kernel::machine;
use super::subjects::Subject;
use super::task::{Load, Task};
use super::{fill, serve};
use crate::driver::{Common, Findings, Grid, Pace, Run, Suite};
use crate::rows::Row;

/// Bytes of redis-server in a smoke test.
const QUICK_SERVED: u64 = 24 << 20;

/// Measures the memory extension: paging by access pattern, FT of the NAS Parallel Benchmarks and redis-server in
/// too little memory, and allocators of slots of a swap space.
///
/// The suite verifies all paged memory: contents by the stored values, FT by the published checksums.
#[derive(clap::Args, Clone)]
pub(crate) struct SwapArgs {
    #[command(flatten)]
    common: Common,
    /// Slots of 4 KiB; 8 Mi are a swap space of 32 GiB.
    #[arg(long, default_value_t = 8 << 20, value_name = "COUNT",
          value_parser = clap::value_parser!(u64).range(1024..=1 << 32))]
    slots: u64,
    /// Freed and taken slots at each fill.
    #[arg(long, default_value_t = 1 << 14, value_name = "COUNT",
          value_parser = clap::value_parser!(u64).range(64..=1 << 32))]
    pairs: u64,
    /// Memory of the access patterns, in MiB. Half of it can be in DRAM. redis-server gets half as much data.
    #[arg(long, default_value_t = 512, value_name = "MIB",
          value_parser = clap::value_parser!(u64).range(2..=65536))]
    footprint: u64,
    /// Classes of FT; B needs 2.6 GiB for memory and store.
    #[arg(long, value_enum, value_name = "CLASS", value_delimiter = ',',
          default_values = ["s", "w", "a", "b"])]
    classes: Vec<Class>,
    /// Seconds of each measurement at most. The suite kills a longer measurement and reports it.
    #[arg(long, default_value_t = 900, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(1..=86400))]
    limit: u64,
    /// Measure kernel swap in addition: over a loop device on tmpfs and on zram, with several settings. Needs
    /// root, memory cgroups of version 1, a machine without swap, and 4 GiB of free memory. The work of block
    /// devices for other programs counts as the kernel's.
    #[arg(long)]
    kernel_swap: bool,
    /// Parts to leave out.
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',')]
    skip: Vec<Part>,
}

/// The parts of the suite.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Part {
    /// Ways to find a free slot.
    Slots,
    /// Access patterns.
    Paging,
    /// Access patterns in a nearly full swap space.
    Crowded,
    /// FT of the NAS Parallel Benchmarks.
    Ft,
    /// redis-server under load.
    Serving,
}

impl SwapArgs {
    fn bytes(&self) -> u64 {
        self.footprint << 20
    }
}

impl Suite for SwapArgs {
    const NAME: &'static str = "swap";
    const PACE: Pace = Pace { rounds: 3, slice_s: 0.0 };
    const QUICK: Pace = Pace { rounds: 1, slice_s: 0.0 };

    fn common(&self) -> &Common {
        &self.common
    }

    fn shorten(&mut self) {
        (self.slots, self.pairs) = (1 << 14, 1 << 10);
        (self.footprint, self.classes) = (8, vec![Class::S]);
    }

    fn measure(run: &Run<Self>) -> Result<Findings> {
        let own = &run.own;
        let served_bytes = if run.quick { QUICK_SERVED } else { own.bytes() / 2 };
        let mut all = Vec::new();
        let mut rows = Vec::new();
        for part in Part::value_variants().iter().filter(|part| !own.skip.contains(part)) {
            match part {
                Part::Slots => rows.extend(fill::run(run, own.slots, own.pairs)?),
                Part::Paging => all.extend(cases::paging(own.kernel_swap, own.bytes())),
                Part::Crowded => all.extend(cases::crowded(own.slots)),
                Part::Ft => all.extend(cases::ft(own.kernel_swap, &own.classes)),
                Part::Serving => all.extend(cases::serving(own.kernel_swap, served_bytes)),
            }
        }
        // Before the first measurement: an unfit machine must not fail after an hour.
        if own.kernel_swap {
            let largest = all.iter().map(|case| case.load.bytes()).max().unwrap_or(0);
            machine::check(2 * largest)?;
        }
        let (paged, failures) = measure(run, &all)?;
        rows.extend(paged);
        if !own.skip.contains(&Part::Ft) && own.classes.contains(&Class::B) {
            rows.extend(cases::published());
        }
        let medium = format!("DRAM, as tmpfs; {} slots", own.slots);
        Ok(Findings { failures, ..Findings::new(rows, medium, own.bytes()) })
    }
}

/// Measures all cases. Returns the rows, and the failed measurements.
fn measure(run: &Run<SwapArgs>, cases: &[Case]) -> Result<(Vec<Row>, Vec<String>)> {
    let mut subjects: Vec<Subject> = cases.iter().flat_map(|case| case.subjects.clone()).collect();
    subjects.sort_unstable();
    subjects.dedup();
    let titles = cases.iter().map(|case| &case.title);
    // Memory in DRAM is the reference of a server: it shows the need.
    let mut grid = Grid::new(subjects.iter().map(|subject| subject.name()), titles).select(
        run,
        |subject| subjects[subject] == Subject::Dram,
        |subject, case| cases[case].subjects.contains(&subjects[subject]),
    );
    let mut settings: BTreeMap<&str, String> = BTreeMap::new();
    let mut need_bytes = None;
    grid.measure(run, |subject, case, _| {
        let (subject, case) = (subjects[subject], &cases[case]);
        let mut task = Task {
            subject,
            load: case.load,
            threads: case.threads,
            dram_bytes: case.dram_bytes,
            limit: Duration::from_secs(run.own.limit),
            folder: run.folder().to_owned(),
            server_folder: None,
            slots: run.own.slots,
            permille: case.permille,
            cgroup: None,
        };
        let server_folder;
        if let Load::Serve { .. } = case.load {
            // A missing program is no failure of the run.
            if let Err(error) = serve::check(subject) {
                return Ok(Err(format!("{error:#}")));
            }
            if subject != Subject::Dram {
                let Some(need) = need_bytes else {
                    return Ok(Err("redis-server failed in DRAM".to_owned()));
                };
                task.dram_bytes = need / 2;
            }
            // Files on tmpfs are memory of the server's cgroup, so its files lie on a disk. This process
            // removes them after any end of the child.
            server_folder = tempfile::Builder::new().prefix("everbyte-serving.").tempdir()?;
            task.server_folder = Some(server_folder.path().to_owned());
        }
        let report = child::measure(&task, || run.check_stop().is_err())?;
        settings.extend(report.settings.map(|settings| (subject.name(), settings)));
        let late = || format!("no end within {} s, or the kernel killed it", run.own.limit);
        let outcome: Result<Outcome, String> = report.outcome.ok_or_else(late);
        let served = outcome.as_ref().ok().and_then(|outcome| outcome.served.as_ref());
        // Subjects take turns, so a later round uses the need of the last round in DRAM.
        if subject == Subject::Dram {
            need_bytes = served.map(|served| served.filled_bytes).or(need_bytes);
        }
        Ok(outcome)
    })?;
    let mut rows = grid.rows(|cell, rows| {
        let outcomes: Vec<&Outcome> = cell.samples.iter().flatten().collect();
        let why = cell.samples.iter().find_map(|sample| sample.as_ref().err());
        let why = why.filter(|_| outcomes.is_empty());
        cases[cell.workload].rows(subjects[cell.subject], &outcomes, why, rows);
    });
    let described =
        |(name, settings)| Row { metric: "settings", ..Row::skipped(name, "settings", settings) };
    rows.extend(settings.into_iter().map(described));
    let failed = grid.cells.iter().filter(|cell| cell.failed.is_some());
    let name = |subject: usize, case: usize| {
        format!("{} on {}", grid.workloads[case], grid.subjects[subject])
    };
    Ok((rows, failed.map(|cell| name(cell.subject, cell.workload)).collect()))
}

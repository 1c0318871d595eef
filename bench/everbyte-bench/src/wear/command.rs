//! `everbyte-bench wear`: the command line of the suite.

use std::path::{Path, PathBuf};

use anyhow::Result;
use everbyte_policy::trace::generate::Workload;

use super::{Settings, Writes, report, run};
use crate::environment::Environment;
use crate::publish::{self, Output};
use crate::rows::Results;

/// Requests and passes of a smoke test.
const QUICK_REQUESTS: u64 = 2000;
const QUICK_PASSES: u32 = 2;

/// Counts writes per frame of a pool by the rule that places blocks: the pool's own, next-fit, least worn
/// first, hot and cold blocks apart. Without traces, over the generated workloads of the hybrid cache's
/// paper.
#[derive(clap::Args)]
pub(crate) struct WearArgs {
    /// Traces, in any format that 'everbyte sim' reads.
    traces: Vec<PathBuf>,
    /// A smoke test of a second. Its figures mean nothing.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: Output,
    /// Frames for each hundred blocks that a trace touches.
    #[arg(long, default_value_t = 125, value_name = "PERCENT",
          value_parser = clap::value_parser!(u32).range(101..=1000))]
    frames: u32,
    /// Times that each trace is written.
    #[arg(long, default_value_t = 10, value_name = "TIMES",
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    passes: u32,
}

/// Runs the suite.
///
/// # Errors
/// The first failure.
pub(crate) fn wear(args: &WearArgs) -> Result<()> {
    let stop = publish::stop_flag()?;
    let progress = publish::progress_bar()?;
    let (requests, passes) = match args.quick {
        true => (Some(QUICK_REQUESTS), QUICK_PASSES),
        false => (None, args.passes),
    };
    let all: Vec<Writes> = if args.traces.is_empty() {
        let workloads = [Workload::Web, Workload::Mixed, Workload::Webserver].into_iter();
        workloads.map(|workload| Writes::generated(workload, requests)).collect::<Result<_>>()?
    } else {
        args.traces.iter().map(|path| Writes::from_file(path)).collect::<Result<_>>()?
    };
    let settings =
        Settings { frames_percent: args.frames, passes, stop: &stop, progress: &progress };
    let mut environment = Environment::new(Path::new("/dev/shm"), 0, 1, 0.0);
    environment.medium = format!(
        "none: counts, of each trace {passes} times, {} frames for each hundred blocks",
        args.frames
    );
    let rows = run(&all, &settings)?;
    progress.finish_and_clear();
    let names: Vec<&str> = all.iter().map(|trace| trace.name.as_str()).collect();
    let results = Results { suite: "wear", environment, rows };
    args.output.publish("Everbyte: wear of frames", &results, &report::figures(&names))
}

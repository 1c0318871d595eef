//! `everbyte sim merge`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;

use crate::simulation::outputs::Outputs;
use crate::simulation::results::Row;
use crate::simulation::task::read_plan;
use crate::simulation::task_result::TaskResult;

const EXAMPLES: &str = "\
Examples:
  everbyte sim merge results
  everbyte sim merge results --plan plan --csv all.csv --report all.html";

/// Merge the results of 'sim run': the same table, JSON, CSV and report as of 'sim'.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The folder of results.
    #[arg(value_name = "DIR")]
    results: PathBuf,
    /// The plan: fail if a result of it is missing, and pass over results that are not of it.
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    #[command(flatten)]
    outputs: Outputs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.outputs.check(&[])?;
    let mut results = TaskResult::all(&args.results)?;
    if let Some(plan) = &args.plan {
        let plan = read_plan(plan)?;
        results.retain(|result| plan.iter().any(|(_, task)| task.id == result.task.id));
        let is_there = |id: &str| results.iter().any(|result| result.task.id == id);
        let missing: Vec<usize> =
            plan.iter().filter(|(_, task)| !is_there(&task.id)).map(|(n, _)| *n).collect();
        if let Some(first) = missing.first() {
            bail!(
                "{} of {} results are missing, the first is that of task {first}: run 'everbyte \
                 sim run' with the same plan and folder again",
                missing.len(),
                plan.len()
            );
        }
    }
    if results.is_empty() {
        bail!("{}: there are no results", args.results.display());
    }
    let rows: Vec<Row> = results.into_iter().map(|result| result.row).collect();
    args.outputs.put(&rows)?;
    Ok(ExitCode::SUCCESS)
}

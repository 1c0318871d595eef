//! `everbyte sim merge`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;

use crate::simulation::outputs::Outputs;
use crate::simulation::results::Row;
use crate::simulation::task::{NumberedTask, Task, read_plan};
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
    /// The plan: a row for each line, in its order. Fail if a result is missing, and pass over
    /// results that are not of it.
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    #[command(flatten)]
    outputs: Outputs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.outputs.check(args.plan.as_slice())?;
    // Otherwise the output of this merge would be an input of the next one, or would replace a
    // result.
    let is_result = |path: &&PathBuf| TaskResult::is_place(&args.results, path);
    if let Some(path) = args.outputs.files().find(is_result) {
        bail!("{} would be one of the results that are read: write elsewhere", path.display());
    }
    let results = match &args.plan {
        Some(plan) => planned(&args.results, &read_plan(plan)?)?,
        None => TaskResult::all(&args.results)?,
    };
    if results.is_empty() {
        bail!("{}: there are no results", args.results.display());
    }
    // Before any output: files of a failed merge must not exist.
    check_traces(&results)?;
    let traces =
        results.iter().map(|TaskResult { task, row, .. }| (row.trace.clone(), task.fingerprint()));
    let traces = traces.collect();
    let rows: Vec<Row> = results.into_iter().map(|result| result.row).collect();
    args.outputs.put(&rows, &traces)?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses results over different traces of one name: rows are compared with others of the same name.
fn check_traces(results: &[TaskResult]) -> anyhow::Result<()> {
    let mut traces = HashMap::new();
    for TaskResult { task, row, .. } in results {
        let first: &mut &Task = traces.entry(&row.trace).or_insert(task);
        if !first.reads_as(task) {
            bail!(
                "{}: there are results over different traces of this name, or over one that was read \
                 in different ways, such as those of tasks {} and {}: pass --plan with a plan of one \
                 of them",
                row.trace,
                first.id,
                task.id
            );
        }
    }
    Ok(())
}

/// The results of a plan's lines, in their order, made for this plan or another.
fn planned(folder: &Path, plan: &[NumberedTask]) -> anyhow::Result<Vec<TaskResult>> {
    let results = plan.iter().map(|(_, task)| TaskResult::of(folder, task));
    let results = results.collect::<anyhow::Result<Vec<_>>>()?;
    let mut missing = plan.iter().zip(&results).filter(|(_, result)| result.is_none());
    if let Some(((first, _), _)) = missing.next() {
        bail!(
            "{} of {} results are missing, the first is that of task {first}: run 'everbyte sim \
             run' with the same plan and folder again",
            1 + missing.count(),
            plan.len()
        );
    }
    Ok(results.into_iter().flatten().collect())
}

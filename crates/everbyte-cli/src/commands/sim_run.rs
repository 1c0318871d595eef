//! `everbyte sim run`.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, bail};

use crate::output::{self, progress};
use crate::simulation::loading::load;
use crate::simulation::task::{Fingerprint, NumberedTask, Resources, read_plan, simulate};
use crate::simulation::task_result::TaskResult;

const EXAMPLES: &str = "\
The command skips tasks with a present result, and a result is present as a whole or not at all. Run
the same command again after any interruption.

Examples:
  everbyte sim run --plan plan --out results                                all tasks, here
  everbyte sim run --plan plan --task-index $SLURM_ARRAY_TASK_ID --out results
  everbyte sim run --plan plan --shard $((JOB_COMPLETION_INDEX + 1))/8 --out results
  seq 0 $(($(wc -l <plan) - 1)) | parallel everbyte sim run --plan plan --task-index {} --out results

docs/sweeps.md has more examples.";

/// Run simulations of a plan, and keep each result in a separate file.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The plan, from 'sim plan'.
    #[arg(long, value_name = "FILE")]
    plan: PathBuf,
    /// Run this task only: a line of the plan, counted from 0.
    #[arg(long, value_name = "N", conflicts_with = "shard")]
    task_index: Option<usize>,
    /// Run the I-th of N parts of about the same size, counted from 1.
    #[arg(long, value_name = "I/N")]
    shard: Option<Shard>,
    /// The folder for results; it is made if it is not there.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    #[command(flatten)]
    resources: Resources,
}

/// A part of a plan: every N-th task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Shard {
    number: usize,
    count: usize,
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').and_then(|(number, count)| {
            Some(Self { number: number.parse().ok()?, count: count.parse().ok()? })
        });
        parts.filter(|shard| (1..=shard.count).contains(&shard.number)).ok_or_else(|| {
            format!("{text:?} is no part: write I/N with I from 1 to N, such as 2/8")
        })
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let plan = read_plan(&args.plan)?;
    let chosen = choose(args, plan)?;
    everbyte_path::make_dirs(&args.out)
        .with_context(|| format!("cannot make the folder {}", args.out.display()))?;
    let wanted = chosen.len();
    // Existing results are complete, because they get their name at the end.
    let mut left: Vec<NumberedTask> =
        chosen.into_iter().filter(|(_, task)| !TaskResult::exists(&args.out, task)).collect();
    let (made, found) = (left.len(), wanted - left.len());
    let bar = progress("simulating {bar:40} {pos}/{len} {eta}", made as u64);
    // Tasks over one trace, read in one way, are run together.
    while let Some((_, first)) = left.first() {
        let first = first.clone();
        let (same, others) = left.into_iter().partition(|(_, task)| task.reads_as(&first));
        left = others;
        run_together(args, &same, || bar.inc(1))?;
    }
    bar.finish_and_clear();
    output::line(format!("simulations: {made} made, {found} were there"));
    Ok(ExitCode::SUCCESS)
}

fn choose(args: &Args, plan: Vec<NumberedTask>) -> anyhow::Result<Vec<NumberedTask>> {
    let tasks = plan.len();
    if let Some(index) = args.task_index
        && index >= tasks
    {
        bail!("there is no task {index}: {} has {tasks}, counted from 0", args.plan.display());
    }
    let is_chosen = |number: usize| match (args.task_index, args.shard) {
        (Some(index), _) => number == index,
        // Every N-th line: neighbours in a plan have similar durations, so parts stay even.
        (None, Some(shard)) => number % shard.count == shard.number - 1,
        (None, None) => true,
    };
    // If several lines name a task, it has one result, with the number of the first line in any
    // part of the run.
    let (mut firsts, mut ids) = (HashMap::new(), HashSet::new());
    let wanted = plan.into_iter().filter_map(|(number, task)| {
        let first = *firsts.entry(task.id.clone()).or_insert(number);
        (is_chosen(number) && ids.insert(task.id.clone())).then_some((first, task))
    });
    Ok(wanted.collect())
}

fn run_together(args: &Args, tasks: &[NumberedTask], done: impl Fn() + Sync) -> anyhow::Result<()> {
    let Some((_, first)) = tasks.first() else { return Ok(()) };
    // Before the simulations: a result under this id must belong to this trace.
    if Fingerprint::of(&first.trace)? != first.fingerprint() {
        bail!("{}: is not the trace that the plan was made for", first.trace.display());
    }
    let trace = load(&first.trace, &first.options()?, args.resources.kept_max())?;
    let settings: Vec<_> = tasks.iter().map(|(_, task)| task.setting.clone()).collect();
    let name = first.trace.display().to_string();
    simulate(&name, &trace, &settings, args.resources.threads(), &|at, row| {
        let (number, task) = &tasks[at];
        // Each result is saved when it is done. An interrupted run loses only the present ones.
        TaskResult::new(*number, task.clone(), row).save(&args.out)?;
        done();
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_read() {
        assert_eq!("2/8".parse(), Ok(Shard { number: 2, count: 8 }));
        for wrong in ["", "0/8", "9/8", "1", "1/0", "a/b", "-1/2", "1/2/3"] {
            assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
        }
    }
}

//! `everbyte sim TRACE...`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;

use crate::output::progress;
use crate::simulation::args::{Reading, SimArgs};
use crate::simulation::loading::load_with_fingerprint;
use crate::simulation::outputs::Outputs;
use crate::simulation::report::Traces;
use crate::simulation::task::{Resources, simulate};

/// Traces and parameters of the simulations.
#[derive(clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// Traces; - is standard input.
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    #[command(flatten)]
    sim_args: SimArgs,
    #[command(flatten)]
    reading: Reading,
    #[command(flatten)]
    resources: Resources,
    #[command(flatten)]
    outputs: Outputs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.outputs.check(&args.traces)?;
    let settings = args.sim_args.settings()?;
    let all = args.traces.len() * settings.len();
    let bar = progress("simulating {bar:40} {pos}/{len} {eta}", all as u64);
    let (mut rows, mut traces) = (Vec::new(), Traces::new());
    for path in &args.traces {
        let (options, kept_max) = (args.reading.options(), args.resources.kept_max());
        let loaded = load_with_fingerprint(path, &options, kept_max)?;
        let found = Mutex::new(Vec::with_capacity(settings.len()));
        let name = path.display().to_string();
        traces.insert(name.clone(), loaded.fingerprint);
        simulate(&name, &loaded.trace, &settings, args.resources.threads(), &|number, row| {
            bar.inc(1);
            let mut found = found.lock().map_err(|_| anyhow::anyhow!("a simulation failed"))?;
            found.push((number, row));
            Ok(())
        })?;
        let mut found = found.into_inner().unwrap_or_default();
        found.sort_by_key(|(number, _)| *number);
        rows.extend(found.into_iter().map(|(_, row)| row));
    }
    bar.finish_and_clear();
    args.outputs.put(&rows, &traces)?;
    Ok(ExitCode::SUCCESS)
}

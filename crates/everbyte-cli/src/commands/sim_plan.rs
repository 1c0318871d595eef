//! `everbyte sim plan`.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};

use crate::output;
use crate::simulation::args::{Reading, SimArgs};
use crate::simulation::task::{Fingerprint, Task};
use crate::traces::check_replaceable;

const EXAMPLES: &str = "\
Each line is one simulation as JSON, with an id that is a hash of the rest: the trace's path, length
and checksum, all options, and the simulator's version. The same command over the same traces makes
the same plan.

Examples:
  everbyte sim plan *.vscsi --size 10%,50% --out plan     then: wc -l plan
  everbyte sim run --plan plan --task-index 0 --out results";

/// Write a plan of single simulations, which 'sim run' runs elsewhere.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Traces. They are read from the same paths by 'sim run'.
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    #[command(flatten)]
    sim_args: SimArgs,
    #[command(flatten)]
    reading: Reading,
    /// File for the plan; without one, standard output. An existing file is not replaced.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Replace an existing file.
    #[arg(long, requires = "out")]
    force: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(path) = &args.out {
        check_replaceable(path, &args.traces)?;
    }
    let options = args.reading.options();
    let settings = args.sim_args.settings()?;
    let mut text = String::new();
    for path in &args.traces {
        if path.as_os_str() == "-" {
            bail!("standard input cannot be planned: 'sim run' could not read it again");
        }
        let fingerprint = Fingerprint::of(path)?;
        for setting in &settings {
            let task = Task::new(path, fingerprint, &options, setting.clone())?;
            text += &serde_json::to_string(&task)?;
            text.push('\n');
        }
    }
    match &args.out {
        Some(path) => write(path, text.as_bytes(), args.force)?,
        None => output::bytes(text.as_bytes()),
    }
    Ok(ExitCode::SUCCESS)
}

fn write(path: &Path, text: &[u8], force: bool) -> anyhow::Result<()> {
    let written = everbyte_path::create(path, !force).and_then(|mut file| file.write_all(text));
    match written {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            bail!("{} exists already: pass --force to replace it", path.display())
        }
        written => written.with_context(|| format!("cannot write to {}", path.display())),
    }
}

//! `everbyte pool check`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use everbyte_pool::PoolError;
use everbyte_pool::control::{CheckStatus, Request, Response};
use everbyte_pool::file::FileError;

use super::unexpected;
use crate::output;
use crate::session::{Need, ask};

const EXAMPLES: &str = "\
Examples:
  everbyte pool check /dev/shm/p && echo fine
  everbyte pool check /dev/shm/p --json

Exit status: 0 if nothing is wrong, 1 if there are problems, each named with structure and offset.
Remarks tell what opening the pool had to mend, and are no problems.";

/// Check that every block of a pool is free or has exactly one owner.
///
/// On a pool that nobody serves the check works on a private, recovered copy and changes nothing.
/// On one that is served, writes wait while it runs and reads go on.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool's file or device.
    pool: PathBuf,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let status = check(&args.pool)?;
    if args.json {
        output::json(&status)?;
    } else {
        for problem in &status.problems {
            output::line(format!("problem: {problem}"));
        }
        for remark in &status.remarks {
            output::line(format!("remark: {remark}"));
        }
        output::line(format!(
            "{}: {} volumes, {} blocks in use, {} free",
            if status.clean { "clean" } else { "NOT CLEAN" },
            status.volumes,
            status.used_blocks,
            status.free_blocks
        ));
    }
    Ok(if status.clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Checks the pool at `path`. Damage that keeps it from being opened is a finding too.
///
/// # Errors
/// The pool cannot be reached.
pub(crate) fn check(path: &Path) -> anyhow::Result<CheckStatus> {
    match ask(path, Need::Look, Request::Check) {
        Ok(Response::Check(status)) => Ok(status),
        Ok(other) => Err(unexpected(&other)),
        Err(error) => match error.downcast_ref::<FileError>() {
            Some(FileError::Pool { source: PoolError::Corrupt(corrupt), .. }) => {
                Ok(CheckStatus { problems: vec![corrupt.to_string()], ..CheckStatus::default() })
            }
            _ => Err(error),
        },
    }
}

//! `everbyte volume detach`.

use std::path::PathBuf;
use std::process::ExitCode;

use everbyte_pool::control::{Request, Response};
use serde::Serialize;

use super::unexpected;
use crate::output;
use crate::session::{Need, ask};

const EXAMPLES: &str = "\
Examples:
  everbyte volume detach /dev/shm/p fast

If the storage fails, the cache stays, with everything in it: mend the storage and try again. To
have the cache back, make it anew with 'everbyte volume create --kind cache'.";

/// Write everything that a cache holds to its storage, and delete the cache.
///
/// Afterwards the storage can be used without it. Clients must have disconnected.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool's file or device.
    pool: PathBuf,
    /// Name of the cache.
    name: String,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Detached {
    detached: String,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let request = Request::VolumeDetach { name: args.name.clone() };
    match ask(&args.pool, Need::Change, request)? {
        Response::Deleted { name } if args.json => output::json(&Detached { detached: name })?,
        Response::Deleted { name } => {
            output::line(format!("detached cache {name}: its storage has everything"));
        }
        other => return Err(unexpected(&other)),
    }
    Ok(ExitCode::SUCCESS)
}

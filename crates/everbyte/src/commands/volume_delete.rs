//! `everbyte volume delete`.

use std::path::PathBuf;
use std::process::ExitCode;

use everbyte_control::{Request, Response};
use everbyte_server::{Need, ask};
use serde::Serialize;

use super::unexpected;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  everbyte volume delete /dev/shm/p disk
  everbyte volume delete /dev/shm/p disk --force     under clients that are connected";

/// Delete a volume and everything in it, without asking. It cannot be undone.
///
/// While clients of a server have the volume open it is not deleted, nor is a cache that holds bytes
/// which its backing device lacks ('everbyte volume detach' writes them there). --force deletes both:
/// clients' requests fail from then on, and what the cache had not written back is lost. A file system
/// that is mounted, and a swap volume that programs have memory of, are not deleted even by force.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool's file or device.
    pool: PathBuf,
    /// Name of the volume.
    name: String,
    /// Delete it although clients have it open, or although a cache has bytes that its backing device
    /// lacks: they are lost.
    #[arg(long)]
    force: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Deleted {
    deleted: String,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let request = Request::VolumeDelete { name: args.name.clone(), force: args.force };
    match ask(&args.pool, Need::Change, request)? {
        Response::Deleted { name } if args.json => output::json(&Deleted { deleted: name })?,
        Response::Deleted { name } => output::line(format!("deleted volume {name}")),
        other => return Err(unexpected(&other)),
    }
    Ok(ExitCode::SUCCESS)
}

//! `everbyte volume rename`.

use std::path::PathBuf;
use std::process::ExitCode;

use everbyte_control::{Request, Response};
use everbyte_server::{Need, ask};

use super::unexpected;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  everbyte volume rename /dev/shm/p disk old-disk
  everbyte volume rename /dev/shm/p disk old-disk --force     disconnects its clients first";

/// Give a volume another name. Its export has the new name at once.
///
/// A crash leaves it the old name or the new one. While clients of a server have the volume open it is
/// not renamed, unless forced: they are disconnected then. A server that was started with the volume's
/// name (POOL/VOLUME, or --read-only-export) is to be ended first. One that is mounted, or lent to
/// programs, is not renamed even by force.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool's file or device.
    pool: PathBuf,
    /// Name of the volume.
    name: String,
    /// The name that it is to have, which no other volume has.
    new_name: String,
    /// Disconnect clients that have it open.
    #[arg(long)]
    force: bool,
    /// Print the volume as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (name, new_name) = (args.name.clone(), args.new_name.clone());
    let request = Request::VolumeRename { name, new_name, force: args.force };
    match ask(&args.pool, Need::Change, request)? {
        Response::Volume(volume) if args.json => output::json(&volume)?,
        Response::Volume(volume) => {
            output::line(format!("volume {} is {} now", args.name, volume.name));
        }
        other => return Err(unexpected(&other)),
    }
    Ok(ExitCode::SUCCESS)
}

//! `everbyte volume rename`.

use std::path::PathBuf;
use std::process::ExitCode;

use everbyte_control::{Request, Response};

use super::unexpected;
use crate::output;
use crate::session::{Access, ask};

const EXAMPLES: &str = "\
Examples:
  everbyte volume rename /dev/shm/p disk old-disk
  everbyte volume rename /dev/shm/p disk old-disk --force     disconnects its clients first";

/// Rename a volume. Its export gets the new name immediately.
///
/// After a crash the volume has the old name or the new name. A volume with connected clients needs
/// --force, and the server disconnects them. End a server with the volume's name in its command line
/// first (POOL/VOLUME, or --read-only-export). A mounted file system and a swap volume with leases are
/// never renamed.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool's file or device.
    pool: PathBuf,
    /// Name of the volume.
    name: String,
    /// The new name, unused in the pool.
    new_name: String,
    /// Disconnect its clients.
    #[arg(long)]
    force: bool,
    /// Print the volume as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (name, new_name) = (args.name.clone(), args.new_name.clone());
    let request = Request::VolumeRename { name, new_name, force: args.force };
    match ask(&args.pool, Access::Write, request)? {
        Response::Volume(volume) if args.json => output::json(&volume)?,
        Response::Volume(volume) => {
            output::line(format!("volume {} is {} now", args.name, volume.name));
        }
        other => return Err(unexpected(&other)),
    }
    Ok(ExitCode::SUCCESS)
}

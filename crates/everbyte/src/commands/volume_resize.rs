//! `everbyte volume resize`.

use std::path::PathBuf;
use std::process::ExitCode;

use everbyte_pool::control::{Request, Response};

use super::unexpected;
use crate::output;
use crate::session::{Need, ask};
use crate::size::{parse_size, show_size};

const EXAMPLES: &str = "\
Examples:
  everbyte volume resize /dev/shm/p disk --size 512M

Shrink a file system before its volume: bytes beyond the new size are lost at once. NBD clients
that are connected keep the size they saw when they connected.";

/// Make a volume larger or smaller, while it is in use or not.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool's file or device.
    pool: PathBuf,
    /// Name of the volume.
    name: String,
    /// New size, such as 512M, a multiple of 512 bytes.
    #[arg(long, value_parser = parse_size, value_name = "SIZE")]
    size: u64,
    /// Print the volume as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let request = Request::VolumeResize { name: args.name.clone(), size_bytes: args.size };
    match ask(&args.pool, Need::Change, request)? {
        Response::Volume(volume) if args.json => output::json(&volume)?,
        Response::Volume(volume) => {
            output::line(format!(
                "volume {} has {} now",
                volume.name,
                show_size(volume.size_bytes)
            ));
        }
        other => return Err(unexpected(&other)),
    }
    Ok(ExitCode::SUCCESS)
}

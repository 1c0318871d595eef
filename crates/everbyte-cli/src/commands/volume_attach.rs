//! `everbyte volume attach`.

use std::path::PathBuf;
use std::process::ExitCode;

use everbyte::backing;
use everbyte_control::{Request, Response};

use super::trust::TrustArgs;
use super::unexpected;
use crate::arguments::parse_backing;
use crate::output;
use crate::session::ask;

const EXAMPLES: &str = "\
Examples:
  everbyte volume attach /dev/shm/p fast --backing /srv/moved/disk.img
  everbyte volume attach /dev/pmem0 fast --backing nbd://newhost/disk
  everbyte volume attach /dev/pmem0 fast --backing /dev/sdc       formerly /dev/sdb

A cache writes its dirty pages to its backing device. Therefore the new device must be the same device: of the same
size, and either the same file or device by its numbers, or with the same data. For the comparison the command reads up to 1024
clean pages of the cache. One different page is an error. If the numbers differ, as for a copy or another NBD address,
at least 8 pages must agree that are not filled with one repeated byte, unless the cache is empty. The backing device must
be unchanged since the last use of the cache. After an error the cache stays as it is.

To create a new cache, see 'everbyte volume create --kind cache'.";

/// Attach a cache to its moved backing device.
///
/// The device can be a file at a new path, a disk with a new name, or an export of a new server.
/// The cache must have no clients, except with --force. The server's other volumes stay available.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool's file or device.
    pool: PathBuf,
    /// Name of the cache.
    name: String,
    /// The backing device's new location: a file, a block device, nbd://HOST:PORT/EXPORT or
    /// nbd+unix:///EXPORT?socket=PATH.
    #[arg(long, value_name = "PATH|URI", value_parser = parse_backing)]
    backing: String,
    /// Disconnect the cache's clients. Acknowledged writes are kept.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    trust: TrustArgs,
    /// Print the volume as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let backing = backing::resolve(&args.backing)?;
    let request = Request::CacheAttach { name: args.name.clone(), backing, force: args.force };
    match ask(&args.pool, args.trust.access(), request)? {
        Response::Volume(volume) if args.json => output::json(&volume)?,
        Response::Volume(volume) => {
            let backing = volume.cache().map_or("", |cache| &cache.backing);
            output::line(format!("cache {} has its backing device at {backing} now", volume.name));
        }
        other => return Err(unexpected(&other)),
    }
    Ok(ExitCode::SUCCESS)
}

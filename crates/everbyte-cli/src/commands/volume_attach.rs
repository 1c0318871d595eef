//! `everbyte volume attach`.

use std::path::PathBuf;
use std::process::ExitCode;

use everbyte::backing;
use everbyte_control::{Request, Response};

use everbyte_server::ask;

use super::trust::TrustArgs;
use super::unexpected;
use crate::arguments::parse_backing;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  everbyte volume attach /dev/shm/p fast --backing /srv/moved/disk.img
  everbyte volume attach /dev/pmem0 fast --backing nbd://newhost/disk
  everbyte volume attach /dev/pmem0 fast --backing /dev/sdc       the disk that was /dev/sdb

A cache writes its dirty pages to the device that it is attached to, so this must be the same backing
device: of the same size, and either the same file or device by its numbers, or one that agrees with
what the cache has read. Up to 1024 clean pages of the cache are compared with it. One that differs
is reason to refuse it. Where the numbers are others, as for a copy or another NBD address, at least
8 must agree that are not all the same byte, unless the cache holds no page at all. Nobody may have
changed the backing device since the cache was used last. A refused cache stays as it is.

To make a new cache, see 'everbyte volume create --kind cache'.";

/// Attach a cache to its backing device, which has moved.
///
/// A file may have moved to another path, a disk to another name, an export to another server.
/// Clients must have disconnected, unless forced; a server goes on serving its other volumes
/// meanwhile.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool's file or device.
    pool: PathBuf,
    /// Name of the cache.
    name: String,
    /// The backing device in its new place: a file, a block device, nbd://HOST:PORT/EXPORT or
    /// nbd+unix:///EXPORT?socket=PATH.
    #[arg(long, value_name = "PATH|URI", value_parser = parse_backing)]
    backing: String,
    /// Disconnect clients that have it open. What they were answered is kept.
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
    match ask(&args.pool, args.trust.need(), request)? {
        Response::Volume(volume) if args.json => output::json(&volume)?,
        Response::Volume(volume) => {
            let backing = volume.cache().map_or("", |cache| &cache.backing);
            output::line(format!("cache {} has its backing device at {backing} now", volume.name));
        }
        other => return Err(unexpected(&other)),
    }
    Ok(ExitCode::SUCCESS)
}

//! `everbyte volume attach`.

use std::path::PathBuf;
use std::process::ExitCode;

use everbyte_backing as backing;
use everbyte_control::{Request, Response};

use everbyte_server::{Need, ask};

use super::unexpected;
use crate::arguments::parse_backing;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  everbyte volume attach /dev/shm/p fast --backing /srv/moved/disk.img
  everbyte volume attach /dev/pmem0 fast --backing nbd://newhost/disk
  everbyte volume attach /dev/pmem0 fast --backing /dev/sdc       the disk that was /dev/sdb

A cache writes what it holds to whatever it is attached to, so it must be the same storage: of the
same size, and either the same file or device by its numbers, or one that agrees with what the cache
has read. Clean pages of the cache, 1024 of them at most, are compared with it; one that
differs is reason to refuse, and where the numbers are others, as for a copy or another NBD address,
8 that agree and are not all the same byte are needed, unless the cache holds no page at all. Nobody
may have changed the storage since the cache was used last. A refused cache stays as it is.

To make a new cache, see 'everbyte volume create --kind cache'.";

/// Tell a cache where its storage is now.
///
/// For a storage that has moved: a file to another path, a disk to another name, an export to
/// another server. Clients must have disconnected, unless forced; a server goes on serving its other volumes meanwhile.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool's file or device.
    pool: PathBuf,
    /// Name of the cache.
    name: String,
    /// Where its storage is now: a file, a block device, nbd://HOST:PORT/EXPORT or
    /// nbd+unix:///EXPORT?socket=PATH.
    #[arg(long, value_name = "PATH|URI", value_parser = parse_backing)]
    backing: String,
    /// Disconnect clients that have it open. What they were answered is kept.
    #[arg(long)]
    force: bool,
    /// Print the volume as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let backing = backing::resolve(&args.backing)?;
    let request = Request::CacheAttach { name: args.name.clone(), backing, force: args.force };
    match ask(&args.pool, Need::Change, request)? {
        Response::Volume(volume) if args.json => output::json(&volume)?,
        Response::Volume(volume) => {
            let backing = volume.cache().map_or("", |cache| &cache.backing);
            output::line(format!("cache {} has its storage at {backing} now", volume.name));
        }
        other => return Err(unexpected(&other)),
    }
    Ok(ExitCode::SUCCESS)
}

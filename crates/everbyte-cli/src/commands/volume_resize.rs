//! `everbyte volume resize`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use everbyte_block::BLOCK_NAME;
use everbyte_control::{Request, Response, VolumeStatus};

use super::trust::TrustArgs;
use super::{unexpected, volumes};
use crate::output;
use crate::session::Session;
use crate::size::{parse_size, show_size};

const EXAMPLES: &str = "\
Examples:
  everbyte volume resize /dev/shm/p disk --size 512M
  everbyte volume resize /dev/shm/p disk --size 128M --shrink        discard the rest
  everbyte volume resize /dev/shm/p fast --scm 16G --dram 4G         a cache's tiers
  truncate -s 20G /srv/disk.img &&
    everbyte volume resize /dev/shm/p fast --follow-backing          a cache of that file

Shrink a file system before its volume: bytes beyond the new size are lost immediately. Therefore a block volume with
data shrinks only with --shrink. NBD clients keep the size of their connection. Therefore a volume with clients shrinks only
with --force, and the server disconnects them. After a growth the command prints the number of clients with the
old size until they reconnect.

A cache is as large as its backing device. After the device's growth the cache is refused until --follow-backing adapts
its size. Its cached pages stay. It cannot follow a shrinking device: detach it first. A cache with smaller tiers first writes
back its excess pages, and stays as it was if the backing device fails. The cache must have no clients, except with
--force. After a crash during a resize the cache has its old sizes or its new sizes.";

/// Resize a volume, or the tiers of a cache.
///
/// A growing block volume, a mounted file system and a swap volume with leases can stay in use. A swap
/// volume with NBD clients and a cache with clients cannot. The server's other volumes stay available.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool's file or device.
    pool: PathBuf,
    /// Name of the volume.
    name: String,
    /// New size of a block volume, a file system or a swap volume, such as 512M. It is a
    /// multiple of 2M for swap volumes, otherwise of 512 bytes.
    #[arg(long, value_parser = parse_size, value_name = "SIZE",
          required_unless_present_any = ["scm", "dram", "follow_backing"],
          conflicts_with_all = ["scm", "dram", "follow_backing"])]
    size: Option<u64>,
    /// Shrink a block volume with data. Data beyond the new size is lost.
    #[arg(long, requires = "size")]
    shrink: bool,
    /// New size of the SCM for a cache's pages, such as 256M.
    #[arg(long, value_parser = parse_size, value_name = "SIZE", help_heading = "Caches")]
    scm: Option<u64>,
    /// New size of the DRAM for a cache's pages, such as 64M.
    #[arg(long, value_parser = parse_size, value_name = "SIZE", help_heading = "Caches")]
    dram: Option<u64>,
    /// Adapt a cache to its grown backing device.
    #[arg(long, help_heading = "Caches")]
    follow_backing: bool,
    /// Disconnect clients that prevent the resize. Acknowledged writes are kept, except bytes beyond a
    /// smaller size.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    trust: TrustArgs,
    /// Print the volume as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let name = args.name.clone();
    let request = match args.size {
        Some(size_bytes) => Request::VolumeResize { name, size_bytes, force: args.force },
        None => Request::CacheResize {
            name,
            dram_bytes: args.dram,
            scm_bytes: args.scm,
            follow_backing: args.follow_backing,
            force: args.force,
        },
    };
    let mut session = Session::open(&args.pool, args.trust.access())?;
    // In one session: without a server nobody can change the volume between check and resize.
    let answer = check_shrinking(args, &mut session).and_then(|()| Ok(session.ask(request)?));
    match session.finish(answer)? {
        Response::Volume(volume) if args.json => output::json(&volume)?,
        Response::Volume(volume) => {
            output::line(describe(&volume));
            match volume.clients_with_old_size {
                None | Some(0) => {}
                Some(1) => output::line("1 client keeps the old size until it reconnects"),
                Some(clients) => output::line(format!(
                    "{clients} clients keep the old size until they reconnect"
                )),
            }
        }
        other => return Err(unexpected(&other)),
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses to shrink a volume with data, except with --shrink.
fn check_shrinking(args: &Args, session: &mut Session) -> anyhow::Result<()> {
    let Some(wanted) = args.size.filter(|_| !args.shrink) else { return Ok(()) };
    let volumes = volumes(session.ask(Request::VolumeList)?)?;
    let found =
        volumes.into_iter().find(|volume| volume.name == args.name && volume.kind == BLOCK_NAME);
    // The later lookup rejects a missing volume and a cache.
    let Some(volume) = found.filter(|volume| wanted < volume.size_bytes) else { return Ok(()) };
    // Nothing was written, so nothing can be lost.
    if volume.used_bytes == Some(0) {
        return Ok(());
    }
    bail!(
        "volume {} has {}: making it {} takes the {} beyond that, with whatever is written there{}; \
         pass --shrink if that is what you want",
        volume.name,
        show_size(volume.size_bytes),
        show_size(wanted),
        show_size(volume.size_bytes - wanted),
        volume.used_bytes.map_or(String::new(), |used| format!(
            " ({} of the pool are in use by the whole volume)",
            show_size(used)
        )),
    )
}

fn describe(volume: &VolumeStatus) -> String {
    let size = show_size(volume.size_bytes);
    match volume.cache() {
        None => format!("volume {} has {size} now", volume.name),
        Some(cache) => format!(
            "cache {} of {size} has {} of SCM and {} of DRAM now",
            volume.name,
            show_size(cache.scm_bytes),
            show_size(cache.dram_bytes)
        ),
    }
}

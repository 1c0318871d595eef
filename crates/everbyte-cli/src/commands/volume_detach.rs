//! `everbyte volume detach`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use everbyte_control::{Request, Response};
use everbyte_server::Session;
use serde::Serialize;

use super::trust::TrustArgs;
use super::unexpected;
use crate::output;
use crate::size::show_size;

const EXAMPLES: &str = "\
Examples:
  everbyte volume detach /dev/shm/p fast
  everbyte volume detach /dev/shm/p fast --json | jq .written_bytes

Dirty pages are written back first, in the order of the backing device's sectors; a bar shows how far
that is. Ctrl-C, or a failure of the backing device, leaves the cache as it is, with everything that
is not written back yet: mend the backing device and try again. If that has moved, attach it by
'everbyte volume attach' first. To have the cache back, make it anew with 'everbyte volume create
--kind cache'.";

/// Attempts of a second without progress after which a detach ends.
const STALLED_MAX: u32 = 600;

/// Write all dirty pages of a cache back to its backing device, and delete the cache.
///
/// Afterwards the backing device can be used without the cache. Clients must have disconnected,
/// unless forced; a server goes on serving its other volumes meanwhile.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool's file or device.
    pool: PathBuf,
    /// Name of the cache.
    name: String,
    /// Disconnect clients that have it open. What they were answered is kept, what they did not
    /// flush too.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    trust: TrustArgs,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Detached {
    detached: String,
    /// Bytes of dirty pages that were written back.
    written_bytes: u64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut session = Session::open(&args.pool, args.trust.need())?;
    let detached = detach(&mut session, &args.name, args.force);
    let detached = session.finish(detached)?;
    if args.json {
        output::json(&detached)?;
    } else {
        output::line(format!(
            "detached cache {}: its backing device has everything; {} were written back now",
            detached.detached,
            show_size(detached.written_bytes)
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn detach(session: &mut Session, name: &str, force: bool) -> anyhow::Result<Detached> {
    let written_bytes = dirty_bytes(session, name)?;
    let bar = output::progress("writing back {bar:40} {bytes}/{total_bytes} {eta}", written_bytes);
    let (mut left, mut stalled) = (written_bytes, 0);
    while left > 0 {
        match session.ask(Request::CacheDrain { name: name.to_owned(), force })? {
            Response::Drained { dirty_bytes } => {
                stalled = if dirty_bytes < left { 0 } else { stalled + 1 };
                left = dirty_bytes;
            }
            other => return Err(unexpected(&other)),
        }
        if stalled > STALLED_MAX {
            bail!("nothing of cache {name} was written back in {STALLED_MAX} attempts");
        }
        bar.set_position(written_bytes.saturating_sub(left));
    }
    bar.finish_and_clear();
    match session.ask(Request::VolumeDetach { name: name.to_owned(), force })? {
        Response::Deleted(deleted) => Ok(Detached { detached: deleted.name, written_bytes }),
        other => Err(unexpected(&other)),
    }
}

/// Bytes of dirty pages of the cache; 0 if there is no such cache, which detaching then says.
fn dirty_bytes(session: &mut Session, name: &str) -> anyhow::Result<u64> {
    match session.ask(Request::VolumeList)? {
        Response::Volumes(volumes) => {
            let cache = volumes.into_iter().find(|volume| volume.name == name);
            Ok(cache.and_then(|volume| Some(volume.cache()?.dirty_bytes)).unwrap_or(0))
        }
        other => Err(unexpected(&other)),
    }
}

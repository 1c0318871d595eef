//! `everbyte volume detach`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use everbyte_control::{Request, Response};
use serde::Serialize;

use super::trust::TrustArgs;
use super::{unexpected, volumes};
use crate::output;
use crate::session::Session;
use crate::size::show_size;

const EXAMPLES: &str = "\
Examples:
  everbyte volume detach /dev/shm/p fast
  everbyte volume detach /dev/shm/p fast --json | jq .written_bytes

The command first writes dirty pages back, in the order of the backing device's sectors, with a progress bar. After
Ctrl-C or a failure of the backing device the cache stays, with all remaining dirty pages: repair the backing device and
try again. If the backing device has moved, use 'everbyte volume attach' first. To use a cache again, create
a new cache with 'everbyte volume create --kind cache'.";

/// Maximum of attempts of one second without progress. At the maximum a detach ends.
const STALLED_MAX: u32 = 600;

/// Write all dirty pages of a cache back to its backing device, and delete the cache.
///
/// Then the backing device can be used without the cache. The cache must have no clients, except with
/// --force. The server's other volumes stay available.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool's file or device.
    pool: PathBuf,
    /// Name of the cache.
    name: String,
    /// Disconnect the cache's clients. Acknowledged writes are kept, including unflushed writes.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    trust: TrustArgs,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct DetachedCache {
    detached: String,
    /// Written-back bytes of dirty pages.
    written_bytes: u64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut session = Session::open(&args.pool, args.trust.access())?;
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

fn detach(session: &mut Session, name: &str, force: bool) -> anyhow::Result<DetachedCache> {
    let written_bytes = dirty_bytes(session, name)?;
    let bar = output::progress("writing back {bar:40} {bytes}/{total_bytes} {eta}", written_bytes);
    let (mut left, mut stalled) = (written_bytes, 0);
    // In parts, so that the bar moves and Ctrl-C ends the command between two requests.
    while left > 0 {
        match session.ask(Request::CacheDrain { name: name.to_owned(), force })? {
            Response::Drained { dirty_bytes } => {
                // Clients can dirty pages during the drain. Only a lasting lack of progress is an
                // error.
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
    // The server drains the rest and compares again: pages dirtied since the last part are not
    // lost.
    match session.ask(Request::VolumeDetach { name: name.to_owned(), force })? {
        Response::Deleted(deleted) => Ok(DetachedCache { detached: deleted.name, written_bytes }),
        other => Err(unexpected(&other)),
    }
}

/// Bytes of dirty pages of the cache, or 0 if the name has no cache: the detach reports this error.
fn dirty_bytes(session: &mut Session, name: &str) -> anyhow::Result<u64> {
    let volumes = volumes(session.ask(Request::VolumeList)?)?;
    let cache = volumes.into_iter().find(|volume| volume.name == name);
    // A missing volume or another kind gives 0. The detachment then reports the real error.
    Ok(cache.and_then(|volume| Some(volume.cache()?.dirty_bytes)).unwrap_or(0))
}

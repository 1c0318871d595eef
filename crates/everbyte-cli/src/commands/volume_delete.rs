//! `everbyte volume delete`.

use std::path::PathBuf;
use std::process::ExitCode;

use everbyte_control::{DeletedStatus, Request, Response};
use everbyte_server::{Need, ask};
use serde::Serialize;

use super::unexpected;
use crate::output;
use crate::size::show_size;

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
///
/// A damaged volume is deleted by force only. What its map still names, and no other volume owns, is free
/// then. The rest leaks, and 'everbyte pool check --repair' frees it.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool's file or device.
    pool: PathBuf,
    /// Name of the volume.
    name: String,
    /// Delete it although clients have it open, although it is damaged, or although a cache has bytes that
    /// its backing device lacks: they are lost.
    #[arg(long)]
    force: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Deleted {
    deleted: String,
    /// The damage that it had.
    #[serde(skip_serializing_if = "Option::is_none")]
    damage: Option<String>,
    /// Bytes that --force has freed.
    freed_bytes: u64,
    /// Bytes that nobody gets before a repair of the pool.
    leaked_bytes: u64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let request = Request::VolumeDelete { name: args.name.clone(), force: args.force };
    match ask(&args.pool, Need::Change, request)? {
        Response::Deleted(deleted) if args.json => output::json(&Deleted {
            deleted: deleted.name,
            damage: deleted.damage,
            freed_bytes: deleted.freed_bytes,
            leaked_bytes: deleted.leaked_bytes,
        })?,
        Response::Deleted(deleted) => output::line(describe(&deleted)),
        other => return Err(unexpected(&other)),
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(deleted: &DeletedStatus) -> String {
    let DeletedStatus { name, damage, freed_bytes, leaked_bytes } = deleted;
    let leaked = match leaked_bytes {
        0 => String::new(),
        bytes => format!(
            "; {} ({bytes} bytes) leaked: 'everbyte pool check --repair' frees them",
            show_size(*bytes)
        ),
    };
    match damage {
        None => format!("deleted volume {name}{leaked}"),
        Some(damage) => format!(
            "deleted volume {name}, which was damaged ({damage}): {} are free{leaked}",
            show_size(*freed_bytes)
        ),
    }
}

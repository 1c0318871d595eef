//! `everbyte volume delete`.

use std::path::PathBuf;
use std::process::ExitCode;

use everbyte_control::{DeletedStatus, Request, Response};
use serde::Serialize;

use super::unexpected;
use crate::output;
use crate::session::{Access, ask};
use crate::size::show_size;

const EXAMPLES: &str = "\
Examples:
  everbyte volume delete /dev/shm/p disk
  everbyte volume delete /dev/shm/p disk --force     disconnects its clients";

/// Delete a volume and its data, without confirmation. It cannot be undone.
///
/// A volume with connected clients is not deleted. Neither is a cache with dirty pages ('everbyte volume
/// detach' writes them back). --force deletes both: clients' requests fail, and the dirty pages are
/// lost. A mounted file system and a swap volume with leases are never deleted.
///
/// The deletion of a damaged volume needs --force. It frees the blocks in the readable part of the
/// volume's map that no other volume owns. The other blocks leak, and 'everbyte pool check --repair'
/// frees them.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool's file or device.
    pool: PathBuf,
    /// Name of the volume.
    name: String,
    /// Delete the volume even if it is damaged or has clients, or a cache even with dirty pages. Dirty
    /// pages are lost.
    #[arg(long)]
    force: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct DeletedVolume {
    deleted: String,
    /// Its damage.
    #[serde(skip_serializing_if = "Option::is_none")]
    damage: Option<String>,
    /// Freed bytes.
    freed_bytes: u64,
    /// Leaked bytes: a repair of the pool frees them.
    leaked_bytes: u64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let request = Request::VolumeDelete { name: args.name.clone(), force: args.force };
    match ask(&args.pool, Access::Write, request)? {
        Response::Deleted(deleted) if args.json => output::json(&DeletedVolume {
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

//! `everbyte pool delete`.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use everbyte::volume::kinds;
use everbyte_control::{Request, Response, VolumeStatus, remove_left_socket, socket_path};
use everbyte_media::Mapped;
use everbyte_pool::Pool;
use everbyte_pool::file::delete;
use serde::Serialize;

use super::unexpected;
use crate::output;
use crate::session::{Access, SessionError, ask};
use crate::size::show_size;

const EXAMPLES: &str = "\
Examples:
  everbyte pool delete /dev/shm/p             if it has no volumes
  everbyte pool delete /dev/shm/p --force     with all its volumes";

/// Delete a pool. It cannot be undone.
///
/// A pool with volumes needs --force. Without it the command lists the volumes and changes nothing.
/// End the pool's server first: an open pool is not deleted. A pool's file is removed. The beginning of
/// a device is overwritten with zeroes, so that it counts as blank.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool's file or device.
    pool: PathBuf,
    /// Delete the pool with all volumes and their data.
    #[arg(long)]
    force: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct DeletedPool {
    deleted: String,
    volumes: Vec<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut volumes = Vec::new();
    let agree = |pool: &Pool<Mapped>| {
        volumes = pool.volumes().iter().map(|volume| volume.name().to_owned()).collect();
        // A volume with a damaged header may leave only a remark.
        let remark = pool.recovery().remarks.first();
        match remark {
            // With the pool locked by the deletion itself, so no volume appears between question
            // and answer.
            _ if args.force => Ok(()),
            _ if !volumes.is_empty() => Err(Refusal::HasVolumes),
            Some(remark) => Err(Refusal::Damaged(remark.clone())),
            None => Ok(()),
        }
    };
    // Before the deletion: afterwards a link to the pool leads nowhere.
    let socket = socket_path(&args.pool);
    let owner = everbyte_path::look(&args.pool).ok().map(|pool| pool.metadata().uid());
    match delete(&args.pool, kinds(), agree) {
        Ok(()) => {}
        Err(Refusal::HasVolumes) => return Err(has_volumes(&args.pool)),
        Err(Refusal::Damaged(remark)) => bail!(
            "{} is damaged, and may have volumes that cannot be read ({remark}); pass --force to delete \
             it all the same",
            args.pool.display()
        ),
        Err(Refusal::File(error)) => return Err(SessionError::from(error).into()),
    }
    // After the deletion: a failed one leaves the pool as it was.
    remove_socket(&socket, owner);
    let deleted = args.pool.display().to_string();
    if args.json {
        output::json(&DeletedPool { deleted, volumes })?;
    } else if volumes.is_empty() {
        output::line(format!("deleted pool {deleted}"));
    } else {
        output::line(format!("deleted pool {deleted} with {}", volumes.join(", ")));
    }
    Ok(ExitCode::SUCCESS)
}

/// The reason against a deletion.
enum Refusal {
    HasVolumes,
    /// The pool is damaged: the remark names the damage.
    Damaged(String),
    File(everbyte_pool::file::FileError),
}

impl From<everbyte_pool::file::FileError> for Refusal {
    fn from(error: everbyte_pool::file::FileError) -> Self {
        Self::File(error)
    }
}

/// The error with the volumes and the dirty bytes of caches.
fn has_volumes(pool: &Path) -> anyhow::Error {
    // Asked again, because the refusal has closed the pool. The status also needs the sizes.
    let volumes = match ask(pool, Access::Read, Request::VolumeList) {
        Ok(Response::Volumes(volumes)) => volumes,
        Ok(other) => return unexpected(&other),
        Err(error) => return error.into(),
    };
    let described: Vec<String> = volumes.iter().map(describe).collect();
    anyhow!(
        "{} has volumes: {}; pass --force to delete it with all of them",
        pool.display(),
        described.join(", ")
    )
}

fn describe(volume: &VolumeStatus) -> String {
    let dirty_bytes = volume.cache().map_or(0, |cache| cache.dirty_bytes);
    let dirty = match dirty_bytes {
        0 => String::new(),
        bytes => format!(", of which its backing device lacks {}", show_size(bytes)),
    };
    format!("{} ({} of {}{dirty})", volume.name, volume.kind, show_size(volume.size_bytes))
}

/// Removes the socket of a killed server.
fn remove_socket(socket: &Path, owner: Option<u32>) {
    // The pool is deleted. A left socket misleads nobody, so this is a warning.
    if let Err(error) = remove_left_socket(socket, owner) {
        tracing::warn!("cannot remove {}: {error}", socket.display());
    }
}

//! `everbyte volume list`.

use std::path::PathBuf;
use std::process::ExitCode;

use everbyte_control::{Request, Response, VolumeStatus};
use everbyte_server::{Need, ask};
use serde::Serialize;

use super::unexpected;
use crate::output;
use crate::size::show_size;

const EXAMPLES: &str = "\
Examples:
  everbyte volume list /dev/shm/p
  everbyte volume list /dev/shm/p --json

PROMISED is the size that users see, USED what data, map and checksums take now, LOG what the log takes.
EPOCH counts checkpoints: everything up to it survives a crash.

Caches have a second table: CACHED is what they hold, DIRTY what of that their storage does not have
yet, HITS the share of accesses that they served since the server was started. --json has counts by
reason besides.";

/// List the volumes of a pool.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool's file or device.
    pool: PathBuf,
    /// Print the list as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Listed {
    volumes: Vec<VolumeStatus>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match ask(&args.pool, Need::Look, Request::VolumeList)? {
        Response::Volumes(volumes) if args.json => output::json(&Listed { volumes })?,
        Response::Volumes(volumes) => show(&volumes),
        other => return Err(unexpected(&other)),
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the volumes as a table.
pub(crate) fn show(volumes: &[VolumeStatus]) {
    let heading = [
        "NAME", "KIND", "PROMISED", "USED", "LOG", "MAP", "DELTA", "CHECKSUM", "EPOCH", "CLIENTS",
        "STATE",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for volume in volumes {
        rows.push(vec![
            volume.name.clone(),
            volume.kind.clone(),
            show_size(volume.size_bytes),
            volume.used_bytes.map_or("?".into(), show_size),
            show_size(volume.log_bytes),
            volume.map.clone(),
            volume.delta.clone(),
            volume.checksum.clone(),
            volume.epoch.to_string(),
            volume.clients.map_or("-".into(), |clients| clients.to_string()),
            state(volume),
        ]);
    }
    output::table(&rows, &[2, 3, 4, 8, 9]);
    show_caches(volumes);
}

/// What keeps a volume from being used as usual, if anything does.
fn state(volume: &VolumeStatus) -> String {
    if let Some(why) = &volume.read_only {
        return format!("read-only: {why}");
    }
    match &volume.cache {
        Some(cache) if !["", "open", "closed"].contains(&cache.state.as_str()) => {
            cache.state.clone()
        }
        _ => "ok".to_owned(),
    }
}

/// Prints what there is to say of caches, if there are any.
fn show_caches(volumes: &[VolumeStatus]) {
    let heading = ["CACHE", "BACKING", "MODE", "POLICY", "DRAM", "SCM", "CACHED", "DIRTY", "HITS"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for (volume, cache) in volumes.iter().filter_map(|v| Some((v, v.cache.as_ref()?))) {
        let percent = |permille: u64| format!("{}.{}%", permille / 10, permille % 10);
        rows.push(vec![
            volume.name.clone(),
            cache.backing.clone(),
            cache.mode.clone(),
            cache.policy.clone(),
            show_size(cache.dram_bytes),
            show_size(cache.scm_bytes),
            show_size(cache.cached_bytes),
            show_size(cache.dirty_bytes),
            cache.hit_permille.map_or("-".into(), percent),
        ]);
    }
    if rows.len() > 1 {
        output::line("");
        output::table(&rows, &[4, 5, 6, 7, 8]);
    }
}

//! `everbyte volume list`.

use std::process::ExitCode;

use everbyte_control::{Request, VolumeStatus};

use super::listing::Listing;
use super::volumes;
use crate::output::{self, Column};
use crate::size::show_size;

const EXAMPLES: &str = "\
Examples:
  everbyte volume list /dev/shm/p
  everbyte volume list /dev/shm/p --json

PROVISIONED is the visible size, USED the space of data, map and checksums, LOG the space of the log.
STATE is 'ok', or names the known damage. The command walks the maps for it. After a long walk of a map, the next
walk follows only after a hundred times its duration. The command reads no data: 'everbyte pool scrub' does.
EPOCH counts checkpoints: everything up to it survives a crash.

A second table lists caches: CACHED is the size of cached data, DIRTY its part without write-back, HITS the hit ratio since
the server's start. --json has more counters.";

/// List the volumes of a pool.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    listing: Listing,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let volumes = volumes(args.listing.ask(Request::VolumeList)?)?;
    args.listing.print("volumes", &volumes, show)
}

/// Prints the volumes as a table.
pub(crate) fn show(volumes: &[VolumeStatus]) {
    let columns = [
        Column::Left("NAME"),
        Column::Left("KIND"),
        Column::Right("PROVISIONED"),
        Column::Right("USED"),
        Column::Right("LOG"),
        Column::Left("DELTA"),
        Column::Left("CHECKSUM"),
        Column::Right("EPOCH"),
        Column::Right("CLIENTS"),
        Column::Left("STATE"),
    ];
    let row = |volume: &VolumeStatus| {
        [
            volume.name.clone(),
            volume.kind.clone(),
            show_size(volume.size_bytes),
            volume.used_bytes.map_or("?".into(), show_size),
            show_size(volume.log_bytes),
            volume.delta.clone(),
            volume.checksum.clone(),
            volume.epoch.to_string(),
            volume.clients.map_or("-".into(), |clients| clients.to_string()),
            state(volume),
        ]
    };
    output::table(columns, &volumes.iter().map(row).collect::<Vec<_>>());
    show_caches(volumes);
}

/// State of a volume: "ok", or its damage.
fn state(volume: &VolumeStatus) -> String {
    // The worst news first: a column has room for one.
    if let Some(damage) = &volume.damage {
        return format!("damaged: {damage}");
    }
    if let Some(why) = &volume.read_only {
        return format!("read-only: {why}");
    }
    if let Some(dir) = &volume.mounted_on {
        return format!("mounted on {dir}");
    }
    match volume.cache() {
        Some(cache) if !["", "open", "closed"].contains(&cache.state.as_str()) => {
            cache.state.clone()
        }
        // A server of an older version gives no state.
        _ if volume.state.is_empty() => "ok".to_owned(),
        _ => volume.state.clone(),
    }
}

/// Prints the table of caches, unless it is empty.
fn show_caches(volumes: &[VolumeStatus]) {
    let columns = [
        Column::Left("CACHE"),
        Column::Left("BACKING"),
        Column::Left("MODE"),
        Column::Left("POLICY"),
        Column::Right("DRAM"),
        Column::Right("SCM"),
        Column::Right("CACHED"),
        Column::Right("DIRTY"),
        Column::Right("HITS"),
    ];
    let percent = |permille: u64| format!("{}.{}%", permille / 10, permille % 10);
    let row = |volume: &VolumeStatus| {
        let cache = volume.cache()?;
        Some([
            volume.name.clone(),
            cache.backing.clone(),
            cache.mode.clone(),
            cache.policy.clone(),
            show_size(cache.dram_bytes),
            show_size(cache.scm_bytes),
            show_size(cache.cached_bytes),
            show_size(cache.dirty_bytes),
            cache.hit_permille.map_or("-".into(), percent),
        ])
    };
    let rows: Vec<_> = volumes.iter().filter_map(row).collect();
    // A pool without caches has no second table.
    if !rows.is_empty() {
        output::line("");
        output::table(columns, &rows);
    }
}

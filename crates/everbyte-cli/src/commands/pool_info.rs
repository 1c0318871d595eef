//! `everbyte pool info`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use everbyte_control::{MediumStatus, PoolStats, PoolStatus, Request, Response, WearStats};

use super::unexpected;
use super::volume_list;
use crate::output;
use crate::session::{Access, ask};
use crate::size::show_size;

const EXAMPLES: &str = "\
Examples:
  everbyte pool info /dev/shm/p
  everbyte pool info /dev/shm/p --json
  everbyte pool info /dev/shm/p --stats      bytes, lines, fences and requests since the opening
  everbyte pool info /dev/shm/p --wear       writes per frame, counted by 'serve --count-wear'";

/// Show a pool: size, space, persistence domain, volumes and server.
///
/// The command changes nothing: after a crash it recovers a private copy. `clean` shows if the last
/// shutdown was clean.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool's file or device.
    pool: PathBuf,
    /// Show counts since the pool's opening instead.
    #[arg(long)]
    stats: bool,
    /// Show the distribution of writes over frames of 4 KiB since the pool's opening instead. It needs
    /// a server with 'serve --emulate TECHNOLOGY --count-wear'.
    #[arg(long, conflicts_with = "stats")]
    wear: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let request = if args.stats || args.wear { Request::Stats } else { Request::Info };
    match ask(&args.pool, Access::Read, request)? {
        Response::Pool(pool) if args.json => output::json(&pool)?,
        Response::Pool(pool) => show(&pool),
        // Before the arm of --json, which would print all statistics.
        Response::Stats(stats) if args.wear => {
            let wear = stats.wear.context(
                "writes per frame are not counted: serve the pool with \
                 --emulate TECHNOLOGY --count-wear",
            )?;
            if args.json { output::json(&wear)? } else { show_wear(&wear) }
        }
        Response::Stats(stats) if args.json => output::json(&stats)?,
        Response::Stats(stats) => show_stats(&stats),
        other => return Err(unexpected(&other)),
    }
    Ok(ExitCode::SUCCESS)
}

fn show(pool: &PoolStatus) {
    let bytes = |bytes: u64| format!("{} ({bytes} bytes)", show_size(bytes));
    let survives = match pool.survives.as_str() {
        "power" => "power loss",
        "process" => "the end of the server, but neither power loss nor reboot",
        other => other,
    };
    let clean = if pool.clean {
        "yes".to_owned()
    } else {
        format!("no: {} undo records were put back", pool.records_undone)
    };
    let low =
        if pool.low_on_space { ", running out: grow the pool, trim or delete volumes" } else { "" };
    let mut rows = vec![
        ("pool", pool.path.clone()),
        ("uid", pool.uid.clone()),
        ("size", bytes(pool.size_bytes)),
        ("used", bytes(pool.used_bytes)),
        ("free", format!("{}{low}", bytes(pool.free_bytes))),
        ("provisioned", bytes(pool.provisioned_bytes)),
        ("survives", survives.to_owned()),
        ("medium", medium_line(&pool.medium)),
        ("health", pool.health.word().to_owned()),
        ("clean", clean),
        ("volumes", format!("{} of at most {}", pool.volumes.len(), pool.volumes_max)),
    ];
    if let Some(reason) = &pool.read_only {
        rows.push(("read-only", reason.clone()));
    }
    for remark in &pool.remarks {
        rows.push(("remark", remark.clone()));
    }
    if let Some(serving) = &pool.serving {
        let how = if serving.read_only { ", read-only" } else { "" };
        let at = serving.shown_addresses(" at ");
        rows.push(("served", format!("by process {}{at}{how}", serving.pid)));
        for export in &serving.exports {
            rows.extend(export.uris.iter().map(|uri| ("export", uri.clone())));
        }
    }
    for (name, value) in rows {
        output::line(format!("{name:<10} {value}"));
    }
    if !pool.volumes.is_empty() {
        output::line("");
        volume_list::show(&pool.volumes);
    }
}

fn medium_line(medium: &MediumStatus) -> String {
    let mut line = format!("{}, flush {}", medium.kind, medium.flush);
    if let Some(sync) = &medium.sync {
        line.push_str(&format!(" and {sync}"));
    }
    line.push_str(&format!(", copies with {}", medium.copy));
    if let Some(technology) = &medium.emulates {
        line.push_str(&format!(", emulates {technology}"));
    }
    line
}

fn show_wear(wear: &WearStats) {
    // Tenths of a multiple of the mean, in whole numbers.
    let to_mean = |lines: u64| {
        let tenths =
            u128::from(lines) * u128::from(wear.frames) * 10 / u128::from(wear.lines.max(1));
        format!("{lines} lines, {}.{} times the average frame's", tenths / 10, tenths % 10)
    };
    let rows = [
        ("frames", format!("{} of 4 KiB, {} of them written", wear.frames, wear.frames_written)),
        ("lines", format!("{} written since the pool was opened", wear.lines)),
        ("most", format!("{}, in frame {}", to_mean(wear.lines_most), wear.frame_most)),
        ("p99", format!("{}, exceeded by one frame of a hundred", to_mean(wear.lines_p99))),
    ];
    for (name, value) in rows {
        output::line(format!("{name:<10} {value}"));
    }
}

fn show_stats(stats: &PoolStats) {
    let medium = &stats.medium;
    output::line(format!(
        "medium: {} bytes stored in {} lines, {} lines flushed, {} fences",
        medium.bytes_stored, medium.lines_stored, medium.lines_flushed, medium.fences
    ));
    for volume in &stats.volumes {
        output::line(format!(
            "volume {}: {} bytes logged, {} checkpoints, epoch {}",
            volume.name, volume.log_bytes, volume.checkpoints, volume.epoch
        ));
    }
    for server in &stats.servers {
        output::line(format!(
            "{}: {} connections ({} so far, {} dropped), {} requests ({} failed, {} flushes), \
             {} bytes read, {} written",
            server.address,
            server.connections,
            server.connections_total,
            server.connections_dropped,
            server.requests,
            server.errors,
            server.flushes,
            server.read_bytes,
            server.written_bytes
        ));
    }
}

//! `everbyte pool create`.

use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use everbyte_pool::file::{CreateOptions, create_with_progress};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::interrupt::Interrupt;
use crate::output;
use crate::session::SessionError;
use crate::size::{parse_size, show_size};

/// Work shorter than this shows no progress.
const QUIET_TIME: Duration = Duration::from_secs(1);

const EXAMPLES: &str = "\
Examples:
  everbyte pool create /dev/shm/p --size 512M        in DRAM: survives the process, not power loss
  everbyte pool create /mnt/pmem0/p --size 100G      on a DAX file system: survives power loss
  everbyte pool create /dev/dax0.0                   a whole DAX device, which gives the size
  everbyte pool create /var/lib/p --size 10G --json";

/// Make an empty pool.
///
/// The command allocates all space of a file, so a pool never meets a full file system later. If there
/// is not enough space in the file system, or on tmpfs in memory and swap, the command makes nothing.
/// A device is taken as a whole. On persistent memory or a disk a pool survives power loss, in /dev/shm
/// only the end of the server. On a disk behind the page cache all writes are slow, and the command
/// warns about it.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// File to make, or device to take.
    pool: PathBuf,
    /// Size of the pool, such as 512M or 100G, a multiple of 4096 bytes. Left out for a device.
    #[arg(long, value_parser = parse_size, value_name = "SIZE")]
    size: Option<u64>,
    /// Volumes there can be; each takes 4096 bytes of the pool even while unused. The default is 1024 in
    /// a pool of 1 GiB or more, and 64 in a smaller one.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=65536))]
    volumes_max: Option<u64>,
    /// Destroy the present contents of the file or device.
    #[arg(long)]
    force: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct CreatedPool<'a> {
    path: &'a str,
    size_bytes: u64,
    volumes_max: u64,
    /// Kind of the medium: dax, file, tmpfs or hugetlbfs.
    medium: String,
    /// A property of the medium to think about before the pool is used.
    warning: Option<&'static str>,
}

/// Warning about a medium behind the page cache: decides nothing, and names the page with figures.
const SLOW_MEDIUM: &str = "the medium is a disk behind the page cache: every group of writes waits for \
    the disk twice, even if no client flushes (docs/ordinary-disk.md)";

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let options =
        CreateOptions { len_bytes: args.size, volumes_max: args.volumes_max, force: args.force };
    // Hidden: most pools are made within the quiet time.
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    let style = ProgressStyle::with_template("allocating {bar:40} {bytes}/{total_bytes} {eta}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let interrupt = Interrupt::catch()?;
    let created = create_with_progress(&args.pool, &options, &mut |done, of| {
        if bar.is_hidden() && bar.elapsed() > QUIET_TIME && std::io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        bar.set_length(of);
        bar.set_position(done);
        // A cancelled creation removes its file.
        if interrupt.has_come() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .map_err(SessionError::from)?;
    bar.finish_and_clear();
    let path = args.pool.display().to_string();
    let warning = created.is_on_disk.then_some(SLOW_MEDIUM);
    if args.json {
        output::json(&CreatedPool {
            path: &path,
            size_bytes: created.len_bytes,
            volumes_max: created.volumes_max,
            medium: created.media.to_string(),
            warning,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line(format!("created pool {path} of {}", show_size(created.len_bytes)));
    if let Some(warning) = warning {
        output::complain(format!("warning: {path}: {warning}"));
    }
    Ok(ExitCode::SUCCESS)
}

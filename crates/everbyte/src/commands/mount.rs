//! `everbyte mount`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use everbyte_control::{ControlServer, Handler};
use everbyte_fs::AccessTimes;
use everbyte_media::MediaOptions;
use everbyte_pool::OpenOptions;
use everbyte_pool::file::open_locked;
use everbyte_server::{MountRequest, OpenPool, Options, SessionError, kinds, wait_for};

use super::server::{Stop, report_recovery, split_target};
use crate::output;
use crate::size::parse_duration;

const EXAMPLES: &str = "\
Examples:
  everbyte volume create /dev/shm/p files --kind fs --size 256M
  everbyte mount /dev/shm/p/files /mnt
  umount /mnt

A line 'ready: DIR' is printed once files can be used. The command serves the mount until it is
unmounted or gets SIGTERM, SIGINT (Ctrl-C) or SIGHUP; then everything is made durable and the pool
is marked clean. It serves the pool to other commands meanwhile, through the control socket
POOL.sock. If it was killed, the next 'everbyte mount' on the directory replaces the dead mount.

What fsync was asked for survives a crash at any moment, and with it everything that was done before
the file's last change: after a crash the file system is as it was at a checkpoint, and needs no
repair. Programs that have files open when the command ends get errors from then on.";

/// Mount a file system of a pool on a directory.
///
/// The pool is recovered first if it was not shut down cleanly. Needs /dev/fuse, and root or
/// fusermount3.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pool's file or device, followed by /VOLUME.
    #[arg(value_name = "POOL/VOLUME")]
    target: PathBuf,
    /// The directory to mount on.
    dir: PathBuf,
    /// Mount read-only.
    #[arg(long)]
    read_only: bool,
    /// Let other users use it, as far as permissions allow them. Unless you are root,
    /// /etc/fuse.conf must have user_allow_other.
    #[arg(long)]
    allow_other: bool,
    /// The reads that change the time of the last access. The kernel answers many from its cache, which
    /// never do.
    #[arg(long, value_enum, default_value_t, value_name = "WHEN")]
    atime: Atime,
    /// Threads that serve requests.
    #[arg(long, default_value_t = 4, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Time between checkpoints, such as 5s or 500ms: a crash takes back changes without an fsync of
    /// at most this time.
    #[arg(long, default_value = "5s", value_parser = parse_duration, value_name = "TIME")]
    checkpoint_interval: Duration,
}

/// Reads that change the time of the last access.
#[derive(Clone, Copy, Default, clap::ValueEnum)]
enum Atime {
    /// The first after a change of the file, and one a day.
    #[default]
    Relative,
    /// None.
    Never,
    /// All.
    Strict,
}

impl From<Atime> for AccessTimes {
    fn from(atime: Atime) -> Self {
        match atime {
            Atime::Relative => Self::Relative,
            Atime::Never => Self::Never,
            Atime::Strict => Self::Strict,
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (path, Some(name)) = split_target(&args.target)? else {
        bail!("{} names a pool: add the volume, as in POOL/VOLUME", args.target.display());
    };
    let stop = Stop::new().context("cannot catch signals")?;
    let started = Instant::now();
    let media = MediaOptions::new();
    let open = || open_locked(&path, &media, kinds(), &OpenOptions::default());
    let pool = wait_for(open).map_err(SessionError::from)?;
    let medium = pool.medium().describe();
    let pool = Arc::new(OpenPool::new(pool, &path, medium, Options::default()));
    report_recovery(&pool, started.elapsed());
    let served = serve(args, &name, &pool, &stop);
    let closed = pool.close();
    served?;
    closed.context("the pool could not be closed cleanly; it will be recovered")?;
    tracing::info!("the pool is closed");
    Ok(ExitCode::SUCCESS)
}

/// Serves until the mount ends or a signal comes.
fn serve(args: &Args, name: &str, pool: &Arc<OpenPool>, stop: &Stop) -> anyhow::Result<()> {
    let timer = pool.start_timer(args.checkpoint_interval);
    let _timer = timer.context("cannot start the checkpoint thread")?;
    let handler: Arc<dyn Handler> = Arc::<OpenPool>::clone(pool);
    pool.set_servers(&[]);
    let path = pool.path();
    let _control = ControlServer::start(path, handler)
        .with_context(|| format!("cannot make the control socket of {}", path.display()))?;
    let request = MountRequest {
        dir: args.dir.clone(),
        allow_other: args.allow_other,
        read_only: args.read_only,
        threads: usize::from(args.threads),
        access_times: args.atime.into(),
    };
    pool.mount(name, &request)?;
    output::line(format!("ready: {}", args.dir.display()));
    stop.wait_unless(|| !pool.is_mounted(name));
    Ok(())
}

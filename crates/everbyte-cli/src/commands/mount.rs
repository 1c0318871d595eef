//! `everbyte mount`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::ValueEnum;
use everbyte_control::{Cause, ControlClient, ControlError};
use everbyte_media::{Mapped, MediaOptions};
use everbyte_pool::file::{FileError, open_locked};
use everbyte_pool::{OpenOptions, Pool};
use everbyte_server::{
    KernelCaching, MountOptions, MountRequest, OpenPool, Options, Privileges, SessionError, kinds,
    source_of, wait_for,
};

use super::mount_options::{Atime, OptionList};
use super::mount_served::ServedMount;
use super::server::{Stop, report_recovery, split_target, start_control};
use super::trust::{TrustArgs, distrust};
use super::{mount_background, mount_served};
use crate::arguments::UsageError;
use crate::size::parse_duration;

const EXAMPLES: &str = "\
Examples:
  everbyte volume create /dev/shm/p files --kind fs --size 256M
  everbyte mount /dev/shm/p/files /mnt
  umount /mnt

A line 'ready: DIR' is printed once files can be used. The command stays until the file system is
unmounted or gets SIGTERM, SIGINT (Ctrl-C) or SIGHUP; then it unmounts. Exit status 0 says that
everything that was done through the mount is durable. It is 1 if bytes that programs stored through
mappings (mmap) could not be written, as in a full volume, also where msync, fsync or close has told the
program: which of them did is not known. It is 1 if somebody aborts the mount, by 'umount -f' or through
/sys/fs/fuse/connections: the kernel drops stores then and does not say which. With --background the
command ends once files can be used, and leaves a process behind that does the rest. If that process ends
with status 1, it writes the reason to the system's log (/dev/log).

If a server has the pool ('everbyte serve', or another 'everbyte mount'), it serves this mount too: the
directory is one of this command's, and when the server ends it is unmounted. Otherwise the command
is the server, for other commands as well through the control socket POOL.sock, until the last file
system of the pool is unmounted; then the pool is marked clean. If a server was killed, the next
'everbyte mount' on the directory replaces the dead mount.

A user who can change a pool can put programs of root and device files into it. Root's mounts are nosuid
and nodev if another user can change the pool, or serves it: the file or device, and the files and devices
that it lies on. A warning names the user. --suid and --dev allow the one or the other. Mounts of other
users are always nosuid and nodev.

What fsync was asked for survives a crash at any moment, and with it everything that was done before
the file's last change: after a crash the file system is as it was at a checkpoint, and needs no
repair. Programs that have files open when the command ends get errors from then on.";

/// Longest time to wait for the end of a server that shuts down, and the pause between two attempts.
const ENDING_TIME_MAX: Duration = Duration::from_secs(10);
const ANSWERED_TIME_MAX: Duration = Duration::from_secs(2);
const ENDING_PAUSE: Duration = Duration::from_millis(50);
/// Number of threads unless the user says another.
const THREADS: u16 = 4;
/// Time between checkpoints unless the user says another.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(5);

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
    /// Let programs have the power of their set-user-ID bits and capabilities, whoever can change the
    /// pool. For root.
    #[arg(long)]
    suid: bool,
    /// Let device files be devices, whoever can change the pool. For root.
    #[arg(long)]
    dev: bool,
    #[command(flatten)]
    trust: TrustArgs,
    /// The reads that change the time of the last access. The kernel answers many from its cache, which
    /// never do.
    #[arg(long, value_enum, value_name = "WHEN")]
    atime: Option<Atime>,
    /// Threads that serve requests; 4 unless given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// Time between checkpoints, such as 5s or 500ms: a crash takes back changes without an fsync of
    /// at most this time. 5s unless given. A server that has the pool already keeps its own.
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    checkpoint_interval: Option<Duration>,
    /// Options as fstab has them, between commas: ro, noexec, nosuid, nodev, noatime, nodiratime, relatime, strictatime,
    /// allow_other, threads=N, checkpoint_interval=TIME. Options of other programs, such as _netdev or nofail,
    /// have no effect. An option of this command takes precedence.
    #[arg(
        short,
        long = "options",
        value_name = "OPTION,...",
        default_value = "",
        hide_default_value = true
    )]
    options: OptionList,
    /// Return once files can be used, and serve the mount in the background.
    #[arg(long)]
    background: bool,
    /// Serve in the background for the command that started this one.
    #[arg(long, hide = true, conflicts_with = "background")]
    detached: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.background {
        return mount_background::start(mount_background::own_arguments(), false);
    }
    if args.options.remount {
        return Err(
            UsageError("remount is an option of mount(8): mount -o remount,ro DIR".into()).into()
        );
    }
    if !args.detached {
        return serve_until_end(args);
    }
    mount_background::leave_terminal()?;
    serve_until_end(args).inspect_err(|error| mount_background::log_failure(&args.dir, error))
}

/// Mounts, and stays until the mount has ended.
fn serve_until_end(args: &Args) -> anyhow::Result<ExitCode> {
    let (path, Some(name)) = split_target(&args.target)? else {
        bail!("{} names a pool: add the volume, as in POOL/VOLUME", args.target.display());
    };
    if (args.asks_for_suid() || args.asks_for_dev()) && !rustix::process::geteuid().is_root() {
        bail!("only root can mount with the options suid and dev");
    }
    let stop = Stop::new().context("cannot catch signals")?;
    let deadline = Instant::now() + ENDING_TIME_MAX;
    loop {
        match mount_once(args, &path, &name, &stop) {
            Err(error) if is_shutting_down(&error) && Instant::now() < deadline => {
                std::thread::sleep(ENDING_PAUSE);
            }
            done => return done?,
        }
    }
}

/// Returns true if the server of the pool is about to end, so that this process can become the next.
fn is_shutting_down(error: &anyhow::Error) -> bool {
    match error.downcast_ref() {
        Some(ControlError::Refused(refused)) => refused.cause == Some(Cause::ShuttingDown),
        Some(ControlError::Unreachable { .. } | ControlError::Broken { .. }) => true,
        _ => false,
    }
}

/// Mounts, and waits for the end of the mount. An outer error means that nothing was mounted.
fn mount_once(
    args: &Args,
    path: &Path,
    name: &str,
    stop: &Stop,
) -> anyhow::Result<anyhow::Result<ExitCode>> {
    let started = Instant::now();
    let media = MediaOptions::new();
    let open = || open_locked(path, &media, kinds(), &OpenOptions::default());
    let pool = match wait_for(open) {
        Err(FileError::InUse(holder)) => match ControlClient::connect(path) {
            Ok(mut client) => {
                let privileges = args.privileges(client.distrust()?);
                let wanted = args.served(path, name.to_owned(), privileges);
                return Ok(mount_served::begin(wanted, client)?.wait_for_end(stop));
            }
            // It answered a moment ago, or the wait would have been longer.
            Err(gone @ ControlError::Unreachable { .. })
                if started.elapsed() < ANSWERED_TIME_MAX =>
            {
                return Err(gone.into());
            }
            Err(_) => return Err(SessionError::from(FileError::InUse(holder)).into()),
        },
        opened => opened.map_err(SessionError::from)?,
    };
    Ok(serve_pool(args, pool, (path, name), (stop, started)))
}

/// Serves the pool until its last mount has ended.
fn serve_pool(
    args: &Args,
    pool: Pool<Mapped>,
    (path, name): (&Path, &str),
    (stop, started): (&Stop, Instant),
) -> anyhow::Result<ExitCode> {
    let medium = pool.medium().describe();
    let options = Options { trust_pool: args.trust.trust_pool, ..Options::default() };
    let pool = Arc::new(OpenPool::new(pool, path, medium, options));
    let privileges = args.privileges(distrust(&pool));
    report_recovery(&pool, started.elapsed());
    let served = serve((args, privileges), name, &pool, stop);
    let closed = pool.close();
    served?;
    closed.context("the pool could not be closed cleanly; it will be recovered")?;
    tracing::info!("the pool is closed");
    pool.check_stores(name)?;
    pool.check_told_losses()?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    /// Returns true if who started it sees what it logs.
    pub(crate) fn is_in_foreground(&self) -> bool {
        !self.background && !self.detached
    }

    /// The files that have more power than their reader: those that were asked for, and, for root, all of a pool that
    /// nobody else can change. `distrust` is the reason for which somebody can.
    fn privileges(&self, distrust: Option<String>) -> Privileges {
        let is_root = rustix::process::geteuid().is_root();
        if let Some(reason) = distrust.as_ref().filter(|_| is_root) {
            let refused = match (self.asks_for_suid(), self.asks_for_dev()) {
                (false, false) => "nosuid and nodev",
                (false, true) => "nosuid",
                (true, false) => "nodev",
                (true, true) => "suid and dev, as asked for",
            };
            tracing::warn!("{reason}, so others can change the pool: the mount is {refused}");
        }
        let is_roots = is_root && distrust.is_none();
        let options = &self.options;
        Privileges {
            suid: self.suid || options.suid.unwrap_or(is_roots),
            dev: self.dev || options.dev.unwrap_or(is_roots),
        }
    }

    fn asks_for_suid(&self) -> bool {
        self.suid || self.options.suid == Some(true)
    }

    fn asks_for_dev(&self) -> bool {
        self.dev || self.options.dev == Some(true)
    }

    fn is_read_only(&self) -> bool {
        self.read_only || self.options.read_only.unwrap_or(false)
    }

    fn atime(&self) -> Atime {
        self.atime.or(self.options.atime).unwrap_or_default()
    }

    fn threads(&self) -> u16 {
        self.threads.or(self.options.threads).unwrap_or(THREADS)
    }

    fn checkpoint_interval(&self) -> Duration {
        self.checkpoint_interval.or(self.options.checkpoint_interval).unwrap_or(CHECKPOINT_INTERVAL)
    }

    /// The mount as a server that has the pool is asked for it.
    fn served(&self, path: &Path, volume: String, privileges: Privileges) -> ServedMount<'_> {
        let options = MountOptions {
            source: source_of(path, &volume),
            allow_other: self.allow_other || self.options.allow_other,
            read_only: self.is_read_only(),
            threads: usize::from(self.threads()),
            access_times: self.atime().into(),
            caching: KernelCaching::Full,
            privileges,
            exec: self.options.exec.unwrap_or(true),
            dir_access_times: self.options.dir_atime.unwrap_or(true),
        };
        let atime = self.atime().to_possible_value();
        ServedMount {
            volume,
            dir: &self.dir,
            options,
            threads: self.threads(),
            atime: atime.map(|atime| atime.get_name().to_owned()).unwrap_or_default(),
            detached: self.detached,
        }
    }
}

/// Serves until the last mount ends or a signal comes.
fn serve(
    (args, privileges): (&Args, Privileges),
    name: &str,
    pool: &Arc<OpenPool>,
    stop: &Stop,
) -> anyhow::Result<()> {
    let timer = pool.start_timer(args.checkpoint_interval());
    let _timer = timer.context("cannot start the checkpoint thread")?;
    pool.set_servers(&[]);
    start_control(pool)?;
    let request = MountRequest {
        dir: args.dir.clone(),
        allow_other: args.allow_other || args.options.allow_other,
        read_only: args.is_read_only(),
        threads: usize::from(args.threads()),
        access_times: args.atime().into(),
        privileges,
        exec: args.options.exec.unwrap_or(true),
        dir_access_times: args.options.dir_atime.unwrap_or(true),
    };
    pool.mount(name, &request)?;
    mount_background::say_ready(&args.dir, args.detached)?;
    stop.wait_unless(|| pool.refuse_mounts_if_unused());
    Ok(())
}

//! `everbyte mount`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::ValueEnum;
use everbyte::Pool;
use everbyte::error::FileError;
use everbyte_control::{Cause, ControlClient, ControlError};
use everbyte_server::{KernelCaching, MountOptions, OpenPool, Options, Privileges, source_of};

use super::mount_options::{Atime, OptionList};
use super::mount_served::ServedMount;
use super::server::{Stop, report_recovery, split_target, start_control};
use super::trust::TrustArgs;
use super::{mount_background, mount_served, service};
use crate::arguments::UsageError;
use crate::session::{SessionError, builder, wait_for};
use crate::size::parse_duration;

const EXAMPLES: &str = "\
Examples:
  everbyte volume create /dev/shm/p files --kind fs --size 256M
  everbyte mount /dev/shm/p/files /mnt
  umount /mnt

When the mount is ready, the command prints 'ready: DIR'. It runs until the file system is unmounted, or until it gets
SIGTERM, SIGINT (Ctrl-C) or SIGHUP, and then unmounts. Exit status 0 means: all changes through the mount are durable. It is 1
if stores through mappings (mmap) could not be written, for example on a full volume, even if msync, fsync or close
already reported the error to the program. It is 1 if a user aborts the mount, by 'umount -f' or through
/sys/fs/fuse/connections: the kernel then drops stores without a report. With --background the command returns when the mount
is ready, and a background process serves it. If this process ends with status 1, it writes the reason to the
system log (/dev/log).

If a server has the pool ('everbyte serve', or another 'everbyte mount'), that server serves this mount too. The
directory belongs to this command, and the server's end unmounts it. Otherwise this command becomes the server, also
for other commands through the control socket POOL.sock, until the last file system of the pool is unmounted. Then it
marks the pool clean. After a server was killed, the next 'everbyte mount' on the directory replaces the dead mount.

A user with write access to a pool can put set-user-ID programs of root and device files into it. Root's mounts are
nosuid and nodev if another user can change the pool or serves it. This includes the pool's file or device, and the files and
devices below it. A warning names the user. --suid and --dev override the restrictions. Mounts of other users are always
nosuid and nodev.

Data acknowledged by fsync survives a crash, together with all changes before that file's last change. After a crash
the file system is at a checkpoint and needs no repair. Programs with open files get errors after the command's end.";

/// Longest time to wait for the end of a server in its shutdown, and the pause between two
/// attempts.
const ENDING_TIME_MAX: Duration = Duration::from_secs(10);
const ANSWERED_TIME_MAX: Duration = Duration::from_secs(2);
const ENDING_PAUSE: Duration = Duration::from_millis(50);
/// Default number of threads.
const THREADS: u16 = 4;
/// Default time between checkpoints.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(5);

/// Mount a file system of a pool on a directory.
///
/// After a crash the command first recovers the pool. It needs /dev/fuse, and root or fusermount3.
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
    /// Let other users access the mount, subject to permissions. For users other than root,
    /// /etc/fuse.conf must contain user_allow_other.
    #[arg(long)]
    allow_other: bool,
    /// Honor set-user-ID bits and capabilities of programs, even if other users can change the pool.
    /// Only for root.
    #[arg(long)]
    suid: bool,
    /// Honor device files, even if other users can change the pool. Only for root.
    #[arg(long)]
    dev: bool,
    #[command(flatten)]
    trust: TrustArgs,
    /// Reads that change the access time. Reads from the kernel's cache never change it.
    #[arg(long, value_enum, value_name = "WHEN")]
    atime: Option<Atime>,
    /// Threads for requests. Default: 4.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// Time between checkpoints, such as 5s or 500ms: a crash loses changes without an fsync of
    /// at most this time. Default: 5s. A running server of the pool keeps its own interval.
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    checkpoint_interval: Option<Duration>,
    /// Options of fstab, separated by commas: ro, noexec, nosuid, nodev, noatime, nodiratime, relatime, strictatime,
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
    /// Wait for a server of the pool, and never become it. For services: a mount that starts again
    /// after the end of its server leaves the pool to the next server.
    #[arg(long)]
    served: bool,
    /// Return when the mount is ready, and serve it in the background.
    #[arg(long)]
    background: bool,
    /// Serve in the background for the parent command.
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
    // A mount in the foreground reports its failure on standard error by itself.
    if !args.detached {
        return serve_until_end(args);
    }
    // Before the mount: a closed terminal would end the server of the files.
    mount_background::leave_terminal()?;
    serve_until_end(args).inspect_err(|error| mount_background::log_failure(&args.dir, error))
}

/// Mounts, and stays until the mount has ended.
fn serve_until_end(args: &Args) -> anyhow::Result<ExitCode> {
    let (path, Some(name)) = split_target(&args.target)? else {
        bail!("{} names a pool: add the volume, as in POOL/VOLUME", args.target.display());
    };
    // Mounts of other users are always nosuid and nodev, so the request must not succeed without
    // its effect.
    if (args.asks_for_suid() || args.asks_for_dev()) && !rustix::process::geteuid().is_root() {
        bail!("only root can mount with the options suid and dev");
    }
    let stop = Stop::new().context("cannot catch signals")?;
    let deadline = Instant::now() + ENDING_TIME_MAX;
    if args.served {
        service::status(&format!("waiting for a server of {}", path.display()));
    }
    loop {
        match mount_once(args, &path, &name, &stop) {
            Err(error) if is_shutting_down(&error) && args.served => {
                if stop.is_wanted() {
                    return Ok(ExitCode::SUCCESS);
                }
                std::thread::sleep(ENDING_PAUSE);
            }
            // The former server is closing the pool, for example right after umount. It is free
            // soon.
            Err(error) if is_shutting_down(&error) && Instant::now() < deadline => {
                std::thread::sleep(ENDING_PAUSE);
            }
            done => return done?,
        }
    }
}

/// Returns true if the server of the pool is about to end: this process can become the next.
fn is_shutting_down(error: &anyhow::Error) -> bool {
    match error.downcast_ref() {
        Some(ControlError::Refused(refused)) => refused.cause == Some(Cause::ShuttingDown),
        Some(ControlError::Unreachable { .. } | ControlError::Broken { .. }) => true,
        _ => false,
    }
}

/// Mounts, and waits for the end of the mount. After an outer error nothing is mounted.
fn mount_once(
    args: &Args,
    path: &Path,
    name: &str,
    stop: &Stop,
) -> anyhow::Result<anyhow::Result<ExitCode>> {
    let by_server = |mut client: ControlClient| -> anyhow::Result<_> {
        let privileges = args.privileges(client.distrust()?);
        let wanted = args.served_mount(path, name.to_owned(), privileges);
        Ok(mount_served::begin(wanted, client)?.wait_for_end(stop))
    };
    if args.served {
        // The pool is not opened: a starting server must find it free.
        return by_server(ControlClient::connect(path)?);
    }
    let started = Instant::now();
    let interval = args.checkpoint_interval();
    let builder = builder().checkpoint_interval(interval).trust_pool(args.trust.trust_pool);
    let pool = match wait_for(|| builder.open_file(path)) {
        // A server has the pool. It serves this mount too, and this process only mounts.
        Err(FileError::InUse(holder)) => match ControlClient::connect(path) {
            Ok(client) => return by_server(client),
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
    Ok(serve_pool(args, pool, name, (stop, started)))
}

/// Serves the pool until its last mount has ended.
fn serve_pool(
    args: &Args,
    pool: Pool,
    name: &str,
    (stop, started): (&Stop, Instant),
) -> anyhow::Result<ExitCode> {
    let pool = Arc::new(OpenPool::new(pool, Options::default()));
    let privileges = args.privileges(pool.distrust());
    report_recovery(&pool, started.elapsed());
    // The pool is closed even if serving failed: otherwise the next start would recover it.
    let served = serve((args, privileges), name, &pool, stop);
    let closed = pool.close();
    served?;
    closed.context("the pool could not be closed cleanly; it will be recovered")?;
    tracing::info!("the pool is closed");
    // After the close, which ends the mounts: only now are all lost stores known.
    pool.check_stores(name)?;
    pool.check_told_losses()?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    /// Returns true if the user sees the log of this process.
    pub(crate) fn is_in_foreground(&self) -> bool {
        !self.background && !self.detached
    }

    /// The files with more power than their reader: the requested ones, and, for root, all files of
    /// a pool no other user can change. `distrust` is the reason why another user can.
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
        // A writer of the pool could otherwise plant a program with the rights of root.
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

    fn mount_options(&self, path: &Path, volume: &str, privileges: Privileges) -> MountOptions {
        MountOptions {
            source: source_of(path, volume),
            allow_other: self.allow_other || self.options.allow_other,
            read_only: self.is_read_only(),
            threads: usize::from(self.threads()),
            access_times: self.atime().into(),
            caching: KernelCaching::Full,
            privileges,
            exec: self.options.exec.unwrap_or(true),
            dir_access_times: self.options.dir_atime.unwrap_or(true),
        }
    }

    /// The mount in the form of a request to the pool's server.
    fn served_mount(&self, path: &Path, volume: String, privileges: Privileges) -> ServedMount<'_> {
        let options = self.mount_options(path, &volume, privileges);
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
    // Without exports: only the control socket and the mount reach the pool.
    pool.set_servers(&[], &[]);
    // Before the mount: from its first moment on, commands go through this server.
    start_control(pool)?;
    pool.mount(name, &args.dir, &args.mount_options(pool.pool().path(), name, privileges))?;
    mount_background::say_ready(&args.dir, args.detached)?;
    // The last unmount ends the server, because nothing else uses the pool.
    stop.wait_unless(|| pool.refuse_mounts_if_unused());
    Ok(())
}

//! A mount: its options, its threads, its end.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use everbyte_fs::{AccessTimes, FileSystem, InodeNo};
use everbyte_media::Medium;
use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::caches::{KernelCaches, OwnCaches};
use crate::device::{can_open_device, check_device, mounted_on};
use crate::directory::{MountError, MountOptions, check_directory, detach, end_dead_mount};
use crate::operations::Operations;

/// A file system that is mounted. Dropping it unmounts it.
#[derive(Debug)]
pub struct Mount {
    session: BackgroundSession,
    place: Place,
    root: InodeNo,
}

/// The place of a mount.
#[derive(Debug)]
enum Place {
    /// This directory, where this process has mounted.
    Dir(PathBuf),
    /// A directory of whoever has mounted it, perhaps in another namespace, and the source there.
    Elsewhere(String),
}

/// Longest time to wait until the kernel has something to say about a mount.
const FIRST_REQUEST_TIME_MAX: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// Longest time to wait until whoever has mounted takes the mount away, and then once more after it was
/// taken away here.
const ELSEWHERE_TIME_MAX: Duration = Duration::from_secs(2);
/// Time between two looks at a mount that is to end.
const LOOK: Duration = Duration::from_millis(10);

/// The end of a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unmounted {
    /// The kernel has given up all that it had of it.
    Ended,
    /// Programs have files open, and what they have mapped and changed may still come, or not.
    Used,
}

impl Mount {
    /// Mounts `fs` on the directory `dir`, and serves it by threads of its own until it is unmounted.
    ///
    /// # Errors
    /// `Mount`: there is no such directory, FUSE is not there, or it is not allowed.
    pub fn new<M: Medium>(
        fs: Arc<FileSystem<M>>,
        dir: &Path,
        options: &MountOptions,
    ) -> Result<Self, MountError> {
        let mut config = config(options);
        let access = if options.read_only { MountOption::RO } else { MountOption::RW };
        config.mount_options = vec![
            MountOption::FSName(options.source.clone()),
            MountOption::Subtype("everbyte".into()),
            MountOption::DefaultPermissions,
            access,
        ];
        if rustix::process::geteuid().is_root() {
            // Others may mount, but not devices and programs that change who they are.
            config.mount_options.extend([MountOption::Dev, MountOption::Suid]);
        }
        config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
        let failed = |error| MountError::Mount { dir: dir.to_owned(), error };
        end_dead_mount(dir);
        check_directory(dir).map_err(failed)?;
        let root = fs.root();
        let caches = OwnCaches::default();
        let operations =
            Operations::new(fs, access_times(options), options.caching, caches.clone());
        let session = Session::new(operations, dir, &config).map_err(failed)?;
        let session = session.spawn().map_err(failed)?;
        Ok(Self::of(session, Place::Dir(dir.to_owned()), root, &caches))
    }

    /// Serves `fs` by threads of its own to a mount that another process has made, by
    /// [`crate::DirMount`] or in its way, until that is unmounted. The kernel keeps users out
    /// whom whoever mounted did not allow.
    ///
    /// # Errors
    /// `Serve`: the descriptor is not of `/dev/fuse`, or is not mounted.
    pub fn over<M: Medium>(
        fs: Arc<FileSystem<M>>,
        descriptor: OwnedFd,
        options: &MountOptions,
    ) -> Result<Self, MountError> {
        let failed = |error| MountError::Serve { error };
        check_device(&descriptor).map_err(failed)?;
        wait_for_kernel(&descriptor).map_err(failed)?;
        let mut config = config(options);
        config.clone_fd &= can_open_device();
        let root = fs.root();
        let caches = OwnCaches::default();
        let operations =
            Operations::new(fs, access_times(options), options.caching, caches.clone());
        let session = Session::from_fd(operations, descriptor, SessionACL::All, config);
        let session = session.and_then(Session::spawn).map_err(failed)?;
        Ok(Self::of(session, Place::Elsewhere(options.source.clone()), root, &caches))
    }

    fn of(session: BackgroundSession, place: Place, root: InodeNo, own: &OwnCaches) -> Self {
        let mount = Self { session, place, root };
        own.set(mount.caches());
        mount
    }

    /// The kernel's caches of the mount.
    #[must_use]
    pub fn caches(&self) -> KernelCaches {
        KernelCaches { notifier: self.session.notifier(), root: self.root }
    }

    /// Returns true once the mount has ended, by [`Mount::unmount`] or from outside.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.session.guard.is_finished()
    }

    /// Ends the mount, and waits for the requests under way. If programs have files open, the mount is
    /// taken from its directory all the same; what they ask for from then on is answered as long as
    /// this process lives, and fails once the pool is closed. One of another process is waited for a
    /// few seconds, and taken from its directory if this process can; it is dead otherwise once this
    /// process has ended.
    ///
    /// # Errors
    /// `Unmount`: the system refuses. It stays mounted then.
    pub fn unmount(self) -> Result<Unmounted, MountError> {
        let dir = match &self.place {
            Place::Dir(dir) => dir.clone(),
            Place::Elsewhere(source) => {
                return Ok(self.end_elsewhere(source));
            }
        };
        match self.session.umount_and_join() {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && detach(&dir) => {
                tracing::warn!(dir = %dir.display(), "unmounted although files are open");
                Ok(Unmounted::Used)
            }
            Err(error) => Err(MountError::Unmount { dir, error }),
            Ok(()) => Ok(Unmounted::Ended),
        }
    }

    fn end_elsewhere(&self, source: &str) -> Unmounted {
        if self.ends_within(ELSEWHERE_TIME_MAX) {
            return Unmounted::Ended;
        }
        // Whoever has mounted is gone or slow. The directory may be in this namespace.
        let dirs = mounted_on(source).unwrap_or_default();
        let is_taken = dirs.iter().filter(|dir| detach(dir)).count() > 0;
        if is_taken && self.ends_within(ELSEWHERE_TIME_MAX) {
            return Unmounted::Ended;
        }
        tracing::warn!(source, "a mount is left behind: it is dead once this process has ended");
        Unmounted::Used
    }

    fn ends_within(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        while !self.is_ended() && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
        self.is_ended()
    }
}

fn access_times(options: &MountOptions) -> AccessTimes {
    if options.read_only { AccessTimes::Never } else { options.access_times }
}

fn config(options: &MountOptions) -> Config {
    let mut config = Config::default();
    config.n_threads = Some(options.threads.max(1));
    config.clone_fd = options.threads > 1;
    config
}

/// Waits for the first request of the kernel, which comes at once for whatever is mounted.
fn wait_for_kernel(descriptor: &OwnedFd) -> io::Result<()> {
    let mut ready = [PollFd::new(descriptor, PollFlags::IN)];
    if poll(&mut ready, Some(&FIRST_REQUEST_TIME_MAX))? > 0 {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel asks for nothing"))
}

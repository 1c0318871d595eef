//! A mount: its options, its threads, its end.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use everbyte_fs::{AccessTimes, FileSystem, InodeNo};
use everbyte_media::Medium;
use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};

use crate::caches::KernelCaches;
use crate::operations::Operations;

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The source in the list of mounts, such as `POOL/VOLUME`.
    pub source: String,
    /// Users other than the one who mounts may use it.
    pub allow_other: bool,
    /// Nothing may be changed.
    pub read_only: bool,
    /// Threads that serve requests, at least 1.
    pub threads: usize,
    /// Which accesses change the time of the last one; none of a read-only mount. What the kernel answers
    /// from its cache is none.
    pub access_times: AccessTimes,
}

/// The reason for which a file system could not be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The directory cannot be mounted over.
    #[error("cannot mount on {}: {error}", dir.display())]
    Mount {
        /// The directory.
        dir: PathBuf,
        /// The reason.
        #[source]
        error: io::Error,
    },
    /// The mount could not be ended.
    #[error("cannot unmount {}: {error}", dir.display())]
    Unmount {
        /// The directory.
        dir: PathBuf,
        /// The reason.
        #[source]
        error: io::Error,
    },
}

/// A file system that is mounted. Dropping it unmounts it.
#[derive(Debug)]
pub struct Mount {
    session: BackgroundSession,
    dir: PathBuf,
    root: InodeNo,
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
        let mut config = Config::default();
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
        config.n_threads = Some(options.threads.max(1));
        config.clone_fd = options.threads > 1;
        let failed = |error| MountError::Mount { dir: dir.to_owned(), error };
        end_dead_mount(dir);
        let root = fs.root();
        let access_times =
            if options.read_only { AccessTimes::Never } else { options.access_times };
        let operations = Operations::new(fs, access_times);
        let session = Session::new(operations, dir, &config).map_err(failed)?;
        Ok(Self { session: session.spawn().map_err(failed)?, dir: dir.to_owned(), root })
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
    /// this process lives, and fails once the pool is closed.
    ///
    /// # Errors
    /// `Unmount`: the system refuses. It stays mounted then.
    pub fn unmount(self) -> Result<(), MountError> {
        let Self { session, dir, .. } = self;
        match session.umount_and_join() {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && detach(&dir) => {
                tracing::warn!(dir = %dir.display(), "unmounted although files are open");
                Ok(())
            }
            ended => ended.map_err(|error| MountError::Unmount { dir, error }),
        }
    }
}

/// Takes a mount away whose server has gone without unmounting, so that the directory can be used again.
fn end_dead_mount(dir: &Path) {
    let is_dead =
        std::fs::metadata(dir).is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN));
    if !is_dead {
        return;
    }
    tracing::info!(dir = %dir.display(), "replacing a mount whose server has gone");
    // If this fails, mounting says why.
    let _ = detach(dir);
}

/// Takes whatever is mounted on `dir` from it, used or not. Whoever is not root asks the helper.
fn detach(dir: &Path) -> bool {
    rustix::mount::unmount(dir, rustix::mount::UnmountFlags::DETACH).is_ok()
        || Command::new("fusermount3")
            .args(["-u", "-z"])
            .arg(dir)
            .status()
            .is_ok_and(|status| status.success())
}

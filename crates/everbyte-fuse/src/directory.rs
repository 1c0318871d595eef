//! Directories for mounts: options, errors, and the end of a mount.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use everbyte_fs::AccessTimes;
use everbyte_path::{Kind, MountPoint};

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The source in the list of mounts, see [`source_of`].
    pub source: String,
    /// Users other than the mounting one may use it.
    pub allow_other: bool,
    /// Nothing may be changed.
    pub read_only: bool,
    /// Threads for requests, at least 1.
    pub threads: usize,
    /// Accesses that change the last access time; none on a read-only mount. Answers from the
    /// kernel's cache are not accesses.
    pub access_times: AccessTimes,
    /// The part that the kernel may cache.
    pub caching: KernelCaching,
    /// The files with more power than their reader. Only root can permit any.
    pub privileges: Privileges,
    /// Files can be run as programs.
    pub exec: bool,
    /// Listings change the time of the last access of directories.
    pub dir_access_times: bool,
}

/// The files of a mount with more power than their user. By default none: a user with write access
/// to a pool can make any file in it, of any owner.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Privileges {
    /// Programs run with their set-user-ID and set-group-ID bits and their capabilities.
    pub suid: bool,
    /// Device files are devices.
    pub dev: bool,
}

/// The source of a mount of the file system `volume` in `pool`: `everbyte:POOL/VOLUME`. Without the
/// prefix it would be a path through a file. Programs that inspect the source of every mount, as
/// mkfs.btrfs does, fail on such a path.
#[must_use]
pub fn source_of(pool: &Path, volume: &str) -> String {
    format!("everbyte:{}", pool.join(volume).display())
}

/// The part of a file system that the kernel answers from its caches.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum KernelCaching {
    /// Names, attributes and bytes, until a change that the kernel did not make.
    #[default]
    Full,
    /// Nothing: every call becomes requests, and files cannot be mapped for sharing. To measure requests.
    Off,
}

/// The reason for a failed mount or unmount.
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
    /// The descriptor of a foreign mount cannot be served.
    #[error("the mount cannot be served: {error}")]
    Serve {
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

/// Removes a mount whose server ended without unmounting, so that the directory can be used again.
pub(crate) fn end_dead_mount(dir: &Path) {
    let is_dead =
        everbyte_path::look(dir).is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN));
    if !is_dead {
        return;
    }
    tracing::info!(dir = %dir.display(), "replacing a mount without a server");
    // If this fails, mounting says why.
    let _ = detach(dir);
}

/// Checks that `dir` is a directory: the kernel also mounts on a file, and such a mount would be
/// useless.
pub(crate) fn check_directory(dir: &Path) -> io::Result<()> {
    match everbyte_path::look(dir)?.kind() {
        Kind::Directory => Ok(()),
        _ => Err(io::ErrorKind::NotADirectory.into()),
    }
}

/// Removes the topmost mount from `dir`, even in use. Other users than root call the helper.
pub(crate) fn detach(dir: &Path) -> io::Result<()> {
    detach_point(&MountPoint::find(dir)?, dir)
}

/// The same for a directory found before, with this path.
pub(crate) fn detach_point(point: &MountPoint, dir: &Path) -> io::Result<()> {
    match point.detach() {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {}
        done => return done,
    }
    // The helper is set-user-id root and checks that the mount is the caller's.
    let output = Command::new("fusermount3").args(["-u", "-z", "--"]).arg(dir).output();
    let output = output.map_err(|error| no_helper(&error))?;
    if output.status.success() { Ok(()) } else { Err(refusal(&output)) }
}

/// The error if the system's helper cannot be started.
pub(crate) fn no_helper(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("fusermount3 cannot be started: {error}"))
}

/// The helper's words for its refusal.
pub(crate) fn refusal(output: &Output) -> io::Error {
    io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

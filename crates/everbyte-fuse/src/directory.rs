//! Directories that are mounted on: options, errors, and the end of what is mounted there.

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
    /// Users other than the one who mounts may use it.
    pub allow_other: bool,
    /// Nothing may be changed.
    pub read_only: bool,
    /// Threads that serve requests, at least 1.
    pub threads: usize,
    /// Which accesses change the time of the last one; none of a read-only mount. What the kernel answers
    /// from its cache is none.
    pub access_times: AccessTimes,
    /// The part that the kernel may keep.
    pub caching: KernelCaching,
    /// The files that have more power than their reader. Only root can give them any.
    pub privileges: Privileges,
    /// Files can be run as programs.
    pub exec: bool,
    /// Listings change the time of the last access of directories.
    pub dir_access_times: bool,
}

/// The files of a mount that have more power than whoever uses them. By default none: whoever can write to a pool can
/// make any file in it, of any user.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Privileges {
    /// Programs run with their set-user-ID and set-group-ID bits and their capabilities.
    pub suid: bool,
    /// Device files are devices.
    pub dev: bool,
}

/// The source of a mount of the file system `volume` in `pool`: `everbyte:POOL/VOLUME`. Without the prefix it
/// would be a path through a file, and programs that look at the source of every mount, as mkfs.btrfs does,
/// fail at one.
#[must_use]
pub fn source_of(pool: &Path, volume: &str) -> String {
    format!("everbyte:{}", pool.join(volume).display())
}

/// The part of a file system that the kernel answers for without asking.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum KernelCaching {
    /// Names, attributes and bytes, until somebody else than the kernel changes them.
    #[default]
    Full,
    /// Nothing: every call becomes requests, and files cannot be mapped for sharing. To measure requests.
    Off,
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
    /// The descriptor that somebody else has mounted cannot be served.
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

/// Takes a mount away whose server has gone without unmounting, so that the directory can be used again.
pub(crate) fn end_dead_mount(dir: &Path) {
    let is_dead =
        everbyte_path::look(dir).is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN));
    if !is_dead {
        return;
    }
    tracing::info!(dir = %dir.display(), "replacing a mount whose server has gone");
    // If this fails, mounting says why.
    let _ = detach(dir);
}

/// Checks that `dir` is a directory: the kernel mounts on a file, too, and nobody could use that.
pub(crate) fn check_directory(dir: &Path) -> io::Result<()> {
    match everbyte_path::look(dir)?.kind() {
        Kind::Directory => Ok(()),
        _ => Err(io::ErrorKind::NotADirectory.into()),
    }
}

/// Takes whatever is mounted on `dir` from it, used or not. Whoever is not root asks the helper.
pub(crate) fn detach(dir: &Path) -> io::Result<()> {
    detach_point(&MountPoint::find(dir)?, dir)
}

/// The same for a directory that was found before, and has this path.
pub(crate) fn detach_point(point: &MountPoint, dir: &Path) -> io::Result<()> {
    match point.detach() {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {}
        done => return done,
    }
    let output = Command::new("fusermount3").args(["-u", "-z", "--"]).arg(dir).output();
    let output = output.map_err(|error| no_helper(&error))?;
    if output.status.success() { Ok(()) } else { Err(refusal(&output)) }
}

/// The error if the system's helper cannot be started.
pub(crate) fn no_helper(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("fusermount3 cannot be started: {error}"))
}

/// The words of the system's helper, which has refused.
pub(crate) fn refusal(output: &Output) -> io::Error {
    io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

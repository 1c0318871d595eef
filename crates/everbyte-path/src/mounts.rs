//! Taking a mount from its directory.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{UnmountFlags, unmount};

use crate::place::Place;

/// A present or former mount directory: its parent directory and its name.
#[derive(Debug)]
pub struct MountPoint {
    place: Place,
}

impl MountPoint {
    /// Finds it. The last component of `path` may not be a link.
    ///
    /// # Errors
    /// The system's; a link of an untrusted user is in the path.
    pub fn find(path: &Path) -> io::Result<Self> {
        let place = Place::of(path)?;
        place.name()?;
        Ok(Self { place })
    }

    /// The kernel's number of the mount of the directory, as in `/proc/self/mountinfo`. No request
    /// goes to the server of the mount.
    ///
    /// # Errors
    /// The system's.
    pub fn mount_id(&self) -> io::Result<u64> {
        // Without a look at the file, which only the server of the mount could answer.
        let opened = self.place.dir.open_raw(self.place.name()?, OFlags::PATH, Mode::empty())?;
        let info = format!("/proc/self/fdinfo/{}", opened.as_raw_fd());
        let text = fs::read_to_string(info)?;
        let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
        id.ok_or_else(|| io::Error::other("the kernel tells no number of the mount"))
    }

    /// Takes the mount away, used or not. Neither a link at the end of the path nor a replaced directory
    /// above it leads to another mount.
    ///
    /// # Errors
    /// The system's: nothing is mounted there, or the process may not unmount.
    pub fn detach(&self) -> io::Result<()> {
        // By the held directory: its path may lead to another directory by now.
        let path: PathBuf = self.place.dir.proc_path().join(self.place.name()?);
        Ok(unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?)
    }
}

/// Takes the mount on the directory at `path` away, used or not.
///
/// # Errors
/// As [`MountPoint::find`] and [`MountPoint::detach`].
pub fn detach(path: &Path) -> io::Result<()> {
    MountPoint::find(path)?.detach()
}

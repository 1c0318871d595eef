//! A private tmpfs for mounts.
//!
//! Invariants: this process and its children run in a private mount namespace with a tmpfs over a directory. No other
//! process sees it. It ends with the last process of the namespace.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::subjects::mount_ns::enter_mount_ns;

/// A directory that every system has, for others to mount on.
pub(crate) const FOR_MOUNTS: &str = "/mnt";

/// The place.
#[derive(Debug)]
pub(crate) struct Room(PathBuf);

impl Room {
    /// Moves this thread and its later children to a private namespace, and mounts a tmpfs over the directory
    /// `covered` there.
    ///
    /// # Errors
    /// The user is not root; FUSE is missing; the system's.
    pub(crate) fn new(covered: &Path) -> Result<Self> {
        enter_mount_ns()?;
        if !Path::new("/dev/fuse").exists() {
            bail!("needs FUSE: there is no /dev/fuse");
        }
        mount("everbyte-bench", covered, "tmpfs", MountFlags::NODEV, None)
            .context("cannot mount a tmpfs")?;
        Ok(Self(covered.to_owned()))
    }

    /// A new directory.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // A remaining mount ends with the namespace.
        let _stays = unmount(&self.0, UnmountFlags::DETACH);
    }
}

//! A place for mounts that leaves nothing behind, however this process ends.
//!
//! Invariants: this process and those that it starts are in a mount namespace of their own, where a
//! tmpfs covers a directory; directories, files and mounts below it are seen by nobody else, and are
//! gone when the last of these processes is.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, unshare};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};

/// A directory that every system has, for others to mount on.
const COVERED: &str = "/mnt";

/// The place.
#[derive(Debug)]
pub(crate) struct Room(());

impl Room {
    /// Moves this thread, and all that it starts from then on, to a namespace of their own.
    ///
    /// # Errors
    /// Not root; there is no FUSE; the system's.
    pub(crate) fn new() -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            bail!("needs root, to mount in a namespace of its own");
        }
        if !Path::new("/dev/fuse").exists() {
            bail!("needs FUSE: there is no /dev/fuse");
        }
        unshare(CloneFlags::CLONE_NEWNS).context("cannot make a mount namespace")?;
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", private).context("cannot keep mounts to this process")?;
        mount("everbyte-bench", COVERED, "tmpfs", MountFlags::NODEV, None)
            .context("cannot mount a tmpfs")?;
        Ok(Self(()))
    }

    /// A new directory.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = Path::new(COVERED).join(name);
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }
}

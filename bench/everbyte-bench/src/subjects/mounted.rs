//! ext4 on an image in memory or on an export over NBD, in a private mount namespace.
//!
//! `nbdfuse` shows an export as a file below a loop device. Invariants: only a thread of
//! [`in_mount_ns`](super::mount_ns::in_mount_ns) makes mounts. Its mounts end with the thread and its children, so nothing
//! stays mounted after any end of the process. The last user of a loop device detaches it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::fs::syncfs;

use super::ext4::MAKE;
use crate::children::{call, output, wait_or_kill, wait_until};

/// Longest time of a mount and of an unmount.
const TIME_MAX: Duration = Duration::from_secs(20);

/// Device below a file system.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Below<'a> {
    /// A file in memory.
    Image(&'a Path),
    /// An export over NBD, by its URI. Direct I/O takes every request of ext4 to the server.
    DirectExport(&'a str),
}

/// A mounted file system.
pub(crate) struct Mounted {
    pub(crate) root: PathBuf,
    fuse: PathBuf,
    nbdfuse: Option<Child>,
}

impl Mounted {
    /// Makes ext4 with `options` of `mke2fs`, and mounts it with `mount_options` in the empty `folder`. Requires a
    /// thread of [`in_mount_ns`](super::mount_ns::in_mount_ns).
    ///
    /// # Errors
    /// A tool is missing or fails.
    pub(crate) fn new(
        folder: &Path,
        below: Below<'_>,
        options: &[&str],
        mount_options: &str,
    ) -> Result<Self> {
        let (fuse, root) = (folder.join("nbdfuse"), folder.join("mounted"));
        fs::create_dir(&fuse)?;
        fs::create_dir(&root)?;
        // From here on, a drop unmounts and ends everything that the next lines make.
        let mut mounted = Self { root, fuse, nbdfuse: None };
        let file = match below {
            Below::Image(image) => image.to_owned(),
            Below::DirectExport(uri) => mounted.show(uri)?,
        };
        call(Command::new("mke2fs").args(MAKE).args(options).arg(&file))?;
        let mut mount = Command::new("mount");
        if let Below::DirectExport(_) = below {
            let mut losetup = Command::new("losetup");
            let device = output(losetup.args(["--direct-io=on", "--find", "--show"]).arg(&file))?;
            let device = device.trim();
            let done = call(mount.args(["-o", mount_options, device]).arg(&mounted.root));
            // The mount keeps the detached device. Without a mount it ends now.
            call(Command::new("losetup").args(["--detach", device]))?;
            done?;
        } else {
            let mount_options = format!("loop,{mount_options}");
            call(mount.args(["-o", &mount_options]).arg(&file).arg(&mounted.root))?;
        }
        mounted.sync()?;
        Ok(mounted)
    }

    /// Makes everything durable.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn sync(&self) -> Result<()> {
        syncfs(File::open(&self.root)?)?;
        Ok(())
    }

    /// Shows an export as a file.
    fn show(&mut self, uri: &str) -> Result<PathBuf> {
        let file = self.fuse.join("nbd");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "--", "nbdfuse"]).arg(&file).arg(uri);
        let spawned = command.stdin(Stdio::null()).spawn();
        let nbdfuse = self.nbdfuse.insert(spawned.context("setpriv is not installed")?);
        wait_until(nbdfuse, "nbdfuse", TIME_MAX, || file.exists())?;
        Ok(file)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for at in [&self.root, &self.fuse] {
            // A failure before the mount leaves nothing to unmount.
            let _not_mounted = call(Command::new("umount").arg(at));
        }
        if let Some(nbdfuse) = &mut self.nbdfuse {
            wait_or_kill(nbdfuse, TIME_MAX);
        }
    }
}

//! ext4 on an image in memory or on an export over NBD, mounted where nobody else sees it.
//!
//! An export is a file that `nbdfuse` shows, below a loop device. Invariants: mounts are made in the mount
//! namespace of a thread that [`apart`](super::mount_ns::in_mount_ns) started, and that thread's children end with it, so
//! nothing stays mounted however the process ends; a loop device is taken apart by its last user.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::syncfs;

use super::ext4::MAKE;
use crate::children::{call, wait_or_kill};

/// Time that mounting and unmounting may take.
const TIME_MAX: Duration = Duration::from_secs(20);
/// Time between looks whether they are done.
const POLL: Duration = Duration::from_millis(20);

/// Device below a file system.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Below<'a> {
    /// A file in memory.
    Image(&'a Path),
    /// An export over NBD, by its URI, through the page cache of the file that shows it.
    Export(&'a str),
    /// The same past that page cache, so that every request of ext4 reaches the server.
    DirectExport(&'a str),
}

/// A mounted file system.
pub(crate) struct Mounted {
    pub(crate) root: PathBuf,
    fuse: PathBuf,
    nbdfuse: Option<Child>,
}

impl Mounted {
    /// Makes ext4 with `options` of `mke2fs`, and mounts it with `mount_options` in `folder`, which has
    /// nothing else. Only in [`apart`](super::mount_ns::in_mount_ns).
    ///
    /// # Errors
    /// Tools are missing, or one of them fails.
    pub(crate) fn new(
        folder: &Path,
        below: Below<'_>,
        options: &[&str],
        mount_options: &str,
    ) -> Result<Self> {
        let (fuse, root) = (folder.join("nbdfuse"), folder.join("mounted"));
        fs::create_dir(&fuse)?;
        fs::create_dir(&root)?;
        // From here on, dropping it unmounts and removes everything that was made.
        let mut mounted = Self { root, fuse, nbdfuse: None };
        let file = match below {
            Below::Image(image) => image.to_owned(),
            Below::Export(uri) | Below::DirectExport(uri) => mounted.show(uri)?,
        };
        call(Command::new("mke2fs").args(MAKE).args(options).arg(&file))?;
        let mut mount = Command::new("mount");
        if let Below::DirectExport(_) = below {
            let device = attach(&file)?;
            let done = call(mount.args(["-o", mount_options]).arg(&device).arg(&mounted.root));
            // Whoever uses it now is the last one; without a mount that is nobody.
            call(Command::new("losetup").arg("--detach").arg(&device))?;
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
        let start = Instant::now();
        while !file.exists() {
            if let Some(status) = nbdfuse.try_wait()? {
                bail!("nbdfuse ended at once: {status}");
            }
            if start.elapsed() > TIME_MAX {
                bail!("nbdfuse does not show {}", file.display());
            }
            std::thread::sleep(POLL);
        }
        Ok(file)
    }
}

/// Puts a loop device over a file, past its page cache, and returns the device's path.
fn attach(file: &Path) -> Result<String> {
    let mut command = Command::new("losetup");
    let output = command.args(["--direct-io=on", "--find", "--show"]).arg(file).output();
    let output = output.context("losetup is not installed")?;
    if !output.status.success() {
        bail!("losetup failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for at in [&self.root, &self.fuse] {
            // It may never have been mounted.
            let _not_mounted = call(Command::new("umount").arg(at));
        }
        if let Some(nbdfuse) = &mut self.nbdfuse {
            wait_or_kill(nbdfuse, TIME_MAX);
        }
    }
}

//! ext4 on a loop device over a file on tmpfs: the ramdisk of the paper's experiments.
//!
//! Invariants: the mount and the image's name are gone before anything is measured. What remains
//! is held by the open files alone, so the kernel takes everything apart when they are closed,
//! however the process ends.

use std::fs::{self, File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use rustix::fs::OFlags;

use super::file::{FileKind, FileSubject};
use crate::index::directory::open_directory;

/// The two ways to use the one file system.
pub(crate) struct Ext4Files {
    pub(crate) direct: FileSubject,
    pub(crate) buffered: FileSubject,
}

/// Makes the file system with two files of `size_bytes`; `folder` lies on tmpfs.
///
/// # Errors
/// Not root, tools are missing, or one of them fails.
pub(crate) fn mount(folder: &Path, size_bytes: u64) -> Result<Ext4Files> {
    let (direct, buffered) = mounted(folder, 2 * size_bytes, |at| {
        let direct = open(at, "direct", OFlags::DIRECT)?;
        Ok((direct, open(at, "buffered", OFlags::empty())?))
    })?;
    Ok(Ext4Files {
        direct: FileSubject::over("ext4-direct", FileKind::Direct, direct, size_bytes)?,
        buffered: FileSubject::over("ext4-buffered", FileKind::Buffered, buffered, size_bytes)?,
    })
}

/// Makes a file system of so many bytes that nobody else uses, and opens its root; `folder` lies on tmpfs.
///
/// # Errors
/// Not root, tools are missing, or one of them fails.
pub(crate) fn mount_directory(folder: &Path, size_bytes: u64) -> Result<OwnedFd> {
    mounted(folder, size_bytes, open_directory)
}

/// Makes a file system with room for so many bytes of files, and what `open` opens in it.
fn mounted<R>(folder: &Path, size_bytes: u64, open: impl FnOnce(&Path) -> Result<R>) -> Result<R> {
    if !rustix::process::geteuid().is_root() {
        bail!("needs root, to mount a loop device");
    }
    let image = folder.join("ext4.img");
    let opened = mounted_on(&image, folder, size_bytes, open);
    let _absent_if_failed = fs::remove_file(&image);
    opened
}

fn mounted_on<R>(
    image: &Path,
    folder: &Path,
    size_bytes: u64,
    open: impl FnOnce(&Path) -> Result<R>,
) -> Result<R> {
    let file = File::create_new(image).context("cannot make the image")?;
    file.set_len(size_bytes + size_bytes / 16 + (64 << 20))?;
    drop(file);
    call(Command::new("mke2fs").args(["-q", "-F", "-t", "ext4"]).arg(image))?;
    let at = folder.join("ext4");
    fs::create_dir(&at)?;
    call(Command::new("mount").args(["-o", "loop,noatime"]).arg(image).arg(&at))?;
    let opened = open(&at);
    // Lazily: the open files keep the file system alive, and nothing else does.
    call(Command::new("umount").arg("-l").arg(&at))?;
    fs::remove_dir(&at)?;
    opened
}

fn open(at: &Path, name: &str, flags: OFlags) -> Result<File> {
    let flags = i32::try_from(flags.bits())?;
    let open = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .custom_flags(flags)
        .open(at.join(name));
    open.with_context(|| format!("cannot open the file for {name} I/O"))
}

/// Runs a tool to its end.
///
/// # Errors
/// It is not installed, or fails; its own words are in the error.
pub(crate) fn call(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("{name} is not installed"))?;
    if !output.status.success() {
        bail!("{name} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

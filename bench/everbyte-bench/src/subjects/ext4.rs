//! ext4 on a loop device over a file on tmpfs: the ramdisk of the paper's experiments.
//!
//! Invariants: mounts are private ([`in_mount_ns`]). Mounts of opened files, and the names of images, are removed before
//! a measurement. Only the open files keep the file system, so the kernel frees everything at their close, at every end of
//! the process.

use std::fs::{self, File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use rustix::fs::OFlags;

use super::file::{FileKind, FileSubject};
use super::mount_ns::in_mount_ns;
use crate::children::call;
use crate::index::directory::open_directory;

/// Options of `mke2fs`: one size of blocks for all sizes of images, and no initialization in the background.
pub(crate) const MAKE: [&str; 8] =
    ["-q", "-F", "-t", "ext4", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0"];
/// Name of the only file system in a folder, and options of its mount.
const ALONE: (&str, &str) = ("ext4", "noatime");

/// Makes a file system with two files of `size_bytes`, one for direct and one for buffered requests. `folder` lies on
/// tmpfs.
///
/// # Errors
/// The user is not root; a tool is missing or fails.
pub(crate) fn mount(folder: &Path, size_bytes: u64) -> Result<[FileSubject; 2]> {
    let (direct, buffered) = opened(folder, ALONE, with_room(2 * size_bytes), |at| {
        let direct = open(at, "direct", OFlags::DIRECT)?;
        Ok((direct, open(at, "buffered", OFlags::empty())?))
    })?;
    Ok([
        FileSubject::over("ext4-direct", FileKind::Direct, direct, size_bytes)?,
        FileSubject::over("ext4-buffered", FileKind::Buffered, buffered, size_bytes)?,
    ])
}

/// Makes a file system with room for `size_bytes`, and opens its root. `folder` lies on tmpfs.
///
/// # Errors
/// The user is not root; a tool is missing or fails.
pub(crate) fn mount_directory(folder: &Path, size_bytes: u64) -> Result<OwnedFd> {
    opened(folder, ALONE, with_room(size_bytes), open_directory)
}

/// Makes a file on a new file system of `bytes`. `named` is its name and its mount options. `folder` lies on tmpfs.
///
/// # Errors
/// The user is not root; a tool is missing or fails.
pub(crate) fn mount_file(folder: &Path, named: (&str, &str), bytes: u64) -> Result<File> {
    opened(folder, named, bytes, |at| open(at, "file", OFlags::empty()))
}

/// Bytes of an image with room for `file_bytes` of files.
fn with_room(file_bytes: u64) -> u64 {
    file_bytes + file_bytes / 16 + (64 << 20)
}

/// Mounts a new file system as [`mount_image`], opens a file with `open`, and unmounts it. The open file keeps the file
/// system.
fn opened<R: Send>(
    folder: &Path,
    named: (&str, &str),
    bytes: u64,
    open: impl FnOnce(&Path) -> Result<R> + Send,
) -> Result<R> {
    in_mount_ns(|| {
        let at = mount_image(folder, named, bytes)?;
        let opened = open(&at);
        // The mount goes also after a failed open.
        unmount(&at)?;
        opened
    })
}

/// Mounts a new file system of `bytes` with `options` in a new directory `name` of `folder`, and unlinks its image.
/// Requires a [mount namespace](super::mount_ns::enter_mount_ns) of the thread.
///
/// # Errors
/// A tool is missing or fails.
pub(crate) fn mount_image(
    folder: &Path,
    (name, options): (&str, &str),
    bytes: u64,
) -> Result<PathBuf> {
    let image = folder.join(format!("{name}.img"));
    File::create_new(&image).context("cannot make the image")?.set_len(bytes)?;
    let at = folder.join(name);
    let mounted = call(Command::new("mke2fs").args(MAKE).arg(&image))
        .and_then(|()| Ok(fs::create_dir(&at)?))
        .and_then(|()| {
            let options = format!("loop,{options}");
            call(Command::new("mount").args(["-o", &options]).arg(&image).arg(&at))
        });
    // The loop device keeps the image. A failure leaves no file either.
    fs::remove_file(&image)?;
    mounted.map(|()| at)
}

/// Detaches a mount. Open files keep the file system until their close.
///
/// # Errors
/// The tool's.
pub(crate) fn unmount(at: &Path) -> Result<()> {
    call(Command::new("umount").arg("-l").arg(at))?;
    Ok(fs::remove_dir(at)?)
}

fn open(at: &Path, name: &str, flags: OFlags) -> Result<File> {
    let flags = i32::try_from(flags.bits())?;
    let open = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .custom_flags(flags)
        .open(at.join(name));
    open.with_context(|| format!("cannot make the file {name} on ext4"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_is_private_to_its_namespace() {
        if !everbyte_testkit::is_root("mount ext4") {
            return;
        }
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let seen = opened(folder.path(), ALONE, 64 << 20, |at| {
            let is_in = |mounts: &str| -> Result<bool> {
                Ok(fs::read_to_string(mounts)?.contains(&at.display().to_string()))
            };
            Ok([is_in("/proc/self/mounts")?, is_in("/proc/thread-self/mounts")?])
        });
        match seen {
            Ok(seen) => assert_eq!(seen, [false, true]),
            Err(error) => everbyte_testkit::not_run(&format!("there is no ext4: {error:#}")),
        }
    }
}

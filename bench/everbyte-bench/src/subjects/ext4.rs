//! ext4 on a loop device over a file on tmpfs: the ramdisk of the paper's experiments.
//!
//! Invariants: a mount is seen by nobody else ([`in_mount_ns`]). Those of files that are opened here are gone, as
//! are images' names, before anything is measured. What remains is held by the open files alone, so the kernel takes
//! everything apart when they are closed, however the process ends.

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

/// Options of `mke2fs`: blocks of one size however small the image is, and nothing left to do in the background.
pub(crate) const MAKE: [&str; 8] =
    ["-q", "-F", "-t", "ext4", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0"];
/// Name of a file system that has no other one beside it, and options of its mount.
const ALONE: (&str, &str) = ("ext4", "noatime");

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
    let (direct, buffered) = opened(folder, ALONE, with_room(2 * size_bytes), |at| {
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
    opened(folder, ALONE, with_room(size_bytes), open_directory)
}

/// Makes a file on a file system of `bytes`, whose name and options of the mount are given; `folder` lies on tmpfs.
///
/// # Errors
/// Not root, tools are missing, or one of them fails.
pub(crate) fn mount_file(folder: &Path, named: (&str, &str), bytes: u64) -> Result<File> {
    opened(folder, named, bytes, |at| open(at, "file", OFlags::empty()))
}

/// Bytes of an image that has room for so many bytes of files.
fn with_room(file_bytes: u64) -> u64 {
    file_bytes + file_bytes / 16 + (64 << 20)
}

/// Mounts a new file system as [`mount_image`] does, and returns what `open` opens there, which alone keeps it.
fn opened<R: Send>(
    folder: &Path,
    named: (&str, &str),
    bytes: u64,
    open: impl FnOnce(&Path) -> Result<R> + Send,
) -> Result<R> {
    in_mount_ns(|| {
        let at = mount_image(folder, named, bytes)?;
        let opened = open(&at);
        unmount(&at)?;
        opened
    })
}

/// Mounts a new file system of `bytes` with `options` in a new directory `name` of `folder`, and unlinks its image.
/// Requires a [mount namespace](super::mount_ns::enter_mount_ns) of the thread.
///
/// # Errors
/// Tools are missing, or one of them fails.
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
    fs::remove_file(&image)?;
    mounted.map(|()| at)
}

/// Takes a mount away; open files keep the file system until they are closed.
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

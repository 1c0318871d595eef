//! Sources of facts about files, devices and mounts: `/sys`, `/dev`, `/proc` and the loop driver.
//!
//! Invariant: a path from `/sys` counts only if the loop driver names the same file by device and inode.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FsWord, Mode, OFlags, fstatfs, major, minor, openat};
use rustix::ioctl::{Getter, ioctl};

/// The loop driver's request for the file of a loop device.
const LOOP_GET_STATUS64: u32 = 0x4C05;
/// 64-bit words of the answer. The first two are device and inode.
const LOOP_INFO_WORDS: usize = 29;
const FUSE_MAGIC: FsWord = 0x6573_5546;
/// Largest access control list, in bytes.
const ACL_BYTES_MAX: usize = 64 << 10;
const ACL_NAME: &str = "system.posix_acl_access";

/// Owner and permissions of a file or device node.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mode: u32,
    pub(super) is_file: bool,
    /// The access control list, if there is one.
    pub(super) acl: Option<Vec<u8>>,
    /// The mounting user of a file system in user space.
    pub(super) served_by: Option<u32>,
    /// Group of the administrators of disks.
    pub(super) disk_group: Option<u32>,
}

/// The places of the facts. Tests have a made-up tree.
pub(super) struct System {
    root: PathBuf,
    is_real: bool,
}

impl System {
    pub(super) fn real() -> Self {
        Self { root: PathBuf::from("/"), is_real: true }
    }

    #[cfg(test)]
    pub(super) fn made_up(root: &Path) -> Self {
        Self { root: root.to_owned(), is_real: false }
    }

    /// The folder of a block device below `/sys`; `None` if there is none.
    pub(super) fn block_folder(&self, number: u64) -> Option<PathBuf> {
        let name = format!("sys/dev/block/{}:{}", major(number), minor(number));
        fs::canonicalize(self.root.join(name)).ok()
    }

    /// The node of a block device below `/dev`.
    pub(super) fn block_node(&self, folder: &Path, number: u64) -> Option<(PathBuf, File)> {
        let events = fs::read_to_string(folder.join("uevent")).unwrap_or_default();
        let named = events.lines().find_map(|line| line.strip_prefix("DEVNAME="));
        let name = named.map(PathBuf::from).or_else(|| folder.file_name().map(PathBuf::from))?;
        let path = self.root.join("dev").join(name);
        let file = look(&path).ok()?;
        let metadata = file.metadata().ok()?;
        let is_it = metadata.file_type().is_block_device() && metadata.rdev() == number;
        (is_it || !self.is_real).then_some((path, file))
    }

    /// Owner and permissions of an open file or node.
    pub(super) fn node(&self, file: &File) -> io::Result<Node> {
        let metadata = file.metadata()?;
        let is_file = metadata.is_file();
        Ok(Node {
            uid: metadata.uid(),
            gid: metadata.gid(),
            mode: metadata.mode(),
            is_file,
            acl: acl_of(file.as_fd()),
            served_by: if is_file && self.is_real { served_by(file) } else { None },
            disk_group: disk_group(&self.root),
        })
    }

    /// Opens the file of the loop device in `folder` by an `O_PATH` descriptor.
    ///
    /// # Errors
    /// Its path leads nowhere or to another file.
    pub(super) fn loop_file(&self, folder: &Path, node: Option<&Path>) -> io::Result<File> {
        let path = word(&folder.join("loop/backing_file"));
        let path = path.ok_or_else(|| io::Error::other("it has no file"))?;
        let file = look(Path::new(&path))?;
        let Some(node) = node.filter(|_| self.is_real) else { return Ok(file) };
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let device = openat(CWD, node, flags, Mode::empty())?;
        let metadata = file.metadata()?;
        if loop_identity(device.as_fd())? == (metadata.dev(), metadata.ino()) {
            return Ok(file);
        }
        Err(io::Error::other(format!("{path} is not its file any more")))
    }

    /// The source of an open file's mount, if the source is a block device. File systems with several
    /// devices, or with device numbers of their own, report it in no other way.
    pub(super) fn mount_source(&self, file: &File) -> Option<u64> {
        let id = mount_id(file)?;
        let source = mount_fields(&id)?.source;
        let metadata = look(Path::new(&source)).ok()?.metadata().ok()?;
        metadata.file_type().is_block_device().then(|| metadata.rdev())
    }
}

/// Device and inode of the file of an open loop device.
fn loop_identity(device: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    // SAFETY: the request has this number, and fills in a structure of so many bytes.
    let request = unsafe { Getter::<LOOP_GET_STATUS64, [u64; LOOP_INFO_WORDS]>::new() };
    // SAFETY: any bytes are words. Another driver refuses the request.
    let info = unsafe { ioctl(device, request)? };
    Ok((info[0], info[1]))
}

/// Opens an `O_PATH` descriptor.
pub(super) fn look(path: &Path) -> io::Result<File> {
    Ok(openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?.into())
}

fn acl_of(file: BorrowedFd<'_>) -> Option<Vec<u8>> {
    // An `O_PATH` descriptor has no attributes.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut bytes = vec![0; ACL_BYTES_MAX];
    let len = rustix::fs::getxattr(path, ACL_NAME, &mut bytes).ok()?;
    bytes.truncate(len);
    Some(bytes)
}

/// The mounting user of a file's file system, if it is one in user space.
fn served_by(file: &File) -> Option<u32> {
    if fstatfs(file).ok()?.f_type != FUSE_MAGIC {
        return None;
    }
    let fields = mount_id(file).and_then(|id| mount_fields(&id))?;
    let mut options = fields.options.split(',');
    options.find_map(|option| option.strip_prefix("user_id=")?.parse().ok())
}

/// Source and options of a mount.
struct MountFields {
    source: String,
    options: String,
}

fn mount_id(file: &File) -> Option<String> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
    info.lines().find_map(|line| Some(line.strip_prefix("mnt_id:")?.trim().to_owned()))
}

fn mount_fields(id: &str) -> Option<MountFields> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let line = mounts.lines().find(|line| line.split(' ').next() == Some(id))?;
    let (_, of_system) = line.split_once(" - ")?;
    let mut words = of_system.split(' ').skip(1);
    let (source, options) = (words.next()?.to_owned(), words.next()?.to_owned());
    Some(MountFields { source, options })
}

/// The system's group of disks.
fn disk_group(root: &Path) -> Option<u32> {
    let groups = fs::read_to_string(root.join("etc/group")).ok()?;
    let line = groups.lines().find_map(|line| line.strip_prefix("disk:"))?;
    line.split(':').nth(1)?.parse().ok()
}

/// Contents of a file below `/sys`, trimmed; `None` if it is empty or cannot be read.
pub(super) fn word(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim_end_matches('\n');
    (!text.trim().is_empty()).then(|| text.to_owned())
}

pub(super) fn number(path: &Path) -> u64 {
    word(path).and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// The device number in a folder of `/sys`.
pub(super) fn device_number(folder: &Path) -> Option<u64> {
    let text = word(&folder.join("dev"))?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

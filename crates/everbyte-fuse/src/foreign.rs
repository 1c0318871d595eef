//! Unmounting of mounts by other processes, independent of their claims.
//!
//! Invariants: a mount is found by the kernel's connection number of its descriptor. Older kernels
//! do not report the number. There a mount is found by a source of this process. No other mount is
//! unmounted.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use everbyte_path::MountPoint;

use crate::device::{mounted_on, unescape_path};
use crate::directory::detach;

/// A mount of another process.
#[derive(Debug)]
pub(crate) struct ForeignMount {
    /// The number of the connection: the minor number of the mount's device.
    connection: Option<u64>,
    /// The usual source of a mount of this file system.
    source: String,
}

impl ForeignMount {
    /// The mount of a mounted descriptor of `/dev/fuse`.
    pub(crate) fn of(device: &OwnedFd, source: String) -> Self {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", device.as_raw_fd()));
        Self { connection: info.ok().and_then(|info| connection_in(&info)), source }
    }

    /// Takes the mount from its directories in this namespace. Returns false if there are none.
    pub(crate) fn take_away(&self) -> bool {
        // Kernels without the number. The source names this pool and volume.
        let Some(connection) = self.connection else {
            let dirs = mounted_on(&self.source).unwrap_or_default();
            return dirs.iter().filter(|dir| detach(dir).is_ok()).count() > 0;
        };
        let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
        let found = mounts_of(&mounts, connection);
        found.iter().filter(|(id, dir)| detach_mount(*id, dir).is_ok()).count() > 0
    }
}

/// The connection in the kernel's description of a descriptor.
fn connection_in(info: &str) -> Option<u64> {
    info.lines().find_map(|line| line.strip_prefix("fuse_connection:")?.trim().parse().ok())
}

/// Number and directory of each mount of a connection by the kernel's list, if nothing is mounted over it.
fn mounts_of(mounts: &[u8], connection: u64) -> Vec<(u64, PathBuf)> {
    let device = format!("0:{connection}");
    let mut found: Vec<(u64, PathBuf)> = Vec::new();
    for line in mounts.split(|&byte| byte == b'\n') {
        let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let [id, _, number, _, dir, ..] = words[..] else { continue };
        let dir = unescape_path(dir);
        // A detach by path reaches the topmost mount only, so a covered one must not be tried.
        found.retain(|(_, below)| *below != dir);
        let id = std::str::from_utf8(id).ok().and_then(|id| id.parse().ok());
        if let (Some(id), true) = (id, number == device.as_bytes()) {
            found.push((id, dir));
        }
    }
    found
}

/// Takes the mount with this number from `dir`, if it is still there.
fn detach_mount(id: u64, dir: &Path) -> io::Result<()> {
    let point = MountPoint::find(dir)?;
    // The list is a snapshot, and another mount may have come since.
    if point.mount_id()? != id {
        return Err(io::Error::other("another mount is there now"));
    }
    match point.detach() {
        // Users other than root need the helper.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => detach(dir),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_by_their_connection_only() {
        let mounts = b"21 1 0:57 / /a\\040b rw - fuse.everbyte any rw\n\
            22 1 0:58 / /other rw - fuse.everbyte any rw\n\
            23 1 0:57 / /covered rw - fuse.everbyte any rw\n\
            24 1 8:57 / /covered rw - ext4 /dev/x rw\n\
            25 1 0:57 /sub /bind rw - fuse.everbyte any rw\n";
        let found = mounts_of(mounts, 57);
        assert_eq!(found, [(21, PathBuf::from("/a b")), (25, PathBuf::from("/bind"))]);
        assert_eq!(mounts_of(mounts, 5), []);
        assert_eq!(connection_in("pos:\t0\nfuse_connection:\t57\n"), Some(57));
        assert_eq!(connection_in("pos:\t0\n"), None);
    }

    /// Mounts of the same source do not belong to this process.
    #[test]
    fn mounts_of_the_same_source_stay() {
        use crate::device::DirMount;
        use crate::directory::{KernelCaching, MountOptions, Privileges};

        let (own, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let options = MountOptions {
            source: format!("everbyte:test-{}/same", std::process::id()),
            allow_other: false,
            read_only: false,
            threads: 1,
            access_times: everbyte_fs::AccessTimes::Never,
            dir_access_times: true,
            exec: true,
            caching: KernelCaching::Full,
            privileges: Privileges::default(),
        };
        let (first, device) = DirMount::new(own.path(), &options).unwrap();
        let (second, _other_device) = DirMount::new(other.path(), &options).unwrap();
        let mount = ForeignMount::of(&device, options.source.clone());
        if mount.connection.is_some() {
            assert!(mount.take_away());
            assert_eq!(mounted_on(&options.source).unwrap(), [second.dir()]);
            assert!(!mount.take_away(), "it was taken away");
        }
        let _ = (first.detach(), second.detach());
    }
}

//! Changes of the flags of a mount in use.
//!
//! Invariant: a flag without a change keeps its value.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use everbyte_fs::AccessTimes;
use rustix::fs::{Mode, OFlags, StatVfsMountFlags, StatxFlags, fstatvfs, openat, statx};
use rustix::mount::{MountFlags, mount_remount};

/// Changes of a mount. `None` leaves a property as it is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Remount {
    /// Nothing may be changed.
    pub read_only: Option<bool>,
    /// Programs have the rights of their set-user-ID and set-group-ID bits and their capabilities.
    pub suid: Option<bool>,
    /// Device files are devices.
    pub dev: Option<bool>,
    /// Files can be run as programs.
    pub exec: Option<bool>,
    /// Reads that change the last access time. Only the present value is accepted.
    pub access_times: Option<AccessTimes>,
}

/// Changes the flags of the file system on `dir`. The kernel writes dirty pages back before the mount becomes read-only.
///
/// # Errors
/// `InvalidInput`: `dir` is not the root of such a mount, or `access_times` would change. `ReadOnlyFilesystem`: the
/// server has the file system read-only. Others: the system refuses.
pub fn remount(dir: &Path, changes: &Remount) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = openat(rustix::fs::CWD, dir, flags, Mode::empty())?;
    let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidInput, text.to_owned());
    if !is_everbyte(&dir)? {
        return Err(invalid("no everbyte file system is mounted on it"));
    }
    let now = fstatvfs(&dir)?.f_flag;
    if changes.access_times.is_some_and(|times| times != access_times(now)) {
        return Err(invalid("a remount cannot change access times: unmount it and mount it again"));
    }
    let path = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
    let before = remount_flags(now, &Remount::default());
    // All flags are given, because the kernel resets the omitted ones.
    mount_remount(&path, remount_flags(now, changes), "")?;
    if changes.read_only == Some(false) && now.contains(StatVfsMountFlags::RDONLY) {
        // The kernel allows writing although the server refuses it, so the mount would promise too
        // much.
        check_writable(&path).inspect_err(|_| {
            let _ = mount_remount(&path, before, "");
        })?;
    }
    Ok(())
}

/// The flags of mount(2) after `changes` of the flags `now`.
fn remount_flags(now: StatVfsMountFlags, changes: &Remount) -> MountFlags {
    let mut flags = MountFlags::empty();
    let is_set = |flag| now.contains(flag);
    let denied = |allowed: Option<bool>, flag| allowed.map_or(is_set(flag), |allowed| !allowed);
    let read_only = changes.read_only.unwrap_or(is_set(StatVfsMountFlags::RDONLY));
    flags.set(MountFlags::RDONLY, read_only);
    flags.set(MountFlags::NOSUID, denied(changes.suid, StatVfsMountFlags::NOSUID));
    flags.set(MountFlags::NODEV, denied(changes.dev, StatVfsMountFlags::NODEV));
    flags.set(MountFlags::NOEXEC, denied(changes.exec, StatVfsMountFlags::NOEXEC));
    flags.set(MountFlags::NOATIME, is_set(StatVfsMountFlags::NOATIME));
    flags.set(MountFlags::NODIRATIME, is_set(StatVfsMountFlags::NODIRATIME));
    flags.set(MountFlags::RELATIME, is_set(StatVfsMountFlags::RELATIME));
    flags.set(MountFlags::STRICTATIME, access_times(now) == AccessTimes::Strict);
    flags
}

/// The access times of a mount by the flags of [`crate::DirMount`].
fn access_times(now: StatVfsMountFlags) -> AccessTimes {
    if now.contains(StatVfsMountFlags::NOATIME) {
        AccessTimes::Never
    } else if now.contains(StatVfsMountFlags::RELATIME) {
        AccessTimes::Relative
    } else {
        AccessTimes::Strict
    }
}

/// Returns true if `dir` is the root of a mount of type `fuse.everbyte`. The kernel's number of the mount
/// selects the line, because one path can have several mounts.
fn is_everbyte(dir: impl AsFd) -> io::Result<bool> {
    let found = statx(&dir, "", rustix::fs::AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    let number = found.stx_mnt_id.to_string();
    let is_root = found.stx_attributes.contains(rustix::fs::StatxAttributes::MOUNT_ROOT);
    let mounts = std::fs::read("/proc/self/mountinfo")?;
    let mut lines = mounts.split(|byte| *byte == b'\n');
    let line =
        lines.find(|line| line.split(|byte| *byte == b' ').next() == Some(number.as_bytes()));
    let Some(line) = line else { return Ok(false) };
    let mut words = line.split(|byte| *byte == b' ').skip_while(|word| *word != b"-");
    Ok(is_root && words.nth(1) == Some(b"fuse.everbyte"))
}

/// Checks that the server accepts changes. The removal of a missing attribute changes nothing.
fn check_writable(path: &Path) -> io::Result<()> {
    match rustix::fs::removexattr(path, "user.everbyte.remount") {
        Err(rustix::io::Errno::ROFS) => Err(io::Error::new(
            io::ErrorKind::ReadOnlyFilesystem,
            "its server has the file system read-only: unmount it and mount it again",
        )),
        _ => Ok(()),
    }
}

//! Mounting on a directory of this process's namespace, and removing the mount. The serving process
//! may be another one. It gets the descriptor of `/dev/fuse` and needs no right to the directory.
//!
//! Invariant: only our own mounts, and mounts without a server, are removed from a directory.

use std::ffi::{CString, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use everbyte_fs::AccessTimes;
use everbyte_path::{Dir, MountPoint};
use rustix::mount::{MountFlags, mount};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::directory::{
    MountError, MountOptions, check_directory, detach_point, end_dead_mount, no_helper, refusal,
};
use crate::presence::Presence;

/// A mount on a directory, for a serving process. It outlives this value.
#[derive(Debug)]
pub struct DirMount {
    dir: PathBuf,
    point: MountPoint,
    /// The kernel's number of the mount.
    mount_id: Option<u64>,
    source: String,
    presence: Arc<Presence>,
}

impl DirMount {
    /// Mounts on `dir`. Returns the descriptor for [`crate::Mount::over`], which serves the mount.
    /// Until then programs that use the directory wait.
    ///
    /// # Errors
    /// `Mount`: the directory or FUSE is missing, or the mount is not permitted.
    pub fn new(dir: &Path, options: &MountOptions) -> Result<(Self, OwnedFd), MountError> {
        let failed = |error| MountError::Mount { dir: dir.to_owned(), error };
        // First, because any access to a directory with a dead mount fails.
        end_dead_mount(dir);
        check_directory(dir).map_err(failed)?;
        // From here on, another directory cannot replace it.
        let directory = Dir::open(dir).map_err(failed)?;
        let dir = directory.path().map_err(failed)?;
        let point = MountPoint::find(&dir).map_err(failed)?;
        let descriptor = match rustix::process::geteuid().is_root() {
            true => mount_as_root(&directory, options),
            false => mount_by_helper(&dir, options),
        };
        let descriptor = descriptor.map_err(failed)?;
        // Noted here: later another mount may cover the directory, and must stay.
        let mount_id = point.mount_id().ok();
        let presence = Arc::new(Presence::new(&dir));
        let source = options.source.clone();
        Ok((Self { dir, point, mount_id, source, presence }, descriptor))
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Takes the mount from the directory, used or not. Returns false if the system refuses, or if it has
    /// been taken away already.
    #[must_use]
    pub fn detach(&self) -> bool {
        self.take_away().unwrap_or(false)
    }

    /// Returns true if the mount has ended by an abort while it was in place: the kernel has
    /// dropped unwritten data. Waits up to seconds in doubtful cases.
    #[must_use]
    pub fn was_aborted(&self) -> bool {
        self.presence.was_aborted()
    }

    /// The presence of the mount.
    pub(crate) fn presence(&self) -> &Arc<Presence> {
        &self.presence
    }

    /// Removes the mount from the directory, even in use. Returns false if it is gone or under
    /// another mount.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn take_away(&self) -> io::Result<bool> {
        let is_other =
            self.mount_id.is_some_and(|own| self.point.mount_id().is_ok_and(|id| id != own));
        // Two checks: an old kernel reports no number, and a number alone does not show a mount
        // above.
        if is_other || !mounted_on(&self.source)?.contains(&self.dir) {
            return Ok(false);
        }
        match detach_point(&self.point, &self.dir) {
            // The mount was removed just now.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(false),
            taken => {
                taken?;
                // Only after the mount has left the table: an earlier end of the connection was an
                // abort.
                self.presence.release();
                Ok(true)
            }
        }
    }
}

/// Opens the device and mounts it.
fn mount_as_root(dir: &Dir, options: &MountOptions) -> io::Result<OwnedFd> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        user.as_raw(),
        group.as_raw()
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOSUID, !options.privileges.suid);
    flags.set(MountFlags::NODEV, !options.privileges.dev);
    flags.set(MountFlags::NOEXEC, !options.exec);
    flags.set(MountFlags::NOATIME, options.access_times == AccessTimes::Never);
    flags.set(MountFlags::NODIRATIME, !options.dir_access_times);
    flags.set(MountFlags::STRICTATIME, options.access_times == AccessTimes::Strict);
    let data = CString::new(data)?;
    // By the held directory, because its path may lead elsewhere by now.
    mount(&options.source, dir.proc_path(), "fuse.everbyte", flags, &*data)?;
    Ok(device.into())
}

/// Mounts by the system's helper. It sends the descriptor through a socket.
fn mount_by_helper(dir: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    let (ours, helpers) = std::os::unix::net::UnixStream::pair()?;
    // The helper splits its options at commas.
    let source = options.source.replace('\\', "\\\\").replace(',', "\\,");
    let access = if options.read_only { "ro" } else { "rw" };
    let others = if options.allow_other { ",allow_other" } else { "" };
    let dir_times = if options.dir_access_times { "" } else { ",nodiratime" };
    let exec = if options.exec { "" } else { ",noexec" };
    let times = match options.access_times {
        AccessTimes::Never => ",noatime",
        AccessTimes::Strict => ",strictatime",
        _ => "",
    };
    let output = Command::new("fusermount3")
        .arg("-o")
        .arg(format!(
            "fsname={source},subtype=everbyte,default_permissions,{access},nosuid,nodev{exec}{times}{dir_times}{others}"
        ))
        .arg("--")
        .arg(dir)
        // The helper gets the number of its socket descriptor.
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(helpers)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output();
    let output = output.map_err(|error| no_helper(&error))?;
    if !output.status.success() {
        return Err(refusal(&output));
    }
    receive(&ours)?.ok_or_else(|| io::Error::other("fusermount3 has sent no descriptor"))
}

/// The descriptor received through `socket`.
fn receive(socket: &std::os::unix::net::UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    // The helper has ended already, so this does not wait.
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags)?;
    let mut descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(descriptors.next())
}

/// Directories of this process's namespace where `source` is the topmost mount.
pub(crate) fn mounted_on(source: &str) -> io::Result<Vec<PathBuf>> {
    Ok(topmost(&std::fs::read("/proc/self/mounts")?, source))
}

/// The same by a list of mounts, with later mounts last.
fn topmost(mounts: &[u8], source: &str) -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> = Vec::new();
    for line in mounts.split(|&byte| byte == b'\n') {
        let mut words = line.split(|&byte| byte == b' ');
        let (Some(from), Some(dir), Some(kind)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let dir = PathBuf::from(OsString::from_vec(unescape(dir)));
        // A later mount on the same directory hides this one.
        dirs.retain(|below| *below != dir);
        if kind == b"fuse.everbyte" && unescape(from) == source.as_bytes() {
            dirs.push(dir);
        }
    }
    dirs
}

/// The path written as `text` in `/proc`.
pub(crate) fn unescape_path(text: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(unescape(text)))
}

/// The bytes written as `text` in `/proc`. The kernel escapes ambiguous bytes, depending on its
/// version, as a backslash and three octal digits.
fn unescape(mut text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    loop {
        match text {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', rest @ ..] => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                text = rest;
            }
            [byte, rest @ ..] => {
                bytes.push(*byte);
                text = rest;
            }
            [] => return bytes,
        }
    }
}

/// Checks that `descriptor` belongs to `/dev/fuse`.
pub(crate) fn check_device(descriptor: &OwnedFd) -> io::Result<()> {
    /// Major and minor number of `/dev/fuse`.
    const FUSE: (u32, u32) = (10, 229);
    let found = rustix::fs::fstat(descriptor)?;
    let device = (rustix::fs::major(found.st_rdev), rustix::fs::minor(found.st_rdev));
    let is_device = rustix::fs::FileType::from_raw_mode(found.st_mode).is_char_device();
    if is_device && device == FUSE {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "the descriptor is not of /dev/fuse"))
}

/// Returns true if this process can open `/dev/fuse` `count` times more.
pub(crate) fn can_open_devices(count: usize) -> bool {
    let open = || File::options().read(true).write(true).open("/dev/fuse");
    // All are held at the same time, because the limit of descriptors counts them together.
    let devices: Result<Vec<_>, _> = (0..count).map(|_| open()).collect();
    devices.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_list_names_are_unescaped_for_all_kernels() {
        let mounts = b"test/a\\043b /plain fuse.everbyte rw 0 0\n\
            test/a\\043b /x\\134y\\040z\\011 fuse.everbyte rw 0 0\n\
            test/a#b /not\xffutf-8 fuse.everbyte rw 0 0\n\
            test/a#b /other fuse.sshfs rw 0 0\n\
            test/a /another fuse.everbyte rw 0 0\n";
        let dirs: [&[u8]; 3] = [b"/plain", b"/x\\y z\t", b"/not\xffutf-8"];
        let dirs = dirs.map(|dir| PathBuf::from(OsString::from_vec(dir.to_vec())));
        assert_eq!(topmost(mounts, "test/a#b"), dirs);
        assert_eq!(unescape(b"\\04 \\400 \\08\\"), b"\\04 \\400 \\08\\");
    }

    #[test]
    fn system_helper_mounts_and_sends_the_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let options = MountOptions {
            source: "test/a,b".into(),
            allow_other: false,
            read_only: true,
            threads: 1,
            access_times: everbyte_fs::AccessTimes::Never,
            caching: crate::directory::KernelCaching::Full,
            privileges: crate::directory::Privileges::default(),
            exec: true,
            dir_access_times: true,
        };
        let descriptor = mount_by_helper(dir.path(), &options).unwrap();
        check_device(&descriptor).unwrap();
        let mounted = mounted_on(&options.source).unwrap();
        crate::directory::detach(dir.path()).unwrap();
        assert_eq!(mounted, [dir.path().canonicalize().unwrap()]);
        assert!(mounted_on(&options.source).unwrap().is_empty());
    }

    #[test]
    fn foreign_descriptor_is_refused() {
        let null = File::open("/dev/null").unwrap();
        assert!(check_device(&null.into()).is_err());
    }
}

//! Opening files and sockets with the rights of another user.
//!
//! A process of root opens a path of another user's choice on a thread with the user's effective identity and without
//! capabilities. The kernel then checks each component of the path and each link as for the user, and a socket's peer
//! sees the user. Real and saved identity stay those of the process: the user can neither signal nor trace the thread.
//!
//! Invariants: without the rights of the user nothing is opened. A thread with the rights of a user keeps them to its end.
//! Links of `/proc` past permissions are refused.

use std::ffi::CString;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

/// The group of a user without an entry in the system's list of users.
const NO_GROUP: u32 = 65534;
/// Attempts to open a path. The kernel ends one early if another process renames directories, or has a lease on the file.
const ATTEMPTS_MAX: usize = 64;

/// Rights of a user: the user and the groups of the user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserRights {
    uid: u32,
    gid: u32,
    groups: Arc<[u32]>,
}

/// Rights to open something.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Rights {
    /// Those of the process.
    #[default]
    Own,
    /// Those of a user.
    User(UserRights),
    /// None, for the reason in words.
    Nothing(Arc<str>),
}

impl UserRights {
    /// The rights of user `uid`, with the groups of the system's list of users.
    ///
    /// # Errors
    /// The list cannot be read.
    pub fn of(uid: u32) -> io::Result<Self> {
        let user = nix::unistd::User::from_uid(uid.into())?;
        // A user without an entry has no groups that could give rights.
        let Some(user) = user else {
            return Ok(Self { uid, gid: NO_GROUP, groups: Arc::default() });
        };
        let name = CString::new(user.name)?;
        let groups = nix::unistd::getgrouplist(&name, user.gid)?;
        Ok(Self {
            uid,
            gid: user.gid.as_raw(),
            groups: groups.iter().map(|gid| gid.as_raw()).collect(),
        })
    }

    /// Gives the calling thread these rights.
    fn take(&self) -> io::Result<()> {
        let groups: Vec<Gid> = self.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        // The user last: afterwards the thread may change neither groups nor group.
        set_thread_groups(&groups)?;
        set_thread_res_gid(None::<Gid>, Gid::from_raw(self.gid), None::<Gid>)?;
        set_thread_res_uid(None::<Uid>, Uid::from_raw(self.uid), None::<Uid>)?;
        // Settings of the process can keep them across a change of the effective user.
        let sets = capabilities(None)?;
        set_capabilities(None, CapabilitySets { effective: CapabilitySet::empty(), ..sets })?;
        Ok(())
    }
}

impl Rights {
    /// The rights of user `uid` in this process: its own if it is the user.
    #[must_use]
    pub fn of_user(uid: u32) -> Self {
        if geteuid().as_raw() == uid {
            return Self::Own;
        }
        match UserRights::of(uid) {
            Ok(rights) => Self::User(rights),
            Err(error) => {
                Self::Nothing(format!("the groups of user {uid} are unknown: {error}").into())
            }
        }
    }

    /// The rights in both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        match (self, other) {
            (nothing @ Self::Nothing(_), _) | (_, nothing @ Self::Nothing(_)) => nothing.clone(),
            (Self::Own, rights) | (rights, Self::Own) => rights.clone(),
            // Groups count as well: the same user with other groups has other rights.
            (Self::User(one), Self::User(other)) if one == other => self.clone(),
            (Self::User(one), Self::User(other)) => {
                let reason =
                    format!("users {} and {} have no rights in common", one.uid, other.uid);
                Self::Nothing(reason.into())
            }
        }
    }

    /// The user, if they are a user's.
    #[must_use]
    pub fn user(&self) -> Option<u32> {
        match self {
            Self::User(user) => Some(user.uid),
            Self::Own | Self::Nothing(_) => None,
        }
    }

    /// Does `work` with these rights. Its descriptors stay open. Its threads have the same rights.
    ///
    /// # Errors
    /// `PermissionDenied`: the process cannot take the rights, and nothing was done.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let user = match self {
            Self::Own => return Ok(work()),
            Self::Nothing(reason) => {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason.to_string()));
            }
            Self::User(user) => user,
        };
        let task = move || {
            user.take().map_err(|error| {
                let what = format!("the rights of user {} cannot be taken: {error}", user.uid);
                io::Error::new(io::ErrorKind::PermissionDenied, what)
            })?;
            Ok(work())
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("rights".to_owned());
            // The thread keeps the rights to its end, so no other work may run on it.
            let joined = thread.spawn_scoped(scope, task)?.join();
            joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Does `work`, and adds the rights to its errors unless they are the process's own.
    ///
    /// # Errors
    /// Those of `work`; as [`Rights::run`].
    pub fn run_io<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let done = self.run(work)?;
        done.map_err(|error| match self.user() {
            Some(_) => io::Error::new(error.kind(), format!("{error}; with {self} only")),
            None => error,
        })
    }

    /// Finds the file at `path` by an `O_PATH` descriptor. With the rights of a user, links of `/proc` are not followed.
    ///
    /// # Errors
    /// The system's; as [`Rights::run`].
    pub fn find(&self, path: &Path) -> io::Result<File> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        match self {
            Self::Own => Ok(openat(CWD, path, flags, Mode::empty())?.into()),
            // Links of `/proc` would lead to files that the process has open with its own rights.
            _ => self.run(|| open_unmagical(path, flags, Mode::empty()))?,
        }
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("all rights"),
            Self::User(user) => write!(f, "the rights of user {}", user.uid),
            Self::Nothing(reason) => write!(f, "no rights: {reason}"),
        }
    }
}

/// Opens `path` with the rights of the thread. Links of `/proc` to descriptors and directories are refused: they lead
/// past the permissions of directories.
///
/// # Errors
/// The system's: `ELOOP` at such a link, `ENOSYS` on kernels before 5.6; with `O_NONBLOCK` `EAGAIN` while another
/// process has a lease on the file.
pub fn open_unmagical(path: &Path, flags: OFlags, mode: Mode) -> io::Result<File> {
    let mut error = Errno::AGAIN;
    for _ in 0..ATTEMPTS_MAX {
        match openat2(CWD, path, flags, mode, ResolveFlags::NO_MAGICLINKS) {
            Err(again @ (Errno::INTR | Errno::AGAIN)) => error = again,
            opened => return Ok(opened?.into()),
        }
    }
    Err(error.into())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
    use std::process::{Command, Stdio};

    use everbyte_testkit::not_run;

    use super::*;

    const USER: u32 = 54321;

    fn rights() -> Option<Rights> {
        if !geteuid().is_root() {
            not_run("only root can take the rights of others");
            return None;
        }
        Some(Rights::of_user(USER))
    }

    #[test]
    fn files_open_as_for_the_user_only() {
        let Some(rights) = rights() else { return };
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let [own, roots, link, new] =
            ["own", "roots", "link", "new"].map(|name| folder.path().join(name));
        for path in [&own, &roots] {
            fs::write(path, "x").unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
        }
        chown(&own, Some(USER), None).unwrap();
        symlink(&roots, &link).unwrap();
        let open =
            |path: &Path| rights.run(|| fs::OpenOptions::new().write(true).open(path)).unwrap();
        open(&own).unwrap();
        for path in [&roots, &link] {
            assert_eq!(open(path).unwrap_err().kind(), io::ErrorKind::PermissionDenied, "{path:?}");
        }
        assert!(rights.run(|| fs::write(&new, "")).unwrap().is_err(), "the directory is root's");
        // The process has its rights as before.
        fs::write(&new, "").unwrap();
        assert_eq!(fs::metadata(&new).unwrap().uid(), 0);
        assert!(geteuid().is_root());
    }

    #[test]
    fn links_to_descriptors_give_no_rights() {
        let Some(rights) = rights() else { return };
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let path = folder.path().join("open to all");
        fs::write(&path, "x").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let file = File::open(&path).unwrap();
        let magic = format!("/proc/self/fd/{}", file.as_raw_fd());
        assert!(rights.find(&path).is_err());
        assert!(rights.find(Path::new(&magic)).is_err());
        assert!(Rights::Own.find(Path::new(&magic)).is_ok());
    }

    #[test]
    fn lease_of_another_process_ends_the_opening() {
        const HOLDER: &str = "import fcntl, signal, sys\n\
            signal.signal(signal.SIGIO, signal.SIG_IGN)\n\
            file = open(sys.argv[1])\n\
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)\n\
            print(flush=True)\n\
            sys.stdin.read()";
        // A file that is open for writing gets no such lease.
        let file = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let mut python = Command::new("python3");
        python.args(["-c", HOLDER]).arg(&file).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = python.spawn().unwrap();
        let mut said = [0];
        let has_lease = holder.stdout.take().unwrap().read_exact(&mut said).is_ok();
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = has_lease.then(|| open_unmagical(&file, flags, Mode::empty()));
        drop(holder.stdin.take());
        holder.wait().unwrap();
        let Some(opened) = opened else {
            not_run("the file system has no leases");
            return;
        };
        assert_eq!(opened.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(open_unmagical(&file, flags, Mode::empty()).is_ok());
    }

    #[test]
    fn rights_of_two_users_are_none() {
        let user = |uid| Rights::User(UserRights { uid, gid: uid, groups: Arc::default() });
        let nothing = Rights::Nothing("why".into());
        assert_eq!(Rights::Own.and(&user(7)), user(7));
        assert_eq!(user(7).and(&Rights::Own), user(7));
        assert_eq!(user(7).and(&user(7)), user(7));
        assert_eq!(nothing.and(&user(7)), nothing);
        assert!(matches!(user(7).and(&user(8)), Rights::Nothing(_)));
        assert_eq!(Rights::Own.and(&Rights::Own), Rights::Own);
        let error = nothing.run(|| ()).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string()),
            (io::ErrorKind::PermissionDenied, "why".into())
        );
    }

    #[test]
    fn groups_come_from_the_list_of_users() {
        let Ok(root) = UserRights::of(0) else { return };
        assert_eq!((root.uid, root.gid), (0, 0));
        let unlisted = UserRights::of(USER).unwrap();
        assert_eq!((unlisted.gid, unlisted.groups.len()), (NO_GROUP, 0));
    }
}

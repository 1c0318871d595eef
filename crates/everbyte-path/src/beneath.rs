//! Resolution of relative paths beneath a directory, without symbolic links.
//!
//! The kernel resolves the path by `openat2` (Linux 5.6). Older kernels, and sandboxes that refuse
//! `openat2`, get one `openat` per component. Both ways have the same results.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};
use std::sync::OnceLock;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, openat, openat2, statat};
use rustix::io::Errno;

/// Attempts of `openat2`. The kernel fails it early if another process renames directories.
const ATTEMPTS_MAX: usize = 64;

/// The way to resolve a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Resolver {
    /// One `openat2`.
    Kernel,
    /// One `openat` per component.
    Steps,
}

impl Resolver {
    /// The resolution available in this kernel.
    pub(crate) fn available() -> Self {
        // Asked once: neither the kernel nor a sandbox changes its answer for a running process.
        static FOUND: OnceLock<Resolver> = OnceLock::new();
        *FOUND.get_or_init(|| {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            match openat2(CWD, ".", flags, Mode::empty(), ResolveFlags::empty()) {
                // A sandbox refuses unknown calls with any of these errors.
                Err(Errno::NOSYS | Errno::PERM | Errno::ACCESS | Errno::INVAL) => Self::Steps,
                _ => Self::Kernel,
            }
        })
    }

    /// Opens `path` beneath `dir`. `O_NOFOLLOW` and `O_CLOEXEC` are added to `flags`.
    ///
    /// # Errors
    /// The system's. `XDEV` if the path is absolute or has `..`; `LOOP` or `NOTDIR` if a component is a
    /// symbolic link. With `O_PATH` and without `O_DIRECTORY` the last component may be a link: the
    /// descriptor is the link's.
    pub(crate) fn open(
        self,
        dir: BorrowedFd<'_>,
        path: &Path,
        flags: OFlags,
        mode: Mode,
    ) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Before either way, so that both refuse the same paths with the same errors.
        let names = names(path)?;
        let opened = match self {
            Self::Kernel => by_kernel(dir, path, flags, mode),
            Self::Steps => by_steps(dir, &names, flags, mode),
        };
        opened.map_err(|error| match error {
            Errno::LOOP => io::Error::new(
                io::ErrorKind::NotADirectory,
                "a symbolic link is in the path, and is not followed",
            ),
            error => error.into(),
        })
    }
}

/// The components of a relative path.
fn names(path: &Path) -> io::Result<Vec<&OsStr>> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name),
            Component::CurDir => {}
            _ => return Err(Errno::XDEV.into()),
        }
    }
    if names.is_empty() && path.as_os_str().is_empty() {
        return Err(Errno::NOENT.into());
    }
    Ok(names)
}

fn by_kernel(
    dir: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    // The last reason is returned, so an endless rename of another process does not hang the
    // caller.
    let mut error = Errno::AGAIN;
    for _ in 0..ATTEMPTS_MAX {
        match openat2(dir, path, flags, mode, resolve) {
            Err(again @ (Errno::AGAIN | Errno::INTR)) => error = again,
            done => return done,
        }
    }
    Err(error)
}

fn by_steps(
    dir: BorrowedFd<'_>,
    names: &[&OsStr],
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    let Some((last, parents)) = names.split_last() else {
        return openat(dir, ".", flags, mode);
    };
    // `O_DIRECTORY` with `O_NOFOLLOW` refuses a link as the kernel's resolution does.
    let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut parent: Option<OwnedFd> = None;
    for name in parents {
        let at = parent.as_ref().map_or(dir, AsFd::as_fd);
        parent = Some(openat(at, *name, step, Mode::empty()).map_err(|error| match error {
            // The kernel reports `ENOTDIR` for a link here, and `openat2` reports `ELOOP`.
            Errno::NOTDIR if is_link(at, name) => Errno::LOOP,
            error => error,
        })?);
    }
    openat(parent.as_ref().map_or(dir, AsFd::as_fd), *last, flags, mode)
}

/// Returns true if `name` is a symbolic link.
fn is_link(dir: BorrowedFd<'_>, name: &OsStr) -> bool {
    let found = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
    found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode).is_symlink())
}

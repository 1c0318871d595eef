//! Paths named by a user, resolved once to a directory and a name.
//!
//! A user means the links of the path that the user or root made. Links of another user, in a
//! directory of that user, can lead anywhere at any time: they are refused, as the kernel does in
//! sticky directories (`fs.protected_symlinks`).

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

use rustix::fs::{CWD, Mode, OFlags, fstatfs, openat};
use rustix::io::Errno;

use crate::dir::Dir;
use crate::entry::{Entry, Kind};
use crate::open::{Access, open_checked};

/// Most links in a path, as in the kernel.
const LINKS_MAX: usize = 40;
/// The file system with links to files without a path.
const PROC_MAGIC: u64 = 0x9fa0;
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const WRITABLE_FOR_OTHERS: u32 = 0o022;

/// A directory and the name of a file in it. The file need not exist.
#[derive(Debug)]
pub struct Place {
    /// The directory.
    pub dir: Dir,
    /// The name; `None` if the path is `/`, or ends in `.` or `..`: then it is the directory itself.
    pub name: Option<OsString>,
}

impl Place {
    /// Resolves `path` except its last name, which may be a link.
    ///
    /// # Errors
    /// The system's; a link of an untrusted user is in the path.
    pub fn of(path: &Path) -> io::Result<Self> {
        Walk::resolve(path, false)
    }

    /// Resolves `path`, links at its end included. The name is not a link's then, unless another
    /// process replaces it.
    ///
    /// # Errors
    /// As [`Place::of`].
    pub fn following(path: &Path) -> io::Result<Self> {
        Walk::resolve(path, true)
    }

    /// The file at the place; `None` if there is none.
    ///
    /// # Errors
    /// The system's.
    pub fn find(&self) -> io::Result<Option<Entry>> {
        self.dir.find(self.name.as_deref().unwrap_or(OsStr::new(".")))
    }

    /// Opens the file at the place if it is of one of `kinds`. Never waits. Of links at the place
    /// only those of `/proc` are followed, to a file that a process has open.
    ///
    /// # Errors
    /// As [`Dir::open_file`].
    pub fn open(&self, access: Access, kinds: &[Kind]) -> io::Result<(File, Metadata)> {
        let name = self.name.as_deref().unwrap_or(OsStr::new("."));
        let link = self.dir.entry(name)?;
        if link.kind() != Kind::Symlink || !is_of_proc(&link)? {
            return self.dir.open_file(name, access, kinds);
        }
        let open = |flags| openat(&self.dir, name, flags, Mode::empty());
        let found = Entry::new(open(OFlags::PATH | OFlags::CLOEXEC)?.into())?;
        open_checked(&found, access, kinds, open)
    }

    /// The name.
    ///
    /// # Errors
    /// There is none.
    pub fn name(&self) -> io::Result<&OsStr> {
        self.name.as_deref().ok_or_else(|| Errno::ISDIR.into())
    }
}

impl Dir {
    /// Opens the directory at `path`, as [`Place::following`] resolves it.
    ///
    /// # Errors
    /// The system's; a link of an untrusted user is in the path; it is not a directory.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::open_place(Place::following(path)?)
    }

    /// Opens the directory at a place.
    ///
    /// # Errors
    /// The system's; it is not a directory.
    pub fn open_place(place: Place) -> io::Result<Self> {
        match place {
            Place { dir, name: None } => Ok(dir),
            Place { dir, name: Some(name) } => dir.dir(&name),
        }
    }
}

/// Returns true if a link of user `link_uid`, in a directory of user `dir_uid` with permissions `dir_mode`, is
/// root's or this user's work.
#[must_use]
pub fn is_trusted_link(link_uid: u32, dir_uid: u32, dir_mode: u32) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let is_trusted = |uid: u32| uid == 0 || uid == own;
    is_trusted(link_uid) || (is_trusted(dir_uid) && dir_mode & WRITABLE_FOR_OTHERS == 0)
}

/// A path on the way to its end.
struct Walk {
    dir: Dir,
    rest: VecDeque<OsString>,
    links: usize,
}

impl Walk {
    fn resolve(path: &Path, follow: bool) -> io::Result<Place> {
        if path.as_os_str().is_empty() {
            return Err(Errno::NOENT.into());
        }
        // Held from the start: a change of the working directory does not move the walk.
        let mut walk = Self { dir: open_dir(".")?, rest: VecDeque::new(), links: 0 };
        walk.prepend(path)?;
        let bytes = path.as_os_str().as_bytes();
        // `components` drops a final dot, but with it the path must name a directory.
        if bytes == b"." || bytes.ends_with(b"/.") {
            walk.rest.push_back(".".into());
        }
        while let Some(name) = walk.rest.pop_front() {
            if name == "." {
                continue;
            }
            if name == ".." {
                // From the reached directory, as in the kernel: after a link this is not the
                // textual parent.
                walk.dir = Dir::from_fd(openat(&walk.dir, "..", DIRECTORY, Mode::empty())?);
                continue;
            }
            let is_last = walk.rest.is_empty();
            if is_last && !follow {
                return Ok(Place { dir: walk.dir, name: Some(name) });
            }
            match walk.dir.find(&name)? {
                Some(link) if link.kind() == Kind::Symlink => {
                    if let Some(place) = walk.follow(&link, name, is_last)? {
                        return Ok(place);
                    }
                }
                _ if is_last => return Ok(Place { dir: walk.dir, name: Some(name) }),
                // The kernel's error if it does not exist or is not a directory.
                _ => walk.dir = walk.dir.dir(&name)?,
            }
        }
        Ok(Place { dir: walk.dir, name: None })
    }

    /// Puts the components of `path` before the rest.
    fn prepend(&mut self, path: &Path) -> io::Result<()> {
        if path.is_absolute() {
            self.dir = open_dir("/")?;
        }
        for component in path.components().rev() {
            match component {
                Component::Normal(name) => self.rest.push_front(name.to_owned()),
                Component::ParentDir => self.rest.push_front("..".into()),
                Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            }
        }
        Ok(())
    }

    /// Continues behind a link. Returns the place if the link leads to a file without a path.
    fn follow(&mut self, link: &Entry, name: OsString, is_last: bool) -> io::Result<Option<Place>> {
        let dir = self.dir.metadata()?;
        let owner = link.metadata().uid();
        if !is_trusted_link(owner, dir.uid(), dir.mode()) {
            let what = format!(
                "{} is a symbolic link of user {owner}, and is not followed",
                name.display()
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Errno::LOOP.into());
        }
        // The text of such a link need not be a path, so only the kernel can follow it.
        if is_of_proc(link)? {
            return match openat(&self.dir, &name, DIRECTORY, Mode::empty()) {
                Ok(found) => {
                    self.dir = Dir::from_fd(found);
                    Ok(None)
                }
                // A file that a process has open: the caller opens it by this name.
                Err(Errno::NOTDIR) if is_last => {
                    Ok(Some(Place { dir: self.dir.try_clone()?, name: Some(name) }))
                }
                Err(error) => Err(error.into()),
            };
        }
        let target = link.link_target()?;
        self.prepend(Path::new(&target))?;
        Ok(None)
    }
}

fn open_dir(path: &str) -> io::Result<Dir> {
    Ok(Dir::from_fd(openat(CWD, path, DIRECTORY, Mode::empty())?))
}

fn is_of_proc(link: &Entry) -> io::Result<bool> {
    let found: OwnedFd = link.duplicate()?;
    Ok(u64::try_from(fstatfs(&found)?.f_type).is_ok_and(|magic| magic == PROC_MAGIC))
}

//! An open directory, and the names in it.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, chmodat, fsync, mkdirat, openat, readlinkat, renameat,
    renameat_with, symlinkat, unlinkat,
};
use rustix::io::Errno;

use crate::attributes::Attributes;
use crate::beneath::Resolver;
use crate::entry::{Entry, Identity, Kind};
use crate::open::{Access, open_checked};

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A directory, held by an `O_PATH` descriptor. Renaming or replacing its path does not change it.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    resolver: Resolver,
}

impl Dir {
    pub(crate) fn from_fd(fd: OwnedFd) -> Self {
        Self { fd, resolver: Resolver::available() }
    }

    #[cfg(test)]
    pub(crate) fn with_resolver(mut self, resolver: Resolver) -> Self {
        self.resolver = resolver;
        self
    }

    /// Another descriptor of the same directory.
    ///
    /// # Errors
    /// The process has no free descriptor.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()?, resolver: self.resolver })
    }

    pub(crate) fn open_raw(
        &self,
        path: impl AsRef<Path>,
        flags: OFlags,
        mode: Mode,
    ) -> io::Result<OwnedFd> {
        self.resolver.open(self.fd.as_fd(), path.as_ref(), flags, mode)
    }

    /// Opens the directory at the relative `path` beneath this one. No component may be a link.
    ///
    /// # Errors
    /// The system's; a component is not a directory.
    pub fn dir(&self, path: impl AsRef<Path>) -> io::Result<Self> {
        let fd = self.open_raw(path, DIRECTORY, Mode::empty())?;
        Ok(Self { fd, resolver: self.resolver })
    }

    /// Looks up a name without opening its file. A symbolic link gives the link itself.
    ///
    /// # Errors
    /// The system's.
    pub fn entry(&self, path: impl AsRef<Path>) -> io::Result<Entry> {
        Entry::new(self.open_raw(path, OFlags::PATH, Mode::empty())?.into())
    }

    /// The same; `None` if the name is unused.
    ///
    /// # Errors
    /// The system's.
    pub fn find(&self, path: impl AsRef<Path>) -> io::Result<Option<Entry>> {
        match self.entry(path) {
            Ok(entry) => Ok(Some(entry)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens the file at the relative `path` if it is of one of `kinds`. Never waits, and never follows a
    /// link.
    ///
    /// # Errors
    /// The system's; [`crate::WrongKind`].
    pub fn open_file(
        &self,
        path: impl AsRef<Path>,
        access: Access,
        kinds: &[Kind],
    ) -> io::Result<(File, Metadata)> {
        let path = path.as_ref();
        // Opening some devices has effects, so the type is checked on an `O_PATH` descriptor first.
        let found = self.entry(path)?;
        open_checked(&found, access, kinds, |flags| self.open_raw(path, flags, Mode::empty()))
    }

    /// Creates a regular file for reading and writing, under an unused name.
    ///
    /// # Errors
    /// The system's; the name exists, even as a dangling link.
    pub fn create_new(&self, name: impl AsRef<Path>, mode: u32) -> io::Result<File> {
        // `O_EXCL` also refuses a dangling link, which could lead anywhere.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        Ok(self.open_raw(name, flags, Mode::from_raw_mode(mode & 0o7777))?.into())
    }

    /// Creates a directory and opens it.
    ///
    /// # Errors
    /// The system's; another user replaced it immediately.
    pub fn make_dir(&self, name: &OsStr, mode: u32) -> io::Result<Self> {
        check_name(name)?;
        mkdirat(&self.fd, name, Mode::from_raw_mode(mode & 0o7777))?;
        let made = self.dir(name)?;
        // In a writable directory another user can replace the name before it is opened.
        if made.metadata()?.uid() != rustix::process::geteuid().as_raw() {
            return Err(replaced(name));
        }
        Ok(made)
    }

    /// Creates a symbolic link and holds it.
    ///
    /// # Errors
    /// The system's; another user replaced it immediately.
    pub fn make_link(&self, target: &OsStr, name: &OsStr) -> io::Result<Entry> {
        check_name(name)?;
        symlinkat(target, &self.fd, name)?;
        let made = self.entry(name)?;
        let metadata = made.metadata();
        // Another user can move a link of this user here, and that one has another name as well.
        let is_ours = metadata.uid() == rustix::process::geteuid().as_raw()
            && metadata.nlink() == 1
            && made.kind() == Kind::Symlink;
        if !is_ours {
            return Err(replaced(name));
        }
        Ok(made)
    }

    /// Renames a file. It replaces the file with the new name.
    ///
    /// # Errors
    /// The system's.
    pub fn rename(&self, from: &OsStr, to_dir: &Self, to: &OsStr) -> io::Result<()> {
        check_name(from)?;
        check_name(to)?;
        Ok(renameat(&self.fd, from, &to_dir.fd, to)?)
    }

    /// The same; fails if the name exists.
    ///
    /// # Errors
    /// The system's.
    pub fn rename_new(&self, from: &OsStr, to_dir: &Self, to: &OsStr) -> io::Result<()> {
        check_name(from)?;
        check_name(to)?;
        Ok(renameat_with(&self.fd, from, &to_dir.fd, to, RenameFlags::NOREPLACE)?)
    }

    /// Renames `from`, which must lead to `wanted`, and checks afterwards that `to` leads to it.
    ///
    /// # Errors
    /// The system's; another process replaced the name.
    pub fn rename_exact(&self, from: &OsStr, wanted: Identity, to: &OsStr) -> io::Result<()> {
        // Renaming goes by name. A check before it prevents the common case, and the one after it
        // the race.
        if self.entry(from)?.identity() != wanted {
            return Err(replaced(from));
        }
        self.rename(from, self, to)?;
        // Another process could replace the name between the check and the rename.
        if self.entry(to)?.identity() != wanted {
            return Err(replaced(to));
        }
        Ok(())
    }

    /// Removes the name of a file other than a directory.
    ///
    /// # Errors
    /// The system's.
    pub fn remove_file(&self, name: &OsStr) -> io::Result<()> {
        check_name(name)?;
        Ok(unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// The system's.
    pub fn remove_dir(&self, name: &OsStr) -> io::Result<()> {
        check_name(name)?;
        Ok(unlinkat(&self.fd, name, AtFlags::REMOVEDIR)?)
    }

    /// Removes a name if it leads to `wanted`. Returns false if it does not.
    ///
    /// # Errors
    /// The system's.
    pub fn remove_exact(&self, name: &OsStr, wanted: Identity) -> io::Result<bool> {
        let is_it = self.find(name)?.is_some_and(|found| found.identity() == wanted);
        if is_it {
            self.remove_file(name)?;
        }
        Ok(is_it)
    }

    /// The names in it, sorted, without `.` and `..`.
    ///
    /// # Errors
    /// The system's; it may not be read.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(self.readable()?)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        // The order of the kernel depends on the file system, and listings are compared.
        names.sort_unstable();
        Ok(names)
    }

    /// Makes its names durable.
    ///
    /// # Errors
    /// The system's; it may not be read.
    pub fn sync(&self) -> io::Result<()> {
        Ok(fsync(self.readable()?)?)
    }

    /// Sets its attributes.
    ///
    /// # Errors
    /// The system's.
    pub fn set_attributes(&self, attributes: &Attributes) -> io::Result<()> {
        match self.readable() {
            Ok(readable) => attributes.set(&readable),
            // The owner may change a directory without the right to read it.
            Err(Errno::ACCESS) => {
                if let Some(mode) = attributes.mode {
                    let mode = Mode::from_raw_mode(mode);
                    chmodat(CWD, self.proc_path(), mode, AtFlags::empty())?;
                }
                // The mode is set already. It may permit the reading that the other attributes
                // need.
                let rest = Attributes { mode: None, ..attributes.clone() };
                rest.set(&self.readable()?)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Its metadata.
    ///
    /// # Errors
    /// The system's.
    pub fn metadata(&self) -> io::Result<Metadata> {
        File::from(self.fd.try_clone()?).metadata()
    }

    /// A path of this directory for the kernel while this value lives, for calls that take only a
    /// path.
    #[must_use]
    pub fn proc_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
    }

    /// Its path now, for messages and names. It may change immediately.
    ///
    /// # Errors
    /// The system's: `/proc` is not there.
    pub fn path(&self) -> io::Result<PathBuf> {
        let path = readlinkat(CWD, self.proc_path(), Vec::new())?;
        Ok(PathBuf::from(OsString::from_vec(path.into_bytes())))
    }

    fn readable(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // An `O_PATH` descriptor permits neither reading nor syncing.
        openat(&self.fd, ".", flags, Mode::empty())
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Fails unless `name` is one component.
fn check_name(name: &OsStr) -> io::Result<()> {
    let bytes = name.as_bytes();
    let is_name =
        !matches!(bytes, b"" | b"." | b"..") && !bytes.contains(&b'/') && !bytes.contains(&0);
    if is_name { Ok(()) } else { Err(Errno::INVAL.into()) }
}

fn replaced(name: &OsStr) -> io::Error {
    io::Error::other(format!("another process replaced {}", name.display()))
}

//! Any directory, through system calls.
//!
//! Invariants: everything is made in a folder of our own in an empty directory, and is gone at the end.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, SeekFrom};
use tempfile::TempDir;

use super::target::Target;

/// Unbuffered reads and writes are of whole blocks of this size.
const DIRECT_BYTES: usize = 4096;

/// A directory that was asked for, and its name in the results.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

/// Use of the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Buffered,
    /// With `O_DIRECT`.
    Direct,
}

/// A folder of our own in a directory.
pub(crate) struct Directory {
    root: OwnedFd,
    access: Access,
    /// Removed when this is dropped. A file system that ends with its last user needs no removal.
    _folder: Option<TempDir>,
}

impl std::str::FromStr for Place {
    type Err = String;

    /// Reads `NAME=PATH`, or a path that is its own name.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, path) = text.split_once('=').unwrap_or((text, text));
        if name.is_empty() || path.is_empty() {
            return Err("a directory is NAME=PATH, or PATH".to_owned());
        }
        Ok(Self { name: name.to_owned(), path: path.into() })
    }
}

impl Place {
    /// Checks that the directory is empty and writable.
    ///
    /// # Errors
    /// It is not.
    pub(crate) fn check(&self) -> Result<()> {
        let path = self.path.display();
        let entries = fs::read_dir(&self.path).with_context(|| format!("cannot list {path}"))?;
        for entry in entries {
            let name = entry.with_context(|| format!("cannot list {path}"))?.file_name();
            // A new ext4 has it.
            if name != OsStr::new("lost+found") {
                bail!("{path} is not empty: it has {}", name.display());
            }
        }
        self.folder().map(drop)
    }

    fn folder(&self) -> Result<TempDir> {
        let folder = tempfile::Builder::new().prefix("everbyte-bench.").tempdir_in(&self.path);
        folder.with_context(|| format!("cannot make anything in {}", self.path.display()))
    }

    /// Free bytes of its file system.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn free_bytes(&self) -> Result<u64> {
        let system = rustix::fs::statvfs(&self.path)
            .with_context(|| format!("cannot inspect {}", self.path.display()))?;
        Ok(system.f_bavail.saturating_mul(system.f_frsize))
    }

    /// A new folder in it.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn open(&self, access: Access) -> Result<Directory> {
        let folder = self.folder()?;
        let root = open_directory(folder.path())?;
        Ok(Directory { root, access, _folder: Some(folder) })
    }
}

/// Opens a directory.
///
/// # Errors
/// The system's.
pub(crate) fn open_directory(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

impl Directory {
    /// A directory without another user. Its files end with their file system.
    pub(crate) fn over(root: OwnedFd) -> Self {
        Self { root, access: Access::Buffered, _folder: None }
    }

    fn open_with(&self, path: &str, flags: OFlags) -> Result<OwnedFd> {
        let direct = match self.access {
            Access::Buffered => OFlags::empty(),
            Access::Direct => OFlags::DIRECT,
        };
        let flags = flags | direct | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.root, path, flags, Mode::from_raw_mode(0o644));
        file.with_context(|| format!("cannot open {path}"))
    }
}

/// Writes all of `data` where the file's position is.
fn write_all(file: &OwnedFd, mut data: &[u8]) -> Result<()> {
    while !data.is_empty() {
        let done = rustix::io::write(file, data)?;
        ensure!(done > 0, "nothing was written");
        data = &data[done..];
    }
    Ok(())
}

impl Target for Directory {
    type File = OwnedFd;

    fn unit_bytes(&self) -> usize {
        if self.access == Access::Direct { DIRECT_BYTES } else { 1 }
    }

    fn note(&self) -> Option<&'static str> {
        let is_direct = self.access == Access::Direct;
        is_direct.then_some("sizes are rounded up to whole blocks, as O_DIRECT asks")
    }

    fn make_directory(&self, path: &str) -> Result<()> {
        Ok(rustix::fs::mkdirat(&self.root, path, Mode::from_raw_mode(0o755))?)
    }

    fn create(&self, path: &str) -> Result<OwnedFd> {
        self.open_with(path, OFlags::CREATE | OFlags::EXCL)
    }

    fn make_file(&self, path: &str) -> Result<()> {
        let (kind, mode) = (FileType::RegularFile, Mode::from_raw_mode(0o644));
        Ok(rustix::fs::mknodat(&self.root, path, kind, mode, 0)?)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        Ok(rustix::fs::renameat(&self.root, from, &self.root, to)?)
    }

    fn set_permissions(&self, path: &str, permissions: u32) -> Result<()> {
        let mode = Mode::from_raw_mode(permissions);
        Ok(rustix::fs::chmodat(&self.root, path, mode, AtFlags::empty())?)
    }

    fn open(&self, path: &str) -> Result<OwnedFd> {
        self.open_with(path, OFlags::empty())
    }

    fn stat(&self, path: &str) -> Result<u64> {
        let stat = rustix::fs::statat(&self.root, path, AtFlags::empty())?;
        Ok(u64::try_from(stat.st_size)?)
    }

    fn delete(&self, path: &str) -> Result<()> {
        Ok(rustix::fs::unlinkat(&self.root, path, AtFlags::empty())?)
    }

    fn read(&self, file: &OwnedFd, offset: u64, into: &mut [u8]) -> Result<usize> {
        Ok(rustix::io::pread(file, into, offset)?)
    }

    fn write(&self, file: &OwnedFd, offset: u64, data: &[u8]) -> Result<()> {
        let done = rustix::io::pwrite(file, data, offset)?;
        ensure!(done == data.len(), "{done} of {} bytes were written", data.len());
        Ok(())
    }

    fn append(&self, file: &OwnedFd, data: &[u8]) -> Result<()> {
        rustix::fs::seek(file, SeekFrom::End(0))?;
        write_all(file, data)
    }

    fn truncate(&self, file: &OwnedFd) -> Result<()> {
        Ok(rustix::fs::ftruncate(file, 0)?)
    }

    fn fsync(&self, file: &OwnedFd) -> Result<()> {
        Ok(rustix::fs::fsync(file)?)
    }

    fn close(&self, file: OwnedFd) -> Result<()> {
        drop(file);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(&self.root)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &Path) -> Place {
        path.to_str().unwrap().parse().unwrap()
    }

    #[test]
    fn names_come_before_paths() {
        let expected = Place { name: "ext4".into(), path: "/mnt/a=b".into() };
        assert_eq!("ext4=/mnt/a=b".parse(), Ok(expected));
        assert_eq!("/mnt".parse::<Place>().unwrap().name, "/mnt");
        assert!("=/mnt".parse::<Place>().is_err() && "ext4=".parse::<Place>().is_err());
    }

    #[test]
    fn nonempty_or_readonly_directory_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |path: &Path| format!("{:#}", place(path).check().unwrap_err());
        place(folder.path()).check().unwrap();
        fs::create_dir(folder.path().join("lost+found")).unwrap();
        place(folder.path()).check().unwrap();
        assert!(refused(&folder.path().join("missing")).contains("cannot list"));
        fs::write(folder.path().join("precious"), "data").unwrap();
        assert!(refused(folder.path()).contains("not empty: it has precious"));
        assert!(refused(&folder.path().join("precious")).contains("cannot list"));
        // An empty directory in which not even root can make anything.
        assert!(refused(Path::new("/proc/tty/ldisc")).contains("cannot make anything in"));
    }

    #[test]
    fn directory_target_works_and_cleans_up() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let target = place(folder.path()).open(Access::Buffered).unwrap();
        crate::index::drive::tests::check_target(&target);
        drop(target);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

//! A regular file without its final name.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;

use crate::dir::Dir;
use crate::entry::{Entry, Identity};

/// Attempts to find an unused name.
const ATTEMPTS_MAX: usize = 256;
/// Permissions until the caller sets others.
const MODE: u32 = 0o600;

/// A new file under a temporary name beginning with `.tmp`. Dropping it removes the name.
#[derive(Debug)]
pub struct NewFile {
    dir: Dir,
    name: Option<OsString>,
    file: File,
    identity: Identity,
}

impl NewFile {
    /// Creates one in `dir`, readable and writable for its owner only.
    ///
    /// # Errors
    /// The system's.
    pub fn create(dir: &Dir) -> io::Result<Self> {
        // An own descriptor, because the removal at the drop must reach the same directory.
        let dir = dir.try_clone()?;
        let (name, file) = by_temporary_name(|name| dir.create_new(name, MODE))?;
        let identity = Identity::of(&file.metadata()?);
        Ok(Self { dir, name: Some(name), file, identity })
    }

    /// The file.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Gives it its name. It replaces the file with this name.
    ///
    /// # Errors
    /// The system's; another process replaced the temporary name or the new one.
    pub fn persist(mut self, name: &OsStr) -> io::Result<()> {
        if let Some(own) = &self.name {
            self.dir.rename_exact(own, self.identity, name)?;
            // After the rename only: a failed one leaves the temporary name for the drop to remove.
            self.name = None;
        }
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(name) = self.name.take() {
            // The caller has the error that matters.
            let _best_effort = self.dir.remove_exact(&name, self.identity);
        }
    }
}

impl Dir {
    /// Creates a symbolic link with the attributes. It replaces the file with this name. A
    /// directory of this name stays, and is an error.
    ///
    /// # Errors
    /// The system's; another process replaced the link.
    pub fn put_link(
        &self,
        target: &OsStr,
        name: &OsStr,
        prepare: impl FnOnce(&Entry) -> io::Result<()>,
    ) -> io::Result<()> {
        let (temporary, link) = by_temporary_name(|name| self.make_link(target, name))?;
        let put =
            prepare(&link).and_then(|()| self.rename_exact(&temporary, link.identity(), name));
        if put.is_err() {
            // The first error matters.
            let _best_effort = self.remove_exact(&temporary, link.identity());
        }
        put
    }
}

fn by_temporary_name<T>(
    mut create: impl FnMut(&OsStr) -> io::Result<T>,
) -> io::Result<(OsString, T)> {
    for attempt in 0..ATTEMPTS_MAX {
        // Each state has a random seed.
        let name = OsString::from(format!(".tmp{:016x}", RandomState::new().hash_one(attempt)));
        match create(&name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            done => return Ok((name, done?)),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

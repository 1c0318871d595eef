//! Locks of files.

use std::fs::{File, TryLockError};

/// A lock (`flock`) of an open file by this process. It ends with its owner, or with the process.
///
/// A child between `fork` and `exec` has a duplicate of each descriptor. The duplicates alone would
/// keep the lock for a moment after the last close here. Therefore the end of the owner unlocks the
/// file for all duplicates.
#[derive(Debug)]
pub struct FileLock {
    file: File,
    process: u32,
}

impl FileLock {
    /// Locks `file` if no other process has a lock.
    ///
    /// # Errors
    /// `WouldBlock` if another open of the file has a lock; `Error` if the system refuses.
    pub fn exclusive(file: &File) -> Result<Self, TryLockError> {
        file.try_lock()?;
        Self::of_locked(file)
    }

    /// Locks `file` if no other process has an exclusive lock.
    ///
    /// # Errors
    /// As [`FileLock::exclusive`].
    pub fn shared(file: &File) -> Result<Self, TryLockError> {
        file.try_lock_shared()?;
        Self::of_locked(file)
    }

    fn of_locked(file: &File) -> Result<Self, TryLockError> {
        let file = file.try_clone().map_err(TryLockError::Error)?;
        Ok(Self { file, process: std::process::id() })
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // A forked child has a duplicate of its parent's lock, and the parent still relies on it.
        if self.process == std::process::id() {
            let _ends_with_the_descriptors = self.file.unlock();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_lock_is_free_despite_duplicates() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let file = File::create(&path).unwrap();
        let lock = FileLock::exclusive(&file).unwrap();
        // As a child between fork and exec has it.
        let duplicate = file.try_clone().unwrap();
        let other = File::open(&path).unwrap();
        assert!(matches!(FileLock::shared(&other), Err(TryLockError::WouldBlock)));
        drop(file);
        drop(lock);
        FileLock::exclusive(&other).unwrap();
        drop(duplicate);
    }

    #[test]
    fn shared_locks_exclude_an_exclusive_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let files =
            [(); 3].map(|()| File::options().append(true).create(true).open(&path).unwrap());
        let [first, second, third] = &files;
        let locks = [first, second].map(|file| FileLock::shared(file).unwrap());
        assert!(matches!(FileLock::exclusive(third), Err(TryLockError::WouldBlock)));
        drop(locks);
        FileLock::exclusive(third).unwrap();
    }
}

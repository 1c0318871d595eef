//! The file capability of a subject.

use anyhow::Result;

/// A place with files, used by any number of threads. Paths are relative, with `/` between names.
pub(crate) trait Target: Sync {
    /// A file that is open.
    type File;

    /// Writes and appends are of whole such units: 1, or what unbuffered writing asks for.
    fn unit_bytes(&self) -> usize;

    /// Makes a directory, whose parent is there.
    ///
    /// # Errors
    /// The target's; so for all that follow.
    fn make_directory(&self, path: &str) -> Result<()>;

    /// Makes and opens a file that is not there.
    fn create(&self, path: &str) -> Result<Self::File>;

    /// Makes an empty file that is not there, and does not open it.
    fn make_file(&self, path: &str) -> Result<()>;

    /// Gives what is at `from` the name `to`, which nothing has.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Sets the permissions of a file.
    fn set_permissions(&self, path: &str, permissions: u32) -> Result<()>;

    /// Opens a file.
    fn open(&self, path: &str) -> Result<Self::File>;

    /// Looks at a file's attributes, and returns its size in bytes.
    fn stat(&self, path: &str) -> Result<u64>;

    /// Removes a file.
    fn delete(&self, path: &str) -> Result<()>;

    /// Reads from `offset` on as much as there is and `into` holds; 0 bytes at the end.
    fn read(&self, file: &Self::File, offset: u64, into: &mut [u8]) -> Result<usize>;

    /// Writes at `offset`.
    fn write(&self, file: &Self::File, offset: u64, data: &[u8]) -> Result<()>;

    /// Finds the end of a file, and writes there.
    fn append(&self, file: &Self::File, data: &[u8]) -> Result<()>;

    /// Empties a file.
    fn truncate(&self, file: &Self::File) -> Result<()>;

    /// Makes what a file has durable.
    fn fsync(&self, file: &Self::File) -> Result<()>;

    /// Closes a file.
    fn close(&self, file: Self::File) -> Result<()>;

    /// Makes everything durable.
    fn sync(&self) -> Result<()>;

    /// Look-ups of inode tables that this thread has made so far, if they can be counted.
    fn lookups(&self) -> u64 {
        0
    }
}

//! The file capability of a subject.

use anyhow::Result;

/// A place with files for any number of threads. Paths are relative, with `/` between names.
pub(crate) trait Target: Sync {
    /// An open file.
    type File;

    /// Unit of the sizes of writes and appends: 1, or the block size of unbuffered writes.
    fn unit_bytes(&self) -> usize;

    /// A hint for the readers of figures.
    fn note(&self) -> Option<&'static str> {
        None
    }

    /// Creates a directory in an existing directory.
    ///
    /// # Errors
    /// The target's, here and in all methods below.
    fn make_directory(&self, path: &str) -> Result<()>;

    /// Creates and opens a file. The file must not exist.
    fn create(&self, path: &str) -> Result<Self::File>;

    /// Creates an empty file without opening it. The file must not exist.
    fn make_file(&self, path: &str) -> Result<()>;

    /// Renames `from` to `to`, an unused name.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Sets the permissions of a file.
    fn set_permissions(&self, path: &str, permissions: u32) -> Result<()>;

    /// Opens a file.
    fn open(&self, path: &str) -> Result<Self::File>;

    /// Reads a file's attributes and returns its size in bytes.
    fn stat(&self, path: &str) -> Result<u64>;

    /// Deletes a file.
    fn delete(&self, path: &str) -> Result<()>;

    /// Reads at `offset` up to the length of `into` and returns the number of bytes, 0 at the end.
    fn read(&self, file: &Self::File, offset: u64, into: &mut [u8]) -> Result<usize>;

    /// Writes at `offset`.
    fn write(&self, file: &Self::File, offset: u64, data: &[u8]) -> Result<()>;

    /// Looks up the end of a file and writes there.
    fn append(&self, file: &Self::File, data: &[u8]) -> Result<()>;

    /// Sets the size of a file to 0.
    fn truncate(&self, file: &Self::File) -> Result<()>;

    /// Makes a file durable.
    fn fsync(&self, file: &Self::File) -> Result<()>;

    /// Closes a file.
    fn close(&self, file: Self::File) -> Result<()>;

    /// Makes all files durable.
    fn sync(&self) -> Result<()>;
}

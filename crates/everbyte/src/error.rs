//! The library's one error type, and how the engine's errors become it.
//!
//! Invariant: an error states facts, with the names of what it is about. What to type is the
//! program's to say.

use std::fmt;
use std::io;
use std::path::PathBuf;

pub use everbyte_cache::CacheError;
pub use everbyte_device::{AtomicWriteError, DeviceError, SendError};
pub use everbyte_fs::FsError;
pub use everbyte_media::OpenError as MediumError;
use everbyte_pool::file::FileError;
pub use everbyte_pool::{PoolError, WriteError};

/// Errors of what is done with a pool or one of its volumes.
///
/// The message says what failed, where, and why: it contains those of its
/// [sources](std::error::Error::source). Requests to an open volume fail with [`DeviceError`].
/// `Debug` shows the message as well, so that a `main` that returns it reads well.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such file or device.
    #[error("there is no pool at {}", path.display())]
    NoPool {
        /// The path asked for.
        path: PathBuf,
    },
    /// A new pool would overwrite a file, or what a device holds.
    #[error("{} is there already, and is not blank", path.display())]
    Exists {
        /// The path asked for.
        path: PathBuf,
    },
    /// The file or device is no pool.
    #[error("{} is no pool: {reason}", path.display())]
    NotAPool {
        /// The path asked for.
        path: PathBuf,
        /// The mark by which it is no pool, or what it is instead.
        reason: String,
    },
    /// A process has the pool open, perhaps this one.
    #[error("the pool {} is in use by {}", path.display(), process(*pid))]
    InUse {
        /// The pool's file.
        path: PathBuf,
        /// The process, if the system tells.
        pid: Option<u32>,
    },
    /// The system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The medium cannot be allocated or mapped.
    #[error("the pool's medium cannot be used: {0}")]
    Medium(#[from] MediumError),
    /// An argument is out of its range.
    #[error("{what}")]
    Invalid {
        /// The argument, and why it is refused.
        what: String,
    },
    /// The pool is damaged or full, or its medium failed.
    #[error("the pool {}: {source}", path.display())]
    Pool {
        /// The pool's file.
        path: PathBuf,
        /// The engine's error.
        source: PoolError,
    },
    /// The pool was opened read-only, and this would change it.
    #[error("the pool {} was opened read-only", path.display())]
    ReadOnly {
        /// The pool's file.
        path: PathBuf,
    },
    /// [`Pool::close`](crate::Pool::close) was called.
    #[error("the pool {} has been closed", path.display())]
    Closed {
        /// The pool's file.
        path: PathBuf,
    },
    /// The pool has no volume of this name.
    #[error("the pool has no volume named {volume:?}")]
    NoSuchVolume {
        /// The name asked for.
        volume: String,
    },
    /// The pool has a volume of this name already.
    #[error("the pool has a volume named {volume:?} already")]
    VolumeExists {
        /// The name asked for.
        volume: String,
    },
    /// The volume is open: it has one handle at a time, which can be cloned.
    #[error("volume {volume} is open already")]
    VolumeInUse {
        /// Its name.
        volume: String,
    },
    /// A volume cannot be made, opened or changed.
    #[error("volume {volume}: {source}")]
    Volume {
        /// Its name.
        volume: String,
        /// The engine's error.
        source: PoolError,
    },
    /// An operation on a file failed.
    #[error("{volume}:{path}: {source}")]
    File {
        /// The file system's name.
        volume: String,
        /// The path asked for, without control characters.
        path: String,
        /// The engine's error.
        source: FsError,
    },
    /// A cache cannot be made, opened or written back.
    #[error("cache {volume}: {source}")]
    Cache {
        /// Its name.
        volume: String,
        /// The engine's error.
        source: CacheError,
    },
    /// A cache's backing device cannot be used.
    #[error("the backing device {backing} of cache {volume} cannot be used: {source}")]
    Backing {
        /// The cache's name.
        volume: String,
        /// The path or URI.
        backing: String,
        /// The error below.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A cache was given another backing device than it belongs to, or one of another size.
    #[error("cache {volume} belongs to {recorded}, and this is {found}")]
    OtherBacking {
        /// The cache's name.
        volume: String,
        /// Its own backing device.
        recorded: String,
        /// The one that was found.
        found: String,
    },
    /// Another cache of the pool has the backing device: each would overwrite the other's data.
    #[error("{backing} is the backing device of cache {other} already")]
    SharedBacking {
        /// The path or URI.
        backing: String,
        /// The cache that has it.
        other: String,
    },
    /// A cache could come to need more of the pool than is free.
    #[error("cache {volume} may take {needed_bytes} bytes of the pool, and {free_bytes} are free")]
    NoRoom {
        /// The cache's name.
        volume: String,
        /// Bytes that it may come to hold.
        needed_bytes: u64,
        /// Bytes that are free.
        free_bytes: u64,
    },
    /// A cache holds bytes that its backing device does not have, and would lose them.
    #[error("cache {volume} holds {dirty_bytes} bytes that its backing device does not have")]
    Dirty {
        /// The cache's name.
        volume: String,
        /// Bytes of dirty pages, a multiple of 4096.
        dirty_bytes: u64,
    },
    /// Unflushed writes to a cache could not be made durable when it was closed. The pool is not
    /// marked clean, and its next opening recovers as after a crash.
    #[error("what was written to volume {volume} and not flushed may be lost: {source}")]
    Lost {
        /// The volume's name.
        volume: String,
        /// The error below.
        source: DeviceError,
    },
    /// The system has no thread for checkpoints or for write-back.
    #[error("cannot start a thread: {source}")]
    Thread {
        /// The system's error.
        source: io::Error,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn process(pid: Option<u32>) -> String {
    pid.map_or("another process".to_owned(), |pid| format!("process {pid}"))
}

impl Error {
    /// For something that was done to the volume of this name.
    pub(crate) fn volume(volume: &str) -> impl FnOnce(PoolError) -> Self {
        let volume = volume.to_owned();
        move |source| match source {
            PoolError::NoSuchVolume { .. } => Self::NoSuchVolume { volume },
            PoolError::VolumeExists { .. } => Self::VolumeExists { volume },
            PoolError::InUse { .. } => Self::VolumeInUse { volume },
            source => Self::Volume { volume, source },
        }
    }

    /// For something that was done to the cache of this name.
    pub(crate) fn cache(volume: &str) -> impl FnOnce(CacheError) -> Self {
        let volume = volume.to_owned();
        move |source| match source {
            CacheError::OtherBacking { recorded, found } => {
                let (recorded, found) = (recorded.to_string(), found.to_string());
                Self::OtherBacking { volume, recorded, found }
            }
            CacheError::OtherSize { backing, recorded, found } => {
                let recorded = format!("{backing} of {recorded} bytes");
                Self::OtherBacking { volume, recorded, found: format!("one of {found} bytes") }
            }
            CacheError::ReadOnly => {
                let why = "its volume is read-only, and a cache must write what leaves it";
                Self::Volume { volume, source: PoolError::ReadOnly(why.to_owned()) }
            }
            source => Self::Cache { volume, source },
        }
    }
}

impl From<FileError> for Error {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Io { action, path, source } => Self::Io { action, path, source },
            FileError::NotFound { path } => Self::NoPool { path },
            FileError::Exists { path } | FileError::NotBlank { path } => Self::Exists { path },
            FileError::LeadsNowhere { path } => {
                Self::NotAPool { path, reason: "it is a link that leads nowhere".to_owned() }
            }
            FileError::NoPool { path, why } => Self::NotAPool { path, reason: why },
            FileError::InUse(holder) => Self::InUse { path: holder.path, pid: holder.pid },
            FileError::Media(error) => Self::Medium(error),
            FileError::Pool { path, source } => Self::Pool { path, source },
            other => Self::Invalid { what: other.to_string() },
        }
    }
}

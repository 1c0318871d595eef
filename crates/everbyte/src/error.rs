//! The library's one error type, and how the engine's errors become it.
//!
//! Invariant: an error states facts and names its objects. Advice on commands belongs to the
//! program.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

pub use everbyte_cache::CacheError;
pub use everbyte_device::{AtomicWriteError, DeviceError, SendError};
pub use everbyte_fs::FsError;
pub use everbyte_media::OpenError as MediumError;
pub use everbyte_pool::file::{FileError, InUse};
pub use everbyte_pool::{PoolError, WriteError};
pub use everbyte_swap_volume::SwapError;

pub use crate::backing::BackingError;
use crate::cache::CacheState;
use crate::size::show_size;

/// Result of an operation of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors of this library. Every error of a request or an adapter converts into it by `?`.
///
/// The message names the operation, the place and the cause: it contains the messages of its
/// [sources](std::error::Error::source).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file or device does not exist.
    #[error("there is no pool at {}", path.display())]
    NoPool {
        /// The path asked for.
        path: PathBuf,
    },
    /// A new pool would overwrite a file or the contents of a device.
    #[error("{} is there already, and is not blank", path.display())]
    Exists {
        /// The path asked for.
        path: PathBuf,
    },
    /// The file or device is not a pool.
    #[error("{} is not a pool: {reason}", path.display())]
    NotAPool {
        /// The path asked for.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A process has the pool open, perhaps this one.
    #[error("the pool {} is in use by {}", path.display(), process(*pid))]
    InUse {
        /// The pool's file.
        path: PathBuf,
        /// The process, if the system reports it.
        pid: Option<u32>,
    },
    /// The system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The failed action.
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
        /// The argument, and the reason for its rejection.
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
    #[error("there is no volume named {volume:?}")]
    NoSuchVolume {
        /// The name asked for.
        volume: String,
    },
    /// The pool has a volume of this name already.
    #[error("a volume named {volume:?} exists already")]
    VolumeExists {
        /// The name asked for.
        volume: String,
    },
    /// The volume is open: it has at most one handle at a time. Clone the handle to share it.
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
    /// A cache cannot be made, opened or written back. The source is `OtherBacking` or `OtherSize` if its backing
    /// device is another one than its own, or has another size.
    #[error("cache {volume}: {source}")]
    Cache {
        /// Its name.
        volume: String,
        /// The engine's error.
        source: CacheError,
    },
    /// Runs of a swap volume cannot be made, lent or changed.
    #[error("volume {volume}: {source}")]
    Swap {
        /// Its name.
        volume: String,
        /// The engine's error.
        source: SwapError,
    },
    /// A cache's backing device cannot be used.
    #[error("the backing device of cache {volume} cannot be used: {source}")]
    Backing {
        /// The cache's name.
        volume: String,
        /// The underlying error. It names the device.
        source: BackingError,
    },
    /// Another cache of the pool has the backing device, or shares bytes with it: each would overwrite the other's data.
    #[error("{backing} is the backing device of cache {other}, or shares bytes with it")]
    SharedBacking {
        /// The path or URI.
        backing: String,
        /// The cache with the same backing device.
        other: String,
    },
    /// The pool lies on the bytes of the backing device.
    #[error("{backing} shares bytes with the pool itself")]
    SharesPool {
        /// The path.
        backing: String,
    },
    /// A cache could come to need more of the pool than is free.
    #[error(
        "cache {volume} may take {} of the pool: its SCM, as much again as its DRAM, and a sixteenth for pages whose \
         write-back is pending; {} are free",
        show_size(*needed_bytes), show_size(*free_bytes)
    )]
    NoRoom {
        /// The cache's name.
        volume: String,
        /// Bytes the volume may grow to.
        needed_bytes: u64,
        /// Free bytes of the pool.
        free_bytes: u64,
    },
    /// A cache is as large as its backing device: its size cannot be chosen.
    #[error("volume {volume} is a cache, which is as large as its backing device")]
    CacheSize {
        /// Its name.
        volume: String,
    },
    /// Only a cache has a backing device and its own memory.
    #[error("volume {volume} is not a cache, so it has no backing device")]
    NotACache {
        /// Its name.
        volume: String,
    },
    /// The cache holds bytes missing on its backing device, and would lose them.
    #[error("volume {volume} is a cache with {} that its backing device does not have", show_size(*dirty_bytes))]
    Dirty {
        /// The cache's name.
        volume: String,
        /// Bytes of dirty pages, a multiple of 4096.
        dirty_bytes: u64,
    },
    /// The dirty pages of a cache cannot be counted, and a deletion would lose them.
    #[error("cannot read the dirty-page count of cache {volume}: {source}")]
    DirtyUnknown {
        /// The cache's name.
        volume: String,
        /// The engine's error.
        source: CacheError,
    },
    /// The backing device may lose writes past the cache: it did not flush them.
    #[error(
        "volume {volume} is a cache, and its backing device may lose writes past the cache: {reason}"
    )]
    NotFlushed {
        /// The cache's name.
        volume: String,
        /// The error of the flush.
        reason: String,
    },
    /// Dirty pages of a cache stay dirty. Nothing is lost.
    #[error("{} of cache {volume} could not be written back: {source}; nothing is lost", show_size(*dirty_bytes))]
    NotWrittenBack {
        /// The cache's name.
        volume: String,
        /// Bytes of dirty pages.
        dirty_bytes: u64,
        /// The error of the backing device or the medium.
        source: DeviceError,
    },
    /// The current state of the cache does not permit the operation.
    #[error("{reason}")]
    Unavailable {
        /// The cache's name.
        volume: String,
        /// Its state.
        state: CacheState,
        /// The state in words, with the cache's name.
        reason: String,
    },
    /// A cache could not be opened.
    #[error(transparent)]
    NotOpen(#[from] NotOpen),
    /// Closing a cache or the pool could not make some answered, unflushed writes durable.
    /// Everything else is durable. The pool is not marked clean: its next opening recovers as after
    /// a crash.
    #[error("unflushed writes may be lost, and the pool is not marked clean: {}", list(lost))]
    Lost {
        /// The volumes with losses.
        lost: Vec<LostWrites>,
    },
    /// A request to a device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Several writes could not be made as one.
    #[error(transparent)]
    AtomicWrite(#[from] AtomicWriteError),
    /// An operation of the engine's file system failed.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// A stream failed, or another file of the caller.
    #[error(transparent)]
    Stream(#[from] io::Error),
    /// The system has no thread for checkpoints or for write-back.
    #[error("cannot start a thread: {source}")]
    Thread {
        /// The system's error.
        source: io::Error,
    },
}

/// The reason why a cache is not open.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NotOpen {
    /// The state of the cache.
    pub state: CacheState,
    /// The error of the last opening.
    pub error: Arc<Error>,
}

impl NotOpen {
    pub(crate) fn new(state: CacheState, error: Error) -> Self {
        Self { state, error: Arc::new(error) }
    }

    /// The error itself, unless others share it.
    pub(crate) fn into_error(self) -> Error {
        Arc::try_unwrap(self.error).unwrap_or_else(|error| Error::NotOpen(Self { error, ..self }))
    }
}

impl fmt::Display for NotOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for NotOpen {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

/// A volume with unflushed writes at risk of loss.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LostWrites {
    /// The volume's name.
    pub volume: String,
    /// The error of the attempt to make the writes durable.
    pub reason: String,
}

impl LostWrites {
    /// A loss of `volume` because of `error`.
    pub fn new(volume: impl Into<String>, error: &dyn fmt::Display) -> Self {
        Self { volume: volume.into(), reason: error.to_string() }
    }
}

fn list(lost: &[LostWrites]) -> String {
    let lost = lost.iter().map(|lost| format!("volume {}: {}", lost.volume, lost.reason));
    lost.collect::<Vec<_>>().join("; ")
}

fn process(pid: Option<u32>) -> String {
    pid.map_or("another process".to_owned(), |pid| format!("process {pid}"))
}

impl Error {
    /// Converts the error of an operation on the volume of this name.
    pub(crate) fn volume(volume: &str) -> impl FnOnce(PoolError) -> Self {
        let volume = volume.to_owned();
        move |source| match source {
            PoolError::NoSuchVolume { name } => Self::NoSuchVolume { volume: name },
            PoolError::VolumeExists { name } => Self::VolumeExists { volume: name },
            PoolError::InUse { .. } => Self::VolumeInUse { volume },
            source => Self::Volume { volume, source },
        }
    }

    /// Converts the error of an operation on the cache of this name.
    pub(crate) fn cache(volume: &str) -> impl FnOnce(CacheError) -> Self {
        let volume = volume.to_owned();
        move |source| Self::Cache { volume, source }
    }

    /// For the backing device of the cache of this name.
    pub(crate) fn backing(volume: &str) -> impl FnOnce(BackingError) -> Self {
        let volume = volume.to_owned();
        move |source| Self::Backing { volume, source }
    }

    /// Converts the error of an operation on the swap volume of this name.
    pub(crate) fn swap(volume: &str) -> impl FnOnce(SwapError) -> Self {
        let volume = volume.to_owned();
        move |source| match source {
            SwapError::Pool(source) => Self::volume(&volume)(source),
            source => Self::Swap { volume, source },
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

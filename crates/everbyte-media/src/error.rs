//! Errors of opening, allocating and growing a medium: the action, the file and the obstacle.

use std::io;

/// A failure to open, allocate or grow a medium.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The system refused.
    #[error("cannot {action} {name}: {source}")]
    Io {
        /// The failed action, as a verb for "cannot ...".
        action: &'static str,
        /// The file.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// A directory, a socket or another unsuitable file.
    #[error("{name} is neither a file nor a block device nor a DAX device")]
    NotMappable {
        /// The file.
        name: String,
    },
    /// The length is 0 or not a multiple of the page size.
    #[error("{name} has {len} bytes, which is not a positive multiple of {unit}")]
    BadLength {
        /// The file.
        name: String,
        /// Its length in bytes.
        len: u64,
        /// The page size in bytes.
        unit: u64,
    },
    /// Too little space is free. Nothing was allocated.
    #[error("{name} needs {needed_mib} MiB more, and {place} has {free_mib} MiB free")]
    NoRoom {
        /// The file.
        name: String,
        /// Memory needed by the medium, in MiB, rounded up.
        needed_mib: u64,
        /// Free memory, in MiB, rounded down.
        free_mib: u64,
        /// The place with too little space: the file system or memory.
        place: &'static str,
    },
    /// The file system is full.
    #[error("no space for {len} bytes in {name}")]
    NoSpace {
        /// The file.
        name: String,
        /// The requested length in bytes.
        len: u64,
    },
    /// The medium cannot grow, or cannot grow while it is open.
    #[error("{name} cannot change to {len} bytes: {reason}")]
    CannotGrow {
        /// The file.
        name: String,
        /// The requested length in bytes.
        len: u64,
        /// The reason.
        reason: String,
    },
    /// A private copy of a medium without private mappings needs more memory than is free.
    #[error("cannot copy {name}: it holds more than the {bytes_max} bytes of memory to spare")]
    NoMemory {
        /// The file.
        name: String,
        /// Limit of the copy in bytes.
        bytes_max: u64,
    },
    /// The process has too many media open.
    #[error("cannot open {name}: {limit} media are open already")]
    TooMany {
        /// The file.
        name: String,
        /// The limit.
        limit: usize,
    },
}

impl OpenError {
    pub(crate) fn io(action: &'static str, name: &str) -> impl FnOnce(io::Error) -> Self + use<> {
        let name = name.to_owned();
        move |source| Self::Io { action, name, source }
    }
}

//! Errors of a database, and the SQLite result code of each.
//!
//! Owns the map from errors to SQLite's result codes; nothing else in the crate chooses one.

use std::ffi::c_int;

use crate::ffi;
use everbyte_device::DeviceError;
use everbyte_pool::PoolError;

use crate::format::FileKind;

/// A failed operation on a database.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatabaseError {
    /// The volume cannot be made or opened.
    #[error("database {name}: {source}")]
    Pool {
        /// The database, that is, the volume.
        name: String,
        /// The pool's error.
        source: PoolError,
    },
    /// The pool of a path cannot be opened.
    #[error("pool {path}: {reason}")]
    OpenPool {
        /// The path.
        path: String,
        /// The reason, for people.
        reason: String,
    },
    /// A path without a pool and a volume.
    #[error("{path:?} is not the path of a database: POOL/VOLUME")]
    Path {
        /// The path.
        path: String,
    },
    /// The name cannot be a database's.
    #[error("{name:?} cannot be a database's name: SQLite's journals end in {suffix:?}")]
    Name {
        /// The name asked for.
        name: String,
        /// The forbidden suffix.
        suffix: &'static str,
    },
    /// A volume or device has this name already.
    #[error("there is a database {name} already")]
    Taken {
        /// The database.
        name: String,
    },
    /// The name belongs to an open database whose volume was renamed or deleted, or closed with its
    /// pool. It is free again after the connections to that database are closed.
    #[error("connections have database {name} open, whose volume has another name now or is gone")]
    Moved {
        /// The former name of the volume.
        name: String,
    },
    /// The store has no pool, and no device of this name was attached.
    #[error("there is no database {name}: no such device was attached, and the store has no pool")]
    NoDevice {
        /// The database.
        name: String,
    },
    /// The volume or device holds something else, or is too small.
    #[error("volume {name} holds no database: database header at 0: {what}")]
    NoDatabase {
        /// The volume or device.
        name: String,
        /// The mistake in it.
        what: String,
    },
    /// A missing journal or WAL.
    #[error("database {name} has no {kind:?} file")]
    NoFile {
        /// The database.
        name: String,
        /// Which file.
        kind: FileKind,
    },
    /// A file would outgrow its part of the volume.
    #[error(
        "database {name}: the {kind:?} file would need {wanted_bytes} bytes, its part of the \
         volume has {capacity_bytes}; a larger volume has more"
    )]
    Full {
        /// The database.
        name: String,
        /// Which file.
        kind: FileKind,
        /// The requested length.
        wanted_bytes: u64,
        /// The largest allowed length.
        capacity_bytes: u64,
    },
    /// The device failed or refused.
    #[error("database {name}: {source}")]
    Device {
        /// The database.
        name: String,
        /// Its error.
        source: DeviceError,
    },
    /// A batch cannot be atomic, or not now. Nothing of it was done: SQLite turns to its journal.
    #[error("database {name}: no atomic batch: {reason}")]
    Batch {
        /// The database.
        name: String,
        /// The reason, for people.
        reason: String,
    },
    /// A batch was neither committed nor undone; recovery will undo it.
    #[error("database {name} must be closed and its pool opened again: {reason}")]
    Broken {
        /// The database.
        name: String,
        /// The event, for people.
        reason: String,
    },
    /// SQLite would change a page used in place. Nothing was done.
    #[error("database {name}: the page at {offset} is in use where it lies, and cannot be changed")]
    InUse {
        /// The database.
        name: String,
        /// The page's first byte.
        offset: u64,
    },
    /// SQLite requested a feature of other file systems.
    #[error("{what} is not supported on Everbyte volumes")]
    Unsupported {
        /// The feature.
        what: &'static str,
    },
    /// The registration of the connection has ended.
    #[error("this VFS has been unregistered")]
    Unregistered,
}

impl DatabaseError {
    /// The error of a transaction over several databases that needs a super-journal.
    pub(crate) fn several_databases() -> Self {
        Self::Unsupported { what: "a transaction over several attached databases" }
    }

    /// Returns SQLite's code for it; `otherwise` is the code of the failed kind of input or output.
    ///
    /// Failures within a transaction have a code of the IOERR family, or `SQLITE_FULL`: with any
    /// other code SQLite continues to trust the pages in its cache, although it can neither write
    /// them nor roll them back.
    pub(crate) fn code(&self, otherwise: c_int) -> c_int {
        match self {
            Self::Pool { .. }
            | Self::OpenPool { .. }
            | Self::Path { .. }
            | Self::Taken { .. }
            | Self::Moved { .. }
            | Self::NoDevice { .. }
            | Self::Name { .. }
            | Self::NoDatabase { .. }
            | Self::Unsupported { .. }
            | Self::Unregistered => ffi::SQLITE_CANTOPEN,
            Self::Full { .. } | Self::Device { source: DeviceError::NoSpace { .. }, .. } => {
                ffi::SQLITE_FULL
            }
            Self::Device { source: DeviceError::ReadOnly { .. }, .. }
                if otherwise == ffi::SQLITE_CANTOPEN =>
            {
                ffi::SQLITE_READONLY
            }
            Self::NoFile { .. } if otherwise == ffi::SQLITE_IOERR_DELETE => {
                ffi::SQLITE_IOERR_DELETE_NOENT
            }
            Self::NoFile { .. }
            | Self::Device { .. }
            | Self::Batch { .. }
            | Self::InUse { .. }
            | Self::Broken { .. } => otherwise,
        }
    }
}

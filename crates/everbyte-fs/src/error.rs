//! Errors of operations, and their error numbers.

use everbyte_extent::ExtentError;
use everbyte_pool::{ChangeError, Corrupt, PinError, WriteError};

/// The reason for a failed operation. The operation had no effect, unless its documentation describes parts.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FsError {
    /// The name is absent.
    #[error("no such file or directory")]
    NotFound,
    /// The name exists.
    #[error("the name exists already")]
    Exists,
    /// The operation needs a directory.
    #[error("not a directory")]
    NotDirectory,
    /// The operation does not accept a directory.
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// A name has more than 255 bytes, or a link's target more than 4095.
    #[error("the name is too long")]
    NameTooLong,
    /// The name is invalid in a directory.
    #[error("no directory can have this name")]
    InvalidName,
    /// An argument is invalid for this file.
    #[error("invalid argument: {what}")]
    Invalid {
        /// The reason.
        what: &'static str,
    },
    /// The file system has reached its size, or the pool has no free block.
    #[error("no space is left in the file system or its pool")]
    NoSpace,
    /// The file system has reached its limit of inodes.
    #[error("no inode is left: the file system was made for {max}")]
    NoInodes {
        /// The limit.
        max: u64,
    },
    /// The search found neither data nor a hole.
    #[error("there is no data or hole at or after the offset")]
    NoData,
    /// The extended attribute is absent.
    #[error("there is no such extended attribute")]
    NoAttribute,
    /// A time is outside of the range of inodes.
    #[error("the time is outside of the range from 1901-12-13 20:45:52 to 2446-05-10 22:38:55 UTC")]
    TimeOutOfRange,
    /// The name of an extended attribute is empty or longer than 255 bytes.
    #[error("the name of an extended attribute has 1 to 255 bytes")]
    AttributeName,
    /// The value of an extended attribute exceeds the limit.
    #[error("the value of the extended attribute is too long")]
    AttributeValue,
    /// The bytes are not an access control list.
    #[error("invalid access control list")]
    InvalidAcl,
    /// Only a directory has a default access control list.
    #[error("only a directory has a default access control list")]
    NoDefaultAcl,
    /// The type of the file does not support the attribute.
    #[error("the file cannot have such an attribute")]
    Unsupported,
    /// The extended attributes of a file exceed their limit.
    #[error("the extended attributes need more than {} bytes", crate::ATTRIBUTES_BYTES_MAX)]
    AttributesFull,
    /// The file would exceed its limit.
    #[error("the file would be too large")]
    TooLarge,
    /// Memory for the bytes of a file is short.
    #[error("there is no memory for {bytes} bytes")]
    NoMemory {
        /// Requested bytes.
        bytes: u64,
    },
    /// A path has too many symbolic links.
    #[error("too many levels of symbolic links")]
    TooManySymlinks,
    /// The file has reached its limit of links.
    #[error("the file has too many links")]
    TooManyLinks,
    /// Only the owner or a privileged caller may do this.
    #[error("the operation is not permitted")]
    NotPermitted,
    /// The immutable flag is set.
    #[error("the file or directory is immutable")]
    Immutable,
    /// The append-only flag is set.
    #[error("the file or directory is append-only")]
    AppendOnly,
    /// The inode has no file.
    #[error("{0} is gone")]
    Stale(crate::InodeNo),
    /// A batch exceeds the log.
    #[error("the operation needs more log than the volume has")]
    NoLog,
    /// Damaged structures.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// A file's bytes cannot be read or written.
    #[error(transparent)]
    Extent(ExtentError),
    /// The volume cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The file system has reached its limit of views.
    #[error(transparent)]
    Pin(PinError),
}

impl FsError {
    /// Returns true if the volume was closed under its users, for example by the end of its server. The next
    /// opening completes their pending work.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Write(WriteError::Gone))
    }

    /// The error number of a failed system call, as on Linux.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotPermitted | Self::Immutable | Self::AppendOnly => 1,
            Self::NotFound => 2,
            Self::NoData => 6,
            Self::AttributeValue => 7,
            Self::NoDefaultAcl => 13,
            Self::Corrupt(_) | Self::Extent(_) | Self::NoLog => 5,
            Self::Pin(_) => 11,
            Self::NoMemory { .. } => 12,
            Self::Exists => 17,
            Self::NotDirectory => 20,
            Self::IsDirectory => 21,
            Self::Invalid { .. } | Self::InvalidName | Self::InvalidAcl | Self::TimeOutOfRange => {
                22
            }
            Self::TooLarge => 27,
            Self::NoSpace | Self::NoInodes { .. } | Self::AttributesFull => 28,
            Self::Write(WriteError::ReadOnly { .. }) => 30,
            Self::Write(_) => 5,
            Self::TooManyLinks => 31,
            Self::AttributeName => 34,
            Self::NameTooLong => 36,
            Self::NotEmpty => 39,
            Self::TooManySymlinks => 40,
            Self::NoAttribute => 61,
            Self::Unsupported => 95,
            Self::Stale(_) => 116,
        }
    }
}

impl From<ExtentError> for FsError {
    fn from(error: ExtentError) -> Self {
        match error {
            ExtentError::NoSpace => Self::NoSpace,
            ExtentError::TooLarge => Self::NoLog,
            ExtentError::Corrupt(corrupt) => Self::Corrupt(corrupt),
            ExtentError::Write(error) => Self::Write(error),
            ExtentError::Pin(PinError::Gone) => Self::Write(WriteError::Gone),
            ExtentError::Pin(error) => Self::Pin(error),
            other => Self::Extent(other),
        }
    }
}

impl ChangeError for FsError {
    fn is_no_space(&self) -> bool {
        matches!(self, Self::NoSpace)
    }

    fn too_large() -> Self {
        Self::NoLog
    }
}

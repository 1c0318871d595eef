//! Errors of operations, and the error numbers that system calls give for them.

use everbyte_extent::ExtentError;
use everbyte_pool::{ChangeError, Corrupt, PinError, WriteError};

/// The reason for which an operation on a file system failed. Nothing of it was done then, unless the operation says
/// that it is made in parts.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FsError {
    /// There is no such name.
    #[error("no such file or directory")]
    NotFound,
    /// The name exists.
    #[error("the name exists already")]
    Exists,
    /// A directory is needed here.
    #[error("not a directory")]
    NotDirectory,
    /// A directory cannot be used so.
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// A name has more than 255 bytes, or a link's target more than 4095.
    #[error("the name is too long")]
    NameTooLong,
    /// A directory cannot have the name.
    #[error("no directory can have this name")]
    InvalidName,
    /// An argument makes no sense for this file.
    #[error("invalid argument: {what}")]
    Invalid {
        /// The reason.
        what: &'static str,
    },
    /// The file system has as many blocks as its size allows, or the pool has no free one.
    #[error("no space is left in the file system or its pool")]
    NoSpace,
    /// The file system has as many inodes as it can have.
    #[error("no inode is left: the file system was made for {max}")]
    NoInodes {
        /// Most inodes.
        max: u64,
    },
    /// There is nothing of the kind that was looked for.
    #[error("there is none")]
    NoData,
    /// There is no such extended attribute.
    #[error("there is no such extended attribute")]
    NoAttribute,
    /// An inode cannot have the time.
    #[error("the time is outside of the range from 1901-12-13 20:45:52 to 2446-05-10 22:38:55 UTC")]
    TimeOutOfRange,
    /// The name of an extended attribute has no byte, or more than 255.
    #[error("the name of an extended attribute has 1 to 255 bytes")]
    AttributeName,
    /// The value of an extended attribute is longer than any can be.
    #[error("the value of the extended attribute is too long")]
    AttributeValue,
    /// The bytes are no access control list.
    #[error("no access control list can be so")]
    InvalidAcl,
    /// Only a directory has a default access control list.
    #[error("only a directory has a default access control list")]
    NoDefaultAcl,
    /// A file of this type cannot have such an attribute.
    #[error("the file cannot have such an attribute")]
    Unsupported,
    /// The extended attributes of a file would take more than there is room for.
    #[error("the extended attributes need more than {} bytes", crate::ATTRIBUTES_BYTES_MAX)]
    AttributesFull,
    /// A file would be larger than it can be.
    #[error("the file would be too large")]
    TooLarge,
    /// There is no memory for the bytes of a file.
    #[error("there is no memory for {bytes} bytes")]
    NoMemory {
        /// Bytes that were asked for.
        bytes: u64,
    },
    /// A path leads through more symbolic links than are followed.
    #[error("too many levels of symbolic links")]
    TooManySymlinks,
    /// The file has as many links as it can have.
    #[error("the file has too many links")]
    TooManyLinks,
    /// The owner, or a privileged caller, may do this.
    #[error("the operation is not permitted")]
    NotPermitted,
    /// The immutable flag is set.
    #[error("the file or directory is immutable")]
    Immutable,
    /// The append-only flag is set.
    #[error("the file or directory is append-only")]
    AppendOnly,
    /// The inode is no file any more.
    #[error("{0} is gone")]
    Stale(crate::InodeNo),
    /// A batch needs more log than there is.
    #[error("the operation needs more log than the volume has")]
    NoLog,
    /// Structures that cannot be right.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// A file's bytes cannot be read or written.
    #[error(transparent)]
    Extent(ExtentError),
    /// The volume cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The file system has as many views of files as it may have.
    #[error(transparent)]
    Pin(PinError),
}

impl FsError {
    /// Returns true if the volume was closed under its users, as by the end of its server. What they left undone
    /// is done when it is opened again.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Write(WriteError::Gone))
    }

    /// The error number of a system call that fails so, as Linux has it.
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

//! Errors of reading and writing bytes of an extent.

use everbyte_media::{MediaError, PoolOffset};
use everbyte_pool::{ChangeError, Corrupt, PinError, WriteError};

/// Errors of reading and writing bytes of an extent.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExtentError {
    /// The pool is full, and a hole, a replaced block or a node of the map needs a block.
    #[error("the pool has no free block")]
    NoSpace,
    /// The volume's log never has room for the request, even with every block replaced.
    #[error("the request needs more log than the volume has")]
    TooLarge,
    /// The request leaves the extent.
    #[error("the extent ends at byte {size_bytes}")]
    OutOfRange {
        /// Bytes of the extent.
        size_bytes: u64,
    },
    /// The map cannot be right.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// Needed bytes cannot be read, or are not the stored ones.
    #[error(transparent)]
    BlockReadError(#[from] BlockReadError),
    /// The volume cannot be written, or is gone.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The blocks cannot be pinned for a view.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// A part of the request was done before this.
    #[error("done in part: {0}")]
    InPart(Box<Self>),
}

impl ExtentError {
    /// The error of a request with a part done before this one: errors for an undone request become `InPart`.
    pub(crate) fn after_part(self) -> Self {
        match self {
            // These errors promise that nothing was done.
            Self::NoSpace | Self::TooLarge | Self::Write(WriteError::ReadOnly { .. }) => {
                Self::InPart(Box::new(self))
            }
            error => error,
        }
    }
}

impl ChangeError for ExtentError {
    fn is_no_space(&self) -> bool {
        matches!(self, Self::NoSpace)
    }

    fn too_large() -> Self {
        Self::TooLarge
    }
}

/// Errors of reading a block.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlockReadError {
    /// Their memory is bad.
    #[error(transparent)]
    Memory(#[from] MediaError),
    /// They are not the stored bytes.
    #[error("the checksum of the block at {at} is wrong: expected {expected}, found {found:#010x}")]
    Checksum {
        /// The block.
        at: PoolOffset,
        /// The stored checksum.
        expected: Expected,
        /// The checksum of the bytes on the medium.
        found: u32,
    },
    /// The stored checksum cannot be read.
    #[error(transparent)]
    Map(#[from] Corrupt),
}

/// The checksum stored for a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expected(pub(crate) Option<u32>);

impl std::fmt::Display for Expected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(crc) => write!(f, "{crc:#010x}"),
            None => f.write_str("one, but none is stored"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_after_part_reports_partial_write() {
        let read_only = || WriteError::ReadOnly { reason: "damage".into() };
        for error in [ExtentError::NoSpace, ExtentError::TooLarge, read_only().into()] {
            let said = error.to_string();
            let after = error.after_part();
            assert!(matches!(after, ExtentError::InPart(_)), "{after}");
            assert_eq!(after.to_string(), format!("done in part: {said}"));
        }
        let gone = ExtentError::from(WriteError::Gone).after_part();
        assert!(matches!(gone, ExtentError::Write(WriteError::Gone)));
    }
}

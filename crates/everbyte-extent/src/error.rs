//! Why a request to an extent failed.

use everbyte_pool::{ChangeError, Corrupt, WriteError};

use crate::checksum::Unsound;

/// Why bytes of an extent could not be read or written.
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
    /// Bytes that are needed cannot be read, or are not what was stored.
    #[error(transparent)]
    Unsound(#[from] Unsound),
    /// The volume cannot be written, or is gone.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl ChangeError for ExtentError {
    fn is_no_space(&self) -> bool {
        matches!(self, Self::NoSpace)
    }

    fn too_large() -> Self {
        Self::TooLarge
    }
}

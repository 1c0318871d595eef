//! Lost stores of programs through mappings.
//!
//! If such stores could not be written, the kernel reports this to the next program that syncs or
//! closes the file, if there is one, and does not say whether it did. If the connection was
//! aborted, the kernel drops them without a report.

use std::fmt;
use std::sync::{Arc, OnceLock};

use everbyte_fs::{FsError, InodeNo};

/// The reason for lost stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Loss {
    /// They could not be written; those of this file first.
    Unwritten(InodeNo),
    /// The connection was aborted while the file system was mounted. The kernel does not report
    /// dropped data.
    Aborted,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unwritten(inode) => write!(
                f,
                "some bytes that programs stored through mappings could not be written, of {inode} first"
            ),
            Self::Aborted => f.write_str(
                "the mount was aborted, as by umount -f, while it was in place: bytes that programs stored \
                 through mappings may be lost",
            ),
        }
    }
}

/// The lost stores of a mount.
#[derive(Clone, Default, Debug)]
pub struct LostStores(Arc<OnceLock<Loss>>);

impl LostStores {
    /// The first loss, also during the end of the mount; `None` if no stores are lost.
    #[must_use]
    pub fn first(&self) -> Option<Loss> {
        self.0.get().copied()
    }

    /// Notes lost stores of `inode`.
    pub(crate) fn note(&self, inode: InodeNo, error: &FsError) {
        // One line for all: a program can have as many as it likes.
        if self.0.set(Loss::Unwritten(inode)).is_ok() {
            tracing::warn!(%inode, %error, "what programs stored through a mapping could not be written");
        }
    }

    /// Notes an abort of the connection.
    pub(crate) fn note_abort(&self) {
        let _ = self.0.set(Loss::Aborted);
        tracing::warn!("{}", Loss::Aborted);
    }
}

//! Stores of programs through mappings that could not be written when the kernel asked for it.
//!
//! The kernel tells whoever syncs or closes the file next, if anybody does, and does not say whether it has.

use std::sync::{Arc, OnceLock};

use everbyte_fs::{FsError, InodeNo};

/// The stores of a mount that are lost.
#[derive(Clone, Default, Debug)]
pub struct LostStores(Arc<OnceLock<InodeNo>>);

impl LostStores {
    /// The file of which stores were lost first, also during the end of the mount; `None` if none are lost.
    #[must_use]
    pub fn first(&self) -> Option<InodeNo> {
        self.0.get().copied()
    }

    /// Notes that some of `inode` are lost.
    pub(crate) fn note(&self, inode: InodeNo, error: &FsError) {
        // One line for all: a program can have as many as it likes.
        if self.0.set(inode).is_ok() {
            tracing::warn!(%inode, %error, "what programs stored through a mapping could not be written");
        }
    }
}

//! The root of a volume without a log: it is never changed in place, but replaced.
//!
//! The order: new root, root word, size word, each durable before the next. Blocks named only by the old root
//! are free for others once a replacement has returned, since the root word is durable.

use everbyte_media::{Medium, PoolOffset};

use super::{Volume, WriteError};
use crate::alloc::BlockRun;
use crate::format::{Entry, ROOT_AT, encode_word};
use crate::persist::{Dirty, InFlight};

impl<M: Medium> Volume<M> {
    /// Replaces the block run in the root word by `run`, filled with `contents`, and the volume's size by
    /// `size_bytes`, a multiple of 512; durably. For a kind without a log, by one thread at a time.
    ///
    /// # Errors
    /// The volume is gone or read-only, or has a log; the medium's: then either root may be the durable one,
    /// and no block named by one of them may be given to others.
    pub fn replace_root(
        &self,
        run: BlockRun,
        contents: &[u8],
        size_bytes: u64,
    ) -> Result<(), WriteError> {
        self.check_unlogged()?;
        let medium = self.medium();
        // Durable before the root word names it: either root left by a crash is whole.
        InFlight::stream(medium, run.start.offset(), contents).fence(medium)?;
        self.store_durably(self.header_at.plus(ROOT_AT), Entry::data(run.start).encode())?;
        // Repeats a part of the root: after a crash in between, the next opening corrects it.
        self.store_durably(self.size_at(), encode_word(size_bytes / 512))
    }

    /// Sets the size word to the root's size, durably.
    ///
    /// # Errors
    /// As [`Volume::replace_root`].
    pub fn correct_size(&self, size_bytes: u64) -> Result<(), WriteError> {
        self.check_unlogged()?;
        self.store_durably(self.size_at(), encode_word(size_bytes / 512))
    }

    fn check_unlogged(&self) -> Result<(), WriteError> {
        if self.is_gone() {
            return Err(WriteError::Gone);
        }
        if let Some(reason) = self.read_only_reason() {
            return Err(WriteError::ReadOnly { reason: reason.to_owned() });
        }
        if self.descriptor().has_log() {
            return Err(WriteError::HasLog);
        }
        Ok(())
    }

    fn store_durably(&self, at: PoolOffset, word: u64) -> Result<(), WriteError> {
        let mut dirty = Dirty::default();
        dirty.store_word(self.medium(), at, word);
        dirty.flush(self.medium()).fence(self.medium())?;
        Ok(())
    }
}

//! Reading words that name blocks.

use everbyte_media::{Medium, PoolOffset};
use everbyte_pool::format::Entry;
use everbyte_pool::{Corrupt, DataArea, check_readable};

/// Reads structures of a file system, and believes none that leads outside the pool's data.
pub(crate) struct Reader<'m, M: Medium> {
    pub(crate) medium: &'m M,
    /// Blocks that a word may name.
    pub(crate) data: &'m DataArea,
}

impl<M: Medium> Clone for Reader<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Medium> Copy for Reader<'_, M> {}

impl<'m, M: Medium> Reader<'m, M> {
    /// For a pool on `medium` of which words may name the blocks of `data`.
    pub(crate) fn new(medium: &'m M, data: &'m DataArea) -> Self {
        Self { medium, data }
    }

    /// The entry in the word at `at`, which is part of `structure`.
    ///
    /// # Errors
    /// It cannot be read or be an entry, or names a block that no volume can have.
    #[inline]
    pub(crate) fn entry(&self, structure: &str, at: PoolOffset) -> Result<Option<Entry>, Corrupt> {
        self.decode(structure, self.medium.load_word(at), at)
    }

    /// The same of a word that was read at `at`.
    ///
    /// # Errors
    /// As [`Reader::entry`].
    #[inline]
    pub(crate) fn decode(
        &self,
        structure: &str,
        word: u64,
        at: PoolOffset,
    ) -> Result<Option<Entry>, Corrupt> {
        check_readable(self.medium, structure, at, 8)?;
        let wrong = |what: &str| Corrupt::new(structure, at, what);
        let entry = Entry::decode(word).map_err(wrong)?;
        if entry.is_some_and(|entry| !self.data.contains(entry.block)) {
            return Err(wrong("it names a block outside the pool's data"));
        }
        Ok(entry)
    }
}

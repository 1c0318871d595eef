//! Words that name blocks.

use everbyte_media::{Medium, PoolOffset};
use everbyte_pool::format::Entry;
use everbyte_pool::{Corrupt, DataArea, check_readable};

/// A reader of structures of a file system. It rejects a word that names a block outside the pool's data.
pub(crate) struct Reader<'m, M: Medium> {
    pub(crate) medium: &'m M,
    /// Valid block numbers of a word.
    pub(crate) data: &'m DataArea,
}

impl<M: Medium> Clone for Reader<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Medium> Copy for Reader<'_, M> {}

impl<'m, M: Medium> Reader<'m, M> {
    /// A reader for a pool on `medium` with valid blocks `data`.
    pub(crate) fn new(medium: &'m M, data: &'m DataArea) -> Self {
        Self { medium, data }
    }

    /// The entry in the word at `at`, part of `structure`.
    ///
    /// # Errors
    /// It cannot be read, is not an entry, or names an invalid block.
    #[inline]
    pub(crate) fn entry(&self, structure: &str, at: PoolOffset) -> Result<Option<Entry>, Corrupt> {
        self.decode(structure, self.medium.load_word(at), at)
    }

    /// As [`Reader::entry`], for a word read at `at`.
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

//! Times of the last access.
//!
//! A read does not change the time. The caller notes the access after the read, which usually costs one look
//! at the inode.

use everbyte_media::Medium;

use crate::error::FsError;
use crate::format::file_flags::FileFlags;
use crate::format::number::InodeNo;
use crate::format::{Field, InodeWords, decode_time};
use crate::fs::{FileSystem, now};
use crate::inode::edits::Edits;

/// Age at which [`AccessTimes::Relative`] changes the time again.
const DAY_NS: i128 = 24 * 60 * 60 * 1_000_000_000;

/// The accesses that change the time of the last access.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AccessTimes {
    /// The first access after a change of the file, and one per day.
    #[default]
    Relative,
    /// No access.
    Never,
    /// Each access.
    Strict,
}

impl AccessTimes {
    fn changes(self, words: &InodeWords, now: i128) -> bool {
        if words.flags().has(FileFlags::NO_ATIME) {
            return false;
        }
        let accessed = words.time(Field::Accessed);
        match self {
            Self::Never => false,
            Self::Strict => accessed < now,
            Self::Relative => {
                let changed = words.time(Field::Modified).max(words.time(Field::Changed));
                accessed <= changed || now - accessed >= DAY_NS
            }
        }
    }
}

impl<M: Medium> FileSystem<M> {
    /// Notes a read of `inode`: bytes, names or a target. Takes no lock for writing and stores nothing,
    /// unless `times` requires a change of the time.
    ///
    /// # Errors
    /// `Stale`, or the volume's: the time stays unchanged.
    pub fn note_access(&self, inode: InodeNo, times: AccessTimes) -> Result<(), FsError> {
        if times == AccessTimes::Never {
            return Ok(());
        }
        let word = now();
        let now = decode_time(word).unwrap_or(0);
        {
            // First for reading: in most calls the time stays, and readers must not exclude each
            // other.
            let _lock = self.locks.read(inode);
            if !times.changes(&self.load_inode(inode)?.1, now) {
                return Ok(());
            }
        }
        let _op = self.volume().begin_op();
        let _locks = self.locks.write(&[inode]);
        self.volume().change(|batch, _| {
            let mut edits = Edits::new(&self.tables);
            let words = &mut edits.get(self.reader(), inode)?.words;
            // Another reader may have set the time between the two locks.
            if times.changes(words, now) {
                words.set(Field::Accessed, word);
            }
            edits.plan(batch);
            Ok::<(), FsError>(())
        })?;
        Ok(())
    }
}

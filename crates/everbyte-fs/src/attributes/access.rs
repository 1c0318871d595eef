//! Times of the last access.
//!
//! Reading changes nothing by itself. Whoever reads for somebody to whom that time matters says so
//! afterwards, which as a rule costs a look at the inode.

use everbyte_media::Medium;

use crate::error::FsError;
use crate::format::file_flags::FileFlags;
use crate::format::number::InodeNo;
use crate::format::{Field, InodeWords, decode_time};
use crate::fs::{FileSystem, now};
use crate::inode::edits::Edits;

/// Nanoseconds after which [`AccessTimes::Relative`] changes the time again.
const DAY_NS: i128 = 24 * 60 * 60 * 1_000_000_000;

/// Which accesses change the time of the last one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AccessTimes {
    /// The first after a change of the file, and one a day: enough to see whether it was read since.
    #[default]
    Relative,
    /// None.
    Never,
    /// All.
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
    /// Notes that somebody has read `inode`: bytes, names or a target. Takes no lock for writing, and
    /// stores nothing, unless `times` asks for the time to be changed.
    ///
    /// # Errors
    /// `Stale`, or the volume's: the time stays what it was.
    pub fn note_access(&self, inode: InodeNo, times: AccessTimes) -> Result<(), FsError> {
        if times == AccessTimes::Never {
            return Ok(());
        }
        let word = now();
        let now = decode_time(word).unwrap_or(0);
        {
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
            if times.changes(words, now) {
                words.set(Field::Accessed, word);
            }
            edits.plan(batch);
            Ok::<(), FsError>(())
        })?;
        Ok(())
    }
}

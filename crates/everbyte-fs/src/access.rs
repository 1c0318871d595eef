//! Times of the last access.
//!
//! Reading changes nothing by itself. Whoever reads for somebody to whom that time matters says so
//! afterwards, which as a rule costs a look at the inode.

use everbyte_media::Medium;

use crate::edits::Edits;
use crate::error::FsError;
use crate::format::{Field, InodeWords};
use crate::fs::{FileSystem, now};
use crate::number::InodeNo;

/// Nanoseconds after which [`AccessTimes::Relative`] changes the time again.
const DAY_NS: u64 = 24 * 60 * 60 * 1_000_000_000;

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
    fn changes(self, words: &InodeWords, now: u64) -> bool {
        let accessed = words.get(Field::Accessed);
        match self {
            Self::Never => false,
            Self::Strict => accessed < now,
            Self::Relative => {
                let changed = words.get(Field::Modified).max(words.get(Field::Changed));
                accessed <= changed || now.saturating_sub(accessed) >= DAY_NS
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
        let now = now();
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
                words.set(Field::Accessed, now);
            }
            edits.plan(batch);
            Ok::<(), FsError>(())
        })?;
        Ok(())
    }
}

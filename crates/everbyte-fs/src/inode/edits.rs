//! Changes of inodes in a planned operation. An operation reads each inode once, changes the words in DRAM,
//! and plans the changed words at the end.
//!
//! Invariant: the caller holds the locks of the inodes for writing.

use everbyte_media::{Medium, PoolOffset};
use everbyte_plant::planted;
use everbyte_pool::{Batch, Corrupt};
use smallvec::SmallVec;

use crate::dentry::cache::Dentry;
use crate::error::FsError;
use crate::format::number::{FileType, InodeNo};
use crate::format::reader::Reader;
use crate::format::{Difference, Field, InodeWords};
use crate::inode::tables::InodeTables;
use crate::plant::Bug;

/// An inode of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edit {
    pub(crate) number: InodeNo,
    /// Its address.
    pub(crate) at: PoolOffset,
    old: InodeWords,
    /// Its words after the operation.
    pub(crate) words: InodeWords,
    /// True if the operation changes more than the words show.
    changes_beyond_words: bool,
}

impl Edit {
    /// An unchanged inode.
    pub(crate) fn new(number: InodeNo, at: PoolOffset, words: InodeWords) -> Self {
        Self { number, at, old: words, words, changes_beyond_words: false }
    }

    /// Sets these times to `now`, because bytes, entries or a name of the inode change. Also marks the inode
    /// as changed: a coarse clock may give the time of the previous change.
    pub(crate) fn stamp(&mut self, now: u64, times: &[Field]) {
        self.words.stamp(now, times);
        self.changes_beyond_words = true;
    }

    /// Discards the changes, because the operation frees the inode.
    pub(crate) fn leave(&mut self) {
        self.words = self.old;
    }
}

/// The inodes of an operation.
pub(crate) struct Edits<'t, M: Medium> {
    tables: &'t InodeTables<M>,
    edits: SmallVec<[Edit; 4]>,
}

impl<'t, M: Medium> Edits<'t, M> {
    pub(crate) fn new(tables: &'t InodeTables<M>) -> Self {
        Self { tables, edits: SmallVec::new() }
    }

    /// The inode `number`, for a change.
    ///
    /// # Errors
    /// `Stale` if there is no such inode; a damaged inode.
    pub(crate) fn get(
        &mut self,
        reader: Reader<'_, M>,
        number: InodeNo,
    ) -> Result<&mut Edit, FsError> {
        let place = self.edits.iter().position(|edit| edit.number == number);
        let place = match place {
            Some(place) => place,
            None => {
                // Read in place: a copy of the words costs as much as their check.
                let place = self.edits.len();
                self.edits.push(Edit::new(number, PoolOffset(0), InodeWords::EMPTY));
                let edit = &mut self.edits[place];
                let found = self.tables.load_into(reader, number, &mut edit.words);
                match found.map_err(FsError::from).and_then(|at| at.ok_or(FsError::Stale(number))) {
                    Ok(at) => (edit.at, edit.old) = (at, edit.words),
                    Err(error) => {
                        // An inode that failed its check must not be planned.
                        self.edits.pop();
                        return Err(error);
                    }
                }
                place
            }
        };
        Ok(&mut self.edits[place])
    }

    /// Checks the inode below a name in the directory `parent`: it has the type of the entry and at least one
    /// name, and a directory has the parent `parent`. A directory has one name and is freed without it. A
    /// second name would then lead to nothing, or to another file.
    ///
    /// # Errors
    /// As [`Edits::get`]; the inode fails a check.
    pub(crate) fn check_named(
        &mut self,
        reader: Reader<'_, M>,
        parent: InodeNo,
        named: Dentry,
    ) -> Result<(), FsError> {
        let Dentry { inode, kind: named_kind } = named;
        let edit = self.get(reader, inode)?;
        let kind = edit.words.file_type();
        let what = if kind != named_kind {
            format!("a name of a {named_kind:?} leads to {inode}, which is a {kind:?}")
        } else if edit.words.links() == 0 {
            format!("a name leads to {inode}, which says that it has none")
        } else if kind == FileType::Directory && inode == parent {
            format!("a name leads to {inode}, which is this directory itself")
        } else if kind == FileType::Directory && edit.words.get(Field::Special) != parent.0 {
            let has_it = InodeNo(edit.words.get(Field::Special));
            format!("a name leads to {inode}, whose parent is {has_it}")
        } else {
            return Ok(());
        };
        Err(Corrupt::new(format!("directory of {parent}"), edit.at, what).into())
    }

    /// Plans every change.
    pub(crate) fn plan(mut self, batch: &mut Batch<'_, '_, M>) {
        for edit in &mut self.edits {
            let epoch = batch.writer().epoch();
            if edit.changes_beyond_words {
                self.tables.note_change(edit.number, epoch, Difference::Times);
            }
            // Unchanged words need no record and no checksum.
            if edit.words == edit.old {
                continue;
            }
            let difference = edit.words.difference(&edit.old);
            self.tables.note_change(edit.number, epoch, difference);
            edit.words.seal();
            for (place, old, new) in edit.words.changes(&edit.old) {
                let at = edit.at.plus(8 * place as u64);
                if planted(Bug::LinksUnlogged) && place == Field::ModeLinks as usize {
                    batch.fill_word(at, new);
                    continue;
                }
                // An edit is planned once per batch, so the old word is the one on the medium.
                batch.change_word_once(at, old, new);
            }
        }
    }
}

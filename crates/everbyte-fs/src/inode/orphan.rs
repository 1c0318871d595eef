//! The end of files: what becomes of an inode that has lost its last name.
//!
//! One that somebody has open, or that has more blocks than are given up in one batch, is an orphan: in
//! use without a name. Opening the file system frees those that a crash left.

use everbyte_media::Medium;
use everbyte_plant::planted;
use everbyte_pool::Batch;

use crate::error::FsError;
use crate::format::Field;
use crate::format::number::{FileType, InodeNo};
use crate::fs::FileSystem;
use crate::inode::blocks::{give_all, visit_blocks};
use crate::inode::edits::{Edit, Edits};
use crate::inode::tables::SlotState;
use crate::plant::Bug;

/// Most blocks that are given up in one batch: 256 MiB.
const BLOCKS_AT_ONCE: u64 = 1 << 16;

/// The state of an inode that has lost a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UnlinkState {
    /// It has others.
    Linked,
    /// It is free.
    Freed(InodeNo),
    /// It is an orphan, because somebody has it open.
    Open(InodeNo),
    /// It is an orphan, because it is large.
    Large(InodeNo),
}

impl<M: Medium> FileSystem<M> {
    /// Plans that an inode has one name less, of a directory the only one. The caller holds its lock.
    pub(crate) fn plan_unlink<'t>(
        &'t self,
        batch: &mut Batch<'t, '_, M>,
        edit: &mut Edit,
        now: u64,
    ) -> Result<UnlinkState, FsError> {
        edit.words.set(Field::Changed, now);
        let is_directory = edit.words.file_type() == FileType::Directory;
        let links = if is_directory { 0 } else { edit.words.links().saturating_sub(1) };
        edit.words.set_links(links);
        if is_directory && !planted(Bug::AbsentNamesOfDirectoryKept) {
            self.dentries.forget_absent();
        }
        if links > 0 {
            return Ok(UnlinkState::Linked);
        }
        let number = edit.number;
        if self.files.is_open(number) && !planted(Bug::OpenFileFreed) {
            if planted(Bug::OrphanNotListed) {
                return Ok(UnlinkState::Open(number));
            }
            self.tables.plan_orphan(batch, number, true)?;
            return Ok(UnlinkState::Open(number));
        }
        if edit.words.get(Field::Blocks) > BLOCKS_AT_ONCE {
            self.tables.plan_orphan(batch, number, true)?;
            return Ok(UnlinkState::Large(number));
        }
        self.plan_give_blocks(batch, edit)?;
        self.tables.plan_free(batch, number)?;
        edit.leave();
        Ok(UnlinkState::Freed(number))
    }

    /// Does in DRAM what a batch of `epoch` did to an inode that lost a name, and frees a large one, or leaves that if it
    /// cannot be right: the name has gone all the same.
    ///
    /// # Errors
    /// The volume's: the inode is an orphan then, and is freed when the file system is opened.
    pub(crate) fn finish_unlink(&self, unnamed: UnlinkState, epoch: u64) -> Result<(), FsError> {
        match unnamed {
            UnlinkState::Linked => Ok(()),
            UnlinkState::Open(number) => {
                self.files.note_nameless(number);
                Ok(())
            }
            UnlinkState::Freed(number) => {
                let forgotten = self.files.forget(number);
                self.tables.freed(number, epoch);
                // Only now: who waits for its space, or its inode, looks for it then.
                forgotten.into_iter().for_each(|file| self.files.count_off(&file));
                Ok(())
            }
            UnlinkState::Large(number) => self.or_leave(number, self.reclaim_locked(number)),
        }
    }

    /// Frees an orphan that nobody has open, or leaves it if it cannot be right: that is no reason to keep anybody from
    /// other files.
    ///
    /// # Errors
    /// The volume's.
    pub(crate) fn reclaim_or_leave(&self, number: InodeNo) -> Result<(), FsError> {
        self.or_leave(number, self.reclaim(number))
    }

    fn or_leave(&self, number: InodeNo, reclaimed: Result<(), FsError>) -> Result<(), FsError> {
        match reclaimed {
            Err(FsError::Corrupt(corrupt)) => {
                let volume = self.volume().name();
                tracing::warn!(volume, %corrupt, "{number} has no name, and cannot be freed");
                Ok(())
            }
            reclaimed => reclaimed,
        }
    }

    /// Frees an orphan that nobody has open.
    ///
    /// # Errors
    /// The volume's, or the inode cannot be right.
    pub(crate) fn reclaim(&self, number: InodeNo) -> Result<(), FsError> {
        let _op = self.volume().begin_op();
        let _locks = self.locks.write(&[number]);
        self.reclaim_locked(number)
    }

    fn reclaim_locked(&self, number: InodeNo) -> Result<(), FsError> {
        let (at, words) = self.load_inode(number)?;
        // Of a file with names a bit that has flipped may say that it has none, and so may a crafted inode.
        SlotState::Orphan.check_names(number, at, &words)?;
        self.tables.state_of(self.reader(), number)?.check_names(number, at, &words)?;
        let is_large = words.get(Field::Blocks) > BLOCKS_AT_ONCE;
        if is_large && words.file_type() == FileType::Regular {
            let size = words.get(Field::Size);
            let file = self.files.get(number, at, size);
            self.unmap_leaves(number, &file, (0, size))?;
        }
        let epoch = self.volume().change(|batch, _| {
            let mut edits = Edits::new(&self.tables);
            let edit = edits.get(self.reader(), number)?;
            self.plan_give_blocks(batch, edit)?;
            self.tables.plan_free(batch, number)?;
            Ok::<(), FsError>(())
        })?;
        self.finish_unlink(UnlinkState::Freed(number), epoch)
    }

    /// Plans to give up every block of an inode; the words that name them stay as they are.
    pub(crate) fn plan_give_blocks(
        &self,
        batch: &mut Batch<'_, '_, M>,
        edit: &Edit,
    ) -> Result<(), FsError> {
        // Most files that come and go have none.
        if [Field::Blocks, Field::Root, Field::Attributes].iter().all(|&of| edit.words.get(of) == 0)
        {
            return Ok(());
        }
        let hash_key = self.superblock.hash_key;
        let of = (self.reader(), edit.number);
        give_all(batch, of, |give| visit_blocks(self.reader(), edit, hash_key, give))?;
        Ok(())
    }
}

//! Inodes without a name.
//!
//! An inode without a name is an orphan while it is open, or while it has more blocks than one batch frees.
//! Opening the file system frees the orphans of a crash.

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

/// Blocks that one batch frees at most: 256 MiB.
const BLOCKS_AT_ONCE: u64 = 1 << 16;

/// The state of an inode after the removal of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UnlinkState {
    /// It has other names.
    Linked,
    /// It is free.
    Freed(InodeNo),
    /// It is an orphan because it is open.
    Open(InodeNo),
    /// It is an orphan because it is large.
    Large(InodeNo),
}

impl<M: Medium> FileSystem<M> {
    /// Plans the removal of a name of an inode, for a directory of its only name. The caller holds the
    /// inode's lock.
    pub(crate) fn plan_unlink<'t>(
        &'t self,
        batch: &mut Batch<'t, '_, M>,
        edit: &mut Edit,
        now: u64,
    ) -> Result<UnlinkState, FsError> {
        edit.words.set(Field::Changed, now);
        let is_directory = edit.words.file_type() == FileType::Directory;
        // An empty directory loses `.` with its only name.
        let links = if is_directory { 0 } else { edit.words.links().saturating_sub(1) };
        edit.words.set_links(links);
        if is_directory {
            // The number may be reused for another directory, and cached absent names would hide
            // its files.
            self.dentries.forget_absent();
        }
        if links > 0 {
            return Ok(UnlinkState::Linked);
        }
        let number = edit.number;
        if self.files.is_open(number) {
            if planted(Bug::OrphanNotListed) {
                return Ok(UnlinkState::Open(number));
            }
            self.tables.plan_orphan(batch, number, true)?;
            return Ok(UnlinkState::Open(number));
        }
        // The frees of one batch stay in DRAM until its epoch is durable. Larger files go in parts
        // afterwards.
        if edit.words.get(Field::Blocks) > BLOCKS_AT_ONCE {
            self.tables.plan_orphan(batch, number, true)?;
            return Ok(UnlinkState::Large(number));
        }
        self.plan_give_blocks(batch, edit)?;
        self.tables.plan_free(batch, number)?;
        edit.leave();
        Ok(UnlinkState::Freed(number))
    }

    /// Updates DRAM after a batch of `epoch` removed a name of an inode. Frees a large inode, or keeps it if
    /// it is damaged: the removal of the name stands.
    ///
    /// # Errors
    /// The volume's: the inode stays an orphan, and the next opening frees it.
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
                // After the free: a thread that waits for space or an inode looks for it now.
                forgotten.into_iter().for_each(|file| self.files.count_off(&file));
                Ok(())
            }
            UnlinkState::Large(number) => self.or_leave(number, self.reclaim_locked(number)),
        }
    }

    /// Frees an orphan that is not open. Logs and keeps a damaged one, so other files stay usable.
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

    /// Frees an orphan that is not open.
    ///
    /// # Errors
    /// The volume's, or the inode is damaged.
    pub(crate) fn reclaim(&self, number: InodeNo) -> Result<(), FsError> {
        let _op = self.volume().begin_op();
        let _locks = self.locks.write(&[number]);
        self.reclaim_locked(number)
    }

    fn reclaim_locked(&self, number: InodeNo) -> Result<(), FsError> {
        let (at, words) = self.load_inode(number)?;
        // A flipped bit or a crafted inode may claim that a file with names has none.
        SlotState::Orphan.check_names(number, at, &words)?;
        self.tables.state_of(self.reader(), number)?.check_names(number, at, &words)?;
        let is_large = words.get(Field::Blocks) > BLOCKS_AT_ONCE;
        if is_large && words.file_type() == FileType::Regular {
            let size = words.get(Field::Size);
            let file = self.files.get(number, at, size);
            self.unmap_leaves(number, &file, (0, size))?;
        }
        // A large file loses its leaves before, in batches of limited size.
        let epoch = self.volume().change(|batch, _| {
            let mut edits = Edits::new(&self.tables);
            let edit = edits.get(self.reader(), number)?;
            self.plan_give_blocks(batch, edit)?;
            self.tables.plan_free(batch, number)?;
            Ok::<(), FsError>(())
        })?;
        self.finish_unlink(UnlinkState::Freed(number), epoch)
    }

    /// Plans to free every block of an inode. The words that name them stay unchanged.
    pub(crate) fn plan_give_blocks(
        &self,
        batch: &mut Batch<'_, '_, M>,
        edit: &Edit,
    ) -> Result<(), FsError> {
        // Most short-lived files have no blocks.
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

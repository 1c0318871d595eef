//! Removal of names with a damaged file or a damaged entry.
//!
//! Invariants: readable names stay, except the requested one. An inode is freed only if it is readable and
//! reports no other name. A map may no longer name all blocks of a freed inode. A check of the pool reports
//! such blocks, and a repair frees them.

use everbyte_media::Medium;
use everbyte_pool::{Batch, Corrupt};

use crate::attributes::protection::check_unrestricted;
use crate::dentry::file_name::Name;
use crate::dir::{Dir, FoundEntry};
use crate::error::FsError;
use crate::format::Field;
use crate::format::number::{FileType, InodeNo};
use crate::fs::{FileSystem, now};
use crate::inode::blocks::visit_blocks;
use crate::inode::edits::Edits;
use crate::inode::orphan::UnlinkState;
use crate::namespace::entries::note_entries;

/// Leftovers of the removal of a damaged entry, or of an entry with a damaged file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Leak {
    /// Nothing is left: other names lead to the file, or none does.
    None,
    /// Blocks of a file with a freed inode, at most so many.
    Blocks(u64),
    /// The unreadable inode of the name, and its blocks.
    Inode(InodeNo),
    /// Blocks of a directory with a freed inode, at most so many, and the files of its names.
    Directory(u64),
    /// Number of unreadable entries. Their files are also left if they have no other name.
    Entries(u64),
}

impl<M: Medium> FileSystem<M> {
    /// Removes `name` from the directory `parent` although its file or its entry is damaged. Removes all
    /// unreadable entries that can have the name. Returns the leftovers.
    ///
    /// # Errors
    /// `NotFound`; `Immutable` or `AppendOnly`, the flag of the directory or of a readable file; `NotEmpty`
    /// for a directory with readable entries; `Invalid` without damage; an unreadable structure with the
    /// name; the volume's.
    pub fn remove_damaged(&self, parent: InodeNo, name: Name<'_>) -> Result<Leak, FsError> {
        match self.find_name(parent, name) {
            Ok(Some(target)) => self.drop_name(parent, name, target),
            Ok(None) => Err(FsError::NotFound),
            Err(FsError::Corrupt(corrupt)) => self.drop_entries(parent, name, &corrupt),
            Err(error) => Err(error),
        }
    }

    fn drop_name(&self, parent: InodeNo, name: Name<'_>, target: InodeNo) -> Result<Leak, FsError> {
        let _op = self.volume().begin_op();
        let _locks = self.locks.write(&[parent, target]);
        self.dentries.forget(parent, name);
        let (mut leak, mut unnamed) = (Leak::None, UnlinkState::Linked);
        let epoch = self.volume().change(|batch, _| {
            let mut edits = Edits::new(&self.tables);
            let dir = self.dir_of(edits.get(self.reader(), parent)?)?;
            let found = dir.find(name)?.filter(|found| found.inode == target);
            // Another file got the name in between.
            let found = found.ok_or(FsError::Stale(target))?;
            // The flag of the parent forbids removals, also of damaged names.
            check_unrestricted(&edits.get(self.reader(), parent)?.words)?;
            let (now, is_directory) = (now(), found.kind == FileType::Directory);
            (leak, unnamed) = self.plan_drop(batch, &mut edits, parent, &found)?;
            dir.plan_remove(batch, &found);
            let edit = edits.get(self.reader(), parent)?;
            note_entries(edit, -1, 0, now);
            if is_directory {
                edit.words.set_links(edit.words.links().saturating_sub(1));
            }
            edits.plan(batch);
            Ok::<(), FsError>(())
        })?;
        self.dentries.note(parent, name, None);
        self.dentries.forget_absent();
        self.finish_unlink(unnamed, epoch).map(|()| leak)
    }

    /// Plans the end of the file of `found` in the directory `parent`, as far as it is readable.
    fn plan_drop<'t>(
        &'t self,
        batch: &mut Batch<'t, '_, M>,
        edits: &mut Edits<'t, M>,
        parent: InodeNo,
        found: &FoundEntry,
    ) -> Result<(Leak, UnlinkState), FsError> {
        let target = found.inode;
        // Not an error here: a wrong name is the damage to remove.
        let named = edits.check_named(self.reader(), parent, found.dentry());
        let edit = match edits.get(self.reader(), target) {
            // It can have other names.
            Err(FsError::Corrupt(_)) => return Ok((Leak::Inode(target), UnlinkState::Linked)),
            Err(FsError::Stale(_)) => return Ok((Leak::None, UnlinkState::Linked)),
            edit => edit?,
        };
        if named.is_err() {
            // The file belongs to another name.
            return Ok((Leak::None, UnlinkState::Linked));
        }
        check_unrestricted(&edit.words)?;
        let is_directory = found.kind == FileType::Directory;
        let hash_key = self.superblock.hash_key;
        let mut is_damaged = visit_blocks(self.reader(), edit, hash_key, &mut |_| Ok(())).is_err();
        if is_directory {
            let (entries, damage) = read_entries(&self.dir_of(edit)?);
            if entries.count > 0 {
                return Err(FsError::NotEmpty);
            }
            is_damaged |= damage || edit.words.get(Field::Size) > 0;
        }
        if !is_damaged {
            // A sound file is removed by the ordinary call, which frees its blocks.
            return Err(FsError::Invalid { what: "the file is not damaged" });
        }
        let blocks = edit.words.get(Field::Blocks);
        edit.stamp(now(), &[Field::Changed]);
        let links = if is_directory { 0 } else { edit.words.links().saturating_sub(1) };
        edit.words.set_links(links);
        if links > 0 {
            return Ok((Leak::None, UnlinkState::Linked));
        }
        let leak = if is_directory { Leak::Directory(blocks) } else { Leak::Blocks(blocks) };
        if self.files.is_open(target) {
            // An open file keeps its inode until the last close.
            self.tables.plan_orphan(batch, target, true)?;
            return Ok((leak, UnlinkState::Open(target)));
        }
        // Without its blocks: a damaged map may name blocks of other files, and a repair finds the
        // leaked ones.
        self.tables.plan_free(batch, target)?;
        edit.leave();
        Ok((leak, UnlinkState::Freed(target)))
    }

    /// Removes the unreadable entries of the directory `parent` that can have `name`.
    fn drop_entries(
        &self,
        parent: InodeNo,
        name: Name<'_>,
        corrupt: &Corrupt,
    ) -> Result<Leak, FsError> {
        let _op = self.volume().begin_op();
        let _locks = self.locks.write(&[parent]);
        self.dentries.forget(parent, name);
        let mut dropped = 0;
        self.volume().change(|batch, _| {
            let mut edits = Edits::new(&self.tables);
            let edit = edits.get(self.reader(), parent)?;
            check_unrestricted(&edit.words)?;
            let dir = self.dir_of(edit)?;
            if dir.find(name).is_ok() {
                // Another thread has removed the entry.
                return Err(FsError::NotFound);
            }
            let lost = dir.lost_slots(name);
            if lost.is_empty() {
                return Err(corrupt.clone().into());
            }
            dropped = lost.len() as u64;
            lost.into_iter().for_each(|slot_at| dir.plan_empty(batch, slot_at));
            // Recounts, because the entry can have been a directory's.
            let (entries, _) = read_entries(&dir);
            edit.stamp(now(), &[Field::Modified, Field::Changed]);
            edit.words.set(Field::Size, entries.count);
            edit.words.set_links(u32::try_from(entries.directories).unwrap_or(u32::MAX - 2) + 2);
            edits.plan(batch);
            Ok::<(), FsError>(())
        })?;
        self.dentries.forget_absent();
        Ok(Leak::Entries(dropped))
    }
}

/// Readable entries of a directory.
#[derive(Clone, Copy, Default)]
struct Entries {
    count: u64,
    directories: u64,
}

/// Counts the readable entries of a directory. Returns true in addition if other parts are damaged.
fn read_entries<M: Medium>(dir: &Dir<'_, M>) -> (Entries, bool) {
    let (mut entries, mut is_damaged, mut next) = (Entries::default(), false, Some(0));
    while let Some(from) = next {
        let mut damage = Vec::new();
        let (listed, after) = dir.salvage_from(from, &mut damage);
        is_damaged |= !damage.is_empty();
        entries.count += listed.len() as u64;
        let directories = listed.iter().filter(|one| one.entry.kind == FileType::Directory);
        entries.directories += directories.count() as u64;
        // A damaged bucket can lead back.
        next = after.filter(|&after| after > from);
    }
    (entries, is_damaged)
}

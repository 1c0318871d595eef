//! Removal of names whose files, or whose own entries, are damaged.
//!
//! Invariants: nothing that can be read is lost but the name that was asked for; an inode is free for another file only if
//! it can be read, and says that no other name leads to it. Blocks of a freed inode that its map does not name any more
//! belong to nobody: a check of the pool reports them, and a repair frees them.

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
    /// Nothing: other names lead to the file, or none does.
    None,
    /// The blocks of a file whose inode is free, at most so many.
    Blocks(u64),
    /// The inode of the name, which cannot be read, and its blocks.
    Inode(InodeNo),
    /// A directory whose inode is free, at most so many blocks, and the files whose names it had.
    Directory(u64),
    /// So many entries that cannot be read: their names, and the files if those have no other name.
    Entries(u64),
}

impl<M: Medium> FileSystem<M> {
    /// Removes `name` from the directory `parent` although its file, or its entry, is damaged. All entries go that cannot
    /// be read and may have the name. Returns what is left behind.
    ///
    /// # Errors
    /// `NotFound`; `Immutable` or `AppendOnly`, the flag of the directory or of a file that can be read; `NotEmpty` for a directory with entries that can be read; `Invalid` if nothing is damaged; a structure
    /// that has the name cannot be read; the volume's.
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
            // Another file has got the name just now.
            let found = found.ok_or(FsError::Stale(target))?;
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

    /// Plans the end of the file that `found` in the directory `parent` leads to, as far as that can be read.
    fn plan_drop<'t>(
        &'t self,
        batch: &mut Batch<'t, '_, M>,
        edits: &mut Edits<'t, M>,
        parent: InodeNo,
        found: &FoundEntry,
    ) -> Result<(Leak, UnlinkState), FsError> {
        let target = found.inode;
        let named = edits.check_named(self.reader(), parent, found.dentry());
        let edit = match edits.get(self.reader(), target) {
            // It may have other names.
            Err(FsError::Corrupt(_)) => return Ok((Leak::Inode(target), UnlinkState::Linked)),
            Err(FsError::Stale(_)) => return Ok((Leak::None, UnlinkState::Linked)),
            edit => edit?,
        };
        if named.is_err() {
            // The file is another one's.
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
            self.tables.plan_orphan(batch, target, true)?;
            return Ok((leak, UnlinkState::Open(target)));
        }
        self.tables.plan_free(batch, target)?;
        edit.leave();
        Ok((leak, UnlinkState::Freed(target)))
    }

    /// Removes the entries of the directory `parent` that cannot be read and may have `name`.
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
                // Another thread has done it.
                return Err(FsError::NotFound);
            }
            let lost = dir.lost_slots(name);
            if lost.is_empty() {
                return Err(corrupt.clone().into());
            }
            dropped = lost.len() as u64;
            lost.into_iter().for_each(|slot_at| dir.plan_empty(batch, slot_at));
            // The entry may have been a directory's, so what is left is counted.
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

/// Entries of a directory that can be read.
#[derive(Clone, Copy, Default)]
struct Entries {
    count: u64,
    directories: u64,
}

/// Counts the entries of a directory that can be read, and says whether there is damage besides.
fn read_entries<M: Medium>(dir: &Dir<'_, M>) -> (Entries, bool) {
    let (mut entries, mut is_damaged, mut next) = (Entries::default(), false, Some(0));
    while let Some(from) = next {
        let mut damage = Vec::new();
        let (listed, after) = dir.salvage_from(from, &mut damage);
        is_damaged |= !damage.is_empty();
        entries.count += listed.len() as u64;
        let directories = listed.iter().filter(|one| one.entry.kind == FileType::Directory);
        entries.directories += directories.count() as u64;
        next = after.filter(|&after| after > from);
    }
    (entries, is_damaged)
}

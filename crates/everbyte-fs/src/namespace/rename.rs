//! Renaming.

use everbyte_media::Medium;
use everbyte_pool::{Batch, Corrupt, check_readable};

use crate::attributes::protection::{check_mutable, check_unrestricted};
use crate::dentry::cache::Dentry;
use crate::dentry::file_name::Name;
use crate::dir::FoundEntry;
use crate::error::FsError;
use crate::format::Field;
use crate::format::number::{FileType, InodeNo};
use crate::fs::{FileSystem, now};
use crate::inode::edits::Edits;
use crate::inode::orphan::UnlinkState;
use crate::namespace::entries::{NewInode, check_links, note_entries};

/// The effect on a file that already has the new name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RenameMode {
    /// It loses the name.
    Replace,
    /// The renaming fails.
    NoReplace,
    /// It gets the old name.
    Exchange,
    /// A character device 0/0 of this user and group, without permissions, gets the old name. Union file
    /// systems hide a file of another layer with it.
    Whiteout {
        /// The device's user.
        uid: u32,
        /// The device's group, unless the directory gives its own.
        gid: u32,
        /// True if the file with the new name loses it. Otherwise the renaming fails.
        replaces: bool,
    },
}

impl RenameMode {
    /// Returns true if the new name must be free.
    fn needs_free_name(self) -> bool {
        // The kernel combines the two flags, so a whiteout can refuse an existing name.
        matches!(self, Self::NoReplace | Self::Whiteout { replaces: false, .. })
    }

    /// Returns true if a file has the old name afterwards.
    fn keeps_old_name(self) -> bool {
        matches!(self, Self::Exchange | Self::Whiteout { .. })
    }

    /// The device that gets the old name.
    fn whiteout(self) -> Option<NewInode<'static>> {
        let Self::Whiteout { uid, gid, .. } = self else { return None };
        let kind = FileType::CharDevice;
        Some(NewInode { kind, permissions: 0, umask: 0, uid, gid, device: 0, target: &[] })
    }
}

/// A name in a directory.
#[derive(Clone, Copy, Debug)]
struct Place<'n> {
    parent: InodeNo,
    name: Name<'n>,
}

/// The result of a renaming attempt.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    /// No effect: both names are of one file.
    SameFile,
    /// No effect: the names are of these files (the second one if present), and some of their locks are not
    /// held.
    Others((InodeNo, Option<InodeNo>)),
    /// The file has its new name. The state is of the file that lost this name.
    Renamed(Dentry, UnlinkState),
}

impl<M: Medium> FileSystem<M> {
    /// Renames the file `name` in `parent` to `new_name` in `new_parent`, atomically.
    ///
    /// # Errors
    /// `NotFound`; `Exists` with `NoReplace`; `Immutable` or `AppendOnly` (a file or a directory);
    /// `IsDirectory`, `NotDirectory` or `NotEmpty` if the file with the new name cannot be replaced;
    /// `Invalid` if a directory would become its own ancestor; `TooManyLinks`, `NoInodes`, `NoSpace`, or the
    /// volume's.
    pub fn rename(
        &self,
        from: (InodeNo, Name<'_>),
        to: (InodeNo, Name<'_>),
        mode: RenameMode,
    ) -> Result<(), FsError> {
        self.rename_files(from, to, mode).map(drop)
    }

    /// As [`FileSystem::rename`]. Returns the file and the previous file of the new name, for callers with
    /// state of them: other files may have the names before or after.
    ///
    /// # Errors
    /// As [`FileSystem::rename`].
    pub fn rename_files(
        &self,
        (parent, name): (InodeNo, Name<'_>),
        (new_parent, new_name): (InodeNo, Name<'_>),
        mode: RenameMode,
    ) -> Result<(InodeNo, Option<InodeNo>), FsError> {
        let (from, to) = (Place { parent, name }, Place { parent: new_parent, name: new_name });
        // Taken before the volume's gate, by the lock order. A move within a directory creates no cycle.
        let _renames = (parent != new_parent).then(|| self.renames.lock());
        let mut source = self.find_name(parent, name)?.ok_or(FsError::NotFound)?;
        // A hint only: the check under the locks finds a wrong one.
        let mut target = self.dentries.get(new_parent, new_name).flatten().map(|known| known.inode);
        loop {
            let _op = self.volume().begin_op();
            let _locks = self.locks.write(&[parent, new_parent, source, target.unwrap_or(source)]);
            // Before the change: a concurrent lookup must not see the old entry after the answer.
            self.dentries.forget(parent, name);
            let is_absent = self.dentries.forget(new_parent, new_name);
            // Allocated outside of the batch, because it can add a table in another batch.
            let whiteout = mode.whiteout().map(|new| (self.tables.take(self.volume()), new));
            let mut outcome = Outcome::SameFile;
            let epoch = self.volume().change(|batch, _| {
                if let (Some(replaced), Some((Ok(taken), _))) = (target, &whiteout) {
                    // Both tables at once in a fixed order. Two renamings could otherwise wait for each
                    // other.
                    self.tables.hold_tables(batch, [replaced, taken.number]);
                }
                let mut edits = Edits::new(&self.tables);
                let named = (target, is_absent);
                outcome = self.plan_rename(batch, &mut edits, (from, source), (to, named), mode)?;
                if let (Outcome::Renamed(..), Some((taken, new))) = (outcome, &whiteout) {
                    // Other errors are reported before a lack of space.
                    let taken = taken.as_ref().map_err(FsError::clone)?;
                    let edit = edits.get(self.reader(), parent)?;
                    self.plan_file(batch, edit, name, (taken, new))?;
                }
                edits.plan(batch);
                Ok::<(), FsError>(())
            })?;
            match outcome {
                // Another thread changed the names, so the locks of the new files are needed.
                Outcome::Others(found) => (source, target) = found,
                Outcome::SameFile => return Ok((source, target)),
                Outcome::Renamed(moved, unnamed) => {
                    // With a whiteout or an exchange the old name stays forgotten. The next lookup
                    // reads it.
                    if !mode.keeps_old_name() {
                        self.dentries.note(parent, name, None);
                    }
                    self.dentries.note(new_parent, new_name, Some(moved));
                    if let Some((Ok(taken), _)) = whiteout {
                        // After the batch: a failed or repeated attempt frees the reserved inode by
                        // its drop.
                        taken.keep();
                    }
                    return self.finish_unlink(unnamed, epoch).map(|()| (source, target));
                }
            }
        }
    }

    /// Plans a renaming, if the names lead to `source` and `target`.
    fn plan_rename<'t>(
        &'t self,
        batch: &mut Batch<'t, '_, M>,
        edits: &mut Edits<'_, M>,
        (from, source): (Place<'_>, InodeNo),
        (to, (target, is_absent)): (Place<'_>, (Option<InodeNo>, bool)),
        mode: RenameMode,
    ) -> Result<Outcome, FsError> {
        let reader = self.reader();
        let from_dir = self.dir_of(edits.get(reader, from.parent)?)?;
        let to_dir = self.dir_of(edits.get(reader, to.parent)?)?;
        // The names are read again under the locks: they may lead to other files now.
        let found = from_dir.find(from.name)?.ok_or(FsError::NotFound)?;
        let replaced = self.find_unless(is_absent, &to_dir, to.name)?;
        let named = replaced.as_ref().map(|found| found.inode);
        if found.inode != source || named != target {
            return Ok(Outcome::Others((found.inode, named)));
        }
        self.check_both(edits, (from, &found), (to, replaced.as_ref()), mode)?;
        if from.parent != to.parent {
            self.check_ancestors(&found, to.parent)?;
        }
        // POSIX: two names of one file stay as they are.
        if target == Some(source) {
            return Ok(Outcome::SameFile);
        }
        self.check_flags(edits, (from.parent, source), (to.parent, target))?;
        if let (Some(replaced), false) = (&replaced, mode == RenameMode::Exchange) {
            self.check_replaced(edits, &found, replaced)?;
        }
        let before = batch.savepoint();
        // Before the insertion: it may split the bucket and so move the entry.
        from_dir.plan_remove(batch, &found);
        if let Some(replaced) = &replaced {
            to_dir.plan_remove(batch, replaced);
        }
        to_dir.plan_insert(batch, to.name, source, found.kind)?;
        let blocks = batch.allocated_since(before);
        let now = now();
        note_entries(edits.get(reader, to.parent)?, 1, blocks, now);
        note_entries(edits.get(reader, from.parent)?, -1, 0, now);
        self.note_moved(edits, &found, (from.parent, to.parent), now)?;
        let mut unnamed = UnlinkState::Linked;
        match (replaced, mode) {
            (Some(replaced), RenameMode::Exchange) => {
                if from.parent != to.parent {
                    // In an exchange both files move, so both can become their own ancestors.
                    self.check_ancestors(&replaced, from.parent)?;
                }
                let before = batch.savepoint();
                from_dir.plan_insert(batch, from.name, replaced.inode, replaced.kind)?;
                let blocks = batch.allocated_since(before);
                note_entries(edits.get(reader, from.parent)?, 1, blocks, now);
                note_entries(edits.get(reader, to.parent)?, -1, 0, now);
                self.note_moved(edits, &replaced, (to.parent, from.parent), now)?;
            }
            (Some(replaced), _) => {
                unnamed = self.plan_replaced(batch, edits, &replaced, (to.parent, now))?;
            }
            (None, _) => {}
        }
        // Last, because a directory may have one link more in between than before and after.
        if from.parent != to.parent {
            for parent in [from.parent, to.parent] {
                check_links(edits.get(reader, parent)?.words.links())?;
            }
        }
        Ok(Outcome::Renamed(Dentry { inode: source, kind: found.kind }, unnamed))
    }

    /// Checks that the files with the old and the new name have the types of their entries, and that `mode`
    /// allows the pair.
    fn check_both(
        &self,
        edits: &mut Edits<'_, M>,
        (from, found): (Place<'_>, &FoundEntry),
        (to, replaced): (Place<'_>, Option<&FoundEntry>),
        mode: RenameMode,
    ) -> Result<(), FsError> {
        if mode.needs_free_name() && replaced.is_some() {
            return Err(FsError::Exists);
        }
        if mode == RenameMode::Exchange && replaced.is_none() {
            return Err(FsError::NotFound);
        }
        edits.check_named(self.reader(), from.parent, found.dentry())?;
        replaced.map_or(Ok(()), |replaced| {
            edits.check_named(self.reader(), to.parent, replaced.dentry())
        })
    }

    /// Checks that the flags of these directories and files allow the removal of a name from the one, and a
    /// new or replaced name in the other.
    fn check_flags(
        &self,
        edits: &mut Edits<'_, M>,
        (from, source): (InodeNo, InodeNo),
        (to, target): (InodeNo, Option<InodeNo>),
    ) -> Result<(), FsError> {
        let mut unrestricted = |inode| check_unrestricted(&edits.get(self.reader(), inode)?.words);
        unrestricted(from)?;
        unrestricted(source)?;
        match target {
            // A replaced name is also a removed one, which an append-only directory forbids.
            Some(target) => unrestricted(to).and_then(|()| unrestricted(target)),
            None => check_mutable(&edits.get(self.reader(), to)?.words),
        }
    }

    /// Plans the removal of the new name from its previous file.
    fn plan_replaced<'t>(
        &'t self,
        batch: &mut Batch<'t, '_, M>,
        edits: &mut Edits<'_, M>,
        replaced: &FoundEntry,
        (parent, now): (InodeNo, u64),
    ) -> Result<UnlinkState, FsError> {
        let reader = self.reader();
        let is_directory = replaced.kind == FileType::Directory;
        note_entries(edits.get(reader, parent)?, -1, 0, now);
        if is_directory {
            let words = &mut edits.get(reader, parent)?.words;
            words.set_links(words.links().saturating_sub(1));
        }
        let edit = edits.get(reader, replaced.inode)?;
        self.plan_unlink(batch, edit, now)
    }

    /// Checks that the file with the new name can lose it to `source`. Before any change is planned: the
    /// renamed directory may be its only entry.
    fn check_replaced(
        &self,
        edits: &mut Edits<'_, M>,
        source: &FoundEntry,
        replaced: &FoundEntry,
    ) -> Result<(), FsError> {
        match (source.kind == FileType::Directory, replaced.kind == FileType::Directory) {
            (true, false) => return Err(FsError::NotDirectory),
            (false, true) => return Err(FsError::IsDirectory),
            (false, false) => return Ok(()),
            (true, true) => {}
        }
        let words = &edits.get(self.reader(), replaced.inode)?.words;
        if words.get(Field::Size) > 0 { Err(FsError::NotEmpty) } else { Ok(()) }
    }

    /// Updates the parent in the inode of the moved file and the link counts of both parents. The caller
    /// checks the limit of links.
    fn note_moved(
        &self,
        edits: &mut Edits<'_, M>,
        moved: &FoundEntry,
        (from, to): (InodeNo, InodeNo),
        now: u64,
    ) -> Result<(), FsError> {
        let reader = self.reader();
        let edit = edits.get(reader, moved.inode)?;
        // Linux changes this time as well, although only a name has changed.
        edit.stamp(now, &[Field::Changed]);
        if moved.kind != FileType::Directory || from == to {
            return Ok(());
        }
        edit.words.set(Field::Special, to.0);
        let words = &mut edits.get(reader, from)?.words;
        words.set_links(words.links().saturating_sub(1));
        let words = &mut edits.get(reader, to)?.words;
        words.set_links(words.links().saturating_add(1));
        Ok(())
    }

    /// Checks that the `moved` directory is not an ancestor of `parent`, another directory than its own. The
    /// caller excludes other moves between directories, so parents stay unchanged. They change by single
    /// words.
    fn check_ancestors(&self, moved: &FoundEntry, parent: InodeNo) -> Result<(), FsError> {
        let mut at = parent;
        // Cycle detection by a marker that advances by doubled distances (Brent, "An improved Monte Carlo
        // factorization algorithm", BIT 1980).
        let (mut before, mut steps_left, mut steps) = (None, 0_u64, 1_u64);
        loop {
            if at == moved.inode {
                // The moved directory would become unreachable from the root.
                return Err(FsError::Invalid { what: "a directory would be within itself" });
            }
            if moved.kind != FileType::Directory || at == self.root() {
                return Ok(());
            }
            let inode_at = self.find_inode(at)?;
            if before == Some(at) {
                return Err(Corrupt::new(at.to_string(), inode_at, "it is its own ancestor").into());
            }
            if steps_left == 0 {
                // The marker jumps here, so a cycle of any length is met in linear time.
                (before, steps_left, steps) = (Some(at), steps, 2 * steps);
            }
            steps_left -= 1;
            let parent_at = Field::Special.at(inode_at);
            let word = self.medium().load_word(parent_at);
            // A poisoned word reads as zeroes, which would lead to the wrong inode.
            check_readable(self.medium(), "inode", parent_at, 8)?;
            at = InodeNo(word);
        }
    }
}

//! Names in directories: lookup, creation, links and removal.

use everbyte_media::{BLOCK, Medium, PoolOffset};
use everbyte_plant::planted;
use everbyte_pool::format::Entry;
use everbyte_pool::{Batch, Corrupt};

use crate::attributes::acl::apply;
use crate::attributes::protection::{check_mutable, check_unrestricted};
use crate::attributes::stat::Attr;
use crate::dentry::cache::Dentry;
use crate::dentry::file_name::Name;
use crate::dir::{Dir, FoundEntry};
use crate::error::FsError;
use crate::format::file_flags::FileFlags;
use crate::format::number::{FileType, InodeNo, SET_GROUP_ID};
use crate::format::{Field, INLINE_TARGET_MAX, INODE_AREA_AT, InodeImage, InodeWords};
use crate::fs::{FileSystem, now};
use crate::inode::blocks::has_long_target;
use crate::inode::edits::{Edit, Edits};
use crate::inode::inode_ref::InodeRef;
use crate::inode::orphan::UnlinkState;
use crate::inode::tables::AllocatedInode;
use crate::plant::Bug;

/// Limit of names of a file.
pub(crate) const LINKS_MAX: u32 = 65_000;
/// Longest target of a symbolic link in bytes.
const TARGET_BYTES_MAX: usize = 4095;

/// Settings of a new file.
#[derive(Clone, Copy, Debug)]
pub struct NewInode<'a> {
    /// Its type.
    pub kind: FileType,
    /// Permissions, set-user-id, set-group-id and sticky bits.
    pub permissions: u32,
    /// Permissions to remove, unless the directory has a default access control list.
    pub umask: u32,
    /// Its user.
    pub uid: u32,
    /// Its group, unless the directory gives its own.
    pub gid: u32,
    /// Device number of a device file.
    pub device: u64,
    /// Target of a symbolic link, 1 to 4095 bytes.
    pub target: &'a [u8],
}

/// Number of names of a new file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Names {
    None,
    One,
}

/// The type of file for a removal of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Removal {
    File,
    Directory,
}

impl<M: Medium> FileSystem<M> {
    /// The directory with this inode.
    ///
    /// # Errors
    /// `NotDirectory`; `NotFound` if it was removed.
    pub(crate) fn dir(
        &self,
        number: InodeNo,
        at: PoolOffset,
        words: &InodeWords,
    ) -> Result<Dir<'_, M>, FsError> {
        if words.file_type() != FileType::Directory {
            return Err(FsError::NotDirectory);
        }
        // A removed directory stays loadable while it is open.
        if words.links() == 0 {
            return Err(FsError::NotFound);
        }
        let (root_at, hash_key) = (Field::Root.at(at), self.superblock.hash_key);
        Ok(Dir::new(self.reader(), number, root_at, hash_key).knowing(&self.free_units))
    }

    pub(crate) fn dir_of(&self, edit: &Edit) -> Result<Dir<'_, M>, FsError> {
        self.dir(edit.number, edit.at, &edit.words)
    }

    /// The file named `name` in the directory `parent`.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `Stale`, or a damaged structure.
    pub fn lookup(&self, parent: InodeNo, name: Name<'_>) -> Result<Attr, FsError> {
        // Both parts run without a common lock, so the file can be removed in between. `find_and`
        // repeats then.
        let find = || Ok(self.find_entry(parent, name)?.map(|found| (parent, found)));
        self.find_and(find, |_, found| self.attr_of(found))?.ok_or(FsError::NotFound)
    }

    /// The number of the inode named `name` in `parent`.
    pub(crate) fn find_name(
        &self,
        parent: InodeNo,
        name: Name<'_>,
    ) -> Result<Option<InodeNo>, FsError> {
        Ok(self.find_entry(parent, name)?.map(|found| found.inode))
    }

    /// The entry of `name` in `parent` at this moment.
    pub(crate) fn find_entry(
        &self,
        parent: InodeNo,
        name: Name<'_>,
    ) -> Result<Option<Dentry>, FsError> {
        if let Some(known) = self.dentries.get(parent, name) {
            return Ok(known);
        }
        let lock = self.locks.read(parent);
        let (at, words) = self.load_inode(parent)?;
        let found = self.dir(parent, at, &words)?.find(name)?.map(|found| found.dentry());
        if planted(Bug::DentryNotedLate) {
            drop(lock);
            self.dentries.note(parent, name, found);
            return Ok(found);
        }
        // Under the lock: a later note could overwrite the note of a change.
        self.dentries.note(parent, name, found);
        Ok(found)
    }

    /// The entry of `name` in `dir`, unless the dentry cache knows the name to be absent. The caller holds
    /// the lock of `dir` for writing.
    pub(crate) fn find_unless(
        &self,
        is_absent: bool,
        dir: &Dir<'_, M>,
        name: Name<'_>,
    ) -> Result<Option<FoundEntry>, FsError> {
        if is_absent { Ok(None) } else { Ok(dir.find(name)?) }
    }

    /// The parent of the directory `inode`; the root is its own parent.
    ///
    /// # Errors
    /// `NotDirectory`, `Stale`, or a damaged inode.
    pub fn parent(&self, inode: InodeNo) -> Result<InodeNo, FsError> {
        let _lock = self.locks.read(inode);
        let (at, words) = self.load_inode(inode)?;
        // The word of the parent is the device number in inodes of other types.
        self.dir(inode, at, &words)?;
        Ok(InodeNo(words.get(Field::Special)))
    }

    /// Creates a file named `name` in `parent`.
    ///
    /// # Errors
    /// `Exists`, `NotFound` if the directory was removed, `NotDirectory`, `Immutable`, `NoInodes`, `NoSpace`,
    /// `NameTooLong` or `Invalid` for the target of a link, or the volume's.
    pub fn create_inode(
        &self,
        parent: InodeNo,
        name: Name<'_>,
        new: &NewInode<'_>,
    ) -> Result<Attr, FsError> {
        if new.kind == FileType::Symlink && new.target.is_empty() {
            return Err(FsError::Invalid { what: "a link leads somewhere" });
        }
        // The long target and its final NUL must fit in one block, as in the kernel.
        if new.target.len() > TARGET_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        let _op = self.volume().begin_op();
        let _locks = self.locks.write(&[parent]);
        // A known absent name spares the search of the directory.
        let is_absent = self.dentries.forget(parent, name);
        let taken = match self.tables.take(self.volume()) {
            // An existing name is reported before a lack of space.
            Err(error @ (FsError::NoSpace | FsError::NoInodes { .. })) => {
                self.check_absent(parent, name)?;
                return Err(error);
            }
            taken => taken?,
        };
        let mut attr = None;
        self.volume().change(|batch, _| {
            let mut edits = Edits::new(&self.tables);
            let edit = edits.get(self.reader(), parent)?;
            if self.find_unless(is_absent, &self.dir_of(edit)?, name)?.is_some() {
                return Err(FsError::Exists);
            }
            // After the search: an existing name is reported even in an immutable directory, as on
            // Linux.
            check_mutable(&edit.words)?;
            let words = self.plan_file(batch, edit, name, (&taken, new))?;
            edits.plan(batch);
            attr = Some(Attr::of(&words));
            Ok(())
        })?;
        // Still under the lock of the directory, so no other change of the name comes before the
        // note.
        self.dentries.note(parent, name, Some(Dentry { inode: taken.number, kind: new.kind }));
        // Only now: after an error the drop frees the inode again.
        taken.keep();
        Ok(attr.expect("a change that was made was planned"))
    }

    /// Checks that the directory `parent` has no such name. The caller holds its lock.
    fn check_absent(&self, parent: InodeNo, name: Name<'_>) -> Result<(), FsError> {
        let (at, words) = self.load_inode(parent)?;
        match self.dir(parent, at, &words)?.find(name)? {
            Some(_) => Err(FsError::Exists),
            None => Ok(()),
        }
    }

    /// Plans a new file with the unused name `name` in the directory `parent`.
    pub(crate) fn plan_file<'t>(
        &'t self,
        batch: &mut Batch<'t, '_, M>,
        parent: &mut Edit,
        name: Name<'_>,
        (taken, new): (&AllocatedInode<'_, M>, &NewInode<'_>),
    ) -> Result<InodeWords, FsError> {
        let (words, image) = self.plan_inode(batch, parent, (taken, new), Names::One)?;
        let before = batch.savepoint();
        self.dir_of(parent)?.plan_insert(batch, name, taken.number, new.kind)?;
        // After the entry, because its plan takes locks: a locked instruction waits for streamed stores.
        self.stream_inode(batch, taken.at, &image);
        note_entries(parent, 1, batch.allocated_since(before), words.get(Field::Created));
        if new.kind == FileType::Directory {
            parent.words.set_links(one_more(parent.words.links())?);
        }
        Ok(words)
    }

    /// Plans the inode of a new file in the directory `parent`. Returns the image for
    /// [`FileSystem::stream_inode`].
    pub(crate) fn plan_inode<'t>(
        &'t self,
        batch: &mut Batch<'t, '_, M>,
        parent: &Edit,
        (taken, new): (&AllocatedInode<'_, M>, &NewInode<'_>),
        names: Names,
    ) -> Result<(InodeWords, InodeImage), FsError> {
        // As on Linux, a set-group-id directory gives its group to new files, and the bit to new directories.
        let gives_group = parent.words.mode() & SET_GROUP_ID != 0;
        let is_directory = new.kind == FileType::Directory;
        let set_group_id = if gives_group && is_directory { SET_GROUP_ID } else { 0 };
        let wanted = (new.kind, new.permissions, new.umask);
        let inherited = apply::inherited(self.reader(), parent, wanted)?;
        // A slot is filled at most once in an epoch, so the epoch is a new generation of its number.
        let mut words = InodeWords::new(taken.number, batch.writer().epoch());
        words.set_type(new.kind, inherited.permissions | set_group_id);
        // A directory has its name and its own `.`.
        words.set_links(match names {
            Names::None => 0,
            Names::One if is_directory => 2,
            Names::One => 1,
        });
        words.set_owner(new.uid, if gives_group { parent.words.gid() } else { new.gid });
        words.set_flags(parent.words.flags().common(FileFlags::INHERITED));
        words.set(Field::Special, if is_directory { parent.number.0 } else { new.device });
        words.stamp(now(), &[Field::Accessed, Field::Modified, Field::Changed, Field::Created]);
        let before = batch.savepoint();
        words.set(Field::Attributes, inherited.attributes.plan_block(batch)?);
        let mut area = [0; INLINE_TARGET_MAX];
        if new.kind == FileType::Symlink {
            words.set(Field::Size, new.target.len() as u64);
            // The checksum of the inode covers its words only, and the target lies outside of them.
            words.set(Field::TargetChecksum, u64::from(crc32c::crc32c(new.target)));
            if has_long_target(&words) {
                let block = batch.alloc().ok_or(FsError::NoSpace)?;
                let mut image = [0; BLOCK];
                image[..new.target.len()].copy_from_slice(new.target);
                batch.stream(block.offset(), &image);
                area[..8].copy_from_slice(&Entry::data(block).encode().to_le_bytes());
            } else {
                area[..new.target.len()].copy_from_slice(new.target);
            }
        }
        words.set(Field::Blocks, batch.allocated_since(before).unsigned_abs());
        // Last, because the checksum is one of the words.
        words.seal();
        // A crash frees orphans, so a file without a name leaks nothing.
        let is_listed = names == Names::None;
        self.tables.plan_use(batch, taken.number, is_listed)?;
        Ok((words, words.image(&area)))
    }

    /// Streams the image of a planned inode.
    pub(crate) fn stream_inode(
        &self,
        batch: &mut Batch<'_, '_, M>,
        at: PoolOffset,
        image: &InodeImage,
    ) {
        // The inode's lines need no undo record: nothing durable names the inode.
        batch.claim_lines(at, image.len());
        if planted(Bug::NameBeforeInode) {
            self.medium().store(at, image);
        } else {
            batch.stream(at, image);
        }
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// `Invalid` for another type; a target that cannot be read or is damaged.
    pub fn read_link(&self, inode: InodeNo) -> Result<Vec<u8>, FsError> {
        let _lock = self.locks.read(inode);
        let (at, words) = self.load_inode(inode)?;
        if words.file_type() != FileType::Symlink {
            return Err(FsError::Invalid { what: "it is not a symbolic link" });
        }
        let wrong = |what: &str| Corrupt::new(format!("{inode}"), at, what);
        let len = usize::try_from(words.get(Field::Size)).unwrap_or(usize::MAX);
        if len > TARGET_BYTES_MAX {
            return Err(wrong("its target is longer than there can be").into());
        }
        let area = at.plus(INODE_AREA_AT);
        let target_at = if has_long_target(&words) {
            let entry = self.reader().entry("target of a link", area)?;
            entry.ok_or_else(|| wrong("it names no block of its target"))?.block.offset()
        } else {
            area
        };
        let mut target = vec![0; len];
        self.medium().read(target_at, &mut target);
        // After the read: poison is detected by the access itself.
        everbyte_pool::check_readable(self.medium(), "target of a link", target_at, len as u64)?;
        if u64::from(crc32c::crc32c(&target)) != words.get(Field::TargetChecksum) {
            return Err(wrong("the checksum of its target is wrong").into());
        }
        Ok(target)
    }

    /// Gives `inode`, not a directory, another name. A file of [`FileSystem::create_unnamed`] gets its first
    /// name.
    ///
    /// # Errors
    /// The first of: `NotDirectory`, and `NotFound` if the directory was removed; `Exists`; `NotPermitted`
    /// for a directory; `NotFound` if the file has lost its last name; `TooManyLinks`; `NoSpace`; the
    /// volume's.
    pub fn link(&self, inode: InodeNo, parent: InodeNo, name: Name<'_>) -> Result<Attr, FsError> {
        let _op = self.volume().begin_op();
        let _locks = self.locks.write(&[parent, inode]);
        let is_absent = self.dentries.forget(parent, name);
        let mut attr = None;
        self.volume().change(|batch, _| {
            let mut edits = Edits::new(&self.tables);
            let dir = self.dir_of(edits.get(self.reader(), parent)?)?;
            if self.find_unless(is_absent, &dir, name)?.is_some() {
                return Err(FsError::Exists);
            }
            check_mutable(&edits.get(self.reader(), parent)?.words)?;
            let words = &mut edits.get(self.reader(), inode)?.words;
            check_unrestricted(words)?;
            let kind = words.file_type();
            match (kind, words.links()) {
                (FileType::Directory, _) => return Err(FsError::NotPermitted),
                // A file that has lost its last name may be half freed. Only one made without a
                // name can get one.
                (_, 0) if !self.files.may_be_named(inode) => return Err(FsError::NotFound),
                (_, links) => words.set_links(one_more(links)?),
            }
            // The first name of a file without a name ends its orphan state, in the same batch.
            if words.links() == 1 {
                self.tables.plan_orphan(batch, inode, false)?;
            }
            let now = now();
            words.set(Field::Changed, now);
            attr = Some(Attr::of(words));
            let before = batch.savepoint();
            dir.plan_insert(batch, name, inode, kind)?;
            let blocks = batch.allocated_since(before);
            note_entries(edits.get(self.reader(), parent)?, 1, blocks, now);
            edits.plan(batch);
            Ok(())
        })?;
        // After the batch: a failed link leaves the file without a name.
        self.files.note_named(inode);
        let attr: Attr = attr.expect("a change that was made was planned");
        self.dentries.note(parent, name, Some(Dentry { inode, kind: attr.kind }));
        Ok(attr)
    }

    /// Removes a name of a file, not of a directory. Frees the file if it has no other name and is not open.
    ///
    /// # Errors
    /// `NotFound`, `Immutable` or `AppendOnly` (the file or its directory), `NotDirectory`, `IsDirectory`, or
    /// the volume's.
    pub fn unlink(&self, parent: InodeNo, name: Name<'_>) -> Result<(), FsError> {
        self.unlink_file(parent, name).map(drop)
    }

    /// As [`FileSystem::unlink`]. Returns the file, for callers with state of the file: another file may have
    /// the name before or after.
    ///
    /// # Errors
    /// As [`FileSystem::unlink`].
    pub fn unlink_file(&self, parent: InodeNo, name: Name<'_>) -> Result<InodeNo, FsError> {
        self.remove(parent, name, Removal::File)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NotEmpty`, or the volume's.
    pub fn remove_directory(&self, parent: InodeNo, name: Name<'_>) -> Result<(), FsError> {
        self.remove(parent, name, Removal::Directory).map(drop)
    }

    fn remove(&self, parent: InodeNo, name: Name<'_>, what: Removal) -> Result<InodeNo, FsError> {
        loop {
            // Without a lock: all inode locks are taken in one call, which needs the number of the
            // target.
            let target = self.find_name(parent, name)?.ok_or(FsError::NotFound)?;
            let _op = self.volume().begin_op();
            let _locks = self.locks.write(&[parent, target]);
            self.dentries.forget(parent, name);
            let mut outcome = None;
            let epoch = self.volume().change(|batch, _| {
                outcome = self.plan_remove(batch, (parent, name), target, what)?;
                Ok::<(), FsError>(())
            })?;
            if let Some(unnamed) = outcome {
                // Under the lock of the directory: a later creation of the name must not be overwritten.
                self.dentries.note(parent, name, None);
                // The locks are held to here, so no thread opens the file between its removal and
                // its free.
                return self.finish_unlink(unnamed, epoch).map(|()| target);
            }
        }
    }

    /// Plans the removal of `name` from `parent`, if it still names `target`.
    fn plan_remove<'t>(
        &'t self,
        batch: &mut Batch<'t, '_, M>,
        (parent, name): (InodeNo, Name<'_>),
        target: InodeNo,
        what: Removal,
    ) -> Result<Option<UnlinkState>, FsError> {
        let now = now();
        let mut edits = Edits::new(&self.tables);
        let dir = self.dir_of(edits.get(self.reader(), parent)?)?;
        let found = dir.find(name)?;
        // Another thread may have replaced the file since the lookup without the lock.
        let Some(found) = found.filter(|found| found.inode == target) else { return Ok(None) };
        let is_directory = found.kind == FileType::Directory;
        // A flipped word could otherwise free a file that other names lead to.
        edits.check_named(self.reader(), parent, found.dentry())?;
        for inode in [parent, target] {
            check_unrestricted(&edits.get(self.reader(), inode)?.words)?;
        }
        match what {
            Removal::File if is_directory => return Err(FsError::IsDirectory),
            Removal::Directory if !is_directory => return Err(FsError::NotDirectory),
            _ => {}
        }
        dir.plan_remove(batch, &found);
        let edit = edits.get(self.reader(), parent)?;
        note_entries(edit, -1, 0, now);
        if is_directory {
            edit.words.set_links(edit.words.links().saturating_sub(1));
        }
        let edit = edits.get(self.reader(), target)?;
        // After an error the plan is dropped, so this check may follow the planned removal.
        if is_directory && edit.words.get(Field::Size) > 0 {
            return Err(FsError::NotEmpty);
        }
        let unnamed = self.plan_unlink(batch, edit, now)?;
        edits.plan(batch);
        Ok(Some(unnamed))
    }

    /// Counts an open of `inode`. Its bytes stay until the last close, even without a name.
    ///
    /// # Errors
    /// `Stale`, or a damaged inode.
    pub fn open_inode(&self, inode: InodeNo) -> Result<Attr, FsError> {
        self.open_found(InodeRef::any(inode))
    }

    /// As [`FileSystem::open_inode`], for a file that was `found`.
    pub(crate) fn open_found(&self, found: InodeRef) -> Result<Attr, FsError> {
        let _lock = self.locks.read(found.inode);
        let (at, words) = self.load_ref(found)?;
        // Under the lock that a removal holds for writing: the removal sees the open, or this sees
        // no inode.
        self.files.open(found.inode, at, &words);
        Ok(Attr::of(&words))
    }

    /// Closes a file opened by [`FileSystem::open_inode`]. The last close frees a file without a name.
    ///
    /// # Errors
    /// The volume's: then the next opening of the file system frees a file without a name.
    pub fn close_inode(&self, inode: InodeNo) -> Result<(), FsError> {
        let _op = self.volume().begin_op();
        let _locks = self.locks.write(&[inode]);
        // Other opens remain, so the file stays.
        let Some(file) = self.files.close(inode) else { return Ok(()) };
        // The count of names decides, not the orphan bit: both change in one batch under this lock.
        let freed = self.load_inode(inode).and_then(|(_, words)| match words.links() {
            0 => self.finish_unlink(UnlinkState::Large(inode), 0),
            _ => Ok(()),
        });
        // After a failure too: threads stop waiting for its space. The number may already be reused.
        self.files.count_off(&file);
        freed
    }
}

/// Checks a link count against the limit.
pub(crate) fn check_links(links: u32) -> Result<(), FsError> {
    if links <= LINKS_MAX { Ok(()) } else { Err(FsError::TooManyLinks) }
}

/// One more than `links`.
fn one_more(links: u32) -> Result<u32, FsError> {
    let more = links.saturating_add(1);
    check_links(more).map(|()| more)
}

/// Adds `entries` and `blocks` to the counts in a directory's inode.
pub(crate) fn note_entries(edit: &mut Edit, entries: i64, blocks: i64, now: u64) {
    let words = &mut edit.words;
    words.set(Field::Size, words.get(Field::Size).saturating_add_signed(entries));
    words.set(Field::Blocks, words.get(Field::Blocks).saturating_add_signed(blocks));
    edit.stamp(now, &[Field::Modified, Field::Changed]);
}

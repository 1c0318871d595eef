//! Attributes of files, and their changes.

use everbyte_media::Medium;

use crate::attributes::acl::apply::plan_permissions;
use crate::attributes::protection::{check_mutable, check_unrestricted};
use crate::error::FsError;
use crate::format::file_flags::FileFlags;
use crate::format::number::{FileType, InodeNo};
use crate::format::{Field, InodeWords, encode_time};
use crate::fs::{FileSystem, now};
use crate::inode::edits::Edits;
use crate::inode::inode_ref::InodeRef;

/// The attributes of a file. Times are nanoseconds since 1970 within [`TIME_RANGE_NS`](crate::TIME_RANGE_NS).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    /// Its number.
    pub inode: InodeNo,
    /// Distinguishes the file from earlier files with the same number.
    pub generation: u64,
    /// Its type.
    pub kind: FileType,
    /// Permissions, set-user-id, set-group-id and sticky bits.
    pub permissions: u32,
    /// Names of the file. A directory has two and its number of subdirectories.
    pub links: u32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Size in bytes; of a directory the number of its entries.
    pub size: u64,
    /// Blocks of 4096 bytes that it takes.
    pub blocks: u64,
    /// The device number of a device file.
    pub device: u64,
    /// Flags that `chattr` sets.
    pub flags: FileFlags,
    /// True if the file has extended attributes.
    pub has_attributes: bool,
    /// Last access.
    pub accessed_ns: i128,
    /// Last change of its bytes.
    pub modified_ns: i128,
    /// Last change of the inode.
    pub changed_ns: i128,
    /// Creation.
    pub created_ns: i128,
}

impl Attr {
    pub(crate) fn of(words: &InodeWords) -> Self {
        let kind = words.file_type();
        let is_device = matches!(kind, FileType::CharDevice | FileType::BlockDevice);
        Self {
            inode: InodeNo(words.get(Field::Number)),
            generation: words.get(Field::Generation),
            kind,
            permissions: words.mode() & crate::format::number::MODE_PERMISSIONS,
            links: words.links(),
            uid: words.uid(),
            gid: words.gid(),
            size: words.get(Field::Size),
            blocks: words.get(Field::Blocks),
            device: if is_device { words.get(Field::Special) } else { 0 },
            flags: words.flags(),
            has_attributes: words.get(Field::Attributes) != 0,
            accessed_ns: words.time(Field::Accessed),
            modified_ns: words.time(Field::Modified),
            changed_ns: words.time(Field::Changed),
            created_ns: words.time(Field::Created),
        }
    }
}

/// A new time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// The present.
    Now,
    /// Nanoseconds since 1970, within [`TIME_RANGE_NS`](crate::TIME_RANGE_NS).
    At(i128),
}

/// New attributes; `None` keeps an attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    /// Permissions, set-user-id, set-group-id and sticky bits.
    pub permissions: Option<u32>,
    /// User.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last access.
    pub accessed: Option<SetTime>,
    /// Last change of the bytes.
    pub modified: Option<SetTime>,
}

impl SetTime {
    /// The word of the time in an inode. `now` is the word of the present.
    fn word(self, now: u64) -> Result<u64, FsError> {
        match self {
            Self::Now => Ok(now),
            Self::At(ns) => encode_time(ns).ok_or(FsError::TimeOutOfRange),
        }
    }
}

impl SetAttr {
    /// Checks the range of the times, for callers that make other changes first.
    ///
    /// # Errors
    /// `TimeOutOfRange`.
    pub fn check(&self) -> Result<(), FsError> {
        [self.accessed, self.modified].into_iter().flatten().try_for_each(|time| {
            time.word(0)?;
            Ok(())
        })
    }
}

impl<M: Medium> FileSystem<M> {
    /// The attributes of `inode`.
    ///
    /// # Errors
    /// `Stale`, or a damaged inode.
    pub fn attr(&self, inode: InodeNo) -> Result<Attr, FsError> {
        self.attr_of(InodeRef::any(inode))
    }

    /// The attributes of a file that was `found`.
    ///
    /// # Errors
    /// As [`FileSystem::attr`].
    pub(crate) fn attr_of(&self, found: InodeRef) -> Result<Attr, FsError> {
        let _lock = self.locks.read(found.inode);
        Ok(Attr::of(&self.load_ref(found)?.1))
    }

    /// Sets attributes of `inode` atomically. An access control list follows the permissions. The caller
    /// checks rights.
    ///
    /// # Errors
    /// `TimeOutOfRange`; `Immutable`, `AppendOnly`; `Stale`; `NoSpace` if an access control list changes; or
    /// the volume's.
    pub fn set_attr(&self, inode: InodeNo, set: &SetAttr) -> Result<Attr, FsError> {
        let _op = self.volume().begin_op();
        let _locks = self.locks.write(&[inode]);
        self.set_attr_locked(inode, set)
    }

    /// As [`FileSystem::set_attr`]. The caller holds the inode's lock for writing.
    pub(crate) fn set_attr_locked(&self, inode: InodeNo, set: &SetAttr) -> Result<Attr, FsError> {
        let mut attr = None;
        self.volume().change(|batch, _| {
            let now = now();
            let mut edits = Edits::new(&self.tables);
            let edit = edits.get(self.reader(), inode)?;
            // Within the plan, under the lock: the flags can change until then.
            check_set_attr(&edit.words, set)?;
            if let Some(permissions) = set.permissions {
                // In the same batch: a list and a mode that disagree would grant other rights after
                // a crash.
                plan_permissions(batch, edit, permissions)?;
            }
            let words = &mut edit.words;
            words.set_owner(set.uid.unwrap_or(words.uid()), set.gid.unwrap_or(words.gid()));
            if let Some(accessed) = set.accessed {
                words.set(Field::Accessed, accessed.word(now)?);
            }
            if let Some(modified) = set.modified {
                words.set(Field::Modified, modified.word(now)?);
            }
            words.set(Field::Changed, now);
            attr = Some(Attr::of(words));
            edits.plan(batch);
            Ok::<(), FsError>(())
        })?;
        Ok(attr.expect("a change that was made was planned"))
    }
}

/// Checks the flags of a file before its attributes change. For an append-only file, only times can change,
/// and only to the present.
fn check_set_attr(words: &InodeWords, set: &SetAttr) -> Result<(), FsError> {
    let sets_time =
        [set.accessed, set.modified].iter().any(|time| matches!(time, Some(SetTime::At(_))));
    // An append-only file accepts the present time only, as on ext4.
    let sets_rights = set.permissions.is_some() || set.uid.is_some() || set.gid.is_some();
    if sets_time || sets_rights { check_unrestricted(words) } else { check_mutable(words) }
}

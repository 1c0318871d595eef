//! Privileges of files: set-user-id and set-group-id bits, and capabilities.
//!
//! The caller decides the lost bits from the attributes under the lock, so no change of another
//! caller comes between the decision and the change.

use everbyte_media::Medium;

use crate::attributes::protection::check_mutable;
use crate::attributes::stat::{Attr, SetAttr};
use crate::attributes::xattr_block::Xattrs;
use crate::error::FsError;
use crate::format::Field;
use crate::format::number::{InodeNo, SET_ID_BITS};
use crate::fs::{FileSystem, now};
use crate::inode::edits::Edits;

/// The extended attribute with the capabilities of a program.
pub const CAPABILITY: &[u8] = b"security.capability";

impl<M: Medium> FileSystem<M> {
    /// Clears bits of the mode of `inode` and removes its [`CAPABILITY`], atomically. `lost` gets the
    /// attributes and returns the bits to clear, of [`SET_ID_BITS`]; it can be called again. Returns
    /// true if the file had something to lose. An append-only file loses its privileges too.
    ///
    /// # Errors
    /// `Immutable`; `Stale`; `NoSpace` if a file with capabilities has other attributes; the volume's.
    pub fn drop_privileges(
        &self,
        inode: InodeNo,
        lost: impl Fn(&Attr) -> u32,
    ) -> Result<bool, FsError> {
        {
            // First for reading: nearly all files have no privileges, and each write comes here.
            let _lock = self.locks.read(inode);
            let (at, words) = self.load_inode(inode)?;
            let attr = Attr::of(&words);
            let has_capability = || {
                let all = Xattrs::load(self.reader(), at, words.get(Field::Attributes))?;
                Ok::<bool, FsError>(all.get(CAPABILITY).is_some())
            };
            if lost(&attr) & attr.permissions & SET_ID_BITS == 0
                && !(attr.has_attributes && has_capability()?)
            {
                return Ok(false);
            }
        }
        let _op = self.volume().begin_op();
        let _locks = self.locks.write(&[inode]);
        // Outside of the plan, because it may take long. The lock keeps the answer valid.
        let lost = lost(&Attr::of(&self.load_inode(inode)?.1)) & SET_ID_BITS;
        let mut is_changed = false;
        self.volume().change(|batch, _| {
            let mut edits = Edits::new(&self.tables);
            let edit = edits.get(self.reader(), inode)?;
            check_mutable(&edit.words)?;
            let mode = edit.words.mode();
            // An access control list does not contain these bits, so it stays.
            edit.words.set_permissions(mode & !lost);
            let word = edit.words.get(Field::Attributes);
            let mut all = Xattrs::load(self.reader(), edit.at, word)?;
            let is_removed = all.remove(CAPABILITY);
            if is_removed {
                all.plan_replace(batch, edit)?;
            }
            is_changed = is_removed || mode & lost != 0;
            if is_changed {
                edit.words.set(Field::Changed, now());
            }
            edits.plan(batch);
            Ok::<(), FsError>(())
        })?;
        Ok(is_changed)
    }

    /// Sets attributes as [`FileSystem::set_attr`] does, with fewer bits in the mode: `lost` gets the
    /// attributes before the change and returns the bits to clear, of [`SET_ID_BITS`].
    ///
    /// # Errors
    /// As [`FileSystem::set_attr`].
    pub fn set_attr_without(
        &self,
        inode: InodeNo,
        set: &SetAttr,
        lost: impl FnOnce(&Attr) -> u32,
    ) -> Result<Attr, FsError> {
        let _op = self.volume().begin_op();
        let _locks = self.locks.write(&[inode]);
        let attr = Attr::of(&self.load_inode(inode)?.1);
        let asked = set.permissions.unwrap_or(attr.permissions);
        let left = asked & !(lost(&attr) & SET_ID_BITS);
        let permissions = if left == asked { set.permissions } else { Some(left) };
        self.set_attr_locked(inode, &SetAttr { permissions, ..*set })
    }
}

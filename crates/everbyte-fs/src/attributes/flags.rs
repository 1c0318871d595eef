//! Setting the flags of a file.

use everbyte_media::Medium;

use crate::attributes::stat::Attr;
use crate::error::FsError;
use crate::format::Field;
use crate::format::file_flags::FileFlags;
use crate::format::number::{FileType, InodeNo};
use crate::fs::{FileSystem, now};
use crate::inode::edits::Edits;

impl<M: Medium> FileSystem<M> {
    /// Sets all flags of `inode`, a regular file or a directory. The caller checks rights.
    ///
    /// # Errors
    /// `Unsupported` for another type; `Immutable` if the file is and stays immutable, and another flag changes; `Stale`;
    /// the volume's.
    pub fn set_flags(&self, inode: InodeNo, flags: FileFlags) -> Result<Attr, FsError> {
        let _op = self.volume().begin_op();
        let _locks = self.locks.write(&[inode]);
        let mut attr = None;
        self.volume().change(|batch, _| {
            let mut edits = Edits::new(&self.tables);
            let words = &mut edits.get(self.reader(), inode)?.words;
            if !matches!(words.file_type(), FileType::Regular | FileType::Directory) {
                return Err(FsError::Unsupported);
            }
            let old = words.flags();
            // A caller may clear the immutable flag and change others in one call, as on ext4.
            if old.common(flags).has(FileFlags::IMMUTABLE) && old != flags {
                return Err(FsError::Immutable);
            }
            words.set_flags(flags);
            words.set(Field::Changed, now());
            attr = Some(Attr::of(words));
            edits.plan(batch);
            Ok(())
        })?;
        Ok(attr.expect("a change that was made was planned"))
    }
}

//! Files without a name, as `O_TMPFILE` makes them.

use everbyte_media::Medium;

use crate::attributes::protection::check_mutable;
use crate::attributes::stat::Attr;
use crate::error::FsError;
use crate::format::number::{FileType, InodeNo};
use crate::fs::FileSystem;
use crate::inode::edits::Edits;
use crate::namespace::entries::{Names, NewInode};

impl<M: Medium> FileSystem<M> {
    /// Creates a regular file without a name, with the inherited attributes of `directory`, and opens it. The
    /// caller ends the open by [`FileSystem::close_inode`]. Before, [`FileSystem::link`] can give it a first
    /// name. Without a name, the close or a crash frees it.
    ///
    /// # Errors
    /// `Invalid` for another type; `NotFound` if the directory was removed, `NotDirectory`, `NoInodes`,
    /// `NoSpace`, or the volume's.
    pub fn create_unnamed(&self, directory: InodeNo, new: &NewInode<'_>) -> Result<Attr, FsError> {
        if new.kind != FileType::Regular {
            return Err(FsError::Invalid { what: "only a regular file is made without a name" });
        }
        let _op = self.volume().begin_op();
        let _lock = self.locks.read(directory);
        let taken = self.tables.take(self.volume())?;
        let mut attr = None;
        self.volume().change(|batch, _| {
            let mut edits = Edits::new(&self.tables);
            let parent = edits.get(self.reader(), directory)?;
            // A removed directory gives no attributes to new files.
            self.dir_of(parent)?;
            check_mutable(&parent.words)?;
            let (words, image) = self.plan_inode(batch, parent, (&taken, new), Names::None)?;
            // The lock of the table is held already, so no locked instruction waits for the stream.
            self.stream_inode(batch, taken.at, &image);
            attr = Some(Attr::of(&words));
            Ok::<(), FsError>(())
        })?;
        // Before the inode is kept: no other thread knows the number, so no lock of it is needed.
        self.files.open_unnamed(taken.number, taken.at);
        taken.keep();
        Ok(attr.expect("a change that was made was planned"))
    }
}

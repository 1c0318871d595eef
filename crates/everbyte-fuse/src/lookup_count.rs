//! The files known to the kernel. It may use a file after its removal, because a program has it
//! open, works in it, or has an `O_PATH` descriptor of it. Such descriptors are not reported to the
//! server.
//!
//! Open files are not counted here: a number known to the kernel means that the file is in use.
//! Invariant: a file is open in the file system exactly while the kernel has received it more often
//! than forgotten it.

use std::collections::HashMap;

use everbyte_fs::{Attr, FileSystem, FsError, InodeNo, Name};
use everbyte_media::Medium;
use parking_lot::Mutex;

const SHARDS: usize = 64;

/// A file known to the kernel.
#[derive(Debug)]
struct KnownFile {
    /// Number of reports of the file to the kernel that it has not forgotten.
    times: u64,
    /// Distinguishes the file from earlier files with its number.
    generation: u64,
}

/// The files of a shard.
type Shard = Mutex<HashMap<InodeNo, KnownFile>>;

/// The files, without the root.
#[derive(Debug)]
pub(crate) struct KnownFiles {
    shards: Box<[Shard]>,
}

impl Default for KnownFiles {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }
}

impl KnownFiles {
    fn shard(&self, inode: InodeNo) -> &Shard {
        &self.shards[usize::try_from(inode.0 % SHARDS as u64).unwrap_or(0)]
    }

    /// The file `name` in `parent`, counted as reported to the kernel. `.` means `parent` itself,
    /// which may be any file: the kernel looks up a file with a number from a handle in this way.
    ///
    /// # Errors
    /// As [`FileSystem::lookup`]. `Stale` if no file has the number `parent`.
    pub(crate) fn look_up<M: Medium>(
        &self,
        fs: &FileSystem<M>,
        parent: InodeNo,
        name: &[u8],
    ) -> Result<Attr, FsError> {
        match name {
            b"." => self.tell_found(fs, || fs.attr(parent)),
            b".." => self.tell_found(fs, || fs.attr(fs.parent(parent)?)),
            name => {
                let name = Name::new(name)?;
                self.tell_found(fs, || fs.lookup(parent, name))
            }
        }
    }

    /// The file found by `find`, counted as reported to the kernel.
    fn tell_found<M: Medium>(
        &self,
        fs: &FileSystem<M>,
        find: impl Fn() -> Result<Attr, FsError>,
    ) -> Result<Attr, FsError> {
        loop {
            let attr = find()?;
            match self.count_lookup(fs, attr.inode, Some(attr.generation)) {
                // A change without the kernel has removed it in the time between. Another file may
                // have the name.
                Err(FsError::Stale(_)) => {}
                counted => return counted.map(|()| attr),
            }
        }
    }

    /// Counts a report of `inode` to the kernel. The kernel gets attributes with this generation,
    /// if it gets any.
    ///
    /// # Errors
    /// `Stale`: the file was removed before the count, and another file may have its number, so the
    /// kernel must not get it.
    pub(crate) fn count_lookup<M: Medium>(
        &self,
        fs: &FileSystem<M>,
        inode: InodeNo,
        generation: Option<u64>,
    ) -> Result<(), FsError> {
        // The root is never removed, and the kernel knows it without a look-up.
        if inode == fs.root() {
            return Ok(());
        }
        let is_other = |own: u64| generation.is_some_and(|counted| counted != own);
        let mut files = self.shard(inode).lock();
        if let Some(known) = files.get_mut(&inode) {
            if is_other(known.generation) {
                return Err(FsError::Stale(inode));
            }
            known.times += 1;
            return Ok(());
        }
        // The open keeps the inode from being freed, and with it the number from a new file.
        let generation = fs.open_inode(inode)?.generation;
        if is_other(generation) {
            fs.close_inode(inode)?;
            return Err(FsError::Stale(inode));
        }
        files.insert(inode, KnownFile { times: 1, generation });
        Ok(())
    }

    /// Counts that the kernel has forgotten `times` reports of `inode`. The last one frees a
    /// removed file.
    ///
    /// # Errors
    /// The volume's: a removed file is freed when the file system is opened then.
    pub(crate) fn forget<M: Medium>(
        &self,
        fs: &FileSystem<M>,
        inode: InodeNo,
        times: u64,
    ) -> Result<(), FsError> {
        let mut files = self.shard(inode).lock();
        let Some(known) = files.get_mut(&inode) else { return Ok(()) };
        known.times = known.times.saturating_sub(times);
        if known.times > 0 {
            return Ok(());
        }
        files.remove(&inode);
        // Still under the lock: a concurrent look-up opens the file after this close.
        fs.close_inode(inode)
    }

    /// The files.
    pub(crate) fn all(&self) -> Vec<InodeNo> {
        self.shards
            .iter()
            .flat_map(|shard| shard.lock().keys().copied().collect::<Vec<_>>())
            .collect()
    }

    /// Counts that the kernel has forgotten all files.
    ///
    /// # Errors
    /// The first of the volume's; see [`KnownFiles::forget`].
    pub(crate) fn forget_all<M: Medium>(&self, fs: &FileSystem<M>) -> Result<(), FsError> {
        let mut ended = Ok(());
        for shard in &self.shards {
            let known: Vec<_> = shard.lock().drain().collect();
            for (inode, _) in known {
                // The others are closed despite an error: each close frees a removed file.
                ended = ended.and(fs.close_inode(inode));
            }
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use everbyte_fs::RenameMode;
    use everbyte_media::Mapped;

    use super::*;
    use crate::enospc_retry::tests::{NEW, with_nameless};

    fn name(text: &str) -> Name<'_> {
        Name::new(text.as_bytes()).unwrap()
    }

    fn make(fs: &FileSystem<Mapped>, text: &str) -> Attr {
        fs.create_inode(fs.root(), name(text), &NEW).unwrap()
    }

    #[test]
    fn reused_inode_number_is_unreported() {
        let (fs, _) = with_nameless(0);
        let known = KnownFiles::default();
        let old = make(&fs, "old");
        fs.unlink(fs.root(), name("old")).unwrap();
        fs.sync().unwrap();
        let mut made = (0..1000).map(|number| make(&fs, &format!("new {number}")));
        let new = made.find(|attr| attr.inode == old.inode).unwrap();
        let count = |attr: &Attr| known.count_lookup(&fs, attr.inode, Some(attr.generation));
        assert!(matches!(count(&old), Err(FsError::Stale(_))));
        count(&new).unwrap();
        assert!(matches!(count(&old), Err(FsError::Stale(_))), "it is known");
        known.count_lookup(&fs, new.inode, None).unwrap();
        known.forget(&fs, new.inode, 2).unwrap();
        assert!(known.all().is_empty());
    }

    /// Like the replacement of a file by `everbyte fs put` during a mount.
    #[test]
    fn replaced_name_is_always_found() {
        let (fs, _) = with_nameless(0);
        let (known, root, is_done) = (KnownFiles::default(), fs.root(), AtomicBool::new(false));
        make(&fs, "f");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (from, to) = ((root, name("new")), (root, name("f")));
                for _ in 0..5000 {
                    make(&fs, "new");
                    fs.rename(from, to, RenameMode::Replace).unwrap();
                }
                is_done.store(true, Ordering::Relaxed);
            });
            while !is_done.load(Ordering::Relaxed) {
                let attr = known.look_up(&fs, root, b"f").unwrap();
                known.forget(&fs, attr.inode, 1).unwrap();
            }
        });
    }
}

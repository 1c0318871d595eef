//! Requests about the files of a file system, as commands make them without a mount.
//!
//! Invariant: a file is held during its inspection: a number never refers to a file with another
//! generation. If the file system is mounted, the kernel drops changed data from its caches before
//! the answer goes out.

use everbyte::files::{
    Attr, EngineFs, FileFlags, FileType, FsError, InodeNo, Leak, MODE_PERMISSIONS, Name, NewInode,
    RenameMode, Seek, SetAttr, SetTime,
};
use everbyte_control::{
    AttachedAnswer, Cause, FileEntry, FileFlag, FileId, FileKind, FileLeak, FilePlace, FileRequest,
    FileSpace, FileStatus, NewFile, PIECE_BYTES_MAX, PathBytes, RequestError, Response, SetFile,
    TimeNs, UnreadableEntry,
};
use everbyte_fuse::KernelCaches;
use everbyte_media::BLOCK_U64;

/// Number of directory entries at which an answer ends.
const ENTRIES_MIN: usize = 256;

/// Number of data ranges after which an answer ends.
const RANGES_MAX: usize = 1024;
/// Shorter holes are not worth a separate request.
const HOLE_BYTES_MIN: u64 = 64 << 10;

type FsResult<T> = Result<T, FsError>;

/// A file system, for requests to inspect or change its files.
pub(crate) struct Files<'f> {
    pub(crate) fs: &'f EngineFs,
    /// The kernel's caches, if it is mounted.
    pub(crate) caches: Option<KernelCaches>,
}

impl Files<'_> {
    pub(crate) fn carry_out(&self, request: &FileRequest, bytes: &[u8]) -> AttachedAnswer {
        let response = match request {
            FileRequest::Read { file, offset, len } => {
                let bytes = self.read(*file, *offset, *len).map_err(refused)?;
                let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                return Ok((Response::FileBytes { len }, bytes));
            }
            FileRequest::Find { from, path, follow } => self.find(*from, path, *follow),
            FileRequest::List { directory, place } => self.list(*directory, *place),
            FileRequest::Data { file, offset } => self.data(*file, *offset),
            FileRequest::Write { file, offset, .. } => self.write(*file, *offset, bytes),
            FileRequest::Make { at, new } => self.make(at, new),
            FileRequest::Set { file, set } => self.set(*file, set),
            FileRequest::Rename { from, to } => self.rename(from, to, RenameMode::Replace),
            FileRequest::Remove { at } => self.remove(at),
            FileRequest::Move { from, to } => self.rename(from, to, RenameMode::NoReplace),
            FileRequest::RemoveDirectory { at } => self.remove_directory(at),
            FileRequest::Drop { at } => self.drop_damaged(at),
            FileRequest::Space => Ok(Response::FileSpace(self.space())),
            FileRequest::Sync => self.fs.sync().map(|()| Response::FileDone),
            other => return Err(format!("this server does not know {other:?}").into()),
        };
        Ok((response.map_err(refused)?, Vec::new()))
    }

    /// Calls `what` with a file, and holds the file during the call.
    fn with<T>(&self, file: FileId, what: impl FnOnce(&Attr) -> FsResult<T>) -> FsResult<T> {
        let inode = InodeNo(file.inode);
        let attr = self.fs.open_inode(inode)?;
        // If the generation differs, the number belongs to another file now.
        let done = match attr.generation == file.generation {
            true => what(&attr),
            false => Err(FsError::Stale(inode)),
        };
        // In each case: an open inode is kept after its last name has gone.
        self.fs.close_inode(inode)?;
        done
    }

    /// Calls `what` to change a file in several steps, and holds the file during the call.
    fn change<T>(&self, file: FileId, what: impl FnOnce(&Attr) -> FsResult<T>) -> FsResult<T> {
        self.with(file, |file| {
            let done = what(file);
            // Some steps may be done where a later one failed.
            self.forget(&[file.inode]);
            done
        })
    }

    /// Calls `what` to change a name in its directory, and holds the directory during the call.
    fn change_name<T>(
        &self,
        at: &FilePlace,
        what: impl FnOnce(InodeNo, Name<'_>) -> FsResult<T>,
    ) -> FsResult<T> {
        let name = Name::new(&at.name.0)?;
        self.with(at.directory, |directory| {
            let done = what(directory.inode, name);
            // Some steps may be done where a later one failed.
            self.forget_name(directory.inode, name);
            done
        })
    }

    fn find(&self, from: Option<FileId>, path: &PathBytes, follow: bool) -> FsResult<Response> {
        let root = self.fs.attr(self.fs.root())?;
        let from = from.unwrap_or(id(&root));
        self.with(from, |from| {
            let located = self.fs.locate(from.inode, &path.0, follow)?;
            let at = located.place.map(|(directory, name)| {
                let directory = id(&self.fs.attr(directory)?);
                Ok::<_, FsError>(FilePlace { directory, name: PathBytes(name) })
            });
            let file = located.file.map(|file| self.status(&file)).transpose()?;
            Ok(Response::FileFound { at: at.transpose()?, file: file.map(Box::new) })
        })
    }

    fn list(&self, directory: FileId, place: u64) -> FsResult<Response> {
        self.with(directory, |directory| {
            let (mut entries, mut unreadable, mut next) = (Vec::new(), Vec::new(), Some(place));
            let mut damage = Vec::new();
            while let Some(place) = next
                && entries.len() + unreadable.len() + damage.len() < ENTRIES_MIN
            {
                let listed = self.fs.list_readable(directory.inode, place)?;
                next = listed.next;
                damage.extend(listed.damage.iter().map(ToString::to_string));
                for entry in listed.entries {
                    let name = PathBytes(entry.name);
                    match self.fs.attr(entry.inode).and_then(|attr| self.status(&attr)) {
                        Ok(file) => entries.push(FileEntry { name, file }),
                        // It was removed a moment ago.
                        Err(FsError::Stale(_)) => {}
                        // An unreadable entry hides no other entry.
                        Err(error) => {
                            unreadable.push(UnreadableEntry { name, reason: error.to_string() });
                        }
                    }
                }
            }
            Ok(Response::FileEntries { entries, unreadable, damage, next })
        })
    }

    fn read(&self, file: FileId, offset: u64, len: u32) -> FsResult<Vec<u8>> {
        self.with(file, |file| {
            // The client's number must not allocate more than an answer has.
            let mut bytes = vec![0; len.min(PIECE_BYTES_MAX) as usize];
            let read = self.fs.read(file.inode, offset, &mut bytes)?;
            bytes.truncate(read);
            Ok(bytes)
        })
    }

    /// Ranges with data from `offset` on. Holes of less than [`HOLE_BYTES_MIN`] count as data.
    fn data(&self, file: FileId, offset: u64) -> FsResult<Response> {
        self.with(file, |file| {
            let (inode, mut at) = (file.inode, offset);
            let mut ranges: Vec<(u64, u64)> = Vec::new();
            let mut next = None;
            for count in 0.. {
                let start = match self.fs.seek(inode, at, Seek::Data) {
                    Err(FsError::NoData) => break,
                    start => start?,
                };
                if count == RANGES_MAX {
                    next = Some(start);
                    break;
                }
                // Without an end, the file was truncated a moment ago.
                let end = match self.fs.seek(inode, start, Seek::Hole) {
                    Err(FsError::NoData) => break,
                    end => end?,
                };
                match ranges.last_mut() {
                    Some(last) if start - last.1 < HOLE_BYTES_MIN => last.1 = end,
                    _ => ranges.push((start, end)),
                }
                at = end;
            }
            let size_bytes = self.fs.attr(inode)?.size;
            // The file may have been truncated since.
            ranges.retain_mut(|(start, end)| {
                *end = size_bytes.min(*end);
                start < end
            });
            let next = next.filter(|&next| next <= size_bytes && !ranges.is_empty());
            Ok(Response::FileData { ranges, size_bytes, next })
        })
    }

    fn write(&self, file: FileId, offset: u64, bytes: &[u8]) -> FsResult<Response> {
        self.change(file, |file| self.fs.write_all(file.inode, offset, bytes))?;
        Ok(Response::FileDone)
    }

    fn make(&self, at: &FilePlace, new: &NewFile) -> FsResult<Response> {
        let target = new.target.as_ref().map_or(&[][..], |target| &target.0);
        let kind = match new.kind {
            FileKind::Regular => FileType::Regular,
            FileKind::Directory => FileType::Directory,
            FileKind::Symlink => FileType::Symlink,
            _ => return Err(FsError::Invalid { what: "only a mount makes such files" }),
        };
        let permissions = new.permissions & MODE_PERMISSIONS;
        let (uid, gid) = (new.uid, new.gid);
        // The client has applied its own umask.
        let new = NewInode { kind, permissions, umask: 0, uid, gid, device: 0, target };
        let made = self.change_name(at, |directory, name| {
            let made = self.fs.create_inode(directory, name, &new)?;
            self.status(&made)
        })?;
        Ok(Response::FileFound { at: Some(at.clone()), file: Some(Box::new(made)) })
    }

    fn set(&self, file: FileId, set: &SetFile) -> FsResult<Response> {
        self.change(file, |file| {
            let attributes = SetAttr {
                permissions: set.permissions.map(|bits| bits & MODE_PERMISSIONS),
                uid: set.uid,
                gid: set.gid,
                accessed: set.accessed_ns.map(|time| SetTime::At(time.0)),
                modified: set.modified_ns.map(|time| SetTime::At(time.0)),
            };
            // Before the size: a wrong time must leave the bytes unchanged.
            attributes.check()?;
            if let Some(size) = set.size_bytes {
                self.fs.truncate(file.inode, size)?;
            }
            if set.modified_ns.is_some() {
                // The kernel writes the stores of programs before the time is set, and not after
                // it.
                self.forget(&[file.inode]);
            }
            let attr = self.fs.set_attr(file.inode, &attributes)?;
            Ok(Response::FileFound { at: None, file: Some(Box::new(self.status(&attr)?)) })
        })
    }

    fn rename(&self, from: &FilePlace, to: &FilePlace, mode: RenameMode) -> FsResult<Response> {
        self.change_name(from, |parent, name| {
            self.change_name(to, |new_parent, new_name| {
                let renamed = self.fs.rename_files((parent, name), (new_parent, new_name), mode)?;
                // Before the directories are closed: a failed close leaves the files renamed.
                self.forget(&[renamed.0]);
                self.forget(renamed.1.as_slice());
                Ok(Response::FileDone)
            })
        })
    }

    fn remove(&self, at: &FilePlace) -> FsResult<Response> {
        self.change_name(at, |directory, name| {
            let file = self.fs.unlink_file(directory, name)?;
            // Before the directory is closed: a failed close leaves the file removed.
            self.forget(&[file]);
            Ok(Response::FileDone)
        })
    }

    fn remove_directory(&self, at: &FilePlace) -> FsResult<Response> {
        self.change_name(at, |directory, name| self.fs.remove_directory(directory, name))?;
        Ok(Response::FileDone)
    }

    /// Removes a name with a damaged file or entry.
    fn drop_damaged(&self, at: &FilePlace) -> FsResult<Response> {
        let left =
            self.change_name(at, |directory, name| self.fs.remove_damaged(directory, name))?;
        let bytes = |blocks: u64| Some(blocks.saturating_mul(BLOCK_U64));
        let unknown = FileLeak::default();
        Ok(Response::FileDropped(match left {
            Leak::None => FileLeak { bytes: Some(0), ..unknown },
            Leak::Blocks(blocks) => FileLeak { bytes: bytes(blocks), ..unknown },
            Leak::Inode(inode) => FileLeak { inode: Some(inode.0), ..unknown },
            Leak::Directory(blocks) => {
                FileLeak { bytes: bytes(blocks), has_lost_names: true, ..unknown }
            }
            Leak::Entries(entries) => FileLeak { entries, ..unknown },
            _ => unknown,
        }))
    }

    fn space(&self) -> FileSpace {
        let status = self.fs.status();
        let bytes = |blocks: u64| blocks.saturating_mul(BLOCK_U64);
        FileSpace {
            size_bytes: bytes(status.blocks),
            used_bytes: bytes(status.blocks.saturating_sub(status.free_blocks)),
            free_bytes: bytes(status.free_blocks),
            inodes: status.inodes,
            used_inodes: status.inodes.saturating_sub(status.free_inodes),
            free_inodes: status.free_inodes,
        }
    }

    /// Makes the kernel forget a name and its directory.
    fn forget_name(&self, directory: InodeNo, name: Name<'_>) {
        if let Some(caches) = &self.caches {
            caches.forget_name(directory, name.bytes());
            // Its entries and times have changed as well.
            caches.forget_inode(directory);
        }
    }

    fn forget(&self, inodes: &[InodeNo]) {
        if let Some(caches) = &self.caches {
            inodes.iter().for_each(|&inode| caches.forget_inode(inode));
        }
    }

    fn status(&self, attr: &Attr) -> FsResult<FileStatus> {
        let target = match attr.kind {
            FileType::Symlink => Some(PathBytes(self.fs.read_link(attr.inode)?)),
            _ => None,
        };
        Ok(FileStatus {
            inode: attr.inode.0,
            generation: attr.generation,
            kind: kind(attr.kind),
            permissions: attr.permissions,
            links: attr.links,
            uid: attr.uid,
            gid: attr.gid,
            size_bytes: attr.size,
            used_bytes: attr.blocks * BLOCK_U64,
            device: attr.device,
            flags: flags(attr.flags),
            accessed_ns: TimeNs(attr.accessed_ns),
            modified_ns: TimeNs(attr.modified_ns),
            changed_ns: TimeNs(attr.changed_ns),
            created_ns: TimeNs(attr.created_ns),
            target,
        })
    }
}

fn id(attr: &Attr) -> FileId {
    FileId { inode: attr.inode.0, generation: attr.generation }
}

fn flags(flags: FileFlags) -> Vec<FileFlag> {
    let all = [
        (FileFlags::IMMUTABLE, FileFlag::Immutable),
        (FileFlags::APPEND_ONLY, FileFlag::AppendOnly),
        (FileFlags::NO_DUMP, FileFlag::NoDump),
        (FileFlags::NO_ATIME, FileFlag::NoAtime),
    ];
    all.into_iter().filter(|(bit, _)| flags.has(*bit)).map(|(_, flag)| flag).collect()
}

fn kind(kind: FileType) -> FileKind {
    match kind {
        FileType::Regular => FileKind::Regular,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is what map_err gives")]
fn refused(error: FsError) -> RequestError {
    let cause = match error {
        FsError::NotFound => Some(Cause::NoSuchFile),
        FsError::Exists => Some(Cause::FileExists),
        FsError::NoSpace | FsError::NoInodes { .. } => Some(Cause::FilesFull),
        FsError::Corrupt(_) => Some(Cause::FileDamaged),
        _ => None,
    };
    RequestError { reason: error.to_string(), cause }
}

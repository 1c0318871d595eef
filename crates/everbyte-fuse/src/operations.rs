//! The kernel's requests, each made as one operation of the file system.
//!
//! The kernel caches names and attributes for long: it makes all changes of a mounted file system.
//! It checks permissions. This module clears set-user-id and set-group-id bits and capabilities
//! before a change of a file: see `privileges`.

mod access_times;
mod flags;
mod listing;
mod privileges;
mod setattr;

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use everbyte_fs::{
    ACL_ACCESS, ACL_DEFAULT, AccessTimes, Allocation, Attr, CAPABILITY, FilePlace, FileSystem,
    FileType, FsError, InodeNo, MODE_PERMISSIONS, NAME_BYTES_MAX, Name, NewInode, Seek, SetAttr,
    SetGroupId,
};
use everbyte_media::Medium;
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags,
    PollNotifier, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use crate::attribute::{attribute_name, name_list, way_to_set};
use crate::caller::{is_administrator, is_in_group};
use crate::changes::{write_all, write_as};
use crate::convert::{
    attributes, errno, inode, kind, log_unfreed, new_inode, no_attributes, number,
    refused_attributes, rename_mode, set_time,
};
use crate::directory::{KernelCaching, MountOptions};
use crate::enospc_retry::EnospcRetry;
use crate::invalidation::CacheInvalidation;
use crate::lookup_count::KnownFiles;
use crate::open_handles::OpenHandles;
use crate::outcome::note_bytes;
use crate::replies::{reply_bytes, reply_empty, reply_lseek};
use crate::seek::{hole, seek_written};
use crate::writeback_errors::LostStores;

use self::privileges::LastRemoval;

/// Lifetime of names and attributes in the kernel's caches.
const LIFETIME: Duration = Duration::from_secs(3600);
/// Most bytes of a request to write.
const WRITE_BYTES_MAX: u32 = 1 << 20;

/// Most bytes of one copy request: the answer counts them in 32 bits.
const COPY_BYTES_MAX: u64 = 1 << 30;

thread_local! {
    /// Bytes on their way to the kernel. Each thread of a mount keeps its buffer, so that no read
    /// pays for fresh memory. It is as long as the largest read so far. The kernel bounds reads as
    /// it does writes.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The file system as the kernel's requests see it.
pub(crate) struct Operations<M: Medium> {
    fs: Arc<FileSystem<M>>,
    root: InodeNo,
    access_times: AccessTimes,
    /// Listings are accesses.
    dir_access_times: bool,
    known: Arc<KnownFiles>,
    caches: CacheInvalidation,
    lost: LostStores,
    space: Arc<EnospcRetry>,
    last_removal: LastRemoval,
    handles: OpenHandles,
    /// Lifetime of names and attributes in the kernel's caches.
    lifetime: Duration,
    /// Flags of opened files.
    open_flags: FopenFlags,
    /// Flags of files opened only for reading.
    read_flags: FopenFlags,
    /// True if the kernel must open directories: some kernels insist, and if each listing is an
    /// access, the kernel must keep none.
    opens_directories: bool,
}

impl<M: Medium> Operations<M> {
    pub(crate) fn new(
        fs: Arc<FileSystem<M>>,
        options: &MountOptions,
        known: Arc<KnownFiles>,
        caches: CacheInvalidation,
        lost: LostStores,
    ) -> Self {
        let root = fs.root();
        let access_times =
            if options.read_only { AccessTimes::Never } else { options.access_times };
        let (lifetime, open_flags) = match options.caching {
            // A read of cached bytes is not seen here, so each opening drops them.
            KernelCaching::Full if access_times == AccessTimes::Strict => {
                (LIFETIME, FopenFlags::empty())
            }
            // Only the kernel changes files, so its cached bytes stay valid.
            KernelCaching::Full => (LIFETIME, FopenFlags::FOPEN_KEEP_CACHE),
            KernelCaching::Off => (Duration::ZERO, FopenFlags::FOPEN_DIRECT_IO),
        };
        Self {
            fs,
            root,
            access_times,
            dir_access_times: options.dir_access_times,
            known,
            caches,
            lost,
            space: Arc::new(EnospcRetry::new(options.threads)),
            last_removal: LastRemoval::default(),
            handles: OpenHandles::default(),
            lifetime,
            open_flags,
            read_flags: open_flags,
            opens_directories: true,
        }
    }

    /// Makes a change that may need space.
    fn with_space<R>(&self, change: impl Fn() -> Result<R, FsError>) -> Result<R, FsError> {
        self.space.find(&self.fs, change)
    }

    fn inode(&self, number: INodeNo) -> InodeNo {
        inode(self.root, number)
    }

    /// Answers with the found or new file.
    fn reply_entry(&self, found: Result<Attr, FsError>, reply: ReplyEntry) {
        self.reply_counted(found.and_then(|attr| self.count_lookup(attr)), reply);
    }

    /// Answers with a file whose look-up is counted.
    fn reply_counted(&self, counted: Result<Attr, FsError>, reply: ReplyEntry) {
        match counted {
            Ok(attr) => {
                let generation = Generation(attr.generation);
                reply.entry(&self.lifetime, &attributes(self.root, &attr), generation);
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    /// Counts the report of a new or newly named file to the kernel, and returns it.
    fn count_lookup(&self, attr: Attr) -> Result<Attr, FsError> {
        match self.known.count_lookup(&self.fs, attr.inode, Some(attr.generation)) {
            // It has lost its name again.
            Err(FsError::Stale(_)) => Err(FsError::NotFound),
            counted => counted.map(|()| attr),
        }
    }

    /// Counts that the kernel has forgotten this many look-ups of a file.
    fn forget_lookups(&self, inode: InodeNo, times: u64) {
        if let Err(error) = self.known.forget(&self.fs, inode, times) {
            log_unfreed(&error);
        }
    }

    /// Sets an access control list with the rights of the caller.
    fn set_acl(
        &self,
        request: &Request,
        inode: InodeNo,
        acl: (&[u8], &[u8]),
    ) -> Result<(), FsError> {
        let is_owned = request.uid() == 0 || is_in_group(request, self.fs.attr(inode)?.gid);
        let set_group_id = if is_owned { SetGroupId::Keep } else { SetGroupId::Clear };
        self.with_space(|| self.fs.set_acl(inode, acl, set_group_id))
    }

    fn create_inode(
        &self,
        parent: INodeNo,
        name: &OsStr,
        new: &NewInode<'_>,
    ) -> Result<Attr, FsError> {
        let (parent, name) = (self.inode(parent), Name::new(name.as_bytes())?);
        self.with_space(|| self.fs.create_inode(parent, name, new))
    }
}

impl<M: Medium> Filesystem for Operations<M> {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Each is used where the kernel has it.
        for flag in [
            // Without FUSE_READDIRPLUS_AUTO: `rm -rf` would look up each name of a large directory.
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_POSIX_ACL,
            // A file is looked up by its number, as for a handle, after the kernel has forgotten it.
            InitFlags::FUSE_EXPORT_SUPPORT,
            // An end by an abort differs from an end by unmounting.
            InitFlags::FUSE_ABORT_ERROR,
            // A default access control list decides the permissions of new files.
            InitFlags::FUSE_DONT_MASK,
            // Saves a request for capabilities before each write.
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ] {
            if config.capabilities().contains(flag) {
                let _ = config.add_capabilities(flag);
            }
        }
        let is_strict = self.access_times == AccessTimes::Strict;
        if is_strict {
            self.count_all_reads(config);
        } else if config.capabilities().contains(InitFlags::FUSE_CACHE_SYMLINKS) {
            let _ = config.add_capabilities(InitFlags::FUSE_CACHE_SYMLINKS);
        }
        let needs_none = config.capabilities().contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        self.opens_directories = !needs_none || is_strict;
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        Ok(())
    }

    fn destroy(&mut self) {
        if let Err(error) = self.known.forget_all(&self.fs) {
            log_unfreed(&error);
        }
    }

    fn forget(&self, _request: &Request, number: INodeNo, times: u64) {
        self.forget_lookups(self.inode(number), times);
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.known.look_up(&self.fs, self.inode(parent), name.as_bytes()) {
            // The kernel is to remember that there is none.
            Err(FsError::NotFound) => reply.entry(&self.lifetime, &no_attributes(), Generation(0)),
            counted => self.reply_counted(counted, reply),
        }
    }

    fn getattr(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        match self.fs.attr(self.inode(number)) {
            Ok(attr) => reply.attr(&self.lifetime, &attributes(self.root, &attr)),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _flags_changed: Option<SystemTime>,
        _backed_up: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = SetAttr {
            permissions: mode.map(|mode| mode & MODE_PERMISSIONS),
            uid,
            gid,
            accessed: accessed.map(set_time),
            modified: modified.map(set_time),
        };
        self.set_attributes(request, self.inode(number), (size, set), reply);
    }

    fn readlink(&self, _request: &Request, number: INodeNo, reply: ReplyData) {
        let inode = self.inode(number);
        match self.fs.read_link(inode) {
            Ok(target) => {
                self.note_access(inode);
                reply.data(&target);
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let Some(kind) = FileType::from_mode(mode) else { return reply.error(Errno::EINVAL) };
        let new = NewInode { device: u64::from(device), ..new_inode(request, kind, (mode, umask)) };
        self.reply_entry(self.create_inode(parent, name, &new), reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let new = new_inode(request, FileType::Directory, (mode, umask));
        self.reply_entry(self.create_inode(parent, name, &new), reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = Name::new(name.as_bytes());
        reply_empty(name.and_then(|name| self.fs.unlink(self.inode(parent), name)), reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = Name::new(name.as_bytes());
        let parent = self.inode(parent);
        reply_empty(name.and_then(|name| self.fs.remove_directory(parent, name)), reply);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let target = target.as_os_str().as_bytes();
        let new = NewInode { target, ..new_inode(request, FileType::Symlink, (0o777, 0)) };
        self.reply_entry(self.create_inode(parent, name, &new), reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let Some(mode) = rename_mode(request, flags) else { return reply.error(Errno::EINVAL) };
        let renamed = Name::new(name.as_bytes()).and_then(|name| {
            let to = (self.inode(new_parent), Name::new(new_name.as_bytes())?);
            let from = (self.inode(parent), name);
            self.with_space(|| self.fs.rename(from, to, mode))
        });
        reply_empty(renamed, reply);
    }

    fn link(
        &self,
        _request: &Request,
        number: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        let (inode, parent) = (self.inode(number), self.inode(parent));
        let linked = Name::new(name.as_bytes())
            .and_then(|name| self.with_space(|| self.fs.link(inode, parent, name)));
        self.reply_entry(linked, reply);
    }

    fn open(&self, _request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        // Never ENOSYS, which would save this request: the kernel does not know which files are
        // immutable.
        let inode = self.inode(number);
        match self.check_open(inode, flags) {
            Ok(granted) => reply.opened(self.handles.open(inode, flags.0), granted),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn read(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let inode = self.inode(number);
        let size = usize::try_from(size).unwrap_or(0);
        READ_BUFFER.with_borrow_mut(|bytes| {
            if bytes.len() < size {
                bytes.resize(size, 0);
            }
            match self.fs.read(inode, offset, &mut bytes[..size]) {
                Ok(len) => {
                    if flags.0 & libc::O_NOATIME == 0 {
                        self.note_access(inode);
                    }
                    note_bytes(len);
                    reply.data(&bytes[..len]);
                }
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn write(
        &self,
        request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let inode = self.inode(number);
        let is_cached = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let written = if is_cached {
            write_all((&self.fs, &self.space), inode, (offset, data), flags)
        } else {
            let keeps_bits = !write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
            if let Err(error) = self.drop_privileges(request, inode, || keeps_bits) {
                return reply.error(errno(&error));
            }
            self.with_space(|| write_as(&self.fs, inode, (offset, data), flags))
        };
        match written {
            Ok(written) => {
                note_bytes(data.len());
                reply.written(u32::try_from(written).unwrap_or(u32::MAX));
            }
            Err(error) => {
                if is_cached {
                    self.lost.note(inode, &error);
                }
                reply.error(errno(&error));
            }
        }
    }

    fn flush(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // All writes were answered after they were done. After ENOSYS the kernel sends no further
        // request.
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.handles.close(self.inode(number), handle);
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let inode = self.inode(number);
        let synced = if data_only { self.fs.sync_data(inode) } else { self.fs.sync_inode(inode) };
        reply_empty(synced, reply);
    }

    fn opendir(&self, _request: &Request, _number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.opens_directories {
            return reply.opened(FileHandle(0), FopenFlags::empty());
        }
        // A directory known to the kernel is held, so it need not be opened. After ENOSYS the
        // kernel sends no further request, and keeps listings until the directory changes.
        reply.error(Errno::ENOSYS);
    }

    fn readdir(
        &self,
        _request: &Request,
        directory: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let mut is_any = false;
        let mut add = |next, inode, file: FileType, name: &OsStr| {
            let is_full = reply.add(number(self.root, inode), next, kind(file), name);
            is_any |= !is_full;
            is_full
        };
        match self.each_entry(self.inode(directory), offset, &mut add) {
            // The next request continues at the failed entry.
            Err(error) if !is_any => reply.error(errno(&error)),
            _ => reply.ok(),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        directory: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let mut is_any = false;
        let mut add = |next, inode, file, name: &OsStr| {
            let is_fixed = [".", ".."].contains(&name.to_str().unwrap_or_default());
            let counted =
                if is_fixed { Ok(()) } else { self.known.count_lookup(&self.fs, inode, None) };
            let (kernel, generation) = match self.fs.attr(inode) {
                Ok(attr) if counted.is_ok() => (attributes(self.root, &attr), attr.generation),
                // It was removed a moment ago.
                Err(FsError::Stale(_)) => return false,
                _ if matches!(counted, Err(FsError::Stale(_))) => return false,
                // One that cannot be read hides no other.
                _ => (refused_attributes(number(self.root, inode), file), 0),
            };
            let generation = Generation(generation);
            let is_full = reply.add(kernel.ino, next, name, &self.lifetime, &kernel, generation);
            is_any |= !is_full;
            if is_full && !is_fixed && counted.is_ok() {
                self.forget_lookups(inode, 1);
            }
            is_full
        };
        match self.each_entry(self.inode(directory), offset, &mut add) {
            // The next request continues at the failed entry.
            Err(error) if !is_any => reply.error(errno(&error)),
            _ => reply.ok(),
        }
    }

    fn releasedir(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        reply_empty(self.fs.sync_inode(self.inode(number)), reply);
    }

    fn statfs(&self, _request: &Request, _number: INodeNo, reply: ReplyStatfs) {
        self.space.settle(&self.fs);
        let status = self.fs.status();
        let name_bytes = u32::try_from(NAME_BYTES_MAX).unwrap_or(u32::MAX);
        let (blocks, free) = (status.blocks, status.free_blocks);
        reply.statfs(blocks, free, free, status.inodes, status.free_inodes, 4096, name_bytes, 4096);
    }

    fn setxattr(
        &self,
        request: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let inode = self.inode(number);
        let checked = attribute_name(name).and_then(|name| {
            Ok((name, way_to_set(flags, || self.fs.attribute(inode, name).is_ok())?))
        });
        let (name, set) = match checked {
            Ok(checked) => checked,
            Err(errno) => return reply.error(errno),
        };
        let attribute = (name, value);
        let done = match attribute.0 {
            ACL_ACCESS | ACL_DEFAULT => self.set_acl(request, inode, attribute),
            _ => self.with_space(|| self.fs.set_attribute(inode, attribute, set)),
        };
        reply_empty(done, reply);
    }

    fn getxattr(
        &self,
        _request: &Request,
        number: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        match attribute_name(name) {
            Ok(name) => reply_bytes(self.fs.attribute(self.inode(number), name), size, reply),
            Err(errno) => reply.error(errno),
        }
    }

    fn listxattr(&self, request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.fs.attribute_names(self.inode(number));
        let list = names.map(|names| name_list(names, || is_administrator(request)));
        reply_bytes(list, size, reply);
    }

    fn removexattr(&self, request: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let inode = self.inode(number);
        match attribute_name(name) {
            Ok(name) => {
                let removed = self.with_space(|| self.fs.remove_attribute(inode, name));
                if removed.is_ok() && name == CAPABILITY {
                    self.last_removal.note(request, inode);
                }
                reply_empty(removed, reply);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let new = new_inode(request, FileType::Regular, (mode, umask));
        let created = self.create_inode(parent, name, &new);
        match created.and_then(|attr| self.count_lookup(attr)) {
            Ok(attr) => {
                let (kernel, generation) =
                    (attributes(self.root, &attr), Generation(attr.generation));
                let handle = self.handles.open(attr.inode, flags);
                reply.created(&self.lifetime, &kernel, generation, handle, self.open_flags);
            }
            // The kernel assumed that the file is absent. Now it looks the name up, and opens the
            // existing file.
            Err(FsError::Exists) if flags & libc::O_EXCL == 0 => reply.error(Errno::ESTALE),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn ioctl(
        &self,
        request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        data: &[u8],
        out_bytes: u32,
        reply: ReplyIoctl,
    ) {
        self.answer_ioctl(request, self.inode(number), (command, data, out_bytes), reply);
    }

    fn poll(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _notifier: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        // Files are always ready. After ENOSYS the kernel sends no further request.
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let what = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => Allocation::Reserve,
            libc::FALLOC_FL_PUNCH_HOLE => Allocation::Punch,
            libc::FALLOC_FL_ZERO_RANGE => Allocation::Zero,
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        let inode = self.inode(number);
        let allocate = || self.fs.allocate(inode, (offset, len), what, keep_size);
        let dropped = self.drop_privileges_of_caller(request, inode);
        match dropped.and_then(|()| self.with_space(allocate)) {
            Ok(()) => reply.ok(),
            // Parts may be done, and the kernel takes it that nothing is.
            Err(error) => self.caches.forget_then(inode, move || reply.error(errno(&error))),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        from: INodeNo,
        _from_handle: FileHandle,
        from_offset: u64,
        to: INodeNo,
        _to_handle: FileHandle,
        to_offset: u64,
        len: u64,
        flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        if !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let from = FilePlace { inode: self.inode(from), offset: from_offset };
        let to = FilePlace { inode: self.inode(to), offset: to_offset };
        let dropped = self.drop_privileges_of_caller(request, to.inode);
        let copy = || self.fs.copy(from, to, len.min(COPY_BYTES_MAX));
        match dropped.and_then(|()| self.with_space(copy)) {
            Ok(copied) => {
                self.note_copy(from.inode, copied);
                reply.written(u32::try_from(copied).unwrap_or(u32::MAX));
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn lseek(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let what = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        let inode = self.inode(number);
        let found = self.fs.seek(inode, offset, what);
        let has_more = self.may_have_dirty_pages(inode);
        let hole = has_more.then(|| hole(&self.fs, inode, (offset, what), &found)).flatten();
        let Some(hole) = hole else { return reply_lseek(found, reply) };
        let fs = Arc::clone(&self.fs);
        self.caches.answer_apart(move |caches| {
            let found = match caches {
                Some(caches) => seek_written((&fs, caches), inode, (offset, what), &hole),
                None => found,
            };
            reply_lseek(found, reply);
        });
    }
}

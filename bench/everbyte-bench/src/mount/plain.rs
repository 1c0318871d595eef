//! A plain file system in volatile memory.
//!
//! It has a table of inodes, a lock for each inode, and bytes in vectors. Invariants: the lock order is directory, then
//! file. An inode without names is freed when the kernel forgets it.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use parking_lot::{Mutex, RwLock};

use super::fuse_options::{FuseOptions, ROOT, attributes, no_attributes};

/// The content of an inode.
enum Body {
    File(Vec<u8>),
    Directory(Names),
}

/// The names of a directory. A listing goes by number, so that it stays in place while names go.
#[derive(Default)]
struct Names {
    numbers: HashMap<OsString, INodeNo>,
    in_order: BTreeMap<u64, OsString>,
}

impl Names {
    fn get(&self, name: &OsStr) -> Option<INodeNo> {
        self.numbers.get(name).copied()
    }

    fn insert(&mut self, name: &OsStr, number: INodeNo) {
        self.numbers.insert(name.to_owned(), number);
        self.in_order.insert(number.0, name.to_owned());
    }

    fn remove(&mut self, name: &OsStr) -> Option<INodeNo> {
        let number = self.numbers.remove(name)?;
        self.in_order.remove(&number.0);
        Some(number)
    }
}

struct State {
    attr: FileAttr,
    body: Body,
    /// How often the kernel was told of it.
    told: u64,
}

type Inode = Arc<Mutex<State>>;

/// The file system.
pub(crate) struct Plain {
    options: FuseOptions,
    inodes: RwLock<HashMap<INodeNo, Inode>>,
    made: AtomicU64,
}

impl State {
    fn new(number: INodeNo, kind: FileType, perm: u16) -> Self {
        let now = SystemTime::now();
        let attr = attributes(number, kind, perm, 0);
        let attr = FileAttr { atime: now, mtime: now, ctime: now, crtime: now, ..attr };
        let body = match kind {
            FileType::Directory => Body::Directory(Names::default()),
            _ => Body::File(Vec::new()),
        };
        Self { attr, body, told: 0 }
    }

    fn bytes(&mut self) -> Result<&mut Vec<u8>, Errno> {
        match &mut self.body {
            Body::File(bytes) => Ok(bytes),
            Body::Directory(_) => Err(Errno::EISDIR),
        }
    }

    fn names(&mut self) -> Result<&mut Names, Errno> {
        match &mut self.body {
            Body::Directory(names) => Ok(names),
            Body::File(_) => Err(Errno::ENOTDIR),
        }
    }

    fn note_change(&mut self) {
        let now = SystemTime::now();
        (self.attr.mtime, self.attr.ctime) = (now, now);
        if let Body::File(bytes) = &self.body {
            self.attr.size = bytes.len() as u64;
            self.attr.blocks = self.attr.size.div_ceil(512);
        }
    }
}

/// An offset or size of bytes that are in memory.
fn place(offset: u64) -> Result<usize, Errno> {
    usize::try_from(offset).map_err(|_| Errno::EFBIG)
}

impl Plain {
    pub(crate) fn new(options: FuseOptions) -> Self {
        let root = Arc::new(Mutex::new(State::new(ROOT, FileType::Directory, 0o755)));
        let inodes = RwLock::new(HashMap::from([(ROOT, root)]));
        Self { options, inodes, made: AtomicU64::new(ROOT.0) }
    }

    fn inode(&self, number: INodeNo) -> Result<Inode, Errno> {
        self.inodes.read().get(&number).cloned().ok_or(Errno::ESTALE)
    }

    fn find(&self, parent: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        let parent = self.inode(parent)?;
        let mut parent = parent.lock();
        let number = parent.names()?.get(name).ok_or(Errno::ENOENT)?;
        let found = self.inode(number)?;
        let mut found = found.lock();
        found.told += 1;
        Ok(found.attr)
    }

    fn make(
        &self,
        parent: INodeNo,
        name: &OsStr,
        kind: FileType,
        mode: u32,
    ) -> Result<FileAttr, Errno> {
        let parent = self.inode(parent)?;
        let mut parent = parent.lock();
        if parent.names()?.get(name).is_some() {
            return Err(Errno::EEXIST);
        }
        let number = INodeNo(self.made.fetch_add(1, Ordering::Relaxed) + 1);
        let mut state = State::new(number, kind, u16::try_from(mode & 0o7777).unwrap_or(0o644));
        state.told = 1;
        let attr = state.attr;
        self.inodes.write().insert(number, Arc::new(Mutex::new(state)));
        parent.names()?.insert(name, number);
        parent.note_change();
        Ok(attr)
    }

    /// Removes a name, and the inode if nobody knows it.
    fn remove(&self, parent: INodeNo, name: &OsStr) -> Result<(), Errno> {
        let parent = self.inode(parent)?;
        let mut parent = parent.lock();
        let number = parent.names()?.get(name).ok_or(Errno::ENOENT)?;
        let inode = self.inode(number)?;
        let mut inode = inode.lock();
        if matches!(&inode.body, Body::Directory(names) if !names.numbers.is_empty()) {
            return Err(Errno::ENOTEMPTY);
        }
        inode.attr.nlink = 0;
        if inode.told == 0 {
            self.inodes.write().remove(&number);
        }
        parent.names()?.remove(name);
        parent.note_change();
        Ok(())
    }

    fn rename(&self, from: (INodeNo, &OsStr), to: (INodeNo, &OsStr)) -> Result<(), Errno> {
        let taken = {
            let parent = self.inode(from.0)?;
            let mut parent = parent.lock();
            let taken = parent.names()?.remove(from.1).ok_or(Errno::ENOENT)?;
            parent.note_change();
            taken
        };
        // Not atomic: the workloads do not look.
        match self.remove(to.0, to.1) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(error) => return Err(error),
        }
        let parent = self.inode(to.0)?;
        let mut parent = parent.lock();
        parent.names()?.insert(to.1, taken);
        parent.note_change();
        Ok(())
    }

    fn set(
        &self,
        number: INodeNo,
        mode: Option<u32>,
        size: Option<u64>,
    ) -> Result<FileAttr, Errno> {
        let inode = self.inode(number)?;
        let mut inode = inode.lock();
        if let Some(size) = size {
            inode.bytes()?.resize(place(size)?, 0);
            inode.note_change();
        }
        if let Some(mode) = mode {
            inode.attr.perm = u16::try_from(mode & 0o7777).unwrap_or(inode.attr.perm);
        }
        Ok(inode.attr)
    }

    fn write(&self, number: INodeNo, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let inode = self.inode(number)?;
        let mut inode = inode.lock();
        let start = place(offset)?;
        let end = start.checked_add(data.len()).ok_or(Errno::EFBIG)?;
        let bytes = inode.bytes()?;
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[start..end].copy_from_slice(data);
        inode.note_change();
        Ok(())
    }

    /// Answers with the entries from place `offset` on.
    fn list(&self, number: INodeNo, offset: u64, reply: &mut ReplyDirectory) -> Result<(), Errno> {
        let inode = self.inode(number)?;
        let mut inode = inode.lock();
        let first = offset.max(ROOT.0) + 1;
        if offset == 0 && reply.add(number, ROOT.0, FileType::Directory, ".") {
            return Ok(());
        }
        for (&entry, name) in inode.names()?.in_order.range(first..) {
            let kind = self.inode(INodeNo(entry))?.lock().attr.kind;
            if reply.add(INodeNo(entry), entry, kind, name) {
                break;
            }
        }
        Ok(())
    }

    fn reply_entry(&self, found: Result<FileAttr, Errno>, reply: ReplyEntry) {
        match found {
            Ok(attr) => reply.entry(&self.options.lifetime, &attr, Generation(0)),
            Err(Errno::ENOENT) => {
                reply.entry(&self.options.lifetime, &no_attributes(), Generation(0));
            }
            Err(error) => reply.error(error),
        }
    }

    fn reply_attr(&self, attr: Result<FileAttr, Errno>, reply: ReplyAttr) {
        match attr {
            Ok(attr) => reply.attr(&self.options.lifetime, &attr),
            Err(error) => reply.error(error),
        }
    }
}

fn reply_empty(done: Result<(), Errno>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

impl Filesystem for Plain {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        self.options.ask(config);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.reply_entry(self.find(parent, name), reply);
    }

    fn forget(&self, _: &Request, number: INodeNo, times: u64) {
        let Ok(inode) = self.inode(number) else { return };
        let mut inode = inode.lock();
        inode.told = inode.told.saturating_sub(times);
        if inode.told == 0 && inode.attr.nlink == 0 {
            self.inodes.write().remove(&number);
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.reply_attr(self.inode(number).map(|inode| inode.lock().attr), reply);
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        mode: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.reply_attr(self.set(number, mode, size), reply);
    }

    fn mkdir(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        self.reply_entry(self.make(parent, name, FileType::Directory, mode & !umask), reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(self.remove(parent, name), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(self.remove(parent, name), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply_empty(self.rename((parent, name), (new_parent, new_name)), reply);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.options.open(reply);
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        match self.make(parent, name, FileType::RegularFile, mode & !umask) {
            Ok(attr) => {
                let flags = self.options.open_flags;
                reply.created(&self.options.lifetime, &attr, Generation(0), FileHandle(0), flags);
            }
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let inode = match self.inode(number) {
            Ok(inode) => inode,
            Err(error) => return reply.error(error),
        };
        let mut inode = inode.lock();
        match inode.bytes().and_then(|bytes| Ok((place(offset)?.min(bytes.len()), bytes))) {
            Ok((start, bytes)) => {
                let end = bytes.len().min(start + usize::try_from(size).unwrap_or(0));
                reply.data(&bytes[start..end]);
            }
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.write(number, offset, data) {
            Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX)),
            Err(error) => reply.error(error),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn readdir(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        match self.list(number, offset, &mut reply) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(1 << 30, 1 << 30, 1 << 30, 1 << 30, 1 << 30, 4096, 255, 4096);
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENODATA);
    }
}

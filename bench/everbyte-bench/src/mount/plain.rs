//! A plain file system in volatile memory, and an empty one with constant answers.
//!
//! The plain one has a table of inodes, a lock for each inode, and bytes in vectors. It has only the requests of the
//! measured calls and workloads. Invariants: the lock order is directory, then file. An inode without names is freed
//! when the kernel forgets it.
//!
//! The requests of the empty one cost only the kernel and the transport. Invariants: it has one directory. A file exists
//! after its creation, or if its name begins with `file`. No file keeps bytes.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use parking_lot::{Mutex, RwLock};

use super::fuse_options::{FuseOptions, ROOT, attributes, no_attributes};

/// Size of every file of the empty file system.
const EMPTY_FILE_BYTES: u64 = 1 << 30;
/// Number of the existing files of the empty file system, and the first letters of their names.
const EMPTY_FILE: (INodeNo, &[u8]) = (INodeNo(2), b"file");
/// Bytes of the longest read.
static ZEROES: [u8; 1 << 20] = [0; 1 << 20];

/// The content of an inode.
enum Body {
    File(Vec<u8>),
    Directory(HashMap<OsString, INodeNo>),
}

struct State {
    attr: FileAttr,
    body: Body,
    /// The kernel's lookup count.
    lookups: u64,
}

type Inode = Arc<Mutex<State>>;

/// The file system.
pub(crate) struct Plain {
    options: FuseOptions,
    /// False for the empty file system.
    keeps: bool,
    inodes: RwLock<HashMap<INodeNo, Inode>>,
    last_number: AtomicU64,
}

impl State {
    fn new(number: INodeNo, kind: FileType, perm: u16) -> Self {
        let now = SystemTime::now();
        let attr = attributes(number, kind, perm, 0);
        let attr = FileAttr { atime: now, mtime: now, ctime: now, crtime: now, ..attr };
        let body = match kind {
            FileType::Directory => Body::Directory(HashMap::new()),
            _ => Body::File(Vec::new()),
        };
        Self { attr, body, lookups: 1 }
    }

    fn bytes(&mut self) -> Result<&mut Vec<u8>, Errno> {
        match &mut self.body {
            Body::File(bytes) => Ok(bytes),
            Body::Directory(_) => Err(Errno::EISDIR),
        }
    }

    fn names(&mut self) -> Result<&mut HashMap<OsString, INodeNo>, Errno> {
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

/// An offset or size as an index of memory.
fn place(offset: u64) -> Result<usize, Errno> {
    usize::try_from(offset).map_err(|_| Errno::EFBIG)
}

impl Plain {
    /// The plain file system, or the empty one unless `keeps`.
    pub(crate) fn new(options: FuseOptions, keeps: bool) -> Self {
        let root = Arc::new(Mutex::new(State::new(ROOT, FileType::Directory, 0o755)));
        let inodes = RwLock::new(HashMap::from([(ROOT, root)]));
        Self { options, keeps, inodes, last_number: AtomicU64::new(EMPTY_FILE.0.0) }
    }

    fn inode(&self, number: INodeNo) -> Result<Inode, Errno> {
        self.inodes.read().get(&number).cloned().ok_or(Errno::ESTALE)
    }

    fn find(&self, parent: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        if !self.keeps {
            let exists = name.as_bytes().starts_with(EMPTY_FILE.1);
            return if exists { self.attr(EMPTY_FILE.0) } else { Err(Errno::ENOENT) };
        }
        let parent = self.inode(parent)?;
        let mut parent = parent.lock();
        let number = *parent.names()?.get(name).ok_or(Errno::ENOENT)?;
        let found = self.inode(number)?;
        let mut found = found.lock();
        // The kernel counts each answered lookup, and forgets as many.
        found.lookups += 1;
        Ok(found.attr)
    }

    fn attr(&self, number: INodeNo) -> Result<FileAttr, Errno> {
        match number {
            _ if self.keeps => Ok(self.inode(number)?.lock().attr),
            ROOT => Ok(attributes(ROOT, FileType::Directory, 0o755, 0)),
            _ => Ok(attributes(number, FileType::RegularFile, 0o644, EMPTY_FILE_BYTES)),
        }
    }

    fn make(
        &self,
        parent: INodeNo,
        name: &OsStr,
        kind: FileType,
        mode: u32,
    ) -> Result<FileAttr, Errno> {
        let number = INodeNo(self.last_number.fetch_add(1, Ordering::Relaxed) + 1);
        if !self.keeps {
            return Ok(attributes(number, kind, 0o644, 0));
        }
        let parent = self.inode(parent)?;
        let mut parent = parent.lock();
        if parent.names()?.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        let state = State::new(number, kind, u16::try_from(mode & 0o7777).unwrap_or(0o644));
        let attr = state.attr;
        self.inodes.write().insert(number, Arc::new(Mutex::new(state)));
        parent.names()?.insert(name.to_owned(), number);
        parent.note_change();
        Ok(attr)
    }

    /// Removes a file's name, and its inode if the kernel has no reference to it.
    fn remove(&self, parent: INodeNo, name: &OsStr) -> Result<(), Errno> {
        if !self.keeps {
            return Ok(());
        }
        let parent = self.inode(parent)?;
        let mut parent = parent.lock();
        let number = *parent.names()?.get(name).ok_or(Errno::ENOENT)?;
        let inode = self.inode(number)?;
        let mut inode = inode.lock();
        inode.attr.nlink = 0;
        if inode.lookups == 0 {
            self.inodes.write().remove(&number);
        }
        parent.names()?.remove(name);
        parent.note_change();
        Ok(())
    }

    fn set_size(&self, number: INodeNo, size: Option<u64>) -> Result<FileAttr, Errno> {
        if let Some(size) = size.filter(|_| self.keeps) {
            let inode = self.inode(number)?;
            let mut inode = inode.lock();
            inode.bytes()?.resize(place(size)?, 0);
            inode.note_change();
        }
        self.attr(number)
    }

    fn write(&self, number: INodeNo, offset: u64, data: &[u8]) -> Result<(), Errno> {
        if !self.keeps {
            return Ok(());
        }
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
        inode.lookups = inode.lookups.saturating_sub(times);
        if inode.lookups == 0 && inode.attr.nlink == 0 {
            self.inodes.write().remove(&number);
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.reply_attr(self.attr(number), reply);
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        _: Option<u32>,
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
        self.reply_attr(self.set_size(number, size), reply);
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
        match self.remove(parent, name) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
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
        let bytes_max = usize::try_from(size).unwrap_or(usize::MAX);
        if !self.keeps {
            let left = usize::try_from(EMPTY_FILE_BYTES.saturating_sub(offset));
            return reply
                .data(&ZEROES[..bytes_max.min(left.unwrap_or(usize::MAX)).min(ZEROES.len())]);
        }
        let inode = match self.inode(number) {
            Ok(inode) => inode,
            Err(error) => return reply.error(error),
        };
        let mut inode = inode.lock();
        match inode.bytes().and_then(|bytes| Ok((place(offset)?.min(bytes.len()), bytes))) {
            Ok((start, bytes)) => reply.data(&bytes[start..bytes.len().min(start + bytes_max)]),
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

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENODATA);
    }
}

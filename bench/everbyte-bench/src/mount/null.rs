//! An empty file system with constant answers. Its requests cost only the kernel and the transport.
//!
//! Invariants: it has one directory. A file exists after its creation, or if its name begins with `file`. No file keeps
//! bytes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, Errno, FileHandle, FileType, Filesystem, Generation, INodeNo, KernelConfig,
    LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use super::fuse_options::{FuseOptions, ROOT, attributes, no_attributes};

/// Bytes that every file seems to have.
const FILE_BYTES: u64 = 1 << 30;
/// Most bytes of a request.
const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Files that are there.
const FILE: INodeNo = INodeNo(2);
const FILE_NAME: &[u8] = b"file";

/// The file system.
pub(crate) struct Null {
    options: FuseOptions,
    zeroes: Vec<u8>,
    created: AtomicU64,
}

impl Null {
    pub(crate) fn new(options: FuseOptions) -> Self {
        Self { options, zeroes: vec![0; REQUEST_BYTES_MAX], created: AtomicU64::new(FILE.0) }
    }

    fn attributes(number: INodeNo) -> fuser::FileAttr {
        match number {
            ROOT => attributes(ROOT, FileType::Directory, 0o755, 0),
            number => attributes(number, FileType::RegularFile, 0o644, FILE_BYTES),
        }
    }
}

impl Filesystem for Null {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        self.options.ask(config);
        Ok(())
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let attr = match name.as_bytes().starts_with(FILE_NAME) {
            true => Self::attributes(FILE),
            false => no_attributes(),
        };
        reply.entry(&self.options.lifetime, &attr, Generation(0));
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&self.options.lifetime, &Self::attributes(number));
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u64>,
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
        reply.attr(&self.options.lifetime, &Self::attributes(number));
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.ok();
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.options.open(reply);
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let number = INodeNo(self.created.fetch_add(1, Ordering::Relaxed) + 1);
        let attr = attributes(number, FileType::RegularFile, 0o644, 0);
        let flags = self.options.open_flags;
        reply.created(&self.options.lifetime, &attr, Generation(0), FileHandle(0), flags);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let left = usize::try_from(FILE_BYTES.saturating_sub(offset)).unwrap_or(usize::MAX);
        let bytes = usize::try_from(size).unwrap_or(usize::MAX).min(left);
        reply.data(&self.zeroes[..bytes.min(REQUEST_BYTES_MAX)]);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX));
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(1 << 30, 1 << 30, 1 << 30, 1 << 30, 1 << 30, 4096, 255, 4096);
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENODATA);
    }
}

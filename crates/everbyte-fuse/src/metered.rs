//! The kernel's requests, counted and sampled on their way to the operations.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use everbyte_device::meter::{Meter, MeterShard, Operation};
use everbyte_media::Medium;
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, INodeNo, IoctlFlags, KernelConfig,
    LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek,
    ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use crate::operations::Operations;
use crate::outcome::{self, Outcome};

thread_local! {
    /// A number of the thread, so that threads of a mount share few counts.
    static THREAD: usize = {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        THREADS.fetch_add(1, Ordering::Relaxed)
    };
}

/// The operations of a mount behind a meter.
pub(crate) struct MeteredOperations<M: Medium> {
    operations: Operations<M>,
    shards: Vec<Arc<MeterShard>>,
}

impl<M: Medium> MeteredOperations<M> {
    pub(crate) fn new(operations: Operations<M>, meter: &Meter, threads: usize) -> Self {
        let shards = (0..threads.max(1)).map(|_| meter.shard()).collect();
        Self { operations, shards }
    }

    fn count(&self, operation: Operation, request: impl FnOnce()) {
        let shard = &self.shards[THREAD.with(|thread| *thread) % self.shards.len()];
        let _of_an_uncounted_request = outcome::take();
        let started = shard.begin(operation, 1);
        request();
        let Outcome { bytes, error } = outcome::take();
        shard.end(&started, bytes);
        if let Some(cause) = error {
            shard.fail(cause);
        }
    }
}

/// Methods that forward a request of the kernel: counted with an operation, uncounted without.
macro_rules! forwarded {
    ($($name:ident $(as $operation:ident)? ($($argument:ident: $type:ty),*);)*) => {
        $(fn $name(&self, request: &Request, $($argument: $type),*) {
            let carry_out = || self.operations.$name(request, $($argument),*);
            forwarded!(@ self, carry_out $(, $operation)?);
        })*
    };
    (@ $self:ident, $carry_out:ident, $operation:ident) => {
        $self.count(Operation::$operation, $carry_out)
    };
    (@ $self:ident, $carry_out:ident) => {
        $carry_out()
    };
}

type Handle = FileHandle;
type Time = Option<SystemTime>;
type Owner = Option<LockOwner>;

impl<M: Medium> Filesystem for MeteredOperations<M> {
    fn init(&mut self, request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        self.operations.init(request, config)
    }

    fn destroy(&mut self) {
        self.operations.destroy();
    }

    forwarded! {
        forget(number: INodeNo, times: u64);
        lookup as Lookup(parent: INodeNo, name: &OsStr, reply: ReplyEntry);
        getattr as Attributes(number: INodeNo, handle: Option<Handle>, reply: ReplyAttr);
        setattr as Attributes(
            number: INodeNo, mode: Option<u32>, uid: Option<u32>, gid: Option<u32>, size: Option<u64>,
            accessed: Option<TimeOrNow>, modified: Option<TimeOrNow>, changed: Time,
            handle: Option<Handle>, created: Time, flags_changed: Time, backed_up: Time,
            flags: Option<BsdFileFlags>, reply: ReplyAttr
        );
        readlink as Lookup(number: INodeNo, reply: ReplyData);
        mknod as Names(
            parent: INodeNo, name: &OsStr, mode: u32, umask: u32, device: u32, reply: ReplyEntry
        );
        mkdir as Names(parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry);
        unlink as Names(parent: INodeNo, name: &OsStr, reply: ReplyEmpty);
        rmdir as Names(parent: INodeNo, name: &OsStr, reply: ReplyEmpty);
        symlink as Names(parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry);
        rename as Names(
            parent: INodeNo, name: &OsStr, new_parent: INodeNo, new_name: &OsStr, flags: RenameFlags,
            reply: ReplyEmpty
        );
        link as Names(number: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry);
        open as Open(number: INodeNo, flags: OpenFlags, reply: ReplyOpen);
        read as Read(
            number: INodeNo, handle: Handle, offset: u64, size: u32, flags: OpenFlags, owner: Owner,
            reply: ReplyData
        );
        write as Write(
            number: INodeNo, handle: Handle, offset: u64, data: &[u8], write_flags: WriteFlags,
            flags: OpenFlags, owner: Owner, reply: ReplyWrite
        );
        flush(number: INodeNo, handle: Handle, owner: LockOwner, reply: ReplyEmpty);
        release(
            number: INodeNo, handle: Handle, flags: OpenFlags, owner: Owner, flush: bool,
            reply: ReplyEmpty
        );
        fsync as Flush(number: INodeNo, handle: Handle, data_only: bool, reply: ReplyEmpty);
        opendir as Open(number: INodeNo, flags: OpenFlags, reply: ReplyOpen);
        readdir as List(number: INodeNo, handle: Handle, offset: u64, reply: ReplyDirectory);
        readdirplus as List(number: INodeNo, handle: Handle, offset: u64, reply: ReplyDirectoryPlus);
        releasedir(number: INodeNo, handle: Handle, flags: OpenFlags, reply: ReplyEmpty);
        fsyncdir as Flush(number: INodeNo, handle: Handle, data_only: bool, reply: ReplyEmpty);
        statfs as Attributes(number: INodeNo, reply: ReplyStatfs);
        setxattr as Attributes(
            number: INodeNo, name: &OsStr, value: &[u8], flags: i32, position: u32, reply: ReplyEmpty
        );
        getxattr as Attributes(number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr);
        listxattr as Attributes(number: INodeNo, size: u32, reply: ReplyXattr);
        removexattr as Attributes(number: INodeNo, name: &OsStr, reply: ReplyEmpty);
        create as Names(
            parent: INodeNo, name: &OsStr, mode: u32, umask: u32, flags: i32, reply: ReplyCreate
        );
        ioctl as Attributes(
            number: INodeNo, handle: Handle, flags: IoctlFlags, command: u32, data: &[u8],
            out_bytes: u32, reply: ReplyIoctl
        );
        poll(
            number: INodeNo, handle: Handle, notifier: PollNotifier, events: PollEvents,
            flags: PollFlags, reply: ReplyPoll
        );
        fallocate as Allocate(
            number: INodeNo, handle: Handle, offset: u64, len: u64, mode: i32, reply: ReplyEmpty
        );
        copy_file_range as Allocate(
            from: INodeNo, from_handle: Handle, from_offset: u64, to: INodeNo, to_handle: Handle,
            to_offset: u64, len: u64, flags: CopyFileRangeFlags, reply: ReplyWrite
        );
        lseek as Status(
            number: INodeNo, handle: Handle, offset: i64, whence: i32, reply: ReplyLseek
        );
    }
}

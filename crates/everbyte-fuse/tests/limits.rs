//! Limits of the kernel's FUSE, shown with a minimal server. `docs/semantics.md` lists them as differences from ext4.
//!
//! The server has one regular file and one pipe, and grants every request. A failed call, or a call
//! without a request, has its cause in the kernel. Needs root, as `swapon` and `mount` do. A
//! separate test binary, because fuser logs each request and a process has one logger.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use everbyte_fuse::{DirMount, KernelCaching, MountOptions, Privileges};
use fuser::{
    BackgroundSession, Config, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyWrite,
    Request, Session, SessionACL, TimeOrNow, WriteFlags,
};

/// Bytes of the regular file.
const FILE_BYTES: u64 = 1 << 20;
/// Append-only, immutable and nodump, as FS_IOC_GETFLAGS reports them.
const FLAGS: u64 = 0x70;
const FILE: INodeNo = INodeNo(2);
const PIPE: INodeNo = INodeNo(3);

/// Names of the requests since they were last taken.
struct Requests(Mutex<Vec<String>>);

static REQUESTS: Requests = Requests(Mutex::new(Vec::new()));

impl log::Log for Requests {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        // Such as "FUSE(  4) ino 0x0000000000000001 LOOKUP name ..."
        let line = record.args().to_string();
        let Some((_, request)) = line.split_once(" ino ") else { return };
        if line.starts_with("FUSE(") {
            let name = request.split_whitespace().nth(1).unwrap_or_default();
            self.0.lock().unwrap().push(name.trim_end_matches(',').to_owned());
        }
    }

    fn flush(&self) {}
}

/// Returns the requests of `call`, without those for names, attributes and ends of files.
fn requests(call: impl FnOnce()) -> Vec<String> {
    REQUESTS.0.lock().unwrap().clear();
    call();
    let mut requests = std::mem::take(&mut *REQUESTS.0.lock().unwrap());
    let usual = [
        "LOOKUP",
        "GETATTR",
        "FORGET",
        "BATCHFORGET",
        "RELEASE",
        "FLUSH",
        "OPEN",
        "ACCESS",
        "GETXATTR",
    ];
    requests.retain(|name| !usual.contains(&name.as_str()));
    requests
}

fn attr(inode: INodeNo) -> FileAttr {
    let (kind, perm, size) = match inode {
        FILE => (FileType::RegularFile, 0o600, FILE_BYTES),
        PIPE => (FileType::NamedPipe, 0o600, 0),
        _ => (FileType::Directory, 0o755, 0),
    };
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
    FileAttr {
        ino: inode,
        size,
        blocks: size / 512,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind,
        perm,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

const LIFETIME: Duration = Duration::from_secs(1);

/// The server. Requests without a method get fuser's answers.
struct MinimalServer;

impl Filesystem for MinimalServer {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name.to_str() {
            Some("file") => reply.entry(&LIFETIME, &attr(FILE), Generation(0)),
            Some("pipe") => reply.entry(&LIFETIME, &attr(PIPE), Generation(0)),
            _ => reply.error(fuser::Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&LIFETIME, &attr(inode));
    }

    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
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
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.attr(&LIFETIME, &attr(inode));
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
        let left = usize::try_from(FILE_BYTES.saturating_sub(offset)).unwrap();
        reply.data(&vec![0; left.min(size as usize)]);
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
        reply.written(u32::try_from(data.len()).unwrap());
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: u64,
        _: i32,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: fuser::IoctlFlags,
        _: u32,
        _: &[u8],
        out_len: u32,
        reply: ReplyIoctl,
    ) {
        // The kernel takes only whole answers. For FS_IOC_GETFLAGS this is a file with all flags of FLAGS.
        let answer = FLAGS.to_ne_bytes();
        reply.ioctl(0, &answer[..answer.len().min(out_len as usize)]);
    }
}

/// The server on a directory. Dropping it unmounts.
struct Mounted {
    mount: DirMount,
    dir: tempfile::TempDir,
    _session: BackgroundSession,
}

impl Mounted {
    fn new() -> Self {
        let _ = log::set_logger(&REQUESTS);
        log::set_max_level(log::LevelFilter::Debug);
        let dir = tempfile::tempdir().unwrap();
        let options = MountOptions {
            source: format!("test/{}", dir.path().display()),
            allow_other: false,
            read_only: false,
            threads: 1,
            access_times: everbyte_fs::AccessTimes::Relative,
            caching: KernelCaching::Full,
            privileges: Privileges::default(),
            exec: true,
            dir_access_times: true,
        };
        let (mount, descriptor) = DirMount::new(dir.path(), &options).unwrap();
        let session =
            Session::from_fd(MinimalServer, descriptor, SessionACL::All, Config::default());
        let session = session.unwrap().spawn().unwrap();
        Self { mount, dir, _session: session }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn open(&self) -> File {
        File::options().read(true).write(true).open(self.path("file")).unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        assert!(self.mount.detach());
    }
}

/// Runs a Python program with `path` as its argument, and returns its output. Python reaches system calls without a
/// safe wrapper.
fn python(program: &str, path: &Path) -> String {
    let output =
        Command::new("/usr/bin/python3").arg("-c").arg(program).arg(path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// One test, because requests have one list.
#[test]
fn kernel_limits_of_fuse_hold_for_minimal_server() {
    if !everbyte_testkit::is_root("use swapon and remount") {
        return;
    }
    let mounted = Mounted::new();
    pipe_write_sends_no_request(&mounted);
    fiemap_sends_no_request(&mounted);
    swapon_sends_no_block_map_request(&mounted);
    shifting_fallocate_sends_no_request(&mounted);
    seek_has_no_limit_of_server(&mounted);
    syncfs_sends_no_request(&mounted);
    verity_request_arrives(&mounted);
    statx_reports_no_flags_of_server(&mounted);
    remount_sends_no_request(&mounted);
}

fn pipe_write_sends_no_request(mounted: &Mounted) {
    let path = mounted.path("pipe");
    let sent = requests(|| {
        let mut pipe = File::options().read(true).write(true).open(&path).unwrap();
        pipe.write_all(b"x").unwrap();
        pipe.read_exact(&mut [0]).unwrap();
    });
    assert_eq!(sent, [""; 0]);
    assert_eq!(fs::metadata(&path).unwrap().mtime(), 1000);
}

fn fiemap_sends_no_request(mounted: &Mounted) {
    let program = "import fcntl,os,sys,errno
f=os.open(sys.argv[1],os.O_RDWR)
try: fcntl.ioctl(f,0xC020660B,bytearray(32)); print(0)
except OSError as e: print(errno.errorcode[e.errno])";
    let mut said = String::new();
    let sent = requests(|| said = python(program, &mounted.path("file")));
    assert_eq!((said.as_str(), sent), ("ENOTSUP", Vec::new()));
}

fn swapon_sends_no_block_map_request(mounted: &Mounted) {
    let program = "import ctypes,errno,os,sys
libc=ctypes.CDLL(None,use_errno=True)
print(errno.errorcode[ctypes.get_errno()] if libc.swapon(os.fsencode(sys.argv[1]),0) else 0)";
    let mut said = String::new();
    let sent = requests(|| said = python(program, &mounted.path("file")));
    assert_eq!(said, "EINVAL");
    assert!(!sent.contains(&"BMAP".to_owned()), "{sent:?}");
}

fn shifting_fallocate_sends_no_request(mounted: &Mounted) {
    let program = "import ctypes,errno,os,sys
libc=ctypes.CDLL(None,use_errno=True)
f=os.open(sys.argv[1],os.O_RDWR)
def one(mode):
    done=libc.fallocate(f,mode,ctypes.c_long(4096),ctypes.c_long(4096))
    return errno.errorcode[ctypes.get_errno()] if done else '0'
print(*map(one,(0x8,0x20,0x40,0)))";
    let mut said = String::new();
    let sent = requests(|| said = python(program, &mounted.path("file")));
    // Collapse, insert and unshare stay in the kernel. Plain allocation arrives.
    assert_eq!(said, "ENOTSUP ENOTSUP ENOTSUP 0");
    assert_eq!(sent, ["FALLOCATE"]);
}

fn seek_has_no_limit_of_server(mounted: &Mounted) {
    use std::io::{Seek, SeekFrom};
    let mut file = mounted.open();
    let sent = requests(|| {
        assert_eq!(file.seek(SeekFrom::Start(1 << 62)).unwrap(), 1 << 62);
    });
    assert_eq!(sent, [""; 0]);
}

fn syncfs_sends_no_request(mounted: &Mounted) {
    let file = mounted.open();
    let sent = requests(|| rustix::fs::syncfs(&file).unwrap());
    assert_eq!(sent, [""; 0], "descriptor {}", file.as_raw_fd());
}

/// The reply to GETATTR has no field for flags, and the kernel declares none of them as supported.
fn statx_reports_no_flags_of_server(mounted: &Mounted) {
    use rustix::fs::{AtFlags, StatxAttributes, StatxFlags};
    let get_flags = "import fcntl,os,sys,struct
f=os.open(sys.argv[1],os.O_RDONLY)
print(*struct.unpack_from('i',fcntl.ioctl(f,0x80086601,bytes(8))))";
    let mut said = String::new();
    let sent = requests(|| said = python(get_flags, &mounted.path("file")));
    assert_eq!((said.as_str(), sent), ("112", vec!["IOCTL".to_owned()]));
    let file = mounted.open();
    let status =
        rustix::fs::statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).unwrap();
    let flags = StatxAttributes::APPEND
        | StatxAttributes::IMMUTABLE
        | StatxAttributes::NODUMP
        | StatxAttributes::COMPRESSED;
    assert_eq!(status.stx_attributes_mask & flags, StatxAttributes::empty());
    assert_eq!(status.stx_attributes & flags, StatxAttributes::empty());
}

fn remount_sends_no_request(mounted: &Mounted) {
    let sent = requests(|| {
        let flags = rustix::mount::MountFlags::RDONLY;
        rustix::mount::mount_remount(mounted.dir.path(), flags, "").unwrap();
    });
    assert_eq!(sent, [""; 0]);
}

/// The kernel passes fs-verity on, so its absence is a limit of this file system.
fn verity_request_arrives(mounted: &Mounted) {
    let program = "import fcntl,os,sys
f=os.open(sys.argv[1],os.O_RDONLY)
fcntl.ioctl(f,0x40806685,bytearray(128))";
    let sent = requests(|| drop(python(program, &mounted.path("file"))));
    assert_eq!(sent, ["IOCTL"]);
}

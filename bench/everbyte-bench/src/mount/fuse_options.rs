//! The FUSE options of the measured servers: the same for our file system and for all others.

use std::time::{Duration, UNIX_EPOCH};

use clap::ValueEnum;
use everbyte_fuse::KernelCaching;
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, FopenFlags, INodeNo, InitFlags, KernelConfig,
    MountOption, ReplyOpen, SessionACL,
};

/// The kernel's number of the root.
pub(crate) const ROOT: INodeNo = INodeNo::ROOT;
/// Lifetime of names and attributes in the kernel, as in our mount.
const LIFETIME: Duration = Duration::from_secs(3600);
/// Most bytes of a write request, as in our mount.
const WRITE_BYTES_MAX: u32 = 1 << 20;
const BLOCK: u32 = 4096;
const SECTOR: u64 = 512;

/// The kernel's caching.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Caching {
    /// As ours is shipped: names, attributes and bytes.
    Cached,
    /// Nothing: lifetimes are 0, and files are read and written past the page cache.
    Direct,
}

/// The options of a server of this suite.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FuseOptions {
    pub(crate) lifetime: Duration,
    pub(crate) open_flags: FopenFlags,
}

impl Caching {
    pub(crate) const ALL: [Self; 2] = [Self::Cached, Self::Direct];

    /// Its name in the results and on command lines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cached => "cached",
            Self::Direct => "direct",
        }
    }

    /// The same to our mount.
    pub(crate) fn ours(self) -> KernelCaching {
        match self {
            Self::Cached => KernelCaching::Full,
            Self::Direct => KernelCaching::Off,
        }
    }
}

impl FuseOptions {
    pub(crate) fn new(caching: Caching) -> Self {
        let (lifetime, open_flags) = match caching {
            Caching::Cached => (LIFETIME, FopenFlags::FOPEN_KEEP_CACHE),
            Caching::Direct => (Duration::ZERO, FopenFlags::FOPEN_DIRECT_IO),
        };
        Self { lifetime, open_flags }
    }

    /// Asks the kernel for the same capabilities as our mount.
    pub(crate) fn ask(&self, config: &mut KernelConfig) {
        for flag in [
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_POSIX_ACL,
            InitFlags::FUSE_DONT_MASK,
        ] {
            // A kernel without it has it for nobody.
            let _absent = config.add_capabilities(flag);
        }
        let _as_ours = config.set_max_write(WRITE_BYTES_MAX);
    }

    /// Answers an open request. With caching, the kernel sends no further open requests, as with our mount.
    pub(crate) fn open(&self, reply: ReplyOpen) {
        if self.open_flags.contains(FopenFlags::FOPEN_DIRECT_IO) {
            reply.opened(FileHandle(0), self.open_flags);
        } else {
            reply.error(Errno::ENOSYS);
        }
    }
}

/// The mount options of our mount.
pub(crate) fn config(name: &str, threads: usize) -> Config {
    let mut config = Config::default();
    config.n_threads = Some(threads);
    config.clone_fd = threads > 1;
    config.acl = SessionACL::Owner;
    config.mount_options = vec![
        MountOption::FSName(format!("everbyte-bench/{name}")),
        MountOption::DefaultPermissions,
        MountOption::RW,
    ];
    config
}

/// Attributes of a file of root's.
pub(crate) fn attributes(number: INodeNo, kind: FileType, perm: u16, size: u64) -> FileAttr {
    FileAttr {
        ino: number,
        size,
        blocks: size.div_ceil(SECTOR),
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK,
        flags: 0,
    }
}

/// Attributes with number 0: the kernel caches that the name is absent.
pub(crate) fn no_attributes() -> FileAttr {
    FileAttr { nlink: 0, ..attributes(INodeNo(0), FileType::RegularFile, 0, 0) }
}

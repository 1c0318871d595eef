//! A file system under the kernel: programs' operations on files, through a mount.
//!
//! Needs `/dev/fuse`, and root or `fusermount3`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod flags;
mod handles;
mod like_ext4;
mod mapped;
mod privileges;
mod removed;
mod times;

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use everbyte_device::meter::Meter;
use everbyte_fs::{AccessTimes, FileSystem, FileType, FsOptions, Name, NewInode, kinds};
use everbyte_fuse::{KernelCaching, Mount, MountOptions, Privileges, UnmountOutcome};
use everbyte_media::{BlockNo, Mapped, MediaOptions, Medium};
use everbyte_pool::{OpenOptions as PoolOptions, Pool, PoolError};
use everbyte_testkit::is_root;

/// A file system mounted on a temporary directory.
struct Mounted {
    mount: Option<Mount>,
    dir: tempfile::TempDir,
    /// The mounted file system.
    fs: Weak<FileSystem<Mapped>>,
    pool: Arc<Pool<Mapped>>,
    allow_other: bool,
    access_times: AccessTimes,
}

impl Mounted {
    fn new() -> Self {
        Self::made(false)
    }

    /// A mount for every user; `None` if this process cannot change its user.
    fn for_all() -> Option<Self> {
        is_root("become another user").then(|| Self::made(true))
    }

    fn made(allow_other: bool) -> Self {
        let bytes = 64 << 20;
        let medium = Arc::new(Mapped::anonymous(bytes, &MediaOptions::default()).unwrap());
        Pool::format(&*medium, 2, [1; 16]).unwrap();
        let options = PoolOptions { capacity_blocks: bytes / 4096 };
        let pool = Arc::new(Pool::open(medium, kinds(), &options).unwrap());
        let options = FsOptions {
            log_bytes: Some(8 << 20),
            root_uid: rustix::process::geteuid().as_raw(),
            root_gid: rustix::process::getegid().as_raw(),
            ..FsOptions::default()
        };
        drop(FileSystem::create(&pool, "files", 48 << 20, &options).unwrap());
        let mut mounted = Self {
            mount: None,
            dir: tempfile::tempdir().unwrap(),
            fs: Weak::new(),
            pool,
            allow_other,
            access_times: AccessTimes::Relative,
        };
        mounted.mount();
        mounted
    }

    fn mount(&mut self) {
        let fs = Arc::new(self.opened());
        self.fs = Arc::downgrade(&fs);
        let options = MountOptions {
            source: "test/files".into(),
            allow_other: self.allow_other,
            read_only: false,
            threads: 2,
            access_times: self.access_times,
            caching: KernelCaching::Full,
            privileges: Privileges::default(),
            exec: true,
            dir_access_times: true,
        };
        self.mount = Some(Mount::new(fs, self.dir.path(), &options, &Meter::new(1)).unwrap());
    }

    /// Opens the file system. A process started by another test has all descriptors for a moment. A
    /// mount that ends in this time is busy, and ends after that process has closed them.
    fn opened(&self) -> FileSystem<Mapped> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match FileSystem::open(&self.pool, "files") {
                Err(PoolError::InUse { .. }) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                opened => return opened.unwrap(),
            }
        }
    }

    fn unmount(&mut self) {
        self.mount.take().unwrap().unmount().unwrap();
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }
}

const NOBODY: u32 = u32::MAX;

/// The value of an access control list: tags, permissions, users or groups.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn names(dir: &Path) -> Vec<OsString> {
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    names
}

#[test]
fn file_content_survives_mounts() {
    let mut mounted = Mounted::new();
    let dir = mounted.path().to_owned();
    fs::create_dir(dir.join("d")).unwrap();
    let large: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    fs::write(dir.join("d/large"), &large).unwrap();
    fs::write(dir.join("small"), b"hello").unwrap();
    fs::hard_link(dir.join("small"), dir.join("d/second")).unwrap();
    symlink("d/second", dir.join("link")).unwrap();
    fs::set_permissions(dir.join("small"), fs::Permissions::from_mode(0o640)).unwrap();
    for round in 0..2 {
        assert_eq!(names(&dir), ["d", "link", "small"], "in round {round}");
        assert_eq!(fs::read(dir.join("d/large")).unwrap(), large);
        assert_eq!(fs::read(dir.join("link")).unwrap(), b"hello");
        let seen = fs::metadata(dir.join("small")).unwrap();
        assert_eq!((seen.nlink(), seen.mode() & 0o7777, seen.len()), (2, 0o640, 5));
        mounted.unmount();
        assert!(names(&dir).is_empty(), "nothing is mounted");
        mounted.mount();
    }
}

/// A tmpfs on a directory, until this is dropped.
struct Tmpfs<'d>(&'d Path);

impl<'d> Tmpfs<'d> {
    fn on(dir: &'d Path) -> Self {
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("none", dir, "tmpfs", flags, c"size=1M").unwrap();
        Self(dir)
    }
}

impl Drop for Tmpfs<'_> {
    fn drop(&mut self) {
        let _is_gone = rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Another process removes the mount from its directory, even in use, and mounts another one there.
#[test]
fn unmount_removes_nothing_else_from_its_directory() {
    if !is_root("mount something") {
        return;
    }
    for end in [UnmountOutcome::Ended, UnmountOutcome::Used] {
        let mut mounted = Mounted::new();
        let dir = mounted.path().to_owned();
        let _open = (end == UnmountOutcome::Used).then(|| File::create(dir.join("f")).unwrap());
        rustix::mount::unmount(&dir, rustix::mount::UnmountFlags::DETACH).unwrap();
        let _other = Tmpfs::on(&dir);
        fs::write(dir.join("other"), b"").unwrap();
        assert_eq!(mounted.mount.take().unwrap().unmount().unwrap(), end);
        assert_eq!(names(&dir), ["other"]);
    }
}

#[test]
fn names_come_and_go_as_system_calls_say() {
    let mounted = Mounted::new();
    let dir = mounted.path();
    fs::write(dir.join("a"), b"a").unwrap();
    fs::write(dir.join("b"), b"b").unwrap();
    fs::rename(dir.join("a"), dir.join("b")).unwrap();
    assert_eq!(fs::read(dir.join("b")).unwrap(), b"a");
    fs::create_dir_all(dir.join("x/y/z")).unwrap();
    let error = fs::remove_dir(dir.join("x/y")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(39));
    let error = fs::rename(dir.join("x"), dir.join("x/y/x")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(22));
    let error = File::create(dir.join("n".repeat(256))).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(36));
    fs::remove_dir_all(dir.join("x")).unwrap();
    let many = dir.join("many");
    fs::create_dir(&many).unwrap();
    for number in 0..1000 {
        fs::write(many.join(format!("file {number}")), number.to_string()).unwrap();
    }
    assert_eq!(names(&many).len(), 1000);
    fs::remove_dir_all(&many).unwrap();
    assert_eq!(names(dir), ["b"]);
}

/// The kernel remembers the absence of the name, and requests its creation.
#[test]
fn open_create_opens_a_file_made_by_another() {
    let mounted = Mounted::new();
    let path = mounted.path().join("f");
    assert!(fs::metadata(&path).is_err());
    let new = NewInode {
        kind: FileType::Regular,
        permissions: 0o644,
        umask: 0,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        device: 0,
        target: &[],
    };
    let files = mounted.fs.upgrade().unwrap();
    let made = files.create_inode(files.root(), Name::new(b"f").unwrap(), &new).unwrap();
    files.write(made.inode, 0, b"there").unwrap();
    drop(files);
    let mut options = OpenOptions::new();
    let open = options.read(true).write(true).create(true).truncate(false).open(&path).unwrap();
    let mut text = [0; 5];
    open.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"there");
    let new = options.create_new(true).open(&path).unwrap_err();
    assert_eq!(new.raw_os_error(), Some(libc::EEXIST));
}

#[test]
fn open_file_outlives_its_name() {
    let mounted = Mounted::new();
    let path = mounted.path().join("f");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(b"still here").unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here");
    file.set_len(1 << 20).unwrap();
    file.write_all_at(b"end", (1 << 20) - 3).unwrap();
    let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(4096)).unwrap();
    assert_eq!(data, (1 << 20) - 4096);
    file.sync_all().unwrap();
    assert!(file.metadata().unwrap().blocks() < 64);
    drop(file);
    assert!(names(mounted.path()).is_empty());
}

#[test]
fn space_of_a_removed_file_is_there_for_the_next_one() {
    let mounted = Mounted::new();
    let path = |name: &str| mounted.path().join(name);
    let data = vec![7; 1 << 20];
    // Most of the volume, a dozen times over.
    for round in 0..12 {
        let mut file = File::create(path("large")).unwrap();
        for _ in 0..28 {
            file.write_all(&data).unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
        drop(file);
        fs::remove_file(path("large")).unwrap();
    }
    let mut file = File::create(path("all")).unwrap();
    while file.write_all(&data).is_ok() {}
    let error = file.write_all(&data).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    fs::remove_file(path("all")).unwrap();
    let open = fs::write(path("next"), &data).unwrap_err();
    assert_eq!(open.raw_os_error(), Some(libc::ENOSPC), "the removed file is open");
    drop(file);
    fs::write(path("next"), &data).unwrap();
}

#[test]
fn file_reopened_after_forget_is_found() {
    let mounted = Mounted::new();
    let path = mounted.path().join("f");
    let known = File::create(&path).unwrap();
    let threads: Vec<_> = (0..4)
        .map(|number| {
            let dir = mounted.path().to_owned();
            std::thread::spawn(move || {
                for round in 0..200 {
                    let own = dir.join(format!("{number}-{round}"));
                    fs::write(&own, own.as_os_str().as_encoded_bytes()).unwrap();
                    let open = File::open(&own).unwrap();
                    fs::remove_file(&own).unwrap();
                    let mut text = vec![0; own.as_os_str().len()];
                    open.read_exact_at(&mut text, 0).unwrap();
                    assert_eq!(text, own.as_os_str().as_encoded_bytes());
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    known.write_all_at(b"text", 0).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"text");
    let used = || {
        let status = rustix::fs::statvfs(mounted.path()).unwrap();
        status.f_files - status.f_ffree
    };
    for _ in 0..1000 {
        if used() == 2 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{} files are in use, of which two have names", used());
}

#[test]
fn extended_attributes_are_kept() {
    let mounted = Mounted::new();
    let path = mounted.path().join("f");
    fs::write(&path, b"").unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&path, "user.colour", b"green", flags).unwrap();
    let mut value = [0; 16];
    let len = rustix::fs::getxattr(&path, "user.colour", &mut value).unwrap();
    assert_eq!(&value[..len], b"green");
    let mut list = [0; 64];
    let len = rustix::fs::listxattr(&path, &mut list).unwrap();
    assert_eq!(&list[..len], b"user.colour\0");
    rustix::fs::removexattr(&path, "user.colour").unwrap();
    assert!(rustix::fs::getxattr(&path, "user.colour", &mut value).is_err());
}

/// Runs a line of shell as the user and group 65534 with a umask of 022, and says whether it succeeds.
fn as_nobody(dir: &Path, line: &str) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("umask 022; {line}")]).current_dir("/").env("D", dir);
    shell.uid(65_534).gid(65_534).stderr(Stdio::null()).status().unwrap().success()
}

#[test]
fn trusted_xattrs_are_listed_for_administrators_only() {
    let Some(mounted) = Mounted::for_all() else { return };
    let dir = mounted.path();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    let path = dir.join("f");
    fs::write(&path, b"").unwrap();
    for name in ["trusted.a", "user.b"] {
        rustix::fs::setxattr(&path, name, b"x", rustix::fs::XattrFlags::empty()).unwrap();
    }
    let mut list = [0; 64];
    let len = rustix::fs::listxattr(&path, &mut list).unwrap();
    assert_eq!(list[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty()).count(), 2);
    let list = "python3 -c \"import os; print(*os.listxattr('$D/f'))\"";
    assert!(as_nobody(dir, &format!("test \"$({list})\" = user.b")));
}

#[test]
fn access_control_lists_say_who_may_and_are_inherited() {
    let Some(mounted) = Mounted::for_all() else { return };
    let dir = mounted.path();
    // user::rwx user:65534:rwx group::--- mask::rwx other::---
    let list =
        acl(&[(1, 7, NOBODY), (2, 7, 65_534), (4, 0, NOBODY), (16, 7, NOBODY), (32, 0, NOBODY)]);
    let set = |path: &Path, name: &str, list: &[u8]| {
        rustix::fs::setxattr(path, name, list, rustix::fs::XattrFlags::empty())
    };
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(dir.join("d")).unwrap();
    fs::set_permissions(dir.join("d"), fs::Permissions::from_mode(0o700)).unwrap();
    assert!(!as_nobody(dir, "ls $D/d"));
    set(&dir.join("d"), "system.posix_acl_access", &list).unwrap();
    set(&dir.join("d"), "system.posix_acl_default", &list).unwrap();
    assert_eq!(mode(&dir.join("d")), 0o770);
    assert!(as_nobody(dir, "umask 077; mkdir $D/d/e && echo text >$D/d/e/f && chmod 600 $D/d/e/f"));
    assert_eq!((mode(&dir.join("d/e")), mode(&dir.join("d/e/f"))), (0o770, 0o600));
    fs::write(dir.join("d/g"), "g").unwrap();
    assert_eq!(mode(&dir.join("d/g")), 0o660, "the list decides, not the umask");
    assert!(as_nobody(dir, "cat $D/d/g"));
    fs::set_permissions(dir.join("d/g"), fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!as_nobody(dir, "cat $D/d/g"), "the mask allows nothing");
    let error = set(&dir.join("d/g"), "system.posix_acl_default", &list).unwrap_err();
    assert_eq!(error.raw_os_error(), libc::EACCES);
    let error = set(&dir.join("d/g"), "system.posix_acl_access", &list[..12]).unwrap_err();
    assert_eq!(error.raw_os_error(), libc::EINVAL);
    let plain = acl(&[(1, 6, NOBODY), (4, 4, NOBODY), (32, 4, NOBODY)]);
    set(&dir.join("d/g"), "system.posix_acl_access", &plain).unwrap();
    assert_eq!(mode(&dir.join("d/g")), 0o644);
    assert_eq!(rustix::fs::listxattr(dir.join("d/g"), &mut [0; 64]).unwrap(), 0);
    assert!(as_nobody(dir, "umask 027; echo text >$D/d/e/f"));
    rustix::fs::removexattr(dir.join("d"), "system.posix_acl_default").unwrap();
    assert!(as_nobody(dir, "umask 027; echo text >$D/d/h"));
    assert_eq!(mode(&dir.join("d/h")), 0o640, "without a list the umask decides");
}

#[test]
fn acl_by_nonmember_clears_setgid() {
    let Some(mounted) = Mounted::for_all() else { return };
    let dir = mounted.path();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    let path = dir.join("f");
    fs::write(&path, b"").unwrap();
    let set = |gid| {
        std::os::unix::fs::chown(&path, Some(65_534), Some(gid)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o2755)).unwrap();
        assert!(as_nobody(dir, &format!("setfacl -m u:{gid}:r $D/f")));
        mode(&path)
    };
    assert_eq!(set(65_534), 0o2755);
    assert_eq!(set(7), 0o755);
}

#[test]
fn copies_and_whiteouts_are_made_by_system_calls() {
    use rustix::fs::{CWD, RenameFlags, copy_file_range, renameat_with};
    let mounted = Mounted::new();
    let dir = mounted.path();
    let from = File::create(dir.join("from")).unwrap();
    from.write_all_at(b"some text", 1 << 20).unwrap();
    from.set_len(2 << 20).unwrap();
    let from = File::open(dir.join("from")).unwrap();
    let to = File::create(dir.join("to")).unwrap();
    let (mut offset, mut to_offset) = (0, 0);
    while copy_file_range(&from, Some(&mut offset), &to, Some(&mut to_offset), 4 << 20).unwrap() > 0
    {
    }
    assert_eq!(fs::read(dir.join("to")).unwrap(), fs::read(dir.join("from")).unwrap());
    assert_eq!(to.metadata().unwrap().blocks(), from.metadata().unwrap().blocks());
    let rename = |old: &str, new: &str, flags| {
        renameat_with(CWD, dir.join(old), CWD, dir.join(new), flags).map_err(|e| e.raw_os_error())
    };
    rename("to", "there", RenameFlags::WHITEOUT).unwrap();
    let whiteout = fs::metadata(dir.join("to")).unwrap();
    assert_eq!((whiteout.mode(), whiteout.rdev()), (libc::S_IFCHR, 0));
    let both = RenameFlags::WHITEOUT | RenameFlags::NOREPLACE;
    assert_eq!(rename("there", "from", both), Err(libc::EEXIST));
    rename("there", "new", both).unwrap();
    assert_eq!(names(dir), ["from", "new", "there", "to"]);
}

#[test]
fn reads_set_atime_by_mount_option() {
    let mut mounted = Mounted::new();
    let dir = mounted.path().to_owned();
    fs::create_dir(dir.join("d")).unwrap();
    fs::write(dir.join("d/f"), b"text").unwrap();
    symlink("f", dir.join("d/l")).unwrap();
    // True for a directory, a file and a link with a new time after a read.
    let mut reads = |times| -> [bool; 3] {
        mounted.unmount();
        mounted.access_times = times;
        mounted.mount();
        let seen = || ["d", "d/f", "d/l"].map(|path| dir.join(path).symlink_metadata().unwrap());
        let before = seen();
        assert_eq!(names(&dir.join("d")), ["f", "l"]);
        assert_eq!(fs::read(dir.join("d/f")).unwrap(), b"text");
        assert_eq!(fs::read_link(dir.join("d/l")).unwrap(), Path::new("f"));
        let after = seen();
        std::array::from_fn(|n| {
            let (before, after) = (&before[n], &after[n]);
            let change = |seen: &fs::Metadata| (seen.ctime(), seen.ctime_nsec());
            assert_eq!(change(before), change(after));
            after.accessed().unwrap() > before.accessed().unwrap()
        })
    };
    assert_eq!(reads(AccessTimes::Never), [false; 3]);
    assert_eq!(reads(AccessTimes::Relative), [true; 3], "each was changed since");
    assert_eq!(reads(AccessTimes::Relative), [false; 3]);
    assert_eq!(reads(AccessTimes::Strict), [true; 3]);
}

#[test]
fn removed_working_directory_exists_until_left() {
    let mounted = Mounted::new();
    let path = mounted.path().join("d");
    fs::create_dir(&path).unwrap();
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY;
    // Such a descriptor knows a directory as a working directory does: without opening it.
    let known = rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).unwrap();
    fs::remove_dir(&path).unwrap();
    let seen = rustix::fs::fstat(&known).unwrap();
    assert_eq!((seen.st_nlink, seen.st_mode & 0o777), (0, 0o755));
    let made = rustix::fs::mkdirat(&known, "x", rustix::fs::Mode::RWXU);
    assert_eq!(made.unwrap_err(), rustix::io::Errno::NOENT);
    let used = || rustix::fs::statvfs(mounted.path()).map(|status| status.f_files - status.f_ffree);
    assert_eq!(used().unwrap(), 2, "the root and the removed directory");
    drop(known);
    for _ in 0..1000 {
        if used().unwrap() == 1 {
            return;
        }
        // The kernel says that it has forgotten when it likes to.
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("the removed directory is still in use");
}

#[test]
fn removed_files_in_use_without_open_exist() {
    use rustix::fs::{Mode, OFlags, fstat, open};
    let mounted = Mounted::new();
    let path = |name: &str| mounted.path().join(name);
    rustix::fs::mkfifoat(rustix::fs::CWD, path("fifo"), Mode::RWXU).unwrap();
    std::os::unix::fs::symlink("nowhere", path("link")).unwrap();
    let fifo = open(path("fifo"), OFlags::RDWR, Mode::empty()).unwrap();
    let link = open(path("link"), OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()).unwrap();
    for name in ["fifo", "link"] {
        fs::remove_file(path(name)).unwrap();
    }
    assert_eq!([&fifo, &link].map(|file| fstat(file).map(|seen| seen.st_nlink)), [Ok(0), Ok(0)]);
    drop((fifo, link));
    let used = || rustix::fs::statvfs(mounted.path()).map(|status| status.f_files - status.f_ffree);
    for _ in 0..1000 {
        if used().unwrap() == 1 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("removed files are still in use");
}

#[test]
fn attributes_have_the_names_that_linux_knows() {
    use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
    use rustix::io::Errno;
    let mounted = Mounted::new();
    let path = mounted.path().join("f");
    fs::write(&path, b"").unwrap();
    for (name, errno) in [("user.", Errno::INVAL), ("other.x", Errno::OPNOTSUPP)] {
        assert_eq!(setxattr(&path, name, b"x", XattrFlags::empty()).unwrap_err(), errno, "{name}");
        assert_eq!(getxattr(&path, name, &mut [0; 8]).unwrap_err(), errno, "{name}");
        assert_eq!(removexattr(&path, name).unwrap_err(), errno, "{name}");
    }
    let both = XattrFlags::CREATE | XattrFlags::REPLACE;
    assert_eq!(setxattr(&path, "user.x", b"x", both).unwrap_err(), Errno::NODATA);
    setxattr(&path, "user.x", b"x", XattrFlags::empty()).unwrap();
    assert_eq!(setxattr(&path, "user.x", b"x", both).unwrap_err(), Errno::EXIST);
}

#[test]
fn exceeded_limits_have_their_errno() {
    use rustix::fs::{FallocateFlags, XattrFlags, fallocate, getxattr, setxattr};
    let mounted = Mounted::new();
    let dir = mounted.path();
    let path = dir.join("f");
    let file = File::create(&path).unwrap();
    let number = |error: std::io::Error| error.raw_os_error().unwrap();
    let size_max = 1 << 52;
    assert_eq!(number(file.write_at(b"x", size_max).unwrap_err()), libc::EFBIG);
    assert_eq!(file.write_at(b"bytes", size_max - 2).unwrap(), 2);
    assert_eq!(number(file.set_len(size_max + 1).unwrap_err()), libc::EFBIG);
    let reserve = |offset, len| fallocate(&file, FallocateFlags::empty(), offset, len);
    assert_eq!(reserve(size_max, 1).unwrap_err().raw_os_error(), libc::EFBIG);
    assert_eq!(reserve(0, 0).unwrap_err().raw_os_error(), libc::EINVAL);
    file.set_len(0).unwrap();
    let set = |name: &str, len| setxattr(&path, name, &vec![1; len], XattrFlags::empty());
    let refused = |name: &str, len| set(name, len).unwrap_err().raw_os_error();
    assert_eq!(refused(&format!("user.{}", "a".repeat(251)), 1), libc::ERANGE);
    assert_eq!(refused("user.a", 65_537), libc::E2BIG);
    assert_eq!(refused("user.a", 5000), libc::ENOSPC);
    set("user.a", 100).unwrap();
    let short = getxattr(&path, "user.a", &mut [0; 99]).unwrap_err();
    assert_eq!(short.raw_os_error(), libc::ERANGE);
    let target = "t".repeat(4096);
    assert_eq!(number(symlink(&target, dir.join("l")).unwrap_err()), libc::ENAMETOOLONG);
    symlink(&target[1..], dir.join("l")).unwrap();
    assert_eq!(fs::read_link(dir.join("l")).unwrap().as_os_str().len(), 4095);
    let open = File::create(dir.join(format!("{}/x", "d".repeat(4095)))).unwrap_err();
    assert_eq!(number(open), libc::ENAMETOOLONG);
}

#[test]
fn full_volume_refuses_and_frees_files() {
    let mounted = Mounted::new();
    let dir = mounted.path();
    let mut file = File::create(dir.join("f")).unwrap();
    let error = loop {
        if let Err(error) = file.write_all(&[7; 1 << 20]) {
            break error;
        }
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    let size = file.metadata().unwrap().len();
    file.write_all_at(b"in place", 5).unwrap();
    file.set_len(size / 2).unwrap();
    fs::write(dir.join("g"), [1; 65_536]).unwrap();
    fs::remove_file(dir.join("f")).unwrap();
    fs::create_dir(dir.join("d")).unwrap();
    drop(file);
    fs::write(dir.join("d/h"), vec![2; 8 << 20]).unwrap();
}

#[test]
fn set_user_id_goes_with_changes_by_others_than_root() {
    let Some(mounted) = Mounted::for_all() else { return };
    let dir = mounted.path();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o1777)).unwrap();
    let path = dir.join("f");
    let left_by = |before: u32, line: &str, is_root: bool| {
        fs::write(&path, [1; 9000]).unwrap();
        std::os::unix::fs::chown(&path, Some(65_534), Some(65_534)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(before)).unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", line]).current_dir("/").env("D", dir);
        let is_done =
            if is_root { shell.status().unwrap().success() } else { as_nobody(dir, line) };
        assert!(is_done, "{line}");
        let after = mode(&path);
        fs::remove_file(&path).unwrap();
        after
    };
    for line in [
        "echo text >>$D/f",
        "printf x | dd of=$D/f conv=notrunc status=none",
        "truncate -s 100 $D/f",
        "fallocate -l 20000 $D/f",
        "fallocate -p -l 4096 $D/f",
        "chgrp 65534 $D/f",
    ] {
        assert_eq!(left_by(0o6755, line, false), 0o755, "{line}");
        let by_root = if line.starts_with("chgrp") { 0o755 } else { 0o6755 };
        assert_eq!(left_by(0o6755, line, true), by_root, "{line} by root");
        assert_eq!(left_by(0o2644, line, false), 0o2644, "{line}: no program is in the group");
    }
    assert_eq!(left_by(0o6755, "cat $D/f", false), 0o6755);
}

#[test]
fn sticky_and_setgid_directories_act_as_on_ext4() {
    let Some(mounted) = Mounted::for_all() else { return };
    let dir = mounted.path();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o1777)).unwrap();
    fs::write(dir.join("root's"), b"").unwrap();
    assert!(!as_nobody(dir, "rm -f \"$D/root's\""));
    assert!(!as_nobody(dir, "mv \"$D/root's\" $D/mine"));
    assert!(as_nobody(dir, "echo >$D/mine && mv $D/mine $D/still && rm $D/still"));
    fs::create_dir(dir.join("d")).unwrap();
    std::os::unix::fs::chown(dir.join("d"), None, Some(7)).unwrap();
    fs::set_permissions(dir.join("d"), fs::Permissions::from_mode(0o2777)).unwrap();
    assert!(as_nobody(dir, "echo >$D/d/f && mkdir $D/d/e && chmod 2755 $D/d/f"));
    let seen = |name: &str| {
        let seen = fs::metadata(dir.join(name)).unwrap();
        (seen.uid(), seen.gid(), seen.mode() & 0o7777)
    };
    assert_eq!(seen("d/f"), (65_534, 7, 0o755), "who is not in the group cannot set its bit");
    assert_eq!(seen("d/e"), (65_534, 7, 0o2755));
}

#[test]
fn removed_working_directory_is_empty_and_refuses() {
    let mounted = Mounted::new();
    let line = "cd $D/d && rmdir $D/d && chmod 711 . && names=$(ls) && test -z \"$names\" \
        && stat -c %h . | grep -qx 0 && ! echo >f 2>&1 && mkdir e 2>&1 | grep -q 'No such file'";
    fs::create_dir(mounted.path().join("d")).unwrap();
    let mut shell = Command::new("bash");
    let shell = shell.args(["-c", line]).env("D", mounted.path()).env("LC_ALL", "C");
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(names(mounted.path()).is_empty());
}

/// The kernel has the cached bytes from before a partly failed allocation, unless it is notified.
#[test]
fn failed_fallocate_keeps_bytes() {
    use rustix::fs::{FallocateFlags, fallocate};
    let mut mounted = Mounted::new();
    let path = mounted.path().join("f");
    let data = vec![7; 6 << 20];
    fs::write(&path, &data).unwrap();
    let mut seen = Vec::new();
    for flags in [FallocateFlags::empty(), FallocateFlags::ZERO_RANGE] {
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), data);
        let failed = fallocate(&file, flags, 0, 1 << 30).unwrap_err();
        assert_eq!(failed.raw_os_error(), libc::ENOSPC, "{flags:?}");
        let meta = file.metadata().unwrap();
        seen.push((meta.len(), meta.blocks(), fs::read(&path).unwrap()));
        assert_eq!(meta.len(), data.len() as u64, "{flags:?}");
    }
    assert!(seen[0].2 == data, "bytes that are there stay where space is reserved");
    assert!(seen[1].2[0] == 0, "a part was zeroed");
    mounted.unmount();
    mounted.mount();
    let meta = fs::metadata(&path).unwrap();
    let after = (meta.len(), meta.blocks(), fs::read(&path).unwrap());
    assert!(after == seen[1], "{} bytes, {} blocks", after.0, after.1);
}

/// The map of a file is damaged behind the first part of the cut.
#[test]
fn failed_truncate_keeps_visible_bytes() {
    let mut mounted = Mounted::new();
    let path = mounted.path().join("f");
    fs::write(&path, vec![7; 8 << 20]).unwrap();
    let number = fs::metadata(&path).unwrap().ino();
    mounted.unmount();
    let files = mounted.opened();
    let root_at = files.inode_table_at(0).unwrap().plus(256 * number + 112);
    drop(files);
    let medium = mounted.pool.medium();
    let node = BlockNo(medium.load_word(root_at) & ((1 << 40) - 1));
    // The third word is for the bytes from 4 MiB on.
    medium.store_word(node.offset().plus(8 * 2), 1);
    mounted.mount();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let before = file.metadata().unwrap();
    let mut known = vec![0; 7 << 19];
    file.read_exact_at(&mut known, 0).unwrap();
    assert!(known.iter().all(|&byte| byte == 7));
    assert_eq!(file.set_len(1 << 20).unwrap_err().raw_os_error(), Some(libc::EIO));
    let after = file.metadata().unwrap();
    assert_eq!(after.len(), before.len());
    let gone = before.blocks() - after.blocks();
    assert!(gone >= 4096, "{gone} sectors are gone with the bytes from 2 MiB on");
    // The kernel forgets bytes after the answer.
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut byte = [7];
    while byte == [7] {
        assert!(Instant::now() < deadline, "bytes that are gone are still read");
        file.read_exact_at(&mut byte, 3 << 20).unwrap();
    }
    assert_eq!(byte, [0]);
}

/// One inode cannot be read: its name is listed all the same, again and again, and those of the others.
#[test]
fn unreadable_file_hides_no_entry() {
    let mut mounted = Mounted::new();
    let dir = mounted.path().join("d");
    fs::create_dir(&dir).unwrap();
    let texts: Vec<String> = (0..9).map(|number| format!("file {number}")).collect();
    for text in &texts {
        fs::write(dir.join(text), text).unwrap();
    }
    let bad = fs::metadata(dir.join(&texts[4])).unwrap().ino();
    mounted.unmount();
    let files = mounted.opened();
    let at = files.inode_table_at(0).unwrap().plus(256 * bad + 40);
    drop(files);
    let medium = mounted.pool.medium();
    medium.store_word(at, medium.load_word(at) ^ 1);
    mounted.mount();
    for _ in 0..3 {
        let mut entries: Vec<_> = fs::read_dir(&dir).unwrap().map(Result::unwrap).collect();
        entries.sort_by_key(fs::DirEntry::file_name);
        let listed: Vec<_> =
            entries.iter().map(|entry| entry.file_name().into_string().unwrap()).collect();
        assert_eq!(listed, texts);
        assert!(entries.iter().all(|entry| entry.file_type().unwrap().is_file()));
        for text in &texts {
            let read = fs::read_to_string(dir.join(text));
            match read.map_err(|error| error.raw_os_error()) {
                Ok(read) => assert!(read == *text && text != &texts[4]),
                Err(error) => assert_eq!((error, text), (Some(libc::EIO), &texts[4])),
            }
        }
    }
    let used = || rustix::fs::statvfs(mounted.path()).map(|status| status.f_files - status.f_ffree);
    let before = used().unwrap();
    let others = texts.iter().filter(|&text| text != &texts[4]);
    others.for_each(|text| fs::remove_file(dir.join(text)).unwrap());
    // The kernel says that it has forgotten when it likes to.
    let deadline = Instant::now() + Duration::from_secs(10);
    while used().unwrap() > before - 8 {
        assert!(Instant::now() < deadline, "a removed file is still in use");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn every_change_without_space_waits_for_removed_file() {
    use rustix::fs::{XattrFlags, copy_file_range, removexattr, setxattr};
    let mounted = Mounted::new();
    let path = |name: &str| mounted.path().join(name);
    fs::write(path("others"), b"").unwrap();
    setxattr(path("others"), "user.stays", &[2; 3000], XattrFlags::empty()).unwrap();
    setxattr(path("others"), "user.goes", &[2; 10], XattrFlags::empty()).unwrap();
    fs::write(path("source"), vec![5; 1 << 20]).unwrap();
    let source = File::open(path("source")).unwrap();
    let target = File::create(path("target")).unwrap();
    let copy = || {
        copy_file_range(&source, Some(&mut 0), &target, Some(&mut 0), 1 << 20).map(|len| len > 0)
    };
    let set = || setxattr(path("target"), "user.x", &[1; 900], XattrFlags::empty()).map(|()| true);
    let remove = || removexattr(path("others"), "user.goes").map(|()| true);
    let changes: [(&str, &dyn Fn() -> rustix::io::Result<bool>); 3] =
        [("a copy", &copy), ("an attribute", &set), ("an attribute that goes", &remove)];
    for (what, change) in changes {
        fs::write(path("large"), vec![7; 12 << 20]).unwrap();
        let mut rest = File::create(path("rest")).unwrap();
        for len in [1 << 20, 65_536, 4096] {
            while rest.write_all(&vec![7; len]).is_ok() {}
        }
        let large = File::open(path("large")).unwrap();
        fs::remove_file(path("large")).unwrap();
        let closing = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(40));
            drop(large);
        });
        assert_eq!(change(), Ok(true), "{what}");
        closing.join().unwrap();
        fs::remove_file(path("rest")).unwrap();
        target.set_len(0).unwrap();
    }
}

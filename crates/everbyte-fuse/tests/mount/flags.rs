//! Flags of files by `chattr` and `lsattr`: forbidden changes and callers.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use everbyte_testkit::is_root;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Timespec, Timestamps, UTIME_NOW, XattrFlags, fallocate, utimensat,
};
use rustix::io::Errno;

use crate::Mounted;

fn run(program: &str, arguments: &[&str], path: &Path) -> Output {
    Command::new(program).args(arguments).arg(path).output().unwrap()
}

#[track_caller]
fn chattr(change: &str, path: &Path) {
    let done = run("chattr", &[change], path);
    assert!(done.status.success(), "{change}: {done:?}");
}

/// The flags of a file in the output of `lsattr`.
fn shown(path: &Path) -> String {
    let listed = run("lsattr", &["-d"], path);
    assert!(listed.status.success(), "{listed:?}");
    let line = String::from_utf8(listed.stdout).unwrap();
    line.split_whitespace().next().unwrap().replace('-', "")
}

/// Fails unless each of `calls` is refused as not permitted.
#[track_caller]
fn refuses(calls: &[(&str, &dyn Fn() -> io::Result<()>)]) {
    for (call, make) in calls {
        let code = make().err().and_then(|error| error.raw_os_error());
        assert_eq!(code, Some(Errno::PERM.raw_os_error()), "{call}");
    }
}

fn open(path: &Path, flags: i32) -> io::Result<()> {
    let writes = flags & libc_flags::RDWR_OR_WRONLY != 0;
    OpenOptions::new()
        .read(true)
        .write(writes)
        .custom_flags(flags & !libc_flags::RDWR_OR_WRONLY)
        .open(path)
        .map(drop)
}

/// Flags of `open` on Linux.
mod libc_flags {
    pub(super) const RDWR_OR_WRONLY: i32 = 3;
    pub(super) const RDWR: i32 = 2;
    pub(super) const TRUNC: i32 = 0o1000;
    pub(super) const APPEND: i32 = 0o2000;
}
use libc_flags::{APPEND, RDWR, TRUNC};

fn set_times(path: &Path, tv_nsec: i64) -> io::Result<()> {
    let time = Timespec { tv_sec: 5, tv_nsec };
    let times = Timestamps { last_access: time, last_modification: time };
    Ok(utimensat(CWD, path, &times, AtFlags::empty())?)
}

fn set_attribute(path: &Path) -> io::Result<()> {
    Ok(rustix::fs::setxattr(path, "user.a", b"b", XattrFlags::empty())?)
}

fn allocate(file: &File, mode: FallocateFlags) -> io::Result<()> {
    Ok(fallocate(file, mode, 0, 4096)?)
}

const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

#[test]
fn immutable_file_refuses_every_change() {
    if !is_root("set the immutable flag") {
        return;
    }
    let mut mounted = Mounted::new();
    let dir = mounted.path().to_owned();
    let (path, other) = (dir.join("f"), dir.join("other"));
    fs::write(&path, b"text").unwrap();
    fs::write(&other, b"other").unwrap();
    set_attribute(&path).unwrap();
    let opened = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let before = fs::metadata(&path).unwrap().ctime_nsec();
    chattr("+i", &path);
    assert_eq!(shown(&path), "i");
    assert_ne!(fs::metadata(&path).unwrap().ctime_nsec(), before);
    let from = File::open(&other).unwrap();
    refuses(&[
        ("open for writing", &|| open(&path, RDWR)),
        ("open for appending", &|| open(&path, RDWR | APPEND)),
        ("open and truncate", &|| open(&path, RDWR | TRUNC)),
        ("truncate", &|| Ok(rustix::fs::ftruncate(&opened, 0)?)),
        ("extend", &|| Ok(rustix::fs::ftruncate(&opened, 4096)?)),
        ("write", &|| opened.write_all_at(b"x", 0)),
        ("append", &|| opened.write_all_at(b"x", 4)),
        ("allocate", &|| allocate(&opened, FallocateFlags::empty())),
        ("punch", &|| allocate(&opened, PUNCH)),
        ("copy_file_range", &|| {
            let copied = rustix::fs::copy_file_range(&from, Some(&mut 0), &opened, Some(&mut 0), 5);
            Ok(copied.map(drop)?)
        }),
        ("unlink", &|| fs::remove_file(&path)),
        ("rename", &|| fs::rename(&path, dir.join("g"))),
        ("rename over it", &|| fs::rename(&other, &path)),
        ("link", &|| fs::hard_link(&path, dir.join("g"))),
        ("chmod", &|| fs::set_permissions(&path, fs::Permissions::from_mode(0o600))),
        ("chown", &|| std::os::unix::fs::chown(&path, Some(1), None)),
        ("utimes", &|| set_times(&path, 7)),
        ("touch", &|| set_times(&path, UTIME_NOW)),
        ("setxattr", &|| set_attribute(&path)),
        ("removexattr", &|| Ok(rustix::fs::removexattr(&path, "user.a")?)),
    ]);
    let refused = run("chattr", &["+d"], &path);
    assert!(!refused.status.success(), "another flag of an immutable file");
    assert_eq!(fs::read(&path).unwrap(), b"text");
    drop((opened, from));
    mounted.unmount();
    mounted.mount();
    assert_eq!(shown(&path), "i", "after mounting again");
    refuses(&[("open for writing", &|| open(&path, RDWR))]);
    chattr("-i", &path);
    fs::write(&path, b"new").unwrap();
    fs::remove_file(&path).unwrap();
    mounted.unmount();
}

#[test]
fn append_only_file_only_appends() {
    if !is_root("set the append-only flag") {
        return;
    }
    let mounted = Mounted::new();
    let (dir, path) = (mounted.path(), mounted.path().join("log"));
    fs::write(&path, b"one").unwrap();
    let opened = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    chattr("+a", &path);
    assert_eq!(shown(&path), "a");
    refuses(&[
        ("open for writing", &|| open(&path, RDWR)),
        ("open and truncate", &|| open(&path, RDWR | APPEND | TRUNC)),
        ("truncate", &|| Ok(rustix::fs::ftruncate(&opened, 0)?)),
        ("write", &|| opened.write_all_at(b"x", 0)),
        ("punch", &|| allocate(&opened, PUNCH)),
        ("unlink", &|| fs::remove_file(&path)),
        ("rename", &|| fs::rename(&path, dir.join("g"))),
        ("link", &|| fs::hard_link(&path, dir.join("g"))),
        ("chmod", &|| fs::set_permissions(&path, fs::Permissions::from_mode(0o600))),
        ("utimes", &|| set_times(&path, 7)),
        ("setxattr", &|| set_attribute(&path)),
    ]);
    set_times(&path, UTIME_NOW).unwrap();
    let mut log = OpenOptions::new().read(true).append(true).open(&path).unwrap();
    let reader = File::open(&path).unwrap();
    for word in ["two", "three"] {
        log.write_all(word.as_bytes()).unwrap();
        let mut text = vec![0; word.len()];
        let end = reader.metadata().unwrap().len();
        reader.read_exact_at(&mut text, end - word.len() as u64).unwrap();
        assert_eq!(text, word.as_bytes());
    }
    allocate(&log, FallocateFlags::KEEP_SIZE).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"onetwothree");
    chattr("-a", &path);
    fs::write(&path, b"short").unwrap();
}

#[test]
fn directory_flags_protect_names() {
    if !is_root("set flags of directories") {
        return;
    }
    let mounted = Mounted::new();
    let (dir, top) = (mounted.path().join("d"), mounted.path().to_owned());
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("f"), b"text").unwrap();
    fs::write(top.join("outside"), b"text").unwrap();
    chattr("+i", &dir);
    refuses(&[
        ("create", &|| fs::write(dir.join("new"), b"")),
        ("mkdir", &|| fs::create_dir(dir.join("new"))),
        ("symlink", &|| symlink("f", dir.join("new"))),
        ("link", &|| fs::hard_link(dir.join("f"), dir.join("new"))),
        ("move in", &|| fs::rename(top.join("outside"), dir.join("new"))),
    ]);
    let removals: [(&str, &dyn Fn() -> io::Result<()>); 4] = [
        ("unlink", &|| fs::remove_file(dir.join("f"))),
        ("rename", &|| fs::rename(dir.join("f"), dir.join("g"))),
        ("move out", &|| fs::rename(dir.join("f"), top.join("g"))),
        ("replace", &|| fs::rename(top.join("outside"), dir.join("f"))),
    ];
    refuses(&removals);
    let exists = fs::create_dir(dir.join("f")).unwrap_err();
    assert_eq!(exists.kind(), io::ErrorKind::AlreadyExists);
    fs::write(dir.join("f"), b"the file itself may change").unwrap();
    chattr("-i", &dir);
    chattr("+a", &dir);
    fs::write(dir.join("new"), b"").unwrap();
    fs::rename(top.join("outside"), dir.join("from outside")).unwrap();
    fs::write(top.join("outside"), b"text").unwrap();
    refuses(&removals);
    refuses(&[("rmdir", &|| fs::remove_dir(&dir))]);
    chattr("-a", &dir);
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn harmless_flags_are_the_owners_and_inherited() {
    let Some(mounted) = Mounted::for_all() else { return };
    let dir = mounted.path().join("d");
    fs::create_dir(&dir).unwrap();
    std::os::unix::fs::chown(&dir, Some(65534), None).unwrap();
    let as_nobody = |change: &str, path: &Path| {
        let mut command = Command::new("chattr");
        command.arg(change).arg(path).uid(65534).gid(65534).output().unwrap()
    };
    assert!(as_nobody("+dA", &dir).status.success());
    assert_eq!(shown(&dir), "dA");
    for path in [dir.join("file"), dir.join("sub")] {
        if path.ends_with("sub") { fs::create_dir(&path) } else { fs::write(&path, b"") }.unwrap();
        assert_eq!(shown(&path), "dA", "{path:?}");
        let refused = as_nobody("-d", &path);
        assert!(!refused.status.success(), "it is root's: {refused:?}");
    }
    for change in ["+i", "+a"] {
        let refused = as_nobody(change, &dir);
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(text.contains("not permitted"), "{text}");
    }
    for change in ["+S", "+c", "+j", "+D"] {
        let refused = run("chattr", &[change], &dir);
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(text.contains("not supported"), "{change}: {text}");
    }
    assert_eq!(shown(&dir), "dA");
    let accessed = || fs::metadata(dir.join("file")).unwrap().atime_nsec();
    fs::write(dir.join("file"), b"text").unwrap();
    // The kernel forgets the bytes, so that it asks for them.
    chattr("-d", &dir.join("file"));
    let before = accessed();
    assert_eq!(fs::read(dir.join("file")).unwrap(), b"text");
    assert_eq!(accessed(), before, "its time of access stays");
    chattr("-A", &dir.join("file"));
    assert_eq!(fs::read(dir.join("file")).unwrap(), b"text");
    assert_ne!(accessed(), before);
}

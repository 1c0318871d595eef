//! The number of the kernel's requests to a mount for a system call.
//!
//! A separate test binary, because requests are counted by fuser's log of each, and a process has
//! one logger. Needs `/dev/fuse`, and root or `fusermount3`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, fchown};
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant, SystemTime};

use everbyte_device::meter::Meter;
use everbyte_fs::{AccessTimes, FileSystem, FileType, FsOptions, InodeNo, Name, NewInode, kinds};
use everbyte_fuse::{KernelCaching, Mount, MountOptions, Privileges};
use everbyte_media::{Mapped, MediaOptions};
use everbyte_pool::{OpenOptions, Pool};

/// The names of the requests since they were last taken.
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
        if !line.starts_with("FUSE(") {
            return;
        }
        let name = request.split_whitespace().nth(1).unwrap_or_default().to_owned();
        // The kernel forgets when it likes to.
        if !["FORGET", "BATCHFORGET"].contains(&name.as_str()) {
            self.0.lock().unwrap().push(name.trim_end_matches(',').to_owned());
        }
    }

    fn flush(&self) {}
}

/// The requests caused by `call`, which closes its files.
fn requests(call: impl FnOnce()) -> Vec<String> {
    REQUESTS.0.lock().unwrap().clear();
    call();
    // The kernel asks to close a file after it has been closed.
    let are_closed = || {
        let requests = REQUESTS.0.lock().unwrap();
        let count = |names: [&str; 2]| {
            requests.iter().filter(|&name| names.contains(&name.as_str())).count()
        };
        count(["RELEASE"; 2]) >= count(["OPEN", "CREATE"])
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    while !are_closed() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::mem::take(&mut *REQUESTS.0.lock().unwrap())
}

/// Fails if `call` leads to more than `count` requests.
fn at_most(count: usize, what: &str, call: impl FnOnce()) {
    let requests = requests(call);
    assert!(requests.len() <= count, "{what}: {requests:?}");
}

/// A file system that is mounted on `dir`.
fn mounted(dir: &Path) -> (Mount, Weak<FileSystem<Mapped>>) {
    let bytes = 64 << 20;
    let medium = Arc::new(Mapped::anonymous(bytes, &MediaOptions::default()).unwrap());
    Pool::format(&*medium, 2, [1; 16]).unwrap();
    let options = OpenOptions { capacity_blocks: bytes / 4096 };
    let pool = Arc::new(Pool::open(medium, kinds(), &options).unwrap());
    let options = FsOptions {
        log_bytes: Some(8 << 20),
        root_uid: rustix::process::geteuid().as_raw(),
        root_gid: rustix::process::getegid().as_raw(),
        ..FsOptions::default()
    };
    drop(FileSystem::create(&pool, "files", 48 << 20, &options).unwrap());
    let fs = Arc::new(FileSystem::open(&pool, "files").unwrap());
    let options = MountOptions {
        source: "test/files".into(),
        allow_other: false,
        read_only: false,
        threads: 2,
        access_times: AccessTimes::Relative,
        caching: KernelCaching::Full,
        privileges: Privileges::default(),
        exec: true,
        dir_access_times: true,
    };
    let made = Arc::downgrade(&fs);
    (Mount::new(fs, dir, &options, &Meter::new(1)).unwrap(), made)
}

fn list(dir: &Path) -> usize {
    fs::read_dir(dir).unwrap().count()
}

/// Makes a file with the system calls of `tar x`, as root with those for the owner and the mode.
fn extract(path: &Path, parts: &[usize], is_root: bool) {
    let mut file = File::options().write(true).create_new(true).open(path).unwrap();
    for part in parts {
        file.write_all(&vec![1; *part]).unwrap();
    }
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    if is_root {
        fchown(&file, Some(7), Some(7)).unwrap();
        file.set_permissions(Permissions::from_mode(0o640)).unwrap();
    }
}

/// Parts as `tar` writes them, and whole files.
fn extracted_files_cost_the_necessary_requests(dir: &Path) {
    const FILES: usize = 20;
    let each = |call: &dyn Fn(&Path)| {
        (0..FILES).for_each(|number| call(&dir.join(number.to_string())));
    };
    // The kernel divides a part that begins within a page.
    for (parts, writes) in [(&[300][..], 1), (&[4096], 1), (&[9728, 10_240, 700], 5)] {
        for is_root in [false, true] {
            if is_root && !everbyte_testkit::is_root("change owners") {
                continue;
            }
            // Attributes of the directory, LOOKUP, CREATE, capabilities before the first write,
            // SETATTR of the time, RELEASE.
            let mut most = 6 + writes;
            // SETATTR of owner and mode. The kernel looks for capabilities before the former.
            most += if is_root { 3 } else { 0 };
            let what = format!("{parts:?}, {is_root}");
            at_most(FILES * most, &what, || each(&|path| extract(path, parts, is_root)));
            if parts == [4096] && !is_root {
                // The set time leaves the written pages in the kernel. OPEN and RELEASE, and once the
                // attributes of the directory.
                at_most(2 * FILES + 1, "read", || each(&|path| drop(fs::read(path).unwrap())));
            }
            // Attributes of the directory, which changes with each, and UNLINK.
            at_most(2 * FILES, "unlink", || each(&|path| fs::remove_file(path).unwrap()));
        }
    }
}

/// Removes a directory as `rm -rf` does: lists all names first. The kernel knew no name.
fn removed_files_cost_the_necessary_requests(dir: &Path, file_system: &FileSystem<Mapped>) {
    const FILES: usize = 1000;
    fs::create_dir(dir).unwrap();
    let parent = InodeNo(fs::metadata(dir).unwrap().ino());
    let (kind, permissions) = (FileType::Regular, 0o644);
    let new = NewInode { kind, permissions, umask: 0, uid: 0, gid: 0, device: 0, target: &[] };
    for number in 0..FILES {
        let name = number.to_string();
        file_system.create_inode(parent, Name::new(name.as_bytes()).unwrap(), &new).unwrap();
    }
    // UNLINK, and the attributes of the directory, which changes with each. The answers to
    // READDIRPLUS have about 170 names.
    at_most(2 * FILES + 20, "rm -rf", || {
        let names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(names.len(), FILES);
        names.iter().for_each(|path| fs::remove_file(path).unwrap());
        fs::remove_dir(dir).unwrap();
    });
}

#[test]
fn system_calls_cost_the_necessary_requests() {
    log::set_logger(&REQUESTS).unwrap();
    log::set_max_level(log::LevelFilter::Debug);
    let dir = tempfile::tempdir().unwrap();
    let (mount, fs) = mounted(dir.path());
    let path = dir.path().join("f");
    requests(|| fs::write(&path, b"").unwrap());

    let made = dir.path().join("made");
    // In addition to these five the attributes of the directory, changed by the file before.
    at_most(6, "create, write and close", || fs::write(&made, b"some text").unwrap());
    let file = File::options().read(true).write(true).open(&path).unwrap();
    // Before the first write the kernel looks for security.capability.
    at_most(2, "write", || file.write_all_at(&[1; 4096], 0).unwrap());
    at_most(1, "next write", || file.write_all_at(&[1; 4096], 0).unwrap());
    at_most(0, "read what was written", || file.read_exact_at(&mut [0; 4096], 0).unwrap());
    let _ = fs::metadata(&path).unwrap();
    at_most(0, "stat", || assert!(fs::metadata(&path).is_ok()));
    // Flags of the file may forbid it.
    at_most(2, "open and close", || drop(File::open(&path).unwrap()));
    at_most(2, "read what is cached after opening it", || {
        assert_eq!(fs::read(&path).unwrap(), [1; 4096]);
    });
    let none = dir.path().join("none");
    at_most(1, "stat of no file", || assert!(fs::metadata(&none).is_err()));
    at_most(0, "stat of no file, again", || assert!(fs::metadata(&none).is_err()));
    fs::rename(&made, &none).unwrap();
    requests(|| {
        let text = fs::read(&none).unwrap();
        assert_eq!(text, b"some text", "the kernel knows that it is there now");
    });

    let many = dir.path().join("many");
    fs::create_dir(&many).unwrap();
    requests(|| {
        (0..1000).for_each(|number| fs::write(many.join(number.to_string()), b"").unwrap());
    });
    at_most(8, "the first listing of 1000 names", || assert_eq!(list(&many), 1000));
    at_most(1, "a listing that the kernel has", || assert_eq!(list(&many), 1000));
    fs::remove_file(many.join("7")).unwrap();
    assert_eq!(list(&many), 999);
    let extracted = dir.path().join("extracted");
    fs::create_dir(&extracted).unwrap();
    extracted_files_cost_the_necessary_requests(&extracted);
    removed_files_cost_the_necessary_requests(&dir.path().join("cold"), &fs.upgrade().unwrap());
    mount.unmount().unwrap();
}

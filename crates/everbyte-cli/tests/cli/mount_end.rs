//! Ends of mounts with and without a drop of stores through mappings by the kernel.
//!
//! Needs `/dev/fuse` and root.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use everbyte_testkit::is_root;
use rustix::process::Signal;

use super::mount::Files;
use super::watchdog::Watchdog;
use super::{Running, everbyte};

/// Maps a file, stores to it, and stays until its standard input ends.
const STORE: &str = "import mmap, os, sys
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.write(f, b'o' * 65536)
os.fsync(f)
m = mmap.mmap(f, 65536)
m[0:8] = b'N' * 8
print('stored', flush=True)
sys.stdin.read()";

/// A program with a mapped and changed file of a mount.
struct Stores(Child);

impl Stores {
    fn new(dir: &Path) -> Self {
        let mut python = Command::new("python3");
        let python = python.args(["-c", STORE]).arg(dir.join("f")).stdin(Stdio::piped());
        let mut child = python.stdout(Stdio::piped()).spawn().unwrap();
        let mut stored = [0; 6];
        child.stdout.as_mut().unwrap().read_exact(&mut stored).unwrap();
        assert_eq!(&stored, b"stored");
        Self(child)
    }

    /// Ends the program. Its end unmaps the file.
    fn end(mut self) {
        drop(self.0.stdin.take());
        let watchdog = Watchdog::over(&self.0);
        assert!(self.0.wait().unwrap().success());
        watchdog.call_off(&"the end of a program");
    }
}

/// A mount with its messages in a file.
fn mount(files: &Files, said: &str) -> Running {
    let line = files.place.arguments("mount POOL/files FOLDER/mnt");
    let stderr = File::create(files.place.folder.path().join(said)).unwrap();
    let running = Running::start_with(everbyte().args(line), stderr.into());
    assert!(running.ready.starts_with("ready: "), "{:?}", running.ready);
    running
}

fn said(files: &Files, name: &str) -> String {
    fs::read_to_string(files.place.folder.path().join(name)).unwrap()
}

/// Waits for a command to end without a signal, and returns its status.
fn end(mut running: Running) -> ExitStatus {
    let watchdog = Watchdog::over(&running.child);
    let status = running.child.wait().unwrap();
    watchdog.call_off(&"the end of a mount");
    status
}

fn run(program: &str, arguments: &[&str], dir: &Path) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).arg(dir).stderr(Stdio::null()).status().unwrap().success()
}

/// The kernel's directory of connections, until it is dropped.
struct Connections(PathBuf);

impl Connections {
    fn new(files: &Files) -> Self {
        let dir = files.place.folder.path().join("connections");
        fs::create_dir_all(&dir).unwrap();
        assert!(run("mount", &["-t", "fusectl", "none"], &dir));
        Self(dir)
    }

    fn abort(&self, device: u64) {
        fs::write(self.0.join(format!("{}/abort", device & 0xff)), "1").unwrap();
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// Checks the end of the mount: status 1, the reason, and the old bytes.
fn check_lost(files: &Files, running: Running, why: &str) {
    assert_eq!(end(running).code(), Some(1), "{why}");
    let said = said(files, "said");
    assert!(said.contains("was aborted") && said.contains("may be lost"), "{why}: {said}");
    let _ = Command::new("umount").arg("-l").arg(&files.dir).stderr(Stdio::null()).status();
    assert_eq!(files.place.info()["clean"], true);
    assert!(files.place.run("fs cat POOL/files:f").good().starts_with("oooooooo"), "{why}");
}

#[test]
fn abort_of_a_used_mount_ends_with_status_1() {
    if !is_root("abort a mount") {
        return;
    }
    let files = Files::new();
    let connections = Connections::new(&files);
    let abort = |device| {
        connections.abort(device);
        true
    };
    let ways: [(&str, &dyn Fn(u64) -> bool); 5] = [
        ("umount -f", &|_| !run("umount", &["-f"], &files.dir)),
        ("umount -f -l", &|_| run("umount", &["-f", "-l"], &files.dir)),
        ("fusectl", &abort),
        ("umount -l, then fusectl", &|device| run("umount", &["-l"], &files.dir) && abort(device)),
        ("umount -f, then umount -l", &|_| {
            let is_busy = !run("umount", &["-f"], &files.dir);
            // The command may take the dead mount away first.
            let _ = run("umount", &["-l"], &files.dir);
            is_busy
        }),
    ];
    for (why, way) in ways {
        let running = mount(&files, "said");
        let device = fs::metadata(&files.dir).unwrap().dev();
        let stores = Stores::new(&files.dir);
        assert!(way(device), "{why}");
        stores.end();
        check_lost(&files, running, why);
    }
}

/// The program and the file system are gone before anybody can look for them.
#[test]
fn abort_is_seen_where_the_program_ends_at_once() {
    if !is_root("abort a mount") {
        return;
    }
    let files = Files::new();
    let running = mount(&files, "said");
    let stores = Stores::new(&files.dir);
    // The command cannot look while it stands still.
    running.send(Signal::STOP);
    let forced = rustix::mount::UnmountFlags::FORCE | rustix::mount::UnmountFlags::DETACH;
    rustix::mount::unmount(&files.dir, forced).unwrap();
    stores.end();
    running.send(Signal::CONT);
    check_lost(&files, running, "a program that ends");
}

#[test]
fn unmounting_after_use_ends_with_status_0() {
    if !is_root("unmount") {
        return;
    }
    let files = Files::new();
    for round in 0..3 {
        let running = mount(&files, "said");
        Stores::new(&files.dir).end();
        fs::write(files.dir.join("other"), "bytes").unwrap();
        assert!(run("umount", &[], &files.dir));
        assert_eq!(end(running).code(), Some(0), "round {round}: {}", said(&files, "said"));
        assert!(files.place.run("fs cat POOL/files:f").good().starts_with("NNNNNNNN"));
    }
    let running = mount(&files, "said");
    let stores = Stores::new(&files.dir);
    assert!(run("umount", &["-l"], &files.dir));
    std::thread::sleep(Duration::from_millis(100));
    stores.end();
    assert_eq!(end(running).code(), Some(0), "{}", said(&files, "said"));
    assert!(files.place.run("fs cat POOL/files:f").good().starts_with("NNNNNNNN"));
}

/// A mount namespace with a copy of this one, until its drop.
struct Namespace(Child);

impl Namespace {
    fn new() -> Self {
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep 60"]);
        let mut child = unshare.stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        Self(child)
    }

    fn run(&self, line: &str) -> bool {
        let mut nsenter = Command::new("nsenter");
        nsenter.arg(format!("--mount=/proc/{}/ns/mnt", self.0.id())).args(["sh", "-c", line]);
        nsenter.stderr(Stdio::null()).status().unwrap().success()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn mount_in_another_namespace_outlasts_unmounting() {
    if !is_root("make a namespace of mounts") {
        return;
    }
    let files = Files::new();
    let shown = files.dir.display();
    for is_forced in [false, true] {
        let running = mount(&files, "said");
        let other = Namespace::new();
        let stores = Stores::new(&files.dir);
        assert!(run("umount", &["-l"], &files.dir));
        assert!(other.run(&format!("echo more >{shown}/more")));
        if is_forced {
            // The file is open through the mount of this namespace, so the other one counts as unused.
            assert!(other.run(&format!("umount -f {shown}")));
            stores.end();
            check_lost(&files, running, "umount -f in another namespace");
        } else {
            stores.end();
            assert!(other.run(&format!("umount {shown}")));
            assert_eq!(end(running).code(), Some(0), "{}", said(&files, "said"));
            assert!(files.place.run("fs cat POOL/files:f").good().starts_with("NNNNNNNN"));
        }
    }
}

#[test]
fn abort_of_a_served_mount_reaches_each_command() {
    if !is_root("abort a mount") {
        return;
    }
    let files = Files::new();
    let place = &files.place;
    let server = place.serve("POOL", "");
    let running = mount(&files, "said");
    let stores = Stores::new(&files.dir);
    assert!(!run("umount", &["-f"], &files.dir));
    stores.end();
    assert_eq!(end(running).code(), Some(1));
    assert!(said(&files, "said").contains("was aborted"), "{}", said(&files, "said"));
    assert!(!files.dir.join("f").exists(), "the dead mount is taken away");
    place.run("fs sync POOL/files").failed(1, &["was aborted", "may be lost"]);
    place.run("fs sync POOL/files").good();
    // The mount command cannot report the next loss.
    let lose = || {
        let running = mount(&files, "said");
        let stores = Stores::new(&files.dir);
        running.kill();
        assert!(!run("umount", &["-f"], &files.dir));
        stores.end();
        assert!(run("umount", &["-l"], &files.dir));
        let deadline = Instant::now() + Duration::from_secs(20);
        while place.run("volume list POOL").good().contains("mounted on") {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    lose();
    place.run("fs sync POOL/files").failed(1, &["was aborted", "may be lost"]);
    place.run("fs sync POOL/files").good();
    server.stop();
    // The server's own status is the last report.
    let mut server = place.serve("POOL", "");
    lose();
    assert_eq!(server.signal(Signal::TERM).code(), Some(1));
    assert_eq!(place.info()["clean"], true);
}

/// A copy within the mount is a single, long request. Its answer finds no receiver.
#[test]
fn answer_after_an_abort_is_no_error_in_the_log() {
    if !is_root("abort a mount") {
        return;
    }
    let files = Files::new();
    let running = mount(&files, "said");
    let from = files.dir.join("from");
    fs::write(&from, vec![7; 8 << 20]).unwrap();
    let to = files.dir.join("to");
    let (copied, has_copied) = mpsc::channel();
    let copying = std::thread::spawn(move || {
        let (from, to) = (File::open(from).unwrap(), File::create(to).unwrap());
        // Until the mount is gone.
        while rustix::fs::copy_file_range(&from, Some(&mut 0), &to, Some(&mut 0), 8 << 20).is_ok() {
            copied.send(()).unwrap();
        }
    });
    // Before it has opened its files the mount would be unused, and would end without an abort.
    has_copied.recv().unwrap();
    let _ = run("umount", &["-f"], &files.dir);
    copying.join().unwrap();
    assert_eq!(end(running).code(), Some(1));
    let said = said(&files, "said");
    assert!(!said.contains("ERROR"), "{said}");
    assert!(!said.contains("FUSE reply"), "{said}");
}

/// Each of these requests once had a separate thread.
#[test]
fn mount_threads_stay_bounded() {
    let files = Files::new();
    let running = files.mount();
    let status = format!("/proc/{}/status", running.child.id());
    let threads = || -> usize {
        let status = fs::read_to_string(&status).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Threads:")).unwrap();
        line.trim().parse().unwrap()
    };
    fs::write(files.dir.join("f"), "the threads have started").unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let before = threads();
    let seeking = "import os, sys, threading
os.chdir(sys.argv[1])
def seek(number):
    f = os.open(str(number), os.O_RDWR | os.O_CREAT)
    os.truncate(f, 1 << 20)
    ready.wait()
    for _ in range(2):
        assert os.lseek(f, 0, os.SEEK_HOLE) == 0
        try: os.posix_fallocate(f, 1 << 40, 1 << 40)
        except OSError: pass
ready = threading.Barrier(500)
threading.stack_size(1 << 16)
all = [threading.Thread(target=seek, args=(number,)) for number in range(500)]
[thread.start() for thread in all]
[thread.join() for thread in all]";
    let mut python = Command::new("python3");
    let mut python = python.args(["-c", seeking]).arg(&files.dir).spawn().unwrap();
    let watchdog = Watchdog::over(&python);
    let mut most = before;
    let status = loop {
        most = most.max(threads());
        if let Some(status) = python.try_wait().unwrap() {
            break status;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    watchdog.call_off(&"many seeks");
    assert!(status.success());
    assert!(most <= before + 2, "{most} threads, {before} before");
    running.stop();
}

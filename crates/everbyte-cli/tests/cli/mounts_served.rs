//! File systems of a served pool: mounted by a command, served by the pool's server.
//!
//! Needs `/dev/fuse`, and root or `fusermount3`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::mount::{check_source, source_of};
use super::{Outcome, Place, Running, everbyte};

/// A pool with two file systems, and two directories.
struct Two {
    place: Place,
    dirs: [PathBuf; 2],
}

impl Two {
    fn new() -> Self {
        let place = Place::empty();
        place.run("pool create POOL --size 96M").good();
        let dirs = ["one", "two"].map(|name| {
            place.run(&format!("volume create POOL {name} --kind fs --size 32M")).good();
            let dir = place.folder.path().join(format!("mnt-{name}"));
            fs::create_dir(&dir).unwrap();
            dir
        });
        Self { place, dirs }
    }

    fn mount(&self, name: &str) -> Running {
        let line = format!("mount POOL/{name} FOLDER/mnt-{name}");
        let running = Running::start(everbyte().args(self.place.arguments(&line)));
        assert!(running.ready.starts_with("ready: "), "{:?}", running.ready);
        running
    }
}

impl Drop for Two {
    fn drop(&mut self) {
        for dir in &self.dirs {
            // No mount may stay after any outcome of a test.
            let _ = Command::new("umount").arg("-l").arg(dir).stderr(Stdio::null()).status();
        }
    }
}

fn is_mounted(dir: &Path) -> bool {
    source_of(dir).is_some()
}

fn unmount(dir: &Path) {
    assert!(Command::new("umount").arg(dir).status().unwrap().success());
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn server_mounts_each_fs_once() {
    let two = Two::new();
    let (place, [one, other]) = (&two.place, &two.dirs);
    let server = place.serve("POOL", "");
    let (first, mut second) = (two.mount("one"), two.mount("two"));
    check_source(one);
    fs::write(one.join("f"), "in one").unwrap();
    fs::write(other.join("f"), "in two").unwrap();
    assert_eq!(place.run("fs cat POOL/two:f").good(), "in two");
    let list = place.run("volume list POOL").good();
    assert!(list.contains(&format!("mounted on {}", one.display())), "{list}");
    let again = place.folder.path().join("again");
    fs::create_dir(&again).unwrap();
    place.run("mount POOL/one FOLDER/again").failed(1, &["mounted already", "mnt-one"]);
    assert!(!is_mounted(&again));
    for change in [
        "volume delete POOL one",
        "volume delete POOL one --force",
        "volume rename POOL one three --force",
    ] {
        place.run(change).failed(1, &["one is mounted: unmount it first"]);
    }
    assert_eq!(fs::read_to_string(one.join("f")).unwrap(), "in one");
    first.stop();
    assert!(!is_mounted(one) && is_mounted(other));
    place.run("volume delete POOL one").good();
    server.stop();
    assert!(second.child.wait().unwrap().success());
    assert!(!is_mounted(other));
    assert_eq!(place.info()["clean"], true);
    assert_eq!(place.run("fs cat POOL/two:f").good(), "in two");
}

#[test]
fn served_mount_ends_if_ready_line_fails() {
    let two = Two::new();
    let (place, [one, _]) = (&two.place, &two.dirs);
    let server = place.serve("POOL", "");
    let line = place.arguments("mount POOL/one FOLDER/mnt-one");
    Outcome::unheard(everbyte().args(line)).failed(1, &["standard output"]);
    assert!(!is_mounted(one));
    wait_until("the volume is free", || place.run("volume delete POOL one").status == 0);
    server.stop();
    assert_eq!(place.info()["clean"], true);
}

#[test]
fn unmount_by_server_is_durable() {
    let two = Two::new();
    let (place, [one, _]) = (&two.place, &two.dirs);
    let server = place.serve("POOL", "--checkpoint-interval 1h");
    let mut mount = two.mount("one");
    fs::write(one.join("f"), "not synced").unwrap();
    unmount(one);
    assert!(mount.child.wait().unwrap().success());
    server.kill();
    assert_eq!(place.run("fs cat POOL/one:f").good(), "not synced");
}

#[test]
fn used_mount_fails_with_its_server() {
    let two = Two::new();
    let (place, [one, _]) = (&two.place, &two.dirs);
    let line = place.arguments("serve POOL --nbd unix:FOLDER/nbd.sock");
    let log = place.folder.path().join("log");
    let stderr = fs::File::create(&log).unwrap();
    let server = Running::start_with(everbyte().args(line), stderr.into());
    let mut mount = two.mount("one");
    let used = fs::File::create(one.join("f")).unwrap();
    fs::create_dir(one.join("d")).unwrap();
    server.stop();
    assert!(!mount.child.wait().unwrap().success());
    assert!(!is_mounted(one));
    drop(used);
    let log = fs::read_to_string(log).unwrap();
    assert!(!log.contains("ERROR"), "no file was removed, and nothing is to be done: {log}");
    assert_eq!(place.info()["clean"], true);
}

#[test]
fn killed_mount_command_is_harmless() {
    let two = Two::new();
    let (place, [one, other]) = (&two.place, &two.dirs);
    let server = place.serve("POOL", "");
    two.mount("one").kill();
    let mount = two.mount("two");
    fs::write(one.join("f"), "still served").unwrap();
    assert_eq!(fs::read(one.join("f")).unwrap(), b"still served");
    unmount(one);
    wait_until("the volume is free", || place.run("volume delete POOL one").status == 0);
    mount.stop();
    // Left by its command, and taken away by the server at its end.
    two.mount("two").kill();
    server.stop();
    assert!(!is_mounted(other));
    assert_eq!(place.info()["clean"], true);
}

#[test]
fn killed_server_can_mount_again() {
    let two = Two::new();
    let (place, [one, _]) = (&two.place, &two.dirs);
    let server = place.serve("POOL", "");
    let mut mount = two.mount("one");
    fs::write(one.join("f"), "synced").unwrap();
    place.run("fs sync POOL/one").good();
    server.kill();
    assert!(!mount.child.wait().unwrap().success());
    assert!(!is_mounted(one));
    // Killed together, the next one replaces the dead mount.
    let server = place.serve("POOL", "");
    two.mount("one").kill();
    server.kill();
    assert!(fs::read_dir(one).is_err(), "the server has gone");
    let server = place.serve("POOL", "");
    let mount = two.mount("one");
    assert_eq!(fs::read(one.join("f")).unwrap(), b"synced");
    mount.stop();
    server.stop();
}

#[test]
fn background_mount_outlives_command() {
    let two = Two::new();
    let (place, [one, other]) = (&two.place, &two.dirs);
    let ready = place.run("mount --background POOL/one FOLDER/mnt-one").good();
    assert!(ready.starts_with("ready: "), "{ready}");
    fs::write(one.join("f"), "in one").unwrap();
    // The first is the server of the second, and continues as long as the second is mounted.
    place.run("mount --background POOL/two FOLDER/mnt-two").good();
    unmount(one);
    fs::write(other.join("f"), "in two").unwrap();
    assert_eq!(place.run("fs cat POOL/one:f").good(), "in one");
    unmount(other);
    wait_until("the pool is closed", || place.info()["serving"].is_null());
    assert_eq!(place.info()["clean"], true);
    place.run("mount --background POOL/none FOLDER/mnt-one").status_is(1);
}

impl Outcome {
    fn status_is(&self, status: i32) {
        assert_eq!(self.status, status, "{self:?}");
    }
}

#[test]
fn read_only_server_mounts_read_only() {
    let two = Two::new();
    let (place, [one, _]) = (&two.place, &two.dirs);
    let server = place.serve("POOL", "--read-only");
    place.run("mount POOL/one FOLDER/mnt-one").failed(1, &["read-only"]);
    let line = place.arguments("mount --read-only POOL/one FOLDER/mnt-one");
    let mut mount = Running::start(everbyte().args(line));
    assert!(fs::write(one.join("f"), "x").is_err());
    assert!(mount.signal(Signal::TERM).success());
    server.stop();
}

#[test]
fn served_mount_waits_for_each_server() {
    let two = Two::new();
    let (place, [one, _]) = (&two.place, &two.dirs);
    let mount = || {
        let line = place.arguments("mount POOL/one FOLDER/mnt-one --served");
        Running::begin(everbyte().args(line))
    };
    let mut waiting = mount();
    std::thread::sleep(Duration::from_millis(300));
    // The waiting command leaves the pool to other programs.
    assert_eq!(place.info()["clean"], true);
    let server = place.serve("POOL", "");
    assert!(waiting.line().starts_with("ready: "));
    fs::write(one.join("f"), "kept").unwrap();
    place.run("fs sync POOL/one").good();
    server.kill();
    assert_eq!(waiting.child.wait().unwrap().code(), Some(1));
    assert!(!is_mounted(one));
    let mut waiting = mount();
    let server = place.serve("POOL", "");
    assert!(waiting.line().starts_with("ready: "));
    assert_eq!(fs::read_to_string(one.join("f")).unwrap(), "kept");
    waiting.stop();
    assert!(!is_mounted(one));
    server.stop();
    // A wait without a server ends by a signal.
    let waiting = mount();
    std::thread::sleep(Duration::from_millis(300));
    waiting.stop();
}

#[test]
fn mount_ended_before_ready_is_a_failure() {
    let two = Two::new();
    let line = two.place.arguments("mount POOL/one FOLDER/mnt-one --served --background");
    let mut parent = Running::begin(everbyte().args(line));
    let children = format!("/proc/{0}/task/{0}/children", parent.child.id());
    let deadline = Instant::now() + Duration::from_secs(20);
    let child = loop {
        let found = fs::read_to_string(&children).unwrap();
        if let Ok(child) = found.trim().parse() {
            break Pid::from_raw(child).unwrap();
        }
        assert!(Instant::now() < deadline, "no process in the background");
        std::thread::sleep(Duration::from_millis(10));
    };
    // The process catches the signal a moment after its start. Before that the signal ends it.
    std::thread::sleep(Duration::from_millis(300));
    kill_process(child, Signal::TERM).unwrap();
    assert_eq!(parent.child.wait().unwrap().code(), Some(1));
}

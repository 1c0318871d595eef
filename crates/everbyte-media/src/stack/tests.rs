//! Stacks in a made-up `/sys`, and over real loop devices.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::makedev;

use super::system::System;
use super::walk::{walk, walk_device};
use super::*;

/// A made-up tree of `/sys` and `/dev`.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A block device with the folder `name`, with files and with devices below.
    fn device(
        &self,
        name: &str,
        minor: u32,
        files: &[(&str, &str)],
        slaves: &[(&str, u32)],
    ) -> u64 {
        let folder = format!("sys/devices/{name}");
        self.put(&format!("{folder}/dev"), &format!("8:{minor}\n"));
        self.put(&format!("{folder}/ro"), "0\n");
        let node = Path::new(name).file_name().unwrap().to_str().unwrap();
        self.put(&format!("{folder}/uevent"), &format!("MAJOR=8\nDEVNAME={node}\n"));
        self.put(&format!("dev/{node}"), "");
        for (file, text) in files {
            self.put(&format!("{folder}/{file}"), text);
        }
        for (slave, minor) in slaves {
            self.put(&format!("{folder}/slaves/{slave}/dev"), &format!("8:{minor}\n"));
        }
        let links = self.0.path().join("sys/dev/block");
        fs::create_dir_all(&links).unwrap();
        symlink(self.0.path().join(folder), links.join(format!("8:{minor}"))).unwrap();
        makedev(8, minor)
    }

    fn stack(&self, device: u64) -> Stack {
        walk_device(&System::made_up(self.0.path()), device)
    }

    fn file(&self, path: &Path) -> Stack {
        walk(&System::made_up(self.0.path()), &fs::File::open(path).unwrap()).unwrap()
    }

    fn share(&self, one: u64, other: u64) -> bool {
        let (one, other) = (self.stack(one), self.stack(other));
        assert_eq!(one.shares_bytes_with(&other), other.shares_bytes_with(&one));
        one.shares_bytes_with(&other)
    }

    fn chown(&self, node: &str, uid: u32) {
        chown(self.0.path().join("dev").join(node), Some(uid), None).unwrap();
    }
}

fn partition(start: u64, size: u64) -> Vec<(&'static str, String)> {
    vec![("partition", "1\n".into()), ("start", start.to_string()), ("size", size.to_string())]
}

impl Tree {
    fn partition(&self, name: &str, minor: u32, start: u64, size: u64) -> u64 {
        let files = partition(start, size);
        let files: Vec<_> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
        self.device(name, minor, &files, &[])
    }
}

#[test]
fn partition_shares_bytes_with_disk_only() {
    let tree = Tree::new();
    let disk = tree.device("sda", 0, &[], &[]);
    let one = tree.partition("sda/sda1", 1, 2048, 1000);
    let two = tree.partition("sda/sda2", 2, 3048, 1000);
    // A logical partition in an extended one.
    let inner = tree.partition("sda/sda5", 5, 3050, 10);
    let other = tree.device("sdb", 16, &[], &[]);
    assert!(tree.share(disk, disk) && tree.share(disk, one) && tree.share(one, one));
    assert!(!tree.share(one, two) && !tree.share(one, inner) && tree.share(two, inner));
    assert!(!tree.share(disk, other) && !tree.share(one, other));
}

#[test]
fn loop_device_shares_bytes_of_file() {
    let tree = Tree::new();
    let image = tree.0.path().join("image");
    fs::write(&image, "x").unwrap();
    let path = image.to_str().unwrap();
    let zero = tree.device("loop0", 100, &[("loop/backing_file", path)], &[]);
    let over = |nth: u32, offset: &str, limit: &str| {
        let files =
            [("loop/backing_file", path), ("loop/offset", offset), ("loop/sizelimit", limit)];
        tree.device(&format!("loop{nth}"), 100 + nth, &files, &[])
    };
    let (first, second) = (over(1, "0", "4096"), over(2, "4096", "0"));
    assert!(tree.share(zero, first) && tree.share(zero, second) && !tree.share(first, second));
    assert!(tree.file(&image).shares_bytes_with(&tree.stack(second)));
    let other = tree.0.path().join("other");
    fs::write(&other, "x").unwrap();
    assert!(!tree.file(&other).shares_bytes_with(&tree.stack(zero)));
    assert!(!tree.file(&other).shares_bytes_with(&tree.file(&image)));
    // Its file is gone.
    let gone = [("loop/backing_file", "/gone (deleted)")];
    let gone = tree.stack(tree.device("loop9", 109, &gone, &[]));
    assert_eq!(gone.writers().others_than(0), OtherWriters::Several);
    assert!(gone.writers().reason(0).unwrap().contains("loop9"));
}

#[test]
fn dm_device_shares_bytes_with_lower_device() {
    let tree = Tree::new();
    let disk = tree.device("sda", 0, &[], &[]);
    let part = tree.partition("sda/sda1", 1, 2048, 1000);
    let free = tree.partition("sda/sda2", 2, 4096, 1000);
    let linear = tree.device("dm-0", 10, &[("dm/uuid", "CRYPT-1")], &[("sda1", 1)]);
    let stacked = tree.device("dm-1", 11, &[], &[("dm-0", 10)]);
    let again = tree.device("dm-2", 12, &[], &[("sda1", 1)]);
    for device in [disk, part, linear, stacked, again] {
        assert!(tree.share(stacked, device), "{device:#x}");
    }
    assert!(!tree.share(stacked, free) && tree.share(again, linear));
    let raid = tree.device("md0", 20, &[], &[("sda2", 2), ("dm-1", 11)]);
    assert!(tree.share(raid, free) && tree.share(raid, part) && tree.share(raid, linear));
}

#[test]
fn logical_volumes_share_no_bytes() {
    let tree = Tree::new();
    let disk = tree.device("sda", 0, &[], &[]);
    let (group, other) = ("g".repeat(32), "h".repeat(32));
    let volume = |nth: u32, group: &str, id: &str| {
        let uuid = format!("LVM-{group}{id}");
        let below = [("sda", 0)];
        tree.device(&format!("dm-{nth}"), 10 + nth, &[("dm/uuid", uuid.as_str())], &below)
    };
    let (a, b) = (volume(0, &group, &"a".repeat(32)), volume(1, &group, &"b".repeat(32)));
    let internal = volume(2, &group, &format!("{}-real", "a".repeat(32)));
    let foreign = volume(3, &other, &"c".repeat(32));
    assert!(!tree.share(a, b) && tree.share(a, a) && tree.share(a, disk));
    assert!(tree.share(a, internal) && tree.share(a, foreign));
    let below = [("dm-0", 10)];
    let kpartx = |nth: u32, uuid: &str| {
        tree.device(&format!("dm-{nth}"), 10 + nth, &[("dm/uuid", uuid)], &below)
    };
    let (first, second) = (kpartx(5, "part1-mpath-x"), kpartx(6, "part2-mpath-x"));
    assert!(!tree.share(first, second) && tree.share(first, a) && !tree.share(first, b));
}

#[test]
fn multipath_paths_are_one_disk() {
    let tree = Tree::new();
    let path =
        |nth: u32, wwid: &str| tree.device(&format!("sd{nth}"), nth, &[("device/wwid", wwid)], &[]);
    let (a, b, c) = (path(1, "naa.1"), path(2, "naa.1"), path(3, "naa.2"));
    let multipath = tree.device("dm-0", 10, &[("dm/uuid", "mpath-1")], &[("sd1", 1), ("sd2", 2)]);
    assert!(tree.share(a, b) && tree.share(multipath, a) && tree.share(multipath, b));
    assert!(!tree.share(a, c) && !tree.share(multipath, c));
}

#[test]
fn write_protection_below_is_told() {
    let tree = Tree::new();
    let disk = tree.device("sda", 0, &[], &[]);
    let part = tree.partition("sda/sda1", 1, 2048, 1000);
    let linear = tree.device("dm-0", 10, &[], &[("sda1", 1)]);
    assert_eq!(tree.stack(linear).write_protection(), None);
    tree.put("sys/devices/sda/sda1/ro", "1\n");
    for device in [part, linear] {
        let told = tree.stack(device).write_protection().unwrap();
        assert!(told.contains("sda1"), "{told}");
    }
    assert_eq!(tree.stack(disk).write_protection(), None);
}

#[test]
fn circles_and_missing_devices_are_bounded() {
    let tree = Tree::new();
    let one = tree.device("dm-0", 10, &[], &[("dm-1", 11)]);
    tree.device("dm-1", 11, &[], &[("dm-0", 10)]);
    assert!(tree.stack(one).layers.len() <= 256);
    let absent = tree.stack(makedev(8, 99));
    assert_eq!(absent.writers().others_than(0), OtherWriters::Several);
}

#[test]
fn owners_of_devices_below_are_writers() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let tree = Tree::new();
    tree.device("sda", 0, &[], &[]);
    tree.partition("sda/sda1", 1, 2048, 1000);
    let linear = tree.device("dm-0", 10, &[], &[("sda1", 1)]);
    assert_eq!(tree.stack(linear).writers().others_than(0), OtherWriters::Nobody);
    tree.chown("sda", 7);
    assert_eq!(tree.stack(linear).writers().others_than(0), OtherWriters::One(7));
    assert_eq!(tree.stack(linear).writers().others_than(7), OtherWriters::Nobody);
    tree.chown("dm-0", 8);
    assert_eq!(tree.stack(linear).writers().others_than(0), OtherWriters::Several);
    assert!(tree.stack(linear).writers().reason(7).unwrap().contains("user 8"));
}

/// A real loop device, detached when dropped.
struct Loop(PathBuf);

impl Loop {
    fn over(image: &Path) -> Option<Self> {
        let made = Command::new("losetup").args(["--find", "--show"]).arg(image).output();
        let made = made.ok().filter(|output| output.status.success())?;
        Some(Self(PathBuf::from(String::from_utf8(made.stdout).ok()?.trim())))
    }

    fn stack(&self) -> Stack {
        Stack::of(&system::look(&self.0).unwrap()).unwrap()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

#[test]
fn real_loop_devices_lead_to_their_file() {
    let folder = tempfile::tempdir().unwrap();
    let [image, other] = ["image", "other"].map(|name| folder.path().join(name));
    for file in [&image, &other] {
        fs::File::create(file).unwrap().set_len(1 << 20).unwrap();
    }
    let of = |path: &Path| Stack::of(&system::look(path).unwrap()).unwrap();
    let Some(lower) = Loop::over(&image) else { return };
    let Some(upper) = Loop::over(&lower.0) else { return };
    assert!(upper.stack().shares_bytes_with(&of(&image)));
    assert!(upper.stack().shares_bytes_with(&lower.stack()));
    assert!(!upper.stack().shares_bytes_with(&of(&other)));
    assert_eq!(upper.stack().writers(), lower.stack().writers());
    chown(&image, Some(7), None).unwrap();
    assert_eq!(upper.stack().writers().others_than(0), OtherWriters::One(7));
    // Another file at the path of the deleted image is not believed to be the image.
    fs::remove_file(&image).unwrap();
    fs::write(folder.path().join("image (deleted)"), "").unwrap();
    assert_eq!(upper.stack().writers().others_than(0), OtherWriters::Several);
}

#[test]
fn stacks_in_memory_reach_no_storage() {
    let Ok(memory) = tempfile::tempfile_in("/dev/shm") else { return };
    assert!(!Stack::of(&memory).unwrap().reaches_storage());
    let tree = Tree::new();
    let disk = tree.device("sda", 0, &[], &[]);
    assert!(!tree.stack(disk).reaches_storage(), "there is no hardware behind it");
    tree.put("sys/devices/sda/device/model", "a disk\n");
    tree.partition("sda/sda1", 1, 2048, 1000);
    let linear = tree.device("dm-0", 10, &[], &[("sda1", 1)]);
    for device in [disk, linear] {
        assert!(tree.stack(device).reaches_storage());
    }
}

/// A mount, unmounted when dropped.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn file_on_user_image_belongs_to_user() {
    let folder = tempfile::tempdir().unwrap();
    let [image, dir] = ["image", "dir"].map(|name| folder.path().join(name));
    fs::File::create(&image).unwrap().set_len(4 << 20).unwrap();
    fs::create_dir(&dir).unwrap();
    let succeeds = |command: &mut Command| command.output().is_ok_and(|done| done.status.success());
    let is_made = succeeds(Command::new("mkfs.ext4").arg("-q").arg(&image));
    if !is_made || !succeeds(Command::new("mount").args(["-o", "loop"]).args([&image, &dir])) {
        return;
    }
    let _mounted = Mounted(dir.clone());
    let path = dir.join("pool");
    fs::write(&path, "x").unwrap();
    let stack = || Stack::of(&system::look(&path).unwrap()).unwrap();
    assert_eq!(stack().writers().others_than(0), OtherWriters::Nobody);
    chown(&image, Some(7), None).unwrap();
    assert_eq!(stack().writers().others_than(0), OtherWriters::One(7));
    assert!(stack().shares_bytes_with(&Stack::of(&system::look(&image).unwrap()).unwrap()));
}

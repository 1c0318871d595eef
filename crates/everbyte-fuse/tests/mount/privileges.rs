//! Bits and capabilities that a file loses with a change.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use everbyte_fs::{InodeNo, SetAttr, SetAttribute};

use super::{Mounted, mode};

const NOBODY: u32 = 65_534;
/// Changes of `$D/f`.
const CHANGES: [&str; 10] = [
    "echo text >>$D/f",
    "echo text >$D/f",
    "printf x | dd of=$D/f conv=notrunc status=none",
    "printf x | dd of=$D/f conv=notrunc oflag=direct iflag=fullblock bs=4096 status=none",
    "truncate -s 100 $D/f",
    "truncate -s 90000 $D/f",
    "fallocate -l 20000 $D/f",
    "fallocate -p -l 4096 $D/f",
    "fallocate -z -l 4096 $D/f",
    "python3 -c 'import os; os.copy_file_range(os.open(\"'$D'/from\", 0), os.open(\"'$D'/f\", 1), 9)'",
];

/// A file of a mount with write access for every user.
struct Changed {
    mounted: Mounted,
}

impl Changed {
    fn new() -> Option<Self> {
        let mounted = Mounted::for_all()?;
        fs::set_permissions(mounted.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        fs::write(mounted.path().join("from"), [2; 100]).unwrap();
        Some(Self { mounted })
    }

    fn dir(&self) -> &Path {
        self.mounted.path()
    }

    /// The mode of a file of a group and with the mode `before` after a shell, started by `starter`, has run `line`.
    fn left_by(&self, starter: &[&str], line: &str, (gid, before): (u32, u32)) -> u32 {
        let path = self.dir().join("f");
        fs::write(&path, [1; 9000]).unwrap();
        chown(&path, Some(NOBODY), Some(gid)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(before)).unwrap();
        let mut shell = Command::new(starter[0]);
        shell.args(&starter[1..]).args(["sh", "-c", line]).current_dir("/").env("D", self.dir());
        assert!(shell.status().unwrap().success(), "{line}");
        let after = mode(&path);
        fs::remove_file(path).unwrap();
        after
    }
}

const AS_NOBODY: [&str; 6] =
    ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--", "env"];
const IN_GROUP_SEVEN: [&str; 6] =
    ["setpriv", "--reuid=65534", "--regid=65534", "--groups=7", "--", "env"];
const AS_ROOT: [&str; 1] = ["env"];
/// Root without the capability to keep the bits.
const AS_WEAK_ROOT: [&str; 4] = ["setpriv", "--bounding-set=-fsetid", "--inh-caps=-fsetid", "env"];

#[test]
fn set_group_id_goes_with_a_change_by_a_stranger() {
    let Some(changed) = Changed::new() else { return };
    for line in CHANGES {
        let left = |starter: &[&str], file| changed.left_by(starter, line, file);
        assert_eq!(left(&AS_NOBODY, (7, 0o2666)), 0o666, "{line}");
        assert_eq!(left(&AS_NOBODY, (7, 0o6666)), 0o666, "{line}: both bits");
        assert_eq!(left(&IN_GROUP_SEVEN, (7, 0o2666)), 0o2666, "{line}: in the group");
        assert_eq!(left(&AS_ROOT, (7, 0o2666)), 0o2666, "{line}: root");
        assert_eq!(left(&AS_NOBODY, (7, 0o2676)), 0o676, "{line}: the group executes it");
    }
}

#[test]
fn root_without_the_capability_loses_set_group_id() {
    let Some(changed) = Changed::new() else { return };
    for line in CHANGES {
        assert_eq!(changed.left_by(&AS_WEAK_ROOT, line, (7, 0o2666)), 0o666, "{line}");
    }
}

/// Such a root has all capabilities, but not over files of users outside.
#[test]
fn root_of_a_user_namespace_loses_set_group_id() {
    let Some(changed) = Changed::new() else { return };
    let mut probe = Command::new(AS_NOBODY[0]);
    if !probe.args(&AS_NOBODY[1..]).args(["unshare", "-Ur", "true"]).status().unwrap().success() {
        return everbyte_testkit::not_run("no user namespace can be made");
    }
    for line in ["truncate -s 100 $D/f", "echo text >>$D/f", "fallocate -l 20000 $D/f"] {
        let line = format!("unshare -Ur sh -c '{line}'");
        assert_eq!(changed.left_by(&AS_NOBODY, &line, (7, 0o2666)), 0o666, "{line}");
    }
}

/// So it is on ext4.
#[test]
fn reads_stores_and_times_keep_set_group_id() {
    let Some(changed) = Changed::new() else { return };
    let store = "python3 -c 'import mmap, os; f = os.open(\"'$D'/f\", os.O_RDWR); \
        m = mmap.mmap(f, 4096); m[0] = 7; m.flush(); os.fsync(f)'";
    for line in ["cat $D/f >/dev/null", "touch -d 2001-01-01 $D/f", store] {
        assert_eq!(changed.left_by(&AS_NOBODY, line, (7, 0o2666)), 0o2666, "{line}");
    }
}

#[test]
fn capabilities_go_with_a_change() {
    let Some(changed) = Changed::new() else { return };
    let name = "security.capability";
    // CAP_NET_RAW, as version 2 of the kernel's structure.
    let mut value = 0x0200_0001_u32.to_le_bytes().to_vec();
    value.extend((1_u32 << 13).to_le_bytes());
    value.extend([0; 12]);
    let path = changed.dir().join("f");
    for line in CHANGES {
        fs::write(&path, [1; 9000]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        rustix::fs::setxattr(&path, name, &value, rustix::fs::XattrFlags::empty()).unwrap();
        let mut shell = Command::new(AS_NOBODY[0]);
        shell.args(&AS_NOBODY[1..]).args(["sh", "-c", line]).env("D", changed.dir());
        assert!(shell.current_dir("/").status().unwrap().success(), "{line}");
        let found = rustix::fs::getxattr(&path, name, &mut [0_u8; 64]);
        assert_eq!(found.unwrap_err(), rustix::io::Errno::NODATA, "{line}");
        fs::remove_file(&path).unwrap();
    }
}

/// The kernel skips its own look for privileges of a file that had none at the write before.
#[test]
fn privileges_set_through_the_library_go_too() {
    let Some(changed) = Changed::new() else { return };
    let path = changed.dir().join("f");
    let text = |line: &str| {
        let mut shell = Command::new(AS_NOBODY[0]);
        shell.args(&AS_NOBODY[1..]).args(["sh", "-c", line]).env("D", changed.dir());
        assert!(shell.current_dir("/").status().unwrap().success(), "{line}");
    };
    for line in CHANGES {
        fs::write(&path, [1; 9000]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        text("echo text >>$D/f; echo text >>$D/f");
        let fs = changed.mounted.fs.upgrade().unwrap();
        let inode = InodeNo(fs::metadata(&path).unwrap().ino());
        let name = "security.capability";
        fs.set_attribute(inode, (name.as_bytes(), &[1; 20]), SetAttribute::Any).unwrap();
        fs.set_attr(inode, &SetAttr { permissions: Some(0o6777), ..SetAttr::default() }).unwrap();
        text(line);
        assert_eq!(fs.attr(inode).unwrap().permissions, 0o777, "{line}");
        assert!(fs.attribute(inode, name.as_bytes()).is_err(), "{line}");
        assert_eq!(mode(&path), 0o777, "the kernel knows it after {line}");
        fs::remove_file(&path).unwrap();
    }
}

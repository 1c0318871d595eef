//! Attributes of inodes at the ends of their ranges: times, flags.

use std::cell::Cell;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use everbyte_crash::SimMedium;
use everbyte_fs::{
    ACL_ACCESS, AccessTimes, Allocation, Attr, CAPABILITY, FileFlags, FilePlace, FileType, FsError,
    RenameMode, SET_ID_BITS, SetAttr, SetAttribute, SetTime, TIME_RANGE_NS,
};

use crate::damage::{POOL_BYTES, change_inode};
use crate::posix::{create, name, new, new_inode};
use crate::random::options;
use crate::real::{Real, open_pool};

const EPERM: i32 = 1;
const EINVAL: i32 = 22;
const SECOND_NS: i128 = 1_000_000_000;

fn both(ns: i128) -> SetAttr {
    let time = Some(SetTime::At(ns));
    SetAttr { accessed: time, modified: time, ..SetAttr::default() }
}

#[test]
fn times_of_the_whole_range_survive_a_crash() {
    let medium = Arc::new(SimMedium::new(POOL_BYTES));
    let fs = Real::make(&medium, &options()).fs;
    let (first, last) = (*TIME_RANGE_NS.start(), *TIME_RANGE_NS.end());
    assert_eq!((first / SECOND_NS, last / SECOND_NS), (-(1 << 31), (1 << 34) - (1 << 31) - 1));
    let times = [first, first + 1, -SECOND_NS / 2, -1, 0, 1, 1 << 63, last];
    for (number, ns) in times.into_iter().enumerate() {
        let file = create(&fs, fs.root(), &number.to_string());
        let attr = fs.set_attr(file, &both(ns)).unwrap();
        assert_eq!((attr.accessed_ns, attr.modified_ns), (ns, ns));
        assert!(attr.changed_ns > 1 << 60, "the time of the change is the present");
    }
    fs.sync().unwrap();
    let crashed = Real::open(&Arc::new(SimMedium::from_image(medium.image()))).unwrap().fs;
    for (number, ns) in times.into_iter().enumerate() {
        let attr = crashed.lookup(crashed.root(), name(&number.to_string())).unwrap();
        assert_eq!((attr.accessed_ns, attr.modified_ns), (ns, ns));
    }
    assert!(crashed.pool().check().unwrap().is_clean());
}

#[test]
fn time_outside_of_the_range_changes_nothing() {
    let fs = new();
    let file = create(&fs, fs.root(), "f");
    let before = fs.attr(file).unwrap();
    let (first, last) = (*TIME_RANGE_NS.start(), *TIME_RANGE_NS.end());
    for ns in [first - 1, last + 1, i128::MIN, i128::MAX, 1 << 64, -(1 << 63)] {
        let [accessed, modified] = [both(ns).accessed, both(ns).modified];
        for set in [
            SetAttr { accessed, permissions: Some(0), ..SetAttr::default() },
            SetAttr { modified, uid: Some(77), ..SetAttr::default() },
        ] {
            let refused = fs.set_attr(file, &set).unwrap_err();
            assert!(matches!(refused, FsError::TimeOutOfRange), "{ns}: {refused}");
            assert_eq!(refused.errno(), EINVAL);
        }
    }
    assert_eq!(fs.attr(file).unwrap(), before);
}

#[test]
fn access_before_1970_is_older_than_a_change() {
    let fs = new();
    let file = create(&fs, fs.root(), "f");
    fs.set_attr(file, &both(-5)).unwrap();
    fs.note_access(file, AccessTimes::Relative).unwrap();
    let accessed = fs.attr(file).unwrap().accessed_ns;
    assert!(accessed > 1 << 60, "{accessed}");
    fs.set_attr(file, &both(-5)).unwrap();
    fs.note_access(file, AccessTimes::Strict).unwrap();
    assert!(fs.attr(file).unwrap().accessed_ns >= accessed);
}

/// Invalid words of times and flags.
#[test]
fn word_that_is_no_time_or_no_flags_is_damage() {
    for (word, value, what) in [
        (8, 1 << 63 | 1 << 62 | 1 << 61, "is out of range"),
        (11, 15_032_385_536 * 1_000_000_000, "is out of range"),
        (15, 1 << 63, "the flags"),
        (15, 0x110, "the flags"),
    ] {
        let medium = Arc::new(SimMedium::new(POOL_BYTES));
        let real = Real::make(&medium, &options());
        let file = create(&real.fs, real.fs.root(), "f");
        assert_eq!(real.fs.write(file, 0, &[1; 777]).unwrap(), 777);
        real.fs.pool().close().unwrap();
        drop(real);
        let pool = open_pool(&medium).unwrap();
        change_inode(&medium, pool.data_bounds(), 777, (word, value));
        let report = pool.check().unwrap();
        let is_named = |problem: &String| problem.contains(what);
        assert!(report.problems.iter().any(is_named), "{report:?}");
        drop(pool);
        let fs = Real::open(&medium).unwrap().fs;
        assert!(matches!(fs.lookup(fs.root(), name("f")), Err(FsError::Corrupt(_))));
    }
}

#[test]
fn flags_survive_a_crash_and_forbid_changes() {
    let medium = Arc::new(SimMedium::new(POOL_BYTES));
    let fs = Real::make(&medium, &options()).fs;
    let file = create(&fs, fs.root(), "f");
    fs.write(file, 0, b"text").unwrap();
    let changed = fs.attr(file).unwrap().changed_ns;
    let attr = fs.set_flags(file, FileFlags::ALL).unwrap();
    assert!(attr.flags == FileFlags::ALL && attr.changed_ns > changed);
    fs.sync().unwrap();
    let fs = Real::open(&Arc::new(SimMedium::from_image(medium.image()))).unwrap().fs;
    assert_eq!(fs.lookup(fs.root(), name("f")).unwrap().flags, FileFlags::ALL);
    for refused in [
        fs.write(file, 0, b"x").map(drop),
        fs.write(file, 4, b"x").map(drop),
        fs.write(file, 4, b"").map(drop),
        fs.write_durably(file, 0, b"x").map(drop),
        fs.truncate(file, 4).map(drop),
        fs.allocate(file, (0, 1), Allocation::Reserve, true),
        fs.copy(FilePlace { inode: file, offset: 0 }, FilePlace { inode: file, offset: 9 }, 1)
            .map(drop),
        fs.unlink(fs.root(), name("f")),
        fs.link(file, fs.root(), name("g")).map(drop),
        fs.rename((fs.root(), name("f")), (fs.root(), name("g")), RenameMode::Replace),
        fs.set_attr(file, &SetAttr::default()).map(drop),
        fs.set_attribute(file, (b"user.a", b""), SetAttribute::Any),
        fs.remove_attribute(file, b"user.a"),
        fs.set_flags(file, FileFlags::IMMUTABLE).map(drop),
    ] {
        let error = refused.unwrap_err();
        assert!(matches!(error, FsError::Immutable) && error.errno() == EPERM, "{error}");
    }
    fs.set_flags(file, FileFlags::APPEND_ONLY).unwrap();
    let before = fs.write(file, 3, b"x").unwrap_err();
    assert!(matches!(before, FsError::AppendOnly) && before.errno() == EPERM, "{before}");
    fs.write(file, 4, b" more").unwrap();
    assert!(fs.pool().check().unwrap().is_clean());
}

#[test]
fn open_file_with_flags_is_freed_when_closed() {
    let fs = new();
    let free = fs.status().free_blocks;
    let file = create(&fs, fs.root(), "f");
    fs.allocate(file, (0, 4 << 20), Allocation::Reserve, false).unwrap();
    fs.open_inode(file).unwrap();
    fs.unlink(fs.root(), name("f")).unwrap();
    fs.set_flags(file, FileFlags::IMMUTABLE).unwrap();
    fs.close_inode(file).unwrap();
    assert!(fs.status().free_blocks + 2 >= free);
}

#[test]
fn flags_are_of_files_and_directories_and_inherited() {
    let fs = new();
    let kept = FileFlags::NO_DUMP.with(FileFlags::NO_ATIME);
    fs.set_flags(fs.root(), kept.with(FileFlags::APPEND_ONLY)).unwrap();
    for kind in [FileType::Regular, FileType::Directory, FileType::Fifo] {
        let text = format!("{kind:?}");
        let made = fs.create_inode(fs.root(), name(&text), &new_inode(kind, 0o600)).unwrap();
        assert_eq!(made.flags, kept);
        let set = fs.set_flags(made.inode, FileFlags::NONE);
        match kind {
            FileType::Fifo => assert!(matches!(set, Err(FsError::Unsupported))),
            _ => assert_eq!(set.unwrap().flags, FileFlags::NONE),
        }
    }
    let file = create(&fs, fs.root(), "f");
    let accessed = fs.attr(file).unwrap().accessed_ns;
    fs.note_access(file, AccessTimes::Strict).unwrap();
    assert_eq!(fs.attr(file).unwrap().accessed_ns, accessed);
    fs.set_flags(file, FileFlags::NONE).unwrap();
    fs.note_access(file, AccessTimes::Strict).unwrap();
    assert!(fs.attr(file).unwrap().accessed_ns > accessed);
}

fn permissions(permissions: u32) -> SetAttr {
    SetAttr { permissions: Some(permissions), ..SetAttr::default() }
}

/// The other thread waits for the lock when the first look at the file ends.
#[test]
fn dropped_privileges_keep_chmod_of_another_thread() {
    let fs = new();
    let file = create(&fs, fs.root(), "f");
    for rights in [0o700, 0o604, 0o644, 0o111] {
        fs.set_attr(file, &permissions(SET_ID_BITS | 0o640)).unwrap();
        let (looked, go) = mpsc::channel();
        std::thread::scope(|scope| {
            let fs = &fs;
            scope.spawn(move || {
                go.recv().unwrap();
                fs.set_attr(file, &permissions(SET_ID_BITS | rights)).unwrap();
            });
            let is_first = Cell::new(true);
            let lost = |_: &Attr| {
                if is_first.replace(false) {
                    looked.send(()).unwrap();
                    std::thread::sleep(Duration::from_millis(30));
                }
                SET_ID_BITS
            };
            assert!(fs.drop_privileges(file, lost).unwrap());
        });
        assert_eq!(fs.attr(file).unwrap().permissions & 0o777, rights);
    }
}

#[test]
fn dropped_privileges_leave_other_attributes() {
    let medium = Arc::new(SimMedium::new(POOL_BYTES));
    let fs = Real::make(&medium, &options()).fs;
    let file = create(&fs, fs.root(), "f");
    assert!(!fs.drop_privileges(file, |_| SET_ID_BITS).unwrap(), "it has none");
    fs.set_attribute(file, (CAPABILITY, &[1; 20]), SetAttribute::Any).unwrap();
    fs.set_attribute(file, (b"user.a", b"text"), SetAttribute::Any).unwrap();
    // Version 2: the user reads and writes, user 9 reads, and so do the group and the mask.
    let acl = [
        (1_u16, 6_u16, u32::MAX),
        (2, 4, 9),
        (4, 4, u32::MAX),
        (16, 4, u32::MAX),
        (32, 0, u32::MAX),
    ];
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in acl {
        value.extend(tag.to_le_bytes().into_iter().chain(rights.to_le_bytes()));
        value.extend(id.to_le_bytes());
    }
    fs.set_attribute(file, (ACL_ACCESS, &value), SetAttribute::Any).unwrap();
    fs.set_attr(file, &permissions(0o6640)).unwrap();
    fs.set_flags(file, FileFlags::APPEND_ONLY).unwrap();
    let before = fs.attr(file).unwrap();
    assert!(fs.drop_privileges(file, |_| 0o4777).unwrap());
    fs.sync().unwrap();
    let fs = Real::open(&Arc::new(SimMedium::from_image(medium.image()))).unwrap().fs;
    let after = fs.attr(file).unwrap();
    assert_eq!(after, Attr { permissions: 0o2640, changed_ns: after.changed_ns, ..before });
    assert!(after.changed_ns > before.changed_ns);
    assert!(matches!(fs.attribute(file, CAPABILITY), Err(FsError::NoAttribute)));
    assert_eq!(fs.attribute(file, b"user.a").unwrap(), b"text");
    assert_eq!(fs.attribute(file, ACL_ACCESS).unwrap(), value);
    fs.set_flags(file, FileFlags::IMMUTABLE).unwrap();
    assert!(matches!(fs.drop_privileges(file, |_| 0o2000), Err(FsError::Immutable)));
    assert!(fs.pool().check().unwrap().is_clean());
}

#[test]
fn change_of_the_owner_loses_bits_of_both_modes() {
    let fs = new();
    let file = create(&fs, fs.root(), "f");
    fs.set_attr(file, &permissions(0o6755)).unwrap();
    let owner = SetAttr { uid: Some(9), ..SetAttr::default() };
    let lost = |attr: &Attr| if attr.uid == 3 { 0o6777 } else { 0 };
    let attr = fs.set_attr_without(file, &owner, lost).unwrap();
    assert_eq!((attr.uid, attr.permissions), (9, 0o755));
    let set = SetAttr { uid: Some(3), permissions: Some(0o6711), ..SetAttr::default() };
    assert_eq!(fs.set_attr_without(file, &set, lost).unwrap().permissions, 0o6711);
    assert_eq!(fs.set_attr_without(file, &set, lost).unwrap().permissions, 0o711);
}

//! Linux operations beyond names and bytes: whiteouts, files without names, copies.

use std::sync::Arc;

use everbyte_crash::{Medium, SimMedium};
use everbyte_fs::{
    AccessTimes, Allocation, FilePlace, FileSystem, FileType, FsError, InodeNo, Name, NewInode,
    RenameMode, Seek, SetAttr, SetTime,
};

use crate::random::options;
use crate::real::Real;

type Fs = Arc<FileSystem<SimMedium>>;

pub(crate) fn new() -> Fs {
    Real::make(&Arc::new(SimMedium::new(24 << 20)), &options()).fs
}

pub(crate) fn name(name: &str) -> Name<'_> {
    Name::new(name.as_bytes()).unwrap()
}

pub(crate) fn new_inode(kind: FileType, permissions: u32) -> NewInode<'static> {
    NewInode { kind, permissions, umask: 0, uid: 3, gid: 4, device: 0, target: &[] }
}

pub(crate) fn create(fs: &Fs, parent: InodeNo, text: &str) -> InodeNo {
    fs.create_inode(parent, name(text), &new_inode(FileType::Regular, 0o644)).unwrap().inode
}

fn place(inode: InodeNo, offset: u64) -> FilePlace {
    FilePlace { inode, offset }
}

fn bytes(fs: &Fs, inode: InodeNo) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(fs.attr(inode).unwrap().size).unwrap()];
    assert_eq!(fs.read(inode, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// A caller with state of the files, such as a kernel, cannot look the names up before: other threads change
/// them.
#[test]
fn rename_and_unlink_return_their_files() {
    let fs = new();
    let root = fs.root();
    let [first, second, third] = ["a", "b", "c"].map(|text| create(&fs, root, text));
    let rename = |from, to, mode| fs.rename_files((root, name(from)), (root, name(to)), mode);
    assert_eq!(rename("a", "b", RenameMode::Replace).unwrap(), (first, Some(second)));
    assert_eq!(rename("b", "d", RenameMode::Replace).unwrap(), (first, None));
    assert_eq!(rename("d", "c", RenameMode::Exchange).unwrap(), (first, Some(third)));
    assert_eq!(fs.unlink_file(root, name("d")).unwrap(), third);
    assert_eq!(fs.unlink_file(root, name("c")).unwrap(), first);
}

#[test]
fn rename_whiteout_leaves_a_device() {
    let fs = new();
    let root = fs.root();
    let file = create(&fs, root, "a");
    let whiteout = |replaces| RenameMode::Whiteout { uid: 7, gid: 8, replaces };
    fs.rename((root, name("a")), (root, name("b")), whiteout(false)).unwrap();
    assert_eq!(fs.lookup(root, name("b")).unwrap().inode, file);
    let device = fs.lookup(root, name("a")).unwrap();
    assert_eq!((device.kind, device.device, device.permissions), (FileType::CharDevice, 0, 0));
    assert_eq!((device.uid, device.gid, device.links), (7, 8, 1));
    let again = fs.rename((root, name("b")), (root, name("a")), whiteout(false));
    assert!(matches!(again, Err(FsError::Exists)));
    let before = fs.status().free_inodes;
    fs.rename((root, name("b")), (root, name("a")), whiteout(true)).unwrap();
    assert_eq!(fs.lookup(root, name("b")).unwrap().kind, FileType::CharDevice);
    assert_eq!(fs.status().free_inodes, before, "one whiteout went, another came");
    fs.link(file, root, name("same")).unwrap();
    fs.rename((root, name("a")), (root, name("same")), whiteout(true)).unwrap();
    assert_eq!(fs.status().free_inodes, before, "two names of one file stay what they are");
    assert_eq!(fs.lookup(root, name("a")).unwrap().inode, file);
}

#[test]
fn tmpfile_is_linked_or_freed() {
    let fs = new();
    let root = fs.root();
    let before = fs.status().free_inodes;
    let new = new_inode(FileType::Regular, 0o600);
    let file = fs.create_unnamed(root, &new).unwrap();
    assert_eq!((file.links, fs.list(root, 0).unwrap().len()), (0, 0));
    fs.write(file.inode, 0, b"bytes").unwrap();
    fs.link(file.inode, root, name("n")).unwrap();
    fs.unlink(root, name("n")).unwrap();
    let again = fs.link(file.inode, root, name("n"));
    assert!(matches!(again, Err(FsError::NotFound)), "it had a name, and lost it");
    fs.close_inode(file.inode).unwrap();
    let other = fs.create_unnamed(root, &new).unwrap();
    fs.close_inode(other.inode).unwrap();
    assert!(matches!(fs.attr(other.inode), Err(FsError::Stale(_))));
    assert_eq!(fs.status().free_inodes, before);
    let wrong = fs.create_unnamed(root, &new_inode(FileType::Directory, 0o700));
    assert_eq!(wrong.unwrap_err().errno(), 22);
    assert!(fs.pool().check().unwrap().is_clean());
}

/// Linux checks the new name before the file.
#[test]
fn link_reports_eexist_first() {
    let fs = new();
    let root = fs.root();
    let file = create(&fs, root, "f");
    let directory = fs.create_inode(root, name("d"), &new_inode(FileType::Directory, 0o755));
    let directory = directory.unwrap().inode;
    let gone = create(&fs, root, "gone");
    fs.open_inode(gone).unwrap();
    fs.unlink(root, name("gone")).unwrap();
    for inode in [file, directory, gone] {
        assert!(matches!(fs.link(inode, root, name("f")), Err(FsError::Exists)), "{inode}");
        assert!(matches!(fs.link(inode, file, name("n")), Err(FsError::NotDirectory)), "{inode}");
    }
    assert!(matches!(fs.link(directory, root, name("n")), Err(FsError::NotPermitted)));
    assert!(matches!(fs.link(gone, root, name("n")), Err(FsError::NotFound)));
    fs.close_inode(gone).unwrap();
}

#[test]
fn copy_keeps_holes() {
    let fs = new();
    let (from, to) = (create(&fs, fs.root(), "from"), create(&fs, fs.root(), "to"));
    let end = (1 << 40) + 5;
    fs.write(from, 3 << 20, &[7; 2 << 20]).unwrap();
    fs.write(from, end - 5, b"bytes").unwrap();
    fs.allocate(from, (8 << 20, 1 << 20), Allocation::Reserve, true).unwrap();
    fs.write(to, 100, &[1; 8192]).unwrap();
    assert_eq!(fs.copy(place(from, 0), place(to, 0), u64::MAX).unwrap(), end);
    let attr = fs.attr(to).unwrap();
    assert_eq!(attr.size, end);
    let data_blocks = 512 + 1;
    assert!(attr.blocks < data_blocks + 16, "{} blocks", attr.blocks);
    assert_eq!(fs.seek(to, 0, Seek::Data).unwrap(), 3 << 20);
    assert_eq!(fs.seek(to, 3 << 20, Seek::Hole).unwrap(), 5 << 20);
    let mut tail = [0; 5];
    fs.read(to, end - 5, &mut tail).unwrap();
    assert_eq!(&tail, b"bytes");
}

#[test]
fn atime_follows_the_access_mode() {
    const DAY: i128 = 24 * 60 * 60 * 1_000_000_000;
    let fs = new();
    let file = create(&fs, fs.root(), "f");
    let now = fs.attr(file).unwrap().accessed_ns;
    // The time of the change is the present. The access is set later, or a day before a later one.
    let accessed_after = |ns: i128, times| {
        let set = SetAttr { accessed: Some(SetTime::At(ns)), ..SetAttr::default() };
        fs.set_attr(file, &set).unwrap();
        fs.sync().unwrap();
        let before = (fs.volume().medium().counters(), fs.volume().log_bytes());
        fs.note_access(file, times).unwrap();
        let counters = fs.volume().medium().counters().since(&before.0);
        let log = fs.volume().log_bytes() - before.1;
        let attr = fs.attr(file).unwrap();
        let is_changed = attr.accessed_ns != ns;
        assert_eq!((counters.fences, log > 0), (u64::from(is_changed), is_changed));
        assert!(attr.accessed_ns >= ns && attr.changed_ns < now + DAY);
        is_changed
    };
    let later = now + DAY / 2;
    assert!(accessed_after(now, AccessTimes::Relative), "it was changed since");
    assert!(!accessed_after(later, AccessTimes::Relative));
    assert!(!accessed_after(later, AccessTimes::Strict), "that time is yet to come");
    assert!(accessed_after(now, AccessTimes::Strict));
    assert!(!accessed_after(now, AccessTimes::Never));
    // An old file with an access after its change, more than a day ago.
    let set = SetAttr { modified: Some(SetTime::At(now)), ..SetAttr::default() };
    fs.set_attr(file, &set).unwrap();
    fs.note_access(file, AccessTimes::Relative).unwrap();
    let attr = fs.attr(file).unwrap();
    assert!(attr.accessed_ns > attr.changed_ns);
    fs.note_access(file, AccessTimes::Relative).unwrap();
    assert_eq!(fs.attr(file).unwrap(), attr, "once is enough");
}

#[test]
fn copy_ends_at_eof_and_refuses_overlap() {
    let fs = new();
    let file = create(&fs, fs.root(), "f");
    fs.write(file, 0, b"0123456789").unwrap();
    assert_eq!(fs.copy(place(file, 4), place(file, 10), 100).unwrap(), 6);
    assert_eq!(bytes(&fs, file), b"0123456789456789");
    assert_eq!(fs.copy(place(file, 16), place(file, 0), 100).unwrap(), 0);
    assert_eq!(fs.copy(place(file, 0), place(file, 4), 5).unwrap_err().errno(), 22);
    assert_eq!(fs.copy(place(file, 0), place(file, 1 << 52), 5).unwrap_err().errno(), 27);
    assert_eq!(fs.copy(place(fs.root(), 0), place(file, 0), 5).unwrap_err().errno(), 21);
    assert_eq!(fs.copy(place(file, 0), place(fs.root(), 0), 5).unwrap_err().errno(), 21);
}

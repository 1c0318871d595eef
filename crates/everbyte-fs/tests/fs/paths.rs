//! Paths, walked by the library.

use everbyte_fs::{FileType, FsError, NewInode};

use crate::posix::{create, name, new, new_inode};

#[test]
fn path_lookup_equals_single_lookups() {
    let fs = new();
    let root = fs.root();
    let make = |parent, text, kind| fs.create_inode(parent, name(text), &new_inode(kind, 0o755));
    let a = make(root, "a", FileType::Directory).unwrap().inode;
    let b = make(a, "b", FileType::Directory).unwrap().inode;
    let file = create(&fs, b, "f");
    for (parent, text, target) in
        [(a, "l", &b"b"[..]), (root, "s", b"/a/b/f"), (root, "x", b"missing")]
    {
        let link = NewInode { target, ..new_inode(FileType::Symlink, 0o777) };
        fs.create_inode(parent, name(text), &link).unwrap();
    }
    let paths = [
        "a",
        "/a/b",
        "a//b/f",
        "a/l",
        "a/l/f",
        "s",
        "/s",
        "x",
        "a/./b/f",
        "a/b/../l/f",
        "a/b/",
        "/",
        "",
        "a/none",
        "none/f",
        "s/f",
        "a/b/f/",
        "a/b/f/g",
        "..",
    ];
    for path in paths {
        for follow in [true, false] {
            let located = fs.locate(root, path.as_bytes(), follow);
            let expected = located.and_then(|located| located.file.ok_or(FsError::NotFound));
            let found = fs.attr_at(root, path.as_bytes(), follow);
            assert_eq!(format!("{found:?}"), format!("{expected:?}"), "{path}, {follow}");
        }
        let opened = fs.open_at(root, path.as_bytes());
        let expected = fs.attr_at(root, path.as_bytes(), true);
        assert_eq!(format!("{opened:?}"), format!("{expected:?}"), "{path}");
        if let Ok(opened) = opened {
            fs.close_inode(opened.inode).unwrap();
        }
    }
    for (path, parent, last) in
        [("f", root, "f"), ("a/l/new", b, "new"), ("/a/b/f", b, "f"), ("a/b/../c", a, "c")]
    {
        assert_eq!(fs.place_at(root, path.as_bytes()).unwrap(), (parent, name(last)), "{path}");
    }
    assert!(matches!(fs.place_at(root, b"a/b/"), Err(FsError::InvalidName)));
    assert!(matches!(fs.place_at(root, b"a/b/f/g/h"), Err(FsError::NotDirectory)));
    assert!(matches!(fs.place_at(root, b"none/f"), Err(FsError::NotFound)));
    // A file opened by a link lives until its close.
    assert_eq!(fs.open_at(root, b"a/l/f").unwrap().inode, file);
    fs.unlink(b, name("f")).unwrap();
    assert_eq!(fs.attr(file).unwrap().links, 0);
    fs.close_inode(file).unwrap();
    assert!(matches!(fs.attr(file), Err(FsError::Stale(_))));
}

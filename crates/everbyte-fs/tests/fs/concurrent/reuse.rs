//! Lookups of names while their files disappear and others get the inodes.

use std::sync::{Arc, Mutex};

use everbyte_crash::SimMedium;
use everbyte_crash::schedule::{self, Schedule, Task};
use everbyte_fs::{FileSystem, FileType, FsError, FsOptions, InodeNo};
use everbyte_pool::sync::observe;

use super::explore::Locks;
use crate::operations::LONG;
use crate::posix::{name, new_inode};
use crate::random::options;
use crate::real::Real;

type Fs = FileSystem<SimMedium>;
/// Looks up `d/old`, and returns its permissions.
type Look = fn(&Fs) -> Result<u32, FsError>;

const OLD: u32 = 0o600;
const NEW: u32 = 0o644;

/// Creates a directory and a file in it.
///
/// # Errors
/// `NoInodes` while the previous file of the inode is open.
fn make(fs: &Fs, directory: &str, (kind, permissions): (FileType, u32)) -> Result<(), FsError> {
    let new = new_inode(FileType::Directory, 0o755);
    let directory = fs.create_inode(fs.root(), name(directory), &new)?.inode;
    fs.create_inode(directory, name("old"), &new_inode(kind, permissions)).map(drop)
}

/// A file system without a free inode. `d/old` was created last.
fn image() -> Vec<u8> {
    image_with(2, |fs| make(fs, "d", (FileType::Regular, OLD)).unwrap())
}

/// A file system on which `make` ran with so many free inodes.
fn image_with(free: u64, make: impl FnOnce(&Fs)) -> Vec<u8> {
    let medium = Arc::new(SimMedium::new(8 << 20));
    let fs = Real::make(&medium, &FsOptions { inodes_max: Some(15), ..options() }).fs;
    while fs.status().free_inodes > free {
        let text = format!("file {}", fs.status().free_inodes);
        fs.create_inode(fs.root(), name(&text), &new_inode(FileType::Regular, NEW)).unwrap();
    }
    make(&fs);
    fs.sync().unwrap();
    medium.image()
}

fn make_directory(fs: &Fs, parent: InodeNo, text: &str) -> InodeNo {
    fs.create_inode(parent, name(text), &new_inode(FileType::Directory, 0o755)).unwrap().inode
}

/// Removes `d/old` and optionally `d`, and reuses their inodes.
fn replace(fs: &Fs, with_directory: bool, kind: FileType) {
    let root = fs.root();
    let directory = fs.lookup(root, name("d")).unwrap().inode;
    fs.unlink(directory, name("old")).unwrap();
    if with_directory {
        fs.remove_directory(root, name("d")).unwrap();
    }
    fs.sync().unwrap();
    let made = if with_directory {
        make(fs, "e", (kind, NEW))
    } else {
        fs.create_inode(root, name("new"), &new_inode(kind, NEW)).map(drop)
    };
    assert!(matches!(made, Ok(()) | Err(FsError::NoInodes { .. })), "{made:?}");
}

/// Looks during the replacement, with a switch at each point.
fn look_beside(image: &[u8], look: Look, (with_directory, kind): (bool, FileType)) {
    let missed = look_beside_any(image, look, &|fs| replace(fs, with_directory, kind));
    assert!(missed > 0);
}

/// Looks while `replace` reuses the inodes, with a switch at each point. Returns the number of looks without
/// a result.
fn look_beside_any(
    image: &[u8],
    look: impl Fn(&Fs) -> Result<u32, FsError> + Sync,
    replace: &(dyn Fn(&Fs) + Sync),
) -> u32 {
    let (mut found, mut missed) = (0, 0);
    for at in 0.. {
        let medium = Arc::new(SimMedium::from_image(image.to_vec()));
        let fs = Real::open(&medium).unwrap().fs;
        // The dentry cache has the names, so a lookup does not search a directory.
        assert_eq!(look(&fs).unwrap(), OLD);
        let seen = Mutex::new(None);
        let looking: Task<'_> = Box::new(|| {
            observe(Some(&Locks));
            *seen.lock().unwrap() = Some(look(&fs));
            observe(None);
        });
        let replacing: Task<'_> = Box::new(|| {
            observe(Some(&Locks));
            replace(&fs);
            observe(None);
        });
        let schedule = Schedule::Delays { first: 0, at: vec![at] };
        let ran = schedule::run(&schedule, vec![looking, replacing]);
        assert_eq!(ran.trouble, None, "a switch at {at}");
        match seen.lock().unwrap().take().expect("it has looked") {
            Ok(permissions) => assert_eq!(permissions, OLD, "a switch at {at}: another file"),
            Err(FsError::NotFound) => missed += 1,
            Err(error) => panic!("a switch at {at}: {error}"),
        }
        found += 1;
        if ran.switches == 0 || at > 200 {
            break;
        }
    }
    assert!(found > 3, "{missed} of {found}");
    missed
}

/// The number of `d`, which is constant.
fn directory(fs: &Fs) -> Result<InodeNo, FsError> {
    Ok(fs.lookup(fs.root(), name("d"))?.inode)
}

#[test]
fn lookup_beside_inode_reuse_is_consistent() {
    let look_up: Look = |fs| Ok(fs.lookup(directory(fs)?, name("old"))?.permissions);
    let attr_at: Look = |fs| Ok(fs.attr_at(fs.root(), b"d/old", true)?.permissions);
    let locate: Look = |fs| {
        let located = fs.locate(fs.root(), b"./d/old", true)?;
        located.file.map(|attr| attr.permissions).ok_or(FsError::NotFound)
    };
    let open_at: Look = |fs| {
        let opened = fs.open_at(fs.root(), b"d/old")?;
        fs.close_inode(opened.inode)?;
        Ok(opened.permissions)
    };
    let open_file_at: Look = |fs| {
        let opened = fs.open_file_at(fs.root(), b"d/old")?;
        let attr = fs.attr(opened.inode())?;
        fs.close_file(opened)?;
        Ok(attr.permissions)
    };
    let image = image();
    for look in [look_up, attr_at, locate, open_at, open_file_at] {
        for kind in [FileType::Regular, FileType::Directory, FileType::Fifo] {
            look_beside(&image, look, (false, kind));
        }
    }
    for look in [attr_at, locate, open_at, open_file_at] {
        look_beside(&image, look, (true, FileType::Regular));
    }
}

/// The directory's number moves to a directory elsewhere with a file of the same name.
#[test]
fn dotdot_beside_inode_reuse_is_consistent() {
    let image = image_with(5, |fs| {
        for (directory, permissions) in
            [(fs.root(), OLD), (make_directory(fs, fs.root(), "f"), NEW)]
        {
            let new = new_inode(FileType::Regular, permissions);
            fs.create_inode(directory, name("kept"), &new).unwrap();
        }
        make_directory(fs, fs.root(), "d");
        fs.create_inode(fs.root(), name("last"), &new_inode(FileType::Fifo, NEW)).unwrap();
    });
    let look = |fs: &Fs| {
        let located = fs.locate(fs.root(), b"d/../kept", true)?;
        located.file.map(|attr| attr.permissions).ok_or(FsError::NotFound)
    };
    let replace = |fs: &Fs| {
        let (root, removed) = (fs.root(), directory(fs).unwrap());
        fs.remove_directory(root, name("d")).unwrap();
        fs.sync().unwrap();
        let other = fs.lookup(root, name("f")).unwrap().inode;
        assert_eq!(make_directory(fs, other, "e"), removed);
    };
    assert!(look_beside_any(&image, look, &replace) > 0);
}

/// The number of the parent moves to a directory with the same name for a third one. The name exceeds the
/// dentry cache, so both directories are searched.
#[test]
fn path_beside_inode_reuse_is_consistent() {
    let image = image_with(3, |fs| {
        let upper = make_directory(fs, fs.root(), "d");
        make_directory(fs, upper, LONG);
    });
    let fs = Real::open(&Arc::new(SimMedium::from_image(image.clone()))).unwrap().fs;
    let upper = directory(&fs).unwrap();
    let lower = fs.lookup(upper, name(LONG)).unwrap().inode;
    drop(fs);
    let path = format!("d/{LONG}/new");
    let look = |fs: &Fs| {
        let (parent, _) = fs.place_at(fs.root(), path.as_bytes())?;
        Ok(if parent == lower { OLD } else { NEW })
    };
    let replace = |fs: &Fs| {
        fs.remove_directory(upper, name(LONG)).unwrap();
        fs.remove_directory(fs.root(), name("d")).unwrap();
        fs.sync().unwrap();
        assert_eq!(make_directory(fs, fs.root(), "e"), upper);
        assert_eq!(make_directory(fs, fs.root(), "g"), lower);
        make_directory(fs, upper, LONG);
    };
    assert!(look_beside_any(&image, look, &replace) > 0);
}

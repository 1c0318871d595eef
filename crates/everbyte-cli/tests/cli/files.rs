//! Files of a file system: put, inspected and got without a mount, by a server, and during a mount.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use everbyte_control::{ControlClient, FileId, FileRequest, PathBytes, Request, Response};
use rustix::process::Signal;

use super::{Place, Running, everbyte};

pub(crate) fn with_files() -> Place {
    let place = Place::empty();
    place.run("pool create POOL --size 64M").good();
    place.run("volume create POOL files --kind fs --size 32M").good();
    place
}

/// A folder with files of several types, sizes and times.
fn tree(place: &Place) -> PathBuf {
    let top = place.folder.path().join("tree");
    fs::create_dir_all(top.join("a/b")).unwrap();
    fs::write(top.join("a/letter"), b"dear reader").unwrap();
    let large: Vec<u8> = (0..3_000_000_u32).map(|n| (n / 7).to_le_bytes()[0]).collect();
    fs::write(top.join("a/b/large"), large).unwrap();
    let sparse = fs::File::create(top.join("sparse")).unwrap();
    sparse.set_len(9 << 20).unwrap();
    symlink("a/letter", top.join("link")).unwrap();
    let letter = fs::File::open(top.join("a/letter")).unwrap();
    letter.set_permissions(fs::Permissions::from_mode(0o640)).unwrap();
    letter.set_modified(UNIX_EPOCH + Duration::new(1_000_000_000, 5)).unwrap();
    top
}

fn assert_same(left: &Path, right: &Path) {
    let found = Command::new("diff").args(["-r", "--no-dereference"]).arg(left).arg(right).output();
    let found = found.unwrap();
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stdout));
}

#[test]
fn interrupted_copy_leaves_nothing() {
    let place = with_files();
    let large = place.folder.path().join("large");
    // Each range of data takes its own requests, so the copy lasts for a while.
    let file = fs::File::create(&large).unwrap();
    (0..4096).for_each(|range: u64| file.write_all_at(&[1; 4096], range << 19).unwrap());
    place.run("fs put FOLDER/large POOL/files").good();
    let to = place.folder.path().join("to");
    fs::create_dir(&to).unwrap();
    let is_empty = || fs::read_dir(&to).unwrap().next().is_none();
    let get = place.arguments("fs get POOL/files:large FOLDER/to");
    let mut getting = Running::begin(everbyte().args(get));
    while is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(getting.signal(Signal::INT).code(), Some(1));
    assert!(is_empty());
}

#[test]
fn put_tree_is_listed_and_returned() {
    let place = with_files();
    let top = tree(&place);
    place.run("fs put -rp FOLDER/tree POOL/files").good();
    assert_eq!(place.info()["clean"], true);
    assert_eq!(place.run("fs ls POOL/files").good(), "tree\n");
    assert_eq!(place.run("fs ls POOL/files:tree/").good(), "a\nlink\nsparse\n");
    let long = place.run("fs ls -l POOL/files:/tree").good();
    assert!(long.contains("link -> a/letter") && long.contains("drwx"), "{long}");
    let listed = place.run("fs ls --json POOL/files:tree/a").json();
    assert_eq!(listed["files"][1]["name"], "letter");
    assert_eq!(listed["files"][1]["permissions"], 0o640);
    let letter = place.run("fs stat --json POOL/files:tree/a/letter").json();
    assert_eq!(letter["modified_ns"], 1_000_000_000_000_000_005_u64);
    let shown = place.run("fs stat POOL/files:tree/a/letter").good();
    assert!(
        shown.contains("2001-09-09 01:46:40") && shown.contains("0640 (-rw-r-----)"),
        "{shown}"
    );
    let sparse = place.run("fs stat --json POOL/files:tree/sparse").json();
    assert_eq!((&sparse["size_bytes"], &sparse["used_bytes"]), (&(9 << 20).into(), &0.into()));
    let shown = place.run("fs tree POOL/files").good();
    assert!(shown.contains("    ├── a\n    │   ├── b\n    │   │   └── large\n"), "{shown}");
    assert!(shown.ends_with("3 directories, 4 files\n"), "{shown}");
    let json = place.run("fs tree --json --depth 2 POOL/files").json();
    assert_eq!(json["entries"][0]["entries"][1]["target"], "a/letter");
    assert!(json["entries"][0]["entries"][0].get("entries").is_none(), "{json}");

    place.run("fs get -rp POOL/files:tree FOLDER/back").good();
    let back = place.folder.path().join("back");
    assert_same(&top, &back);
    let (old, new) = (top.join("a/letter"), back.join("a/letter"));
    let (old, new) = (fs::metadata(old).unwrap(), fs::metadata(new).unwrap());
    assert_eq!(
        (old.mode(), old.mtime(), old.mtime_nsec()),
        (new.mode(), new.mtime(), new.mtime_nsec())
    );
    assert_eq!(fs::metadata(back.join("sparse")).unwrap().blocks(), 0);
    assert!(place.run("pool check POOL").good().contains("clean"));
}

#[test]
fn unreadable_file_hides_no_other() {
    const SIZE: usize = 12_345;
    let place = with_files();
    let top = place.folder.path().join("tree");
    fs::create_dir(&top).unwrap();
    for name in ["a", "bad", "c"] {
        fs::write(top.join(name), vec![7; if name == "bad" { SIZE } else { 9 }]).unwrap();
    }
    place.run("fs put -r FOLDER/tree POOL/files").good();
    let mut bytes = place.bytes();
    // The inode of a regular file of this size.
    let word = |slot: &[u8], at| u64::from_le_bytes(*slot[at..].first_chunk().unwrap());
    let is_it =
        |slot: &[u8]| word(slot, 24) & 0o170_000 == 0o100_000 && word(slot, 40) == SIZE as u64;
    bytes.chunks_exact_mut(256).find(|slot| is_it(slot)).unwrap()[40] ^= 1;
    fs::write(&place.pool, bytes).unwrap();
    let shown = |line: &str| {
        let outcome = place.run(line);
        assert!(outcome.status == 1 && outcome.err.contains("files:/tree/bad"), "{outcome:?}");
        outcome.out
    };
    assert_eq!(shown("fs ls POOL/files:/tree"), "a\nc\n");
    assert!(shown("fs tree POOL/files").ends_with("1 directories, 2 files\n"));
    assert_eq!(shown("fs get -r POOL/files:/tree FOLDER/back"), "");
    let back = fs::read_dir(place.folder.path().join("back")).unwrap();
    let mut back: Vec<_> = back.map(|entry| entry.unwrap().file_name()).collect();
    back.sort();
    assert_eq!(back, ["a", "c"]);
}

#[test]
fn reading_files_changes_no_pool() {
    let place = with_files();
    tree(&place);
    place.run("fs put FOLDER/tree/a/letter POOL/files").good();
    let before = place.bytes();
    assert_eq!(place.run("fs cat POOL/files:letter").good(), "dear reader");
    assert_eq!(place.run("fs get POOL/files:letter -").good(), "dear reader");
    place.run("fs ls POOL/files").good();
    assert!(place.bytes() == before);
}

#[test]
fn paths_are_walked_as_a_kernel_would() {
    let place = with_files();
    let top = tree(&place);
    symlink("/tree/a/b/..", top.join("up")).unwrap();
    place.run("fs put -r FOLDER/tree POOL/files").good();
    for path in [
        "tree/a/letter",
        "/tree/a/b/../letter",
        "tree/link",
        "//tree/up/./letter",
        "tree/../../../tree//a/letter",
    ] {
        assert_eq!(place.run(&format!("fs cat POOL/files:{path}")).good(), "dear reader", "{path}");
    }
    for (path, what) in [
        ("tree/a/letter/", "not a directory"),
        ("tree/a/letter/..", "not a directory"),
        ("tree/none", "no such file"),
        ("none/letter", "no such file"),
        ("tree", "directory"),
    ] {
        let shown = format!("files:{path}");
        place.run(&format!("fs cat POOL/files:{path}")).failed(1, &[what, &shown]);
    }
    place.run("fs cat POOL/none:x").failed(1, &["none"]);
    place.run("fs cat POOL:x").failed(2, &["names no volume"]);
    place.run("fs get POOL/files:tree FOLDER/x").failed(1, &["-r"]);
    place.run("fs put FOLDER/tree POOL/files").failed(1, &["-r"]);
    place.run("fs put FOLDER/tree/link POOL/files:x/").failed(1, &["files:x/", "directory"]);
    place.run("fs put FOLDER/none POOL/files").failed(1, &["none"]);
    place.run("volume create POOL disk --size 4M").good();
    place.run("fs ls POOL/disk").failed(1, &["no file system"]);
}

#[test]
fn tree_copy_writes_through_no_link() {
    let place = with_files();
    let top = tree(&place);
    place.run("fs put -r FOLDER/tree POOL/files").good();
    let victim = place.folder.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    let copy = place.folder.path().join("copy");
    fs::create_dir_all(copy.join("tree/a")).unwrap();
    for name in ["tree/a/letter", "tree/sparse"] {
        symlink(&victim, copy.join(name)).unwrap();
    }
    place.run("fs get -r POOL/files:tree FOLDER/copy").good();
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    assert_same(&top, &copy.join("tree"));
    // If the user's path is a link, the copy goes to its target.
    let named = place.folder.path().join("named");
    symlink(&victim, &named).unwrap();
    place.run("fs get POOL/files:tree/a/letter FOLDER/named").good();
    assert_eq!(fs::read(&victim).unwrap(), b"dear reader");
    assert!(fs::symlink_metadata(&named).unwrap().is_symlink());
}

#[test]
fn links_in_a_circle_end_in_an_error() {
    let place = with_files();
    let top = place.folder.path().join("circle");
    fs::create_dir(&top).unwrap();
    symlink("two", top.join("one")).unwrap();
    symlink("one", top.join("two")).unwrap();
    place.run("fs put -r FOLDER/circle POOL/files").good();
    let words = ["files:circle/one", "too many levels of symbolic links"];
    place.run("fs cat POOL/files:circle/one").failed(1, &words);
    assert!(place.run("fs stat POOL/files:circle/one").good().contains("leads to two"));
}

#[test]
fn put_without_space_keeps_old_file() {
    let place = with_files();
    let file = place.folder.path().join("f");
    fs::write(&file, "old").unwrap();
    place.run("fs put FOLDER/f POOL/files").good();
    fs::write(&file, vec![1; 80 << 20]).unwrap();
    place.run("fs put FOLDER/f POOL/files").failed(1, &["files:/f", "no space", "hint"]);
    assert_eq!(place.run("fs ls POOL/files").good(), "f\n");
    assert_eq!(place.run("fs cat POOL/files:f").good(), "old");
    assert!(place.run("pool check POOL").good().contains("clean"));
}

/// A mount. Its drop unmounts it after every outcome of a test.
struct Mounted {
    dir: PathBuf,
    running: Option<Running>,
}

impl Mounted {
    fn new(place: &Place) -> Self {
        let dir = place.folder.path().join("mnt");
        fs::create_dir(&dir).unwrap();
        let arguments = place.arguments("mount POOL/files FOLDER/mnt");
        let running = Running::start(everbyte().args(arguments));
        assert!(running.ready.starts_with("ready: "), "{:?}", running.ready);
        Self { dir, running: Some(running) }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.dir).stderr(Stdio::null()).status();
    }
}

#[test]
fn mount_sees_put_immediately() {
    let place = with_files();
    let top = tree(&place);
    let mut mount = Mounted::new(&place);
    let dir = mount.dir.clone();
    // The kernel knows the absence of this name, and the contents of the other file.
    assert!(!dir.join("letter").exists());
    fs::write(dir.join("f"), "old bytes").unwrap();
    fs::create_dir(dir.join("d")).unwrap();
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
    assert_eq!(fs::read(dir.join("f")).unwrap(), b"old bytes");
    place.run("fs put FOLDER/tree/a/letter POOL/files").good();
    place.run("fs put FOLDER/tree/a/letter POOL/files:/f").good();
    place.run("fs put -r FOLDER/tree POOL/files:/d").good();
    assert_eq!(fs::read(dir.join("letter")).unwrap(), b"dear reader");
    assert_eq!(fs::read(dir.join("f")).unwrap(), b"dear reader");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 3);
    assert_same(&top, &dir.join("d/tree"));
    fs::write(dir.join("g"), "from the mount").unwrap();
    assert_eq!(place.run("fs cat POOL/files:g").good(), "from the mount");
    place.run("fs sync POOL/files").good();
    mount.running.take().unwrap().kill();
    assert_eq!(place.run("fs cat POOL/files:g").good(), "from the mount");
}

/// The first part of a piece replaces existing bytes, and the second needs more space than is free.
#[test]
fn mount_sees_part_of_failed_write() {
    const MIB: usize = 1 << 20;
    const PART: usize = 64 << 10;
    let place = with_files();
    let mount = Mounted::new(&place);
    let path = mount.dir.join("f");
    fs::write(&path, vec![1; MIB]).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(2 << 20).unwrap();
    let mut rest = fs::File::create(mount.dir.join("rest")).unwrap();
    for len in [MIB, 65_536, 4096] {
        while rest.write_all(&vec![7; len]).is_ok() {}
    }
    assert!(fs::read(&path).unwrap().starts_with(&vec![1; MIB]));
    let mut client = ControlClient::connect(&place.pool).unwrap();
    let mut ask = |request, bytes: &[u8]| {
        let request = Request::Files { volume: "files".to_owned(), request };
        client.call_attached(request, bytes, None).map(|(response, _)| response)
    };
    let find = FileRequest::Find { from: None, path: PathBytes(b"f".to_vec()), follow: false };
    let Ok(Response::FileFound { file: Some(file), .. }) = ask(find, &[]) else {
        panic!("the file is not found")
    };
    let file = FileId { inode: file.inode, generation: file.generation };
    let write = FileRequest::Write { file, offset: (MIB - PART) as u64, len: 1 << 20 };
    let refused = ask(write, &vec![2; MIB]).unwrap_err().to_string();
    assert!(refused.contains("no space"), "{refused}");
    let seen = fs::read(&path).unwrap();
    let at = MIB - PART;
    assert_eq!([seen[at - 1], seen[at], seen[MIB - 1], seen[MIB]], [1, 2, 2, 0]);
}

#[test]
fn put_to_served_pool_is_durable() {
    let place = with_files();
    let top = tree(&place);
    let mut server = place.serve("POOL", "--checkpoint-interval 1h");
    place.run("fs put -r FOLDER/tree POOL/files").good();
    place.run("fs get -r POOL/files:tree FOLDER/back").good();
    assert_same(&top, &place.folder.path().join("back"));
    let list = place.run("volume list POOL --json").json();
    assert_eq!(list["volumes"][0]["clients"], 0, "{list}");
    server.signal(Signal::KILL);
    place.run("fs get -r POOL/files:tree FOLDER/again").good();
    assert_same(&top, &place.folder.path().join("again"));
    let server = place.serve("POOL", "--read-only");
    place.run("fs put FOLDER/tree/link POOL/files").failed(1, &["read-only"]);
    place.run("fs ls POOL/files").good();
    server.stop();
}

//! Races, types and links, with the kernel's resolution and with the one for older kernels.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, FileType, Mode, RenameFlags, Timespec, Timestamps, mknodat, renameat_with};
use tempfile::TempDir;

use super::*;
use crate::beneath::Resolver;

const RESOLVERS: [Resolver; 2] = [Resolver::Kernel, Resolver::Steps];

fn name(name: &str) -> &OsStr {
    OsStr::new(name)
}

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

/// A folder with `in/a/f`, `secret/f`, and links to the secret in `in`.
fn tree() -> (TempDir, Dir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::create_dir_all(path.join("in/a")).unwrap();
    fs::create_dir(path.join("secret")).unwrap();
    fs::write(path.join("in/a/f"), "open").unwrap();
    fs::write(path.join("secret/f"), "secret").unwrap();
    symlink("../secret", path.join("in/dirlink")).unwrap();
    symlink("a", path.join("in/inside")).unwrap();
    symlink("../secret/f", path.join("in/filelink")).unwrap();
    let dir = Dir::open(&path.join("in")).unwrap();
    (folder, dir)
}

#[test]
fn kernel_and_steps_agree() {
    let (folder, dir) = tree();
    let absolute = folder.path().join("in/a/f");
    let absolute = absolute.to_str().unwrap();
    fifo(&folder.path().join("in/pipe"));
    let paths = ["a/f", "a/./f", "a/none", "none/f", "a/f/g", "dirlink/f", "inside/f", "filelink"];
    let odd = ["../secret/f", "a/../a/f", absolute, "", "a", ".", "pipe", "a\0f"];
    for path in paths.iter().chain(&odd) {
        let outcomes = RESOLVERS.map(|resolver| {
            let dir = dir.try_clone().unwrap().with_resolver(resolver);
            let file = dir.open_file(path, Access::Read, &[Kind::File]);
            let file = file.map(|(file, _)| io::read_to_string(file).unwrap());
            let entry = dir.entry(path).map(|entry| (entry.kind(), entry.identity()));
            let below = dir.dir(path).map(|dir| dir.names().unwrap());
            (
                file.map_err(|error| (error.kind(), error.to_string())),
                entry.map_err(|error| (error.kind(), error.to_string())),
                below.map_err(|error| error.kind()),
            )
        });
        assert_eq!(outcomes[0], outcomes[1], "{path:?}");
        let is_sound = ["a/f", "a/./f"].contains(path);
        assert_eq!(outcomes[0].0.is_ok(), is_sound, "{path:?}: {:?}", outcomes[0]);
    }
}

#[test]
fn no_name_leads_through_a_link_or_out() {
    let (folder, dir) = tree();
    for resolver in RESOLVERS {
        let dir = dir.try_clone().unwrap().with_resolver(resolver);
        assert!(dir.dir("dirlink").is_err() && dir.dir("inside").is_err());
        assert!(dir.create_new("dirlink/new", 0o600).is_err());
        assert!(dir.create_new("../secret/new", 0o600).is_err());
        assert!(dir.create_new("filelink", 0o600).is_err());
        for wrong in ["..", ".", "", "a/x", "/x"] {
            let wrong = name(wrong);
            assert!(dir.make_dir(wrong, 0o700).is_err(), "{wrong:?}");
            assert!(dir.make_link(name("t"), wrong).is_err(), "{wrong:?}");
            assert!(dir.rename(name("a"), &dir, wrong).is_err(), "{wrong:?}");
            assert!(dir.remove_file(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(dir.entry("filelink").unwrap().link_target().unwrap(), "../secret/f");
    }
    assert_eq!(fs::read_dir(folder.path().join("secret")).unwrap().count(), 1);
}

/// Another thread exchanges a directory for a link, and a file for a link, all the time.
#[test]
fn exchanged_names_never_lead_to_the_other_file() {
    for resolver in RESOLVERS {
        let (folder, dir) = tree();
        let dir = dir.with_resolver(resolver);
        let path = folder.path().join("in");
        symlink("../../secret/f", path.join("a/g")).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let exchange = |one: &str, other: &str| {
                    let (one, other) = (path.join(one), path.join(other));
                    renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE)
                };
                while !over.load(Ordering::Relaxed) {
                    exchange("a", "dirlink").unwrap();
                    let _either_is_a =
                        exchange("a/f", "a/g").or_else(|_| exchange("dirlink/f", "dirlink/g"));
                }
            });
            for round in 0..2000 {
                if let Ok((file, _)) = dir.open_file("a/f", Access::Read, &[Kind::File]) {
                    assert_eq!(io::read_to_string(file).unwrap(), "open");
                }
                if let Ok(made) = dir.create_new(format!("a/n{round}"), 0o600) {
                    drop(made);
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        let mut left = fs::read_dir(folder.path().join("secret")).unwrap();
        assert!(left.all(|entry| !entry.unwrap().file_name().to_str().unwrap().starts_with('n')));
    }
}

#[test]
fn files_of_other_types_are_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fifo(&path.join("pipe"));
    let _socket = std::os::unix::net::UnixListener::bind(path.join("socket")).unwrap();
    let dir = Dir::open(path).unwrap();
    let wrong = [
        ("pipe", Kind::Fifo),
        ("socket", Kind::Socket),
        (".", Kind::Directory),
        ("/dev/null", Kind::CharDevice),
    ];
    for (name, kind) in wrong {
        for access in [Access::Read, Access::Write, Access::ReadWrite] {
            let error = open(&path.join(name), access, &[Kind::File]).unwrap_err();
            assert_eq!(WrongKind::of(&error), Some(WrongKind { found: kind }), "{name}");
            assert_eq!(error.to_string(), format!("it is a {kind}"));
        }
    }
    let error = dir.open_file("pipe", Access::Read, &[Kind::File]).unwrap_err();
    assert_eq!(error.to_string(), "it is a named pipe");
    // A pipe that is wanted, without another end.
    let unread = open(&path.join("pipe"), Access::Write, &[Kind::Fifo]).unwrap_err();
    assert!(unread.to_string().contains("no program reads it"), "{unread}");
    let (pipe, _) = open(&path.join("pipe"), Access::Read, &[Kind::Fifo]).unwrap();
    let flags = rustix::fs::fcntl_getfl(&pipe).unwrap();
    assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK), "reads wait as usual");
    assert!(read_file(&path.join("pipe"), 10).is_err());
    fs::write(path.join("large"), "12345678901").unwrap();
    assert!(read_file(&path.join("large"), 10).unwrap_err().to_string().contains("more than 10"));
    assert_eq!(read_file(&path.join("large"), 11).unwrap().len(), 11);
}

#[test]
fn files_of_other_users_are_not_trusted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, "text").unwrap();
    for (mode, is_trusted) in [(0o644, true), (0o600, true), (0o664, true), (0o646, false)] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let read = read_trusted_file(&path, 10);
        assert_eq!(read.is_ok(), is_trusted, "{mode:o}: {read:?}");
    }
    if !everbyte_testkit::is_root("give a file to another user") {
        return;
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::chown(&path, None, Some(65534)).unwrap();
    assert!(read_trusted_file(&path, 10).is_ok());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o660)).unwrap();
    assert!(read_trusted_file(&path, 10).is_err());
    std::os::unix::fs::chown(&path, Some(65534), Some(0)).unwrap();
    let error = read_trusted_file(&path, 10).unwrap_err();
    assert!(error.to_string().contains("user 65534 owns it"), "{error}");
}

#[test]
fn new_file_gets_its_name_or_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let dir = Dir::open(folder.path()).unwrap();
    let names = || dir.names().unwrap();
    fs::write(folder.path().join("f"), "old").unwrap();
    {
        let mut new = NewFile::create(&dir).unwrap();
        assert!(names()[0].to_str().unwrap().starts_with(".tmp"));
        io::Write::write_all(new.file(), b"new").unwrap();
        assert_eq!(new.file().metadata().unwrap().mode() & 0o7777, 0o600);
        new.persist(name("f")).unwrap();
    }
    assert_eq!((names().len(), fs::read(folder.path().join("f")).unwrap()), (1, b"new".to_vec()));
    drop(NewFile::create(&dir).unwrap());
    assert_eq!(names(), ["f"]);
    // The name leads to another file in the end.
    let new = NewFile::create(&dir).unwrap();
    let own = names().into_iter().find(|name| name != "f").unwrap();
    fs::rename(folder.path().join(&own), folder.path().join("moved")).unwrap();
    symlink("f", folder.path().join(&own)).unwrap();
    let error = new.persist(name("g")).unwrap_err().to_string();
    assert!(error.contains("replaced"), "{error}");
    assert!(names().contains(&own), "the other file is not removed");
    assert!(!folder.path().join("g").exists());
}

#[test]
fn links_and_attributes_are_set_by_descriptors() {
    let folder = tempfile::tempdir().unwrap();
    let dir = Dir::open(folder.path()).unwrap();
    let time = Timespec { tv_sec: -5, tv_nsec: 7 };
    let times = Timestamps { last_access: time, last_modification: time };
    let attributes = Attributes { owner: None, mode: Some(0o711), times: Some(times) };
    fs::write(folder.path().join("l"), "in the way").unwrap();
    dir.put_link(name("target"), name("l"), |link| link.set_link_attributes(&attributes)).unwrap();
    let link = fs::symlink_metadata(folder.path().join("l")).unwrap();
    assert!(link.is_symlink());
    assert_eq!((link.mtime(), link.mtime_nsec()), (-5, 7));
    let made = dir.make_dir(name("d"), 0o700).unwrap();
    made.set_attributes(&attributes).unwrap();
    let found = fs::metadata(folder.path().join("d")).unwrap();
    assert_eq!((found.mode() & 0o7777, found.mtime()), (0o711, -5));
    assert!(dir.put_link(name("t"), name("d"), |_| Ok(())).is_err());
    assert_eq!(dir.names().unwrap(), ["d", "l"]);
}

#[test]
fn named_paths_follow_own_links_to_their_ends() {
    let (folder, _) = tree();
    let path = folder.path();
    symlink(path.join("in"), path.join("absolute")).unwrap();
    symlink("loop", path.join("loop")).unwrap();
    symlink("none", path.join("dangling")).unwrap();
    for (named, expected) in [
        ("absolute/a/f", "in/a/f"),
        ("in/inside/../dirlink/f", "secret/f"),
        ("in/filelink", "secret/f"),
        ("in//./a/f", "in/a/f"),
    ] {
        let found = Place::following(&path.join(named)).unwrap().find().unwrap().unwrap();
        let expected = fs::metadata(path.join(expected)).unwrap();
        assert_eq!(found.identity(), Identity::of(&expected), "{named}");
    }
    let place = Place::of(&path.join("in/filelink")).unwrap();
    assert_eq!(place.find().unwrap().unwrap().kind(), Kind::Symlink);
    assert_eq!(Place::following(&path.join("dangling")).unwrap().name.unwrap(), "none");
    assert!(Place::following(&path.join("loop")).is_err());
    assert!(Place::following(&path.join("in/a/f/g")).is_err());
    for whole in ["/", ".", "..", "in/.."] {
        assert!(Place::of(&path.join(whole)).unwrap().name.is_none(), "{whole}");
    }
    // A directory that is open has a link in /proc, and so has a pipe.
    let dir = Dir::open(&path.join("in")).unwrap();
    assert_eq!(Dir::open(&dir.proc_path()).unwrap().names().unwrap(), dir.names().unwrap());
}

#[test]
fn foreign_links_are_not_followed() {
    let own = rustix::process::geteuid().as_raw();
    let other = own + 4000;
    for (link, dir, mode, is_trusted) in [
        (0, other, 0o777, true),
        (own, other, 0o777, true),
        (other, own, 0o755, true),
        (other, own, 0o775, false),
        (other, 0, 0o1777, false),
        (other, other, 0o700, false),
    ] {
        assert_eq!(is_trusted_link(link, dir, mode), is_trusted, "{link} {dir} {mode:o}");
    }
    if !everbyte_testkit::is_root("give links to another user") {
        return;
    }
    let (folder, _) = tree();
    let path = folder.path().join("in");
    for name in ["", "dirlink", "filelink"] {
        std::os::unix::fs::lchown(path.join(name), Some(other), Some(other)).unwrap();
    }
    for refused in ["dirlink/f", "dirlink", "filelink"] {
        let error = Place::following(&path.join(refused)).unwrap_err().to_string();
        assert!(error.contains(&format!("link of user {other}")), "{error}");
    }
    assert!(Dir::open(&path.join("inside")).is_ok(), "root's own");
    assert!(Place::of(&path.join("filelink")).is_ok());
}

#[test]
fn outputs_follow_no_foreign_links() {
    use std::os::fd::AsRawFd;
    let (folder, _) = tree();
    let secret = folder.path().join("secret/f");
    // A file that this process has open has a link in /proc.
    let held = fs::OpenOptions::new().write(true).open(&secret).unwrap();
    let of_proc = format!("/proc/self/fd/{}", held.as_raw_fd());
    io::Write::write_all(&mut create(Path::new(&of_proc), false).unwrap(), b"new").unwrap();
    assert_eq!(fs::read(&secret).unwrap(), b"new");
    if !everbyte_testkit::is_root("give links to another user") {
        return;
    }
    let path = folder.path().join("in");
    for name in ["", "dirlink", "filelink"] {
        std::os::unix::fs::lchown(path.join(name), Some(4000), Some(4000)).unwrap();
    }
    for refused in ["filelink", "dirlink/f", "dirlink/g"] {
        let error = create(&path.join(refused), false).unwrap_err().to_string();
        assert!(error.contains("link of user 4000"), "{refused}: {error}");
    }
    assert_eq!(fs::read(&secret).unwrap(), b"new");
    assert!(!folder.path().join("secret/g").exists());
}

#[test]
fn mount_is_not_taken_through_a_link() {
    if !everbyte_testkit::is_root("mount") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    for name in ["mnt", "above/mnt"] {
        fs::create_dir_all(path.join(name)).unwrap();
    }
    let on = path.join("mnt");
    rustix::mount::mount("none", &on, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
    symlink("mnt", path.join("link")).unwrap();
    // The last component is a link, and the directory above was exchanged for a link.
    assert!(detach(&path.join("link")).is_err());
    let point = MountPoint::find(&path.join("above/mnt")).unwrap();
    fs::rename(path.join("above"), path.join("moved")).unwrap();
    symlink(".", path.join("above")).unwrap();
    assert!(point.detach().is_err());
    let (inside, outside) = (MountPoint::find(&on).unwrap(), point.mount_id().unwrap());
    assert_ne!(inside.mount_id().unwrap(), outside);
    inside.detach().unwrap();
    assert_eq!(inside.mount_id().unwrap(), outside);
    assert!(detach(&on).is_err(), "nothing is mounted there");
    fs::set_permissions(&on, fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn named_pipe_is_read_if_a_program_writes_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    fifo(&pipe);
    let error = open_input(&pipe).unwrap_err().to_string();
    assert!(error.contains("named pipe, and no program writes"), "{error}");
    let written = pipe.clone();
    let writing = std::thread::spawn(move || fs::write(written, "bytes"));
    assert_eq!(read_to_string(&pipe).unwrap(), "bytes");
    writing.join().unwrap().unwrap();
    assert_eq!(read_to_string(Path::new("/proc/self/comm")).unwrap().lines().count(), 1);
    // A program that is silent for longer than one is waited for, and one without any bytes.
    for (pause_ms, text) in [(2300, "late"), (100, "")] {
        let written = pipe.clone();
        let writing = std::thread::spawn(move || {
            let mut file = fs::OpenOptions::new().write(true).open(written)?;
            std::thread::sleep(std::time::Duration::from_millis(pause_ms));
            io::Write::write_all(&mut file, text.as_bytes())
        });
        assert_eq!(read_to_string(&pipe).unwrap(), text);
        writing.join().unwrap().unwrap();
    }
}

#[test]
fn output_is_new_empty_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fifo(&path.join("pipe"));
    let write = |name: &str, is_new| {
        create(&path.join(name), is_new).and_then(|mut file| io::Write::write_all(&mut file, b"ab"))
    };
    write("f", true).unwrap();
    assert_eq!(write("f", true).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    fs::write(path.join("f"), "longer").unwrap();
    write("f", false).unwrap();
    assert_eq!(fs::read(path.join("f")).unwrap(), b"ab");
    assert!(write("pipe", false).is_err());
    symlink("g", path.join("link")).unwrap();
    assert!(write("link", true).is_err());
    write("link", false).unwrap();
    assert_eq!(fs::read(path.join("g")).unwrap(), b"ab");
    make_dirs(&path.join("a/b/c")).unwrap();
    make_dirs(&path.join("a/b/c")).unwrap();
    assert!(path.join("a/b/c").is_dir());
    assert!(make_dirs(&path.join("f/b")).is_err() && make_dirs(&path.join("pipe")).is_err());
}

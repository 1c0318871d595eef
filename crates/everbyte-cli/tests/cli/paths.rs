//! Paths to another object than a command needs, and paths with changes during a command.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};

use super::{Outcome, Place, everbyte};

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

/// Each command with a path to open. FILE stands for the path.
const COMMANDS: [&str; 27] = [
    "pool info FILE",
    "pool check FILE",
    "pool check --repair FILE",
    "pool scrub FILE",
    "pool grow FILE --size 64M",
    "pool create FILE --size 32M --force",
    "pool delete FILE --force",
    "volume list FILE",
    "volume create FILE v --size 4M",
    "volume create POOL v --kind cache --backing FILE --dram 256K --scm 4M",
    "volume delete FILE v",
    "volume rename FILE v w",
    "volume resize FILE v --size 8M",
    "volume detach FILE v",
    "client list FILE",
    "client disconnect FILE 1",
    "fs ls FILE/files",
    "fs put FILE POOL/files",
    "fs get FILE/files:/x FOLDER/back",
    "fs get POOL/files:/f FILE",
    "fs sync FILE/files",
    "serve FILE",
    "serve POOL --nbd unix:FOLDER/nbd.sock --record FILE --force",
    "mount FILE/files FOLDER/mnt",
    "run --dram 16M --pool FILE -- /bin/true",
    "sim info FILE",
    "sim FILE",
];

#[test]
fn pipes_and_sockets_are_refused() {
    let place = Place::empty();
    place.run("pool create POOL --size 64M").good();
    place.run("volume create POOL files --kind fs --size 16M").good();
    let folder = place.folder.path();
    fs::write(folder.join("f"), "bytes").unwrap();
    fs::create_dir(folder.join("mnt")).unwrap();
    place.run("fs put FOLDER/f POOL/files").good();
    fifo(&folder.join("pipe"));
    let _socket = UnixListener::bind(folder.join("socket")).unwrap();
    symlink("pipe", folder.join("link")).unwrap();
    let mut children = Vec::new();
    for file in ["pipe", "socket", "link"] {
        for line in COMMANDS {
            let line = line.replace("FILE", &format!("FOLDER/{file}"));
            let child = everbyte()
                .args(place.arguments(&line))
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            children.push((line, super::watchdog::Watchdog::over(&child), child));
            // A few run concurrently.
            if children.len() == 3 {
                children.drain(..).for_each(|(line, watchdog, child)| {
                    let output = child.wait_with_output().unwrap();
                    watchdog.call_off(&line);
                    let err = String::from_utf8_lossy(&output.stderr).into_owned();
                    let code = output.status.code();
                    assert!(matches!(code, Some(1 | 2)), "{line}: {:?} {err}", output.status);
                    assert!(!err.is_empty(), "{line}");
                });
            }
        }
    }
    // The reason is said.
    for (line, words) in [
        ("pool info FOLDER/pipe", "it is a named pipe"),
        ("pool info FOLDER/socket", "it is a socket"),
        ("fs put FOLDER/pipe POOL/files", "it is a named pipe"),
        ("fs get POOL/files:/f FOLDER/pipe", "it is a named pipe, and no program reads it"),
    ] {
        let outcome = place.run(line);
        assert!(outcome.err.contains(words), "{line}: {}", outcome.err);
    }
    assert_eq!(place.run("fs ls POOL/files").good(), "f\n");
}

#[test]
fn shell_pipes_are_read_and_written() {
    let place = Place::empty();
    place.run("pool create POOL --size 64M").good();
    place.run("volume create POOL files --kind fs --size 16M").good();
    let program = env!("CARGO_BIN_EXE_everbyte");
    let pool = place.pool.display();
    for (line, out) in [
        ("printf one | EB fs put - POOL/files:/one; EB fs cat POOL/files:/one", "one"),
        ("EB fs put <(printf two) POOL/files:/two; EB fs cat POOL/files:/two", "two"),
        (
            "printf three | EB fs put /dev/stdin POOL/files:/three; EB fs cat POOL/files:/three",
            "three",
        ),
        ("EB fs get POOL/files:/one >(cat) | cat", "one"),
        ("EB fs get POOL/files:/one /dev/stdout | cat", "one"),
        ("EB fs get POOL/files:/one /dev/null", ""),
        ("EB fs put /proc/sys/kernel/ostype POOL/files:/os; EB fs cat POOL/files:/os", "Linux\n"),
    ] {
        let line = line.replace("EB", program).replace("POOL", &pool.to_string());
        let mut shell = std::process::Command::new("bash");
        let outcome = Outcome::of(shell.args(["-c", &line]).stdin(Stdio::null()));
        assert_eq!((outcome.out.as_str(), outcome.err.as_str()), (out, ""), "{line}");
    }
}

/// The same user exchanges the temporary file for a link: in either order, the link's file stays
/// unchanged.
#[test]
fn exchanged_temporary_file_is_an_error() {
    let place = Place::empty();
    place.run("pool create POOL --size 256M").good();
    place.run("volume create POOL files --kind fs --size 200M").good();
    let folder = place.folder.path();
    let large: Vec<u8> = (0..64_u32 << 20).map(|n| (n >> 12).to_le_bytes()[0] | 1).collect();
    fs::write(folder.join("large"), large).unwrap();
    place.run("fs put FOLDER/large POOL/files").good();
    let victim = folder.join("victim");
    fs::write(&victim, "precious").unwrap();
    fs::set_permissions(&victim, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let before = fs::metadata(&victim).unwrap();
    let to = folder.join("to");
    fs::create_dir(&to).unwrap();
    let over = AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let names = fs::read_dir(&to).unwrap().map(|entry| entry.unwrap().file_name());
                for name in names.filter(|name| name.to_string_lossy().starts_with(".tmp")) {
                    symlink(&victim, to.join("link")).unwrap();
                    let (one, other) = (to.join("link"), to.join(&name));
                    if renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).is_ok() {
                        return;
                    }
                    fs::remove_file(one).unwrap();
                }
            }
        });
        let outcome = place.run("fs get -p POOL/files:large FOLDER/to/large");
        over.store(true, Ordering::Relaxed);
        outcome
    });
    let after = fs::metadata(&victim).unwrap();
    use std::os::unix::fs::MetadataExt;
    assert_eq!((before.mode(), before.mtime()), (after.mode(), after.mtime()));
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    assert_eq!(outcome.status, 1, "{outcome:?}");
    assert!(outcome.err.contains("another process replaced"), "{outcome:?}");
    assert!(!to.join("large").exists());
}

#[test]
fn damaged_bucket_leaves_the_other_directories() {
    let place = Place::empty();
    place.run("pool create POOL --size 64M").good();
    place.run("volume create POOL f --kind fs --size 40M").good();
    let folder = place.folder.path();
    for (name, word) in [("a", "one"), ("b", "two")] {
        fs::create_dir(folder.join(name)).unwrap();
        for number in 1..=30 {
            let file = folder.join(name).join(format!("{word}{number}"));
            fs::write(file, format!("{word}{number}")).unwrap();
        }
        place.run(&format!("fs put -r FOLDER/{name} POOL/f:/{name}")).good();
    }
    let mut bytes = place.bytes();
    let at = bytes.windows(5).position(|word| word == b"one17").unwrap() / 4096 * 4096 + 4;
    bytes[at..at + 4].copy_from_slice(b"\xa5\x5a\xa5\x5a");
    fs::write(&place.pool, bytes).unwrap();
    let outcome = place.run("fs get -r POOL/f:/ FOLDER/out");
    assert_eq!(outcome.status, 1, "{outcome:?}");
    assert!(outcome.err.contains("f:/a: left out: names in it: directory bucket"), "{outcome:?}");
    assert!(outcome.err.ends_with("left out: 1\n  f:/a\n"), "{outcome:?}");
    assert_eq!(fs::read_dir(folder.join("out/b")).unwrap().count(), 30);
    let tree = place.run("fs tree POOL/f");
    assert!(tree.status == 1 && tree.out.ends_with("2 directories, 30 files\n"), "{tree:?}");
    assert_eq!(place.run("fs ls POOL/f:/a").status, 1);
    let cat = place.run("fs cat POOL/f:/a/one1 POOL/f:/b/two2");
    assert_eq!((cat.status, cat.out.as_str()), (1, "two2"), "{cat:?}");
}

//! File systems: made, mounted, used, killed and mounted again.
//!
//! Needs `/dev/fuse`, and root or `fusermount3`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, io};

use everbyte_media::{Mapped, MediaOptions, Medium, PoolOffset};
use rustix::process::Signal;

use super::{Outcome, Place, Running, everbyte};

/// A pool with a file system, and a directory to mount it on.
pub(crate) struct Files {
    pub(crate) place: Place,
    pub(crate) dir: PathBuf,
}

impl Files {
    pub(crate) fn new() -> Self {
        let place = Place::empty();
        place.run("pool create POOL --size 64M").good();
        place.run("volume create POOL files --kind fs --size 32M").good();
        let dir = place.folder.path().join("mnt");
        fs::create_dir(&dir).unwrap();
        Self { place, dir }
    }

    pub(crate) fn mount(&self) -> Running {
        self.mount_with("")
    }

    /// Mounts with further options.
    fn mount_with(&self, options: &str) -> Running {
        let arguments = self.place.arguments(&format!("mount POOL/files FOLDER/mnt {options}"));
        let running = Running::start(everbyte().args(arguments));
        assert!(running.ready.starts_with("ready: "), "{:?}", running.ready);
        running
    }

    fn is_mounted(&self) -> bool {
        source_of(&self.dir).is_some()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // No mount may stay after any outcome of a test.
        let _ = Command::new("umount").arg("-l").arg(&self.dir).stderr(Stdio::null()).status();
    }
}

/// The source of the mount on `dir` in the list of mounts, if `dir` has a mount.
pub(crate) fn source_of(dir: &Path) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mount = mounts.lines().find(|line| line.contains(dir.to_str().unwrap()))?;
    mount.split(' ').next().map(str::to_owned)
}

/// Checks that mkfs.btrfs would pass the mount on `dir`: it accepts a source
/// only if inspecting it succeeds or finds nothing.
pub(crate) fn check_source(dir: &Path) {
    let source = source_of(dir).unwrap();
    assert!(source.starts_with("everbyte:/"), "{source}");
    assert_eq!(fs::metadata(source).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn files_survive_unmount_of_clean_pool() {
    let files = Files::new();
    let mount = files.mount();
    check_source(&files.dir);
    fs::create_dir(files.dir.join("d")).unwrap();
    fs::write(files.dir.join("d/f"), b"some bytes").unwrap();
    let list = files.place.run("volume list POOL --json").json();
    assert_eq!(list["volumes"][0]["kind"], "fs", "{list}");
    files.place.run("volume delete POOL files").failed(1, &["files is mounted"]);
    mount.stop();
    assert!(!files.is_mounted());
    assert_eq!(files.place.info()["clean"], true);
    let check = files.place.run("pool check POOL").good();
    assert!(check.contains("clean"), "{check}");
    let mut mount = files.mount();
    assert_eq!(fs::read(files.dir.join("d/f")).unwrap(), b"some bytes");
    assert!(mount.signal(Signal::INT).success());
    files.place.run("volume delete POOL files").good();
}

#[test]
fn mount_ends_if_ready_line_fails() {
    let files = Files::new();
    let line = files.place.arguments("mount POOL/files FOLDER/mnt");
    Outcome::unheard(everbyte().args(line)).failed(1, &["standard output"]);
    assert!(!files.is_mounted());
    assert_eq!(files.place.info()["clean"], true);
}

#[test]
fn killed_mount_keeps_synced_files() {
    let files = Files::new();
    let mount = files.mount();
    let file = fs::File::create(files.dir.join("f")).unwrap();
    std::io::Write::write_all(&mut &file, b"synced").unwrap();
    file.sync_all().unwrap();
    mount.kill();
    assert!(fs::read_dir(&files.dir).is_err(), "the server has gone");
    let mount = files.mount();
    assert_eq!(fs::read(files.dir.join("f")).unwrap(), b"synced");
    mount.stop();
    assert!(!files.is_mounted());
}

#[test]
fn used_mount_ends_on_signal() {
    let files = Files::new();
    let mount = files.mount();
    let file = fs::File::create(files.dir.join("f")).unwrap();
    std::io::Write::write_all(&mut &file, b"written").unwrap();
    mount.stop();
    assert!(!files.is_mounted());
    assert!(file.sync_all().is_err(), "the server has gone");
    assert_eq!(files.place.info()["clean"], true);
    let mount = files.mount();
    assert_eq!(fs::read(files.dir.join("f")).unwrap(), b"written");
    mount.stop();
    assert!(files.place.run("pool scrub POOL").good().contains("1 volumes"));
}

#[test]
fn mapped_stores_survive_unmount() {
    const WORDS: u64 = 3;
    let at = |word| PoolOffset(word * 4096);
    let files = Files::new();
    let mount = files.mount();
    let path = files.dir.join("f");
    fs::File::create(&path).unwrap().set_len(4096 * WORDS).unwrap();
    let mapped = Mapped::open(&path, &MediaOptions::new()).unwrap();
    (0..WORDS).for_each(|word| mapped.store_word(at(word), word + 1));
    mount.stop();
    assert!(!files.is_mounted());
    drop(mapped);
    assert_eq!(files.place.info()["clean"], true);
    let mount = files.mount();
    let mapped = Mapped::open(&path, &MediaOptions::new()).unwrap();
    (0..WORDS).for_each(|word| assert_eq!(mapped.load_word(at(word)), word + 1));
    drop(mapped);
    mount.stop();
}

/// The program stays, and syncs nothing: only the mount command can report the loss.
#[test]
fn unmount_with_lost_stores_fails() {
    const PAGES: u64 = 256;
    let files = Files::new();
    let said = files.place.folder.path().join("said");
    let line = files.place.arguments("mount POOL/files FOLDER/mnt");
    let stderr = fs::File::create(&said).unwrap();
    let mut mount = Running::start_with(everbyte().args(line), stderr.into());
    let path = files.dir.join("f");
    fs::File::create(&path).unwrap().set_len(4096 * PAGES).unwrap();
    let number = std::os::unix::fs::MetadataExt::ino(&fs::metadata(&path).unwrap());
    fill(&files.dir.join("full"));
    let mapped = Mapped::open(&path, &MediaOptions::new()).unwrap();
    (0..PAGES).for_each(|page| mapped.store_word(PoolOffset(page * 4096), page + 1));
    assert_eq!(mount.signal(Signal::TERM).code(), Some(1));
    drop(mapped);
    assert!(!files.is_mounted());
    let said = fs::read_to_string(said).unwrap();
    assert!(said.contains("could not be written"), "{said}");
    assert!(said.contains(&format!("inode {number}")), "{said}");
    assert_eq!(files.place.info()["clean"], true);
    files.mount().stop();
}

/// A separate mount namespace with a device open to every user. Its mounts end with it.
const AS_ANOTHER_USER: &str = "
    mkdir dev && mount -t tmpfs none dev && mknod -m 666 dev/fuse c 10 229 &&
        mount --bind dev/fuse /dev/fuse && chown 65534:65534 . mnt || exit 77
    as_nobody='setpriv --reuid 65534 --regid 65534 --clear-groups'
    $as_nobody \"$1\" --version >&2 && exec $as_nobody sh -euc \"$2\" sh \"$1\" || exit 77";

/// Runs a shell script of another user. This user may mount on `mnt` next to the new file system
/// `pool/files`; `None` if the system permits it to no user.
fn as_another_user(place: &Place, script: &str) -> Option<Outcome> {
    if !everbyte_testkit::is_root("become another user") {
        return None;
    }
    fs::create_dir(place.folder.path().join("mnt")).unwrap();
    let script = format!(
        "\"$1\" pool create pool --size 64M >&2
        \"$1\" volume create pool files --kind fs --size 32M >&2
        {script}"
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--propagation", "private", "sh", "-uc", AS_ANOTHER_USER, "sh"]);
    unshare.arg(everbyte().get_program()).arg(script).current_dir(place.folder.path());
    let outcome = Outcome::of(&mut unshare);
    if outcome.status == 77 {
        everbyte_testkit::not_run("another user cannot mount here");
        return None;
    }
    Some(outcome)
}

/// A user other than root unmounts by a program of the system.
#[test]
fn used_mount_of_user_ends_on_signal() {
    let place = Place::empty();
    let script = "
        \"$1\" mount pool/files mnt >said & server=$!
        until grep -q ready said; do kill -0 $server; sleep 0.05; done
        exec 3>mnt/f
        echo written >&3
        kill -TERM $server
        wait $server
        if echo again >&3; then exit 1; fi
        echo ended";
    let Some(outcome) = as_another_user(&place, script) else { return };
    assert!(outcome.status == 0 && outcome.out == "ended\n", "{outcome:?}");
    assert_eq!(place.info()["clean"], true);
    assert_eq!(place.run("fs cat POOL/files:f").good(), "written\n");
}

/// A user may have fewer threads than the mount is to have.
#[test]
fn mount_without_threads_fails() {
    let place = Place::empty();
    let script = "
        status=0
        prlimit --nproc=60 \"$1\" mount pool/files mnt --threads 200 >&2 || status=$?
        echo $status";
    let Some(outcome) = as_another_user(&place, script) else { return };
    assert_eq!((outcome.status, &*outcome.out), (0, "1\n"), "{outcome:?}");
    // The limit can prevent the start of fusermount3, too, while threads of the mount are ending.
    let causes = ["threads", "fusermount3 cannot be started"];
    assert!(causes.iter().any(|cause| outcome.err.contains(cause)), "{outcome:?}");
}

#[test]
fn mount_threads_share_a_descriptor() {
    let files = Files::new();
    let mut limited = Command::new("prlimit");
    limited.arg("--nofile=60").arg(everbyte().get_program());
    limited.args(files.place.arguments("mount POOL/files FOLDER/mnt --threads 100"));
    let mount = Running::start(limited.stdin(Stdio::null()).env_remove("RUST_LOG"));
    assert!(mount.ready.starts_with("ready: "), "{:?}", mount.ready);
    fs::write(files.dir.join("f"), b"some bytes").unwrap();
    assert_eq!(fs::read(files.dir.join("f")).unwrap(), b"some bytes");
    mount.stop();
    assert!(!files.is_mounted());
}

#[test]
fn every_fs_index_mounts() {
    let files = Files::new();
    let place = &files.place;
    place.run("volume delete POOL files").good();
    for index in ["direct", "pmfs-radix", "page-cache-radix", "b+", "csb+", "window"] {
        let line = format!("volume create POOL files --kind fs --size 16M --index {index}");
        place.run(&format!("{line} -o inodes=200")).good();
        let mount = files.mount();
        for number in 0..150 {
            fs::write(files.dir.join(number.to_string()), number.to_string()).unwrap();
        }
        mount.stop();
        let mount = files.mount();
        assert_eq!(fs::read_dir(&files.dir).unwrap().count(), 150, "{index}");
        mount.stop();
        place.run("volume delete POOL files").good();
    }
    let wrong = "volume create POOL files --kind fs --size 16M --index b+ -o index-node=100";
    place.run(wrong).failed(1, &["100"]);
    place.run("volume create POOL disk --size 16M -o inodes=5").failed(2, &["--kind fs"]);
}

/// Returns for each of these options: true if the mount on `dir` has it.
fn has_options(dir: &Path, options: [&str; 2]) -> [bool; 2] {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mount = mounts.lines().find(|line| line.contains(dir.to_str().unwrap())).unwrap();
    let found = mount.split(' ').nth(3).unwrap();
    options.map(|option| found.split(',').any(|found| found == option))
}

#[test]
fn mount_of_foreign_pool_is_nosuid_nodev() {
    if !everbyte_testkit::is_root("give a pool to another user") {
        return;
    }
    let files = Files::new();
    let refused = |options: &str| {
        let mount = files.mount_with(options);
        let refused = has_options(&files.dir, ["nosuid", "nodev"]);
        mount.stop();
        refused
    };
    let give = |uid| std::os::unix::fs::chown(&files.place.pool, Some(uid), Some(uid)).unwrap();
    let allow = |mode| {
        let permissions = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(mode);
        fs::set_permissions(&files.place.pool, permissions).unwrap();
    };
    assert_eq!(refused(""), [false, false], "it is root's own");
    allow(0o620);
    assert_eq!(refused(""), [true, true], "a group can write to it");
    allow(0o600);
    give(65_534);
    assert_eq!(refused(""), [true, true]);
    assert_eq!(refused("--suid"), [false, true]);
    assert_eq!(refused("--dev"), [true, false]);
    let server = files.place.serve("POOL", "");
    assert_eq!(refused(""), [true, true]);
    assert_eq!(refused("--suid --dev"), [false, false]);
    give(0);
    assert_eq!(refused(""), [false, false], "it is root's own and root's server has it");
    give(65_534);
    let (pool, aside) = (&files.place.pool, files.place.folder.path().join("aside"));
    fs::rename(pool, &aside).unwrap();
    let other = fs::File::create(pool).unwrap();
    allow(0o600);
    other.lock().unwrap();
    assert_eq!(refused(""), [true, true], "root's is another file in the pool's place");
    fs::rename(&aside, pool).unwrap();
    server.stop();
}

#[test]
fn access_time_follows_mount_options() {
    let files = Files::new();
    let path = files.dir.join("f");
    let mount = files.mount();
    fs::write(&path, b"text").unwrap();
    mount.stop();
    for (options, is_changed) in [
        ("--atime never", false),
        ("", true),
        ("--atime relative", false),
        ("--atime strict", true),
    ] {
        let mount = files.mount_with(options);
        let before = fs::metadata(&path).unwrap().accessed().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"text");
        let after = fs::metadata(&path).unwrap().accessed().unwrap();
        assert_eq!(after > before, is_changed, "{options:?}");
        mount.stop();
    }
    let wrong = "mount POOL/files FOLDER/mnt --atime often";
    files.place.run(wrong).failed(2, &["relative", "never", "strict"]);
}

#[test]
fn impossible_mount_is_explained() {
    let files = Files::new();
    files.place.run("volume create POOL disk --size 8M").good();
    let (place, dir) = (&files.place, "FOLDER/mnt");
    place.run(&format!("mount POOL {dir}")).failed(1, &["POOL/VOLUME"]);
    place.run(&format!("mount POOL/none {dir}")).failed(1, &["none"]);
    place.run(&format!("mount POOL/disk {dir}")).failed(1, &["disk is no file system"]);
    place.run("mount POOL/files FOLDER/nowhere").failed(1, &["nowhere"]);
    fs::write(place.folder.path().join("file"), "x").unwrap();
    place.run("mount POOL/files FOLDER/file").failed(1, &["file", "not a directory"]);
    let server = place.serve("POOL", "");
    let list = place.run("volume list POOL").good();
    assert!(list.contains("files"), "{list}");
    place.run(&format!("mount POOL/disk {dir}")).failed(1, &["no file system"]);
    assert!(!files.is_mounted(), "what is refused is taken away again");
    server.stop();
    assert!(place.run("pool check POOL").good().contains("clean"));
}

/// Number of blocks of 4096 bytes in the file system at `dir`, total and free.
fn blocks(dir: &std::path::Path) -> (u64, u64) {
    let found = rustix::fs::statvfs(dir).unwrap();
    (found.f_blocks, found.f_bavail)
}

/// Writes to a new file until the space is used up, and returns the number of written bytes.
fn fill(path: &std::path::Path) -> u64 {
    let mut file = fs::File::create(path).unwrap();
    let mut len = 0;
    loop {
        match std::io::Write::write(&mut file, &[7; 64 << 10]) {
            Ok(written) => len += written as u64,
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
                return len;
            }
        }
    }
}

#[test]
fn fs_size_limit_changes_under_use() {
    let files = Files::new();
    let (place, dir) = (&files.place, &files.dir);
    place.run("volume resize POOL files --size 16M").good();
    let mount = files.mount();
    assert_eq!(blocks(dir).0, 16 << 8);
    let written = fill(&dir.join("full"));
    assert!((13 << 20..16 << 20).contains(&written), "{written}");
    let list = place.run("volume list POOL --json").json();
    assert!(list["volumes"][0]["used_bytes"].as_u64().unwrap() <= 16 << 20, "{list}");
    assert!(fs::write(dir.join("more"), [1; 1 << 20]).is_err());
    // Operations to free space work without free space.
    fs::File::options().write(true).open(dir.join("full")).unwrap().set_len(5000).unwrap();
    fs::remove_file(dir.join("more")).unwrap();
    let written = fill(&dir.join("again"));
    assert!(written > 12 << 20, "{written}");
    place.run("volume resize POOL files --size 8M").failed(1, &["in use", "cannot be smaller"]);
    place.run("volume resize POOL files --size 1T").failed(1, &["free"]);
    assert_eq!(blocks(dir).0, 16 << 8, "nothing has changed");
    place.run("volume resize POOL files --size 24M").good();
    assert_eq!(blocks(dir).0, 24 << 8);
    assert!(fill(&dir.join("third")) > 6 << 20);
    fs::remove_file(dir.join("third")).unwrap();
    fs::remove_file(dir.join("again")).unwrap();
    place.run("volume resize POOL files --size 4M").good();
    assert!(fill(&dir.join("fourth")) < 4 << 20);
    mount.stop();
    assert!(place.run("pool check POOL").good().contains("clean"));
    let mount = files.mount();
    assert_eq!(blocks(dir).0, 4 << 8);
    mount.stop();
}

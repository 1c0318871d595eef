//! Pools writable by another user: the rights of a command or server of root to open the objects
//! they name.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use everbyte_device::Fua;
use everbyte_testkit::is_root;

use crate::{Outcome, Place, Running, everbyte};

/// The user `nobody`, on every Linux.
const OTHER_USER: u32 = 65534;
const CREATE: &str = "volume create POOL c --kind cache --scm 1M --dram 256K --backing";

/// A loop device over a file, detached when dropped.
pub(crate) struct Loop(PathBuf);

impl Loop {
    /// `None` where there are none.
    pub(crate) fn over(image: &Path) -> Option<Self> {
        let made = Command::new("losetup").args(["--find", "--show"]).arg(image).output();
        let made = made.ok().filter(|output| output.status.success())?;
        Some(Self(PathBuf::from(String::from_utf8(made.stdout).ok()?.trim())))
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    pub(crate) fn set(&self, flag: &str) {
        assert!(Command::new("blockdev").arg(flag).arg(&self.0).status().unwrap().success());
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // The kernel keeps a read-only flag for the next user of the device.
        let _ = Command::new("blockdev").arg("--setrw").arg(&self.0).status();
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

/// A pool of root, a file `secret` readable only by root, and a file `own` of the other user, of 8
/// MiB each.
struct Shared {
    place: Place,
    secret: PathBuf,
    own: PathBuf,
}

impl Shared {
    fn new() -> Self {
        let place = Place::empty();
        place.run("pool create POOL --size 32M").good();
        let file = |name: &str, uid| {
            let path = place.folder.path().join(name);
            fs::write(&path, vec![1; 8 << 20]).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            chown(&path, Some(uid), Some(uid)).unwrap();
            path
        };
        let (secret, own) = (file("secret", 0), file("own", OTHER_USER));
        fs::set_permissions(place.folder.path(), Permissions::from_mode(0o755)).unwrap();
        Self { place, secret, own }
    }

    fn give(&self) {
        chown(&self.place.pool, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
    }

    #[track_caller]
    fn assert_untouched(&self) {
        assert!(fs::read(&self.secret).unwrap() == vec![1; 8 << 20], "the file was written");
    }

    /// Runs a command as the other user.
    fn run_as_other(&self, arguments: &str) -> Outcome {
        let arguments = self.place.arguments(arguments);
        Outcome::of(everbyte().args(arguments).uid(OTHER_USER).gid(OTHER_USER))
    }
}

const REFUSED: [&str; 3] = ["rights of user 65534", "ermission denied", "--trust-pool"];

#[test]
fn backing_of_a_users_pool_needs_the_users_rights() {
    if !is_root("give a pool to another user") {
        return;
    }
    let shared = Shared::new();
    let place = &shared.place;
    shared.give();
    place.run(&format!("{CREATE} FOLDER/secret")).failed(1, &REFUSED);
    // A link, and a link of /proc, lead nowhere else.
    std::os::unix::fs::symlink(&shared.secret, place.folder.path().join("link")).unwrap();
    place.run(&format!("{CREATE} FOLDER/link")).failed(1, &REFUSED);
    let created = place.run(&format!("{CREATE} FOLDER/own"));
    assert_eq!(created.status, 0, "{created:?}");
    // The server opens it with these rights, too.
    let server = place.serve("POOL", "");
    let mut client = place.client("c");
    client.write(0, &[7; 4096], Fua::No).unwrap();
    client.flush().unwrap();
    client.disconnect().unwrap();
    let control = place.pool.with_file_name("pool.sock");
    chown(control, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
    let create = "volume create POOL d --kind cache --scm 1M --dram 256K --backing FOLDER/secret";
    shared.run_as_other(create).failed(1, &REFUSED);
    shared.run_as_other("volume attach POOL c --backing FOLDER/secret").failed(1, &REFUSED);
    let detached = shared.run_as_other("volume detach POOL c");
    assert_eq!(detached.status, 0, "{detached:?}");
    assert_eq!(fs::read(&shared.own).unwrap()[..4096], [7; 4096]);
    server.stop();
    shared.assert_untouched();
    let created = place.run(&format!("{CREATE} FOLDER/secret --trust-pool"));
    assert_eq!(created.status, 0, "{created:?}");
}

/// The other user can write a header with all numbers of root's file. The header does not grant a
/// right to the file.
#[test]
fn recorded_backing_devices_are_no_grant() {
    if !is_root("give a pool to another user") {
        return;
    }
    let shared = Shared::new();
    let place = &shared.place;
    place.run(&format!("{CREATE} FOLDER/secret")).good();
    let server = place.serve("POOL", "");
    let mut client = place.client("c");
    client.write(0, &[7; 4096], Fua::No).unwrap();
    client.flush().unwrap();
    client.disconnect().unwrap();
    server.kill();
    shared.give();
    for command in ["volume detach POOL c", "volume resize POOL c --scm 2M"] {
        place.run(command).failed(1, &REFUSED[..2]);
    }
    let server = place.serve("POOL", "");
    let listed = place.run("volume list POOL --json").json();
    assert_eq!(listed["volumes"][0]["cache"]["state"], "backing refused", "{listed}");
    let control = place.pool.with_file_name("pool.sock");
    chown(control, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
    shared.run_as_other("volume detach POOL c").failed(1, &REFUSED[..2]);
    server.stop();
    shared.assert_untouched();
    // More users than one have no rights in common.
    chown(&place.pool, Some(0), Some(0)).unwrap();
    for (mode, words) in [(0o660, "group 0 can write"), (0o606, "every user can write")] {
        fs::set_permissions(&place.pool, Permissions::from_mode(mode)).unwrap();
        place.run("volume detach POOL c").failed(1, &[words, "--trust-pool"]);
    }
    shared.assert_untouched();
    let detached = place.run("volume detach POOL c --trust-pool");
    assert_eq!(detached.status, 0, "{detached:?}");
    assert_eq!(fs::read(&shared.secret).unwrap()[..4096], [7; 4096]);
}

/// The server trusts the pool, and the client asks with the rights of the client.
#[test]
fn requests_are_judged_by_the_clients_rights() {
    if !is_root("give a pool to another user") {
        return;
    }
    let shared = Shared::new();
    let place = &shared.place;
    shared.give();
    let server = place.serve("POOL", "--trust-pool");
    let control = place.pool.with_file_name("pool.sock");
    chown(control, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
    shared.run_as_other(&format!("{CREATE} FOLDER/secret")).failed(1, &REFUSED[..2]);
    let created = place.run(&format!("{CREATE} FOLDER/secret"));
    assert_eq!(created.status, 0, "{created:?}");
    server.stop();
    shared.assert_untouched();
}

#[test]
fn records_of_a_users_pool_need_the_users_rights() {
    if !is_root("give a pool to another user") {
        return;
    }
    let shared = Shared::new();
    let place = &shared.place;
    place.run("volume create POOL disk --size 4M").good();
    shared.give();
    let serve = "serve POOL --nbd unix:FOLDER/nbd.sock --record FOLDER/";
    place.run(&format!("{serve}trace.csv")).failed(1, &["rights of user 65534"]);
    place.run(&format!("{serve}secret --force")).failed(1, &["rights of user 65534"]);
    assert!(!place.folder.path().join("trace.csv").exists());
    shared.assert_untouched();
    let theirs = place.folder.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    chown(&theirs, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
    std::os::unix::fs::symlink(&shared.secret, theirs.join("link")).unwrap();
    place.run(&format!("{serve}theirs/link --force")).failed(1, &["rights of user 65534"]);
    shared.assert_untouched();
    place.serve("POOL", "--record FOLDER/theirs/trace.csv").stop();
    assert_eq!(fs::metadata(theirs.join("trace.csv")).unwrap().uid(), OTHER_USER);
}

#[test]
fn run_refuses_foreign_pool() {
    if !is_root("give a pool to another user") {
        return;
    }
    let place = Place::empty();
    place.run("pool create POOL --size 32M").good();
    place.run("volume create POOL s --kind swap --size 8M").good();
    let run = |options: &str| {
        let line = format!("run --dram 1M {options} --pool POOL -- /no/such");
        let mut command = everbyte();
        // Nothing is loaded: the pool is judged before the program starts.
        command.env("EVERBYTE_PRELOAD", &place.pool);
        let program = place.arguments(&line.replace("/no/such", "/bin/true"));
        Outcome::of(command.args(program))
    };
    let refused = ["others can change the pool", "memory of the program", "--trust-pool"];
    for (uid, mode, words) in
        [(OTHER_USER, 0o600, "user 65534 owns"), (0, 0o620, "group 0"), (0, 0o602, "every user")]
    {
        chown(&place.pool, Some(uid), None).unwrap();
        fs::set_permissions(&place.pool, Permissions::from_mode(mode)).unwrap();
        run("").failed(1, &[&refused[..], &[words]].concat());
        let server = place.serve("POOL", "");
        run("").failed(1, &[&refused[..], &[words]].concat());
        let trusted = run("--trust-pool");
        assert!(!trusted.err.contains("others can change"), "{trusted:?}");
        server.stop();
    }
}

#[test]
fn mount_of_user_image_has_no_power() {
    if !is_root("mount") {
        return;
    }
    let shared = Shared::new();
    let place = &shared.place;
    let image = place.folder.path().join("image");
    File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let Some(device) = Loop::over(&image) else {
        everbyte_testkit::not_run("there are no loop devices here");
        return;
    };
    let dir = place.folder.path().join("mnt");
    fs::create_dir(&dir).unwrap();
    let pool = device.path();
    assert_eq!(place.run(&format!("pool create {pool} --force")).status, 0);
    place.run(&format!("volume create {pool} f --kind fs --size 32M")).good();
    let options = || {
        let line = place.arguments(&format!("mount {pool}/f FOLDER/mnt"));
        let mount = Running::start_with(everbyte().args(line), Stdio::null());
        assert!(mount.ready.starts_with("ready: "), "{:?}", mount.ready);
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let found = mounts.lines().find(|line| line.contains(dir.to_str().unwrap())).unwrap();
        let found = ["nosuid", "nodev"].map(|option| found.contains(option));
        mount.stop();
        found
    };
    assert_eq!(options(), [false, false], "all of it is root's");
    chown(&image, Some(OTHER_USER), None).unwrap();
    assert_eq!(options(), [true, true]);
    chown(&image, Some(0), None).unwrap();
    fs::set_permissions(&image, Permissions::from_mode(0o666)).unwrap();
    assert_eq!(options(), [true, true]);
}

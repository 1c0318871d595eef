//! Making pools: the command first checks for room, and leaves the files of others alone.

use std::fs;
use std::os::unix::fs::{OpenOptionsExt, symlink};

use everbyte_testkit::not_run;

use crate::{Outcome, Place, everbyte};

/// Runs a shell script in its own mount namespace. Its mounts end with it in every case; `None` if
/// the system does not allow a namespace.
fn apart(place: &Place, script: &str) -> Option<Outcome> {
    let mut unshare = std::process::Command::new("unshare");
    unshare.args(["--mount", "--map-root-user", "--propagation", "private"]);
    let mut probe = std::process::Command::new(unshare.get_program());
    let allowed = probe.args(unshare.get_args()).arg("true").output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        not_run("no mount namespace is to be had here");
        return None;
    }
    unshare.args(["sh", "-euc", script, "sh", everbyte().get_program().to_str()?]);
    Some(Outcome::of(unshare.current_dir(place.folder.path())))
}

#[test]
fn oversized_pool_allocates_nothing() {
    let place = Place::empty();
    let script = "status=0; mkdir small; mount -t tmpfs -o size=8M none small
        \"$1\" pool create small/pool --size 500G || status=$?
        test -z \"$(ls -A small)\" || echo left
        exit $status";
    if let Some(outcome) = apart(&place, script) {
        outcome.failed(1, &["small/pool", "512000 MiB", "8 MiB", "file system"]);
    }
}

#[test]
fn pool_beyond_memory_is_refused() {
    let place = Place::empty();
    // The test does not fill memory: it reports less free memory to the command than the system
    // has.
    let script = "status=0; mkdir small; mount -t tmpfs -o size=64M none small
        printf 'MemAvailable: 5120 kB\\nSwapFree: 1024 kB\\n' >meminfo
        mount --bind meminfo /proc/meminfo
        \"$1\" pool create small/fits --size 4M >&2 || exit 9
        rm small/fits
        \"$1\" pool create small/pool --size 16M || status=$?
        test -z \"$(ls -A small)\" || echo left
        exit $status";
    if let Some(outcome) = apart(&place, script) {
        outcome.failed(1, &["small/pool", "16 MiB", "6 MiB", "memory"]);
    }
}

#[test]
fn growth_beyond_memory_is_refused() {
    let place = Place::empty();
    let script = "status=0; mkdir small; mount -t tmpfs -o size=64M none small
        \"$1\" pool create small/pool --size 4M >&2
        printf 'MemAvailable: 5120 kB\\nSwapFree: 1024 kB\\n' >meminfo
        mount --bind meminfo /proc/meminfo
        \"$1\" pool grow small/pool --size 16M || status=$?
        test $(stat -c %s small/pool) = 4194304 || echo grown
        exit $status";
    if let Some(outcome) = apart(&place, script) {
        outcome.failed(1, &["small/pool", "12 MiB", "6 MiB", "memory"]);
    }
}

#[test]
fn dangling_link_is_refused_and_kept() {
    let place = Place::empty();
    symlink("nowhere", &place.pool).unwrap();
    for more in ["", "--force"] {
        let outcome = place.run(&format!("pool create POOL --size 1M {more}"));
        outcome.failed(1, &[place.pool.to_str().unwrap(), "link"]);
        assert_eq!(fs::read_link(&place.pool).unwrap().to_str(), Some("nowhere"));
        assert!(!place.folder.path().join("nowhere").exists());
    }
}

#[test]
fn failed_forced_creation_keeps_pool() {
    let place = Place::with_disk();
    let before = place.bytes();
    let create = "pool create POOL --size 16M --volumes-max 65536 --force";
    place.run(create).failed(1, &["65536 volumes", "needs at least"]);
    assert!(place.bytes() == before);
}

/// If several processes make the same pool concurrently, one succeeds, and the losers do not remove
/// its pool.
#[test]
fn creation_race_has_one_winner() {
    for _ in 0..10 {
        let place = Place::empty();
        let racers: Vec<_> = (0..4)
            .map(|_| {
                let mut command = everbyte();
                command.args(place.arguments("pool create POOL --size 1M"));
                command.stdout(std::process::Stdio::null());
                command.stderr(std::process::Stdio::null()).spawn().unwrap()
            })
            .collect();
        let won = racers.into_iter().map(|mut child| child.wait().unwrap().success());
        assert_eq!(won.filter(|won| *won).count(), 1);
        assert_eq!(place.info()["size_bytes"], 1 << 20);
    }
}

/// A loop device over a file, let go when dropped.
struct Loop(String);

impl Loop {
    fn over(image: &std::path::Path) -> Option<Self> {
        let made =
            std::process::Command::new("losetup").args(["--find", "--show"]).arg(image).output();
        let made = made.ok().filter(|output| output.status.success())?;
        Some(Self(String::from_utf8(made.stdout).ok()?.trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").args(["-d", &self.0]).status();
    }
}

#[test]
fn force_spares_devices_in_use() {
    let place = Place::empty();
    let image = place.folder.path().join("image");
    fs::File::create(&image).unwrap().set_len(8 << 20).unwrap();
    let Some(device) = Loop::over(&image) else {
        not_run("there are no loop devices here");
        return;
    };
    // A mount claims its device in the same way.
    let exclusively = rustix::fs::OFlags::EXCL.bits().cast_signed();
    let claimed = fs::OpenOptions::new().read(true).custom_flags(exclusively).open(&device.0);
    let create = format!("pool create {} --force", device.0);
    place.run(&create).failed(1, &["in use by the system", &device.0]);
    drop(claimed.unwrap());
    assert!(fs::read(&image).unwrap().iter().all(|byte| *byte == 0));
    place.run(&create).good();
}

/// A folder on a disk behind the page cache, if there is one.
fn disk_folder() -> Option<tempfile::TempDir> {
    let is_memory = |folder: &tempfile::TempDir| {
        let magic = rustix::fs::statfs(folder.path()).unwrap().f_type;
        // tmpfs and ramfs.
        [0x0102_1994, 0x8584_58f6].contains(&magic)
    };
    let places = [env!("CARGO_TARGET_TMPDIR"), "/var/tmp", "."];
    let folders = places.iter().filter_map(|place| tempfile::tempdir_in(place).ok());
    folders.into_iter().find(|folder| !is_memory(folder))
}

#[test]
fn pool_on_a_disk_has_a_warning() {
    let Some(folder) = disk_folder() else {
        not_run("no folder is on a disk");
        return;
    };
    let create = |arguments: &str| {
        let mut command = everbyte();
        command.current_dir(folder.path()).args(["pool", "create"]);
        Outcome::of(command.args(arguments.split(' ')))
    };
    let made = create("p --size 4M");
    assert_eq!(made.status, 0, "{made:?}");
    assert_eq!(made.out, "created pool p of 4 MiB\n");
    let words = ["warning: p: ", "page cache", "even if no client flushes", "ordinary-disk.md"];
    assert!(words.iter().all(|word| made.err.contains(word)), "{made:?}");
    let made = create("q --size 4M --json").json();
    assert_eq!(made["medium"], "file");
    assert!(made["warning"].as_str().unwrap().contains("page cache"), "{made}");
}

#[test]
fn pool_on_a_loop_device_warns_by_its_file() {
    let memory = tempfile::tempdir_in("/dev/shm").ok();
    for (folder, warns) in [(disk_folder(), true), (memory, false)] {
        let Some(folder) = folder else { continue };
        let image = folder.path().join("image");
        fs::File::create(&image).unwrap().set_len(8 << 20).unwrap();
        let Some(device) = Loop::over(&image) else {
            not_run("there are no loop devices here");
            return;
        };
        let mut command = everbyte();
        let made = Outcome::of(command.args(["pool", "create", &device.0, "--json"])).json();
        assert_eq!(
            (&made["medium"], made["warning"].is_string()),
            (&"file".into(), warns),
            "{made}"
        );
    }
}

#[test]
fn pool_in_memory_has_no_warning() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
    let mut command = everbyte();
    command.current_dir(folder.path()).args(["pool", "create", "p", "--size", "4M", "--json"]);
    let made = Outcome::of(&mut command).json();
    assert_eq!((&made["medium"], &made["warning"]), (&"tmpfs".into(), &serde_json::Value::Null));
}

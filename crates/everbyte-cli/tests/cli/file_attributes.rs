//! Attributes of files under commands: kept, shown and obeyed. Times of ext4's whole range, flags.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

use super::Place;
use super::files::with_files;
use super::mount::Files;

fn set_times(path: &Path, (tv_sec, tv_nsec): (i64, i64)) {
    let time = Timespec { tv_sec, tv_nsec };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::empty()).unwrap();
}

fn modified(path: &Path) -> (i64, i64) {
    let found = fs::metadata(path).unwrap();
    (found.mtime(), found.mtime_nsec())
}

/// A folder in a file system with times of 64 bits.
fn folder_in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

fn put(place: &Place, from: &Path) -> super::Outcome {
    place.run(&format!("fs put -p {} POOL/files:/f", from.display()))
}

#[test]
fn copied_times_keep_the_range_of_ext4() {
    let (place, folder) = (with_files(), folder_in_memory());
    let from = folder.path().join("f");
    fs::write(&from, b"text").unwrap();
    for (time, shown) in [
        ((-(1 << 31), 0), "1901-12-13 20:45:52"),
        ((-315_619_200, 500_000_000), "1960-01-01 00:00:00"),
        ((-1, 999_999_999), "1969-12-31 23:59:59"),
        (((1 << 34) - (1 << 31) - 1, 999_999_999), "2446-05-10 22:38:55"),
    ] {
        set_times(&from, time);
        put(&place, &from).good();
        let text = place.run("fs stat POOL/files:/f").good();
        assert!(text.contains(&format!("modified:    {shown}")), "{text}");
        let json = place.run("fs stat --json POOL/files:/f").json();
        let ns = i128::from(time.0) * 1_000_000_000 + i128::from(time.1);
        assert_eq!(json["modified_ns"].to_string(), ns.to_string());
        let listed = place.run("fs ls --json POOL/files").json();
        assert_eq!(listed["files"][0]["modified_ns"], json["modified_ns"]);
        let to = folder.path().join("back");
        place.run(&format!("fs get -p POOL/files:/f {}", to.display())).good();
        assert_eq!(modified(&to), time);
        fs::remove_file(to).unwrap();
    }
}

#[test]
fn copied_time_outside_of_the_range_is_an_error() {
    let (place, folder) = (with_files(), folder_in_memory());
    let from = folder.path().join("f");
    fs::write(&from, b"text").unwrap();
    for seconds in [-(1 << 31) - 1, (1 << 34) - (1 << 31), 1 << 40] {
        set_times(&from, (seconds, 0));
        let refused = put(&place, &from);
        assert!(refused.status == 1 && refused.err.contains("outside of the range"), "{refused:?}");
        assert_eq!(place.run("fs ls POOL/files").good(), "", "no file is left");
    }
}

#[test]
fn commands_obey_and_show_flags() {
    if !everbyte_testkit::is_root("set the immutable flag") {
        return;
    }
    let files = Files::new();
    let mount = files.mount();
    let (path, directory) = (files.dir.join("f"), files.dir.join("d"));
    fs::write(&path, b"text").unwrap();
    fs::create_dir(&directory).unwrap();
    let chattr = |change: &str| {
        let done = Command::new("chattr").arg(change).args([&path, &directory]).status();
        assert!(done.unwrap().success(), "{change}");
    };
    chattr("+id");
    let place = &files.place;
    let from = place.folder.path().join("from");
    fs::write(&from, b"other").unwrap();
    for to in ["POOL/files:/f", "POOL/files:/d/new"] {
        let refused = place.run(&format!("fs put {} {to}", from.display()));
        assert!(refused.status == 1 && refused.err.contains("is immutable"), "{refused:?}");
    }
    let text = place.run("fs stat POOL/files:/f").good();
    assert!(text.contains("flags:       immutable, no dump"), "{text}");
    let json = place.run("fs stat --json POOL/files:/f").json();
    assert_eq!(json["flags"], serde_json::json!(["immutable", "no-dump"]));
    assert_eq!(fs::read(&path).unwrap(), b"text");
    assert_eq!(place.run("fs ls POOL/files").good(), "d\nf\n", "nothing is left behind");
    chattr("-id");
    place.run(&format!("fs put {} POOL/files:/f", from.display())).good();
    assert_eq!(fs::read(&path).unwrap(), b"other");
    assert_eq!(place.run("fs stat --json POOL/files:/f").json()["flags"], serde_json::json!([]));
    drop(mount);
}

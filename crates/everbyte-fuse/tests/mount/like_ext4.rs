//! Behavior of files on ext4 that programs rely on: free space, times, flags.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

use crate::Mounted;

/// Blocks that the kernel reports as free.
fn free(dir: &Path) -> u64 {
    rustix::fs::statvfs(dir).unwrap().f_bavail
}

#[test]
fn statfs_counts_removed_file_as_free() {
    let mounted = Mounted::new();
    let (dir, path) = (mounted.path(), mounted.path().join("f"));
    fs::write(&path, b"").unwrap();
    let before = free(dir);
    for round in 0..50 {
        let file = File::create(&path).unwrap();
        let mode = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&file, mode, 0, 4 << 20).unwrap();
        drop(file);
        assert!(free(dir) <= before - 1024);
        if round % 2 == 0 {
            fs::remove_file(&path).unwrap();
        } else {
            fs::write(dir.join("other"), b"").unwrap();
            fs::rename(dir.join("other"), &path).unwrap();
        }
        assert!(free(dir) + 4 >= before, "{} of {before} in round {round}", free(dir));
    }
}

#[test]
fn statfs_free_space_is_allocatable() {
    let mounted = Mounted::new();
    for _ in 0..2 {
        let (path, free) = (mounted.path().join("f"), free(mounted.path()));
        let mode = rustix::fs::FallocateFlags::empty();
        let file = File::create(&path).unwrap();
        rustix::fs::fallocate(&file, mode, 0, free * 4096).unwrap();
        fs::remove_file(&path).unwrap();
    }
}

/// Sets both times of a file to so many seconds and nanoseconds.
fn set_times(path: &Path, (tv_sec, tv_nsec): (i64, i64)) -> rustix::io::Result<()> {
    let time = Timespec { tv_sec, tv_nsec };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::empty())
}

fn times(path: &Path) -> [(i64, i64); 2] {
    let found = fs::metadata(path).unwrap();
    [(found.atime(), found.atime_nsec()), (found.mtime(), found.mtime_nsec())]
}

#[test]
fn times_before_1970_are_kept_with_their_fractions() {
    let mut mounted = Mounted::new();
    let set = [
        (-(1 << 31), 0),
        (-(1 << 31), 1),
        (-315_619_200, 500_000_000),
        (-1, 0),
        (-1, 999_999_999),
        (0, 0),
        (5, 7),
        (i64::from(u32::MAX), 1),
        ((1 << 34) - (1 << 31) - 1, 999_999_999),
    ];
    let paths = |mounted: &Mounted| {
        let dir = mounted.path().to_owned();
        set.iter().zip(0..).map(move |(&time, number)| (dir.join(number.to_string()), time))
    };
    for (path, time) in paths(&mounted) {
        fs::write(&path, b"text").unwrap();
        set_times(&path, time).unwrap();
        assert_eq!(times(&path), [time; 2]);
    }
    mounted.unmount();
    mounted.mount();
    for (path, time) in paths(&mounted) {
        assert_eq!(times(&path), [time; 2], "after mounting again");
    }
    mounted.unmount();
}

#[test]
fn time_out_of_range_fails() {
    let mounted = Mounted::new();
    let path = mounted.path().join("f");
    fs::write(&path, b"text").unwrap();
    set_times(&path, (-7, 3)).unwrap();
    for time in [
        (-(1 << 31) - 1, 999_999_999),
        ((1 << 34) - (1 << 31), 0),
        (i64::MIN + 1, 0),
        (i64::MAX, 0),
        (1 << 62, 5),
    ] {
        assert_eq!(set_times(&path, time), Err(rustix::io::Errno::INVAL), "{time:?}");
        assert_eq!(times(&path), [(-7, 3); 2]);
    }
}

//! Behavior of files on ext4 that programs rely on: free space, times, flags.

use std::fs::{self, File};
use std::path::Path;

use crate::Mounted;

/// Blocks that the kernel reports as free.
fn free(dir: &Path) -> u64 {
    rustix::fs::statvfs(dir).unwrap().f_bavail
}

#[test]
fn removed_file_is_reported_free_at_once() {
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
fn reported_free_space_can_be_allocated() {
    let mounted = Mounted::new();
    for _ in 0..2 {
        let (path, free) = (mounted.path().join("f"), free(mounted.path()));
        let mode = rustix::fs::FallocateFlags::empty();
        let file = File::create(&path).unwrap();
        rustix::fs::fallocate(&file, mode, 0, free * 4096).unwrap();
        fs::remove_file(&path).unwrap();
    }
}

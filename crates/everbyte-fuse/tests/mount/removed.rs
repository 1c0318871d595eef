//! Removed files that a descriptor still refers to.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;

use rustix::fs::{Mode, OFlags, fstat, open};

use crate::Mounted;

#[test]
fn removed_file_by_path_descriptor_is_readable() {
    let mounted = Mounted::new();
    let path = mounted.path().join("f");
    fs::write(&path, b"abc").unwrap();
    let descriptor = open(&path, OFlags::PATH, Mode::empty()).unwrap();
    fs::remove_file(&path).unwrap();

    assert_eq!(fstat(&descriptor).unwrap().st_nlink, 0);
    let mut text = String::new();
    let by_descriptor = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    File::open(by_descriptor).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "abc");
}

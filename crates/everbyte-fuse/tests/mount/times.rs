//! Times of files: of mapped bytes, and of reads of cached bytes.

use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use everbyte_fs::AccessTimes;
use everbyte_media::{Mapped, MediaOptions, Medium, PoolOffset};
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, futimens};

use super::Mounted;

/// A pause longer than the step of each clock.
const PAUSE: Duration = Duration::from_millis(20);

fn set_modified(file: &File, seconds: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    file.set_times(FileTimes::new().set_accessed(time).set_modified(time)).unwrap();
}

fn modified(path: &Path) -> (i64, i64) {
    let seen = fs::metadata(path).unwrap();
    (seen.mtime(), seen.mtime_nsec())
}

/// A file with bytes read by the kernel, and one with bytes written by a program.
fn two_files(mounted: &Mounted) -> [std::path::PathBuf; 2] {
    let [sparse, written] = ["sparse", "written"].map(|name| mounted.path().join(name));
    File::create(&sparse).unwrap().set_len(8192).unwrap();
    fs::write(&written, [7; 8192]).unwrap();
    [sparse, written]
}

#[test]
fn set_time_outlasts_stores_before_it() {
    let mounted = Mounted::new();
    for path in two_files(&mounted) {
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mapped = Mapped::from_file(&file, &MediaOptions::new()).unwrap();
        mapped.store_word(PoolOffset(0), 1);
        set_modified(&file, 1000);
        drop((mapped, file));
        assert_eq!(modified(&path), (1000, 0), "{}", path.display());
        assert_eq!(fs::read(&path).unwrap()[..8], 1_u64.to_ne_bytes());
    }
}

/// The mapping outlives its descriptor, and the time is set through another one.
#[test]
fn set_time_outlasts_stores_of_closed_descriptor() {
    let mounted = Mounted::new();
    for path in two_files(&mounted) {
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mapped = Mapped::from_file(&file, &MediaOptions::new()).unwrap();
        drop(file);
        mapped.store_word(PoolOffset(0), 1);
        set_modified(&OpenOptions::new().write(true).open(&path).unwrap(), 1000);
        drop(mapped);
        assert_eq!(modified(&path), (1000, 0), "{}", path.display());
        assert_eq!(fs::read(&path).unwrap()[..8], 1_u64.to_ne_bytes());
    }
}

#[test]
fn store_after_a_set_time_changes_it() {
    let mounted = Mounted::new();
    for path in two_files(&mounted) {
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mapped = Mapped::from_file(&file, &MediaOptions::new()).unwrap();
        mapped.store_word(PoolOffset(0), 1);
        set_modified(&file, 1000);
        mapped.store_word(PoolOffset(0), 2);
        drop((mapped, file));
        assert!(modified(&path).0 > 1000, "{}", path.display());
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        set_modified(&file, 2000);
        file.write_all_at(b"x", 9).unwrap();
        assert!(modified(&path).0 > 2000, "{}", path.display());
    }
}

#[test]
fn utime_now_outlasts_earlier_stores() {
    let mounted = Mounted::new();
    for path in two_files(&mounted) {
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mapped = Mapped::from_file(&file, &MediaOptions::new()).unwrap();
        mapped.store_word(PoolOffset(4096), 1);
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        futimens(&file, &Timestamps { last_access: now, last_modification: now }).unwrap();
        let touched = modified(&path);
        std::thread::sleep(PAUSE);
        drop((mapped, file));
        assert_eq!(modified(&path), touched, "{}", path.display());
    }
}

/// The number of `reads` that change the last access time of `path`.
fn counted(path: &Path, reads: &mut [&mut dyn FnMut()]) -> usize {
    let seen = || fs::symlink_metadata(path).unwrap().accessed().unwrap();
    let mut changes = 0;
    for read in reads {
        let before = seen();
        std::thread::sleep(PAUSE);
        read();
        changes += usize::from(seen() > before);
    }
    changes
}

fn strict() -> Mounted {
    let mut mounted = Mounted::new();
    mounted.unmount();
    mounted.access_times = AccessTimes::Strict;
    mounted.mount();
    mounted
}

#[test]
fn strictatime_counts_cached_reads() {
    let mounted = strict();
    let path = mounted.path().join("f");
    fs::write(&path, [7; 9000]).unwrap();
    let read = || assert_eq!(fs::read(&path).unwrap(), [7; 9000]);
    let copy = || {
        let (from, to) = (File::open(&path).unwrap(), mounted.path().join("to"));
        let to = File::create(to).unwrap();
        assert_eq!(rustix::fs::copy_file_range(&from, None, &to, None, 9).unwrap(), 9);
    };
    let both = || {
        let mut file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        file.read_exact(&mut [0; 9]).unwrap();
    };
    let (mut first, mut second) = (read, read);
    let mut all: [&mut dyn FnMut(); 4] = [&mut first, &mut second, &mut { copy }, &mut { both }];
    assert_eq!(counted(&path, &mut all), 4);
}

#[test]
fn strict_times_count_looks_at_links() {
    let mounted = strict();
    let (path, link) = (mounted.path().join("f"), mounted.path().join("l"));
    fs::write(&path, "text").unwrap();
    symlink("f", &link).unwrap();
    let mut look = || drop(fs::read_link(&link).unwrap());
    let mut follow = || assert_eq!(fs::read(&link).unwrap(), b"text");
    assert_eq!(counted(&link, &mut [&mut look]), 1);
    assert_eq!(counted(&link, &mut [&mut look]), 1, "the target is not cached");
    assert_eq!(counted(&link, &mut [&mut follow]), 1);
}

/// True for a kernel that lets programs map a file without cached bytes.
fn maps_uncached() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(6))
}

#[test]
fn strict_times_count_each_read_of_an_open_file() {
    let mounted = strict();
    let path = mounted.path().join("f");
    fs::write(&path, [7; 9000]).unwrap();
    if !maps_uncached() {
        return everbyte_testkit::not_run("the kernel keeps bytes of files that programs map");
    }
    let file = File::open(&path).unwrap();
    let mut read = || file.read_exact_at(&mut [0; 9], 0).unwrap();
    assert_eq!(counted(&path, &mut [&mut read]), 1);
    assert_eq!(counted(&path, &mut [&mut read]), 1);
    // Such a file can still be mapped, shows stores of others, and can be executed.
    let mapping = "import mmap, os, sys; f = os.open(sys.argv[1], os.O_RDONLY); \
        m = mmap.mmap(f, 0, mmap.MAP_SHARED, mmap.PROT_READ); assert m[8999] == 7; \
        g = os.open(sys.argv[1], os.O_RDWR); w = mmap.mmap(g, 0); w[0] = 9; \
        assert os.pread(f, 1, 0) == b'\\x09' and m[0] == 9";
    let mut python = Command::new("python3");
    assert!(python.args(["-c", mapping]).arg(&path).status().unwrap().success());
    let program = mounted.path().join("true");
    fs::copy("/bin/true", &program).unwrap();
    assert!(Command::new(&program).status().unwrap().success());
}

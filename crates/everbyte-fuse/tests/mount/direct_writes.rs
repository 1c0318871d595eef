//! New files opened only for writing, whose writes pass the kernel's pages.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use everbyte_media::{Mapped, MediaOptions, Medium, PoolOffset};

use super::Mounted;

const PAGE: u64 = 4096;
const WORDS: usize = 4096;

fn new_file(mounted: &Mounted) -> File {
    OpenOptions::new().write(true).create_new(true).open(mounted.path().join("f")).unwrap()
}

fn opened(mounted: &Mounted) -> File {
    OpenOptions::new().read(true).write(true).open(mounted.path().join("f")).unwrap()
}

fn word(file: &File, at: u64) -> u64 {
    let mut word = [0; 8];
    file.read_exact_at(&mut word, at).unwrap();
    u64::from_le_bytes(word)
}

/// Reads during a write bring pages with older bytes, which must not stay.
#[test]
fn write_to_new_file_is_seen_by_concurrent_readers() {
    let mounted = Mounted::new();
    let writer = new_file(&mounted);
    let data = |value: u64| value.to_le_bytes().repeat(WORDS);
    writer.write_all_at(&data(0), 0).unwrap();
    let (written, is_done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (mounted, written, is_done) = (&mounted, &written, &is_done);
            scope.spawn(move || {
                let reader = File::open(mounted.path().join("f")).unwrap();
                for page in (0..8).cycle().skip(thread) {
                    if is_done.load(Ordering::Relaxed) {
                        return;
                    }
                    let least = written.load(Ordering::SeqCst);
                    let found = word(&reader, page * PAGE);
                    assert!(found >= least, "page {page}: {found} after {least}");
                }
            });
        }
        for value in 1..1500 {
            writer.write_all_at(&data(value), 0).unwrap();
            written.store(value, Ordering::SeqCst);
        }
        is_done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn write_to_new_file_and_mapped_store_both_stay() {
    let mounted = Mounted::new();
    let writer = new_file(&mounted);
    writer.write_all_at(&[0; 8192], 0).unwrap();
    let mapped = Mapped::from_file(&opened(&mounted), &MediaOptions::new()).unwrap();
    for value in 1..50 {
        mapped.store_word(PoolOffset(PAGE + 8), value);
        writer.write_all_at(&value.to_le_bytes(), PAGE + 16).unwrap();
        assert_eq!([8, 16].map(|at| mapped.load_word(PoolOffset(PAGE + at))), [value; 2]);
        let reader = opened(&mounted);
        assert_eq!([8, 16].map(|at| word(&reader, PAGE + at)), [value; 2]);
    }
}

#[test]
fn size_and_time_of_new_file_are_current() {
    let mounted = Mounted::new();
    let writer = new_file(&mounted);
    let path = mounted.path().join("f");
    for size in [1, 4095, 4097, 70_000] {
        writer.write_all_at(b"x", size - 1).unwrap();
        let found = fs::metadata(&path).unwrap();
        assert_eq!(found.size(), size);
        assert!(found.modified().unwrap() > SystemTime::now() - Duration::from_secs(60));
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(size);
        writer.set_modified(time).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), time);
        assert_eq!(fs::read(&path).unwrap().len() as u64, size);
    }
    drop(writer);
    let attr = fs::metadata(&path).unwrap();
    assert_eq!((attr.mtime(), attr.size()), (70_000, 70_000));
    assert!((24..=40).contains(&attr.blocks()), "three blocks of data: {}", attr.blocks());
}

/// The mapping outlives its descriptor.
#[test]
fn time_set_after_mapped_store_stays() {
    let mounted = Mounted::new();
    let writer = new_file(&mounted);
    writer.write_all_at(&[0; 8192], 0).unwrap();
    let mapped = Mapped::from_file(&opened(&mounted), &MediaOptions::new()).unwrap();
    mapped.store_word(PoolOffset(0), 7);
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(5);
    writer.set_modified(time).unwrap();
    drop(mapped);
    drop(writer);
    let path = mounted.path().join("f");
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), time);
    assert_eq!(word(&opened(&mounted), 0), 7);
}

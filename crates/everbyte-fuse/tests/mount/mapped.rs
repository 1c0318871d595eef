//! Stores of programs to mapped files. The kernel writes them at any time, or on request.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;

use everbyte_media::{Mapped, MediaOptions, Medium, PoolOffset};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::Mounted;

const PAGE: u64 = 4096;

/// A mapping of all of `file`.
fn map(file: &File) -> Mapped {
    Mapped::from_file(file, &MediaOptions::new()).unwrap()
}

/// A file of zeroes, without space.
fn sparse(mounted: &Mounted, name: &str, len: u64) -> File {
    let path = mounted.path().join(name);
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
    file.set_len(len).unwrap();
    file
}

/// Takes all space except about 600 KiB, by the returned file.
fn fill(mounted: &Mounted) -> File {
    let mut filler = File::create(mounted.path().join("filler")).unwrap();
    for len in [1 << 20, 65_536, 4096] {
        while filler.write_all(&vec![3; len]).is_ok() {}
    }
    let len = filler.metadata().unwrap().len() / PAGE * PAGE;
    filler.set_len(len - (600 << 10)).unwrap();
    filler.sync_all().unwrap();
    filler
}

/// The kernel writes 1 MiB by one request, and its second half has no space.
#[test]
fn mapped_stores_without_space_fail_their_sync() {
    let mounted = Mounted::new();
    let file = sparse(&mounted, "f", 4 << 20);
    let filler = fill(&mounted);
    let mapped = map(&file);
    let pages = (512 << 10) / PAGE..(1536 << 10) / PAGE;
    let store = || pages.clone().for_each(|page| mapped.store_word(PoolOffset(page * PAGE), page));
    store();
    let refused = file.sync_all().unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC), "{refused}");
    filler.set_len(0).unwrap();
    filler.sync_all().unwrap();
    store();
    file.sync_all().unwrap();
    drop((mapped, file));
    let read = fs::read(mounted.path().join("f")).unwrap();
    for page in pages {
        let at = usize::try_from(page * PAGE).unwrap();
        assert_eq!(read[at..at + 8], page.to_le_bytes(), "page {page}");
    }
}

#[test]
fn mapped_stores_are_data_for_seek() {
    const MIDDLE: u64 = 4 << 20;
    const END: u64 = 8 << 20;
    let mounted = Mounted::new();
    let file = sparse(&mounted, "f", END);
    let mapped = map(&file);
    let store = |at| mapped.store_word(PoolOffset(at), 1);
    let data = |from| seek(&file, SeekFrom::Data(from));
    let hole = |from| seek(&file, SeekFrom::Hole(from));
    assert_eq!((data(0), hole(0)), (Err(Errno::NXIO), Ok(0)));
    store(MIDDLE);
    assert_eq!(data(0), Ok(MIDDLE));
    assert_eq!((hole(0), hole(MIDDLE)), (Ok(0), Ok(MIDDLE + PAGE)));
    store(MIDDLE + PAGE);
    assert_eq!(hole(MIDDLE), Ok(MIDDLE + 2 * PAGE));
    store(0);
    assert_eq!((hole(0), data(PAGE)), (Ok(PAGE), Ok(MIDDLE)));
    assert_eq!(data(MIDDLE + 2 * PAGE), Err(Errno::NXIO));
    store(END - PAGE);
    assert_eq!(data(MIDDLE + 2 * PAGE), Ok(END - PAGE));
    assert_eq!(hole(END - PAGE), Ok(END), "the end is one");
}

/// Bytes stored behind a hole are written before the range is reported as a hole.
#[test]
fn hole_behind_a_mapped_store_is_found() {
    let mounted = Mounted::new();
    let file = sparse(&mounted, "f", 8 * PAGE);
    for page in [0, 2] {
        file.write_all_at(&[7; 4096], page * PAGE).unwrap();
    }
    let mapped = map(&file);
    for page in [1, 3, 4] {
        mapped.store_word(PoolOffset(page * PAGE), 1);
    }
    assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(5 * PAGE));
}

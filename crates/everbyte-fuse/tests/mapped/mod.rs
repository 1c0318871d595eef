//! What programs store to files that they have mapped, which the kernel writes when it likes to, or is told to.

use std::fs::{self, File, OpenOptions};
use std::io::Write;

use everbyte_media::{Mapped, MediaOptions, Medium, PoolOffset};

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

/// Takes all space but about 600 KiB, by a file that is returned.
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

/// The kernel writes 1 MiB by one request, of which the second half has no space.
#[test]
fn stores_that_find_no_space_in_part_are_an_error_for_who_syncs_them() {
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

//! Contents that each page may hold: one, or two where a clean page in the volume differs from the
//! backing device because it was damaged.

use everbyte_device::{BlockDevice, Fua, MemoryDevice};

use super::volume::{Volume, mark_at, page_at};
use super::{BACKING_BYTES, PAGE, PAGES};

/// Makes the initial backing device: each page is filled with its own byte.
pub(crate) fn first_backing() -> MemoryDevice {
    let backing = MemoryDevice::new(BACKING_BYTES);
    for page in 0..PAGES {
        let bytes = vec![0x80 + page as u8; len_of(page)];
        backing.write((page * PAGE) as u64, &bytes, Fua::No).unwrap();
    }
    backing
}

/// Returns the bytes of a page that the backing device has.
fn len_of(page: usize) -> usize {
    PAGE.min(BACKING_BYTES as usize - page * PAGE)
}

/// The contents that each page of a cache may hold.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pages: Vec<Vec<Vec<u8>>>,
}

impl Held {
    /// Reads the contents that the volume and the backing device hold together. A mark with an
    /// impossible value has no contents: such a volume does not open.
    pub(crate) fn read(volume: &Volume, backing: &MemoryDevice) -> Self {
        let content = |page: usize| {
            let (mut mark, mut own) = ([0], vec![0; len_of(page)]);
            let mut stored = own.clone();
            volume.read(mark_at(page), &mut mark).unwrap();
            volume.read(page_at(page), &mut own).unwrap();
            backing.read((page * PAGE) as u64, &mut stored).unwrap();
            match mark {
                // A cache may serve either copy of a clean page, and damage can make them differ.
                [1] if own != stored => vec![own, stored],
                [1 | 2] => vec![own],
                _ => vec![stored],
            }
        };
        Self { pages: (0..PAGES).map(content).collect() }
    }

    /// Sets bytes; the range lies in the backing device.
    pub(crate) fn fill(&mut self, at: u64, len: u64, byte: u8) {
        for (page, range, _) in parts(at, len as usize) {
            self.pages[page].iter_mut().for_each(|content| content[range.clone()].fill(byte));
            // Equal alternatives become one again once a write has covered their difference.
            self.pages[page].dedup();
        }
    }

    /// Compares `found`, read at `at`, with the possible contents of each of its pages.
    ///
    /// # Panics
    /// If a page has other bytes.
    pub(crate) fn expect(&self, at: u64, found: &[u8]) {
        for (page, range, from) in parts(at, found.len()) {
            let found = &found[from..from + range.len()];
            // Page by page: alternatives of different pages may be combined.
            let known = self.pages[page].iter().any(|content| content[range.clone()] == *found);
            assert!(known, "page {page} has bytes that nobody wrote there");
        }
    }

    /// Compares the bytes served by `device` with the possible contents of the pages.
    ///
    /// # Panics
    /// If a page has other bytes.
    pub(crate) fn expect_served(&self, device: &dyn BlockDevice) {
        let mut found = vec![0; BACKING_BYTES as usize];
        device.read(0, &mut found).unwrap();
        self.expect(0, &found);
    }

    /// Asserts: `other` allows every content allowed here.
    ///
    /// # Panics
    /// If not.
    pub(crate) fn expect_within(&self, other: &Self, what: &str) {
        for (page, contents) in self.pages.iter().enumerate() {
            let known = contents.iter().all(|content| other.pages[page].contains(content));
            assert!(known, "{what} holds something else in page {page}");
        }
    }
}

/// Returns the pages of a range, each with its bytes of the range and their place in it.
fn parts(at: u64, len: usize) -> impl Iterator<Item = (usize, std::ops::Range<usize>, usize)> {
    let (first, end) = (at as usize, at as usize + len);
    (first / PAGE..end.div_ceil(PAGE)).map(move |page| {
        let (from, to) = (first.max(page * PAGE), end.min((page + 1) * PAGE));
        (page, from - page * PAGE..to - page * PAGE, from - first)
    })
}

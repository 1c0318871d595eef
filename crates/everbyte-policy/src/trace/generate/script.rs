//! The script language of the paper's workloads: files, requests to them, and two guaranteed
//! figures: every page is touched in the end, and the mean write is steered to its target.

use std::io;

use super::Sink;
use super::random::Random;
use crate::access::PAGE_BYTES;
use crate::trace::{Request, RequestOp};

/// Bytes of a page.
pub(super) const PAGE: u64 = PAGE_BYTES as u64;
/// Pages of one read of the last scan.
const SCAN_PAGES: u64 = 16;

/// A file's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct File(usize);

struct FilePages {
    name: String,
    /// True for each page that was touched.
    pages: Vec<bool>,
}

/// Files, and requests to them that keep to a mean write.
pub(super) struct Script<'a> {
    pub(super) random: Random,
    sink: Sink<'a>,
    files: Vec<FilePages>,
    time_ns: u64,
    requests: u64,
    writes: u64,
    written_bytes: u64,
    target_bytes: u64,
}

impl<'a> Script<'a> {
    /// Makes a script whose writes have `target_bytes` on average.
    pub(super) fn new(seed: u64, target_bytes: u64, sink: Sink<'a>) -> Self {
        Self {
            random: Random::new(seed),
            sink,
            files: Vec::new(),
            time_ns: 0,
            requests: 0,
            writes: 0,
            written_bytes: 0,
            target_bytes,
        }
    }

    /// Makes a new file of `pages` pages.
    pub(super) fn file(&mut self, name: &str, pages: u64) -> File {
        let pages = (0..pages).map(|_| false).collect();
        self.files.push(FilePages { name: name.to_owned(), pages });
        File(self.files.len() - 1)
    }

    pub(super) fn pages(&self, file: File) -> u64 {
        self.files[file.0].pages.len() as u64
    }

    /// Returns the pages of all files.
    pub(super) fn pages_of_all(&self) -> u64 {
        self.files.iter().map(|file| file.pages.len() as u64).sum()
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests
    }

    /// Returns true if writes were too small so far.
    pub(super) fn wants_large_writes(&self) -> bool {
        // Steers the mean: below the target the next write is a large one.
        self.written_bytes < self.writes * self.target_bytes
    }

    /// Lets time pass: `us` microseconds on average.
    pub(super) fn pause_us(&mut self, us: u64) {
        self.time_ns += self.random.below(2 * us * 1000) + 1000;
    }

    pub(super) fn read(&mut self, file: File, offset: u64, len: u64) -> io::Result<()> {
        self.request(RequestOp::Read, file, offset, len)
    }

    pub(super) fn write(&mut self, file: File, offset: u64, len: u64) -> io::Result<()> {
        self.writes += 1;
        self.written_bytes += len;
        self.request(RequestOp::Write, file, offset, len)
    }

    pub(super) fn flush(&mut self, file: File) -> io::Result<()> {
        self.request(RequestOp::Flush, file, 0, 0)
    }

    /// Writes page by page, as a page cache does.
    pub(super) fn write_by_pages(&mut self, file: File, offset: u64, len: u64) -> io::Result<()> {
        let (mut at, end) = (offset, offset + len);
        while at < end {
            // The page cache writes by pages, so no request crosses one.
            let next = end.min((at / PAGE + 1) * PAGE);
            self.write(file, at, next - at)?;
            at = next;
        }
        Ok(())
    }

    fn request(&mut self, op: RequestOp, file: File, offset: u64, len: u64) -> io::Result<()> {
        // Longer for a flush, whose program waits for the device.
        let gap_us = if op == RequestOp::Flush { 2000 } else { 60 };
        self.pause_us(gap_us);
        self.requests += 1;
        let touched = &mut self.files[file.0];
        if len > 0 {
            let (first, last) = (offset / PAGE, (offset + len - 1) / PAGE);
            let pages = touched.pages.iter_mut().enumerate();
            for (_, page) in pages.skip(index(first)).take(index(last - first + 1)) {
                *page = true;
            }
            assert!(last < touched.pages.len() as u64, "the workload leaves {}", touched.name);
        }
        let number = u32::try_from(file.0).unwrap_or(u32::MAX);
        let request = Request { time_ns: self.time_ns, op, file: number, offset, len };
        (self.sink)(&request, &touched.name)
    }

    /// Reads every untouched page, in order: an indexer or a backup at the end.
    pub(super) fn read_the_rest(&mut self) -> io::Result<()> {
        for number in 0..self.files.len() {
            let mut page = 0;
            let is_touched =
                |script: &Self, page: u64| script.files[number].pages.get(index(page)).copied();
            while let Some(touched) = is_touched(self, page) {
                if touched {
                    page += 1;
                    continue;
                }
                let mut pages = 1;
                // In runs, as a scan would, and not page by page.
                while pages < SCAN_PAGES && is_touched(self, page + pages) == Some(false) {
                    pages += 1;
                }
                self.read(File(number), page * PAGE, pages * PAGE)?;
                page += pages;
            }
        }
        Ok(())
    }
}

/// Converts a number of pages to an index. Files here have a few thousand.
fn index(pages: u64) -> usize {
    usize::try_from(pages).unwrap_or(usize::MAX)
}

/// A file that is written from its beginning to its end and then from its beginning again.
pub(super) struct Log {
    file: File,
    end: u64,
}

impl Log {
    pub(super) fn new(script: &mut Script<'_>, name: &str, pages: u64) -> Self {
        Self { file: script.file(name, pages), end: 0 }
    }

    /// Appends `len` bytes, at most a quarter of the file.
    pub(super) fn append(&mut self, script: &mut Script<'_>, len: u64) -> io::Result<()> {
        // The log is rotated instead of growing: the footprint is the paper's.
        if self.end + len > script.pages(self.file) * PAGE {
            self.end = 0;
        }
        script.write_by_pages(self.file, self.end, len)?;
        self.end += len;
        Ok(())
    }
}

/// A file that is read from its beginning to its end and then from its beginning again.
pub(super) struct Stream {
    file: File,
    page: u64,
}

impl Stream {
    pub(super) fn new(script: &mut Script<'_>, name: &str, pages: u64) -> Self {
        Self { file: script.file(name, pages), page: 0 }
    }

    /// Reads the next pages, at most `pages` of them.
    pub(super) fn read(&mut self, script: &mut Script<'_>, pages: u64) -> io::Result<()> {
        let pages = pages.min(script.pages(self.file) - self.page);
        script.read(self.file, self.page * PAGE, pages * PAGE)?;
        self.page = (self.page + pages) % script.pages(self.file);
        Ok(())
    }
}

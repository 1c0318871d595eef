//! The writes of an atomic batch, until it is committed.
//!
//! Owns a copy of the written bytes. They are collected because a device takes all of them in one
//! call, without knowledge of batches. Invariant: an `index` has every write, and no two of them overlap.
//! SQLite writes pages, so a batch nearly always has an index. It is dropped at the first partial overlap.

use std::collections::BTreeMap;

/// Most bytes of a batch. A larger transaction goes through the journal.
pub(crate) const BATCH_BYTES_MAX: usize = 64 << 20;

/// Most bytes of memory reused for the next batch. Without it, every batch would pay for fresh
/// pages from the system.
const KEPT_BYTES_MAX: usize = 4 << 20;

#[derive(Clone, Copy, Debug)]
struct Write {
    /// Byte offset in the volume.
    at: u64,
    /// Index of its first byte in `Batch::bytes`.
    start: usize,
    len: usize,
}

impl Write {
    fn end(&self) -> u64 {
        self.at + self.len as u64
    }
}

/// An open batch.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// The database's length after it.
    pub(crate) length: u64,
    writes: Vec<Write>,
    bytes: Vec<u8>,
    /// The writes' numbers by their offsets in the volume, unless some overlap.
    index: Option<BTreeMap<u64, usize>>,
}

impl Batch {
    /// Makes an empty batch on a database of `length` bytes, in the memory of this one.
    pub(crate) fn begin_again(mut self, length: u64) -> Self {
        if self.bytes.capacity() > KEPT_BYTES_MAX {
            self = Self::default();
        }
        self.writes.clear();
        self.bytes.clear();
        Self { length, index: Some(BTreeMap::new()), ..self }
    }

    /// Adds a write at `at` of the volume; false without room for it.
    pub(crate) fn write(&mut self, at: u64, data: &[u8]) -> bool {
        // A transaction larger than the page cache writes a page again and again.
        if let Some(same) = self.find_same(at, data.len()) {
            self.bytes[same.start..same.start + same.len].copy_from_slice(data);
            return true;
        }
        let room = data.len() <= BATCH_BYTES_MAX - self.bytes.len();
        if room {
            self.add_to_index(at, data.len() as u64);
            self.writes.push(Write { at, start: self.bytes.len(), len: data.len() });
            self.bytes.extend_from_slice(data);
        }
        room
    }

    fn find_same(&self, at: u64, len: usize) -> Option<Write> {
        let number = *self.index.as_ref()?.get(&at)?;
        Some(self.writes[number]).filter(|write| write.len == len)
    }

    /// Adds the next write to the index, or drops the index if the write overlaps another.
    fn add_to_index(&mut self, at: u64, len: u64) {
        let Some(index) = &mut self.index else { return };
        let before = index.range(..at.saturating_add(len)).next_back();
        if before.is_some_and(|(_, &number)| self.writes[number].end() > at) {
            self.index = None;
        } else {
            index.insert(at, self.writes.len());
        }
    }

    /// Removes the written bytes from `at` of the volume on.
    pub(crate) fn cut(&mut self, at: u64) {
        let writes = std::mem::take(&mut self.writes);
        let has_index = self.index.is_some();
        let below =
            |write: &Write| usize::try_from(at.saturating_sub(write.at)).unwrap_or(usize::MAX);
        let cut =
            writes.into_iter().map(|write| Write { len: write.len.min(below(&write)), ..write });
        self.writes = cut.filter(|write| write.len > 0).collect();
        let numbers = self.writes.iter().enumerate().map(|(number, write)| (write.at, number));
        self.index = has_index.then(|| numbers.collect());
    }

    /// Adds zeroes; false without room for them.
    pub(crate) fn zero(&mut self, at: u64, len: u64) -> bool {
        match usize::try_from(len) {
            Ok(0) => true,
            Ok(len) if len <= BATCH_BYTES_MAX - self.bytes.len() => self.write(at, &vec![0; len]),
            _ => false,
        }
    }

    /// Returns its writes, in order.
    pub(crate) fn writes(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.writes.iter().map(|w| (w.at, &self.bytes[w.start..w.start + w.len]))
    }

    /// Applies the batch's changes of the bytes from `at` on to `out`.
    pub(crate) fn read_over(&self, at: u64, out: &mut [u8]) {
        let end = at + out.len() as u64;
        let Some(index) = &self.index else { return self.copy_over(at, out, self.writes.iter()) };
        // Without overlaps, at most one write begins before the bytes and reaches them.
        let before = index.range(..at).next_back();
        let within = index.range(at..end);
        let numbers = before.into_iter().chain(within).map(|(_, &number)| number);
        self.copy_over(at, out, numbers.map(|number| &self.writes[number]));
    }

    fn copy_over<'a>(&self, at: u64, out: &mut [u8], writes: impl Iterator<Item = &'a Write>) {
        let end = at + out.len() as u64;
        for write in writes {
            let (written_at, data) = (write.at, &self.bytes[write.start..write.start + write.len]);
            let from = at.max(written_at);
            let to = end.min(written_at + data.len() as u64);
            let (Ok(in_out), Ok(in_data), Ok(len)) = (
                usize::try_from(from - at),
                usize::try_from(from - written_at),
                usize::try_from(to.saturating_sub(from)),
            ) else {
                continue;
            };
            if len > 0 {
                out[in_out..in_out + len].copy_from_slice(&data[in_data..in_data + len]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_writes_cover_earlier_ones() {
        let mut batch = Batch::default();
        assert!(batch.write(10, b"abcdef"));
        assert!(batch.write(12, b"XY"));
        assert!(batch.zero(15, 1));
        let mut out = *b"................";
        batch.read_over(6, &mut out);
        assert_eq!(&out, b"....abXYe\0......");
        let mut inside = *b"..";
        batch.read_over(11, &mut inside);
        assert_eq!(&inside, b"bX");
        let mut outside = *b"..";
        batch.read_over(16, &mut outside);
        assert_eq!(&outside, b"..");
    }

    #[test]
    fn rewritten_page_takes_no_more_room() {
        let mut batch = Batch::default().begin_again(0);
        for byte in 0..200 {
            assert!(batch.write(4096, &[byte; 4096]) && batch.write(8192, &[byte + 1; 4096]));
        }
        assert_eq!((batch.writes().count(), batch.bytes.len()), (2, 8192));
        let mut out = [9; 4100];
        batch.read_over(8190, &mut out);
        assert_eq!((out[1], out[2], out[4097], out[4098]), (199, 200, 200, 9));
    }

    #[test]
    fn overlapping_writes_keep_their_order() {
        let mut batch = Batch::default().begin_again(0);
        assert!(batch.write(0, b"aaaa") && batch.write(8, b"bbbb"));
        assert!(batch.write(2, b"cccccccc") && batch.write(8, b"dddd"));
        let mut out = *b"............";
        batch.read_over(0, &mut out);
        assert_eq!(&out, b"aaccccccdddd");
    }

    #[test]
    fn cut_bytes_are_not_written() {
        let mut batch = Batch::default().begin_again(0);
        assert!(batch.write(0, b"aaaa") && batch.write(4, b"bbbb") && batch.write(8, b"cccc"));
        batch.cut(6);
        assert!(batch.writes().eq([(0, &b"aaaa"[..]), (4, &b"bb"[..])]));
        assert!(batch.write(6, b"dd"));
        let mut out = *b"............";
        batch.read_over(0, &mut out);
        assert_eq!(&out, b"aaaabbdd....");
    }

    #[test]
    fn next_batch_starts_empty() {
        for len in [3, KEPT_BYTES_MAX + 1] {
            let mut batch = Batch::default();
            assert!(batch.write(10, &vec![7; len]));
            let batch = batch.begin_again(4096);
            assert_eq!((batch.length, batch.writes().count()), (4096, 0));
            assert!(batch.bytes.capacity() <= KEPT_BYTES_MAX);
            let mut out = *b"..";
            batch.read_over(10, &mut out);
            assert_eq!(&out, b"..");
        }
    }

    #[test]
    fn batch_is_bounded() {
        let mut batch = Batch::default();
        assert!(batch.zero(0, BATCH_BYTES_MAX as u64 - 1));
        assert!(!batch.write(0, b"ab"));
        assert!(!batch.zero(0, 2));
        assert!(batch.write(0, b"a"));
        assert!(!batch.zero(0, u64::MAX));
    }
}

//! The writes of an atomic batch, until it is committed.
//!
//! Owns a copy of the written bytes. They are collected because a device takes all of them in one
//! call, without knowledge of batches.

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

/// An open batch.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// The database's length after it.
    pub(crate) length: u64,
    writes: Vec<Write>,
    bytes: Vec<u8>,
}

impl Batch {
    /// Makes an empty batch on a database of `length` bytes, in the memory of this one.
    pub(crate) fn begin_again(mut self, length: u64) -> Self {
        if self.bytes.capacity() > KEPT_BYTES_MAX {
            self = Self::default();
        }
        self.writes.clear();
        self.bytes.clear();
        Self { length, ..self }
    }

    /// Adds a write at `at` of the volume; false without room for it.
    pub(crate) fn write(&mut self, at: u64, data: &[u8]) -> bool {
        let room = data.len() <= BATCH_BYTES_MAX - self.bytes.len();
        if room {
            self.writes.push(Write { at, start: self.bytes.len(), len: data.len() });
            self.bytes.extend_from_slice(data);
        }
        room
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
        for (written_at, data) in self.writes() {
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

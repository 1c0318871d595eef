//! Replies that wait to be sent on a connection.
//!
//! Invariants: `filled <= bytes.len()`. The bytes beyond `filled` come from earlier replies, so
//! space for a read is not cleared each time.

/// A buffer to which messages are appended.
pub(crate) trait Sink {
    /// Appends `bytes`.
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Replies, back to back.
pub(crate) struct Output {
    bytes: Vec<u8>,
    filled: usize,
}

impl Output {
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self { bytes: vec![0; bytes], filled: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.filled
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }

    pub(crate) fn clear(&mut self) {
        self.filled = 0;
    }

    /// Drops everything after the first `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.filled = self.filled.min(len);
    }

    /// Appends `len` bytes of any value, to be overwritten.
    pub(crate) fn space(&mut self, len: usize) -> &mut [u8] {
        let start = self.filled;
        self.filled += len;
        if self.bytes.len() < self.filled {
            self.bytes.resize(self.filled, 0);
        }
        &mut self.bytes[start..self.filled]
    }
}

impl Sink for Output {
    fn put(&mut self, bytes: &[u8]) {
        self.space(bytes.len()).copy_from_slice(bytes);
    }
}

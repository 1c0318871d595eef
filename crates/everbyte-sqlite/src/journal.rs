//! A rollback journal in memory.
//!
//! Owns its bytes. SQLite writes a journal before a database and ends it to commit. With an emulated batch the
//! database on the device does not change before the commit, so only a rollback of this process reads the journal.
//! Knows nothing of the device.

use crate::batch::BATCH_BYTES_MAX;

/// Most bytes of memory kept for the next journal.
const KEPT_BYTES_MAX: usize = 4 << 20;
/// Bytes of zeroes at the start of a journal by which SQLite ends it and keeps the file.
const ENDED_BYTES: usize = 28;

/// A rollback journal that a crash removes.
#[derive(Debug, Default)]
pub(crate) struct VolatileJournal {
    bytes: Vec<u8>,
}

impl VolatileJournal {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn length(&self) -> u64 {
        self.bytes.len() as u64
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Makes it an empty file.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES_MAX);
    }

    /// Fills the start of `out` with the bytes from `offset` on. `out` is not longer than those.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        out.copy_from_slice(&self.bytes[from..from + out.len()]);
    }

    /// Writes bytes, with zeroes before them if they begin beyond the end; false without room.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> bool {
        let Some(end) = usize::try_from(offset).ok().and_then(|at| at.checked_add(data.len()))
        else {
            return false;
        };
        if end > BATCH_BYTES_MAX {
            return false;
        }
        if end > self.bytes.len() {
            self.bytes.resize(end, 0);
        }
        self.bytes[end - data.len()..end].copy_from_slice(data);
        true
    }

    /// Makes it `length` bytes long; false without room.
    pub(crate) fn set_length(&mut self, length: u64) -> bool {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let has_room = length <= BATCH_BYTES_MAX;
        if has_room {
            self.bytes.resize(length, 0);
        }
        has_room
    }
}

/// Returns true if SQLite ends a journal by this write: in journal mode PERSIST and with exclusive locking.
pub(crate) fn ends_journal(offset: u64, data: &[u8]) -> bool {
    offset == 0 && data.len() >= ENDED_BYTES && data.iter().all(|&byte| byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gap_reads_as_zeroes() {
        let mut journal = VolatileJournal::default();
        assert!(journal.write(4, b"ab"));
        assert!(journal.write(0, b"c"));
        let mut out = [7; 6];
        journal.read(0, &mut out);
        assert_eq!(&out, b"c\0\0\0ab");
        journal.clear();
        assert!(journal.is_empty());
    }

    #[test]
    fn journal_is_bounded() {
        let mut journal = VolatileJournal::default();
        assert!(!journal.write(u64::MAX, b"a"));
        assert!(!journal.write(BATCH_BYTES_MAX as u64, b"a"));
        assert!(!journal.set_length(BATCH_BYTES_MAX as u64 + 1));
        assert!(journal.is_empty());
    }

    #[test]
    fn only_a_zeroed_header_ends_a_journal() {
        assert!(ends_journal(0, &[0; 28]));
        assert!(!ends_journal(512, &[0; 28]));
        assert!(!ends_journal(0, &[0; 4]));
        assert!(!ends_journal(0, &[&[0; 27][..], &[1]].concat()));
    }
}

//! Log records: one header line, then payload lines.
//!
//! Invariants: a record is valid if its header's checksum is right and covers this volume's key, lane, epoch,
//! position and sequence number, and the payload's checksum in the header is right too. Records lie back to
//! back from the start of a lane's half. Sequence numbers count from 0 there.

use everbyte_media::{LINE, LINE_U64, PoolOffset, crc32c};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Kind of the contents saved in a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum RecordKind {
    /// Old values of words: pointer logging.
    Words = 1,
    /// Old bytes of lines of one block: data logging.
    Lines = 2,
    /// New bytes of lines of one block: a FUA fast-path write.
    Redo = 3,
    /// New values of words: a FUA write of several blocks.
    RedoWords = 4,
}

/// The first line of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RecordHeader {
    /// CRC-32C of the rest of the header.
    pub crc: u32,
    /// CRC-32C of the payload.
    pub payload_crc: u32,
    /// The volume's log key.
    pub log_key: u64,
    /// The epoch the record belongs to.
    pub epoch: u64,
    /// Number of the record in its half, from 0.
    pub seq: u32,
    /// Number of the first record after the fence before this one: records from there to here
    /// may be torn together, earlier ones are durable.
    pub commit_start: u32,
    /// Line of the half at which this record starts.
    pub position: u32,
    /// The lane.
    pub lane: u16,
    /// 1 words, 2 lines, 3 redo of lines, 4 redo of words.
    pub kind: u16,
    /// Words, old or new: how many items, the first in this header. Else: payload lines.
    pub count: u32,
    /// Redo: the record's place among those of all lanes in the epoch. Else zero.
    pub order: u32,
    /// Words, old or new: address of the first word. Else: address of the block.
    pub target: u64,
    /// Words: old or new value of the first word. Else: mask of the payload's lines.
    pub old: u64,
}

const _: () = assert!(size_of::<RecordHeader>() == LINE);

/// A further word in the payload of a record of words.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WordItem {
    /// Address of the word.
    pub target: u64,
    /// Its old value; its new value in a redo record.
    pub old: u64,
}

const _: () = assert!(size_of::<WordItem>() == 16);

impl RecordHeader {
    /// The same with the checksum put right.
    #[must_use]
    pub fn sealed(mut self) -> Self {
        self.crc = self.expected_crc();
        self
    }

    /// Writes the header, with the right checksum, to `line`: by words, so that a thread that loads words
    /// from it immediately need not wait until they have left the processor.
    pub(crate) fn seal_into(&self, line: &mut [u8; LINE]) {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let whose = u32::from(self.lane) | u32::from(self.kind) << 16;
        let words = [
            pair(0, self.payload_crc),
            self.log_key,
            self.epoch,
            pair(self.seq, self.commit_start),
            pair(self.position, whose),
            pair(self.count, self.order),
            self.target,
            self.old,
        ];
        for (place, word) in line.as_chunks_mut().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        let crc = crc32c(&line[4..]);
        line[..8].copy_from_slice(&pair(crc, self.payload_crc).to_le_bytes());
    }

    /// The right checksum of the header.
    #[must_use]
    pub fn expected_crc(&self) -> u32 {
        crc32c(&self.as_bytes()[4..])
    }

    /// Returns the kind of the record, if it is known and `count` is possible for it.
    #[must_use]
    pub fn known_kind(&self) -> Option<RecordKind> {
        // The mask states which lines follow. A count that contradicts it is damage.
        let lines = self.count > 0 && self.count == self.old.count_ones();
        match self.kind {
            1 if self.count >= 1 => Some(RecordKind::Words),
            2 if lines => Some(RecordKind::Lines),
            3 if lines => Some(RecordKind::Redo),
            4 if self.count >= 1 => Some(RecordKind::RedoWords),
            _ => None,
        }
    }

    /// Bytes of payload after the header line, a multiple of 64.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        match self.known_kind() {
            Some(RecordKind::Words | RecordKind::RedoWords) => (u64::from(self.count - 1)
                * size_of::<WordItem>() as u64)
                .next_multiple_of(LINE_U64),
            Some(RecordKind::Lines | RecordKind::Redo) => u64::from(self.count) * LINE_U64,
            None => 0,
        }
    }

    /// The start address of the record's bytes in place.
    #[must_use]
    pub fn target(&self) -> PoolOffset {
        PoolOffset(self.target)
    }
}

/// Bytes of log for a record of `count` words.
#[must_use]
pub(crate) fn words_record_bytes(count: usize) -> u64 {
    // The first word is in the header line.
    LINE_U64 + (count.saturating_sub(1) as u64 * 16).next_multiple_of(LINE_U64)
}

/// Bytes of log for a record of `count` lines.
#[must_use]
pub(crate) fn lines_record_bytes(count: u32) -> u64 {
    LINE_U64 * (1 + u64::from(count))
}

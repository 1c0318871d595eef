//! Appending to one lane of a volume's log.
//!
//! Invariants: one thread uses a lane from its first record to the fence. Records of an epoch fill half
//! `epoch % 2` from its start, back to back. The half was last used by epoch - 2, whose records are dead. A
//! record is whole lines and streamed: after the append it needs only the fence of the commit.

use everbyte_media::{
    BLOCK_U64, BlockNo, LINE, LINE_U64, LineMask, MediaError, Medium, PoolOffset, crc32c,
};
use zerocopy::IntoBytes;

use crate::format::{Descriptor, RecordHeader, RecordKind, WordItem};
use crate::persist::InFlight;

/// Layout of a volume's log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogGeometry {
    /// UID of the volume.
    pub(crate) volume_uid: u64,
    /// Key in its records; it distinguishes them from other bytes.
    pub(crate) log_key: u64,
    /// Start of the first lane.
    pub(crate) start: PoolOffset,
    /// Bytes in half a lane.
    pub(crate) half_bytes: u64,
    /// Lanes.
    pub(crate) lanes: u16,
}

impl LogGeometry {
    /// The log of the volume with this descriptor.
    pub(crate) fn of(descriptor: &Descriptor) -> Self {
        Self {
            volume_uid: descriptor.uid,
            log_key: descriptor.log_key,
            start: BlockNo(descriptor.log_start).offset(),
            half_bytes: u64::from(descriptor.half_blocks) * BLOCK_U64,
            lanes: u16::try_from(descriptor.lanes).expect("a descriptor has at most 1024 lanes"),
        }
    }

    /// Start of the half of `epoch` in `lane`.
    pub(crate) fn half(&self, lane: u16, epoch: u64) -> PoolOffset {
        // Two halves suffice: epochs e and e + 1 are open together, and e + 2 begins only after e
        // is durable.
        self.start.plus((2 * u64::from(lane) + epoch % 2) * self.half_bytes)
    }
}

/// Description of a record's payload in its header.
struct Record {
    kind: RecordKind,
    order: u32,
    target: u64,
    old: u64,
}

/// One lane, appending.
pub(crate) struct LaneLog {
    geometry: LogGeometry,
    lane: u16,
    epoch: u64,
    used_bytes: u64,
    seq: u32,
    commit_start: u32,
    scratch: Vec<u8>,
}

impl LaneLog {
    /// A lane with the first epoch `epoch`.
    pub(crate) fn new(geometry: LogGeometry, lane: u16, epoch: u64) -> Self {
        Self { geometry, lane, epoch, used_bytes: 0, seq: 0, commit_start: 0, scratch: Vec::new() }
    }

    /// The epoch of the next records.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Bytes used in this epoch's half.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Bytes left for records in this epoch's half.
    pub(crate) fn room_bytes(&self) -> u64 {
        self.geometry.half_bytes - self.used_bytes
    }

    /// Starts `epoch` in the other half.
    pub(crate) fn begin_epoch(&mut self, epoch: u64) {
        debug_assert!(epoch > self.epoch, "epochs only go forward");
        // No record is erased: recovery rejects the old ones of this half by their epoch.
        self.epoch = epoch;
        self.used_bytes = 0;
        self.seq = 0;
        self.commit_start = 0;
    }

    /// Marks every record so far as durable.
    pub(crate) fn committed(&mut self) {
        // If a record is missing, `commit_start` of a later one tells recovery whether it had been
        // fenced.
        self.commit_start = self.seq;
    }

    /// Appends the old values of words; no record for none.
    ///
    /// The caller has checked the room.
    pub(crate) fn append_words<M: Medium>(
        &mut self,
        medium: &M,
        items: &[WordItem],
    ) -> Option<InFlight<()>> {
        self.append_items(medium, (RecordKind::Words, 0), items)
    }

    /// Appends the new values of words, as number `order` of the epoch's redo records; no record for none.
    ///
    /// The caller has checked the room.
    pub(crate) fn append_redo_words<M: Medium>(
        &mut self,
        medium: &M,
        order: u32,
        items: &[WordItem],
    ) -> Option<InFlight<()>> {
        self.append_items(medium, (RecordKind::RedoWords, order), items)
    }

    fn append_items<M: Medium>(
        &mut self,
        medium: &M,
        (kind, order): (RecordKind, u32),
        items: &[WordItem],
    ) -> Option<InFlight<()>> {
        let (first, rest) = items.split_first()?;
        let rest = rest.as_bytes();
        let payload = self.payload_room(rest.len().next_multiple_of(LINE));
        payload[..rest.len()].copy_from_slice(rest);
        // The room may hold an earlier payload. Its bytes must not reach the log as padding.
        payload[rest.len()..].fill(0);
        let record = Record { kind, order, target: first.target, old: first.old };
        Some(self.append(medium, record, items.len()))
    }

    /// Appends the present bytes of `lines` of `block`.
    ///
    /// The caller has checked the room.
    ///
    /// # Errors
    /// `block` has become bad. Nothing is then appended: undo of its substitute zeroes would turn them into
    /// stored data.
    pub(crate) fn append_lines<M: Medium>(
        &mut self,
        medium: &M,
        block: BlockNo,
        lines: LineMask,
    ) -> Result<InFlight<()>, MediaError> {
        let mut room = self.payload_room(LINE * lines.count() as usize);
        for (start, len) in lines.runs() {
            let (image, rest) = room.split_at_mut(len);
            medium.read(block.offset().plus(start as u64), image);
            room = rest;
        }
        // After the copy, so a range that fails during the copy is detected as well.
        medium.check_range(block.offset(), BLOCK_U64)?;
        let record =
            Record { kind: RecordKind::Lines, order: 0, target: block.offset().0, old: lines.0 };
        Ok(self.append(medium, record, lines.count() as usize))
    }

    /// Appends the new bytes of `lines` of `block` for a store of `data` at byte `start` of it, as number
    /// `order` of the epoch's.
    ///
    /// The caller has checked the room.
    ///
    /// # Errors
    /// As [`Self::append_lines`].
    pub(crate) fn append_redo<M: Medium>(
        &mut self,
        medium: &M,
        order: u32,
        block: BlockNo,
        lines: LineMask,
        (start, data): (usize, &[u8]),
    ) -> Result<InFlight<()>, MediaError> {
        let end = start + data.len();
        let mut room = self.payload_room(LINE * lines.count() as usize);
        for (run, len) in lines.runs() {
            let (image, rest) = room.split_at_mut(len);
            // A run inside `data` keeps no old byte, so the medium is not read for it.
            if run < start || run + len > end {
                medium.read(block.offset().plus(run as u64), image);
            }
            let (from, to) = (run.max(start), (run + len).min(end));
            if from < to {
                image[from - run..to - run].copy_from_slice(&data[from - start..to - start]);
            }
            room = rest;
        }
        // Substitute zeroes around `data` would become durable bytes of the block.
        medium.check_range(block.offset(), BLOCK_U64)?;
        let record =
            Record { kind: RecordKind::Redo, order, target: block.offset().0, old: lines.0 };
        Ok(self.append(medium, record, lines.count() as usize))
    }

    /// Space for the payload of the next record. It may hold an earlier payload; the caller fills all of it.
    fn payload_room(&mut self, bytes: usize) -> &mut [u8] {
        self.scratch.resize(LINE + bytes, 0);
        &mut self.scratch[LINE..]
    }

    fn append<M: Medium>(&mut self, medium: &M, record: Record, count: usize) -> InFlight<()> {
        let Record { kind, order, target, old } = record;
        let header = RecordHeader {
            crc: 0,
            payload_crc: crc32c(&self.scratch[LINE..]),
            log_key: self.geometry.log_key,
            epoch: self.epoch,
            seq: self.seq,
            commit_start: self.commit_start,
            position: u32::try_from(self.used_bytes / LINE_U64).expect("a half has 4 GiB at most"),
            lane: self.lane,
            kind: kind as u16,
            count: u32::try_from(count).expect("a record fits in a half"),
            order,
            target,
            old,
        };
        // Header and payload share a buffer, so one stream writes the whole record.
        let (line, _) = self.scratch.split_first_chunk_mut().expect("a header's room");
        header.seal_into(line);
        let bytes = self.scratch.len() as u64;
        // A record past the end would overwrite the other half, or the next lane.
        assert!(bytes <= self.room_bytes(), "a record of {bytes} bytes was not reserved");
        let at = self.geometry.half(self.lane, self.epoch).plus(self.used_bytes);
        self.used_bytes += bytes;
        self.seq += 1;
        // Streamed, so the commit needs one fence and no flush of log lines.
        InFlight::stream(medium, at, &self.scratch)
    }
}

//! Reading a lane's half back after a crash.
//!
//! Invariants: only a contiguous run of valid records from the start of the half is believed. Records are
//! found by length, never by searching: logged bytes are a client's and may look like records. After the end
//! of that run a search *is* made, for one purpose: to detect the loss of a durable record. A valid header
//! found there with a commit that began after the missing record proves that the missing record had been
//! fenced: something destroyed it.

use std::mem::offset_of;

use everbyte_media::{BlockNo, LINE, LINE_U64, LineMask, Medium, PoolOffset};
use everbyte_plant::planted;
use zerocopy::FromBytes;

use super::LogGeometry;
use crate::format::{Corrupt, RecordHeader, RecordKind, WordItem};
use crate::plant::Bug;
use crate::readable::check_readable;

/// Contents in a record: the old ones in an undo record, the new ones in a redo record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Restore {
    /// Words and their values.
    Words(Vec<WordItem>),
    /// Lines.
    Lines(SavedLines),
}

/// Purpose of a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Logged {
    /// Old contents.
    Undo(Restore),
    /// A FUA fast-path write, and its place among those of the epoch.
    Redo(u32, Restore),
}

/// Lines of a block and their bytes, back to back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SavedLines {
    /// The block.
    pub(crate) block: BlockNo,
    /// Its lines.
    pub(crate) lines: LineMask,
    /// 64 bytes for each of them.
    pub(crate) bytes: Vec<u8>,
}

/// Reads the records of `epoch` in `lane`, in the order they were appended.
///
/// # Errors
/// A durable record is missing or damaged.
pub(crate) fn scan_half<M: Medium>(
    medium: &M,
    geometry: &LogGeometry,
    lane: u16,
    epoch: u64,
) -> Result<Vec<Logged>, Corrupt> {
    let half = Half { medium, geometry, lane, epoch, start: geometry.half(lane, epoch) };
    let mut found = Vec::new();
    let mut position = 0;
    let mut seq = 0;
    // By length only: a search could take logged client data for a record.
    while let Some((header, payload)) = half.record(position) {
        // In an intact half the numbers ascend by one. At any other number the run ends, and
        // `check_rest` judges the remaining lines.
        if header.seq != seq {
            break;
        }
        found.push(logged(&header, &payload));
        position += LINE_U64 + header.payload_bytes();
        seq += 1;
    }
    // The run ends at a record torn by the crash, or at a destroyed one. Only the lines behind it
    // can distinguish the two.
    let rest = half.check_rest(position, seq);
    if medium.has_poison() {
        // A poisoned range reads as the end of the records, and its contents are unknown.
        let name = format!("log of volume {}, lane {lane}", geometry.volume_uid);
        check_readable(medium, &name, half.start, geometry.half_bytes)?;
    }
    // The media error above comes first: it explains the gap reported by `rest`.
    rest.map(|()| found)
}

struct Half<'a, M> {
    medium: &'a M,
    geometry: &'a LogGeometry,
    lane: u16,
    epoch: u64,
    start: PoolOffset,
}

impl<M: Medium> Half<'_, M> {
    /// The header at `position`, if it is one of this half.
    fn header(&self, position: u64) -> Option<RecordHeader> {
        if position + LINE_U64 > self.geometry.half_bytes {
            return None;
        }
        // Nearly every line of a log is not a header of this half, as two of its words show.
        let word = |at: usize| self.medium.load_word(self.start.plus(position + at as u64));
        if word(offset_of!(RecordHeader, log_key)) != self.geometry.log_key
            || word(offset_of!(RecordHeader, epoch)) != self.epoch
        {
            return None;
        }
        let mut line = [0; LINE];
        self.medium.read(self.start.plus(position), &mut line);
        let header = RecordHeader::read_from_bytes(&line).ok()?;
        // A right checksum is not enough: a whole header may belong to another lane or place.
        let ours = header.log_key == self.geometry.log_key
            && header.epoch == self.epoch
            && header.lane == self.lane
            && u64::from(header.position) * LINE_U64 == position
            && header.known_kind().is_some()
            && (header.crc == header.expected_crc() || planted(Bug::NoLogChecksum));
        ours.then_some(header)
    }

    /// The record at `position`, if header and payload are right.
    fn record(&self, position: u64) -> Option<(RecordHeader, Vec<u8>)> {
        let header = self.header(position)?;
        let bytes = header.payload_bytes();
        // Bounds the memory for the payload: `count` comes from the medium.
        if position + LINE_U64 + bytes > self.geometry.half_bytes {
            return None;
        }
        let mut payload = vec![0; usize::try_from(bytes).ok()?];
        self.medium.read(self.start.plus(position + LINE_U64), &mut payload);
        let right = crc32c::crc32c(&payload) == header.payload_crc || planted(Bug::NoLogChecksum);
        right.then_some((header, payload))
    }

    /// Searches, from `position` on, for proof that record number `missing` had been durable. A header is
    /// enough: it was made after the fence before `commit_start`, irrespective of its payload. So every line
    /// is inspected once, irrespective of the log's contents.
    fn check_rest(&self, position: u64, missing: u32) -> Result<(), Corrupt> {
        let mut at = position;
        // By line: the length of a destroyed record is unknown.
        while at < self.geometry.half_bytes {
            // With `commit_start` at or before the gap, both records are of one commit. A crash
            // tears those in any order.
            if let Some(header) = self.header(at)
                && header.commit_start > missing
            {
                return Err(Corrupt::new(
                    format!(
                        "log record {missing} of lane {}, epoch {}, volume {}",
                        self.lane, self.epoch, self.geometry.volume_uid
                    ),
                    self.start.plus(position),
                    format!("it was committed before record {} but is damaged", header.seq),
                ));
            }
            at += LINE_U64;
        }
        Ok(())
    }
}

fn logged(header: &RecordHeader, payload: &[u8]) -> Logged {
    let kind = header.known_kind();
    let contents = match kind {
        Some(RecordKind::Words | RecordKind::RedoWords) => {
            let mut items = vec![WordItem { target: header.target, old: header.old }];
            // The payload is whole lines, so the bytes after the last item are padding.
            let rest = payload.chunks_exact(size_of::<WordItem>()).take(header.count as usize - 1);
            items.extend(rest.filter_map(|bytes| WordItem::read_from_bytes(bytes).ok()));
            Restore::Words(items)
        }
        _ => Restore::Lines(SavedLines {
            block: header.target().block(),
            lines: LineMask(header.old),
            bytes: payload.to_vec(),
        }),
    };
    match kind {
        Some(RecordKind::Redo | RecordKind::RedoWords) => Logged::Redo(header.order, contents),
        _ => Logged::Undo(contents),
    }
}

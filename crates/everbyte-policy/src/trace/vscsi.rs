//! VMware's vscsiStats traces, as CloudPhysics published them: records of 32 bytes (version 1) or
//! 40 (version 2), little-endian.
//!
//! Version 1: sequence number u32, length in bytes u32, scatter-gather elements u32, SCSI command
//! u16, version u16, block u64, time in us u64. Version 2: command u16, version u16, sequence
//! number u32, length u32, elements u32, block u64, time u64, response time u64. The version's high
//! byte is 1 or 2. Sources: libCacheSim, `traceReader/customizedReader/vscsi.h`; the commands are
//! those of the SCSI Block Commands (SBC-4, table of operation codes). Commands that neither move,
//! drop nor harden data are skipped. UNMAP is skipped as well: its ranges are in unrecorded data.
//! So is WRITE SAME: the recorded length is that of its data, one block, and not that of its range.

use super::decode::{Item, RecordFormat};
use super::error::Problem;
use super::fields::scaled;
use super::files::FileNames;
use super::operations::scsi_operation;
use super::skipped::SkippedKind;
use super::{OFFSET_MAX, Request, SECTOR_BYTES};

/// Bytes of a record of version 1.
pub(crate) const V1_BYTES: usize = 32;
/// Bytes of a record of version 2.
pub(crate) const V2_BYTES: usize = 40;

/// Which version.
#[derive(Clone, Copy)]
pub(crate) enum Vscsi {
    V1,
    V2,
}

impl Vscsi {
    /// Returns the place of the version in a record, and its high byte.
    pub(crate) fn version_at(self) -> (usize, u8) {
        match self {
            Self::V1 => (15, 1),
            Self::V2 => (3, 2),
        }
    }
}

impl Vscsi {
    /// Returns true if these may be the first records: all have the version, a command of one byte and a block
    /// that a disk can have, and some command reads or writes.
    pub(crate) fn is_plausible(self, head: &[u8]) -> bool {
        let (at, version) = self.version_at();
        let (bytes, command_at) = match self {
            Self::V1 => (V1_BYTES, 12),
            Self::V2 => (V2_BYTES, 0),
        };
        let is_record = |record: &[u8]| {
            let block = little_endian(&record[16..24]);
            record[at] == version
                && record[command_at + 1] == 0
                && block <= OFFSET_MAX / SECTOR_BYTES
        };
        let mut records = head.chunks_exact(bytes);
        records.clone().all(is_record)
            && records.any(|record| scsi_operation(record[command_at]).is_some())
    }
}

impl RecordFormat for Vscsi {
    fn item(&mut self, record: &[u8], files: &mut FileNames) -> Result<Item, Problem> {
        let (at, version) = self.version_at();
        if record[at] != version {
            let found = format!("version {}", record[at]);
            let wanted = if version == 1 { "version 1" } else { "version 2" };
            return Err(Problem::WrongFormat { found, wanted });
        }
        let (command, len) = match self {
            Self::V1 => (record[12], &record[4..8]),
            Self::V2 => (record[0], &record[8..12]),
        };
        let Some(op) = scsi_operation(command) else {
            return Ok(Item::Skipped(SkippedKind::OtherCommand));
        };
        Ok(Item::Request(Request {
            time_ns: scaled(little_endian(&record[24..32]), 1000, "time")?,
            op,
            file: files.number("disk")?,
            offset: scaled(little_endian(&record[16..24]), SECTOR_BYTES, "block")?,
            len: little_endian(len),
        }))
    }
}

/// The number that up to eight bytes make.
pub(crate) fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| (number << 8) | u64::from(byte))
}

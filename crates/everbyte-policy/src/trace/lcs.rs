//! libCacheSim's "lcs" traces: a header, then packed little-endian records.
//!
//! The header has 8192 bytes: a number u64, the version u64, statistics, and the number again in the
//! last 8 bytes. Records begin with time in s u32 and object u64. The size in bytes is u32 in
//! versions 1 and 2 and i64 since version 3. Since version 2 the operation u8 and the tenant u24
//! follow; since version 3 a time to live u32. The next access i64 ends the record, before 1, 2, 4, 8
//! or 16 numbers u32 in versions 4 to 8. Source: libCacheSim, `traceReader/customizedReader/lcs.h`.
//!
//! An older header has 1024 bytes: the number u64, a text of 240 bytes with the types of the fields
//! in the form of Python's `struct`, and bytes with the fields of object, size, time and operation,
//! from 1 on. The number of fields u32, the bytes of a record u32, a version u64 and the number
//! again end it. Source: `traceReader/generalReader/lcs.h` of version 0.3.
//!
//! Operations are those of `req_op_e` in libCacheSim's `enum.h`. Version 1 has none, and others may
//! leave them out: **these do not distinguish reads from writes**.

use super::RequestOp;
use super::decode::{Item, RecordFormat};
use super::error::Problem;
use super::fields::scaled;
use super::files::FileNames;
use super::objects::Object;
use super::vscsi::little_endian;

/// The number at both ends of a header.
const MAGIC: u64 = 0x1234_5678_9abc_def0;
const HEADER_BYTES: usize = 8192;
const OLD_HEADER_BYTES: usize = 1024;
/// Bytes of the text with the types of the fields.
const TYPES_BYTES: usize = 240;

/// Place of a field in a record, and its bytes.
type Field = (usize, usize);

/// libCacheSim's "lcs" records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lcs {
    header_bytes: usize,
    record_bytes: usize,
    time: Option<Field>,
    object: Field,
    size: Option<Field>,
    op: Option<Field>,
    assumes_reads: bool,
}

impl Lcs {
    /// Makes a reader of the trace with this beginning; `None` if it has no header of a known version.
    pub(crate) fn new(head: &[u8], assumes_reads: bool) -> Option<Self> {
        let word = |at: usize| head.get(at..at + 8).map(little_endian);
        if word(0) != Some(MAGIC) {
            return None;
        }
        let is_new = word(HEADER_BYTES - 8) == Some(MAGIC);
        let mut found = is_new.then(|| Self::of_version(word(8)?)).flatten();
        if found.is_none() && word(OLD_HEADER_BYTES - 8) == Some(MAGIC) {
            found = Self::of_types(&head[..OLD_HEADER_BYTES]);
        }
        found.map(|format| Self { assumes_reads, ..format })
    }

    fn of_version(version: u64) -> Option<Self> {
        let features = match version {
            1..=3 => 0,
            4..=8 => 1 << (version - 4),
            _ => return None,
        };
        let (size, op, fixed_bytes) = match version {
            1 => ((12, 4), None, 24),
            2 => ((12, 4), Some((16, 1)), 28),
            _ => ((12, 8), Some((20, 1)), 36),
        };
        Some(Self {
            header_bytes: HEADER_BYTES,
            record_bytes: fixed_bytes + 4 * features,
            time: Some((0, 4)),
            object: (4, 8),
            size: Some(size),
            op,
            assumes_reads: false,
        })
    }

    fn of_types(header: &[u8]) -> Option<Self> {
        let text = header[8..8 + TYPES_BYTES].split(|&byte| byte == 0).next()?;
        let types = text.strip_prefix(b"<")?;
        let mut fields: Vec<Field> = Vec::new();
        let mut record_bytes = 0;
        for letter in types {
            let bytes = match letter {
                b'c' | b'b' | b'B' => 1,
                b'h' | b'H' => 2,
                b'i' | b'I' | b'l' | b'L' => 4,
                b'q' | b'Q' => 8,
                _ => return None,
            };
            fields.push((record_bytes, bytes));
            record_bytes += bytes;
        }
        let word = |at: usize| little_endian(&header[at..at + 4]);
        let end = OLD_HEADER_BYTES - 24;
        if word(end) != fields.len() as u64 || word(end + 4) != record_bytes as u64 {
            return None;
        }
        // From 1 on; 0 means a missing field.
        let field = |place: usize| match header[8 + TYPES_BYTES + place] {
            0 => Some(None),
            number => fields.get(usize::from(number) - 1).copied().map(Some),
        };
        let (object, size, time, op) = (field(0)??, field(1)?, field(2)?, field(5)?);
        let header_bytes = OLD_HEADER_BYTES;
        Some(Self { header_bytes, record_bytes, time, object, size, op, assumes_reads: false })
    }

    pub(crate) fn header_bytes(&self) -> usize {
        self.header_bytes
    }

    pub(crate) fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    /// Returns true if its records have operations.
    pub(crate) fn has_operations(&self) -> bool {
        self.op.is_some()
    }

    fn operation(&self, record: &[u8]) -> Result<RequestOp, Problem> {
        let number = self.op.map(|(at, bytes)| little_endian(&record[at..at + bytes]));
        match number {
            Some(1 | 2 | 12) => Ok(RequestOp::Read),
            Some(3..=8 | 10 | 11 | 13 | 14) => Ok(RequestOp::Write),
            Some(9) => Ok(RequestOp::Trim),
            _ if self.assumes_reads => Ok(RequestOp::Read),
            number => Err(Problem::NoOperation { value: number.unwrap_or_default() }),
        }
    }
}

impl RecordFormat for Lcs {
    fn item(&mut self, record: &[u8], _: &mut FileNames) -> Result<Item, Problem> {
        let of = |(at, bytes): Field| little_endian(&record[at..at + bytes]);
        let time_ns = scaled(self.time.map_or(0, of), 1_000_000_000, "time")?;
        let bytes = self.size.map_or(1, of);
        if bytes.cast_signed() < 0 {
            let value = bytes.cast_signed().to_string();
            return Err(Problem::Negative { field: "size", value });
        }
        let op = self.operation(record)?;
        Ok(Item::of_object(Object { time_ns, op, id: of(self.object), bytes, times: 1 }))
    }
}

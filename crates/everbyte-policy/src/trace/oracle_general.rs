//! libCacheSim's "oracleGeneral" traces: packed little-endian records of 24 bytes.
//!
//! Time in s u32, object u64, size in bytes u32, number of the object's next access i64 (-1 or the
//! largest number for none; not needed here). Source: libCacheSim,
//! `traceReader/customizedReader/oracle/oracleGeneralBin.h`.
//!
//! **It does not distinguish reads from writes**, so figures about writes are meaningless. All
//! requests are reads, and only if the caller asks for this.

use super::RequestOp;
use super::decode::{Item, RecordFormat};
use super::error::Problem;
use super::fields::scaled;
use super::files::FileNames;
use super::objects::Object;
use super::vscsi::little_endian;

/// Bytes of a record.
pub(crate) const RECORD_BYTES: usize = 24;
/// Most seconds between two requests of one trace.
const PAUSE_S_MAX: u64 = 30 * 24 * 3600;

/// libCacheSim's "oracleGeneral" records.
pub(crate) struct OracleGeneral;

impl RecordFormat for OracleGeneral {
    fn item(&mut self, record: &[u8], _: &mut FileNames) -> Result<Item, Problem> {
        let time_ns = scaled(little_endian(&record[0..4]), 1_000_000_000, "time")?;
        let (id, bytes) = (little_endian(&record[4..12]), little_endian(&record[12..16]));
        let op = RequestOp::Read;
        Ok(Item::of_object(Object { time_ns, op, id, bytes, times: 1 }))
    }
}

/// Returns true if these may be the first records: times do not go back, and each next access is later.
pub(crate) fn is_plausible(head: &[u8]) -> bool {
    let mut before = None;
    let mut records = (0_i64..).zip(head.chunks_exact(RECORD_BYTES)).peekable();
    records.peek().is_some()
        && records.all(|(place, record)| {
            let time = little_endian(&record[..4]);
            let pause = time.checked_sub(before.replace(time).unwrap_or(time));
            let next = little_endian(&record[16..24]).cast_signed();
            pause.is_some_and(|pause| pause <= PAUSE_S_MAX) && (next == -1 || next > place)
        })
}

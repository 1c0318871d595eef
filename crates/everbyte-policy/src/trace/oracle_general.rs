//! libCacheSim's "oracleGeneral" traces: packed little-endian records of 24 bytes.
//!
//! Time in s u32, object u64, size in bytes u32, number of the object's next access i64 (-1 or the
//! largest number for none; not needed here). Source: libCacheSim,
//! `traceReader/customizedReader/oracle/oracleGeneralBin.h`.
//!
//! **Nothing says what is read and what is written**, so that figures about writes mean nothing;
//! all requests are reads, and only if the caller asks for that. Objects have sizes and no places,
//! and their numbers may be hashes of 64 bits. Object `n` becomes a request for page `n` of disk
//! `0.k`, for each page `k` that its size needs, where the highest bits of `n` take the place of
//! the 0: objects never share a page, and neighbouring numbers are neighbours.

use rustc_hash::FxHashMap;

use super::decode::{Item, RecordFormat};
use super::error::Problem;
use super::fields::scaled;
use super::files::FileNames;
use super::vscsi::little_endian;
use super::{Request, RequestOp};
use crate::access::PAGE_BYTES;

/// Bytes of a record.
pub(crate) const RECORD_BYTES: usize = 24;
/// Bits of an object's number that fit into a place on a disk.
const PLACE_BITS: u32 = 50;
/// Bytes of an object, at most: each of its pages is a request of its own.
const OBJECT_BYTES_MAX: u64 = 16 << 20;

/// libCacheSim's "oracleGeneral" records.
#[derive(Default)]
pub(crate) struct OracleGeneral {
    /// Numbers of the disks `k.0` that were met, and the last of them.
    disks: FxHashMap<u64, u32>,
    last: Option<(u64, u32)>,
}

impl OracleGeneral {
    /// Returns the number of disk `disk.0`, on which all objects of one page are.
    fn first_page(&mut self, disk: u64, files: &mut FileNames) -> Result<u32, Problem> {
        if let Some((last, number)) = self.last
            && last == disk
        {
            return Ok(number);
        }
        let number = match self.disks.get(&disk) {
            Some(&number) => number,
            None => files.number(&format!("{disk}.0"))?,
        };
        self.disks.insert(disk, number);
        self.last = Some((disk, number));
        Ok(number)
    }
}

impl RecordFormat for OracleGeneral {
    fn item(&mut self, record: &[u8], files: &mut FileNames) -> Result<Item, Problem> {
        let time_ns = scaled(little_endian(&record[0..4]), 1_000_000_000, "time")?;
        let object = little_endian(&record[4..12]);
        let size = little_endian(&record[12..16]);
        if size == 0 {
            return Ok(Item::Nothing);
        }
        if size > OBJECT_BYTES_MAX {
            return Err(Problem::RequestTooLarge { len: size, max: OBJECT_BYTES_MAX });
        }
        let (disk, place) = (object >> PLACE_BITS, object & ((1 << PLACE_BITS) - 1));
        let page_bytes = u64::from(PAGE_BYTES);
        let op = RequestOp::Read;
        let offset = place * page_bytes;
        let file = self.first_page(disk, files)?;
        if size <= page_bytes {
            return Ok(Item::Request(Request { time_ns, op, file, offset, len: size }));
        }
        let mut requests = Vec::new();
        for page in 0..size.div_ceil(page_bytes) {
            requests.push(Request {
                time_ns,
                op,
                file: files.number(&format!("{disk}.{page}"))?,
                offset,
                len: (size - page * page_bytes).min(page_bytes),
            });
        }
        Ok(Item::Requests(requests))
    }
}

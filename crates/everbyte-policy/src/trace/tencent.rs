//! The block traces of Tencent's cloud (CBS): lines of `Timestamp,Offset,Size,IOType,VolumeID`.
//!
//! The timestamp is s since 1970; offset and size are sectors of 512 bytes; type 0 is a read and 1
//! a write. Source: the README of the traces' distribution (SNIA IOTTA, trace set 27917; Zhang et
//! al., "OSCA: An Online-Model Based Cache Allocation Scheme", ATC 2020). Nothing but numbers is in
//! a line, so the format has to be named.

use super::decode::{Item, LineFormat};
use super::error::Problem;
use super::fields::{Commas, end, next, number, scaled};
use super::files::FileNames;
use super::{Request, RequestOp, SECTOR_BYTES};

/// Lines of Tencent's block traces.
pub(crate) struct Tencent;

impl LineFormat for Tencent {
    fn item(&mut self, line: &str, files: &mut FileNames) -> Result<Item, Problem> {
        let mut fields = Commas::of(line);
        let time = number(next(&mut fields, "timestamp")?, "timestamp")?;
        let offset = number(next(&mut fields, "offset")?, "offset")?;
        let len = number(next(&mut fields, "size")?, "size")?;
        let op = match next(&mut fields, "type")? {
            "0" => RequestOp::Read,
            "1" => RequestOp::Write,
            other => return Err(Problem::field("type", other, "0 to read or 1 to write")),
        };
        let volume = next(&mut fields, "volume")?;
        number(volume, "volume")?;
        end(&mut fields, "five fields in all")?;
        Ok(Item::Request(Request {
            time_ns: scaled(time, 1_000_000_000, "timestamp")?,
            op,
            file: files.number(volume)?,
            offset: scaled(offset, SECTOR_BYTES, "offset")?,
            len: scaled(len, SECTOR_BYTES, "size")?,
        }))
    }
}

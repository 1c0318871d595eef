//! The block traces of 13 servers at Microsoft Research Cambridge: lines of
//! `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`.
//!
//! Timestamps are Windows file times, in units of 100 ns; offset and size are bytes; the type is
//! `Read` or `Write`. Source: the README of the traces' distribution (SNIA IOTTA, trace set 388;
//! Narayanan, Donnelly, Rowstron, "Write Off-Loading", FAST 2008). Lines with the names of
//! the fields may be there, and the response time may be left out.

use super::decode::{Item, LineFormat};
use super::error::Problem;
use super::fields::{Commas, end, next, number, scaled};
use super::files::FileNames;
use super::skipped::SkippedKind;
use super::{Request, RequestOp};

/// The names of the fields.
pub(crate) const HEADER: &str = "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime";
/// ns in a unit of Windows file time.
const FILE_TIME_NS: u64 = 100;

/// Lines of the block traces of Microsoft Research Cambridge.
#[derive(Default)]
pub(crate) struct Msr {
    /// Room for the name of a disk.
    name: String,
}

impl LineFormat for Msr {
    fn item(&mut self, line: &str, files: &mut FileNames) -> Result<Item, Problem> {
        if line == HEADER {
            return Ok(Item::Skipped(SkippedKind::Heading));
        }
        let mut fields = Commas::of(line);
        let time = number(next(&mut fields, "timestamp")?, "timestamp")?;
        let host = next(&mut fields, "host's name")?;
        let disk = next(&mut fields, "disk's number")?;
        self.name.clear();
        self.name.extend([host, ".", disk]);
        let file = files.number(&self.name)?;
        let op = match next(&mut fields, "type")? {
            read if read.eq_ignore_ascii_case("read") => RequestOp::Read,
            write if write.eq_ignore_ascii_case("write") => RequestOp::Write,
            other => return Err(Problem::field("type", other, "Read or Write")),
        };
        let offset = number(next(&mut fields, "offset")?, "offset")?;
        let len = number(next(&mut fields, "size")?, "size")?;
        if let Some(response) = fields.next() {
            number(response, "response time")?;
        }
        end(&mut fields, "seven fields in all")?;
        let time_ns = scaled(time, FILE_TIME_NS, "timestamp")?;
        Ok(Item::Request(Request { time_ns, op, file, offset, len }))
    }
}

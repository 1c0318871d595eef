//! The block traces of 13 servers at Microsoft Research Cambridge: lines of
//! `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`.
//!
//! Timestamps are Windows file times, in units of 100 ns; offset and size are bytes; the type is
//! `Read` or `Write`. Source: the README of the traces' distribution (SNIA IOTTA, trace set 388;
//! Narayanan, Donnelly, Rowstron, "Write Off-Loading", FAST 2008). A first line with the names of
//! the fields may be there.

use super::decode::{Item, LineFormat};
use super::error::Problem;
use super::fields::{Commas, next, number, scaled};
use super::files::FileNames;
use super::{Request, RequestOp};

/// ns in a unit of Windows file time.
const FILE_TIME_NS: u64 = 100;

/// Lines of the block traces of Microsoft Research Cambridge.
#[derive(Default)]
pub(crate) struct Msr {
    has_begun: bool,
    /// Room for the name of a disk.
    name: String,
}

impl LineFormat for Msr {
    fn item(&mut self, line: &str, files: &mut FileNames) -> Result<Item, Problem> {
        if !std::mem::replace(&mut self.has_begun, true) && line.starts_with("Timestamp") {
            return Ok(Item::Nothing);
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
        let time_ns = scaled(time, FILE_TIME_NS, "timestamp")?;
        Ok(Item::Request(Request { time_ns, op, file, offset, len }))
    }
}

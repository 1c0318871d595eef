//! The Storage Performance Council's format, in which the UMass repository keeps its Financial and
//! WebSearch traces: lines of `ASU,LBA,Size,Opcode,Timestamp`.
//!
//! The unit of storage (ASU) is a number; the address counts blocks, which are sectors of 512 bytes
//! in those traces; the size is bytes; the opcode is R or W in either case; the time is seconds
//! with a fraction. White space around fields is allowed. The format's optional further fields have
//! no fixed meaning and are refused. Source: "SPC Trace File Format Specification", revision 1.0.1.

use super::decode::{Item, LineFormat};
use super::error::Problem;
use super::fields::{Commas, decimal, end, next, number, read_or_write, scaled};
use super::files::FileNames;
use super::{Request, SECTOR_BYTES};

/// Lines of the Storage Performance Council's format.
pub(crate) struct Spc;

impl LineFormat for Spc {
    fn item(&mut self, line: &str, files: &mut FileNames) -> Result<Item, Problem> {
        let mut fields = Commas::of(line);
        let unit = next(&mut fields, "ASU")?;
        number(unit, "ASU")?;
        let block = number(next(&mut fields, "address")?, "address")?;
        let len = number(next(&mut fields, "size")?, "size")?;
        let op = read_or_write(next(&mut fields, "opcode")?, "opcode")?;
        let time_ns = decimal(next(&mut fields, "timestamp")?, 1_000_000_000, "timestamp")?;
        end(&mut fields, "five fields in all")?;
        let offset = scaled(block, SECTOR_BYTES, "address")?;
        Ok(Item::Request(Request { time_ns, op, file: files.number(unit)?, offset, len }))
    }
}

//! The block traces of SYSTOR '17: lines of `Timestamp,Response,IOType,LUN,Offset,Size`.
//!
//! Timestamp (since 1970) and response time are s with a fraction; offset and size are bytes; the
//! type is R or W, and blank for a request without a response of the storage: it is skipped and
//! counted. Source: the README of the traces' distribution (SNIA IOTTA, trace set 4928; Lee et al.,
//! "Understanding Storage Traffic Characteristics on Enterprise Virtual Desktop Infrastructure",
//! SYSTOR 2017).

use super::Request;
use super::decode::{Item, LineFormat};
use super::error::Problem;
use super::fields::{Commas, decimal, end, next, number, read_or_write};
use super::files::FileNames;
use super::skipped::SkippedKind;

/// The first line of a trace.
pub(crate) const HEADER: &str = "Timestamp,Response,IOType,LUN,Offset,Size";

/// Lines of the traces of SYSTOR '17.
pub(crate) struct Systor;

impl LineFormat for Systor {
    fn item(&mut self, line: &str, files: &mut FileNames) -> Result<Item, Problem> {
        if line == HEADER {
            return Ok(Item::Skipped(SkippedKind::Heading));
        }
        let mut fields = Commas::of(line);
        let time_ns = decimal(next(&mut fields, "timestamp")?, 1_000_000_000, "timestamp")?;
        let response = next(&mut fields, "response time")?;
        if !response.is_empty() {
            decimal(response, 1_000_000_000, "response time")?;
        }
        let op = match next(&mut fields, "type")? {
            "" => None,
            op => Some(read_or_write(op, "type")?),
        };
        let unit = next(&mut fields, "LUN")?;
        number(unit, "LUN")?;
        let offset = number(next(&mut fields, "offset")?, "offset")?;
        let len = number(next(&mut fields, "size")?, "size")?;
        end(&mut fields, "six fields in all")?;
        let Some(op) = op else { return Ok(Item::Skipped(SkippedKind::NoAnswer)) };
        Ok(Item::Request(Request { time_ns, op, file: files.number(unit)?, offset, len }))
    }
}

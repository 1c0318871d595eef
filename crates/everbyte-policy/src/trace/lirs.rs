//! The traces of the LIRS paper: the number of a block in each line, and nothing else.
//!
//! A block is a page. Lines of `*` separate the parts of a trace. Source: Jiang, Zhang, "LIRS: An
//! Efficient Low Inter-reference Recency Set Replacement Policy", SIGMETRICS 2002, and its
//! simulator. **It does not distinguish reads from writes**. Any list of numbers has this form, so
//! the caller must name the format.

use super::decode::{Item, LineFormat};
use super::error::Problem;
use super::fields::{end, next, number, scaled};
use super::files::FileNames;
use super::{Request, RequestOp};
use crate::access::PAGE_BYTES;

/// Lines of a block's number.
pub(crate) struct Lirs;

impl LineFormat for Lirs {
    fn item(&mut self, line: &str, files: &mut FileNames) -> Result<Item, Problem> {
        let mut fields = line.split_whitespace();
        let block = number(next(&mut fields, "block")?, "block")?;
        end(&mut fields, "one number in all")?;
        let len = u64::from(PAGE_BYTES);
        let offset = scaled(block, len, "block")?;
        let (op, file) = (RequestOp::Read, files.number("disk")?);
        Ok(Item::Request(Request { time_ns: 0, op, file, offset, len }))
    }
}

//! The block traces of Alibaba Cloud: lines of `device_id,opcode,offset,length,timestamp`.
//!
//! Opcodes are R and W; offset and length are bytes; the timestamp is us since 1970. Source: the
//! README of the traces (alibaba/block-traces; Li et al., "An In-Depth Analysis of Cloud Block
//! Storage Workloads in Large-Scale Production", IISWC 2020).

use super::Request;
use super::decode::{Item, LineFormat};
use super::error::Problem;
use super::fields::{Commas, end, next, number, read_or_write, scaled};
use super::files::FileNames;
use super::skipped::SkippedKind;

pub(crate) const HEADER: &str = "device_id,opcode,offset,length,timestamp";

/// Lines of Alibaba's block traces.
pub(crate) struct Alibaba;

impl LineFormat for Alibaba {
    fn item(&mut self, line: &str, files: &mut FileNames) -> Result<Item, Problem> {
        if line == HEADER {
            return Ok(Item::Skipped(SkippedKind::Heading));
        }
        let mut fields = Commas::of(line);
        let device = next(&mut fields, "device")?;
        number(device, "device")?;
        let op = read_or_write(next(&mut fields, "opcode")?, "opcode")?;
        let offset = number(next(&mut fields, "offset")?, "offset")?;
        let len = number(next(&mut fields, "length")?, "length")?;
        let time = number(next(&mut fields, "timestamp")?, "timestamp")?;
        end(&mut fields, "five fields in all")?;
        let time_ns = scaled(time, 1000, "timestamp")?;
        Ok(Item::Request(Request { time_ns, op, file: files.number(device)?, offset, len }))
    }
}

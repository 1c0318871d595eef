//! DiskSim's ASCII traces, and MQSim's: lines of `time device block blocks flags`.
//!
//! Blocks are sectors of 512 bytes. Bit 0 of the flags, which are hexadecimal, marks a read.
//! DiskSim's times are ms with a fraction, MQSim's whole ns; a decimal point distinguishes them.
//! Sources: the DiskSim 4.0 reference manual, on input traces; MQSim's README ("trace-based
//! workloads").

use super::decode::{Item, LineFormat};
use super::error::Problem;
use super::fields::{decimal, end, next, number, scaled};
use super::files::FileNames;
use super::{Request, RequestOp, SECTOR_BYTES};

/// The bit of the flags that marks a read.
const READ: u64 = 1;

/// Lines of DiskSim's and MQSim's ASCII form.
pub(crate) struct Disksim;

impl LineFormat for Disksim {
    fn item(&mut self, line: &str, files: &mut FileNames) -> Result<Item, Problem> {
        let mut fields = line.split_whitespace();
        let time = next(&mut fields, "time")?;
        let time_ns = match time.contains('.') {
            true => decimal(time, 1_000_000, "time")?,
            false => number(time, "time")?,
        };
        let device = next(&mut fields, "device")?;
        number(device, "device")?;
        let block = number(next(&mut fields, "block")?, "block")?;
        let blocks = number(next(&mut fields, "number of blocks")?, "number of blocks")?;
        let flags = next(&mut fields, "type")?;
        let hexadecimal = flags.strip_prefix("0x").unwrap_or(flags);
        let flags = u64::from_str_radix(hexadecimal, 16)
            .map_err(|_| Problem::field("type", flags, "a number, 0 to write or 1 to read"))?;
        end(&mut fields, "five fields in all")?;
        Ok(Item::Request(Request {
            time_ns,
            op: if flags & READ == 0 { RequestOp::Write } else { RequestOp::Read },
            file: files.number(device)?,
            offset: scaled(block, SECTOR_BYTES, "block")?,
            len: scaled(blocks, SECTOR_BYTES, "number of blocks")?,
        }))
    }
}

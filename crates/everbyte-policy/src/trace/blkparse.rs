//! The text that `blkparse` makes of block traces of the Linux kernel, in its default form:
//! `major,minor cpu sequence seconds pid action RWBS sector + sectors [process]`.
//!
//! A request appears several times on its way; one kind of event is counted. That is the queueing
//! (`Q`), or if the trace's beginning has none the issue to the driver (`D`), else the completion
//! (`C`). Of RWBS, D means discard, W write, R read, and F without any of these a flush. Reading
//! ends at the summary that `blkparse` puts at the end. Source: blkparse(1), "Default output",
//! "Action identifiers", "RWBS description".

use super::decode::{Item, LineFormat};
use super::error::Problem;
use super::fields::{decimal, next, number, scaled};
use super::files::FileNames;
use super::{Request, RequestOp, SECTOR_BYTES};

/// Kinds of events that stand for requests, the best first.
const ACTIONS: [&str; 3] = ["Q", "D", "C"];

/// Lines that `blkparse` prints, of one kind of event.
pub(crate) struct Blkparse {
    action: &'static str,
}

impl Blkparse {
    /// Makes a reader of a trace with this beginning.
    pub(crate) fn new(head: &[u8]) -> Self {
        let head = String::from_utf8_lossy(head);
        let has = |action: &&&str| {
            head.lines().any(|line| line.split_whitespace().nth(5) == Some(**action))
        };
        Self { action: ACTIONS.iter().find(has).copied().unwrap_or(ACTIONS[0]) }
    }
}

/// Returns true if `text` is a device's number: major, comma, minor.
pub(crate) fn is_device(text: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    text.split_once(',').is_some_and(|(major, minor)| is_number(major) && is_number(minor))
}

impl LineFormat for Blkparse {
    fn item(&mut self, line: &str, files: &mut FileNames) -> Result<Item, Problem> {
        let mut fields = line.split_whitespace();
        let device = next(&mut fields, "device")?;
        if device.starts_with("CPU") || device == "Total" {
            return Ok(Item::End);
        }
        if !is_device(device) {
            return Err(Problem::field("device", device, "major,minor"));
        }
        number(next(&mut fields, "CPU")?, "CPU")?;
        number(next(&mut fields, "sequence number")?, "sequence number")?;
        let time_ns = decimal(next(&mut fields, "time")?, 1_000_000_000, "time")?;
        next(&mut fields, "process")?;
        if next(&mut fields, "action")? != self.action {
            return Ok(Item::Nothing);
        }
        let Some(op) = operation(next(&mut fields, "RWBS field")?) else {
            return Ok(Item::Nothing);
        };
        let file = files.number(device)?;
        let request = Request { time_ns, op, file, offset: 0, len: 0 };
        let (sector, plus) = (fields.next(), fields.next());
        let (Some(sector), Some("+")) = (sector, plus) else {
            // Nothing is transferred: a flush with no data, whatever else it is called.
            let has_flush = line.split_whitespace().nth(6).is_some_and(|rwbs| rwbs.contains('F'));
            return match has_flush {
                true => Ok(Item::Request(Request { op: RequestOp::Flush, ..request })),
                false => Err(Problem::Missing { field: "sector and number of sectors" }),
            };
        };
        let sectors = number(next(&mut fields, "number of sectors")?, "number of sectors")?;
        Ok(Item::Request(Request {
            offset: scaled(number(sector, "sector")?, SECTOR_BYTES, "sector")?,
            len: scaled(sectors, SECTOR_BYTES, "number of sectors")?,
            ..request
        }))
    }
}

/// Returns the operation of an RWBS field; `None` if it moves no data.
fn operation(rwbs: &str) -> Option<RequestOp> {
    let meanings = [
        ('D', RequestOp::Trim),
        ('W', RequestOp::Write),
        ('R', RequestOp::Read),
        ('F', RequestOp::Flush),
    ];
    meanings.into_iter().find(|(letter, _)| rwbs.contains(*letter)).map(|(_, op)| op)
}

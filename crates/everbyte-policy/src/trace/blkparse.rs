//! The text that `blkparse` makes of block traces of the Linux kernel, in its default form:
//! `major,minor cpu sequence seconds pid action RWBS sector + sectors [process]`.
//!
//! A request appears several times on its way; one kind of event is counted. That is the queueing
//! (`Q`), or if the trace's beginning has none the issue to the driver (`D`), else the completion
//! (`C`). Of RWBS, D means discard, W write, R read, and F without any of these a flush. Reading
//! ends at the summary that `blkparse` puts at the end. Source: blkparse(1), "Default output",
//! "Action identifiers", "RWBS description"; `blkparse_fmt.c`.
//!
//! Commands passed through to a SCSI device are no requests for sectors. Where sectors would be they
//! have their bytes, in parentheses, if the kernel tells them; before these, when they are issued,
//! the number of bytes that they transfer. The kernel cuts the names of processes after 15 bytes,
//! in the midst of a character too.

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

impl Blkparse {
    /// Returns true if what stands where a sector would be says that a command is passed through: its bytes, or what
    /// follows them. Requests that are queued are none.
    fn is_passed_through(&self, text: &str) -> bool {
        text.starts_with('(') || (self.action != ACTIONS[0] && text.starts_with('['))
    }
}

impl LineFormat for Blkparse {
    fn may_lack_bytes(&self) -> bool {
        true
    }

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
        let rwbs = next(&mut fields, "RWBS field")?;
        let Some(op) = operation(rwbs) else { return Ok(Item::Nothing) };
        let file = files.number(device)?;
        let request = Request { time_ns, op, file, offset: 0, len: 0 };
        let sector = match (fields.next(), fields.next()) {
            (Some(sector), Some("+")) => sector,
            // Nothing is transferred: a flush with no data, whatever else it is called.
            _ if rwbs.contains('F') => {
                return Ok(Item::Request(Request { op: RequestOp::Flush, ..request }));
            }
            (Some(command), _) if self.is_passed_through(command) => return Ok(Item::Nothing),
            (Some(bytes), Some(command)) if self.is_passed_through(command) => {
                return number(bytes, "number of bytes").map(|_| Item::Nothing);
            }
            _ => return Err(Problem::Missing { field: "sector and number of sectors" }),
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

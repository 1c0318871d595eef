//! The text that `blkparse` makes of block traces of the Linux kernel, in its default form:
//! `major,minor cpu sequence seconds pid action RWBS sector + sectors [process]`.
//!
//! A request appears several times on its way; one kind of event is counted. That is the queueing
//! (`Q`), or if the trace's beginning has none the issue to the driver (`D`), else the completion
//! (`C`). Source: blkparse(1), "Default output", "Action identifiers", "RWBS description";
//! `blkparse_fmt.c`; the kernel's `blk_fill_rwbs`.
//!
//! Every line without an event is skipped: the names of input files before or behind the events,
//! and the summary, which begins with a CPU, a process or the total. Events may follow a summary,
//! because outputs can be joined.
//!
//! Commands passed through to a SCSI device are not requests for sectors. In place of sectors they
//! have their bytes in parentheses, if the kernel reports them. At their issue, the number of
//! transferred bytes precedes them. The kernel cuts process names after 15 bytes, even within a
//! character.

use super::decode::{Item, LineFormat};
use super::error::Problem;
use super::fields::{decimal, next, number, scaled};
use super::files::FileNames;
use super::skipped::SkippedKind;
use super::{Request, RequestOp, SECTOR_BYTES};

/// Kinds of events that stand for requests, the best first.
const ACTIONS: [&str; 3] = ["Q", "D", "C"];

/// Beginnings of a summary's lines that follow its first line and are not indented.
const SUMMARY: [&str; 4] = ["Throughput (", "Events (", "Skips: ", "Total"];

/// Lines that `blkparse` prints, of one kind of event.
pub(crate) struct Blkparse {
    action: &'static str,
    /// The last lines were a summary's.
    in_summary: bool,
}

impl Blkparse {
    /// Makes a reader of a trace with this beginning.
    pub(crate) fn new(head: &[u8]) -> Self {
        let head = String::from_utf8_lossy(head);
        let has = |action: &&&str| {
            head.lines().any(|line| line.split_whitespace().nth(5) == Some(**action))
        };
        // The first event on a request's way that the trace has, so that each request counts once.
        let action = ACTIONS.iter().find(has).copied().unwrap_or(ACTIONS[0]);
        Self { action, in_summary: false }
    }

    /// Returns the kind of a line without an event.
    fn without_event(&mut self, line: &str, device: &str) -> Result<Item, Problem> {
        if line.starts_with("Input file ") && line.ends_with(" added") {
            return Ok(Item::Skipped(SkippedKind::InputFile));
        }
        let is_cpu = device.strip_prefix("CPU").is_some_and(is_number);
        let begins = is_cpu && line.ends_with(':') || is_process(line);
        // Figures of a summary look like nothing else, and are accepted only behind its beginning.
        self.in_summary |= begins || SUMMARY.iter().any(|begin| line.starts_with(begin));
        let is_figure = line.starts_with([' ', '\t']) && line.contains(':');
        let is_summary = SUMMARY.iter().any(|begin| line.starts_with(begin));
        match self.in_summary && (begins || is_figure || is_summary) {
            true => Ok(Item::Skipped(SkippedKind::Summary)),
            false => Err(Problem::field("device", device, "major,minor")),
        }
    }

    /// Returns true if the text at the place of a sector marks a passed-through command: its bytes,
    /// or the following text. Queued requests are not such commands.
    fn is_passed_through(&self, text: &str) -> bool {
        text.starts_with('(') || (self.action != ACTIONS[0] && text.starts_with('['))
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns true if `text` is a device's number: major, comma, minor.
fn is_device(text: &str) -> bool {
    text.split_once(',').is_some_and(|(major, minor)| is_number(major) && is_number(minor))
}

/// Returns true if `line` is a process, which begins a part of a summary: its name and its number, with dots
/// if there were several of this name.
fn is_process(line: &str) -> bool {
    let line = &line.replace(", ...)", ")");
    let inside = line.strip_suffix(')').and_then(|line| line.rsplit_once(" ("));
    inside.is_some_and(|(name, number)| !name.trim().is_empty() && is_number(number.trim()))
}

impl LineFormat for Blkparse {
    fn may_lack_bytes(&self) -> bool {
        true
    }

    fn item(&mut self, line: &str, files: &mut FileNames) -> Result<Item, Problem> {
        let mut fields = line.split_whitespace();
        let device = next(&mut fields, "device")?;
        if !is_device(device) {
            return self.without_event(line, device);
        }
        // Outputs of several runs can be joined, so events may follow a summary.
        self.in_summary = false;
        number(next(&mut fields, "CPU")?, "CPU")?;
        number(next(&mut fields, "sequence number")?, "sequence number")?;
        let time_ns = decimal(next(&mut fields, "time")?, 1_000_000_000, "time")?;
        next(&mut fields, "process")?;
        let action = next(&mut fields, "action")?;
        if action != self.action {
            let is_message = action == "m";
            let (message, event) = (SkippedKind::Message, SkippedKind::OtherEvent);
            return Ok(Item::Skipped(if is_message { message } else { event }));
        }
        let rwbs = next(&mut fields, "RWBS field")?;
        // Before the sectors: events without data have none.
        let op = match Command::of(rwbs)? {
            Command::Moves(op) => op,
            Command::Skipped(kind) => return Ok(Item::Skipped(kind)),
        };
        let request = Request { time_ns, op, file: 0, offset: 0, len: 0 };
        let rest: Vec<&str> = fields.collect();
        let (sector, sectors, tail) = match rest.as_slice() {
            [sector, "+", sectors, tail @ ..] => (sector, sectors, tail),
            [_, "+"] => return Err(Problem::Missing { field: "number of sectors" }),
            // No data is transferred: a flush without data under any name.
            rest if rwbs.contains('F') => {
                check_process(rest.strip_prefix(&["0"]).unwrap_or(rest))?;
                let file = files.number(device)?;
                return Ok(Item::Request(Request { op: RequestOp::Flush, file, ..request }));
            }
            [command, ..] if self.is_passed_through(command) => {
                return Ok(Item::Skipped(SkippedKind::OtherCommand));
            }
            [bytes, command, ..] if self.is_passed_through(command) => {
                let passed = Item::Skipped(SkippedKind::OtherCommand);
                return number(bytes, "number of bytes").map(|_| passed);
            }
            // No bytes are transferred.
            rest if rest.first().is_some_and(|first| first.starts_with('[')) => {
                return check_process(rest).map(|()| Item::Skipped(SkippedKind::NoData));
            }
            _ => return Err(Problem::Missing { field: "sector and number of sectors" }),
        };
        let sector = scaled(number(sector, "sector")?, SECTOR_BYTES, "sector")?;
        let sectors = number(sectors, "number of sectors")?;
        let len = scaled(sectors, SECTOR_BYTES, "number of sectors")?;
        check_process(tail)?;
        // Checked after the process, so that a damaged line is an error even without data.
        if len == 0 {
            return Ok(Item::Skipped(SkippedKind::NoData));
        }
        let file = files.number(device)?;
        Ok(Item::Request(Request { file, offset: sector, len, ..request }))
    }
}

/// Expects in `words` a process in brackets, after the request's time in parentheses, or nothing.
fn check_process(words: &[&str]) -> Result<(), Problem> {
    let wrong = |word: &str| Problem::field("process", word, "[name] as the last field");
    let begins = words.iter().position(|word| word.starts_with('['));
    let (times, process) = words.split_at(begins.unwrap_or(words.len()));
    let times = times.concat();
    let inside = times.strip_prefix('(').and_then(|times| times.strip_suffix(')'));
    if !times.is_empty() && !inside.is_some_and(is_number) {
        return Err(wrong(&times));
    }
    match process.last() {
        Some(last) if !last.ends_with(']') => Err(wrong(last)),
        _ => Ok(()),
    }
}

/// Meaning of an RWBS field.
enum Command {
    /// It reads, writes, drops or hardens.
    Moves(RequestOp),
    Skipped(SkippedKind),
}

impl Command {
    /// An `F` before the operation asks for a flush first; letters behind it are flags.
    fn of(rwbs: &str) -> Result<Self, Problem> {
        let after_flush = rwbs.strip_prefix('F').unwrap_or(rwbs);
        Ok(match after_flush.as_bytes() {
            [b'Z', b'A', ..] => Self::Moves(RequestOp::Write),
            [b'Z', b'R' | b'O' | b'C' | b'F', ..] => Self::Skipped(SkippedKind::ZoneCommand),
            [b'W', b'Z', ..] => Self::Moves(RequestOp::Zero),
            [b'W', ..] => Self::Moves(RequestOp::Write),
            [b'R', ..] => Self::Moves(RequestOp::Read),
            [b'D', ..] => Self::Moves(RequestOp::Trim),
            _ if rwbs.starts_with('F') => Self::Moves(RequestOp::Flush),
            [b'N', ..] => Self::Skipped(SkippedKind::NoData),
            // Flags without an operation.
            [b'A' | b'S' | b'M' | b'U', ..] => Self::Skipped(SkippedKind::NoData),
            _ => return Err(Problem::field("RWBS field", rwbs, "R, W, D, F, N or Z and flags")),
        })
    }
}

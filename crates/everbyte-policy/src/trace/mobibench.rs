//! The system calls of Android applications, as Mobibench replays them: lines of
//! `thread time_us call arguments`.
//!
//! `read fd len` and `write fd len` continue at the descriptor's position; `pread fd offset len`
//! and `pwrite` name theirs; `fsync fd result`; `open path flags fd` sets the position to the
//! beginning. A length of -1 marks a failed call, and is skipped. No other call moves the position:
//! the recorder omits `lseek`. Lines are grouped by thread, so all are read and sorted by time
//! first, with equal times in the order of the trace.
//!
//! Paths are mostly made unreadable in these traces, and many descriptors are sockets and pipes. So
//! a file is a descriptor, and only those count that are read or written at an explicit position
//! somewhere in the trace; calls on others are skipped and counted. Source: Jeong, Lee, Hwang, Lee, Won, "AndroStep: Android Storage
//! Performance Analysis Tool" (Software Engineering Workshops, 2013), whose published traces show
//! the form.

use rustc_hash::{FxHashMap, FxHashSet};

use super::decode::{Item, LineFormat, Rest};
use super::error::Problem;
use super::fields::{end, next, number, scaled};
use super::files::FileNames;
use super::skipped::SkippedKind;
use super::{OFFSET_MAX, Request, RequestOp};

/// Most calls that are kept to be sorted.
const CALLS_MAX: usize = 1 << 24;

/// A call's effect on a descriptor.
#[derive(Clone, Copy)]
enum Action {
    Open,
    /// With a position, unless it continues at the descriptor's.
    Transfer(RequestOp, Option<u64>, u64),
    Sync,
}

struct Call {
    line: u64,
    time_ns: u64,
    descriptor: u32,
    action: Action,
}

/// System calls as Mobibench replays them, sorted by time.
#[derive(Default)]
pub(crate) struct Mobibench {
    calls: Vec<Call>,
    /// Descriptors that are surely files.
    places: FxHashSet<u32>,
}

/// System calls of application traces. They distinguish this format from others with words.
const CALLS: [&str; 48] = [
    "access",
    "chdir",
    "chmod",
    "chown",
    "close",
    "creat",
    "dup",
    "dup2",
    "fallocate",
    "fchmod",
    "fchown",
    "fcntl",
    "fcntl64",
    "fdatasync",
    "flock",
    "fstat",
    "fstat64",
    "fstatat64",
    "fstatfs",
    "fsync",
    "ftruncate",
    "ftruncate64",
    "getdents",
    "getdents64",
    "ioctl",
    "link",
    "lseek",
    "_llseek",
    "lstat",
    "lstat64",
    "mkdir",
    "mmap",
    "mmap2",
    "munmap",
    "open",
    "openat",
    "pread",
    "pread64",
    "pwrite",
    "pwrite64",
    "read",
    "rename",
    "rmdir",
    "stat",
    "stat64",
    "sync",
    "unlink",
    "write",
];

/// Returns true if `line` may be of this format: its third word is a known system call.
pub(crate) fn has_known_call(line: &str) -> bool {
    line.split_whitespace().nth(2).is_some_and(|call| CALLS.contains(&call))
}

/// Returns true if `text` may be the name of a call.
fn is_call(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

impl LineFormat for Mobibench {
    fn item(&mut self, line: &str, _: &mut FileNames) -> Result<Item, Problem> {
        let mut fields = line.split_whitespace();
        number(next(&mut fields, "thread")?, "thread")?;
        let time_us = number(next(&mut fields, "time")?, "time")?;
        let time_ns = scaled(time_us, 1000, "time")?;
        let call = next(&mut fields, "call")?;
        let op = match call {
            "read" | "pread" | "pread64" => RequestOp::Read,
            "write" | "pwrite" | "pwrite64" => RequestOp::Write,
            "fsync" | "fdatasync" => RequestOp::Flush,
            "open" => {
                let descriptor = fields.last().ok_or(Problem::Missing { field: "descriptor" })?;
                if let Ok(descriptor) = descriptor.parse() {
                    self.keep(Call { line: 0, time_ns, descriptor, action: Action::Open })?;
                }
                return Ok(Item::Skipped(SkippedKind::FileAction));
            }
            other if is_call(other) => return Ok(Item::Skipped(SkippedKind::OtherCall)),
            other => return Err(Problem::field("call", other, "the name of a system call")),
        };
        let descriptor = number(next(&mut fields, "descriptor")?, "descriptor")?;
        let too_large = Problem::TooLarge { field: "descriptor", value: descriptor.to_string() };
        let descriptor = u32::try_from(descriptor).map_err(|_| too_large)?;
        let action = match op {
            RequestOp::Flush => {
                // The result, which may be an error's number.
                if let Some(result) = fields.next() {
                    number(result.trim_start_matches('-'), "result")?;
                }
                Action::Sync
            }
            _ => {
                let place = match call.starts_with('p') {
                    true => Some(number(next(&mut fields, "offset")?, "offset")?),
                    false => None,
                };
                let len = next(&mut fields, "length")?;
                // A failed call moved no bytes and no position.
                if len == "-1" {
                    end(&mut fields, "a length as the last field")?;
                    return Ok(Item::Skipped(SkippedKind::FailedCall));
                }
                if place.is_some() {
                    // Only files have explicit positions. Sockets and pipes are recognized by their
                    // lack.
                    self.places.insert(descriptor);
                }
                Action::Transfer(op, place, number(len, "length")?)
            }
        };
        end(&mut fields, "no more fields than the call has")?;
        self.keep(Call { line: 0, time_ns, descriptor, action })?;
        Ok(Item::Kept)
    }

    fn kept_line(&mut self, number: u64) {
        if let Some(call) = self.calls.last_mut() {
            call.line = number;
        }
    }

    fn rest(&mut self, files: &mut FileNames) -> Result<Rest, (u64, Problem)> {
        let mut calls = std::mem::take(&mut self.calls);
        calls.sort_by_key(|call| call.time_ns);
        let mut positions = FxHashMap::default();
        let mut rest = Rest::default();
        for Call { line, time_ns, descriptor, action } in calls {
            if !self.places.contains(&descriptor) {
                // Those that open were counted with their lines.
                rest.skipped += u64::from(!matches!(action, Action::Open));
                continue;
            }
            let file = files.number(&descriptor.to_string()).map_err(|problem| (line, problem))?;
            let position: &mut u64 = positions.entry(descriptor).or_default();
            let (op, offset, len) = match action {
                Action::Open => {
                    *position = 0;
                    continue;
                }
                Action::Sync => (RequestOp::Flush, 0, 0),
                Action::Transfer(op, Some(place), len) => (op, place, len),
                Action::Transfer(op, None, len) => {
                    let offset = *position;
                    let end = offset.checked_add(len).filter(|end| *end <= OFFSET_MAX);
                    *position = end.ok_or((line, Problem::BeyondEnd { offset, len }))?;
                    (op, offset, len)
                }
            };
            rest.requests.push((line, Request { time_ns, op, file, offset, len }));
        }
        Ok(rest)
    }
}

impl Mobibench {
    fn keep(&mut self, call: Call) -> Result<(), Problem> {
        if self.calls.len() == CALLS_MAX {
            return Err(Problem::TooMany { what: "calls to be sorted", max: CALLS_MAX as u64 });
        }
        self.calls.push(call);
        Ok(())
    }
}

//! Names of operations in text.

use super::RequestOp;
use super::error::Problem;

/// Words of block traces, in either case.
const WORDS: [(&[&str], RequestOp); 5] = [
    (&["R", "read"], RequestOp::Read),
    (&["W", "write"], RequestOp::Write),
    (&["F", "flush"], RequestOp::Flush),
    (&["T", "trim", "D", "discard"], RequestOp::Trim),
    (&["Z", "zero"], RequestOp::Zero),
];

/// Words of key-value stores (memcached's protocol, CacheLib's traces), in either case.
const KEY_WORDS: [(&[&str], RequestOp); 3] = [
    (&["get", "gets", "get_lease"], RequestOp::Read),
    (
        &[
            "set",
            "set_lease",
            "add",
            "cas",
            "replace",
            "append",
            "prepend",
            "incr",
            "decr",
            "update",
        ],
        RequestOp::Write,
    ),
    (&["delete"], RequestOp::Trim),
];

fn find(words: &[(&[&str], RequestOp)], text: &str) -> Option<RequestOp> {
    let is = |(words, _): &&(&[&str], RequestOp)| {
        words.iter().any(|word| word.eq_ignore_ascii_case(text))
    };
    words.iter().find(is).map(|(_, op)| *op)
}

/// Parses an operation of a block trace, of which the number `read_number` is a read and the other one of 0 and
/// 1 is a write, or of a key-value store.
pub(crate) fn of_any(text: &str, read_number: u8) -> Result<RequestOp, Problem> {
    let wanted = match read_number {
        0 => {
            "R, W, F, T, Z, read, write, flush, trim, zero, get, set, delete, 0 (read) or 1 (write)"
        }
        _ => {
            "R, W, F, T, Z, read, write, flush, trim, zero, get, set, delete, 0 (write) or 1 (read)"
        }
    };
    let of_number = || match text {
        "0" | "1" => Some(match text == if read_number == 0 { "0" } else { "1" } {
            true => RequestOp::Read,
            false => RequestOp::Write,
        }),
        _ => None,
    };
    let found = find(&WORDS, text).or_else(|| find(&KEY_WORDS, text)).or_else(of_number);
    found.ok_or_else(|| Problem::field("operation", text, wanted))
}

/// Parses an operation of a key-value store.
pub(crate) fn of_key(text: &str) -> Result<RequestOp, Problem> {
    let wanted = "get, gets, set, add, cas, replace, append, prepend, incr, decr or delete";
    find(&KEY_WORDS, text).ok_or_else(|| Problem::field("operation", text, wanted))
}

/// Parses the hexadecimal code of a SCSI command that reads or writes.
pub(crate) fn of_scsi(text: &str) -> Result<RequestOp, Problem> {
    let code = u8::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok();
    let found = code.and_then(scsi_operation);
    found.ok_or_else(|| {
        Problem::field("command", text, "the code of a SCSI read or write, such as 2a")
    })
}

/// Returns the operation of a SCSI command (SBC-4, table of operation codes).
pub(crate) fn scsi_operation(command: u8) -> Option<RequestOp> {
    match command {
        // READ of 6, 10, 12 and 16 bytes.
        0x08 | 0x28 | 0xA8 | 0x88 => Some(RequestOp::Read),
        // WRITE of the same, WRITE AND VERIFY of 10, 12 and 16.
        0x0A | 0x2A | 0xAA | 0x8A | 0x2E | 0xAE | 0x8E => Some(RequestOp::Write),
        // SYNCHRONIZE CACHE of 10 and 16.
        0x35 | 0x91 => Some(RequestOp::Flush),
        _ => None,
    }
}

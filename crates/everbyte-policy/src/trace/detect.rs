//! Detects the format of a trace from its beginning.
//!
//! No beginning fits several of the formats that are told apart here. One that is of no format may
//! look like one: the readers find that out.

use super::blkparse::is_device;
use super::format::Format;
use super::input::BYTE_ORDER_MARK;
use super::mobibench::is_call;
use super::oracle_general::RECORD_BYTES;
use super::vscsi::{V1_BYTES, V2_BYTES, Vscsi, little_endian};

/// Records that a binary format is recognised by.
const RECORDS: usize = 16;
/// Most seconds between two requests of an oracleGeneral trace.
const PAUSE_S_MAX: u64 = 30 * 24 * 3600;

/// Returns the format of the trace that begins with `head`, if it is known. A text may begin with a byte order mark.
pub(crate) fn format_of(head: &[u8]) -> Option<Format> {
    let is_text = |byte: &u8| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~' | 0x80..);
    if head.iter().take(V2_BYTES).all(is_text) {
        let text = String::from_utf8_lossy(head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head));
        return text.lines().map(str::trim).find(|line| !line.is_empty()).and_then(of_line);
    }
    of_records(head)
}

fn of_line(line: &str) -> Option<Format> {
    if line.starts_with("fio version") {
        return Some(Format::Fio);
    }
    let names = ["time_ns,op,", "Timestamp,Hostname,"];
    let named = [Format::Csv, Format::Msr].into_iter().zip(names);
    if let Some((format, _)) = named.into_iter().find(|(_, names)| line.starts_with(names)) {
        return Some(format);
    }
    let words: Vec<&str> = line.split_whitespace().collect();
    if words.len() >= 6 && is_device(words[0]) {
        return Some(Format::Blkparse);
    }
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    match fields.as_slice() {
        [_, "R" | "W" | "F" | "T" | "Z", _, _, _] => Some(Format::Csv),
        [_, _, _, kind, _, _, ..] if ["read", "write"].contains(&&*kind.to_lowercase()) => {
            Some(Format::Msr)
        }
        [_, _, _, "R" | "r" | "W" | "w", _, ..] => Some(Format::Spc),
        _ => of_words(&words),
    }
}

fn of_words(words: &[&str]) -> Option<Format> {
    let is_number = |word: &&str| word.parse::<f64>().is_ok();
    match words {
        [thread, time, call, ..] if is_number(thread) && is_number(time) && is_call(call) => {
            Some(Format::Mobibench)
        }
        [time, device, block, blocks, _]
            if [time, device, block, blocks].into_iter().all(is_number) =>
        {
            Some(Format::Disksim)
        }
        _ => None,
    }
}

fn of_records(head: &[u8]) -> Option<Format> {
    let is_vscsi = |version: Vscsi, bytes: usize| {
        let (at, number) = version.version_at();
        let mut records = head.chunks_exact(bytes).take(RECORDS).peekable();
        records.peek().is_some() && records.all(|record| record[at] == number)
    };
    if is_vscsi(Vscsi::V2, V2_BYTES) {
        return Some(Format::VscsiV2);
    }
    if is_vscsi(Vscsi::V1, V1_BYTES) {
        return Some(Format::VscsiV1);
    }
    let mut records = head.chunks_exact(RECORD_BYTES).take(RECORDS).peekable();
    let mut before = None;
    let is_oracle = records.peek().is_some()
        && records.all(|record| {
            let time = little_endian(&record[..4]);
            let pause = time.checked_sub(before.replace(time).unwrap_or(time));
            let next = little_endian(&record[16..24]).cast_signed();
            pause.is_some_and(|pause| pause <= PAUSE_S_MAX) && next >= -1
        });
    is_oracle.then_some(Format::OracleGeneral)
}

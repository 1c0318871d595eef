//! Detects the format of a trace from its beginning.
//!
//! A text is of a format if the format's reader decodes all lines of the beginning, to their last
//! byte, and the results are plausible: no times as lengths, no bytes as sectors. Bytes are of a
//! binary format if all records of the beginning are plausible. Exactly one format must remain;
//! several or none are refused.

use super::content::Content;
use super::decode::Item;
use super::decoder::Decoder;
use super::error::{Problem, shortened};
use super::files::FileNames;
use super::format::Format;
use super::input::{BYTE_ORDER_MARK, Sample, control_character};
use super::refusal::{NearFormat, Reason, Refusal};
use super::skipped::{SkippedKind, of_line};
use super::vscsi::Vscsi;
use super::{OFFSET_MAX, Request, RequestOp, SECTOR_BYTES};
use super::{alibaba, csv, fio, kvcache, lcs, mobibench, msr, oracle_general, systor, vscsi};

/// Text formats that are detected.
const TEXTS: [Format; 11] = [
    Format::Csv,
    Format::Msr,
    Format::Blkparse,
    Format::Fio,
    Format::Spc,
    Format::Disksim,
    Format::Mobibench,
    Format::Alibaba,
    Format::Fiu,
    Format::Systor,
    Format::Twitter,
];

/// Text formats with lines of numbers only. Any numbers could be of them.
const NAMED_ONLY: [Format; 2] = [Format::Tencent, Format::Lirs];

/// The doubt about formats of [`NAMED_ONLY`].
const NUMBERS: &str = "any list of numbers looks like it";

/// Times that are plausible: Windows file times of 100 ns from 1917 to 2234, us and s since 1970 from 2001 to 2065.
const FILE_TIMES_NS: std::ops::Range<u64> = 10_000_000_000_000_000_000..18_446_744_073_709_551_615;
const UNIX_TIMES_NS: std::ops::Range<u64> = 1_000_000_000_000_000_000..3_000_000_000_000_000_000;
/// Numbers of units and devices above this are none.
const DEVICES_MAX: u64 = 1 << 12;

/// Returns the format of the trace that begins with `sample`.
///
/// # Errors
/// No format or several fit. The trace's name is left out.
pub(crate) fn format_of(
    sample: &Sample,
    request_bytes_max: u64,
) -> Result<(Format, Reason), Box<Refusal>> {
    let text = sample.head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&sample.head);
    let is_text = |byte: &u8| matches!(byte, b'\t' | b'\n' | b'\r' | 0x0C | b' '..=b'~' | 0x80..);
    let is_empty = text.trim_ascii().is_empty();
    let mut refusal = match text.iter().all(is_text) && !is_empty {
        true => match of_text(text, sample.is_whole, request_bytes_max) {
            Ok(found) => return Ok(found),
            Err(refusal) => refusal,
        },
        false => {
            let (found, doubtful) = of_records(sample);
            if let [one] = found.as_slice() {
                return Ok(*one);
            }
            let candidates = found.into_iter().map(|(format, _)| format).collect();
            Box::new(Refusal { candidates, doubtful, ..Refusal::default() })
        }
    };
    // A single control character makes a text binary. Its place explains more than the list of
    // formats.
    if refusal.candidates.is_empty() && text.iter().all(|byte| *byte == 0 || is_text(byte)) {
        refusal.mistake = (1..)
            .zip(text.split_inclusive(|&byte| byte == b'\n'))
            .find_map(|(number, line)| Some((number, control_character(line)?)));
    }
    refusal.begin = beginning(text);
    refusal.content = Content::perhaps(&sample.head);
    Err(refusal)
}

/// Returns the first line, shortened, with escapes for everything but text.
fn beginning(head: &[u8]) -> String {
    let line = head.trim_ascii_start().split(|&byte| byte == b'\n').next().unwrap_or_default();
    shortened(String::from_utf8_lossy(line).trim_end())
}

/// Returns the complete lines of `text` that no format skips, with their numbers.
fn lines_of(text: &[u8], is_whole: bool) -> Vec<(u64, &[u8])> {
    let mut lines: Vec<_> = (1..).zip(text.split_inclusive(|&byte| byte == b'\n')).collect();
    if !is_whole && lines.len() > 1 && lines.last().is_some_and(|(_, line)| !line.ends_with(b"\n"))
    {
        // The sample ends within this line, so no format can be blamed for it.
        lines.pop();
    }
    lines.retain(|(_, line)| {
        let line = String::from_utf8_lossy(line);
        of_line(line.trim_end()).is_none()
    });
    lines
}

fn of_text(text: &[u8], is_whole: bool, max: u64) -> Result<(Format, Reason), Box<Refusal>> {
    let lines = lines_of(text, is_whole);
    let mut refusal = Box::<Refusal>::default();
    let mut found = Vec::new();
    // Named-only formats are tried as well: the refusal mentions them.
    let formats = TEXTS.into_iter().chain([Format::Kvcache]).chain(NAMED_ONLY);
    for format in formats {
        match Trial::of(format, text, &lines, max) {
            Ok(trial) => match trial.doubt(format) {
                None => found.push((format, trial)),
                Some(doubt) => refusal.doubtful.push((format, doubt)),
            },
            Err(Some(near)) => refusal.near.push(near),
            Err(None) => {}
        }
    }
    // A heading outweighs; and the times of a trace seldom go back, which numbers in other columns do.
    if found.iter().any(|(_, trial)| trial.has_heading) {
        found.retain(|(_, trial)| trial.has_heading);
    }
    if found.len() > 1 && found.iter().any(|(_, trial)| trial.times_ascend) {
        found.retain(|(_, trial)| trial.times_ascend);
    }
    if let [(format, trial)] = found.as_slice() {
        let lines = lines.len() as u64;
        return Ok((
            *format,
            match trial.has_heading {
                true => Reason::Heading { lines },
                false => Reason::Lines { lines },
            },
        ));
    }
    refusal.candidates = found.into_iter().map(|(format, _)| format).collect();
    Err(refusal)
}

/// The beginning as a format reads it.
struct Trial {
    requests: Vec<Request>,
    has_objects: bool,
    /// Lines certainly of the format, although they are not requests.
    has_events: bool,
    has_heading: bool,
    /// A line has a point.
    has_point: bool,
    times_ascend: bool,
    devices_max: u64,
}

impl Trial {
    /// Reads `lines`. Fails with the place where another format begins, if there is something before it.
    fn of(
        format: Format,
        text: &[u8],
        lines: &[(u64, &[u8])],
        max: u64,
    ) -> Result<Self, Option<NearFormat>> {
        let Some(Decoder::Lines(mut decoder)) = Decoder::new(format, text, false) else {
            return Err(None);
        };
        let mut files = FileNames::default();
        let mut trial = Self {
            requests: Vec::new(),
            has_objects: false,
            has_events: false,
            has_heading: false,
            has_point: false,
            times_ascend: true,
            devices_max: 0,
        };
        let mut time_ns = 0;
        for &(number, bytes) in lines {
            let line = String::from_utf8_lossy(bytes);
            // The reader decides the same way, so a trial accepts exactly the lines that a run
            // accepts.
            let is_readable = decoder.may_lack_bytes() || std::str::from_utf8(bytes).is_ok();
            let item = match control_character(bytes) {
                Some(problem) => Err(problem),
                None if !is_readable => Err(Problem::NotText),
                None => trial.item(format, line.trim_end(), |line| decoder.item(line, &mut files)),
            };
            let (item, is_wrong_number) = match item.map(|item| (item, check(&item, max))) {
                Ok((item, Ok(()))) => (item, None),
                Ok((item, Err(problem))) => (item, Some(problem)),
                Err(problem) => {
                    let has_begun = trial.has_begun();
                    return Err(has_begun.then_some(NearFormat { format, line: number, problem }));
                }
            };
            // The line has the form of this format, so the number is the mistake: reported even on
            // the first line.
            if let Some(problem) = is_wrong_number {
                return Err(Some(NearFormat { format, line: number, problem }));
            }
            trial.has_point |= bytes.contains(&b'.');
            match item {
                Item::Request(request) => {
                    trial.times_ascend &= request.time_ns >= time_ns;
                    time_ns = request.time_ns;
                    trial.requests.push(request);
                }
                Item::Object(object) => {
                    trial.times_ascend &= object.time_ns >= time_ns;
                    time_ns = object.time_ns;
                    trial.has_objects = true;
                }
                Item::Kept => trial.has_objects = true,
                Item::Skipped(kind) => trial.has_events |= is_event(kind),
            }
        }
        let names = (0..).map_while(|number| files.name(number)?.parse().ok());
        trial.devices_max = names.max().unwrap_or(0);
        if !trial.has_begun() {
            return Err(None);
        }
        Ok(trial)
    }

    fn item(
        &mut self,
        format: Format,
        line: &str,
        decode: impl FnOnce(&str) -> Result<Item, Problem>,
    ) -> Result<Item, Problem> {
        if format == Format::Mobibench && !mobibench::has_known_call(line) {
            let call = line.split_whitespace().nth(2).unwrap_or_default();
            return Err(Problem::field("call", call, "a known system call"));
        }
        self.has_heading |= is_heading(format, line);
        decode(line)
    }

    fn has_begun(&self) -> bool {
        !self.requests.is_empty() || self.has_objects || self.has_events || self.has_heading
    }

    /// Returns the reason why the requests are not plausible ones of `format`.
    fn doubt(&self, format: Format) -> Option<&'static str> {
        // Before the heading: these formats have none.
        if NAMED_ONLY.contains(&format) {
            return Some(NUMBERS);
        }
        if self.has_heading {
            return None;
        }
        let all = |is: fn(&Request) -> bool| self.requests.iter().all(is);
        let are_sectors = || all(|request| is_whole(request.offset) && is_whole(request.len));
        // Numbers of sectors that are bytes.
        let are_bytes =
            || all(|r| is_whole(r.offset / SECTOR_BYTES) && is_whole(r.len / SECTOR_BYTES));
        let doubt = |is_doubtful: bool, doubt| is_doubtful.then_some(doubt);
        match format {
            Format::Msr => doubt(
                !all(|request| FILE_TIMES_NS.contains(&request.time_ns)),
                "a time is no Windows file time",
            ),
            Format::Spc => doubt(!self.has_point, "no time has a fraction")
                .or_else(|| doubt(!self.times_ascend, "times go back"))
                .or_else(|| doubt(self.devices_max > DEVICES_MAX, "a unit's number is too large"))
                .or_else(|| {
                    doubt(!all(|request| is_whole(request.len)), "a size is not in sectors")
                }),
            Format::Disksim => doubt(!self.times_ascend, "times go back")
                .or_else(|| doubt(self.devices_max > DEVICES_MAX, "a device's number is too large"))
                .or_else(|| {
                    doubt(are_bytes(), "all places and lengths seem to be bytes, not sectors")
                }),
            Format::Alibaba => doubt(!are_sectors(), "a place or length is not in sectors"),
            Format::Systor => doubt(
                !all(|request| UNIX_TIMES_NS.contains(&request.time_ns)) || !self.has_point,
                "a time is no time since 1970 with a fraction",
            ),
            Format::Kvcache => Some("no line names the fields"),
            _ => None,
        }
    }
}

fn is_whole(bytes: u64) -> bool {
    bytes.is_multiple_of(SECTOR_BYTES)
}

/// Returns true if a line of this kind has most parts of a request.
fn is_event(kind: SkippedKind) -> bool {
    use SkippedKind::{Message, NoAnswer, NoData, OtherCommand, OtherEvent, ZoneCommand};
    matches!(kind, Message | NoAnswer | NoData | OtherCommand | OtherEvent | ZoneCommand)
}

fn is_heading(format: Format, line: &str) -> bool {
    match format {
        Format::Csv => line == csv::HEADER,
        Format::Msr => line == msr::HEADER,
        Format::Systor => line == systor::HEADER,
        Format::Alibaba => line == alibaba::HEADER,
        Format::Fio => line.starts_with(fio::VERSION),
        Format::Kvcache => kvcache::is_heading(line),
        _ => false,
    }
}

/// Refuses a request that no trace can have: in another format its numbers mean something else.
fn check(item: &Item, max: u64) -> Result<(), Problem> {
    let Item::Request(Request { op, offset, len, .. }) = *item else { return Ok(()) };
    if op == RequestOp::Flush {
        return Ok(());
    }
    if offset.checked_add(len).is_none_or(|end| end > OFFSET_MAX) {
        return Err(Problem::BeyondEnd { offset, len });
    }
    // A trim has no data, and file systems trim whole disks.
    match len > max && op != RequestOp::Trim {
        true => Err(Problem::RequestTooLarge { len, max }),
        false => Ok(()),
    }
}

/// Formats, with the reason for each, and doubtful ones.
type Candidates = (Vec<(Format, Reason)>, Vec<(Format, &'static str)>);

/// Returns the binary formats that the beginning may be of.
fn of_records(sample: &Sample) -> Candidates {
    let Sample { head, is_whole, bytes } = sample;
    // A header with a magic number decides alone. Records have only plausible values.
    if lcs::Lcs::new(head, false).is_some() {
        return (vec![(Format::Lcs, Reason::Header)], Vec::new());
    }
    // Compressed or piped traces have no known length, unless the sample has all of it.
    let bytes = bytes.or_else(|| is_whole.then_some(head.len() as u64));
    let formats = [
        (Format::VscsiV1, vscsi::V1_BYTES, Vscsi::V1.is_plausible(head)),
        (Format::VscsiV2, vscsi::V2_BYTES, Vscsi::V2.is_plausible(head)),
        (Format::OracleGeneral, oracle_general::RECORD_BYTES, oracle_general::is_plausible(head)),
    ];
    let (mut found, mut doubtful) = (Vec::new(), Vec::new());
    for (format, record_bytes, _) in formats.into_iter().filter(|(.., is_plausible)| *is_plausible)
    {
        match bytes.is_none_or(|bytes| bytes.is_multiple_of(record_bytes as u64)) {
            true => {
                let records = (head.len() / record_bytes) as u64;
                found.push((format, Reason::Records { records }));
            }
            false => doubtful.push((format, "the trace ends within a record: it was cut off")),
        }
    }
    (found, doubtful)
}

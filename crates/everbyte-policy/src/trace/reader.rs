//! [`TraceReader`]: requests from a trace of any format.

use std::io::Read;
use std::path::Path;

use super::decode::{Item, NumberedRequest};
use super::decoder::Decoder;
use super::error::{Problem, TraceError};
use super::files::FileNames;
use super::format::Format;
use super::input::{BYTE_ORDER_MARK, Input};
use super::lcs::Lcs;
use super::objects::ObjectPages;
use super::refusal::Reason;
use super::skipped::{SkippedCounts, SkippedKind, of_line};
use super::summary::Summary;
use super::{OFFSET_MAX, Request, RequestOp, detect};

/// The largest request that is taken for one, in bytes, unless options say otherwise.
const REQUEST_BYTES_MAX: u64 = 1 << 30;

/// Options for reading a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadOptions {
    /// The format; `None` detects it from the content.
    pub format: Option<Format>,
    /// Takes requests of a format that does not name their kind as reads.
    pub assume_reads: bool,
    /// Reads, writes and zeroes of more bytes than this are an error. Objects of more bytes are skipped and counted.
    pub request_bytes_max: u64,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { format: None, assume_reads: false, request_bytes_max: REQUEST_BYTES_MAX }
    }
}

/// A trace that is being read. An iterator over its requests, in the order of the trace, that ends
/// after the first error.
pub struct TraceReader {
    input: Input,
    decoder: Decoder,
    /// The object whose pages are handed out.
    pages: ObjectPages,
    /// Requests that waited for the last line.
    rest: std::vec::IntoIter<NumberedRequest>,
    files: FileNames,
    format: Format,
    reason: Reason,
    request_bytes_max: u64,
    skipped: SkippedCounts,
    ended: bool,
}

impl TraceReader {
    /// Opens the trace at `path`; `-` is standard input.
    ///
    /// # Errors
    /// It cannot be read, its format is not known or is not enough.
    pub fn open(path: &Path, options: &ReadOptions) -> Result<Self, TraceError> {
        Self::over(Input::open(path)?, options)
    }

    /// Reads the bytes of `source`; errors call it `name`.
    ///
    /// # Errors
    /// As [`TraceReader::open`].
    pub fn new(
        name: &str,
        source: impl Read + Send + 'static,
        options: &ReadOptions,
    ) -> Result<Self, TraceError> {
        Self::over(Input::new(name, source)?, options)
    }

    fn over(mut input: Input, options: &ReadOptions) -> Result<Self, TraceError> {
        let sample = input.sample()?;
        let head = &sample.head;
        let trace = input.place().trace.clone();
        // Before the detection, which would list all formats for an empty file.
        if head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head).trim_ascii().is_empty() {
            return Err(TraceError::Empty { trace });
        }
        let (format, reason) = match options.format {
            Some(format) => (format, Reason::Named),
            None => match detect::format_of(&sample, options.request_bytes_max) {
                Ok(found) => found,
                Err(mut refusal) => {
                    refusal.trace = trace;
                    return Err(TraceError::UnknownFormat(refusal));
                }
            },
        };
        let has_operations = match &format {
            Format::OracleGeneral | Format::Lirs => false,
            Format::Columns(columns) => columns.have_operations(),
            Format::Lcs => Lcs::new(head, false).is_none_or(|lcs| lcs.has_operations()),
            _ => true,
        };
        // Guessing reads silently would make every result of write costs wrong.
        if !has_operations && !options.assume_reads {
            return Err(TraceError::NoOperations { trace, format });
        }
        let Some(decoder) = Decoder::new(format, head, options.assume_reads) else {
            let wanted = "the header of a known version";
            return Err(input.wrong(Problem::WrongFormat { found: "other bytes".into(), wanted }));
        };
        match &decoder {
            Decoder::Lines(lines) => input.begin_text(lines.may_lack_bytes()),
            // The header was read from the sample. Records follow behind it.
            Decoder::Records(_, header_bytes, _) => input.skip(*header_bytes),
            Decoder::Ended => {}
        }
        Ok(Self {
            decoder,
            input,
            pages: ObjectPages::default(),
            rest: Vec::new().into_iter(),
            files: FileNames::default(),
            format,
            reason,
            request_bytes_max: options.request_bytes_max,
            skipped: SkippedCounts::default(),
            ended: false,
        })
    }

    /// Its format, given or found.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// The reason of its format.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// Names of the files and devices that were met so far.
    #[must_use]
    pub fn files(&self) -> &FileNames {
        &self.files
    }

    /// Lines or records so far without a request: headers, comments, commands without data, failed
    /// calls.
    #[must_use]
    pub fn skipped(&self) -> &SkippedCounts {
        &self.skipped
    }

    /// Returns the next request; `None` after the last.
    pub(super) fn advance(&mut self) -> Result<Option<Request>, TraceError> {
        loop {
            // An object stands for several requests: these come before the next line.
            if let Some(request) = self.pages.next(&mut self.files) {
                let checked = request.and_then(|request| self.checked(request));
                return checked.map(Some).map_err(|problem| self.input.wrong(problem));
            }
            let item = match &mut self.decoder {
                Decoder::Ended => {
                    let Some((number, request)) = self.rest.next() else { return Ok(None) };
                    // An error about a kept line names that line, not the end of the trace.
                    self.input.return_to(number);
                    Ok(Item::Request(request))
                }
                Decoder::Records(format, _, bytes) => match self.input.record(*bytes)? {
                    Some(record) => format.item(record, &mut self.files),
                    None => return Ok(None),
                },
                Decoder::Lines(format) => match self.input.line()? {
                    Some(line) => match of_line(line) {
                        Some(kind) => Ok(Item::Skipped(kind)),
                        None => format.item(line, &mut self.files),
                    },
                    None => {
                        self.read_rest()?;
                        continue;
                    }
                },
            };
            match item.map_err(|problem| self.input.wrong(problem))? {
                Item::Request(request) => {
                    let checked = self.checked(request);
                    return checked.map(Some).map_err(|problem| self.input.wrong(problem));
                }
                // Skipped and counted: one wrong size must not refuse a trace of a cache, unlike a
                // request of a disk.
                Item::Object(object) if object.bytes > self.request_bytes_max => {
                    self.skipped.add(SkippedKind::LargeObject, 1);
                }
                Item::Object(object) => {
                    self.pages.begin(object).map_err(|problem| self.input.wrong(problem))?;
                }
                Item::Kept => self.keep_line(),
                Item::Skipped(kind) => self.skipped.add(kind, 1),
            }
        }
    }

    fn keep_line(&mut self) {
        let number = self.at();
        if let Decoder::Lines(format) = &mut self.decoder {
            format.kept_line(number);
        }
    }

    fn read_rest(&mut self) -> Result<(), TraceError> {
        if let Decoder::Lines(format) = &mut self.decoder {
            let rest = format.rest(&mut self.files);
            let wrong = |(number, problem)| self.input.wrong_at(number, problem);
            let rest = rest.map_err(wrong)?;
            self.skipped.add(SkippedKind::NoPosition, rest.skipped);
            self.rest = rest.requests.into_iter();
        }
        self.decoder = Decoder::Ended;
        Ok(())
    }

    /// Returns the number of the line or record of the last request.
    pub(super) fn at(&self) -> u64 {
        self.input.place().number
    }

    /// Returns the error that line or record `number` is wrong.
    pub(super) fn wrong_at(&self, number: u64, problem: Problem) -> TraceError {
        self.input.wrong_at(number, problem)
    }

    /// Returns the error of a fully read trace without reads and writes.
    pub(super) fn no_requests(&self) -> TraceError {
        let trace = self.input.place().trace.clone();
        TraceError::NoRequests { trace, skipped: Box::new(self.skipped) }
    }

    /// The request, if it is not too large and does not leave the range of offsets.
    fn checked(&self, request: Request) -> Result<Request, Problem> {
        let Request { op, offset, len, .. } = request;
        if op == RequestOp::Flush {
            return Ok(request);
        }
        if offset.checked_add(len).is_none_or(|end| end > OFFSET_MAX) {
            return Err(Problem::BeyondEnd { offset, len });
        }
        let max = self.request_bytes_max;
        if len > max && op != RequestOp::Trim {
            return Err(Problem::RequestTooLarge { len, max });
        }
        Ok(request)
    }
}

impl Iterator for TraceReader {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.advance();
        self.ended = !matches!(next, Ok(Some(_)));
        next.transpose()
    }
}

/// Reads all of a trace and counts its content.
///
/// # Errors
/// The trace's, [`Problem::TooMany`] pages, and [`TraceError::NoRequests`] if nothing is read or written.
pub fn summarise(reader: &mut TraceReader) -> Result<Summary, TraceError> {
    let mut summary = Summary::default();
    while let Some(request) = reader.advance()? {
        summary.add(&request).map_err(|problem| reader.input.wrong(problem))?;
    }
    match summary.requests() {
        0 => Err(reader.no_requests()),
        _ => Ok(summary),
    }
}
